//! When every job fires and how long it usually takes, in memory for those who look ahead. Brought up to date when somebody asks: by the
//! changes since the last time, so that ten thousand jobs are parsed once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use belfry_core::forecast::Planned;
use belfry_core::schedule::Schedule;
use belfry_core::{Job, JobId, Timestamp};
use belfry_store::{JobChange, RawJob, Store, StoreError};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// What is usual changes slowly.
const USUAL_FOR: Duration = Duration::from_secs(60);

/// A job that fires by the clock and is not paused.
#[derive(Debug)]
pub(crate) struct Plan {
    pub id: JobId,
    pub namespace: String,
    pub name: String,
    schedule: Schedule,
    counts_from: Timestamp,
}

#[derive(Default)]
pub(crate) struct Plans(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// Of the jobs' changes; None before the first look.
    seq: Option<u64>,
    plans: HashMap<JobId, Arc<Plan>>,
    usual_ms: HashMap<JobId, u64>,
    usual_at: Option<Instant>,
}

impl Plans {
    /// Those of these namespaces (None: all).
    pub async fn of(
        &self,
        store: &Store,
        namespaces: Option<&[String]>,
    ) -> Result<Vec<Planned<Arc<Plan>>>, StoreError> {
        let mut known = self.0.lock().await;
        known.refresh(store).await?;
        let seen = known.plans.values().filter(|plan| namespaces.is_none_or(|seen| seen.contains(&plan.namespace)));
        let planned = |plan: &Arc<Plan>| Planned {
            job: plan.clone(),
            schedule: plan.schedule.clone(),
            counts_from: plan.counts_from,
            usual_ms: known.usual_ms.get(&plan.id).copied(),
        };
        Ok(seen.map(planned).collect())
    }
}

impl Known {
    async fn refresh(&mut self, store: &Store) -> Result<(), StoreError> {
        if self.seq.is_none() {
            let mut raw: Vec<RawJob> = Vec::new();
            let seq = store.load_raw_jobs(|page| raw.extend(page)).await?;
            // What only a newer Belfry can read is not planned here.
            let parse = move || raw.iter().filter_map(|job| Plan::of(job.parse().ok()?)).collect::<Vec<Plan>>();
            let plans = tokio::task::spawn_blocking(parse).await.unwrap_or_default();
            self.plans = plans.into_iter().map(|plan| (plan.id, Arc::new(plan))).collect();
            self.seq = Some(seq);
        }
        while let Some(seq) = self.seq {
            let (changes, next) = store.job_changes_since(seq).await?;
            if changes.is_empty() {
                break;
            }
            for change in changes {
                self.take(change);
            }
            self.seq = Some(next);
        }
        if self.usual_at.is_none_or(|at| at.elapsed() >= USUAL_FOR) {
            let (store, runtime) = (store.clone(), tokio::runtime::Handle::current());
            // There are up to a hundred durations of each job to be sorted.
            let all = tokio::task::spawn_blocking(move || runtime.block_on(store.all_usual())).await;
            self.usual_ms =
                all.unwrap_or_else(|_| Ok(Vec::new()))?.into_iter().map(|(job, usual)| (job, usual.p50_ms)).collect();
            self.usual_at = Some(Instant::now());
        }
        Ok(())
    }

    fn take(&mut self, change: JobChange) {
        let (id, plan) = match change {
            JobChange::Upsert(job) => (job.id, Plan::of(*job)),
            JobChange::Removed(id) => (id, None),
        };
        match plan {
            Some(plan) => drop(self.plans.insert(id, Arc::new(plan))),
            None => drop(self.plans.remove(&id)),
        }
    }
}

impl Plan {
    fn of(job: Job) -> Option<Self> {
        let schedule = job.schedule().ok().filter(|_| job.document.enabled)?;
        let Job { id, document, counts_from, .. } = job;
        Some(Self { id, namespace: document.namespace, name: document.name, schedule, counts_from })
    }
}
