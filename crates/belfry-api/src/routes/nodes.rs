//! Nodes: who has joined, how they are, and what people set about them.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use belfry_control::NodeView;
use belfry_core::join::JoinToken;
use belfry_core::room::{Host, Room};
use belfry_core::{JobId, NodeId, Timestamp};
use belfry_store::{NodeChange, SecretHash};
use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::auth::{Permit, new_join_secret};
use crate::errors::{Answer, ApiError};
use crate::input::{JsonBody, MaybeJsonBody, PathValues, QueryValues};
use crate::moment::Moment;
use crate::page::List;
use crate::state::ApiState;

const WEIGHT_MAX: u32 = 10_000;
const SLOTS_MAX: u32 = 100_000;
const LABELS_MAX: usize = 64;
const LABEL_BYTES_MAX: usize = 256;

#[derive(Serialize, ToSchema)]
pub struct NodeAnswer {
    #[schema(value_type = String)]
    id: NodeId,
    name: String,
    version: String,
    labels: BTreeMap<String, String>,
    /// Its share of the work, against the weights of the others.
    weight: u32,
    /// Runs that it executes at once.
    slots: u32,
    /// Runs that it executes or keeps ready.
    load: u32,
    /// Jobs that have it as their home (`run_on: home`).
    homes: u32,
    /// Gets no new work; what it has goes on.
    draining: bool,
    excluded: bool,
    /// Takes no work until the servers have stored the results that wait on its disk.
    spool_full: bool,
    /// Takes no work until it has more free disk than its floor.
    disk_low: bool,
    /// Gets no work: its clock differs from this server's by more than `--max-clock-skew`.
    clock_off: bool,
    /// The machine as it was measured last; null: this server has not heard of it yet.
    host: Option<HostView>,
    /// What runs with `needs` can have of it now: neither promised to a run nor in use.
    free_for_needs: Option<AmountsView>,
    /// Jobs that are switched off on this host by its local API.
    disabled_jobs: Vec<DisabledJobView>,
    connected: bool,
    /// Connected, not excluded, not draining, with room for results, free disk above its floor and a clock that is right.
    healthy: bool,
    incarnation: u64,
    connected_since: Option<Moment>,
    last_heartbeat: Option<Moment>,
    clock_offset_ms: Option<i64>,
    /// The user that jobs without `as` run as.
    runs_as: String,
}

/// In a container its limits count.
#[derive(Serialize, ToSchema)]
pub struct HostView {
    /// When this server heard of it.
    measured_at: Moment,
    age_ms: i64,
    cpus: f64,
    /// Of all of them, from 0 to 1; null: measured only once.
    cpu_use: Option<f64>,
    /// Of the last 1, 5 and 15 minutes.
    load: [f64; 3],
    /// Bytes.
    memory_total: u64,
    memory_available: u64,
    /// Bytes of the file system that the agent's data folder is on.
    disk_total: u64,
    disk_free: u64,
    /// Below it the node takes no work; 0: switched off.
    disk_floor: u64,
    booted_at: Moment,
    kernel: String,
    os: String,
}

impl HostView {
    fn of(host: Host, heard_at: Timestamp, now: Timestamp) -> Self {
        let up = SignedDuration::from_millis(host.up_ms.min(i64::MAX as u64) as i64);
        Self {
            measured_at: heard_at.into(),
            age_ms: now.as_millisecond() - heard_at.as_millisecond(),
            cpus: host.milli_cpus as f64 / 1000.0,
            cpu_use: host.cpu_use_permille.map(|permille| f64::from(permille) / 1000.0),
            load: host.load,
            memory_total: host.memory_total,
            memory_available: host.memory_available,
            disk_total: host.disk_total,
            disk_free: host.disk_free,
            disk_floor: host.disk_floor,
            booted_at: heard_at.saturating_sub(up).unwrap_or(Timestamp::MIN).into(),
            kernel: host.kernel,
            os: host.os,
        }
    }
}

#[derive(Serialize, ToSchema)]
pub struct DisabledJobView {
    #[schema(value_type = String)]
    id: JobId,
    /// `namespace/name`; empty: the node has no copy of it at the moment.
    name: String,
}

#[derive(Serialize, ToSchema)]
pub struct AmountsView {
    memory: u64,
    cpus: f64,
    disk: u64,
}

