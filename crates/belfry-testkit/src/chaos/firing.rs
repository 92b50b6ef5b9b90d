//! Whether the cluster fires, as the jobs' own lines show it.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;

use super::jobs::ChaosJob;
use crate::until::until_within;
use crate::witness::{Line, Mark, Witness};

pub(super) struct Firing<'a> {
    witness: &'a Witness,
    read: u64,
    /// In the order of their lines.
    starts: HashMap<String, Vec<Line>>,
}

impl<'a> Firing<'a> {
    pub(super) fn new(witness: &'a Witness) -> Self {
        Self { witness, read: 0, starts: HashMap::new() }
    }

    fn read_on(&mut self) {
        for line in self.witness.news(&mut self.read).into_iter().filter(|line| line.mark == Mark::Started) {
            self.starts.entry(line.job.clone()).or_default().push(line);
        }
    }

    /// When the last of these jobs started a fire that was planned after the instant. None: not all of them have.
    pub(super) fn again_after(&mut self, instant: Timestamp, jobs: &[&ChaosJob]) -> Option<Timestamp> {
        self.read_on();
        let first = |job: &&ChaosJob| {
            self.starts.get(&job.name)?.iter().filter(|line| line.planned > instant).map(|line| line.at).min()
        };
        jobs.iter().map(first).try_fold(instant, |last, at| Some(last.max(at?)))
    }

    /// How long it took.
    pub(super) async fn until_again_after(
        &mut self,
        instant: Timestamp,
        jobs: &[&ChaosJob],
        patience: Duration,
    ) -> Option<Duration> {
        let last = until_within(patience, async || {
            let last = self.again_after(instant, jobs);
            if last.is_none() {
                tokio::time::sleep(Duration::from_millis(80)).await;
            }
            last
        })
        .await?;
        Duration::try_from(last.duration_since(instant)).ok()
    }

    /// Those of the nodes that do not come to start any of these jobs' fires that were planned after the instant.
    pub(super) async fn until_each_fires(
        &mut self,
        after: Timestamp,
        nodes: &[String],
        jobs: &[&ChaosJob],
        patience: Duration,
    ) -> Vec<String> {
        let mut silent = nodes.to_vec();
        let _none_is_left = until_within(patience, async || {
            self.read_on();
            let lines = jobs.iter().filter_map(|job| self.starts.get(&job.name)).flatten();
            let fired: HashSet<&str> =
                lines.filter(|line| line.planned > after).map(|line| line.node.as_str()).collect();
            silent.retain(|node| !fired.contains(node.as_str()));
            silent.is_empty().then_some(())
        })
        .await;
        silent
    }

    /// Starts that were planned between two instants, and took place only after the later one.
    pub(super) fn held_up(&mut self, from: Timestamp, to: Timestamp, wanted: impl Fn(&Line) -> bool) -> usize {
        self.read_on();
        let all = self.starts.values().flatten();
        all.filter(|line| wanted(line) && line.planned > from && line.planned <= to && line.at > to).count()
    }

    /// Starts of what servers fire that took place between two instants.
    pub(super) fn count(&mut self, from: Timestamp, to: Timestamp, jobs: &[ChaosJob]) -> usize {
        self.read_on();
        let jobs = jobs.iter().filter(|job| job.needs_servers());
        let lines = jobs.filter_map(|job| self.starts.get(&job.name)).flatten();
        lines.filter(|line| line.at > from && line.at <= to).count()
    }
}
