//! Cases about `commit`: atomic, guarded, linearizable, bounded, with versions that only grow.

use belfry_core::Version;
use bytes::Bytes;
use futures_util::future::join_all;

use super::{Shared, Verdict, absent, apply, at, delete, ensure, keys, put, refuse, text, value};
use crate::{COMMIT_BYTES_MAX, Commit, CoordError, KEY_BYTES_MAX, WRITES_PER_COMMIT_MAX};

pub(super) async fn put_get_and_delete(coordinator: Shared) -> Verdict {
    ensure!(value(&coordinator, "a").await?.is_none(), "a key before it was put");
    let version = apply(&coordinator, vec![], vec![put("a", "1")]).await?;
    let entry = coordinator.get("a").await.map_err(text)?.ok_or("no `a` after its put")?;
    ensure!(entry.key == "a" && entry.value == "1" && entry.version == version, "{entry:?}, put at {version}");
    apply(&coordinator, vec![], vec![delete("a")]).await?;
    ensure!(value(&coordinator, "a").await?.is_none(), "`a` after its delete");
    Ok(())
}

pub(super) async fn guards_absent_and_at(coordinator: Shared) -> Verdict {
    let first = apply(&coordinator, vec![absent("a")], vec![put("a", "1")]).await?;
    refuse(&coordinator, vec![absent("a")], vec![put("a", "2")], "a").await?;
    let second = apply(&coordinator, vec![at("a", first)], vec![put("a", "2")]).await?;
    refuse(&coordinator, vec![at("a", first)], vec![put("a", "3")], "a").await?;
    refuse(&coordinator, vec![at("none", second)], vec![put("a", "3")], "none").await?;
    let other = apply(&coordinator, vec![at("a", second), absent("b")], vec![put("b", "1")]).await?;
    refuse(&coordinator, vec![at("b", other), at("a", other)], vec![put("a", "3")], "a").await?;
    ensure!(value(&coordinator, "a").await?.as_deref() == Some(b"2"), "a guard of another key moved `a`");
    Ok(())
}

pub(super) async fn all_or_nothing(coordinator: Shared) -> Verdict {
    let version = apply(&coordinator, vec![], vec![put("a", "1"), put("b", "1"), put("c", "1")]).await?;
    let guards = vec![at("a", version), at("b", version), absent("c")];
    refuse(&coordinator, guards, vec![put("a", "2"), delete("b"), put("d", "2")], "c").await?;
    let entries = coordinator.list("").await.map_err(text)?;
    let seen: Vec<_> = entries.iter().map(|entry| (entry.key.as_str(), &entry.value[..], entry.version)).collect();
    let before = [("a", &b"1"[..], version), ("b", b"1", version), ("c", b"1", version)];
    ensure!(seen == before, "a refused commit left {seen:?}");
    apply(&coordinator, vec![at("a", version)], vec![put("a", "2"), delete("b"), put("d", "2")]).await?;
    ensure!(keys(&coordinator, "").await? == ["a", "c", "d"], "an applied commit left something out");
    Ok(())
}

pub(super) async fn delete_and_recreate_has_a_new_version(coordinator: Shared) -> Verdict {
    let first = apply(&coordinator, vec![], vec![put("a", "1")]).await?;
    apply(&coordinator, vec![at("a", first)], vec![delete("a")]).await?;
    let again = apply(&coordinator, vec![absent("a")], vec![put("a", "1")]).await?;
    ensure!(again > first, "made again at {again}, first at {first}");
    refuse(&coordinator, vec![at("a", first)], vec![put("a", "2")], "a").await
}

pub(super) async fn deleting_an_absent_key_does_nothing(coordinator: Shared) -> Verdict {
    apply(&coordinator, vec![], vec![delete("none"), put("a", "1")]).await?;
    ensure!(keys(&coordinator, "").await? == ["a"], "keys after deleting an absent one");
    Ok(())
}

pub(super) async fn versions_grow_in_commit_order(coordinator: Shared) -> Verdict {
    let mut last = Version(0);
    for n in 0..50 {
        let key = format!("k{}", n % 7);
        let version = apply(&coordinator, vec![], vec![put(&key, n.to_string()), put("all", n.to_string())]).await?;
        ensure!(version > last, "commit {n} has {version} after {last}");
        for key in [key.as_str(), "all"] {
            let entry = coordinator.get(key).await.map_err(text)?.ok_or("a key is missing")?;
            ensure!(entry.version == version, "`{key}` at {} after a commit at {version}", entry.version);
        }
        last = version;
    }
    Ok(())
}

