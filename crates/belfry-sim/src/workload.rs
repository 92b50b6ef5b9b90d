//! The jobs of a simulation, and when they are due: told from plain arithmetic, not from the schedules' own code.

use std::time::Duration;

use belfry_core::job::{Action, Exec, JobDocument, Misfire, MisfirePolicy, Overlap, Placement};
use belfry_core::schedule::Window;
use belfry_core::units::Span;
use belfry_core::{JobId, Timestamp};
use belfry_store::{Actor, Store};

use crate::dice::Dice;
use crate::world::beginning;

pub struct Workload(pub Vec<SimJob>);

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

impl Workload {
    pub fn new(dice: &mut Dice) -> Self {
        let mut jobs = Vec::new();
        for n in 0..dice.below(8) + 8 {
            let step = Duration::from_secs(dice.one_of(&[2, 3, 5, 5, 10, 15]));
            let seconds = step.as_secs();
            // A minute is a multiple of each, and all begins on a whole minute: both forms mean the same instants.
            let expression =
                if dice.chance(50) { format!("*/{seconds} * * * * *") } else { format!("@every {seconds}s") };
            let id = JobId::from_u128(u128::from(dice.next()) << 64 | u128::from(n));
            let mut job = SimJob::new(id, format!("job{n}"), expression, DueRule::Every(step));
            job.document.overlap = dice.one_of(&[Overlap::Allow, Overlap::Forbid, Overlap::Queue, Overlap::Replace]);
            job.document.placement = dice.one_of(&[Placement::Weighted, Placement::Least, Placement::Random]);
            job.document.misfire = Misfire {
                policy: dice.one_of(&[MisfirePolicy::Skip, MisfirePolicy::Latest, MisfirePolicy::All]),
                within: Span::from_secs(dice.one_of(&[20, 60, 3600])),
                limit: 3,
            };
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
        Self(jobs)
    }

    pub async fn save(&self, store: &Store) -> anyhow::Result<()> {
        for job in &self.0 {
            store.create_job(job.document.clone(), job.id, beginning(), &Actor::new("simulation")).await?;
        }
        Ok(())
    }
}

impl SimJob {
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
