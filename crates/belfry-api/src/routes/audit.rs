//! Who changed what: the audit trail, for admins, of the namespaces that they administer.

use axum::Json;
use axum::extract::State;
use belfry_store::AuditFilter;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::auth::Permit;
use crate::errors::Answer;
use crate::input::QueryValues;
use crate::moment::Moment;
use crate::page::{List, read_cursor, read_limit, read_time};
use crate::state::ApiState;

#[derive(Serialize, ToSchema)]
pub struct AuditView {
    seq: u64,
    at: Moment,
    actor: String,
    /// The address that the request came from.
    origin: Option<String>,
    /// Noun and verb, as `job.update`.
    action: String,
    namespace: Option<String>,
    subject: String,
    detail: Value,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    actor: Option<String>,
    /// Noun and verb, as `job.update`.
    action: Option<String>,
    /// At or after.
    from: Option<String>,
    /// Before.
    to: Option<String>,
    cursor: Option<String>,
    /// 1 to 500, 50 when left out.
    limit: Option<u32>,
}

/// Lists changes, newest first.
#[utoipa::path(get, path = "/api/v1/audit", tag = "audit", params(AuditQuery), responses((status = 200, body = List<AuditView>)))]
pub async fn list_audit(
    State(state): State<ApiState>,
    permit: Permit,
    QueryValues(query): QueryValues<AuditQuery>,
) -> Answer<Json<List<AuditView>>> {
    let filter = AuditFilter {
        namespaces: permit.namespaces(),
        actor: query.actor,
        action: query.action,
        from: read_time("from", query.from.as_deref())?,
        to: read_time("to", query.to.as_deref())?,
        cursor: read_cursor(query.cursor.as_deref())?,
        limit: read_limit(query.limit)?,
    };
    let page = state.store.list_audit(&filter).await?;
    Ok(Json(List::of(page, |entry| AuditView {
        seq: entry.seq,
        at: entry.at.into(),
        actor: entry.actor,
        origin: entry.origin,
        action: entry.action,
        namespace: entry.namespace,
        subject: entry.subject,
        detail: entry.detail,
    })))
}
