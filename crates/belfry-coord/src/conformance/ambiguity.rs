//! Cases about commits whose outcome is unknown, and about owners that were replaced: what [`Held`] makes of the promises.

use std::sync::Arc;

use belfry_core::ServerId;

use super::{Losing, Shared, Verdict, ensure, keys, put, text, value};
use crate::faulty::{Fault, Faulty};
use crate::{Commit, Guard, Held, HeldError, Resolved, Seat, Taking, Vacancy};

const SHARD: &str = "shards/03";

fn server(n: u128) -> ServerId {
    ServerId::from_u128(n)
}

async fn taken(coordinator: &Shared, me: ServerId, by: Vacancy) -> Result<Held<u64>, String> {
    let seat = Seat::look(&**coordinator, SHARD).await.map_err(text)?;
    match seat.take(coordinator.clone(), me, by, 0).await.map_err(text)? {
        Taking::Taken(held) => Ok(held),
        Taking::Refused { key } => Err(format!("taking was refused by `{key}`")),
    }
}

async fn held_over_faults(coordinator: &Shared) -> Result<(Arc<Faulty>, Held<u64>), String> {
    let faulty = Arc::new(Faulty::new(coordinator.clone()));
    let through: Shared = faulty.clone();
    let held = taken(&through, server(1), Vacancy::NeverHeld).await?;
    Ok((faulty, held))
}

/// The commit must fail with an unknown outcome, and nothing more may be written before it is settled.
async fn commit_in_doubt(held: &mut Held<u64>, cursor: u64, claim: &str) -> Verdict {
    let lost = held.commit(cursor, vec![], vec![put(claim, claim.to_owned())]).await;
    let unknown = matches!(&lost, Err(HeldError::Commit { cause, .. }) if cause.outcome_unknown());
    ensure!(unknown, "{lost:?} instead of an unknown outcome");
    let next = held.commit(cursor, vec![], vec![put("too/early", "")]).await;
    ensure!(matches!(next, Err(HeldError::Unresolved(_))), "{next:?} while an outcome is unknown");
    Ok(())
}

/// However often the coordinator cannot be asked meanwhile.
async fn settled(held: &mut Held<u64>) -> Result<Result<Resolved, HeldError>, String> {
    for _ in 0..100 {
        let resolved = held.resolve().await;
        if !matches!(resolved, Err(HeldError::Commit { .. })) {
            return Ok(resolved);
        }
    }
    Err("a commit in doubt is never settled".into())
}

pub(super) async fn a_lost_answer_is_found_by_its_nonce(coordinator: Shared) -> Verdict {
    let (faulty, mut held) = held_over_faults(&coordinator).await?;
    faulty.plan([Fault::LoseAnswer]);
    commit_in_doubt(&mut held, 7, "open/03/a").await?;
    let before = faulty.commits();
    let resolved = held.resolve().await.map_err(text)?;
    let entry = coordinator.get("open/03/a").await.map_err(text)?.ok_or("the claim was not applied")?;
    ensure!(resolved == Resolved::Applied(entry.version), "{resolved:?}, applied at {}", entry.version);
    ensure!(faulty.commits() == before, "it wrote instead of looking");
    ensure!(*held.extra() == 7, "cursor {} after the claim", held.extra());
    held.commit(8, vec![], vec![put("open/03/b", "")]).await.map_err(text).map(drop)
}

pub(super) async fn a_lost_request_is_settled_as_not_applied(coordinator: Shared) -> Verdict {
    let (faulty, mut held) = held_over_faults(&coordinator).await?;
    // The barrier's own answer is lost as well, once applied and once not.
    faulty.plan([Fault::LoseRequest, Fault::LoseRequest, Fault::LoseAnswer]);
    commit_in_doubt(&mut held, 7, "open/03/a").await?;
    ensure!(held.resolve().await.is_err() && held.is_unresolved(), "settled without an answer");
    ensure!(held.resolve().await.is_err() && held.is_unresolved(), "settled without an answer");
    let resolved = held.resolve().await.map_err(text)?;
    ensure!(resolved == Resolved::NotApplied && *held.extra() == 0, "{resolved:?}, cursor {}", held.extra());
    held.commit(7, vec![], vec![put("open/03/a", "")]).await.map_err(text)?;
    ensure!(value(&coordinator, "open/03/a").await?.is_some(), "the second try is not there");
    Ok(())
}

/// Without the seat's key in every commit, the ghost's guard would still hold and the claim would come back.
pub(super) async fn ghost_never_applies_after_a_later_commit(coordinator: Shared) -> Verdict {
    let (faulty, mut held) = held_over_faults(&coordinator).await?;
    faulty.plan([Fault::Ghost]);
    commit_in_doubt(&mut held, 7, "open/03/ghost").await?;
    let resolved = held.resolve().await.map_err(text)?;
    ensure!(resolved == Resolved::NotApplied, "{resolved:?} while the commit is on its way");
    let late = faulty.let_ghosts_through().await.map_err(text)?;
    ensure!(late == [Commit::Conflict { key: SHARD.into() }], "the ghost after the barrier: {late:?}");

    // Arrives before the barrier: then it is the commit, and the barrier is what is refused.
    faulty.plan([Fault::Ghost]);
    commit_in_doubt(&mut held, 8, "open/03/late").await?;
    faulty.read_old().await.map_err(text)?;
    let late = faulty.let_ghosts_through().await.map_err(text)?;
    ensure!(matches!(late[..], [Commit::Applied(_)]), "the ghost before the barrier: {late:?}");
    let stale = held.resolve().await;
    ensure!(stale.is_err() && held.is_unresolved(), "settled by an old read: {stale:?}");
    faulty.read_fresh();
    let resolved = held.resolve().await.map_err(text)?;
    ensure!(matches!(resolved, Resolved::Applied(_)), "{resolved:?} after the ghost arrived");
    ensure!(keys(&coordinator, "open/").await? == ["open/03/late"], "claims of ghosts");
    held.commit(9, vec![], vec![]).await.map_err(text).map(drop)
}

