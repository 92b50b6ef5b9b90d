//! What people wonder about: how a job stands at an instant, as its owner sees it. It changes nothing.

use belfry_core::cursor::Cursor;
use belfry_core::due;
use belfry_core::id::Slot;
use belfry_core::job::RunOn;
use belfry_core::place::{Asked, why_not_selected};
use belfry_core::{JobId, NodeId, RunId, Timestamp};

use super::{Shard, Stage};
use crate::error::ControlError;
use crate::view::{FiredBy, Outlook};

/// People want to know of each node; beyond so many a reason, counts must do.
const NODES_NAMED_MAX: usize = 50;

impl Shard {
    pub(super) fn explain(&self, job: JobId, at: Timestamp) -> Result<Option<Outlook>, ControlError> {
        if !self.loaded {
            return Err(ControlError::NotOwned(self.id));
        }
        let Some(slot) = self.jobs.get(job) else { return Ok(None) };
        let Ok(document) = slot.document() else { return Ok(None) };
        let now = self.context.now();
        let passed = Cursor { at, job } <= self.cursor;
        let missed =
            (!passed && at <= now && slot.fires_at(at)).then(|| due::judge(&slot.schedule, &slot.misfire, at, now));
        let stages = self.by_job.get(&job).into_iter().flatten().filter_map(|id| self.open.get(id));
        let (mut going, mut waiting) = (0, 0);
        for open in stages {
            match open.stage {
                Stage::Claiming if open.record.decision.is_some() => {}
                Stage::Behind { .. } => waiting += 1,
                Stage::Claiming
                | Stage::Homeless(_)
                | Stage::Placing
                | Stage::Dispatched { .. }
                | Stage::Running
                | Stage::Asking { .. }
                | Stage::Planning
                | Stage::Waiting => going += 1,
                Stage::Deciding | Stage::Recording | Stage::LastLook | Stage::Closing => {}
            }
        }
        let (node, decision) = self.context.nodes.would_place(&Asked {
            job,
            run: RunId::of(job, at, Slot::Only),
            planned: at,
            select: &document.select,
            needs: slot.needs(),
            rule: document.placement,
            wanted: None,
            refused_by: &[],
            last: self.last_nodes.get(&job).copied(),
            named_max: NODES_NAMED_MAX,
            takes_slot: slot.service.is_none(),
        });
        let disabled = self.context.nodes.with_disabled(job);
        let name_of = |node: &NodeId| self.context.nodes.name(*node).unwrap_or_else(|| node.to_string());
        let disabled_on = match slot.run_on {
            RunOn::One => Vec::new(),
            RunOn::Each | RunOn::Home => disabled.iter().take(NODES_NAMED_MAX).map(name_of).collect(),
        };
        let fired_by = match slot.run_on {
            RunOn::One => FiredBy::Owner,
            RunOn::Each => {
                let fit = self.context.nodes.candidates().into_iter();
                let fit = fit.filter(|node| why_not_selected(&document.select, node).is_none());
                let fit = fit.filter(|node| !disabled.contains(&node.id));
                FiredBy::Each(fit.map(|node| node.name).take(NODES_NAMED_MAX).collect())
            }
            RunOn::Home => {
                let home = self.context.homes.get(job).and_then(|(home, _)| home.node);
                FiredBy::Home(home.as_ref().map(name_of))
            }
        };
        Ok(Some(Outlook { passed, missed, going, waiting, node, decision, fired_by, disabled_on }))
    }
}
