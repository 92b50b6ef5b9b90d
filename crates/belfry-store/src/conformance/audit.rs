//! Pages of the audit: whatever is asked for, each entry once and in one order.

use std::cmp::Reverse;

use super::sample::at;
use crate::{Actor, AuditEntry, AuditFilter, AuditPlace, Store};

/// Several servers wrote it, and one of them stepped back.
const SECONDS: [i64; 12] = [5, 3, 9, 9, 9, 1, 7, 3, 8, 2, 9, 4];

async fn fill(store: &Store) -> Vec<AuditEntry> {
    for (n, second) in SECONDS.into_iter().enumerate() {
        let actor = Actor::new(["ann", "bob"][n % 2]);
        let action = ["run.kill", "run.rerun", "run.start"][n % 3];
        store.record_deed(action, ["shop", "bank", "mill"][n / 2 % 3], "x", at(second), &actor).await.unwrap();
    }
    let all = store.list_audit(&AuditFilter { limit: 100, ..Default::default() }).await.unwrap().items;
    assert_eq!(all.len(), SECONDS.len());
    assert!(all.is_sorted_by_key(|entry| Reverse(entry.seq)), "{all:?}");
    all
}

async fn by_two(store: &Store, filter: AuditFilter) -> Vec<u64> {
    let mut filter = AuditFilter { limit: 2, ..filter };
    let mut seen = Vec::new();
    loop {
        let page = store.list_audit(&filter).await.unwrap();
        seen.extend(page.items.iter().map(|entry| entry.seq));
        match page.next {
            Some(next) => filter.cursor = Some(next),
            None => return seen,
        }
    }
}

pub async fn pages_visit_each_entry_once_whatever_its_clock_said(store: Store) {
    let all = fill(&store).await;
    let some = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    for namespaces in [None, some(&["shop"]), some(&["mill", "shop", "mill"]), some(&[])] {
        for actor in [None, Some("ann")] {
            for action in [None, Some("run.kill")] {
                for (from, to) in
                    [(None, None), (Some(3), None), (None, Some(9)), (Some(2), Some(9)), (Some(9), Some(10))]
                {
                    let filter = AuditFilter {
                        namespaces: namespaces.clone(),
                        actor: actor.map(str::to_owned),
                        action: action.map(str::to_owned),
                        from: from.map(at),
                        to: to.map(at),
                        ..Default::default()
                    };
                    let mut wanted: Vec<&AuditEntry> = all.iter().filter(|entry| matches(&filter, entry)).collect();
                    if from.or(to).is_some() {
                        wanted.sort_by_key(|entry| Reverse((entry.at, entry.seq)));
                    }
                    let wanted: Vec<u64> = wanted.iter().map(|entry| entry.seq).collect();
                    assert_eq!(by_two(&store, filter.clone()).await, wanted, "{filter:?}");
                }
            }
        }
    }
}

fn matches(filter: &AuditFilter, entry: &AuditEntry) -> bool {
    let within = |namespaces: &Vec<String>| entry.namespace.as_ref().is_some_and(|name| namespaces.contains(name));
    filter.namespaces.as_ref().is_none_or(within)
        && filter.actor.as_ref().is_none_or(|actor| *actor == entry.actor)
        && filter.action.as_ref().is_none_or(|action| *action == entry.action)
        && filter.from.is_none_or(|from| entry.at >= from)
        && filter.to.is_none_or(|to| entry.at < to)
}

/// Its cursor was given out before there was an order by time.
pub async fn a_list_that_began_by_number_goes_on_so(store: Store) {
    let all = fill(&store).await;
    let began = AuditPlace::Seq(all[3].seq);
    let filter = AuditFilter { from: Some(at(3)), to: Some(at(9)), cursor: Some(began), ..Default::default() };
    let wanted: Vec<u64> = all[4..].iter().filter(|entry| matches(&filter, entry)).map(|entry| entry.seq).collect();
    assert_eq!(by_two(&store, filter).await, wanted);
}
