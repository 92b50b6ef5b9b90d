//! What was decided about a run's place, short enough to be kept with each run: reasons with counts and a few names, however many
//! nodes there are.

use serde::{Deserialize, Serialize};

use super::{Asked, Candidate};

/// Names of nodes are cut here, so that a decision has a bound.
const NAME_CHARS_MAX: usize = 64;

/// Why a node was not chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhyNot {
    NotConnected,
    Draining,
    Excluded,
    ExcludedByJob,
    HostNotSelected,
    AnotherAskedFor,
    LabelsDiffer,
    ClockOff,
    /// Nor room behind its slots.
    NoFreeSlot,
    /// It would have to wait there, and elsewhere not.
    SlotsTaken,
    NoWeight,
    /// It has no room for results until the servers have stored what waits there.
    SpoolFull,
    /// It has less free disk than its floor.
    DiskLow,
    /// Of what the job's `needs` ask for.
    TooLittleFree,
    /// It never has what the job's `needs` ask for.
    TooSmall,
    /// The job has `needs`, and the node has not said what it has.
    RoomUnknown,
    /// For ever: a refusal is remembered.
    RefusedIt,
}

impl WhyNot {
    pub fn in_words(self) -> &'static str {
        match self {
            WhyNot::NotConnected => "not connected",
            WhyNot::Draining => "draining",
            WhyNot::Excluded => "excluded",
            WhyNot::ExcludedByJob => "excluded by the job's select.exclude",
            WhyNot::HostNotSelected => "not in the job's select.hosts",
            WhyNot::AnotherAskedFor => "another node was asked for",
            WhyNot::LabelsDiffer => "labels differ from the job's select.labels",
            WhyNot::ClockOff => "its clock is off",
            WhyNot::NoFreeSlot => "no free slot",
            WhyNot::SlotsTaken => "all slots taken, others had free ones",
            WhyNot::NoWeight => "its weight is 0",
            WhyNot::SpoolFull => "its spool is full until the store takes its results",
            WhyNot::DiskLow => "less free disk than its floor (--disk-floor)",
            WhyNot::TooLittleFree => "too little is free for the job's needs",
            WhyNot::TooSmall => "it never has what the job's needs ask for",
            WhyNot::RoomUnknown => "it has not said what it has free for the job's needs",
            WhyNot::RefusedIt => "it refused the run",
        }
    }
}

/// What chose among the fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    Weighted,
    Least,
    Random,
    Hash,
    /// `sticky`: the node of the run before.
    LastNode,
    /// `sticky`, and that node is not known, too long ago or not fit: as `weighted`.
    Anew,
}

impl By {
    pub fn in_words(self) -> &'static str {
        match self {
            By::Weighted => "weighted round robin: it was its turn",
            By::Least => "least: it had the least work for its weight",
            By::Random => "random",
            By::Hash => "hash: it is the job's node as long as it can take it",
            By::LastNode => "sticky: it had the job's last run",
            By::Anew => "sticky, and no last node that could take it: it was its turn by weighted round robin",
        }
    }
}

/// Short names: there may be thousands a second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    #[serde(rename = "by")]
    pub by: By,
    /// Nodes that could have taken it, the chosen one among them.
    #[serde(rename = "f")]
    pub fit: u32,
    /// Some of those that were fit and not chosen.
    #[serde(rename = "o", default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<String>,
    #[serde(rename = "u", default, skip_serializing_if = "Vec::is_empty")]
    pub unfit: Vec<Unfit>,
    /// Of `select.hosts`, some that no node is called; only looked for when no node is fit.
    #[serde(rename = "m", default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// The nodes that one thing speaks against.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfit {
    #[serde(rename = "w")]
    pub why: WhyNot,
    #[serde(rename = "n")]
    pub count: u32,
    /// Some of them.
    #[serde(rename = "s")]
    pub some: Vec<String>,
    /// What each of these has, where that matters: `needs 2GiB memory, has 1GiB free`.
    #[serde(rename = "h", default, skip_serializing_if = "Vec::is_empty")]
    pub has: Vec<String>,
}

impl Decision {
    pub(super) fn of(
        by: By,
        asked: &Asked<'_>,
        candidates: &[&mut Candidate],
        verdicts: &[Option<WhyNot>],
        chosen: Option<usize>,
    ) -> Self {
        let mut decision = Self { by, fit: 0, others: Vec::new(), unfit: Vec::new(), missing: Vec::new() };
        for (i, (node, verdict)) in candidates.iter().zip(verdicts).enumerate() {
            match verdict {
                None => {
                    decision.fit += 1;
                    if chosen != Some(i) && decision.others.len() < asked.named_max {
                        decision.others.push(cut(&node.name));
                    }
                }
                Some(why) => decision.speaks_against(*why, node, asked),
            }
        }
        if chosen.is_none() {
            let is_called = |host: &String| candidates.iter().any(|n| *host == n.name || *host == n.id.to_string());
            let missing = asked.select.hosts.iter().filter(|host| !is_called(host));
            decision.missing = missing.take(asked.named_max).map(|host| cut(host)).collect();
        }
        decision
    }

    fn speaks_against(&mut self, why: WhyNot, node: &Candidate, asked: &Asked<'_>) {
        let known = self.unfit.iter().position(|unfit| unfit.why == why).unwrap_or_else(|| {
            self.unfit.push(Unfit { why, count: 0, some: Vec::new(), has: Vec::new() });
            self.unfit.len() - 1
        });
        let unfit = &mut self.unfit[known];
        unfit.count += 1;
        if unfit.some.len() < asked.named_max {
            unfit.some.push(cut(&node.name));
            if matches!(why, WhyNot::TooLittleFree | WhyNot::TooSmall) {
                let short = node.room.and_then(|room| room.short_of(asked.needs));
                unfit.has.extend(short.map(|short| short.to_string()));
            }
        }
    }

    /// One sentence for the record of a run that no node can take.
    pub fn why_nowhere(&self) -> String {
        let mut parts: Vec<String> = self.unfit.iter().map(Unfit::in_words).collect();
        if !self.missing.is_empty() {
            parts.push(format!("{}: in select.hosts, and no node of that name has joined", self.missing.join(", ")));
        }
        match parts.is_empty() {
            true => "no node has joined".to_owned(),
            false => format!("no node can take it ({})", parts.join("; ")),
        }
    }
}

impl Unfit {
    /// `n1, n2 and 5 more: draining`, `n1 (needs 2GiB memory, has 1GiB free): too little is free for the job's needs`
    pub fn in_words(&self) -> String {
        let names: Vec<String> = match self.has.len() == self.some.len() {
            true => self.some.iter().zip(&self.has).map(|(name, has)| format!("{name} ({has})")).collect(),
            false => self.some.clone(),
        };
        format!("{}: {}", with_more(&names, self.count as usize), self.why.in_words())
    }
}

/// Some names of so many.
pub(crate) fn with_more(some: &[String], of: usize) -> String {
    let more = of.saturating_sub(some.len());
    match (some.is_empty(), more) {
        (true, more) => format!("{more} nodes"),
        (false, 0) => some.join(", "),
        (false, more) => format!("{} and {more} more", some.join(", ")),
    }
}

fn cut(name: &str) -> String {
    name.chars().take(NAME_CHARS_MAX).collect()
}
