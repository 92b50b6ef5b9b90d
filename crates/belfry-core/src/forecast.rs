//! What is to come, minute by minute: how many fires, and how many runs at once if each takes as long as its job's runs usually do.
//! Jobs whose schedules have the same fires are counted together, so that ten thousand of them cost as much as their distinct schedules.
//! Jitter is not looked at.

use std::cmp::Reverse;
use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

use crate::schedule::Schedule;

pub const STEP_MS: i64 = 60_000;
const STEP_SECONDS: usize = 60;
const BUSIEST_MAX: usize = 10;
const BUSIEST_JOBS_MAX: usize = 10;
/// About as many fires as are found, and as many spreads as are added, in a part of a second; jobs beyond that are left out.
const WORK_MAX: usize = 3_000_000;
/// A run that goes on for longer is not followed from before the beginning.
const BEFORE_MAX: SignedDuration = SignedDuration::from_hours(24);

/// What is known of one job.
#[derive(Clone, Debug)]
pub struct Planned<J> {
    pub job: J,
    pub schedule: Schedule,
    /// Fires up to here were never due.
    pub counts_from: Timestamp,
    /// None: nothing is known, and it counts for a second.
    pub usual_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast<J> {
    /// Of each minute.
    pub fires: Vec<u32>,
    /// The most runs at once in each minute.
    pub concurrency: Vec<u32>,
    /// Those of the minutes with fires that have the most runs at once.
    pub busiest: Vec<Minute<J>>,
    /// Jobs that were too much work.
    pub left_out: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Minute<J> {
    pub at: Timestamp,
    pub fires: u32,
    pub concurrency: u32,
    /// Some that fire in it, those that usually take longest first.
    pub jobs: Vec<J>,
}

/// Jobs that fire at the same instants.
struct Group<'a, J> {
    schedule: Schedule,
    /// After this.
    after: Timestamp,
    jobs: Vec<&'a Planned<J>>,
}

/// Fires in `from..to`; `from` is the beginning of the first minute.
pub fn forecast<J: Clone>(jobs: &[Planned<J>], from: Timestamp, to: Timestamp) -> Forecast<J> {
    let first = from.as_second();
    let seconds = usize::try_from(to.as_second() - first).unwrap_or(0);
    let minutes = seconds.div_ceil(STEP_SECONDS);
    let mut fires = vec![0u32; minutes];
    // How many more, or fewer, runs go on from each second on.
    let mut change = vec![0i32; seconds + 1];
    let (mut work, mut left_out) = (0, 0);
    let groups = grouped(jobs, from);
    for group in &groups {
        let mut spreads: HashMap<i64, i32> = HashMap::new();
        for job in &group.jobs {
            *spreads.entry(seconds_of(job.usual_ms)).or_insert(0) += 1;
        }
        let room = WORK_MAX.saturating_sub(work) / (1 + spreads.len());
        let found: Vec<i64> =
            instants(&group.schedule, group.after, to).take(room + 1).map(|at| at.as_second() - first).collect();
        if found.len() > room {
            left_out += group.jobs.len() as u64;
            continue;
        }
        work += found.len() * (1 + spreads.len());
        for at in &found {
            if let Some(minute) = usize::try_from(*at).ok().and_then(|at| fires.get_mut(at / STEP_SECONDS)) {
                *minute += group.jobs.len() as u32;
            }
        }
        for (took, runs) in spreads {
            for at in &found {
                let (begin, end) = (at.max(&0), (at + took).min(seconds as i64));
                if *begin < end {
                    change[*begin as usize] += runs;
                    change[end as usize] -= runs;
                }
            }
        }
    }
    let mut going = 0;
    let peak = |some: &[i32]| {
        let at_once = some.iter().map(|more| {
            going += more;
            going
        });
        at_once.max().unwrap_or(0).max(0) as u32
    };
    let concurrency: Vec<u32> = change[..seconds].chunks(STEP_SECONDS).map(peak).collect();
    let busiest = busiest(&groups, from, to, &fires, &concurrency);
    Forecast { fires, concurrency, busiest, left_out }
}

/// The next instants of a schedule.
pub fn instants(schedule: &Schedule, after: Timestamp, before: Timestamp) -> impl Iterator<Item = Timestamp> {
    std::iter::successors(schedule.next_after(after), |at| schedule.next_after(*at)).take_while(move |at| *at < before)
}

/// Each group is followed from before the beginning, by as long as the longest of its runs usually takes.
fn grouped<J>(jobs: &[Planned<J>], from: Timestamp) -> Vec<Group<'_, J>> {
    let just_before = from.saturating_sub(SignedDuration::from_nanos(1)).unwrap_or(from);
    let mut by_fires: HashMap<(Schedule, Timestamp), Vec<&Planned<J>>> = HashMap::new();
    for job in jobs {
        let longest = SignedDuration::from_secs(seconds_of(job.usual_ms)).min(BEFORE_MAX);
        // Whole minutes, so that those which take a little longer are not apart.
        let longest = SignedDuration::from_mins((longest.as_secs() + 59) / 60);
        let after = just_before.saturating_sub(longest).unwrap_or(just_before).max(job.counts_from);
        by_fires.entry((job.schedule.settled(after), after)).or_default().push(job);
    }
    by_fires.into_iter().map(|((schedule, after), jobs)| Group { schedule, after, jobs }).collect()
}

