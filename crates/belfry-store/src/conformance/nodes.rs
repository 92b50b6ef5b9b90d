//! Promises about nodes and settings.

use std::collections::BTreeMap;

use belfry_core::{Incarnation, NodeId};

use super::sample::{ann, at};
use crate::{NodeChange, NodeRecord, Store, StoreError};

pub async fn a_node_keeps_what_people_set(store: Store) {
    let mut node = NodeRecord {
        id: NodeId::from_u128(1),
        name: "db1".into(),
        labels: BTreeMap::new(),
        weight: 100,
        slots: None,
        draining: false,
        excluded: false,
        version: "0.1.0".into(),
        incarnation: Incarnation(u64::MAX),
        first_seen: at(0),
        removed_at: None,
    };
    store.upsert_node(&node).await.unwrap();
    assert_eq!(store.node(node.id).await.unwrap().as_ref(), Some(&node));
    let change = NodeChange { weight: Some(7), slots: Some(Some(4)), draining: Some(true), ..Default::default() };
    let set = store.update_node(node.id, change, at(1), &ann()).await.unwrap();
    assert_eq!((set.weight, set.slots, set.draining, set.excluded), (7, Some(4), true, false));
    (node.name, node.version, node.incarnation) = ("db1.new".into(), "0.2.0".into(), Incarnation(3));
    store.upsert_node(&node).await.unwrap();
    let known =
        NodeRecord { name: node.name.clone(), version: node.version.clone(), incarnation: node.incarnation, ..set };
    assert_eq!(store.list_nodes().await.unwrap(), [known]);
    let unlimited = NodeChange { slots: Some(None), ..Default::default() };
    assert_eq!(store.update_node(node.id, unlimited, at(1), &ann()).await.unwrap().slots, None);
    store.remove_node(node.id, at(2), &ann()).await.unwrap();
    store.upsert_node(&node).await.unwrap();
    assert!(store.list_nodes().await.unwrap().is_empty(), "a removed node does not come back");
    assert!(matches!(store.remove_node(node.id, at(3), &ann()).await, Err(StoreError::NotFound)));
}

pub async fn settings_agree_for_all_who_start_together(store: Store) {
    let (a, b) = tokio::join!(store.setting_or("cluster", "a", at(0)), store.setting_or("cluster", "b", at(0)));
    assert_eq!(a.unwrap(), b.unwrap());
    store.set_setting("zone", "UTC", at(0), &ann()).await.unwrap();
    store.set_setting("zone", "Asia/Shanghai", at(1), &ann()).await.unwrap();
    assert_eq!(store.setting("zone").await.unwrap().as_deref(), Some("Asia/Shanghai"));
    assert_eq!(store.list_settings().await.unwrap().len(), 2);
    store.remove_setting("zone", at(2), &ann()).await.unwrap();
    assert_eq!(store.setting("zone").await.unwrap(), None);
    assert!(matches!(store.remove_setting("zone", at(2), &ann()).await, Err(StoreError::NotFound)));
}
