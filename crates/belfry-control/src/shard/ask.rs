//! What people ask of a shard: run a job now, kill a run, kill all runs of a job.

use belfry_core::id::Slot;
use belfry_core::job::RunOn;
use belfry_core::job_table::JobSlot;
use belfry_core::overlap::{self, Go};
use belfry_core::run::{Run, Trigger, Verdict};
use belfry_core::{JobId, NodeId, RunId, Timestamp};
use tokio::sync::oneshot;

use super::{Shard, Stage};
use crate::error::ControlError;
use crate::open_run::{Decision, ManualFacts};
use crate::view::{KillAnswer, ManualRun};

impl Shard {
    /// A manual run obeys `overlap` unless it is forced, and is judged at once; one that may not go is recorded as skipped.
    pub(super) fn run_now(&mut self, request: ManualRun, reply: oneshot::Sender<Result<Run, ControlError>>) {
        let now = self.context.now();
        if !self.loaded || self.releasing || self.context.is_stopping() {
            let _ = reply.send(Err(if self.loaded { ControlError::Stopping } else { ControlError::NotOwned(self.id) }));
            return;
        }
        if self.context.recorder.is_full(&self.context) {
            let _ = reply.send(Err(ControlError::TooMuchUnrecorded));
            return;
        }
        if self.is_full() {
            let _ = reply.send(Err(ControlError::NoRoom));
            return;
        }
        let Some(slot) = self.jobs.get(request.job) else {
            let _ = reply.send(Err(ControlError::NoSuchJob(request.job)));
            return;
        };
        if slot.service.is_some() {
            let _ = reply.send(Err(ControlError::IsService));
            return;
        }
        let node = match self.where_now(slot, request.node) {
            Ok(node) => node,
            Err(cause) => {
                let _ = reply.send(Err(cause));
                return;
            }
        };
        let policy = slot.overlap;
        let key =
            request.idempotency_key.clone().unwrap_or_else(|| format!("{}.{}", now.as_nanosecond(), self.open.len()));
        if let Some(same) = self.open_with_key(request.job, &key) {
            let _ = reply.send(Ok(same));
            return;
        }
        // Down, or it would be claimed before its instant.
        let planned = Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now);
        let id = RunId::of(request.job, planned, Slot::Manual(&key));
        let trigger = match request.rerun_of {
            Some(of) => Trigger::Rerun { by: request.by, key, of },
            None => Trigger::Manual { by: request.by, key },
        };
        let manual = ManualFacts { env: request.env, node, force: request.force };
        let Some(mut open) = self.new_open(id, request.job, planned, trigger, manual, now) else {
            let _ = reply.send(Err(ControlError::NoSuchJob(request.job)));
            return;
        };
        open.reply = Some(reply);
        let crowded =
            self.by_job.get(&request.job).map_or(0, |runs| runs.iter().filter(|run| self.has_not_ended(**run)).count());
        if let Go::Skip { reason } = overlap::judge(policy, crowded, 0)
            && !request.force
        {
            open.record.decision = Some(Decision { verdict: Verdict::Skipped, reason, at: now.as_millisecond() });
            self.insert(open);
            self.commit_now(id);
        } else {
            self.enter(open);
        }
    }

    /// A job that nodes fire by themselves is run by hand where it would fire.
    fn where_now(&self, slot: &JobSlot, asked: Option<NodeId>) -> Result<Option<NodeId>, ControlError> {
        match (slot.run_on, asked) {
            (RunOn::One, _) | (_, Some(_)) => Ok(asked),
            (RunOn::Each, None) => Err(ControlError::WhichNode),
            (RunOn::Home, None) => {
                let home = self.context.homes.get(slot.id).and_then(|(home, _)| home.node);
                home.map(Some).ok_or(ControlError::NoHome)
            }
        }
    }

    fn open_with_key(&self, job: JobId, key: &str) -> Option<Run> {
        let runs = self.by_job.get(&job)?.iter().filter_map(|id| self.open.get(id));
        runs.map(|open| &open.run).find(|run| run.trigger.key() == Some(key)).cloned()
    }

    pub(super) fn has_not_ended(&self, id: RunId) -> bool {
        self.open.get(&id).is_some_and(|open| {
            let is_over = matches!(open.stage, Stage::Deciding | Stage::Recording | Stage::LastLook | Stage::Closing);
            open.record.decision.is_none() && !is_over
        })
    }

    pub(super) fn kill_run(&mut self, id: RunId, by: &str) -> Result<KillAnswer, ControlError> {
        let open = self.open.get(&id).ok_or(ControlError::NoSuchRun(id))?;
        Ok(match open.stage {
            Stage::Claiming
            | Stage::Placing
            | Stage::Behind { .. }
            | Stage::Homeless(_)
            | Stage::Planning
            | Stage::Waiting => {
                let reason = format!("killed by {by} {}", open.before_what());
                self.decide(id, Verdict::Cancelled, reason);
                KillAnswer::Cancelled
            }
            Stage::Asking { .. } => {
                // Its node is gone; it will not be started again.
                self.send_kill(id, &format!("killed by {by}"));
                KillAnswer::Told
            }
            Stage::Dispatched { .. } | Stage::Running => {
                self.send_kill(id, &format!("killed by {by}"));
                KillAnswer::Told
            }
            Stage::Deciding | Stage::Recording | Stage::LastLook | Stage::Closing => KillAnswer::AlreadyEnded,
        })
    }

    pub(super) fn kill_job(&mut self, job: JobId, by: &str) -> Vec<RunId> {
        let runs = self.by_job.get(&job).cloned().unwrap_or_default();
        let told =
            |answer: &Result<KillAnswer, ControlError>| matches!(answer, Ok(KillAnswer::Told | KillAnswer::Cancelled));
        runs.into_iter().filter(|run| told(&self.kill_run(*run, by))).collect()
    }
}