fn busiest<J: Clone>(
    groups: &[Group<'_, J>],
    from: Timestamp,
    to: Timestamp,
    fires: &[u32],
    concurrency: &[u32],
) -> Vec<Minute<J>> {
    let mut order: Vec<usize> = (0..fires.len()).filter(|minute| fires[*minute] > 0).collect();
    order.sort_by_key(|minute| (Reverse((concurrency[*minute], fires[*minute])), *minute));
    order.truncate(BUSIEST_MAX);
    let minute = |index: usize| {
        let after = |minutes: i64| from.saturating_add(SignedDuration::from_mins(minutes)).unwrap_or(to);
        let (at, end) = (after(index as i64), after(index as i64 + 1).min(to));
        let just_before = at.saturating_sub(SignedDuration::from_nanos(1)).unwrap_or(at);
        let fires_in_it = |group: &&Group<'_, J>| {
            group.schedule.next_after(just_before.max(group.after)).is_some_and(|fire| fire < end)
        };
        let mut jobs: Vec<&Planned<J>> =
            groups.iter().filter(fires_in_it).flat_map(|group| &group.jobs).copied().collect();
        jobs.sort_by_key(|job| Reverse(job.usual_ms));
        let jobs = jobs.into_iter().take(BUSIEST_JOBS_MAX).map(|job| job.job.clone()).collect();
        Minute { at, fires: fires[index], concurrency: concurrency[index], jobs }
    };
    order.into_iter().map(minute).collect()
}

