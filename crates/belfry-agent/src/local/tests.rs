use serde_json::json;

use super::*;
use crate::clock::Seen;
use crate::own_time::OwnTime;

const SECOND: i64 = 1000;
/// A whole minute.
const T0: i64 = 1_800_000_000_000;

fn at(ms: i64) -> Moment {
    Moment { boot: Duration::from_millis((ms - T0 + 1_000_000) as u64), wall_ms: ms, shown_ms: ms }
}

fn copy(number: u128, schedule: &str, revision: u64) -> Copy {
    let document = json!({
        "name": format!("j{number}"), "schedule": schedule, "run_on": "each", "action": {"shell": {"command": "true"}},
    });
    Copy { shard: 3, stored: stored(number, revision, &document), home_term: 0, from_ms: 0 }
}

fn stored(number: u128, revision: u64, document: &serde_json::Value) -> Stored {
    Stored {
        id: JobId::from_u128(number),
        revision,
        name: format!("default/j{number}"),
        document: serde_json::to_vec(document).unwrap().into(),
        created_at: instant(T0 - 3600 * SECOND),
        counts_from: instant(T0 - 3600 * SECOND),
    }
}

/// An agent's disk, and what is done with it.
struct World {
    kept: Kept,
    local: Local,
}

impl World {
    fn start(kept: Kept, now: i64) -> (World, Vec<Claim>) {
        Self::boot(kept, "boot 1", now)
    }

    fn boot(kept: Kept, boot_id: &str, now: i64) -> (World, Vec<Claim>) {
        let (mut local, cut_off) = Local::new(NodeId::from_u128(9), kept.clone(), boot_id, &[], at(now));
        local.waits_no_more();
        (World { kept, local }, cut_off)
    }

    fn write(&mut self, records: Vec<Record>, now: i64) -> Vec<Claim> {
        self.write_at(records, at(now))
    }

    fn write_at(&mut self, records: Vec<Record>, now: Moment) -> Vec<Claim> {
        let Some(batch) = self.local.write_down(records) else { return Vec::new() };
        batch.records.into_iter().for_each(|record| self.kept.add(record));
        self.local.written(batch.ticket, now)
    }

    fn put(&mut self, copy: Copy, now: i64) {
        let records = self.local.put(copy, at(now)).into_iter().collect();
        self.write(records, now);
    }

    /// What happens at this moment: planned instants of what starts.
    fn tick(&mut self, now: i64) -> Vec<i64> {
        self.tick_at(at(now))
    }

    fn tick_at(&mut self, now: Moment) -> Vec<i64> {
        let records = self.local.claim_due(now);
        let mut instants = Vec::new();
        self.write_at(records, now);
        while let Some(judged) = self.local.judge_next(now) {
            if let Judged::Start(claim) = judged {
                self.local.went(claim.job, Key { run: claim.run, attempt: 1 });
                instants.push(claim.planned_ms - T0);
            }
        }
        instants
    }

    fn end(&mut self, job: u128, planned: i64, now: i64) -> Option<Claim> {
        self.end_at(job, planned, at(now))
    }

    fn end_at(&mut self, job: u128, planned: i64, now: Moment) -> Option<Claim> {
        let job = JobId::from_u128(job);
        let run = RunId::of(job, instant(T0 + planned), Slot::Node(NodeId::from_u128(9)));
        let at_ms = now.wall_ms;
        self.write_at(vec![Record::Ended { job, run, at_ms }], now);
        self.local.ended(job, Key { run, attempt: 1 }, at_ms)
    }
}

#[test]
fn a_fire_starts_at_its_instant_and_once_however_often_the_agent_is_killed() {
    let (mut world, _) = World::start(Kept::default(), T0 + 10 * SECOND);
    world.put(copy(1, "* * * * *", 1), T0 + 10 * SECOND);
    assert_eq!(world.tick(T0 + 59_500), [0; 0], "claimed ahead, not started ahead");
    assert_eq!(world.kept.open.len(), 1);
    // Killed before its instant: it is claimed, and nobody starts it again.
    let (mut world, cut_off) = World::start(world.kept, T0 + 60_000);
    assert_eq!(cut_off.len(), 1);
    assert_eq!(world.tick(T0 + 60_000), [0; 0]);
    assert_eq!(world.tick(T0 + 120_000), [120_000]);
    assert!(world.end(1, 120_000, T0 + 121_000).is_none());
    let (mut world, cut_off) = World::start(world.kept, T0 + 125_000);
    assert_eq!(
        (cut_off.len(), world.tick(T0 + 125_000)),
        (1, Vec::new()),
        "the one that was reported as lost is not ended on this disk"
    );
}