impl NodeAnswer {
    fn of(node: NodeView, now: Timestamp) -> Self {
        Self {
            healthy: node.takes_work(),
            id: node.id,
            name: node.name,
            version: node.version,
            labels: node.labels,
            weight: node.weight,
            slots: node.slots,
            load: node.load,
            homes: node.homes,
            draining: node.draining,
            excluded: node.excluded,
            spool_full: node.spool_full,
            disk_low: node.disk_low,
            clock_off: node.clock_off,
            host: node.host.map(|(host, heard_at)| HostView::of(host, heard_at, now)),
            free_for_needs: node.room.map(|Room { free, .. }| AmountsView {
                memory: free.memory,
                cpus: free.milli_cpus as f64 / 1000.0,
                disk: free.disk,
            }),
            disabled_jobs: node.disabled_jobs.into_iter().map(|(id, name)| DisabledJobView { id, name }).collect(),
            connected: node.connected,
            incarnation: node.incarnation.0,
            connected_since: node.connected_since.map(Moment),
            last_heartbeat: node.last_heartbeat.map(Moment),
            clock_offset_ms: node.clock_offset_ms,
            runs_as: node.runs_as,
        }
    }
}

/// By id or by name.
pub(super) fn find(state: &ApiState, wanted: &str) -> Answer<NodeView> {
    let found = state.control.nodes().into_iter().find(|node| node.name == wanted || node.id.to_string() == wanted);
    found.ok_or_else(|| ApiError::not_found("node", wanted).at("node"))
}

/// Lists the nodes that have joined, by name.
#[utoipa::path(get, path = "/api/v1/nodes", tag = "nodes", responses((status = 200, body = List<NodeAnswer>)))]
pub async fn list_nodes(State(state): State<ApiState>) -> Json<List<NodeAnswer>> {
    let (mut nodes, now) = (state.control.nodes(), state.now());
    nodes.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
    Json(List { items: nodes.into_iter().map(|node| NodeAnswer::of(node, now)).collect(), next: None, missing: None })
}

/// Reads one node, by id or by name.
#[utoipa::path(get, path = "/api/v1/nodes/{id}", tag = "nodes", responses((status = 200, body = NodeAnswer)))]
pub async fn get_node(State(state): State<ApiState>, PathValues(id): PathValues<String>) -> Answer<Json<NodeAnswer>> {
    Ok(Json(NodeAnswer::of(find(&state, &id)?, state.now())))
}

/// What is left out stays as it is.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NodePatch {
    /// Replaces all labels.
    labels: Option<BTreeMap<String, String>>,
    weight: Option<u32>,
    /// null takes the limit away.
    #[serde(deserialize_with = "given")]
    #[schema(value_type = Option<u32>)]
    slots: Option<Option<u32>>,
    draining: Option<bool>,
    excluded: Option<bool>,
}

/// Tells null from absent.
fn given<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Option<u32>>, D::Error> {
    Option::<u32>::deserialize(d).map(Some)
}

impl NodePatch {
    fn check(&self) -> Answer<()> {
        if self.weight.is_some_and(|weight| weight > WEIGHT_MAX) {
            return Err(ApiError::invalid(
                "weight",
                format!("0 to {WEIGHT_MAX} are accepted; 0 gives the node no work"),
            ));
        }
        if self.slots.flatten().is_some_and(|slots| slots == 0 || slots > SLOTS_MAX) {
            return Err(ApiError::invalid("slots", format!("1 to {SLOTS_MAX} are accepted, or null for no limit")));
        }
        let labels = self.labels.iter().flatten();
        let bad = |(key, value): &(&String, &String)| {
            key.is_empty() || key.len() > LABEL_BYTES_MAX || value.len() > LABEL_BYTES_MAX || key.contains('=')
        };
        if self.labels.as_ref().is_some_and(|labels| labels.len() > LABELS_MAX)
            || labels.clone().any(|label| bad(&label))
        {
            let message = format!(
                "at most {LABELS_MAX} labels; a key is 1 to {LABEL_BYTES_MAX} bytes without `=`, a value at most {LABEL_BYTES_MAX}"
            );
            return Err(ApiError::invalid("labels", message));
        }
        Ok(())
    }
}

