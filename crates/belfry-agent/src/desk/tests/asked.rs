use belfry_proto::session::{AskJobs, LocalJob, LocalJobs};
use serde_json::json;

use super::*;
use crate::local_api::{NoReply, Reply, asker};

type Replies = tokio::sync::oneshot::Receiver<Result<Reply, NoReply>>;

fn ask(world: &mut World, question: Question) -> (Vec<Act>, Replies) {
    let (asker, replies) = asker();
    (world.on(Event::Asked(question, asker)), replies)
}

fn asked_of_centre(acts: &[Act]) -> Vec<AskJobs> {
    let asked = |act: &Act| match act {
        Act::Send { message: from_agent::Message::AskJobs(asked), .. } => Some(*asked),
        _ => None,
    };
    acts.iter().filter_map(asked).collect()
}

fn disabled(acts: &[Act]) -> Vec<usize> {
    let told = |act: &Act| match act {
        Act::Send { message: from_agent::Message::DisabledJobs(told), .. } => Some(told.jobs.len()),
        _ => None,
    };
    acts.iter().filter_map(told).collect()
}

/// The disk has all of it.
fn write(world: &mut World, acts: Vec<Act>) {
    for act in acts {
        if let Act::KeepLocal(batch) = act {
            world.on(Event::LocalWritten { ticket: batch.ticket });
        }
    }
}

fn list(job: JobId, jobs: &[JobId], answers: u64) -> to_agent::Message {
    let document = json!({"name": "j", "run_on": "each", "action": {"shell": {"command": "true"}}}).to_string();
    let put = |id: &JobId| LocalJob {
        id: id.to_string(),
        revision: 1,
        document: document.clone().into_bytes().into(),
        ..Default::default()
    };
    let only = jobs.iter().map(JobId::to_string).collect();
    let (shard, put) = (job.shard().0.into(), jobs.iter().map(put).collect());
    to_agent::Message::LocalJobs(LocalJobs { shard, term: 1, put, whole: true, only, answers, ..Default::default() })
}

#[test]
fn a_fetch_is_answered_by_the_list_that_was_asked_for_and_enables_what_was_disabled() {
    let mut world = World::trusted();
    let job = JobId::from_u128(7);
    let (acts, mut reply) = ask(&mut world, Question::Fetch(job.to_string()));
    assert_eq!(asked_of_centre(&acts), [AskJobs { shard: Some(job.shard().0.into()), token: 1 }]);
    world.receive(list(job, &[job], 0));
    assert!(reply.try_recv().is_err(), "that one was on its way before");
    let acts = world.receive(list(job, &[job], 1));
    assert!(matches!(reply.try_recv().unwrap(), Ok(Reply::Job(view)) if view.id == job && !view.disabled_here));
    write(&mut world, acts);

    let (acts, mut reply) = ask(&mut world, Question::Disable("default/j".into()));
    assert_eq!(disabled(&acts), [1], "the servers hear of it");
    assert!(reply.try_recv().is_err(), "not before it is on the disk");
    write(&mut world, acts);
    assert!(matches!(reply.try_recv().unwrap(), Ok(Reply::Job(view)) if view.disabled_here));

    // Two at once are answered by one list.
    let (_, mut first) = ask(&mut world, Question::Fetch(job.to_string()));
    let (_, mut second) = ask(&mut world, Question::Fetch(job.to_string()));
    let acts = world.receive(list(job, &[job], 3));
    assert_eq!(disabled(&acts), [0]);
    write(&mut world, acts);
    for reply in [&mut first, &mut second] {
        assert!(matches!(reply.try_recv().unwrap(), Ok(Reply::Job(view)) if !view.disabled_here));
    }
    let (_, mut gone) = ask(&mut world, Question::Fetch(job.to_string()));
    world.receive(list(job, &[], 4));
    assert!(matches!(gone.try_recv().unwrap(), Err(NoReply::NotFound(_))));
}

#[test]
fn a_fetch_that_nobody_answers_is_given_up_and_without_contact_it_is_said_at_once() {
    let mut world = World::trusted();
    let (_, mut reply) = ask(&mut world, Question::Fetch(JobId::from_u128(7).to_string()));
    world.pass(9_999);
    assert!(reply.try_recv().is_err());
    world.pass(1);
    assert_eq!(reply.try_recv().unwrap(), Err(NoReply::TooLate("10s".into())));
    world.on(Event::Closed { session: ONE });
    let (_, mut reply) = ask(&mut world, Question::Fetch(JobId::from_u128(7).to_string()));
    assert_eq!(reply.try_recv().unwrap(), Err(NoReply::NoServer));
}

#[test]
fn all_jobs_are_compared_with_the_centre_every_hour() {
    let mut world = World::trusted();
    assert!(asked_of_centre(&world.pass(3_598_000)).is_empty());
    assert_eq!(asked_of_centre(&world.pass(3_000)), [AskJobs { shard: None, token: 1 }], "with the next heartbeat");
    assert!(asked_of_centre(&world.pass(3_000)).is_empty());
}

#[test]
fn a_task_is_killed_with_a_reason_that_names_the_local_api() {
    let mut world = World::trusted();
    let _executed_by = world.dispatch(1, 0);
    world.dispatch(2, 60_000);
    let id = |run| key(run).run.to_string();
    let (_, mut reply) = ask(&mut world, Question::Tasks);
    let Ok(Reply::Tasks(tasks)) = reply.try_recv().unwrap() else { panic!("no tasks") };
    assert_eq!(tasks.iter().map(|task| task.state.as_str()).collect::<Vec<_>>(), ["starting", "waiting"]);
    ask(&mut world, Question::Kill(id(1)));
    let LiveState::Starting { kill } = &world.desk.live[&key(1)].state else { panic!("it starts") };
    assert_eq!(kill.borrow().as_ref().unwrap().reason, "killed through the local API of node1");
    let (acts, _) = ask(&mut world, Question::Kill(id(2)));
    let cancelled = |act: &Act| matches!(act, Act::Keep(ended) if ended.outcome == "cancelled");
    assert!(acts.iter().any(cancelled), "what has not started never will");
    world.end(1);
    let (_, mut reply) = ask(&mut world, Question::Kill(id(1)));
    assert!(matches!(reply.try_recv().unwrap(), Err(NoReply::Refused(_))), "it has ended already");
    let (_, mut reply) = ask(&mut world, Question::Task(id(1)));
    assert!(matches!(reply.try_recv().unwrap(), Ok(Reply::Task(_))), "and is shown for a while");
}
