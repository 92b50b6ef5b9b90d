//! What the disk keeps of local jobs: a list of records, and what they add up to.

use std::collections::{BTreeSet, HashMap};

use belfry_core::job_table::Stored;
use belfry_core::{JobId, RunId};
use serde::{Deserialize, Serialize};

use super::given_up::{GivenUp, Left};
use super::{Own, instant};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Record {
    Job(KeptJob),
    Removed {
        job: JobId,
        cursor_ms: i64,
        was_home: bool,
        /// Older agents did not write it.
        #[serde(default)]
        fence: u64,
    },
    Claimed(Claim),
    Ended {
        job: JobId,
        run: RunId,
        at_ms: i64,
    },
    /// What fires at boot has been claimed for this one.
    Boot {
        id: String,
    },
    /// On this host, by its local API.
    Disabled {
        job: JobId,
    },
    /// What passed up to this instant was not due.
    Enabled {
        job: JobId,
        at_ms: i64,
    },
}

/// A copy of a job, and how far this node has come with it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct KeptJob {
    pub id: JobId,
    pub shard: u32,
    pub revision: u64,
    pub namespace: String,
    pub name: String,
    pub document: String,
    pub created_at_ms: i64,
    pub counts_from_ms: i64,
    pub home_term: u64,
    /// Every fire up to here is claimed.
    pub cursor_ms: i64,
    pub fence: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_end_ms: Option<i64>,
}

/// One fire, taken for good.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub job: JobId,
    pub run: RunId,
    pub namespace: String,
    pub name: String,
    pub revision: u64,
    pub planned_ms: i64,
    /// With the job's jitter.
    pub start_ms: i64,
    pub claimed_at_ms: i64,
    pub fence: u64,
    pub home_term: u64,
    #[serde(default)]
    pub at_boot: bool,
    /// Why it was decided with its claim that it never starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

/// What all records add up to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    pub jobs: HashMap<JobId, KeptJob>,
    pub removed: GivenUp,
    /// Claimed, and no end is known.
    pub open: HashMap<RunId, Claim>,
    pub boot: Option<String>,
    /// Also those that are not here at the moment: they stay so when they come back.
    pub disabled: BTreeSet<JobId>,
}

impl KeptJob {
    pub(super) fn new(stored: &Stored, own: &Own) -> KeptJob {
        KeptJob {
            id: stored.id,
            shard: own.shard,
            revision: stored.revision,
            namespace: own.namespace.clone(),
            name: own.name.clone(),
            document: String::from_utf8_lossy(&stored.document).into_owned(),
            created_at_ms: stored.created_at.as_millisecond(),
            counts_from_ms: stored.counts_from.as_millisecond(),
            home_term: own.home_term,
            cursor_ms: own.cursor_ms,
            fence: own.fence,
            last_end_ms: None,
        }
    }

    pub(super) fn stored(&self) -> Stored {
        Stored {
            id: self.id,
            revision: self.revision,
            name: format!("{}/{}", self.namespace, self.name),
            document: self.document.clone().into(),
            created_at: instant(self.created_at_ms),
            counts_from: instant(self.counts_from_ms),
        }
    }
}

impl Kept {
    pub(super) fn add(&mut self, record: Record) {
        match record {
            Record::Job(mut job) => {
                self.removed.remove(job.id);
                if let Some(old) = self.jobs.get(&job.id) {
                    job.cursor_ms = job.cursor_ms.max(old.cursor_ms);
                    job.fence = job.fence.max(old.fence);
                    job.last_end_ms = job.last_end_ms.or(old.last_end_ms);
                }
                self.jobs.insert(job.id, job);
            }
            Record::Removed { job, cursor_ms, was_home, fence } => {
                self.jobs.remove(&job);
                self.removed.add(job, Left { cursor_ms, fence, was_home });
            }
            Record::Claimed(claim) => {
                if let Some(job) = self.jobs.get_mut(&claim.job) {
                    job.fence = job.fence.max(claim.fence);
                    if !claim.at_boot && !belfry_core::planted::is("local_cursor_forgotten") {
                        job.cursor_ms = job.cursor_ms.max(claim.planned_ms);
                    }
                }
                self.open.insert(claim.run, claim);
            }
            Record::Ended { job, run, at_ms } => {
                self.open.remove(&run);
                if let Some(job) = self.jobs.get_mut(&job) {
                    job.last_end_ms = job.last_end_ms.max(Some(at_ms));
                }
            }
            Record::Boot { id } => self.boot = Some(id),
            Record::Disabled { job } => {
                self.disabled.insert(job);
            }
            Record::Enabled { job, at_ms } => {
                self.disabled.remove(&job);
                if let Some(job) = self.jobs.get_mut(&job) {
                    job.cursor_ms = job.cursor_ms.max(at_ms);
                }
            }
        }
    }

    /// As few records as say the same.
    pub(super) fn records(&self) -> impl Iterator<Item = Record> + '_ {
        let jobs = self.jobs.values().cloned().map(Record::Job);
        let removed = self.removed.iter().map(|(job, Left { cursor_ms, fence, was_home })| Record::Removed {
            job,
            cursor_ms,
            was_home,
            fence,
        });
        let open = self.open.values().cloned().map(Record::Claimed);
        let boot = self.boot.iter().map(|id| Record::Boot { id: id.clone() });
        let disabled = self.disabled.iter().map(|job| Record::Disabled { job: *job });
        removed.chain(jobs).chain(open).chain(boot).chain(disabled)
    }
}
