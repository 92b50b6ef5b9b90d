//! What came of an ordeal, as a table for people and a verdict for machines.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::Plan;
use super::backend::Backend;
use super::faults::{Kind, Suffered};
use super::services::Seen;
use crate::client::Run;
use crate::judge::{Fault, Tally};

/// Of each kind of broken promise.
const EXAMPLES_SHOWN: usize = 5;
/// A service that ran twice at once, does not run, or has a fence that did not grow.
const SERVICE_BROKEN: &str = "service";
const RECOVERY_BEYOND_TTL: Duration = Duration::from_secs(5);
const TAKEOVER_BEYOND_TTL: Duration = Duration::from_secs(3);
/// A server that stops by itself waits for nobody's silence; a fire is at most a second away.
const GRACEFUL_TAKEOVER_MAX: Duration = Duration::from_secs(3);

pub struct Report {
    pub backend: Backend,
    pub seed: u64,
    /// So many with an effect are needed before it is good.
    faults_wanted: usize,
    /// Inflicted and effective.
    pub kinds: BTreeMap<Kind, (usize, usize)>,
    pub fires: usize,
    pub starts: usize,
    pub ends: Tally,
    /// Of the runs that came to nothing.
    reasons: BTreeMap<String, usize>,
    /// Runs that nodes fired by themselves, by what their records say of it.
    marks: BTreeMap<String, usize>,
    pub faults: Vec<Fault>,
    /// What is wrong beyond single fires.
    pub broken: Vec<String>,
    recoveries: Vec<Duration>,
    takeovers: BTreeMap<Kind, Vec<Duration>>,
    services: Seen,
    pub took: Duration,
}

impl Report {
    /// `kinds`: those of the plan that can be inflicted here.
    pub(super) fn new(plan: &Plan, kinds: &[Kind]) -> Self {
        Self {
            backend: plan.backend,
            seed: plan.seed,
            // On a busy machine more may come to nothing than there are turns for; there every kind is enough.
            faults_wanted: if plan.quiet_machine { plan.faults } else { 0 },
            kinds: kinds.iter().map(|kind| (*kind, (0, 0))).collect(),
            fires: 0,
            starts: 0,
            ends: Tally::default(),
            reasons: BTreeMap::new(),
            marks: BTreeMap::new(),
            faults: Vec::new(),
            broken: Vec::new(),
            recoveries: Vec::new(),
            takeovers: BTreeMap::new(),
            services: Seen::default(),
            took: Duration::ZERO,
        }
    }

    pub(super) fn suffered(&mut self, suffered: &Suffered) {
        let (inflicted, effective) = self.kinds.entry(suffered.kind).or_default();
        *inflicted += 1;
        *effective += usize::from(suffered.effect.is_some());
        self.takeovers.entry(suffered.kind).or_default().extend(suffered.takeover);
        self.broken.extend(suffered.stood_still.clone());
    }

    pub(super) fn count_reasons(&mut self, records: &[Run]) {
        for record in records.iter().filter(|record| record.state != "succeeded") {
            let reason = record.why().replace(|c: char| c.is_ascii_digit(), "#");
            *self.reasons.entry(format!("{}: {reason}", record.state)).or_default() += 1;
        }
    }

    pub(super) fn fired_by_nodes(&mut self, records: &[Run]) {
        for mark in records.iter().flat_map(|record| &record.marks) {
            *self.marks.entry(mark.clone()).or_default() += 1;
        }
    }

    pub(super) fn kept_running(&mut self, services: Seen) {
        self.services = services;
    }

    pub(super) fn recovered(&mut self, took: Duration) {
        self.recoveries.push(took);
    }

    pub(super) fn judge_recoveries(&mut self, ttl: Duration) {
        let late = self.recoveries.iter().filter(|took| **took > ttl + RECOVERY_BEYOND_TTL).count();
        if late > 0 {
            self.broken.push(format!("{late} times it fired again only later than TTL + {RECOVERY_BEYOND_TTL:?}"));
        }
        if quantile(&self.services.absences, 0.99) > ttl + TAKEOVER_BEYOND_TTL {
            self.broken.push(format!("services were absent for longer than TTL + {TAKEOVER_BEYOND_TTL:?}"));
        }
        for (kind, takeovers) in &self.takeovers {
            let bound = if *kind == Kind::StopServer { GRACEFUL_TAKEOVER_MAX } else { ttl + TAKEOVER_BEYOND_TTL };
            if quantile(takeovers, 0.99) > bound {
                self.broken.push(format!("{}: its shards fired again only later than {bound:?}", kind.name()));
            }
        }
    }

    pub fn effective(&self) -> usize {
        self.kinds.values().map(|(_, effective)| effective).sum()
    }

    /// No promise was broken, as many faults as were asked for were seen to do something, and among them every kind.
    pub fn is_good(&self) -> bool {
        self.faults.is_empty()
            && self.broken.is_empty()
            && self.services.broken.is_empty()
            && self.effective() >= self.faults_wanted
            && self.kinds_without_effect().next().is_none()
    }

    pub(super) fn kinds_without_effect(&self) -> impl Iterator<Item = Kind> {
        self.kinds.iter().filter(|(_, (_, effective))| *effective == 0).map(|(kind, _)| *kind)
    }

    /// How many broken promises of each kind there are.
    pub fn verdicts(&self) -> BTreeMap<&'static str, usize> {
        let mut verdicts = BTreeMap::new();
        for fault in &self.faults {
            *verdicts.entry(fault.kind()).or_default() += 1;
        }
        if !self.services.broken.is_empty() {
            verdicts.insert(SERVICE_BROKEN, self.services.broken.len());
        }
        verdicts
    }
}

