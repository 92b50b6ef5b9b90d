//! Every revision that a job had: what it said, since when, and by whom.

use axum::Json;
use axum::extract::State;
use belfry_core::JobDocument;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::jobs::load;
use crate::errors::Answer;
use crate::input::{PathValues, QueryValues};
use crate::job_schema::JobDocumentSchema;
use crate::moment::Moment;
use crate::page::{List, read_cursor, read_limit};
use crate::state::ApiState;

#[derive(Serialize, ToSchema)]
pub struct RevisionView {
    revision: u64,
    at: Moment,
    author: String,
    #[schema(value_type = JobDocumentSchema)]
    document: JobDocument,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct RevisionsQuery {
    cursor: Option<String>,
    /// 1 to 500, 50 when left out.
    limit: Option<u32>,
}

/// Lists a job's revisions, newest first.
#[utoipa::path(get, path = "/api/v1/jobs/{ns}/{name}/revisions", tag = "jobs", params(RevisionsQuery), responses((status = 200, body = List<RevisionView>)))]
pub async fn list_revisions(
    State(state): State<ApiState>,
    PathValues((ns, name)): PathValues<(String, String)>,
    QueryValues(query): QueryValues<RevisionsQuery>,
) -> Answer<Json<List<RevisionView>>> {
    let job = load(&state, &ns, &name).await?;
    let page =
        state.store.job_revisions(job.id, read_cursor(query.cursor.as_deref())?, read_limit(query.limit)?).await?;
    Ok(Json(List::of(page, |revision| RevisionView {
        revision: revision.revision,
        at: revision.at.into(),
        author: revision.author,
        document: revision.document,
    })))
}