#[test]
fn what_passed_while_the_agent_was_away_follows_the_jobs_rule_and_nothing_else_fires() {
    let (mut world, _) = World::start(Kept::default(), T0 + 10 * SECOND);
    world.put(copy(1, "* * * * *", 1), T0 + 10 * SECOND);
    assert_eq!(world.tick(T0 + 60_000), [60_000]);
    world.end(1, 60_000, T0 + 60_100);
    let later = T0 + 10 * 60_000 + 30_000;
    let (mut world, cut_off) = World::start(world.kept, later);
    assert!(cut_off.is_empty());
    let records = world.local.claim_due(at(later));
    let skipped = records.iter().filter(|record| matches!(record, Record::Claimed(claim) if claim.skipped.is_some()));
    assert_eq!(skipped.count(), 8, "misfire is `latest`: the others are recorded as skipped");
    let decided = world.write(records, later);
    assert_eq!(decided.len(), 8);
    assert_eq!(world.tick(later), [600_000]);
    // Without its end on the disk nothing else of it starts: overlap is forbid.
    assert_eq!(world.tick(T0 + 11 * 60_000), [0; 0]);
}

#[test]
fn a_copy_that_comes_again_or_older_changes_nothing_and_a_changed_schedule_counts_from_its_change() {
    let (mut world, _) = World::start(Kept::default(), T0 + SECOND);
    world.put(copy(1, "* * * * *", 2), T0 + SECOND);
    assert!(world.local.put(copy(1, "* * * * *", 2), at(T0 + SECOND)).is_none());
    assert!(world.local.put(copy(1, "*/2 * * * *", 1), at(T0 + SECOND)).is_none());
    let mut changed = copy(1, "*/5 * * * *", 3);
    changed.stored.counts_from = instant(T0 + 2 * SECOND);
    world.put(changed, T0 + 2 * SECOND);
    assert_eq!(world.tick(T0 + 60_000), [0; 0]);
    assert_eq!(world.tick(T0 + 300_000), [300_000]);
    let gone = world.local.retain(3, &HashSet::new());
    assert_eq!(gone.len(), 1);
    assert!(world.local.retain(3, &HashSet::new()).is_empty());
    world.write(gone, T0 + 301_000);
    assert!(world.kept.jobs.is_empty());
}

#[test]
fn a_claim_whose_job_was_changed_before_its_instant_never_starts() {
    let (mut world, _) = World::start(Kept::default(), T0 + SECOND);
    world.put(copy(1, "* * * * *", 1), T0 + SECOND);
    let records = world.local.claim_due(at(T0 + 59_600));
    world.write(records, T0 + 59_600);
    let removed = world.local.remove(JobId::from_u128(1));
    world.write(removed.into_iter().collect(), T0 + 59_700);
    assert!(matches!(world.local.judge_next(at(T0 + 60_000)), Some(Judged::Never { cancelled: true, .. })));
}

#[test]
fn overlap_is_judged_on_the_node() {
    for (overlap, second, after_the_end) in [("forbid", 0, false), ("allow", 1, false), ("queue", 0, true)] {
        let (mut world, _) = World::start(Kept::default(), T0 + SECOND);
        let mut copy = copy(1, "* * * * *", 1);
        let document = json!({
            "name": "j1", "schedule": "* * * * *", "run_on": "each", "overlap": overlap, "action": {"shell": {"command": "true"}},
        });
        copy.stored = stored(1, 1, &document);
        world.put(copy, T0 + SECOND);
        assert_eq!(world.tick(T0 + 60_000).len(), 1);
        assert_eq!(world.tick(T0 + 120_000).len(), second, "{overlap}");
        let next = world.end(1, 60_000, T0 + 130_000);
        assert_eq!(next.is_some(), after_the_end, "{overlap}");
    }
}

#[test]
fn a_home_lets_go_when_its_claims_are_over_and_says_how_far_it_came() {
    let (mut world, _) = World::start(Kept::default(), T0 + SECOND);
    let mut home = copy(1, "* * * * *", 1);
    let document = json!({
        "name": "j1", "schedule": "* * * * *", "run_on": "home", "action": {"shell": {"command": "true"}},
    });
    home.stored = stored(1, 1, &document);
    (home.home_term, home.from_ms) = (7, T0 - 60_000);
    let job = JobId::from_u128(1);
    world.put(home, T0 + SECOND);
    assert_eq!(world.tick(T0 + SECOND), [0], "a fire that nobody ran before it came here");
    assert!(world.local.release(job, 8).0.is_none(), "it is going");
    assert_eq!(world.tick(T0 + 60_000), [0; 0], "and fires nothing more");
    world.end(1, 0, T0 + 61_000);
    let (record, cursor) = world.local.release(job, 8);
    assert_eq!(cursor, None, "not before it is on the disk");
    world.write(record.into_iter().collect(), T0 + 61_000);
    assert_eq!(world.local.release(job, 8).1, Some(T0));
    let (mut world, _) = World::start(world.kept, T0 + 62_000);
    assert_eq!(world.local.release(job, 8).1, Some(T0), "also after a restart");
    assert_eq!(world.local.release(JobId::from_u128(5), 8).1, Some(0), "it never had it");
}

