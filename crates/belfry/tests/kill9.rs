//! `belfry up` is killed with SIGKILL again and again, half of the time within 20 ms of a fire, and started again. Afterwards every
//! fire that was due must have ended in exactly one record, and none may have started twice. Judged by what the jobs themselves
//! wrote and by an oracle; bugs that are planted in the shipped code show that the judge can see.

use std::time::Duration;

use belfry_testkit::{
    Belfry, Case, Fault, Firer, Layout, Promise, Run, Seed, Setup, Tally, Trouble, Witness, judge, now, oracle,
    sleep_until, until, until_within,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

const AIM_WITHIN_MS: i64 = 20;

/// Name, period in seconds, work, overlap.
const JOBS: [(&str, i64, &str, &str); 7] = [
    ("quick-a", 1, ":", "allow"),
    ("quick-b", 1, ":", "allow"),
    ("quick-c", 1, ":", "forbid"),
    ("short", 1, "sleep 0.3", "allow"),
    ("queued", 1, "sleep 0.2", "queue"),
    ("crowded", 2, "sleep 2.5", "forbid"),
    ("long", 5, "sleep 6", "allow"),
];

struct Ordeal {
    belfry: Belfry,
    witness: Witness,
    kills: Vec<Timestamp>,
    aimed: usize,
    created: Vec<Timestamp>,
}

impl Ordeal {
    async fn begin(planted: Option<&str>) -> Self {
        let mut setup = Setup::new(env!("CARGO_BIN_EXE_belfry"), Layout::OneProcess);
        if let Some(bug) = planted {
            setup = setup.env("BELFRY_PLANTED_BUG", bug);
        }
        let belfry = setup.start().await;
        let witness = Witness::new();
        let mut created = Vec::new();
        for (name, period, work, overlap) in JOBS {
            let schedule = format!("*/{period} * * * * *");
            let job = belfry
                .client()
                .add(name, &witness.command(name, work), json!({"schedule": schedule, "overlap": overlap}))
                .await;
            created.push(job["created_at"].as_str().expect("an instant").parse().expect("an instant"));
        }
        Self { belfry, witness, kills: Vec::new(), aimed: 0, created }
    }

    /// Lets it fire `fires_before_kill` times first, unless it is killed while it starts.
    async fn suffer(&mut self, kills: usize, fires_before_kill: usize, seed: &mut Seed) {
        while self.kills.len() < kills || self.aimed * 2 < kills {
            assert!(
                self.kills.len() < 2 * kills,
                "this machine is too busy to aim: {} of {} hit",
                self.aimed,
                self.kills.len()
            );
            match seed.below(6) {
                // Right into a start.
                0 => {
                    self.kill();
                    self.belfry.launch();
                    tokio::time::sleep(Duration::from_millis(seed.below(400))).await;
                }
                1 => {
                    self.until_it_fired(fires_before_kill).await;
                    tokio::time::sleep(Duration::from_millis(seed.below(1000))).await;
                }
                _ => {
                    self.until_it_fired(fires_before_kill).await;
                    let next = now().as_second() + 1;
                    let off = SignedDuration::from_millis(
                        seed.below(2 * AIM_WITHIN_MS as u64 - 4) as i64 - AIM_WITHIN_MS + 2,
                    );
                    sleep_until(Timestamp::from_second(next).expect("in range") + off).await;
                }
            }
            self.kill();
            // Now and then long enough for fires to be missed.
            if seed.below(12) == 0 {
                tokio::time::sleep(Duration::from_secs(6)).await;
            }
            self.belfry.restart().await;
        }
    }

    fn kill(&mut self) {
        let before = now();
        self.belfry.kill9();
        // The kernel takes it down somewhere in between.
        let from_fire = |at: Timestamp| (at.as_millisecond() + 500).rem_euclid(1000) - 500;
        if from_fire(before).abs() <= AIM_WITHIN_MS && from_fire(now()).abs() <= 2 * AIM_WITHIN_MS {
            self.aimed += 1;
        }
        self.kills.push(now());
    }

    async fn until_it_fired(&self, times: usize) {
        let before = self.witness.starts("quick-a").len();
        until("a fire has started", async || (self.witness.starts("quick-a").len() >= before + times).then_some(()))
            .await;
    }

    /// Lets everything end, and judges.
    async fn end(self) -> Vec<Fault> {
        let client = self.belfry.client();
        // What was missed has been dealt with when the present is.
        self.until_it_fired(2).await;
        let mut faults = Vec::new();
        let mut tally = Tally::default();
        let mut paused = Vec::new();
        for (name, ..) in JOBS {
            let job = client.post(&format!("/jobs/default/{name}/pause"), json!({})).await;
            paused.push(job["updated_at"].as_str().expect("an instant").parse::<Timestamp>().expect("an instant"));
        }
        let due: Vec<Vec<Timestamp>> = JOBS
            .iter()
            .zip(&self.created)
            .zip(&paused)
            .map(|((job, from), to)| oracle::every_seconds(job.1, *from, *to))
            .collect();
        // Whatever does not end or appear in time is for the judge to say.
        let _all_ended = until_within(Duration::from_secs(20), async || {
            for ((name, ..), due) in JOBS.iter().zip(&due) {
                let records = client.runs(name).await;
                if records.len() < due.len() || !records.iter().all(Run::has_ended) {
                    return None;
                }
            }
            Some(())
        })
        .await;
        let troubles: Vec<Trouble> = self.kills.iter().copied().map(Trouble::at).collect();
        for ((name, _, _, overlap), due) in JOBS.into_iter().zip(&due) {
            let (witness, records) = (self.witness.lines(name), client.runs(name).await);
            let case = Case {
                job: name,
                due,
                witness: &witness,
                records: &records,
                firer: Firer::Server,
                promise: Promise::AtMostOnce,
                overlap_forbidden: overlap == "forbid",
                late_after: None,
                troubles: &troubles,
                marked_lost: &[],
            };
            faults.extend(judge(&case, &mut tally));
        }
        eprintln!(
            "{} kills, {} within {AIM_WITHIN_MS} ms of a fire; fires by their end: {:?}",
            self.kills.len(),
            self.aimed,
            tally.0
        );
        let succeeded = tally.0.get("succeeded").copied().unwrap_or(0);
        assert!(succeeded > self.kills.len(), "hardly anything ran: {:?}", tally.0);
        faults
    }
}

#[tokio::test]
async fn fifty_kills_and_no_fire_is_doubled_or_unaccounted() {
    let mut seed = Seed::from_env(20_261_115);
    let mut ordeal = Ordeal::begin(None).await;
    ordeal.suffer(50, 1, &mut seed).await;
    let faults = ordeal.end().await;
    assert!(faults.is_empty(), "{} faults: {faults:#?}", faults.len());
}

async fn faults_of(planted: Option<&str>) -> Vec<Fault> {
    let mut seed = Seed::from_env(7);
    let mut ordeal = Ordeal::begin(planted).await;
    // Lives long enough for results that should be safe by the time of the kill.
    ordeal.suffer(6, 4, &mut seed).await;
    ordeal.end().await
}

/// Else what is seen below might be there without the bugs.
#[tokio::test]
async fn nothing_is_seen_where_nothing_is_planted() {
    assert_eq!(faults_of(None).await, []);
}

fn has(faults: &[Fault], kind: fn(&Fault) -> bool) {
    assert!(faults.iter().any(kind), "the planted bug was not seen; only {faults:#?}");
}

#[tokio::test]
async fn a_claim_that_leaves_the_cursor_is_caught_as_doubles() {
    has(&faults_of(Some("claim_leaves_the_cursor")).await, |fault| matches!(fault, Fault::StartedTwice(_)));
}

#[tokio::test]
async fn an_order_that_is_not_bound_to_an_incarnation_is_caught_as_doubles() {
    has(&faults_of(Some("order_not_bound_to_incarnation")).await, |fault| matches!(fault, Fault::StartedTwice(_)));
}

#[tokio::test]
async fn a_lost_run_that_is_forgotten_is_caught_as_unaccounted() {
    has(&faults_of(Some("lost_run_is_forgotten")).await, |fault| matches!(fault, Fault::Unaccounted(_)));
}

#[tokio::test]
async fn a_result_acknowledged_before_it_is_stored_is_caught_as_lost_without_cause() {
    has(&faults_of(Some("acknowledged_on_receipt")).await, |fault| matches!(fault, Fault::LostWithoutCause(_)));
}