/// Sets weight, labels, slots, draining or excluded.
#[utoipa::path(patch, path = "/api/v1/nodes/{id}", tag = "nodes", request_body = NodePatch, responses((status = 200, body = NodeAnswer)))]
pub async fn patch_node(
    State(state): State<ApiState>,
    permit: Permit,
    PathValues(id): PathValues<String>,
    JsonBody(patch): JsonBody<NodePatch>,
) -> Answer<Json<NodeAnswer>> {
    patch.check()?;
    let node = find(&state, &id)?;
    let NodePatch { labels, weight, slots, draining, excluded } = patch;
    let change = NodeChange { labels, weight, slots, draining, excluded };
    state.store.update_node(node.id, change, state.now(), &permit.actor()).await?;
    state.control.nodes_changed().await;
    Ok(Json(NodeAnswer::of(find(&state, &id)?, state.now())))
}

const JOIN_SECONDS_DEFAULT: u32 = 3_600;
const JOIN_SECONDS_MAX: u32 = 30 * 86_400;

#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct JoinTokenRequest {
    /// How long it may be used. 3600 unless given, at most 30 days.
    expires_in_seconds: Option<u32>,
}

#[derive(Serialize, ToSchema)]
pub struct JoinTokenAnswer {
    /// For `belfry agent --join`; good for one node. It is shown here and never again.
    token: String,
    expires_at: Moment,
}

/// Makes a token that lets one new node in.
#[utoipa::path(post, path = "/api/v1/nodes/join-tokens", tag = "nodes", request_body = JoinTokenRequest, responses((status = 201, body = JoinTokenAnswer)))]
pub async fn create_join_token(
    State(state): State<ApiState>,
    permit: Permit,
    MaybeJsonBody(request): MaybeJsonBody<JoinTokenRequest>,
) -> Answer<(StatusCode, Json<JoinTokenAnswer>)> {
    let seconds = request.expires_in_seconds.unwrap_or(JOIN_SECONDS_DEFAULT);
    if seconds == 0 || seconds > JOIN_SECONDS_MAX {
        let message = format!("1 to {JOIN_SECONDS_MAX} are accepted");
        return Err(ApiError::invalid("expires_in_seconds", message));
    }
    let Some(joining) = &state.settings.joining else {
        let message = "no server here takes agents of other machines; start `belfry server` instead of `belfry up`";
        return Err(ApiError::new(StatusCode::CONFLICT, "no_agents_here", message));
    };
    let now = state.now();
    let expires_at = now + jiff::SignedDuration::from_secs(seconds.into());
    let mut addresses = state.control.addresses_for_agents();
    if addresses.is_empty() {
        addresses.push(joining.address.clone());
    }
    let token = JoinToken { addresses, ca: joining.ca, secret: new_join_secret() };
    state.store.create_join_token(SecretHash::of(&token.secret), expires_at, now, &permit.actor()).await?;
    let answer = JoinTokenAnswer { token: token.to_string(), expires_at: Moment(expires_at) };
    Ok((StatusCode::CREATED, Json(answer)))
}

#[derive(Default, Deserialize, ToSchema, utoipa::IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct RemoveNodeQuery {
    /// Also when it is connected: its sessions are ended, its credential is worth nothing any more, and what it runs is lost.
    force: bool,
}

/// Removes a node for good; the machine may join again as a new one.
#[utoipa::path(delete, path = "/api/v1/nodes/{id}", tag = "nodes", params(RemoveNodeQuery), responses((status = 204)))]
pub async fn remove_node(
    State(state): State<ApiState>,
    permit: Permit,
    PathValues(id): PathValues<String>,
    QueryValues(query): QueryValues<RemoveNodeQuery>,
) -> Answer<StatusCode> {
    let node = find(&state, &id)?;
    if node.connected && !query.force {
        let message = format!(
            "node `{}` is connected; stop its agent first, exclude it, or remove it all the same with force",
            node.name
        );
        return Err(ApiError::new(StatusCode::CONFLICT, "still_connected", message));
    }
    state.store.remove_node(node.id, state.now(), &permit.actor()).await?;
    state.control.nodes_changed().await;
    Ok(StatusCode::NO_CONTENT)
}
