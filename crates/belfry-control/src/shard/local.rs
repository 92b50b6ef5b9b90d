//! Jobs that nodes fire by themselves (`run_on: each` and `home`): each node that is connected is told which of this shard's are its
//! own, as differences after one whole list, and again from the beginning when it comes back or the shard changes hands.

use std::collections::HashMap;

use belfry_core::homes::Home;
use belfry_core::job::RunOn;
use belfry_core::place::{Candidate, why_not_selected};
use belfry_core::{Incarnation, JobId, NodeId, Version};
use belfry_proto::session::{LocalJob, LocalJobs, Release};

use super::Shard;
use crate::gateway::Sent;

/// Far below what one message may have, with documents of 128 KiB.
const BYTES_PER_MESSAGE: usize = 512 * 1024;

#[derive(Default)]
pub(super) struct Local {
    /// What each node was told in its present session.
    told: HashMap<NodeId, Told>,
    /// Tokens of nodes that want a whole list.
    asked: HashMap<NodeId, u64>,
    /// Something changed that may concern a node.
    dirty: bool,
    /// The jobs are all that there are. A snapshot may lack some: what a list made from it leaves out is not taken off a node.
    complete: bool,
}

struct Told {
    incarnation: Incarnation,
    jobs: HashMap<JobId, Copy>,
}

/// Revision, and term of the home.
type Copy = (u64, u64);

impl Local {
    pub(super) fn changed(&mut self) {
        self.dirty = true;
    }

    /// Whole lists can be told from now on, also to nodes that were told what was known before.
    pub(super) fn knows_all(&mut self) {
        if !std::mem::replace(&mut self.complete, true) {
            self.told.clear();
            self.dirty = true;
        }
    }

    /// The latest token is enough: whoever asked before is answered by the same list, or asks again.
    pub(super) fn asked(&mut self, node: NodeId, token: u64) {
        self.asked.insert(node, token);
        self.arrived(node);
    }

    /// It may have missed what was sent before.
    pub(super) fn arrived(&mut self, node: NodeId) {
        self.told.remove(&node);
        self.dirty = true;
    }
}

impl Shard {
    pub(super) fn tell_local(&mut self) {
        if !std::mem::take(&mut self.local.dirty) || !self.loaded {
            return;
        }
        let nodes = self.context.nodes.candidates();
        let mine: Vec<(JobId, Meant)> =
            self.jobs.local().iter().filter_map(|id| Some((*id, self.meant(*id)?))).collect();
        for node in nodes.iter().filter(|node| node.connected) {
            if !self.tell_node(node, &mine) {
                self.local.dirty = true;
            }
        }
        // Until it says that it has let go, it is asked again.
        self.local.dirty |= mine.iter().any(|(_, meant)| matches!(meant, Meant::Home(home, _) if home.leaving));
    }

    fn meant(&self, job: JobId) -> Option<Meant> {
        let slot = self.jobs.get(job)?;
        match slot.run_on {
            RunOn::One => None,
            RunOn::Each => Some(Meant::Each(Box::new(slot.document().ok()?.select))),
            RunOn::Home => self.context.homes.get(job).map(|(home, version)| Meant::Home(home, version)),
        }
    }

    /// False: not all of it could be sent.
    fn tell_node(&mut self, node: &Candidate, mine: &[(JobId, Meant)]) -> bool {
        let wanted: HashMap<JobId, Copy> = mine
            .iter()
            .filter_map(|(job, meant)| Some((*job, (self.jobs.get(*job)?.revision, meant.term_at(node)?))))
            .collect();
        let told = self.local.told.get(&node.id).filter(|told| told.incarnation == node.incarnation);
        let (first, known) = told.map_or((true, HashMap::new()), |told| (false, told.jobs.clone()));
        let complete = self.local.complete;
        let whole = first && complete;
        let put =
            wanted.iter().filter(|(job, copy)| known.get(*job) != Some(*copy)).filter_map(|(job, _)| self.copy(*job));
        // What is to be let go is not taken away: the node has its claimed fires, and says when it is done.
        let release: Vec<Release> = mine.iter().filter_map(|(job, meant)| meant.release(*job, node.id)).collect();
        let leaving = release.iter().map(|release| release.job.clone());
        let gone = known.keys().filter(|job| !wanted.contains_key(job)).map(JobId::to_string);
        let remove = gone.filter(|job| !release.iter().any(|release| release.job == *job)).collect();
        let only = if whole { wanted.keys().map(JobId::to_string).chain(leaving).collect() } else { Vec::new() };
        let answers = self.local.asked.get(&node.id).copied().filter(|_| complete).unwrap_or(0);
        let last = LocalJobs {
            shard: self.id.0.into(),
            term: self.term.0,
            put: Vec::new(),
            remove,
            whole,
            only,
            release,
            answers,
        };
        for message in messages(put, last) {
            if self.context.sessions.order(node.id, node.incarnation, message.into()) != Sent::Yes {
                self.local.told.remove(&node.id);
                return false;
            }
        }
        if complete {
            self.local.asked.remove(&node.id);
        }
        self.local.told.insert(node.id, Told { incarnation: node.incarnation, jobs: wanted });
        true
    }

    fn copy(&self, job: JobId) -> Option<LocalJob> {
        let slot = self.jobs.get(job)?;
        let (home_term, from_ms) = self
            .context
            .homes
            .get(job)
            .filter(|_| slot.run_on == RunOn::Home)
            .map_or((0, 0), |(home, version)| (version.0, home.from_ms));
        Some(LocalJob {
            id: job.to_string(),
            revision: slot.revision,
            document: slot.document_with(self.context.config.default_timeout.as_ref()),
            created_at_ms: slot.created_at.as_millisecond(),
            counts_from_ms: slot.counts_from().as_millisecond(),
            home_term,
            from_ms,
        })
    }
}

/// Where a job is meant to be.
enum Meant {
    Each(Box<belfry_core::job::Select>),
    Home(Home, Version),
}

impl Meant {
    /// None: the node is not to fire it.
    fn term_at(&self, node: &Candidate) -> Option<u64> {
        match self {
            Meant::Each(select) => why_not_selected(select, node).is_none().then_some(0),
            Meant::Home(home, version) => (home.node == Some(node.id) && !home.leaving).then_some(version.0),
        }
    }

    fn release(&self, job: JobId, node: NodeId) -> Option<Release> {
        match self {
            Meant::Home(home, version) if home.leaving && home.node == Some(node) => {
                Some(Release { job: job.to_string(), home_term: version.0 })
            }
            Meant::Home(..) | Meant::Each(_) => None,
        }
    }
}

/// The copies in as many messages as they need, and what belongs behind them in the last one. None if there is nothing to say.
fn messages(put: impl Iterator<Item = LocalJob>, last: LocalJobs) -> Vec<LocalJobs> {
    let mut messages = Vec::new();
    let mut next = Vec::new();
    let mut bytes = 0;
    for copy in put {
        bytes += copy.document.len() + 100;
        next.push(copy);
        if bytes >= BYTES_PER_MESSAGE {
            let put = std::mem::take(&mut next);
            messages.push(LocalJobs { put, shard: last.shard, term: last.term, ..Default::default() });
            bytes = 0;
        }
    }
    let has_more = !next.is_empty() || last.whole || !last.remove.is_empty() || !last.release.is_empty();
    if has_more {
        messages.push(LocalJobs { put: next, ..last });
    }
    messages
}
