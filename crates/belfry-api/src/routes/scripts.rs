//! Stored scripts: put as new versions, listed, read, removed when no job uses them.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use belfry_core::job::{Action, JobDocument, check_name, check_script_body};
use belfry_store::Script;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::jobs::narrowed;
use crate::auth::Permit;
use crate::errors::{Answer, ApiError};
use crate::input::{IfMatch, JsonBody, PathValues, QueryValues, etag};
use crate::moment::Moment;
use crate::page::{List, read_cursor, read_limit};
use crate::state::ApiState;

#[derive(Serialize, ToSchema)]
pub struct ScriptView {
    namespace: String,
    name: String,
    /// 1 for the first; the answer's `ETag`.
    version: u64,
    /// Of the body, in hex.
    sha256: String,
    at: Moment,
    author: String,
    /// Left out in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
}

impl ScriptView {
    fn of(script: Script) -> Self {
        Self {
            namespace: script.namespace,
            name: script.name,
            version: script.version,
            sha256: script.sha256,
            at: script.at.into(),
            author: script.author,
            body: None,
        }
    }
}

type ScriptAnswer = ([(header::HeaderName, header::HeaderValue); 1], Json<ScriptView>);

fn whole(script: Script) -> ScriptAnswer {
    let (version, body) = (script.version, script.body.clone());
    ([(header::ETAG, etag(version))], Json(ScriptView { body: Some(body), ..ScriptView::of(script) }))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ScriptsQuery {
    /// Only this namespace.
    namespace: Option<String>,
    cursor: Option<String>,
    /// 1 to 500, 50 when left out.
    limit: Option<u32>,
}

/// Lists scripts by namespace and name, each in its newest version.
#[utoipa::path(get, path = "/api/v1/scripts", tag = "scripts", params(ScriptsQuery), responses((status = 200, body = List<ScriptView>)))]
pub async fn list_scripts(
    State(state): State<ApiState>,
    permit: Permit,
    QueryValues(query): QueryValues<ScriptsQuery>,
) -> Answer<Json<List<ScriptView>>> {
    let namespaces = narrowed(permit.namespaces(), query.namespace);
    let (cursor, limit) = (read_cursor(query.cursor.as_deref())?, read_limit(query.limit)?);
    let page = state.store.list_scripts(namespaces.as_deref(), cursor, limit).await?;
    Ok(Json(List::of(page, ScriptView::of)))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct VersionQuery {
    /// The newest when left out.
    version: Option<u64>,
}

/// Reads a script.
#[utoipa::path(get, path = "/api/v1/scripts/{ns}/{name}", tag = "scripts", params(VersionQuery), responses((status = 200, body = ScriptView)))]
pub async fn get_script(
    State(state): State<ApiState>,
    PathValues((ns, name)): PathValues<(String, String)>,
    QueryValues(query): QueryValues<VersionQuery>,
) -> Answer<ScriptAnswer> {
    let script = state.store.script(&ns, &name, query.version).await?;
    let wanted = query.version.map_or(String::new(), |version| format!(" version {version}"));
    script.map(whole).ok_or_else(|| ApiError::not_found("script", format!("{ns}/{name}{wanted}")))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScriptRequest {
    /// Up to 64 KiB of text; its first line may name what runs it (`#!`), else /bin/bash does.
    body: String,
}

/// Stores a new version of a script, unless the newest is the same. Jobs that name it execute it from their next run on.
#[utoipa::path(put, path = "/api/v1/scripts/{ns}/{name}", tag = "scripts", request_body = ScriptRequest,
    params(("If-Match" = Option<String>, Header, description = "the version that the change is meant for; 0: only if there is none")), responses((status = 200, body = ScriptView)))]
pub async fn put_script(
    State(state): State<ApiState>,
    permit: Permit,
    PathValues((ns, name)): PathValues<(String, String)>,
    IfMatch(expected): IfMatch,
    JsonBody(request): JsonBody<ScriptRequest>,
) -> Answer<ScriptAnswer> {
    check_name("name", &name)?;
    check_name("namespace", &ns)?;
    check_script_body("body", &request.body)?;
    let script = state.store.put_script((&ns, &name), &request.body, expected, state.now(), &permit.actor()).await?;
    state.control.scripts_changed().await;
    Ok(whole(script))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct VersionsQuery {
    cursor: Option<String>,
    /// 1 to 500, 50 when left out.
    limit: Option<u32>,
}

/// Lists the versions of a script, the newest first.
#[utoipa::path(get, path = "/api/v1/scripts/{ns}/{name}/versions", tag = "scripts", params(VersionsQuery), responses((status = 200, body = List<ScriptView>)))]
pub async fn list_versions(
    State(state): State<ApiState>,
    PathValues((ns, name)): PathValues<(String, String)>,
    QueryValues(query): QueryValues<VersionsQuery>,
) -> Answer<Json<List<ScriptView>>> {
    let (cursor, limit) = (read_cursor(query.cursor.as_deref())?, read_limit(query.limit)?);
    let is_first = cursor.is_none();
    let page = state.store.script_versions(&ns, &name, cursor, limit).await?;
    if page.items.is_empty() && is_first {
        return Err(ApiError::not_found("script", format!("{ns}/{name}")));
    }
    Ok(Json(List::of(page, ScriptView::of)))
}

/// Removes a script with all its versions. Refused while jobs use it.
#[utoipa::path(delete, path = "/api/v1/scripts/{ns}/{name}", tag = "scripts", responses((status = 204)))]
pub async fn remove_script(
    State(state): State<ApiState>,
    permit: Permit,
    PathValues((ns, name)): PathValues<(String, String)>,
) -> Answer<StatusCode> {
    state.store.remove_script(&ns, &name, state.now(), &permit.actor()).await?;
    state.control.scripts_changed().await;
    Ok(StatusCode::NO_CONTENT)
}

/// A job that names a script is saved only if there is one: else its first fire would tell.
pub(super) async fn check_stored(state: &ApiState, document: &JobDocument) -> Answer<()> {
    let Action::Script(script) = &document.action else { return Ok(()) };
    let Some(name) = &script.name else { return Ok(()) };
    match state.store.script(&document.namespace, name, None).await? {
        Some(_) => Ok(()),
        None => {
            let message = format!(
                "there is no script `{name}` in the namespace `{}`; store it first: belfry script put {}/{name} FILE",
                document.namespace, document.namespace
            );
            Err(ApiError::invalid("action.script.name", message))
        }
    }
}
