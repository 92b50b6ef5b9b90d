//! The jobs of a simulation, and when they are due: told from plain arithmetic, not from the schedules' own code.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use belfry_core::job::{
    Action, Backoff, Exec, JobDocument, Misfire, MisfirePolicy, Overlap, Placement, Retry, RetryWhere, RunOn,
};
use belfry_core::schedule::Window;
use belfry_core::units::Span;
use belfry_core::{JobId, Timestamp};
use belfry_store::{Actor, Store};

use crate::dice::Dice;
use crate::world::beginning;

pub struct Workload {
    pub jobs: Vec<SimJob>,
    /// What nodes fire by themselves.
    pub local: Vec<SimJob>,
}

pub struct SimJob {
    pub id: JobId,
    pub document: JobDocument,
    /// Due at every multiple of this since the beginning, or only once.
    due: DueRule,
}

#[derive(Clone, Copy)]
enum DueRule {
    Every(Duration),
    Once(Duration),
}

/// Nothing is due from here on.
pub const LAST_DUE: Duration = Duration::from_secs(8 * 60 + 30);
/// So many fires on one instant in one shard: more than two commits can claim.
const HERD: usize = 250;

/// Most of the first thousand have no job that starts again: they found their defects before there were retries, and stay as they were.
fn has_retries(seed: u64) -> bool {
    seed.is_multiple_of(5) || seed > 1000
}

fn has_local_jobs(seed: u64) -> bool {
    seed % 5 == 2 || seed > 1000
}

impl Workload {
    pub fn new(seed: u64, dice: &mut Dice) -> Self {
        // Apart, so that the other throws of a seed are the same with and without.
        let mut retry_dice = has_retries(seed).then(|| Dice::new(!seed));
        let mut jobs = Vec::new();
        for n in 0..dice.below(8) + 8 {
            let mut job = SimJob::every(&[2, 3, 5, 5, 10, 15], format!("job{n}"), n, dice);
            job.document.overlap = dice.one_of(&[Overlap::Allow, Overlap::Forbid, Overlap::Queue, Overlap::Replace]);
            job.document.placement = dice.one_of(&[Placement::Weighted, Placement::Least, Placement::Random]);
            job.document.misfire = misfire(dice);
            job.document.retry = retry_dice.as_mut().and_then(retry);
            jobs.push(job);
        }
        if dice.chance(25) {
            let minute = 2 + dice.below(5);
            let at = Duration::from_secs(60 * minute);
            let shard = JobId::from_u128(u128::from(dice.next())).shard();
            let ids = (1u128..).map(JobId::from_u128).filter(|id| id.shard() == shard);
            let herd = ids.take(HERD).enumerate();
            jobs.extend(
                herd.map(|(n, id)| {
                    SimJob::new(id, format!("herd{n}"), format!("0 {minute} * * * *"), DueRule::Once(at))
                }),
            );
        }
        let local = if has_local_jobs(seed) { local(&mut Dice::new(seed.rotate_left(16))) } else { Vec::new() };
        Self { jobs, local }
    }

    /// Jobs whose runs never run beside each other: their nodes end them before they can start elsewhere.
    pub fn one_at_a_time(&self) -> HashSet<String> {
        let jobs = self.jobs.iter().filter(|job| job.document.overlap != Overlap::Allow && job.document.is_exclusive());
        jobs.map(|job| job.document.full_name()).collect()
    }

    pub fn local_overlaps(&self) -> HashMap<String, Overlap> {
        self.local.iter().map(|job| (job.document.full_name(), job.document.overlap)).collect()
    }

    pub async fn save(&self, store: &Store) -> anyhow::Result<()> {
        for job in self.jobs.iter().chain(&self.local) {
            store.create_job(job.document.clone(), job.id, beginning(), &Actor::new("simulation")).await?;
        }
        Ok(())
    }
}

/// The first is one whose fires all start.
fn local(dice: &mut Dice) -> Vec<SimJob> {
    let rules = [RunOn::Each, RunOn::Each, RunOn::Home, RunOn::Home];
    let jobs = (0..).zip(rules).map(|(n, run_on)| {
        let mut job = SimJob::every(&[5, 10, 15], format!("local{n}"), n, dice);
        job.document.run_on = run_on;
        job.document.misfire = misfire(dice);
        if n > 0 {
            job.document.overlap = dice.one_of(&[Overlap::Allow, Overlap::Forbid, Overlap::Queue, Overlap::Replace]);
        }
        job
    });
    jobs.collect()
}

fn misfire(dice: &mut Dice) -> Misfire {
    Misfire {
        policy: dice.one_of(&[MisfirePolicy::Skip, MisfirePolicy::Latest, MisfirePolicy::All]),
        within: Span::from_secs(dice.one_of(&[20, 60, 3600])),
        limit: 3,
    }
}

/// For two of three jobs.
fn retry(dice: &mut Dice) -> Option<Retry> {
    let on: &[&str] = dice.one_of(&[&[], &["lost"], &["failed", "lost"]]);
    (!on.is_empty()).then(|| Retry {
        attempts: 2 + dice.below(5) as u32,
        on: on.iter().map(|on| (*on).to_owned()).collect(),
        delay: Span::from_secs(dice.one_of(&[1, 2, 5])),
        backoff: dice.one_of(&[Backoff::Fixed, Backoff::Exponential]),
        max_delay: Span::from_secs(10),
        on_node: dice.one_of(&[RetryWhere::Any, RetryWhere::Other]),
    })
}

impl SimJob {
    /// Every so many seconds as the dice say.
    fn every(seconds: &[u64], name: String, number: u64, dice: &mut Dice) -> Self {
        let step = Duration::from_secs(dice.one_of(seconds));
        let seconds = step.as_secs();
        // A minute is a multiple of each, and all begins on a whole minute: both forms mean the same instants.
        let expression = if dice.chance(50) { format!("*/{seconds} * * * * *") } else { format!("@every {seconds}s") };
        let id = JobId::from_u128(u128::from(dice.next()) << 64 | u128::from(number));
        Self::new(id, name, expression, DueRule::Every(step))
    }

    fn new(id: JobId, name: String, expression: String, due: DueRule) -> Self {
        let mut document = JobDocument::new(name, Action::Exec(Exec { argv: vec!["work".into()] }));
        document.schedule.0.push(expression);
        document.timezone = Some("UTC".into());
        document.window = Some(Window { from: None, until: Some(instant(LAST_DUE)) });
        document.overlap = Overlap::Allow;
        Self { id, document, due }
    }

    /// Instants after `from` and before `until`.
    pub fn due_between(&self, from: Duration, until: Duration) -> Vec<Timestamp> {
        let mut due = Vec::new();
        match self.due {
            DueRule::Every(step) => {
                let mut at = step;
                while at < until {
                    if at > from {
                        due.push(instant(at));
                    }
                    at += step;
                }
            }
            DueRule::Once(at) if at > from && at < until => due.push(instant(at)),
            DueRule::Once(_) => {}
        }
        due
    }
}

pub fn instant(since_beginning: Duration) -> Timestamp {
    beginning().saturating_add(since_beginning).unwrap_or(Timestamp::MAX)
}
