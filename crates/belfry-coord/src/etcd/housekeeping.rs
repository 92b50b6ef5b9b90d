//! etcd keeps every old revision until somebody compacts, and refuses writes when its quota is used up.

use std::sync::PoisonError;
use std::time::Duration;

use belfry_core::units::Size;
use etcd_client::{CompactionOptions, GetOptions, StatusResponse};
use tokio::time::Instant;

use super::EtcdCoordinator;
use super::failure::Failure;
use super::members::kv;
use crate::CoordError;

/// What etcd takes when it is not told otherwise.
const QUOTA_BYTES_DEFAULT: u64 = 2 * 1024 * 1024 * 1024;

/// How full the fullest member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Of entries that are kept.
    pub used_bytes: u64,
    /// Of the file, which is what the quota is compared with. Defragmenting brings it down to what is used.
    pub file_bytes: u64,
    /// Versions before 3.6 do not tell.
    pub quota_bytes: Option<u64>,
    /// It has refused writes, and goes on to until the alarm is disarmed.
    pub alarm: bool,
}

impl Quota {
    /// What it tells, else what the caller knows of its settings, else etcd's default.
    pub fn limit_bytes(&self, configured: Option<u64>) -> u64 {
        self.quota_bytes.or(configured).unwrap_or(QUOTA_BYTES_DEFAULT)
    }

    /// From half of the quota on.
    pub(super) fn warning(&self, configured: Option<u64>) -> Option<String> {
        let limit = self.limit_bytes(configured);
        let (file, used) = (Size::from_bytes(self.file_bytes), Size::from_bytes(self.used_bytes));
        let what = match () {
            () if self.alarm => {
                "refuses writes: its quota was used up; compact and defragment it, or raise the quota, then `etcdctl alarm disarm`"
            }
            () if self.file_bytes <= limit / 2 => return None,
            () if self.used_bytes < self.file_bytes / 2 => {
                "is past half of its quota, and mostly holes: run `etcdctl defrag` on each member"
            }
            () => "is past half of its quota: see what else writes to it, or raise the quota",
        };
        Some(format!("etcd {what} ({file} on disk, {used} in use, quota {})", Size::from_bytes(limit)))
    }

    /// Most of the file is holes, and the file is past half of the quota.
    fn is_fragmented(&self, configured: Option<u64>) -> bool {
        self.file_bytes > self.limit_bytes(configured) / 2 && self.used_bytes < self.file_bytes / 2
    }
}

/// The last compaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tidied {
    at: Instant,
    /// Where the keyspace stood then.
    revision: i64,
    /// What was in use right after it.
    used_bytes: u64,
}

/// When so much was written since the last compaction, the next one does not wait for its time: a small quota is soon full.
const GROWTH_BYTES_MAX: u64 = 4 * 1024 * 1024;
const COMPACT_EVERY: Duration = Duration::from_secs(300);

impl EtcdCoordinator {
    /// Compacts when it is time to: up to where the keyspace stood at the last time, so that lists of several pages still find their
    /// revision. When much was written, up to now: lists begin anew, which they seldom have to, and a small quota is not used up.
    pub(super) async fn keep_small(&self) -> Result<(), CoordError> {
        let last = *self.tidied.lock().unwrap_or_else(PoisonError::into_inner);
        let used_bytes = self.quota().await?.used_bytes;
        match last {
            Some(last) if used_bytes > last.used_bytes.saturating_add(GROWTH_BYTES_MAX) => self.compact(None).await,
            Some(last) if last.at.elapsed() < COMPACT_EVERY => Ok(()),
            Some(last) => self.compact(Some(last.revision)).await,
            None => self.compact(None).await,
        }
    }

