//! Cases about `watch`: a hint comes after a commit, and waits for whoever is busy.

use std::time::Duration;

use super::{Shared, Verdict, apply, delete, put, text};
use crate::Hints;

/// Far above what any backend needs; only a missing hint meets it.
const HINT_WITHIN: Duration = Duration::from_secs(10);

async fn hinted(hints: &mut Hints, what: &str) -> Verdict {
    tokio::time::timeout(HINT_WITHIN, hints.changed()).await.map_err(|_| format!("no hint after {what}"))
}

pub(super) async fn a_commit_gives_a_hint(coordinator: Shared) -> Verdict {
    let mut hints = coordinator.watch("nodes/").await.map_err(text)?;
    let (hint, committed) =
        tokio::join!(hinted(&mut hints, "a put"), apply(&coordinator, vec![], vec![put("nodes/1", "1")]));
    committed.and(hint.map(|()| belfry_core::Version(0)))?;
    apply(&coordinator, vec![], vec![delete("nodes/1")]).await?;
    hinted(&mut hints, "a delete").await
}

pub(super) async fn a_hint_is_kept_until_it_is_asked_for(coordinator: Shared) -> Verdict {
    let mut hints = coordinator.watch("").await.map_err(text)?;
    for n in 0..20 {
        apply(&coordinator, vec![], vec![put("jobs", n.to_string())]).await?;
    }
    hinted(&mut hints, "twenty commits while nobody asked").await
}