#[test]
fn boot_fires_once_a_boot_and_not_for_what_comes_later() {
    let (mut world, _) = World::start(Kept::default(), T0);
    assert!(world.tick(T0).is_empty());
    world.put(copy(1, "@boot", 1), T0 + SECOND);
    assert!(world.tick(T0 + 2 * SECOND).is_empty());
    let (mut world, _) = World::start(world.kept, T0 + 3 * SECOND);
    assert!(world.tick(T0 + 3 * SECOND).is_empty(), "the agent was started again, not the machine");
    let (mut world, _) = World::boot(world.kept, "boot 2", T0 + 4 * SECOND);
    assert_eq!(world.tick(T0 + 4 * SECOND), [4 * SECOND]);
    let (mut world, cut_off) = World::boot(world.kept, "boot 2", T0 + 5 * SECOND);
    assert_eq!((cut_off.len(), world.tick(T0 + 5 * SECOND).len()), (1, 0));
}

#[test]
fn a_job_that_is_disabled_here_fires_nothing_through_syncs_and_restarts_until_it_is_enabled() {
    let (mut world, _) = World::start(Kept::default(), T0);
    let id = JobId::from_u128(1);
    let copy = |revision| {
        let document = json!({
            "name": "j1", "schedule": "* * * * * *", "run_on": "each", "overlap": "allow", "action": {"shell": {"command": "true"}},
        });
        Copy { shard: 3, stored: stored(1, revision, &document), home_term: 0, from_ms: 0 }
    };
    world.put(copy(1), T0);
    assert_eq!(world.tick(T0 + SECOND).last(), Some(&SECOND));
    assert_eq!(world.local.disable(JobId::from_u128(2)).unwrap_err(), NotDisabled::NotHere);
    let record = world.local.disable(id).unwrap();
    world.write(record.into_iter().collect(), T0 + SECOND);
    assert!(world.local.disable(id).unwrap().is_none(), "it is already");
    assert!(world.tick(T0 + 3 * SECOND).is_empty());
    world.put(copy(2), T0 + 3 * SECOND);
    assert!(world.tick(T0 + 4 * SECOND).is_empty(), "a sync changes the copy and not that it is off");
    // Gone from this node and back again, and the agent started anew.
    let gone = world.local.remove(id).into_iter().collect();
    world.write(gone, T0 + 4 * SECOND);
    world.put(copy(3), T0 + 4 * SECOND);
    let (mut world, _) = World::start(world.kept, T0 + 100 * SECOND);
    assert!(world.tick(T0 + 100 * SECOND).is_empty());
    let view = world.local.view(id).unwrap();
    assert!(view.disabled_here && view.enabled && view.next.is_none());
    assert_eq!(world.local.find("default/j1"), Some(id));
    let record = world.local.enable(id, at(T0 + 200 * SECOND));
    world.write(record.into_iter().collect(), T0 + 200 * SECOND);
    assert!(world.local.enable(id, at(T0 + 200 * SECOND)).is_none());
    assert_eq!(world.tick(T0 + 201 * SECOND), [201 * SECOND], "what passed meanwhile was not due");
    let (mut world, _) = World::start(world.kept, T0 + 201 * SECOND);
    assert_eq!(world.tick(T0 + 202 * SECOND), [202 * SECOND], "nor is it after a restart");
}