    /// Up to now when no revision is named.
    async fn compact(&self, revision: Option<i64>) -> Result<(), CoordError> {
        let looked = self.members.ask(|client| {
            let (mut kv, key) = (kv(client), self.touched.clone());
            async move { kv.get(key, Some(GetOptions::new().with_count_only())).await }
        });
        let now = self.members.saw(looked.await.map_err(Failure::of_read)?.header()).unwrap_or_default();
        let revision = revision.unwrap_or(now);
        if revision > 0 {
            let compacted = self.members.ask(|client| {
                let mut kv = kv(client);
                // Answered when the old revisions are gone: what is in use is measured right after.
                async move { kv.compact(revision, Some(CompactionOptions::new().with_physical())).await }
            });
            match compacted.await {
                // Somebody else has compacted that far already.
                Ok(_) | Err(Failure::NoSuchRevision(_)) => {}
                Err(failure) => return Err(failure.of_read()),
            }
        }
        let quota = self.quota().await?;
        let tidied = Tidied { at: Instant::now(), revision: now, used_bytes: quota.used_bytes };
        *self.tidied.lock().unwrap_or_else(PoisonError::into_inner) = Some(tidied);
        if quota.is_fragmented(self.configured_quota) {
            tracing::warn!(
                file_bytes = quota.file_bytes,
                used_bytes = quota.used_bytes,
                "etcd's database is mostly holes and past half of its quota; run `etcdctl defrag` on each member"
            );
        }
        Ok(())
    }

    /// As one member tells it, unless it is configured: they have the same.
    pub(super) async fn limit_bytes(&self) -> Result<u64, CoordError> {
        if let Some(bytes) = self.configured_quota {
            return Ok(bytes);
        }
        let asked = self.members.ask(|client| {
            let mut maintenance = client.maintenance_client();
            async move { maintenance.status().await }
        });
        Ok(told_by(&asked.await.map_err(Failure::of_read)?).limit_bytes(None))
    }

    /// Of the members that answer; at least one must.
    pub async fn quota(&self) -> Result<Quota, CoordError> {
        let answers = self.members.ask_each(|client| {
            let mut maintenance = client.maintenance_client();
            async move { maintenance.status().await }
        });
        let mut fullest: Option<Quota> = None;
        let mut failed = None;
        for answer in answers.await {
            match answer {
                Ok(status) => {
                    let told = told_by(&status);
                    let fuller = fullest.is_none_or(|fullest| told.file_bytes > fullest.file_bytes);
                    let alarm = told.alarm || fullest.is_some_and(|fullest| fullest.alarm);
                    let most = if fuller { told } else { fullest.unwrap_or(told) };
                    fullest = Some(Quota { alarm, ..most });
                }
                Err(failure) => failed = Some(failure),
            }
        }
        let nobody = || failed.map_or_else(|| CoordError::Away("no member".into()), Failure::of_read);
        fullest.ok_or_else(nobody)
    }
}

fn told_by(status: &StatusResponse) -> Quota {
    let bytes = |told: i64| u64::try_from(told).unwrap_or_default();
    Quota {
        used_bytes: bytes(status.raft_used_db_size()),
        file_bytes: bytes(status.db_size()),
        quota_bytes: Some(bytes(status.db_size_quota())).filter(|bytes| *bytes > 0),
        alarm: status.errors().iter().any(|error| error.contains("NOSPACE")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_quota_is_worth_a_word() {
        let mib = |count: u64| count << 20;
        let full = |file, used, alarm| Quota { used_bytes: mib(used), file_bytes: mib(file), quota_bytes: None, alarm };
        let said = |quota: Quota, configured| quota.warning(configured).unwrap_or_default();
        assert_eq!(said(full(31, 31, false), Some(mib(64))), "");
        assert!(said(full(33, 33, false), Some(mib(64))).contains("past half of its quota: see what else"));
        assert!(said(full(33, 3, false), Some(mib(64))).contains("etcdctl defrag"));
        assert!(full(33, 3, false).is_fragmented(Some(mib(64))) && !full(33, 3, false).is_fragmented(None));
        assert!(said(full(1, 1, true), None).contains("alarm disarm"));
        assert_eq!(said(full(1000, 1000, false), None), "", "of the 2 GiB that etcd has when it is not told");
    }
}
