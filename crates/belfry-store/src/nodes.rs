//! Nodes as people set them and as they last introduced themselves. Whether one is alive is the coordinator's word, not ours.

use std::collections::BTreeMap;

use belfry_core::{Incarnation, NodeId, Timestamp};
use belfry_sql::{Row, Statement, Value, Written, sql};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::audit::{self, Deed};
use crate::columns::{bits, from_json, instant, json as to_json, ms, opt_instant, opt_ms, parsed, word};
use crate::dialect::{IfThere, if_there, insert};
use crate::{Actor, Store, StoreError};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    pub id: NodeId,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub weight: u32,
    /// Runs at once; None: no limit.
    pub slots: Option<u32>,
    /// Gets no new work; what it has goes on.
    pub draining: bool,
    pub excluded: bool,
    /// Of the agent's build.
    pub version: String,
    /// The last one that registered.
    pub incarnation: Incarnation,
    pub first_seen: Timestamp,
    /// A removed node never comes back; it joins again as a new one.
    pub removed_at: Option<Timestamp>,
}

/// What is None stays as it is.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct NodeChange {
    pub labels: Option<BTreeMap<String, String>>,
    pub weight: Option<u32>,
    /// `Some(None)` takes the limit away.
    pub slots: Option<Option<u32>>,
    pub draining: Option<bool>,
    pub excluded: Option<bool>,
}

const COLUMN_NAMES: &[&str] = &[
    "id",
    "name",
    "labels",
    "weight",
    "slots",
    "draining",
    "excluded",
    "version",
    "incarnation",
    "first_seen",
    "removed_at",
];
const COLUMNS: &str =
    "id, name, labels, weight, slots, draining, excluded, version, incarnation, first_seen, removed_at";

impl Store {
    /// A node introduces itself. One that is known keeps what people have set (labels, weight, slots, draining, excluded) and
    /// its first day; only name, version and incarnation follow the agent.
    pub async fn upsert_node(&self, node: &NodeRecord) -> Result<(), StoreError> {
        let set = [("name", "new.name"), ("version", "new.version"), ("incarnation", "new.incarnation")];
        let then = IfThere::Set { columns: &set, guard: None };
        let text = insert("nodes", COLUMN_NAMES, 1) + &if_there(self.dialect(), "nodes", &["id"], &then);
        let args = vec![
            word(node.id),
            word(&node.name),
            to_json(&node.labels).into(),
            node.weight.into(),
            node.slots.into(),
            node.draining.into(),
            node.excluded.into(),
            word(&node.version),
            bits(node.incarnation.0),
            ms(node.first_seen).into(),
            opt_ms(node.removed_at),
        ];
        self.write(vec![Statement { sql: text.into(), args }.anything()]).await.map(drop)
    }

    /// Also a removed one, so that history can name it.
    pub async fn node(&self, id: NodeId) -> Result<Option<NodeRecord>, StoreError> {
        let text = format!("SELECT {COLUMNS} FROM nodes WHERE id = ?");
        self.read(sql!(text, word(id))).await?.first().map(node).transpose()
    }

    /// Those that were not removed, by name.
    pub async fn list_nodes(&self) -> Result<Vec<NodeRecord>, StoreError> {
        let text = format!("SELECT {COLUMNS} FROM nodes WHERE removed_at IS NULL ORDER BY name, id");
        self.read(sql!(text)).await?.iter().map(node).collect()
    }

    pub async fn update_node(
        &self,
        id: NodeId,
        change: NodeChange,
        now: Timestamp,
        actor: &Actor,
    ) -> Result<NodeRecord, StoreError> {
        let mut steps = vec![
            sql!(
                "UPDATE nodes SET labels = COALESCE(?, labels), weight = COALESCE(?, weight), \
                 slots = CASE WHEN ? = 1 THEN ? ELSE slots END, draining = COALESCE(?, draining), \
                 excluded = COALESCE(?, excluded) WHERE id = ? AND removed_at IS NULL",
                change.labels.as_ref().map(to_json),
                change.weight,
                change.slots.is_some(),
                change.slots.flatten(),
                change.draining,
                change.excluded,
                word(id),
            )
            .touching(1),
        ];
        steps.extend(audit::rows(actor, now, &[Deed::new("node.update", id.to_string()).detail(json!(change))]));
        match self.try_write(steps).await? {
            Written::Done(_) => self.node(id).await?.ok_or(StoreError::NotFound),
            Written::Refused { .. } => Err(StoreError::NotFound),
        }
    }

    pub async fn remove_node(&self, id: NodeId, now: Timestamp, actor: &Actor) -> Result<(), StoreError> {
        let text = "UPDATE nodes SET removed_at = ? WHERE id = ? AND removed_at IS NULL";
        let mut steps = vec![sql!(text, Value::Int(ms(now)), word(id)).touching(1)];
        steps.extend(audit::rows(actor, now, &[Deed::new("node.remove", id.to_string())]));
        match self.try_write(steps).await? {
            Written::Done(_) => Ok(()),
            Written::Refused { .. } => Err(StoreError::NotFound),
        }
    }
}

fn node(row: &Row) -> Result<NodeRecord, StoreError> {
    Ok(NodeRecord {
        id: parsed(row, 0, "node id")?,
        name: row.text(1).to_owned(),
        labels: from_json(row.text(2), "labels of a node")?,
        weight: row.int(3) as u32,
        slots: row.opt_int(4).map(|slots| slots as u32),
        draining: row.int(5) != 0,
        excluded: row.int(6) != 0,
        version: row.text(7).to_owned(),
        incarnation: Incarnation(row.int(8) as u64),
        first_seen: instant(row.int(9)),
        removed_at: opt_instant(row, 10),
    })
}