#[test]
fn of_those_that_wait_for_one_that_is_replaced_only_the_newest_begins() {
    let (mut world, _) = World::start(Kept::default(), T0 + 10 * SECOND);
    let document = json!({
        "name": "j1", "schedule": "* * * * *", "run_on": "each", "overlap": "replace", "action": {"shell": {"command": "true"}},
    });
    world.put(Copy { stored: stored(1, 1, &document), ..copy(1, "* * * * *", 1) }, T0 + 10 * SECOND);
    assert_eq!(world.tick(T0 + 60_000), [60_000]);
    let mut replaced = Vec::new();
    for minute in [2, 3, 4] {
        let now = T0 + minute * 60_000;
        let records = world.local.claim_due(at(now));
        world.write(records, now);
        while let Some(judged) = world.local.judge_next(at(now)) {
            let Judged::Replace { going, waiting } = judged else { panic!("a run goes on: {judged:?}") };
            assert_eq!(going.len(), 1);
            replaced.extend(waiting.into_iter().map(|claim| claim.planned_ms - T0));
        }
    }
    assert_eq!(replaced, [120_000, 180_000]);
    assert_eq!(world.end(1, 60_000, T0 + 250_000).map(|claim| claim.planned_ms - T0), Some(240_000));
}

/// A drain and its end, a node that is excluded for a moment, a `select` that was edited and edited back.
#[test]
fn a_job_that_is_taken_from_a_node_and_put_back_starts_nothing_again_and_its_fence_grows_on() {
    let document = json!({
        "name": "j1", "schedule": "* * * * * *", "run_on": "each", "overlap": "allow", "action": {"shell": {"command": "true"}},
    });
    let copy = || Copy { shard: 3, stored: stored(1, 1, &document), home_term: 0, from_ms: 0 };
    let fence = |world: &World| world.kept.open.values().map(|claim| claim.fence).max();
    let (mut world, _) = World::start(Kept::default(), T0);
    world.put(copy(), T0);
    assert_eq!(world.tick(T0 + 3 * SECOND).last(), Some(&(3 * SECOND)));
    let before = fence(&world);
    let gone = world.local.remove(JobId::from_u128(1));
    world.write(gone.into_iter().collect(), T0 + 3 * SECOND);
    world.put(copy(), T0 + 3 * SECOND);
    assert!(world.tick(T0 + 3 * SECOND).is_empty(), "they were started before");
    assert_eq!(world.tick(T0 + 4 * SECOND), [4 * SECOND]);
    assert!(fence(&world) > before);
    // Also by an agent that reads it from its disk, written anew meanwhile.
    let before = fence(&world);
    let gone = world.local.retain(3, &HashSet::new());
    world.write(gone, T0 + 4 * SECOND);
    let mut kept = Kept { open: world.kept.open.clone(), ..Kept::default() };
    world.kept.records().for_each(|record| kept.add(record));
    let (mut world, _) = World::start(kept, T0 + 4 * SECOND);
    world.put(copy(), T0 + 4 * SECOND);
    assert!(world.tick(T0 + 4 * SECOND).is_empty());
    assert_eq!(world.tick(T0 + 5 * SECOND), [5 * SECOND]);
    assert!(fence(&world) > before);
    // What passed while the node was not meant is none of its business.
    let gone = world.local.remove(JobId::from_u128(1));
    world.write(gone.into_iter().collect(), T0 + 5 * SECOND);
    world.put(copy(), T0 + 3600 * SECOND);
    assert!(world.tick(T0 + 3600 * SECOND).iter().all(|planned| *planned >= 3595 * SECOND));
}

#[test]
fn a_job_that_fires_after_its_end_and_is_put_back_does_not_begin_from_its_first_run() {
    let document = json!({
        "name": "j1", "schedule": "@after 1m", "run_on": "each", "action": {"shell": {"command": "true"}},
    });
    let copy = || Copy { shard: 3, stored: stored(1, 1, &document), home_term: 0, from_ms: 0 };
    let (mut world, _) = World::start(Kept::default(), T0);
    world.put(copy(), T0);
    let first = world.tick(T0);
    assert_eq!(first.len(), 1);
    world.end(1, first[0], T0);
    let second = world.tick(T0 + 60 * SECOND);
    assert_eq!(second, [60 * SECOND]);
    world.end(1, second[0], T0 + 61 * SECOND);
    let gone = world.local.remove(JobId::from_u128(1));
    world.write(gone.into_iter().collect(), T0 + 62 * SECOND);
    world.put(copy(), T0 + 62 * SECOND);
    assert!(world.tick(T0 + 62 * SECOND).is_empty(), "its first run was long ago");
    assert_eq!(world.tick(T0 + 121 * SECOND), [120 * SECOND]);
}

const HOUR: i64 = 3600 * SECOND;

/// As a node sees it whose wall clock is off by so much, and whom no server tells the time.
fn off(time: &mut OwnTime, ms: i64, by_ms: i64) -> Moment {
    time.at(Seen { boot: at(ms).boot, wall_us: (ms + by_ms) * 1000 })
}

