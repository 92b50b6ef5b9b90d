//! One suite for all backends: each promise of [`Coordinator`], and what is built on it, as a named case. Needs no test
//! framework, so that any crate can run it against its backend and print backend × case.

mod ambiguity;
mod commits;
mod listing;
mod watching;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use belfry_core::Version;
use bytes::Bytes;

use crate::{Commit, Coordinator, Guard, Write};

/// Only a case that hangs meets this.
const CASE_WITHIN: Duration = Duration::from_secs(60);

type Shared = Arc<dyn Coordinator>;
/// Err: what was expected and what was found.
type Verdict = Result<(), String>;
type Running<'a> = Pin<Box<dyn Future<Output = Verdict> + Send + 'a>>;
type Case = (&'static str, fn(Shared) -> Running<'static>);
/// Told what the next commit writes, as a key and as its value: the network between the coordinator and its server shall cut the connection
/// when that commit was applied, before its answer arrives.
pub type Losing<'a> = dyn Fn(&str) + Sync + 'a;
type CaseOfLoss = (&'static str, for<'a> fn(Shared, &'a Losing<'a>) -> Running<'a>);

pub struct CaseReport {
    pub case: &'static str,
    pub verdict: Verdict,
}

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.verdict {
            Ok(()) => write!(f, "ok      {}", self.case),
            Err(why) => write!(f, "FAILED  {}: {why}", self.case),
        }
    }
}

macro_rules! cases {
    ($($module:ident :: $case:ident),* $(,)?) => {
        &[$((stringify!($case), |coordinator| Box::pin($module::$case(coordinator)))),*]
    };
}

const CASES: &[Case] = cases![
    commits::put_get_and_delete,
    commits::guards_absent_and_at,
    commits::all_or_nothing,
    commits::delete_and_recreate_has_a_new_version,
    commits::deleting_an_absent_key_does_nothing,
    commits::versions_grow_in_commit_order,
    commits::increments_at_the_same_time_are_all_counted,
    commits::one_of_many_creators_wins,
    commits::hundred_writes_fit_and_one_more_is_refused,
    commits::values_of_64_kib_and_empty_ones,
    commits::malformed_commits_are_refused,
    listing::list_is_complete_and_sorted,
    listing::a_prefix_is_no_pattern,
    listing::ten_thousand_keys,
    watching::a_commit_gives_a_hint,
    watching::a_hint_is_kept_until_it_is_asked_for,
    ambiguity::a_lost_answer_is_found_by_its_nonce,
    ambiguity::a_lost_request_is_settled_as_not_applied,
    ambiguity::ghost_never_applies_after_a_later_commit,
    ambiguity::a_deposed_owner_is_refused,
    ambiguity::claims_under_seeded_faults_happen_exactly_once,
];

const CASES_OF_LOSS: &[CaseOfLoss] = &[
    ("an_answer_that_the_network_loses_is_found_by_its_nonce", |coordinator, lose| {
        Box::pin(ambiguity::an_answer_that_the_network_loses_is_found_by_its_nonce(coordinator, lose))
    }),
    ("claims_whose_answers_the_network_loses_happen_exactly_once", |coordinator, lose| {
        Box::pin(ambiguity::claims_whose_answers_the_network_loses_happen_exactly_once(coordinator, lose))
    }),
];

/// Runs every case on a coordinator of its own; `make` gives one with no keys in it.
pub async fn conformance<F, Made>(make: F) -> Vec<CaseReport>
where
    F: Fn() -> Made,
    Made: Future<Output = Shared>,
{
    let mut reports = vec![];
    for (case, run) in CASES {
        reports.push(report(case, run(make().await)).await);
    }
    reports
}

/// Every case, and those that need a network which loses answers when it is told.
pub async fn conformance_over_a_network<F, Made>(make: F, lose: &Losing<'_>) -> Vec<CaseReport>
where
    F: Fn() -> Made,
    Made: Future<Output = Shared>,
{
    let mut reports = conformance(&make).await;
    for (case, run) in CASES_OF_LOSS {
        reports.push(report(case, run(make().await, lose)).await);
    }
    reports
}

async fn report(case: &'static str, run: Running<'_>) -> CaseReport {
    let verdict = tokio::time::timeout(CASE_WITHIN, run).await;
    CaseReport { case, verdict: verdict.unwrap_or_else(|_| Err(format!("not done in {CASE_WITHIN:?}"))) }
}

macro_rules! ensure {
    ($holds:expr, $($why:tt)+) => {
        if !$holds {
            return Err(format!($($why)+));
        }
    };
}
use ensure;

fn put(key: &str, value: impl Into<Bytes>) -> Write {
    Write::Put(key.to_owned(), value.into())
}

fn delete(key: &str) -> Write {
    Write::Delete(key.to_owned())
}

fn absent(key: &str) -> Guard {
    Guard::Absent(key.to_owned())
}

fn at(key: &str, version: Version) -> Guard {
    Guard::At(key.to_owned(), version)
}

fn text(error: impl std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// A commit that must be applied.
async fn apply(coordinator: &Shared, guards: Vec<Guard>, writes: Vec<Write>) -> Result<Version, String> {
    match coordinator.commit(guards, writes).await.map_err(text)? {
        Commit::Applied(version) => Ok(version),
        Commit::Conflict { key } => Err(format!("conflict on `{key}` where there is none")),
    }
}

/// A commit that must be refused because of this key.
async fn refuse(coordinator: &Shared, guards: Vec<Guard>, writes: Vec<Write>, because_of: &str) -> Verdict {
    match coordinator.commit(guards, writes).await.map_err(text)? {
        Commit::Conflict { key } if key == because_of => Ok(()),
        other => Err(format!("{other:?} instead of a conflict on `{because_of}`")),
    }
}

async fn value(coordinator: &Shared, key: &str) -> Result<Option<Bytes>, String> {
    Ok(coordinator.get(key).await.map_err(text)?.map(|entry| entry.value))
}

async fn keys(coordinator: &Shared, prefix: &str) -> Result<Vec<String>, String> {
    Ok(coordinator.list(prefix).await.map_err(text)?.into_iter().map(|entry| entry.key).collect())
}
