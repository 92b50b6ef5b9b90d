//! When fires happen, judged by the witness and the oracle; and what an edit does to a fire that is claimed ahead of its instant.

use std::time::Duration;

use belfry_testkit::{
    Belfry, Case, Client, Firer, Layout, Promise, Run, Tally, Witness, judge, now, oracle, sleep_until, until,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::start;

fn instant(job: &Value, field: &str) -> Timestamp {
    job[field].as_str().expect("an instant").parse().expect("an instant")
}

async fn until_ended(client: &Client, job: &str, count: usize) -> Vec<Run> {
    until(&format!("{count} runs of {job} have ended"), async || {
        let ended: Vec<Run> = client.runs(job).await.into_iter().filter(Run::has_ended).collect();
        (ended.len() >= count).then_some(ended)
    })
    .await
}

/// Pauses the job, waits until all that was due has its record, and judges it.
async fn pause_and_judge(belfry: &Belfry, witness: &Witness, name: &str, due: impl Fn(Timestamp) -> Vec<Timestamp>) {
    let client = belfry.client();
    let paused = client.post(&format!("/jobs/default/{name}/pause"), json!({})).await;
    let due = due(instant(&paused, "updated_at"));
    let records = until("all fires have their record", async || {
        let records = client.runs(name).await;
        (records.len() >= due.len() && records.iter().all(Run::has_ended)).then_some(records)
    })
    .await;
    let lines = witness.lines(name);
    let case = Case {
        job: name,
        due: &due,
        witness: &lines,
        records: &records,
        firer: Firer::Server,
        promise: Promise::AtMostOnce,
        overlap_forbidden: false,
        late_after: None,
        troubles: &[],
        marked_lost: &[],
    };
    assert_eq!(judge(&case, &mut Tally::default()), []);
}

pub async fn every_second_fires_on_time_and_once(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    let witness = Witness::new();
    let job =
        client.add("tick", &witness.command("tick", ":"), json!({"schedule": "* * * * * *", "overlap": "allow"})).await;
    until_ended(client, "tick", 4).await;
    pause_and_judge(&belfry, &witness, "tick", |paused| oracle::every_seconds(1, instant(&job, "created_at"), paused))
        .await;
}

pub async fn several_schedules_on_one_instant_are_one_fire(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    let witness = Witness::new();
    let schedule = json!({"schedule": ["*/2 * * * * *", "* * * * * *", "*/3 * * * * *"], "overlap": "allow"});
    let job = client.add("many", &witness.command("many", ":"), schedule).await;
    until_ended(client, "many", 4).await;
    pause_and_judge(&belfry, &witness, "many", |paused| oracle::every_seconds(1, instant(&job, "created_at"), paused))
        .await;
}

pub async fn every_counts_from_the_creation(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    let witness = Witness::new();
    let job = client.add("every", &witness.command("every", ":"), json!({"schedule": "@every 2s"})).await;
    let created = instant(&job, "created_at");
    let runs = until_ended(client, "every", 2).await;
    // Whole seconds, counted from the second in which it was created.
    let expected = (1..).map(|count| created.as_second() + 2 * count);
    for (run, second) in runs.iter().zip(expected) {
        assert_eq!(run.planned, Timestamp::from_second(second).expect("in range"), "created {created}");
    }
    assert!(witness.starts("every").iter().all(|line| line.at >= line.planned));
}

pub async fn at_fires_once(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    let witness = Witness::new();
    let at = Timestamp::from_second(now().as_second() + 2).expect("in range");
    client.add("once", &witness.command("once", ":"), json!({"schedule": format!("@at {at}")})).await;
    let runs = until_ended(client, "once", 1).await;
    assert_eq!((runs[0].state.as_str(), runs[0].planned), ("succeeded", at));
    assert_eq!(client.get("/jobs/default/once").await["next_fire"], Value::Null);
    assert_eq!(witness.starts("once").len(), 1);
}

pub async fn after_counts_from_the_end_of_the_run_before(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client.add("after", "sleep 0.5", json!({"schedule": "@after 1s"})).await;
    let runs = until_ended(client, "after", 3).await;
    for pair in runs.windows(2) {
        let pause = pair[1].started_at.expect("it ran").duration_since(pair[0].ended_at.expect("it ended"));
        assert!(pause >= SignedDuration::from_millis(990), "{pause} between {} and {}", pair[0].id, pair[1].id);
        assert_eq!(pair[1].state, "succeeded");
    }
}

pub async fn jitter_delays_the_start_and_not_the_plan(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    let witness = Witness::new();
    let spread = json!({"schedule": "* * * * * *", "jitter": "3s", "overlap": "allow"});
    client.add("spread", &witness.command("spread", ":"), spread).await;
    let runs = until_ended(client, "spread", 6).await;
    let delays: Vec<i64> =
        witness.starts("spread").iter().map(|line| line.at.duration_since(line.planned).as_millis() as i64).collect();
    assert!(runs.iter().all(|run| run.planned.subsec_nanosecond() == 0));
    assert!(delays.iter().all(|delay| *delay >= 0) && delays.iter().any(|delay| *delay > 200), "{delays:?}");
}

/// A job that fires at one instant, a little over a second away, and is claimed for it by now.
async fn claimed_ahead(client: &Client, witness: &Witness) -> (Timestamp, Run) {
    let at = Timestamp::from_second(now().as_second() + 3).expect("in range");
    let second = at.as_second() % 60;
    let schedule = json!({"schedule": format!("{second} * * * * *")});
    let job = client.add("ahead", &witness.command("ahead", ":"), schedule).await;
    let claimed = until("the fire is claimed", async || client.run_of_fire(&job, at).await).await;
    assert!(now() < at, "this machine is too slow for the test");
    (at, claimed)
}

async fn is_cancelled(client: &Client, witness: &Witness, at: Timestamp, run: &Run, why: &str) {
    let ended = client.until_ended(&run.id).await;
    assert_eq!((ended.state.as_str(), ended.planned), ("cancelled", at), "{}", ended.why());
    assert!(ended.why().contains(why), "{}", ended.why());
    sleep_until(at + Duration::from_millis(300)).await;
    assert!(witness.lines("ahead").is_empty(), "it was not started");
}

pub async fn what_is_claimed_ahead_is_cancelled_by_a_pause(layout: Layout) {
    let belfry = start(layout).await;
    let (client, witness) = (belfry.client(), Witness::new());
    let (at, run) = claimed_ahead(client, &witness).await;
    client.post("/jobs/default/ahead/pause", json!({})).await;
    is_cancelled(client, &witness, at, &run, "paused").await;
}

pub async fn what_is_claimed_ahead_is_cancelled_by_a_changed_schedule(layout: Layout) {
    let belfry = start(layout).await;
    let (client, witness) = (belfry.client(), Witness::new());
    let (at, run) = claimed_ahead(client, &witness).await;
    client.patch("/jobs/default/ahead", json!({"schedule": "0 0 1 1 *"})).await;
    is_cancelled(client, &witness, at, &run, "schedule was changed").await;
}

pub async fn what_is_claimed_ahead_is_cancelled_by_removal(layout: Layout) {
    let belfry = start(layout).await;
    let (client, witness) = (belfry.client(), Witness::new());
    let (at, run) = claimed_ahead(client, &witness).await;
    client.delete("/jobs/default/ahead").await;
    is_cancelled(client, &witness, at, &run, "removed").await;
}

pub async fn what_is_claimed_ahead_runs_as_the_job_is_at_its_instant(layout: Layout) {
    let belfry = start(layout).await;
    let (client, witness) = (belfry.client(), Witness::new());
    let (at, run) = claimed_ahead(client, &witness).await;
    let edited = client.patch("/jobs/default/ahead", json!({"action": {"shell": {"command": "echo edited"}}})).await;
    let ended = client.until_ended(&run.id).await;
    assert_eq!((ended.state.as_str(), ended.planned), ("succeeded", at));
    assert_eq!(client.output_text(&run.id).await, "edited\n");
    assert_eq!(edited["revision"], ended.revision);
}

pub async fn a_resumed_job_goes_on_and_owes_nothing(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    let witness = Witness::new();
    let job =
        client.add("rest", &witness.command("rest", ":"), json!({"schedule": "* * * * * *", "overlap": "allow"})).await;
    until_ended(client, "rest", 2).await;
    let paused = instant(&client.post("/jobs/default/rest/pause", json!({})).await, "updated_at");
    sleep_until(paused + Duration::from_secs(3)).await;
    let resumed = instant(&client.post("/jobs/default/rest/resume", json!({})).await, "updated_at");
    let so_far = client.runs("rest").await.len();
    until_ended(client, "rest", so_far + 2).await;
    pause_and_judge(&belfry, &witness, "rest", |end| {
        let mut due = oracle::every_seconds(1, instant(&job, "created_at"), paused);
        due.extend(oracle::every_seconds(1, resumed, end));
        due
    })
    .await;
}

pub async fn missed_fires_follow_the_rule(layout: Layout) {
    let mut belfry = start(layout).await;
    let witness = Witness::new();
    for (name, misfire) in
        [("latest", json!({})), ("skip", json!({"policy": "skip"})), ("all", json!({"policy": "all", "limit": 5}))]
    {
        let rules = json!({"schedule": "*/2 * * * * *", "misfire": misfire, "overlap": "allow"});
        belfry.client().add(name, &witness.command(name, ":"), rules).await;
    }
    until_ended(belfry.client(), "all", 1).await;
    belfry.stop().await;
    let down = now();
    sleep_until(down + Duration::from_secs(13)).await;
    let up = now();
    belfry.restart().await;
    // What is more than 5 s late was missed; what is near that border may be either. Two or three are newer than it, so that of
    // the five that `all` may run some lie behind it.
    let border = up - Duration::from_secs(6);
    let missed = oracle::every_seconds(2, down, border);
    assert!(missed.len() >= 3, "{missed:?}");
    for (name, expected) in [("latest", 0..=1), ("skip", 0..=0), ("all", 1..=3)] {
        let client = belfry.client();
        let records = until("the missed fires are recorded", async || {
            let records: Vec<Run> = client
                .runs(name)
                .await
                .into_iter()
                .filter(|run| missed.contains(&run.planned) && run.has_ended())
                .collect();
            (records.len() >= missed.len()).then_some(records)
        })
        .await;
        assert_eq!(records.len(), missed.len(), "{name}: one record each");
        let ran = records.iter().filter(|run| run.state == "succeeded").count();
        assert!(expected.contains(&ran), "{name}: {ran} ran of {records:#?}");
        let skipped = records.iter().filter(|run| run.state == "skipped");
        for run in skipped {
            assert!(run.why().contains("missed by") && run.why().contains("misfire"), "{name}: {}", run.why());
        }
    }
}
