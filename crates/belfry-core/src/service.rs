//! Services: jobs whose program always runs, on one node. Each start is a run; the next one is due when it has ended. When that is, and
//! which changes of the job need a new start, is decided here.

use std::time::Duration;

use crate::job::{Action, JobDocument, KILL_GRACE_DEFAULT, Placement};
use crate::run::RunState;
use crate::units::Span;

/// Between an end and the next start, unless the job says otherwise.
pub const RESTART_DELAY_DEFAULT: Span = Span::from_secs(1);
/// TERM to KILL, unless the job says otherwise.
pub const STOP_GRACE_DEFAULT: Span = Span::from_secs(10);
/// The delay grows up to this, or to `restart_delay` if that is more.
pub const RESTART_DELAY_MAX: Span = Span::from_secs(300);
/// One that ran for so long starts over with `restart_delay`.
pub const RAN_WELL: Span = Span::from_secs(60);
/// A node that has just lost contact is not asked in a tight loop.
const AFTER_GIVEN_UP: Duration = Duration::from_millis(300);
/// How long after its end a service prefers the node that it was on.
pub const STAYS_FOR: Span = Span::from_secs(90);

/// What a shard needs to know of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceRule {
    pub restart_delay: Span,
    /// Of all that its program could notice: another one means a new start.
    pub digest: u64,
}

/// How a run of a service came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its program ended, or could not be started.
    ByItself { ran: Duration },
    /// It was stopped to be started again, here or elsewhere, or its node is gone.
    AtOurWish,
    /// Its node had it and gave it up before the start.
    GivenUp,
}

impl Ended {
    /// `abandoned`: for reasons of the node's own.
    pub fn of(state: RunState, ran: Duration, abandoned: bool) -> Ended {
        match state {
            RunState::Skipped if abandoned => Ended::GivenUp,
            RunState::Killed | RunState::Lost | RunState::Cancelled => Ended::AtOurWish,
            RunState::Succeeded | RunState::Failed | RunState::TimedOut | RunState::Skipped => Ended::ByItself { ran },
            RunState::Claimed | RunState::Dispatched | RunState::Running | RunState::Waiting => Ended::AtOurWish,
        }
    }
}

impl ServiceRule {
    /// How long to wait, and how many quick ends there have been in a row with this one.
    pub fn next_start(&self, quick_ends: u32, ended: Ended) -> (Duration, u32) {
        let ran = match ended {
            Ended::AtOurWish => return (Duration::ZERO, 0),
            Ended::GivenUp => return (self.restart_delay.get().min(AFTER_GIVEN_UP), quick_ends),
            Ended::ByItself { ran } => ran,
        };
        let first = self.restart_delay.get();
        if ran >= RAN_WELL.get() {
            return (first, 0);
        }
        let grown = first.saturating_mul(1 << quick_ends.min(16));
        (grown.min(RESTART_DELAY_MAX.get().max(first)), quick_ends.saturating_add(1))
    }
}

impl JobDocument {
    pub fn service_rule(&self) -> Option<ServiceRule> {
        let Action::Service(service) = &self.action else { return None };
        Some(ServiceRule {
            restart_delay: service.restart_delay.unwrap_or(RESTART_DELAY_DEFAULT),
            digest: self.digest_of_work(),
        })
    }

    /// TERM to KILL when a run is ended.
    pub fn grace(&self) -> Span {
        match (&self.action, self.timeout) {
            (Action::Service(service), _) => service.stop_grace.unwrap_or(STOP_GRACE_DEFAULT),
            (_, Some(timeout)) => timeout.grace,
            (_, None) => KILL_GRACE_DEFAULT,
        }
    }

    /// As placement sees it: a service stays where it was for a while, whatever chooses its node otherwise.
    pub fn effective_placement(&self) -> Placement {
        match (&self.action, self.placement) {
            (Action::Service(_), Placement::Weighted) => Placement::Sticky(STAYS_FOR),
            (_, placement) => placement,
        }
    }

    /// What people note about a job is left out.
    fn digest_of_work(&self) -> u64 {
        let work = (&self.action, &self.run_as, &self.limits, &self.signature, &self.output);
        let text = serde_json::to_vec(&work).expect("a part of a document is JSON as the whole is");
        xxhash_rust::xxh3::xxh3_64(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Exec, Service};

    fn rule(restart_delay_s: u64) -> ServiceRule {
        ServiceRule { restart_delay: Span::from_secs(restart_delay_s), digest: 0 }
    }

    fn quick() -> Ended {
        Ended::ByItself { ran: Duration::from_secs(59) }
    }

    #[test]
    fn the_delay_grows_while_it_ends_quickly_and_starts_over_when_it_ran_well() {
        let (mut ends, mut delays) = (0, Vec::new());
        for _ in 0..11 {
            let (delay, next) = rule(1).next_start(ends, quick());
            delays.push(delay.as_secs());
            ends = next;
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(rule(1).next_start(ends, Ended::ByItself { ran: RAN_WELL.get() }), (Duration::from_secs(1), 0));
        assert_eq!(rule(1000).next_start(7, quick()).0, Duration::from_secs(1000), "what the job says is the least");
    }

    #[test]
    fn what_was_stopped_or_lost_starts_again_at_once() {
        for state in [RunState::Killed, RunState::Lost, RunState::Cancelled] {
            assert_eq!(rule(5).next_start(3, Ended::of(state, Duration::ZERO, false)), (Duration::ZERO, 0));
        }
        let given_up = Ended::of(RunState::Skipped, Duration::ZERO, true);
        assert_eq!(rule(5).next_start(3, given_up), (AFTER_GIVEN_UP, 3));
        let skipped = Ended::of(RunState::Skipped, Duration::ZERO, false);
        assert_eq!(
            rule(5).next_start(0, skipped).0,
            Duration::from_secs(5),
            "what a node refuses is not asked in a loop"
        );
    }

    fn document() -> JobDocument {
        let service = Service { command: Some("serve".into()), argv: vec![], stop_grace: None, restart_delay: None };
        JobDocument::new("s", Action::Service(service))
    }

    #[test]
    fn a_service_stays_where_it_was_unless_it_says_how_its_node_is_chosen() {
        assert_eq!(document().effective_placement(), Placement::Sticky(Span::from_secs(90)));
        let least = JobDocument { placement: Placement::Least, ..document() };
        assert_eq!(least.effective_placement(), Placement::Least);
        let job = JobDocument::new("j", Action::Exec(Exec { argv: vec!["true".into()] }));
        assert_eq!(job.effective_placement(), Placement::Weighted);
    }

    #[test]
    fn only_what_its_program_could_notice_needs_a_new_start() {
        let document = document();
        let digest = |document: &JobDocument| document.service_rule().unwrap().digest;
        let mut noted = document.clone();
        noted.description = "told at night".into();
        noted.labels.insert("team".into(), "db".into());
        noted.select.hosts.push("db1".into());
        assert_eq!(digest(&noted), digest(&document));
        let mut changed = document.clone();
        changed.run_as.env.insert("PORT".into(), "1".into());
        assert_ne!(digest(&changed), digest(&document));
    }
}
