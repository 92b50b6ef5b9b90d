//! Promises about nodes and settings.

use std::collections::BTreeMap;

use belfry_core::{Incarnation, NodeId};

use super::sample::{ann, at};
use crate::{Joined, NodeChange, NodeRecord, SecretHash, Store, StoreError};

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

fn newcomer(id: u128) -> (NodeId, SecretHash) {
    (NodeId::from_u128(id), SecretHash::of(&format!("credential of {id}")))
}

pub async fn a_join_token_lets_one_node_in(store: Store) {
    let (node, credential) = newcomer(1);
    let (other, other_credential) = newcomer(2);
    let join = async |token: &str, (node, credential): (NodeId, SecretHash), second: i64| {
        store.join_node(SecretHash::of(token), node, "web1", credential, at(second)).await.unwrap()
    };
    assert_eq!(join("never made", newcomer(1), 1).await, Joined::UnknownToken);
    store.create_join_token(SecretHash::of("first"), at(100), at(0), &ann()).await.unwrap();
    store.create_join_token(SecretHash::of("second"), at(100), at(0), &ann()).await.unwrap();
    assert_eq!(join("first", newcomer(1), 10).await, Joined::Yes);
    assert_eq!(join("first", newcomer(1), 11).await, Joined::Yes, "the answer may have been lost");
    assert_eq!(join("first", newcomer(2), 11).await, Joined::UsedToken(at(10)));
    let forged = (node, other_credential.clone());
    assert_eq!(join("first", forged.clone(), 11).await, Joined::UsedToken(at(10)));
    assert_eq!(join("second", forged.clone(), 12).await, Joined::NodeTaken, "nobody takes another node's place");
    assert_eq!(join("second", newcomer(2), 100).await, Joined::ExpiredToken(at(100)));
    assert_eq!(store.list_credentials().await.unwrap(), [(node, credential)]);
    let record = NodeRecord {
        id: node,
        name: "web1".into(),
        labels: BTreeMap::new(),
        weight: 1,
        slots: None,
        draining: false,
        excluded: false,
        version: "0.1.0".into(),
        incarnation: Incarnation(1),
        first_seen: at(0),
        removed_at: None,
    };
    store.upsert_node(&record).await.unwrap();
    assert_eq!(join("second", forged, 12).await, Joined::NodeTaken);
    store.remove_node(node, at(20), &ann()).await.unwrap();
    assert_eq!(store.list_credentials().await.unwrap(), []);
    assert_eq!(join("second", (other, other_credential.clone()), 21).await, Joined::Yes);
    assert_eq!(store.list_credentials().await.unwrap(), [(other, other_credential)]);
}

pub async fn of_many_who_join_with_one_token_one_is_let_in(store: Store) {
    store.create_join_token(SecretHash::of("once"), at(100), at(0), &ann()).await.unwrap();
    let mut racing = tokio::task::JoinSet::new();
    for id in 1..=8 {
        let (store, (node, credential)) = (store.clone(), newcomer(id));
        racing.spawn(async move { store.join_node(SecretHash::of("once"), node, "web", credential, at(1)).await });
    }
    let joined = racing.join_all().await;
    assert_eq!(joined.iter().filter(|joined| matches!(joined, Ok(Joined::Yes))).count(), 1, "{joined:?}");
    assert_eq!(store.list_credentials().await.unwrap().len(), 1);
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