fn quantile(times: &[Duration], part: f64) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * part).round() as usize).copied().unwrap_or_default()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "chaos on {}, seed {}, {:.0} s", self.backend.name(), self.seed, self.took.as_secs_f64())?;
        writeln!(f, "\n  {:<40}{:>10}{:>10}", "fault", "inflicted", "effective")?;
        for (kind, (inflicted, effective)) in &self.kinds {
            writeln!(f, "  {:<40}{inflicted:>10}{effective:>10}", kind.name())?;
        }
        let inflicted: usize = self.kinds.values().map(|(inflicted, _)| inflicted).sum();
        writeln!(f, "  {:<40}{inflicted:>10}{:>10}", "all", self.effective())?;
        writeln!(
            f,
            "\n  {} fires were due, {} runs started; they ended as {:?}",
            self.fires, self.starts, self.ends.0
        )?;
        for (reason, count) in &self.reasons {
            writeln!(f, "    {count:>5} {reason}")?;
        }
        let marked = |mark| self.marks.get(mark).copied().unwrap_or(0);
        let (local, cut_off, twice) = (marked("local"), marked("cut_off"), marked("may_have_run_twice"));
        writeln!(
            f,
            "  nodes fired {local} by themselves, {cut_off} without contact to a server; {twice} may have run twice"
        )?;
        let verdicts = self.verdicts();
        let count = |kind: &&str| format!("{kind} {}", verdicts.get(kind).copied().unwrap_or(0));
        writeln!(f, "  verdicts: {}", Fault::KINDS.iter().map(count).collect::<Vec<_>>().join(", "))?;
        let Seen { starts, moves, .. } = &self.services;
        let services = format!("services, started {starts} times, moved to another node {moves} times");
        if self.services.absences.is_empty() {
            writeln!(f, "  {services}, were never absent")?;
        }
        let mut times = |what: &str, times: &[Duration]| {
            let of = |part| quantile(times, part).as_secs_f64();
            let (p50, p99) = (of(0.5), of(0.99));
            if times.is_empty() {
                Ok(())
            } else {
                writeln!(f, "  {what}: p50 {p50:.2} s, p99 {p99:.2} s of {}", times.len())
            }
        };
        times("fires again after a heal", &self.recoveries)?;
        times(&format!("{services}, absent"), &self.services.absences)?;
        for (kind, takeovers) in &self.takeovers {
            times(&format!("{}: its shards fire again", kind.name()), takeovers)?;
        }
        for (absent, what) in self.services.longest.iter().rev() {
            writeln!(f, "    absent for {:.2} s: {what}", absent.as_secs_f64())?;
        }
        for kind in Fault::KINDS {
            let of_kind = self.faults.iter().filter(|fault| fault.kind() == kind);
            for fault in of_kind.take(EXAMPLES_SHOWN) {
                writeln!(f, "  {fault:?}")?;
            }
        }
        for broken in self.broken.iter().chain(&self.services.broken) {
            writeln!(f, "  broken: {broken}")?;
        }
        if self.effective() < self.faults_wanted {
            writeln!(f, "  {} faults had an effect, and {} were asked for", self.effective(), self.faults_wanted)?;
        }
        for kind in self.kinds_without_effect() {
            writeln!(f, "  no effect was ever seen of: {}", kind.name())?;
        }
        writeln!(f, "  {}", if self.is_good() { "good" } else { "NOT GOOD" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After so many faults of each kind, of which so many did something.
    fn report(quiet_machine: bool, wanted: usize, kinds: &[(Kind, usize, usize)]) -> Report {
        let plan = Plan { quiet_machine, faults: wanted, ..Plan::short("belfry", Backend::Sqlite, &[]) };
        let names: Vec<Kind> = kinds.iter().map(|(kind, _, _)| *kind).collect();
        let mut report = Report::new(&plan, &names);
        report.kinds = kinds.iter().map(|(kind, inflicted, effective)| (*kind, (*inflicted, *effective))).collect();
        report
    }

    #[test]
    fn a_long_form_is_good_when_as_many_faults_as_were_asked_for_did_something() {
        let kinds = [(Kind::KillServer, 3, 2), (Kind::CutLink, 2, 1)];
        assert!(report(true, 3, &kinds).is_good());
        let short_of = report(true, 4, &kinds);
        assert!(!short_of.is_good());
        assert!(short_of.to_string().contains("3 faults had an effect, and 4 were asked for"), "{short_of}");
        assert!(report(false, 4, &kinds).is_good(), "the short form is for who waits");
    }

    /// All that the backend allows when none is named: more than eight where there are so many.
    #[test]
    fn no_form_is_good_when_a_kind_did_nothing() {
        let all: Vec<_> = Kind::ALL.into_iter().map(|kind| (kind, 1, 1)).collect();
        assert!(report(true, 16, &all).is_good());
        let but_one: Vec<_> =
            all.into_iter().map(|(kind, _, _)| (kind, 2, usize::from(kind != Kind::CutLink) * 2)).collect();
        for quiet_machine in [true, false] {
            let report = report(quiet_machine, 16, &but_one);
            assert!(report.effective() > 16 && !report.is_good());
            assert!(report.to_string().contains(&format!("no effect was ever seen of: {}", Kind::CutLink.name())));
        }
    }

    #[test]
    fn the_table_tells_how_often_services_moved() {
        let mut report = report(false, 0, &[]);
        report.kept_running(Seen { starts: 9, moves: 4, ..Seen::default() });
        assert!(report.to_string().contains("services, started 9 times, moved to another node 4 times"), "{report}");
    }
}
