//! A job: its document (what users write), what is refused and why, and the record that the store keeps of it.

mod action;
mod document;
mod refusal;
mod validate;

pub use action::{Action, Exec, Grpc, Handler, Http, HttpExpect, Script, Service, Shell};
pub use document::*;
pub use refusal::Refusal;
pub use validate::{NAME_BYTES_MAX, SCRIPT_BYTES_MAX, check_env, check_name, check_script_body};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::JobId;
use crate::id::name_seed;
use crate::schedule::{Schedule, ScheduleSpec};

/// A job as the store keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    pub id: JobId,
    /// Grows at each edit.
    pub revision: u64,
    pub document: JobDocument,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// Fires up to here were never due: the last change of the schedule, or the moment of a resume.
    pub counts_from: Timestamp,
}

impl Job {
    pub fn schedule(&self) -> Result<Schedule, Refusal> {
        self.document.compile_schedule(self.created_at)
    }
}

impl JobDocument {
    /// `namespace/name`
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    pub fn seed(&self) -> u64 {
        name_seed(&self.namespace, &self.name)
    }

    /// `created_at` anchors `@every`, so that every server computes the same instants.
    pub fn compile_schedule(&self, created_at: Timestamp) -> Result<Schedule, Refusal> {
        Schedule::compile(&self.schedule_spec(created_at)).map_err(|e| Refusal::from_schedule(&e))
    }

    /// As [`Self::compile_schedule`], and refuses what never fires after `now`.
    pub fn compile_schedule_for_saving(&self, now: Timestamp) -> Result<Schedule, Refusal> {
        Schedule::compile_for_saving(&self.schedule_spec(now), now).map_err(|e| Refusal::from_schedule(&e))
    }

    fn schedule_spec(&self, created_at: Timestamp) -> ScheduleSpec<'_> {
        ScheduleSpec {
            expressions: &self.schedule.0,
            timezone: self.timezone.as_deref().unwrap_or("UTC"),
            dst: self.dst,
            window: self.window.unwrap_or_default(),
            seed: self.seed(),
            anchor: created_at,
        }
    }

    /// Whether the cluster's timeout holds for it: it has none of its own, and its runs are to end.
    pub fn takes_default_timeout(&self) -> bool {
        self.timeout.is_none() && !matches!(self.action, Action::Service(_))
    }

    /// Whether a change from `self` to `next` moves fires, so that the schedule counts from the change.
    pub fn schedule_differs(&self, next: &JobDocument) -> bool {
        (&self.schedule, &self.timezone, self.dst, self.window, self.enabled, self.run_on)
            != (&next.schedule, &next.timezone, next.dst, next.window, next.enabled, next.run_on)
    }
}
