//! Changed jobs. A claimed fire that has not come to its instant is judged by the definition as it is then: it goes on amended,
//! or ends as cancelled with the reason.

use std::cmp::Reverse;

use belfry_core::cursor::Cursor;
use belfry_core::run::{Event, Trigger, Verdict};
use belfry_core::{Job, JobId};
use belfry_store::JobChange;

use super::{Shard, Stage};

impl Shard {
    pub(super) fn edit(&mut self, changes: Vec<JobChange>) {
        for change in changes {
            match change {
                JobChange::Upsert(job) => {
                    if self.jobs.get(job.id).is_some_and(|slot| slot.revision >= job.revision) {
                        continue; // seen already
                    }
                    let due = self.jobs.due_after_end(job.id);
                    let counts_as_before =
                        self.jobs.get(job.id).is_some_and(|slot| slot.counts_from() == job.counts_from);
                    if let Err(cause) = self.jobs.upsert(&job, self.counted_from(&job)) {
                        tracing::error!("{cause}");
                        self.jobs.remove(job.id);
                    }
                    let goes =
                        self.by_job.get(&job.id).is_some_and(|runs| runs.iter().any(|run| self.has_not_ended(*run)));
                    if counts_as_before {
                        self.jobs.due_after_end_as_before(job.id, due);
                    } else if !goes {
                        self.jobs.count_after_from(job.id, None);
                    }
                    let was_outdated = self.outdated.remove(&job.id);
                    self.judge_claimed_again(job.id);
                    if was_outdated {
                        self.go_on_with(job.id);
                        self.hear_early();
                    }
                    self.local.changed();
                }
                JobChange::Removed(id) => {
                    self.local.changed();
                    self.jobs.remove(id);
                    self.last_nodes.remove(&id);
                    self.services.remove(&id);
                    self.forget_state(id);
                    let was_outdated = self.outdated.remove(&id);
                    self.judge_claimed_again(id);
                    if was_outdated {
                        self.go_on_with(id);
                        self.hear_early();
                    }
                }
            }
        }
        self.keep_services();
    }

    /// A changed schedule counts from its change, also where the cursor has looked ahead. Nothing was claimed of a job that is new or
    /// was paused, so its change counts from when it was made, not from when it was heard of.
    fn counted_from(&self, job: &Job) -> Cursor {
        let now = self.context.now().min(self.cursor.at);
        let fired_before = self.jobs.get(job.id).is_some_and(|slot| slot.enabled);
        let counted = Cursor::starting(if fired_before { now } else { now.min(job.counts_from) });
        // What was new to the snapshot may have been fired by a former owner, up to its cursor.
        self.unheard_from.map_or(counted, |taken| counted.max(taken))
    }

    /// The store has told all that changed since the snapshot that the jobs were loaded from.
    pub(super) fn heard_all(&mut self) {
        for job in std::mem::take(&mut self.outdated) {
            self.judge_claimed_again(job);
            self.go_on_with(job);
        }
        self.hear_early();
        self.keep_services();
        if let Some(taken) = self.unheard_from.take() {
            self.look_behind(taken);
        }
        self.local.knows_all();
    }

    /// No jobs were read since the shard was taken, or the snapshot lacks this one: whether it was removed, or made since, the store will
    /// tell. Nothing follows for its runs until then.
    pub(super) fn is_unknown_yet(&self, job: JobId) -> bool {
        !self.loaded || (self.outdated.contains(&job) && self.jobs.get(job).is_none())
    }

    /// Ends that came before the job was known whose rule they are judged by.
    pub(super) fn hear_early(&mut self) {
        for ((run, _), (from, ended)) in std::mem::take(&mut self.early) {
            self.happened(run, from, Event::Ended(ended));
        }
    }

    /// What could not be done while the job was not known as its runs have it.
    fn go_on_with(&mut self, job: JobId) {
        for id in self.by_job.get(&job).cloned().unwrap_or_default() {
            match self.open.get(&id).map(|open| (&open.stage, open.start_at)) {
                Some((Stage::Behind { judged: false }, start_at)) => self.to_judge.push(Reverse((start_at, id))),
                Some((Stage::Asking { why }, _)) => {
                    let why = why.clone();
                    self.lost(vec![(id, why)]);
                }
                // It tells the agent who owns the run now.
                Some((Stage::Dispatched { .. } | Stage::Running, _)) => {
                    self.send_order(id);
                }
                _ => {}
            }
        }
        self.try_homeless();
    }

    pub(super) fn judge_claimed_again(&mut self, job: JobId) {
        if self.outdated.contains(&job) {
            return;
        }
        let now = self.context.now();
        for id in self.by_job.get(&job).cloned().unwrap_or_default() {
            let Some(open) = self.open.get(&id).filter(|_| self.has_not_ended(id)) else { continue };
            // Of what is not known to have stopped at its node, nothing is decided here.
            let may_go = matches!(open.stage, Stage::Running | Stage::Asking { .. });
            let dispatched = matches!(open.stage, Stage::Dispatched { .. });
            if open.record.next.is_some() && !may_go && !dispatched {
                self.judge_plan_again(id);
                continue;
            }
            let why_not = match self.jobs.get(job) {
                None => Some("its job was removed before it started"),
                // What had its instant was due, and manual runs have no schedule to be judged by.
                Some(_) if open.start_at <= now || open.record.trigger != Trigger::Schedule => None,
                Some(slot) if !slot.enabled => Some("its job was paused before its instant"),
                Some(slot) if slot.fires_by_clock() && !slot.fires_at(open.run.planned) => {
                    Some("its job's schedule was changed before its instant")
                }
                Some(_) => None,
            };
            match why_not {
                Some(why) if dispatched => {
                    if let Some(open) = self.open.get_mut(&id) {
                        open.recalled = Some(why);
                    }
                    self.send_order(id);
                }
                Some(why) if !may_go => self.decide(id, Verdict::Cancelled, why.to_owned()),
                Some(_) => {}
                // A recall from before its instant stands after it, whatever the job is by then.
                None if dispatched && open.start_at > now => {
                    if let Some(open) = self.open.get_mut(&id) {
                        open.recalled = None;
                    }
                    self.send_order(id);
                }
                None => {}
            }
        }
    }
}