pub(super) async fn a_deposed_owner_is_refused(coordinator: Shared) -> Verdict {
    let mut old = taken(&coordinator, server(1), Vacancy::NeverHeld).await?;
    old.commit(5, vec![], vec![put("open/03/a", "")]).await.map_err(text)?;
    let mut new = taken(&coordinator, server(2), Vacancy::SoleUser).await?;
    ensure!(new.term() > old.term() && *new.extra() == 5, "term {}, cursor {}", new.term(), new.extra());
    let late = old.commit(6, vec![], vec![put("open/03/b", "")]).await;
    ensure!(matches!(late, Err(HeldError::Deposed(_))), "the deposed owner's commit: {late:?}");
    let release = old.release().await;
    ensure!(matches!(release, Err(HeldError::Deposed(_))), "the deposed owner's release: {release:?}");
    let guarded = new.commit(6, vec![Guard::Absent("open/03/a".into())], vec![put("open/03/a", "")]).await;
    ensure!(matches!(&guarded, Err(HeldError::Refused(key)) if key == "open/03/a"), "own guard: {guarded:?}");
    new.commit(6, vec![], vec![put("open/03/c", "")]).await.map_err(text)?;
    ensure!(keys(&coordinator, "open/").await? == ["open/03/a", "open/03/c"], "a deposed owner wrote");
    Ok(())
}

pub(super) async fn claims_under_seeded_faults_happen_exactly_once(coordinator: Shared) -> Verdict {
    let faulty: Shared = Arc::new(Faulty::seeded(coordinator.clone(), 8841));
    claims_happen_once(&coordinator, &faulty, 60, |_| {}).await
}

/// The same as the case with a planned fault, where it is a network that loses the answer.
pub(super) async fn an_answer_that_the_network_loses_is_found_by_its_nonce(
    coordinator: Shared,
    lose: &Losing<'_>,
) -> Verdict {
    let mut held = taken(&coordinator, server(1), Vacancy::NeverHeld).await?;
    lose("open/03/unanswered");
    commit_in_doubt(&mut held, 7, "open/03/unanswered").await?;
    let resolved = settled(&mut held).await?;
    ensure!(
        matches!(resolved, Ok(Resolved::Applied(_))) && *held.extra() == 7,
        "{resolved:?}, cursor {}",
        held.extra()
    );
    ensure!(
        keys(&coordinator, "open/").await? == ["open/03/unanswered"],
        "another claim than the one whose answer was lost"
    );
    held.commit(8, vec![], vec![put("open/03/b", "")]).await.map_err(text).map(drop)
}

pub(super) async fn claims_whose_answers_the_network_loses_happen_exactly_once(
    coordinator: Shared,
    lose: &Losing<'_>,
) -> Verdict {
    let mut commits = 0;
    let every_third = |claim: &str| {
        commits += 1;
        if commits % 3 == 0 {
            lose(claim);
        }
    };
    claims_happen_once(&coordinator, &coordinator, 24, every_third).await
}

/// Two owners take turns and claim numbers one after another while many of their commits meet faults: the cursor in the seat
/// and the claims must agree at the end, no number claimed twice or left out. `before_commit` is told what is about to be claimed.
async fn claims_happen_once(
    coordinator: &Shared,
    faulty: &Shared,
    claims: u64,
    mut before_commit: impl FnMut(&str),
) -> Verdict {
    let mut turn = 0;
    loop {
        turn += 1;
        ensure!(turn < 2000, "no progress");
        let by = if turn == 1 { Vacancy::NeverHeld } else { Vacancy::SoleUser };
        let Ok(mut held) = taken(faulty, server(turn % 2), by).await else { continue };
        for _ in 0..5 {
            let next = *held.extra() + 1;
            if next > claims {
                break;
            }
            let key = format!("claim/{next:04}");
            before_commit(&key);
            // Absent on purpose: a claim made twice shows itself as a refusal.
            match held.commit(next, vec![Guard::Absent(key.clone())], vec![put(&key, key.clone())]).await {
                Ok(_) => {}
                Err(HeldError::Refused(key)) => return Err(format!("`{key}` was claimed twice")),
                Err(HeldError::Deposed(_)) => break,
                Err(HeldError::Commit { .. } | HeldError::Unresolved(_)) => {
                    // Deposed meanwhile: the next commit says so.
                    let _deposed = settled(&mut held).await?;
                }
            }
        }
        let Ok(seat) = Seat::<u64>::look(&**coordinator, SHARD).await else { continue };
        if seat.held.is_some_and(|(_, record)| record.extra == claims) {
            break;
        }
    }
    let claimed = keys(coordinator, "claim/").await?;
    let wanted: Vec<_> = (1..=claims).map(|n| format!("claim/{n:04}")).collect();
    ensure!(claimed == wanted, "{} of {claims} claims", claimed.len());
    Ok(())
}
