//! Many documents at once: what would change is said, and all of it happens or none.

use std::collections::{BTreeSet, HashMap};

use axum::Json;
use axum::extract::State;
use belfry_core::{Job, JobDocument, JobId};
use belfry_store::{Change, JobFilter, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::jobs::read_document;
use super::scripts::check_stored;
use crate::auth::{Permit, random_bits};
use crate::errors::{Answer, ApiError};
use crate::input::{APPLY_BYTES_MAX, JsonBody};
use crate::job_schema::JobDocumentSchema;
use crate::merge_patch::{FieldChange, difference};
use crate::state::ApiState;

/// Someone else edits the same jobs at the same time: the plan is made again, so often.
const TRIES_MAX: usize = 3;
const LIST_ROWS: usize = 500;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyRequest {
    #[schema(value_type = Vec<JobDocumentSchema>)]
    documents: Vec<Value>,
    /// Only say what would change.
    #[serde(default)]
    dry_run: bool,
    /// Also remove the jobs that are not among the documents, in the namespaces that the documents name.
    #[serde(default)]
    prune: bool,
}

#[derive(Serialize, ToSchema)]
pub struct ApplyAnswer {
    dry_run: bool,
    created: Vec<JobName>,
    changed: Vec<ChangedJob>,
    unchanged: Vec<JobName>,
    removed: Vec<JobName>,
}

#[derive(Clone, Serialize, ToSchema)]
pub struct JobName {
    namespace: String,
    name: String,
}

#[derive(Serialize, ToSchema)]
pub struct ChangedJob {
    namespace: String,
    name: String,
    fields: Vec<FieldChange>,
}

impl JobName {
    fn of(document: &JobDocument) -> Self {
        Self { namespace: document.namespace.clone(), name: document.name.clone() }
    }
}

/// Creates and changes jobs so that they are as the documents say.
#[utoipa::path(post, path = "/api/v1/apply", tag = "jobs", request_body = ApplyRequest, responses((status = 200, body = ApplyAnswer)))]
pub async fn apply(
    State(state): State<ApiState>,
    permit: Permit,
    JsonBody(request): JsonBody<ApplyRequest, APPLY_BYTES_MAX>,
) -> Answer<Json<ApplyAnswer>> {
    let documents = read_documents(&state, &permit, request.documents)?;
    for (index, document) in documents.iter().enumerate() {
        let place = |refused: ApiError| match refused.field().map(str::to_owned) {
            Some(field) => refused.at(format!("documents[{index}].{field}")),
            None => refused,
        };
        check_stored(&state, document).await.map_err(place)?;
    }
    for tried in 1.. {
        let (mut answer, changes) = plan(&state, &documents, request.prune).await?;
        answer.dry_run = request.dry_run;
        if request.dry_run || changes.is_empty() {
            return Ok(Json(answer));
        }
        match state.store.apply(changes, state.now(), &permit.actor()).await {
            Ok(_) => {
                state.control.jobs_changed().await;
                return Ok(Json(answer));
            }
            Err(refused) => match refused.cause {
                StoreError::Conflict { .. } | StoreError::NameTaken { .. } | StoreError::NotFound
                    if tried < TRIES_MAX => {}
                cause => return Err(cause.into()),
            },
        }
    }
    unreachable!("the last try returns")
}

/// Each document judged as if it were saved alone; a refusal names the document's place in the list.
fn read_documents(state: &ApiState, permit: &Permit, values: Vec<Value>) -> Answer<Vec<JobDocument>> {
    let mut names = HashMap::new();
    let mut documents = Vec::with_capacity(values.len());
    for (index, value) in values.into_iter().enumerate() {
        let document = read_document(state, value).map_err(|refused| {
            let inner = refused.field().map_or(String::new(), |field| format!(".{field}"));
            refused.at(format!("documents[{index}]{inner}"))
        })?;
        permit.within(&document.namespace)?;
        if let Some(first) = names.insert(document.full_name(), index) {
            let message = format!("`{}` is already documents[{first}]; each job is given once", document.full_name());
            return Err(ApiError::invalid(format!("documents[{index}].name"), message));
        }
        documents.push(document);
    }
    Ok(documents)
}

async fn plan(state: &ApiState, documents: &[JobDocument], prune: bool) -> Answer<(ApplyAnswer, Vec<Change>)> {
    let now = state.now();
    let mut answer = ApplyAnswer {
        dry_run: false,
        created: Vec::new(),
        changed: Vec::new(),
        unchanged: Vec::new(),
        removed: Vec::new(),
    };
    let mut changes = Vec::new();
    for document in documents {
        match state.store.job(&document.namespace, &document.name).await? {
            None => {
                answer.created.push(JobName::of(document));
                changes.push(Change::Create { id: JobId::new(now, random_bits()), document: document.clone() });
            }
            Some(job) if job.document == *document => answer.unchanged.push(JobName::of(document)),
            Some(job) => {
                let JobName { namespace, name } = JobName::of(document);
                answer.changed.push(ChangedJob {
                    namespace,
                    name,
                    fields: difference(&as_value(&job.document)?, &as_value(document)?),
                });
                changes.push(Change::Update {
                    id: job.id,
                    expected_revision: job.revision,
                    document: document.clone(),
                });
            }
        }
    }
    if prune {
        for job in not_among(state, documents).await? {
            answer.removed.push(JobName::of(&job.document));
            changes.push(Change::Remove { id: job.id, expected_revision: Some(job.revision) });
        }
    }
    Ok((answer, changes))
}

fn as_value(document: &JobDocument) -> Answer<Value> {
    serde_json::to_value(document).map_err(|bad| ApiError::internal(&bad))
}

async fn not_among(state: &ApiState, documents: &[JobDocument]) -> Answer<Vec<Job>> {
    let namespaces: BTreeSet<&str> = documents.iter().map(|document| document.namespace.as_str()).collect();
    let given: BTreeSet<(&str, &str)> =
        documents.iter().map(|document| (document.namespace.as_str(), document.name.as_str())).collect();
    let mut filter = JobFilter {
        namespaces: Some(namespaces.into_iter().map(str::to_owned).collect()),
        limit: LIST_ROWS,
        ..JobFilter::default()
    };
    let mut others = Vec::new();
    loop {
        let page = state.store.list_jobs(&filter).await?;
        let is_other = |job: &Job| !given.contains(&(job.document.namespace.as_str(), job.document.name.as_str()));
        others.extend(page.items.into_iter().filter(is_other));
        filter.cursor = page.next;
        if filter.cursor.is_none() {
            return Ok(others);
        }
    }
}
