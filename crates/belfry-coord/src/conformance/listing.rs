//! Cases about `list`: complete, sorted, and literal about its prefix.

use super::{Shared, Verdict, apply, ensure, keys, put, text};

pub(super) async fn list_is_complete_and_sorted(coordinator: Shared) -> Verdict {
    for chunk in (0..250).collect::<Vec<u32>>().chunks(50) {
        // Written out of order on purpose.
        let writes = chunk.iter().rev().map(|n| put(&format!("n/{:03}", n * 37 % 250), n.to_string())).collect();
        apply(&coordinator, vec![], writes).await?;
    }
    apply(&coordinator, vec![], vec![put("m", ""), put("n", ""), put("n0", ""), put("o/1", "")]).await?;
    let listed = keys(&coordinator, "n/").await?;
    let wanted: Vec<_> = (0..250).map(|n| format!("n/{n:03}")).collect();
    ensure!(listed == wanted, "{} keys under `n/`, sorted: {}", listed.len(), listed.is_sorted());
    let all = keys(&coordinator, "").await?;
    ensure!(all.len() == 254 && all.is_sorted(), "{} keys in all", all.len());
    ensure!(keys(&coordinator, "none/").await?.is_empty(), "keys under an unused prefix");
    Ok(())
}

pub(super) async fn a_prefix_is_no_pattern(coordinator: Shared) -> Verdict {
    let mut every = [
        "a",
        "a%",
        "a%b",
        "a_",
        "a_b",
        "axb",
        "A",
        "Ab",
        "a/",
        "a/b",
        "a/b/c",
        "a*",
        "a\\",
        "a'",
        "ä",
        "钟",
        "钟楼",
        "\u{10FFFF}",
        "z",
    ];
    every.sort_unstable();
    apply(&coordinator, vec![], every.iter().map(|key| put(key, "")).collect()).await?;
    for prefix in every.into_iter().chain(["", "a/b/", "楼", "b"]) {
        let wanted: Vec<_> = every.into_iter().filter(|key| key.starts_with(prefix)).collect();
        let listed = keys(&coordinator, prefix).await?;
        ensure!(listed == wanted, "under `{prefix}`: {listed:?} instead of {wanted:?}");
    }
    Ok(())
}

pub(super) async fn ten_thousand_keys(coordinator: Shared) -> Verdict {
    for hundred in 0..100 {
        let writes = (0..100).map(|n| put(&format!("open/03/{hundred:02}{n:02}"), vec![b'v'; 120])).collect();
        apply(&coordinator, vec![], writes).await?;
    }
    let entries = coordinator.list("open/03/").await.map_err(text)?;
    ensure!(entries.len() == 10_000, "{} of 10,000 keys", entries.len());
    ensure!(entries.is_sorted_by(|a, b| a.key < b.key), "not sorted, or one twice");
    Ok(())
}
