//! Promises about scripts.

use belfry_core::job::{Action, JobDocument, Script};

use super::sample::{ann, at, job_id};
use crate::{Store, StoreError};

pub async fn a_script_has_versions_and_the_newest_counts(store: Store) {
    let nightly = ("default", "nightly");
    let put = async |body: &str, expected: Option<u64>| store.put_script(nightly, body, expected, at(1), &ann()).await;
    let first = put("echo one", Some(0)).await.unwrap();
    assert_eq!((first.version, first.sha256.len()), (1, 64));
    assert_eq!(put("echo one", None).await.unwrap(), first, "the same body is no new version");
    let refused = put("echo two", Some(0)).await.unwrap_err();
    assert!(matches!(refused, StoreError::Conflict { revision: 1 }), "{refused}");
    let change = store.last_script_change().await.unwrap();
    let second = put("echo two", Some(1)).await.unwrap();
    assert!(store.last_script_change().await.unwrap() > change);
    assert_eq!(store.script("default", "nightly", None).await.unwrap(), Some(second.clone()));
    assert_eq!(store.script("default", "nightly", Some(1)).await.unwrap(), Some(first.clone()));
    assert_eq!(store.script("default", "nightly", Some(3)).await.unwrap(), None);
    store.put_script(("other", "nightly"), "echo else", None, at(1), &ann()).await.unwrap();
    let (mut newest, _) = store.newest_scripts().await.unwrap();
    newest.sort_by(|a, b| a.namespace.cmp(&b.namespace));
    assert_eq!(newest.iter().map(|script| script.body.as_str()).collect::<Vec<_>>(), ["echo two", "echo else"]);
    let versions = store.script_versions("default", "nightly", None, 1).await.unwrap();
    assert_eq!((versions.items[0].version, versions.next), (2, Some(2)));
    let rest = store.script_versions("default", "nightly", versions.next, 10).await.unwrap();
    assert_eq!((rest.items[0].version, rest.items[0].body.as_str(), rest.next), (1, "", None));
    let page = store.list_scripts(None, None, 1).await.unwrap();
    assert_eq!((page.items.len(), page.items[0].version), (1, 2));
    let page = store.list_scripts(None, page.next, 10).await.unwrap();
    assert_eq!(page.items[0].namespace, "other");
    let own = store.list_scripts(Some(&["other".to_owned()]), None, 10).await.unwrap();
    assert_eq!(own.items.len(), 1);
}

pub async fn a_script_that_jobs_use_is_not_removed(store: Store) {
    store.put_script(("default", "nightly"), "true", None, at(1), &ann()).await.unwrap();
    let action = Action::Script(Script { name: Some("nightly".into()), body: None, interpreter: None });
    let mut document = JobDocument::new("user", action);
    document.timezone = Some("UTC".into());
    store.create_job(document, job_id(1), at(1), &ann()).await.unwrap();
    match store.remove_script("default", "nightly", at(2), &ann()).await.unwrap_err() {
        StoreError::InUse { by } => assert_eq!(by, ["default/user"]),
        other => panic!("{other}"),
    }
    store.remove_job(job_id(1), None, at(2), &ann()).await.unwrap();
    store.remove_script("default", "nightly", at(3), &ann()).await.unwrap();
    assert_eq!(store.script("default", "nightly", None).await.unwrap(), None);
    let again = store.remove_script("default", "nightly", at(4), &ann()).await.unwrap_err();
    assert!(matches!(again, StoreError::NotFound), "{again}");
}