/// Each run counts in the second of its start at least.
fn seconds_of(usual_ms: Option<u64>) -> i64 {
    i64::try_from(usual_ms.unwrap_or(0).div_ceil(1_000)).unwrap_or(i64::MAX).clamp(1, 1 << 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{DstRule, ScheduleSpec, Window};

    fn at(text: &str) -> Timestamp {
        format!("2026-11-18T{text}Z").parse().unwrap()
    }

    fn job(name: usize, expression: &str, usual_ms: u64) -> Planned<usize> {
        let expressions = [expression.to_owned()];
        let spec = ScheduleSpec {
            expressions: &expressions,
            timezone: "UTC",
            dst: DstRule::default(),
            window: Window::default(),
            seed: name as u64 * 7_919,
            anchor: at("00:00:00").saturating_sub(SignedDuration::from_secs(name as i64)).unwrap(),
        };
        let usual_ms = (usual_ms > 0).then_some(usual_ms);
        Planned { job: name, schedule: Schedule::compile(&spec).unwrap(), counts_from: Timestamp::UNIX_EPOCH, usual_ms }
    }

    /// Fires and concurrency of the minutes from 04:00 on.
    #[track_caller]
    fn check(jobs: &[Planned<usize>], fires: &[u32], concurrency: &[u32]) {
        let to = at("04:00:00").saturating_add(SignedDuration::from_mins(fires.len() as i64)).unwrap();
        let found = forecast(jobs, at("04:00:00"), to);
        assert_eq!((&found.fires[..], &found.concurrency[..], found.left_out), (fires, concurrency, 0));
    }

    #[test]
    fn fires_are_counted_by_minute_and_spread_over_what_their_runs_usually_take() {
        check(&[job(1, "0 4 * * *", 0)], &[1, 0, 0], &[1, 0, 0]);
        check(&[job(1, "0 4 * * *", 90_000)], &[1, 0, 0], &[1, 1, 0]);
        check(&[job(1, "0 4 * * *", 120_000)], &[1, 0, 0], &[1, 1, 0]);
        check(&[job(1, "0 4 * * *", 1_000), job(2, "0 4 * * *", 61_000)], &[2, 0], &[2, 1]);
        check(&[job(1, "*/10 * * * * *", 1_000)], &[6, 6], &[1, 1]);
        check(&[job(1, "*/10 * * * * *", 15_000)], &[6, 6], &[2, 2]);
        check(&[job(1, "@every 30s", 1_000), job(61, "@every 30s", 1_000)], &[4, 4], &[2, 2]);
        check(&[], &[0, 0], &[0, 0]);
    }

    #[test]
    fn what_began_before_the_first_minute_and_goes_on_is_counted() {
        check(&[job(1, "50 3 * * *", 660_000)], &[0, 0], &[1, 0]);
        let mut new = job(1, "50 3 * * *", 660_000);
        new.counts_from = at("03:55:00");
        check(&[new], &[0, 0], &[0, 0]);
    }

    #[test]
    fn the_busiest_minutes_name_what_fires_in_them() {
        let jobs = [job(1, "5 4 * * *", 10), job(2, "5 4 * * *", 3_600_000), job(3, "50 4 * * *", 10)];
        let found = forecast(&jobs, at("04:00:00"), at("05:00:00"));
        let minute = |minute, fires, concurrency, jobs| Minute { at: at(minute), fires, concurrency, jobs };
        assert_eq!(found.busiest, [minute("04:05:00", 2, 2, vec![2, 1]), minute("04:50:00", 1, 2, vec![3])]);
    }

    #[test]
    fn ten_thousand_jobs_are_as_much_work_as_their_distinct_schedules() {
        let expressions = ["* * * * *", "*/5 * * * *", "H * * * *", "@every 45s", "H/5 * * * *"];
        let jobs: Vec<_> = (0..10_000).map(|n| job(n, expressions[n % 5], 1_000 * (n as u64 % 300))).collect();
        let found =
            forecast(&jobs, at("04:00:00"), at("04:00:00").saturating_add(SignedDuration::from_hours(24)).unwrap());
        assert_eq!(found.left_out, 0);
        assert_eq!(found.fires.iter().map(|n| u64::from(*n)).sum::<u64>(), 2_000 * (1440 + 288 + 24 + 1920 + 288));
    }

    #[test]
    fn what_would_be_too_much_work_is_left_out_and_counted() {
        let each_second = |n: i64| {
            let mut job = job(n as usize, "* * * * * *", 0);
            job.counts_from = at("04:00:00").saturating_add(SignedDuration::from_secs(n)).unwrap();
            job
        };
        let jobs: Vec<_> = (0..40).map(each_second).collect();
        let found =
            forecast(&jobs, at("04:00:00"), at("04:00:00").saturating_add(SignedDuration::from_hours(24)).unwrap());
        assert!((1..40).contains(&found.left_out), "{}", found.left_out);
    }
}
