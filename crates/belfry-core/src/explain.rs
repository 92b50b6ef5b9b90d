//! What a job's definition says about an instant: whether it fires then, by which expression, and if not, when it does.

use jiff::Timestamp;

use crate::Refusal;
use crate::job::{Expressions, JobDocument};
use crate::schedule::{ClockNote, jitter_for};

/// One instant under one definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtInstant {
    pub standing: Standing,
    /// Of the job, those that fire at it.
    pub expressions: Vec<String>,
    /// What a clock change did to it.
    pub note: Option<ClockNote>,
    /// When it starts, with its jitter.
    pub start_at: Timestamp,
    /// The nearest fires on both sides, whether they were due or not.
    pub previous: Option<Timestamp>,
    pub next: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Due,
    /// No expression matches it, or it is outside of the window.
    NotAFire,
    /// It would be a fire, and the job is paused.
    Paused,
    /// It would be a fire, and the schedule counts only after this instant.
    NotCountedYet(Timestamp),
    /// The job has no expression that follows a clock.
    NoSchedule,
}

impl JobDocument {
    /// `counts_from`: fires up to there were never due.
    pub fn at_instant(
        &self,
        created_at: Timestamp,
        counts_from: Timestamp,
        at: Timestamp,
    ) -> Result<AtInstant, Refusal> {
        let schedule = self.compile_schedule(created_at)?;
        let fires = |document: &JobDocument| {
            let schedule = document.compile_schedule(created_at)?;
            Ok::<bool, Refusal>(schedule.next_after(just_before(at)) == Some(at))
        };
        let mut expressions = Vec::new();
        for expression in &self.schedule.0 {
            let alone = JobDocument { schedule: Expressions(vec![expression.clone()]), ..self.clone() };
            if fires(&alone)? {
                expressions.push(expression.clone());
            }
        }
        let standing = match () {
            () if !schedule.first_fire_exists(Timestamp::MIN) => Standing::NoSchedule,
            () if expressions.is_empty() => Standing::NotAFire,
            () if !self.enabled => Standing::Paused,
            () if at <= counts_from => Standing::NotCountedYet(counts_from),
            () => Standing::Due,
        };
        let jitter = self.jitter.map_or(std::time::Duration::ZERO, |jitter| jitter_for(self.seed(), at, jitter.get()));
        Ok(AtInstant {
            standing,
            note: schedule.note_for(at).filter(|_| !expressions.is_empty()),
            expressions,
            start_at: at.saturating_add(jitter).unwrap_or(Timestamp::MAX),
            previous: schedule.prev_before(at),
            next: schedule.next_after(at),
        })
    }
}

fn just_before(at: Timestamp) -> Timestamp {
    at.saturating_sub(std::time::Duration::from_nanos(1)).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Action, Shell};

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn job(expressions: &[&str]) -> JobDocument {
        let mut document = JobDocument::new("a", Action::Shell(Shell { command: "true".into() }));
        document.schedule = Expressions(expressions.iter().map(|text| (*text).to_owned()).collect());
        document.timezone = Some("Europe/Berlin".into());
        document
    }

    fn look(document: &JobDocument, instant: &str) -> AtInstant {
        document.at_instant(at("2026-01-01T00:00:00Z"), at("2026-01-02T00:00:00Z"), at(instant)).unwrap()
    }

    #[test]
    fn a_fire_names_its_expressions_and_its_neighbours() {
        let document = job(&["0 4 * * *", "0 */2 * * *", "30 4 * * *"]);
        let found = look(&document, "2026-02-01T03:00:00Z");
        assert_eq!(
            (found.standing, &found.expressions[..]),
            (Standing::Due, &["0 4 * * *".into(), "0 */2 * * *".into()][..])
        );
        assert_eq!(found.previous, Some(at("2026-02-01T01:00:00Z")));
        assert_eq!(found.next, Some(at("2026-02-01T03:30:00Z")));
        let found = look(&document, "2026-02-01T03:00:00.5Z");
        assert_eq!((found.standing, found.expressions), (Standing::NotAFire, vec![]));
        assert_eq!(found.previous, Some(at("2026-02-01T03:00:00Z")));
    }

    #[test]
    fn what_would_have_fired_says_why_it_was_not_due() {
        let mut document = job(&["0 4 * * *"]);
        let counts_from = at("2026-01-02T00:00:00Z");
        assert_eq!(look(&document, "2026-01-01T03:00:00Z").standing, Standing::NotCountedYet(counts_from));
        document.enabled = false;
        assert_eq!(look(&document, "2026-02-01T03:00:00Z").standing, Standing::Paused);
        assert_eq!(look(&document, "2026-02-01T05:00:00Z").standing, Standing::NotAFire);
        assert_eq!(look(&job(&[]), "2026-02-01T05:00:00Z").standing, Standing::NoSchedule);
        assert_eq!(look(&job(&["@after 90s"]), "2026-02-01T05:00:00Z").standing, Standing::NoSchedule);
    }

    #[test]
    fn a_clock_change_is_told() {
        let found = look(&job(&["30 2 * * *"]), "2026-03-29T01:00:00Z");
        assert_eq!(found.standing, Standing::Due);
        assert!(matches!(found.note, Some(ClockNote::MovedFromGap { .. })));
    }
}