/// Lost updates would make the sum too small; a commit applied twice, too great.
pub(super) async fn increments_at_the_same_time_are_all_counted(coordinator: Shared) -> Verdict {
    const TASKS: u64 = 16;
    const EACH: u64 = 20;
    let start = apply(&coordinator, vec![], vec![put("sum", "0")]).await?;
    let add = |task: u64| {
        let coordinator = coordinator.clone();
        async move {
            let mut versions = vec![];
            while versions.len() < EACH as usize {
                let entry = coordinator.get("sum").await.map_err(text)?.ok_or("no sum")?;
                let sum: u64 = String::from_utf8_lossy(&entry.value).parse().map_err(text)?;
                let writes = vec![put("sum", (sum + 1).to_string()), put(&format!("by/{task}"), "")];
                match coordinator.commit(vec![at("sum", entry.version)], writes).await.map_err(text)? {
                    Commit::Applied(version) => versions.push(version),
                    Commit::Conflict { .. } => {}
                }
            }
            Ok::<_, String>(versions)
        }
    };
    let mut all = vec![start];
    for versions in join_all((0..TASKS).map(add)).await {
        let versions = versions?;
        ensure!(versions.is_sorted(), "one task's versions went back");
        all.extend(versions);
    }
    all.sort();
    all.dedup();
    ensure!(all.len() as u64 == TASKS * EACH + 1, "{} distinct versions", all.len());
    let sum = value(&coordinator, "sum").await?;
    ensure!(sum == Some(Bytes::from((TASKS * EACH).to_string())), "the sum is {sum:?}");
    Ok(())
}

pub(super) async fn one_of_many_creators_wins(coordinator: Shared) -> Verdict {
    let create = |n: usize| coordinator.commit(vec![absent("seat")], vec![put("seat", n.to_string())]);
    let outcomes = join_all((0..32).map(create)).await;
    let winners: Vec<_> = (0..32).filter(|n| matches!(outcomes[*n], Ok(Commit::Applied(_)))).collect();
    ensure!(winners.len() == 1, "{} winners", winners.len());
    let found = value(&coordinator, "seat").await?;
    ensure!(found == Some(Bytes::from(winners[0].to_string())), "{found:?} is not the winner {winners:?}");
    Ok(())
}

pub(super) async fn hundred_writes_fit_and_one_more_is_refused(coordinator: Shared) -> Verdict {
    let writes = |count: usize| (0..count).map(|n| put(&format!("w/{n:03}"), vec![b'x'; 300])).collect::<Vec<_>>();
    apply(&coordinator, vec![absent("w/000")], writes(WRITES_PER_COMMIT_MAX)).await?;
    let guards = coordinator.list("w/").await.map_err(text)?;
    let guards = guards.into_iter().map(|entry| at(&entry.key, entry.version)).collect();
    apply(&coordinator, guards, writes(WRITES_PER_COMMIT_MAX)).await?;
    match coordinator.commit(vec![], writes(WRITES_PER_COMMIT_MAX + 1)).await {
        Err(error @ CoordError::TooMany { .. }) => {
            ensure!(error.to_string().contains("101") && !error.is_transient(), "the number is not named: {error}");
        }
        other => return Err(format!("101 writes: {other:?}")),
    }
    let count = keys(&coordinator, "w/").await?.len();
    ensure!(count == WRITES_PER_COMMIT_MAX, "{count} keys");
    Ok(())
}

pub(super) async fn values_of_64_kib_and_empty_ones(coordinator: Shared) -> Verdict {
    let large: Bytes = (0..64 * 1024).map(|n: u32| (n * 7) as u8).collect::<Vec<_>>().into();
    apply(&coordinator, vec![], vec![put("large", large.clone()), put("empty", Bytes::new())]).await?;
    ensure!(value(&coordinator, "large").await? == Some(large), "64 KiB came back changed");
    ensure!(value(&coordinator, "empty").await? == Some(Bytes::new()), "an empty value came back changed");
    Ok(())
}

pub(super) async fn malformed_commits_are_refused(coordinator: Shared) -> Verdict {
    let too_large = (0..2).map(|n| put(&n.to_string(), vec![0; COMMIT_BYTES_MAX / 2])).collect();
    let long = "k".repeat(KEY_BYTES_MAX + 1);
    for (what, guards, writes) in [
        ("no writes", vec![absent("a")], vec![]),
        ("one key twice", vec![], vec![put("a", "1"), delete("a")]),
        ("an empty key", vec![], vec![put("", "1")]),
        ("a key that is too long", vec![], vec![put(&long, "1")]),
        ("a guard with a zero byte", vec![absent("a\0")], vec![put("a", "1")]),
        ("too many bytes", vec![], too_large),
        ("121 guards", (0..121).map(|n| absent(&n.to_string())).collect(), vec![put("a", "1")]),
    ] {
        let outcome = coordinator.commit(guards, writes).await;
        let refused = outcome.as_ref().is_err_and(|error| !error.is_transient() && !error.outcome_unknown());
        ensure!(refused, "{what}: {outcome:?}");
    }
    apply(&coordinator, vec![], vec![put(&"k".repeat(KEY_BYTES_MAX), "1")]).await?;
    Ok(())
}
