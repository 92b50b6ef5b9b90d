//! Jobs that this host's own administrator has switched off here, by the local API, and what that API is told of jobs.

use std::collections::HashMap;

use belfry_core::JobId;
use belfry_core::job::RunOn;

use super::{Local, Record, instant};
use crate::clock::Moment;
use crate::local_api::JobView;

/// Whoever switches off more than this means something else.
const DISABLED_MAX: usize = 10_000;

/// Why a job cannot be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotDisabled {
    NotHere,
    TooMany,
}

impl Local {
    /// None: it is so already.
    pub(crate) fn disable(&mut self, id: JobId) -> Result<Option<Record>, NotDisabled> {
        if !self.jobs.contains_key(&id) {
            return Err(NotDisabled::NotHere);
        }
        if self.disabled.len() >= DISABLED_MAX {
            return Err(NotDisabled::TooMany);
        }
        let is_new = self.disabled.insert(id);
        self.hold_if_disabled(id);
        Ok(is_new.then_some(Record::Disabled { job: id }))
    }

    /// What passed meanwhile was not due. None: it was not disabled.
    pub(crate) fn enable(&mut self, id: JobId, now: Moment) -> Option<Record> {
        if !self.disabled.remove(&id) {
            return None;
        }
        self.table.let_go(id, instant(now.wall_ms));
        if let Some(own) = self.jobs.get_mut(&id) {
            own.cursor_ms = own.cursor_ms.max(now.wall_ms);
        }
        Some(Record::Enabled { job: id, at_ms: now.wall_ms })
    }

    pub(super) fn hold_if_disabled(&mut self, id: JobId) {
        if self.disabled.contains(&id) {
            self.table.hold(id);
        }
    }

    /// With the names of those that are here.
    pub(crate) fn disabled(&self) -> impl Iterator<Item = (JobId, String)> + '_ {
        self.disabled.iter().map(|id| (*id, self.full_name(*id).unwrap_or_default()))
    }

    pub(crate) fn full_name(&self, id: JobId) -> Option<String> {
        self.jobs.get(&id).map(|own| format!("{}/{}", own.namespace, own.name))
    }

    /// Of these that are here; with `whole`, of all of the shard.
    pub(crate) fn names(&self, of: &[JobId], shard: u32, whole: bool) -> HashMap<JobId, String> {
        let of_shard = self.jobs.iter().filter(|(_, own)| whole && own.shard == shard).map(|(id, _)| *id);
        of.iter().copied().chain(of_shard).filter_map(|id| Some((id, self.full_name(id)?))).collect()
    }

    /// By its id, or by `namespace/name`.
    pub(crate) fn find(&self, wanted: &str) -> Option<JobId> {
        let by_id = wanted.parse().ok().filter(|id| self.jobs.contains_key(id));
        let is_called = |id: &&JobId| self.full_name(**id).as_deref() == Some(wanted);
        by_id.or_else(|| self.jobs.keys().find(is_called).copied())
    }

    pub(crate) fn view(&self, id: JobId) -> Option<JobView> {
        let (own, slot) = (self.jobs.get(&id)?, self.table.get(id)?);
        Some(JobView {
            id,
            namespace: own.namespace.clone(),
            name: own.name.clone(),
            revision: slot.revision,
            run_on: match slot.run_on {
                RunOn::Home => "home",
                RunOn::Each | RunOn::One => "each",
            },
            enabled: slot.enabled,
            disabled_here: self.disabled.contains(&id),
            next: slot.next(),
            definition: serde_json::from_slice(&slot.document).unwrap_or_default(),
        })
    }

    /// By name.
    pub(crate) fn views(&self) -> Vec<JobView> {
        let mut views: Vec<JobView> = self.jobs.keys().filter_map(|id| self.view(*id)).collect();
        views.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        views
    }
}