fn own_time(ms: i64) -> OwnTime {
    OwnTime::new(Seen { boot: at(ms).boot, wall_us: ms * 1000 })
}

fn every_second(number: u128) -> Copy {
    let document = json!({
        "name": format!("j{number}"), "schedule": "* * * * * *", "run_on": "each", "overlap": "allow", "action": {"shell": {"command": "true"}},
    });
    Copy { shard: 3, stored: stored(number, 1, &document), home_term: 0, from_ms: 0 }
}

#[test]
fn a_clock_that_is_an_hour_off_for_a_moment_silences_no_job_and_none_of_that_hour_is_claimed() {
    for step in [HOUR, -HOUR] {
        let (mut world, _) = World::start(Kept::default(), T0);
        let mut time = own_time(T0);
        world.put(every_second(1), T0);
        world.put(every_second(2), T0);
        let record = world.local.disable(JobId::from_u128(2)).unwrap();
        world.write(record.into_iter().collect(), T0);
        assert_eq!(world.tick(T0 + SECOND).last(), Some(&SECOND));
        for second in [2, 3] {
            assert_eq!(world.tick_at(off(&mut time, T0 + second * SECOND, step)), [second * SECOND], "by {step}");
        }
        // What comes here, is enabled or ends meanwhile goes by the same time.
        let now = off(&mut time, T0 + 3 * SECOND, step);
        let records = [world.local.put(every_second(3), now), world.local.enable(JobId::from_u128(2), now)];
        world.write_at(records.into_iter().flatten().collect(), now);
        assert_eq!(now.wall_ms, T0 + 3 * SECOND);
        assert!(world.tick_at(now).iter().all(|planned| *planned <= 3 * SECOND));
        for second in [4, 5] {
            let now = off(&mut time, T0 + second * SECOND, 0);
            assert_eq!(world.tick_at(now), [second * SECOND; 3], "by {step}");
        }
        let claimed = world.kept.open.values().map(|claim| claim.planned_ms);
        assert_eq!(claimed.max(), Some(T0 + 5 * SECOND));
        assert!(world.kept.open.values().all(|claim| claim.skipped.is_none()), "by {step}");
    }
}

#[test]
fn a_clock_that_stays_where_it_stepped_to_is_followed_after_a_minute() {
    for (step, then) in [(HOUR, vec![HOUR + 60 * SECOND]), (-HOUR, vec![])] {
        let (mut world, _) = World::start(Kept::default(), T0 + 10 * SECOND);
        let mut time = own_time(T0 + 10 * SECOND);
        world.put(copy(1, "* * * * *", 1), T0 + 10 * SECOND);
        assert!(world.tick_at(off(&mut time, T0 + 30 * SECOND, step)).is_empty());
        assert_eq!(world.tick_at(off(&mut time, T0 + 60 * SECOND, step)), [60 * SECOND], "due by the old time");
        world.end_at(1, 60 * SECOND, off(&mut time, T0 + 61 * SECOND, step));
        assert!(world.tick_at(off(&mut time, T0 + 89 * SECOND, step)).is_empty());
        assert_eq!(
            world.tick_at(off(&mut time, T0 + 90 * SECOND, step)),
            then,
            "what was missed follows the job's rule"
        );
        for planned in &then {
            world.end_at(1, *planned, off(&mut time, T0 + 91 * SECOND, step));
        }
        let next = 120 * SECOND + step.max(0);
        assert_eq!(world.tick_at(off(&mut time, T0 + next - step, step)), [next]);
    }
}

/// A machine may boot with any time, and servers can tell.
#[test]
fn nothing_fires_before_the_time_is_known_and_what_was_due_meanwhile_is_on_time() {
    let (mut world, _) = World::start(Kept::default(), T0);
    world.put(copy(1, "* * * * *", 1), T0);
    let (local, _) = Local::new(NodeId::from_u128(9), world.kept.clone(), "boot 2", &[], at(T0 + 59 * SECOND));
    let mut world = World { local, ..world };
    world.put(copy(2, "@boot", 1), T0);
    assert!(!world.local.has_waited(at(T0 + 59 * SECOND)));
    assert!(world.tick(T0 + 60 * SECOND).is_empty());
    world.local.set_wake(at(T0 + 60 * SECOND));
    let until = T0 + 62 * SECOND;
    assert_eq!(world.local.wake(), Some(at(until).boot));
    assert!(!world.local.has_waited(at(until - 1)) && world.local.has_waited(at(until)));
    assert!(world.local.waits_no_more() && !world.local.waits_no_more());
    assert_eq!(world.tick(until), [60 * SECOND, 62 * SECOND]);
}
