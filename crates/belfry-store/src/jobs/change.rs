//! From changes to the steps of one transaction: why one cannot be made, and what is written when all can. Pure; the steps
//! repeat every guard, so that what was read may be out of date without harm.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use belfry_core::job::{Action, RunOn, Webhook};
use belfry_core::{Job, JobDocument, JobId, Timestamp};
use belfry_sql::{Statement, Step, Value, sql};
use serde_json::json;

use super::{Applied, Change};
use crate::audit::{self, Deed};
use crate::columns::{json as to_json, ms, word};
use crate::dialect::{insert, marks, pieces};
use crate::{Actor, ChangeRefused, StoreError};

/// How much of a job's text is searched by lists.
const WORDS_CHARS_MAX: usize = 400;
/// Two receivers that are the same so far share their turns.
const RECEIVER_CHARS_MAX: usize = 128;

/// Whoever has a copy of a job sees by the moment that its fires count from whether they have changed.
fn another_moment(now: Timestamp, last: Timestamp) -> Timestamp {
    if ms(now) == ms(last) { last.saturating_add(Duration::from_millis(1)).unwrap_or(now) } else { now }
}

/// What the changes stand on, as last read.
#[derive(Default)]
pub(super) struct Current {
    pub living: HashMap<JobId, Job>,
    pub removed: HashSet<JobId>,
    /// Names that living jobs hold.
    pub names: HashMap<(String, String), JobId>,
}

pub(super) struct Plan {
    pub steps: Vec<Step>,
    pub applied: Vec<Applied>,
}

pub(super) fn id_of(change: &Change) -> JobId {
    match change {
        Change::Create { id, .. } | Change::Update { id, .. } | Change::Remove { id, .. } => *id,
    }
}

pub(super) fn wanted_name(change: &Change) -> Option<(&str, &str)> {
    match change {
        Change::Create { document, .. } | Change::Update { document, .. } => {
            Some((&document.namespace, &document.name))
        }
        Change::Remove { .. } => None,
    }
}

/// The first change that cannot be made.
pub(super) fn refusal(changes: &[Change], current: &Current) -> Option<ChangeRefused> {
    let freed: HashSet<JobId> =
        changes.iter().filter(|change| matches!(change, Change::Remove { .. })).map(id_of).collect();
    let mut taken: HashSet<(&str, &str)> = HashSet::new();
    let mut touched: HashSet<JobId> = HashSet::new();
    changes.iter().enumerate().find_map(|(index, change)| {
        let id = id_of(change);
        let held = current.living.get(&id).map(|job| job.revision);
        let cause = match change {
            Change::Create { document, .. } if held.is_some() || current.removed.contains(&id) => {
                Some(StoreError::NameTaken { name: document.full_name() })
            }
            Change::Create { .. } => None,
            Change::Update { expected_revision, .. } => stale(held, Some(*expected_revision)),
            Change::Remove { expected_revision, .. } => stale(held, *expected_revision),
        };
        let name_taken = || {
            let (namespace, name) = wanted_name(change)?;
            let holder = current.names.get(&(namespace.to_owned(), name.to_owned()));
            let by_another = holder.is_some_and(|holder| *holder != id && !freed.contains(holder));
            (!taken.insert((namespace, name)) || by_another)
                .then(|| StoreError::NameTaken { name: format!("{namespace}/{name}") })
        };
        let twice = !touched.insert(id);
        let cause =
            cause.or_else(|| twice.then(|| StoreError::Conflict { revision: held.unwrap_or(0) })).or_else(name_taken);
        cause.map(|cause| ChangeRefused { index, cause })
    })
}

fn stale(held: Option<u64>, expected: Option<u64>) -> Option<StoreError> {
    match (held, expected) {
        (None, _) => Some(StoreError::NotFound),
        (Some(revision), Some(expected)) if revision != expected => Some(StoreError::Conflict { revision }),
        (Some(_), _) => None,
    }
}

pub(super) fn plan(changes: &[Change], current: &Current, now: Timestamp, actor: &Actor) -> Plan {
    // The counter's row is locked until the commit, so change numbers appear in their order and a follower misses none.
    let mut steps = vec![
        sql!("UPDATE counters SET value = value + ? WHERE name = 'job_changes'", changes.len() as u64).touching(1),
    ];
    let (mut removals, mut updates, mut created) = (Vec::new(), Vec::new(), Vec::new());
    let (mut applied, mut deeds, mut saved) = (Vec::new(), Vec::new(), Vec::new());
    for (index, change) in changes.iter().enumerate() {
        let seq_back = (changes.len() - 1 - index) as u64;
        match change {
            Change::Create { id, document } => {
                let job = Job {
                    id: *id,
                    revision: 1,
                    document: document.clone(),
                    created_at: now,
                    updated_at: now,
                    counts_from: now,
                };
                deeds.push(
                    Deed::new("job.create", document.full_name())
                        .within(&document.namespace)
                        .detail(json!({"revision": 1})),
                );
                created.push((job.clone(), seq_back));
                saved.push(job.clone());
                applied.push(Applied::Saved(Box::new(job)));
            }
            Change::Update { id, expected_revision, document } => {
                let old = &current.living[id];
                let counts_from = match old.document.schedule_differs(document) {
                    true => another_moment(now, old.counts_from),
                    false => old.counts_from,
                };
                let job = Job {
                    revision: expected_revision + 1,
                    document: document.clone(),
                    updated_at: now,
                    counts_from,
                    ..old.clone()
                };
                let mut detail = json!({"revision": job.revision, "changed": changed_fields(&old.document, document)});
                let was = old.document.full_name();
                if was != document.full_name() {
                    detail["was"] = was.clone().into();
                }
                if old.document.namespace != document.namespace {
                    // Whoever watches the namespace that it leaves sees where it went.
                    let gone = json!({"revision": job.revision, "became": document.full_name()});
                    deeds.push(Deed::new("job.update", was).within(&old.document.namespace).detail(gone));
                }
                deeds.push(Deed::new("job.update", document.full_name()).within(&document.namespace).detail(detail));
                updates.push(update(&job, *expected_revision, seq_back));
                saved.push(job.clone());
                applied.push(Applied::Saved(Box::new(job)));
            }
            Change::Remove { id, expected_revision } => {
                let old = &current.living[id];
                let detail = json!({"revision": old.revision});
                deeds.push(
                    Deed::new("job.remove", old.document.full_name()).within(&old.document.namespace).detail(detail),
                );
                removals.push(remove(*id, *expected_revision, seq_back, now));
                applied.push(Applied::Removed(*id));
            }
        }
    }
    let relabelled: Vec<JobId> = changes.iter().filter(|c| !matches!(c, Change::Create { .. })).map(id_of).collect();
    let removed: Vec<JobId> = changes.iter().filter(|c| matches!(c, Change::Remove { .. })).map(id_of).collect();
    steps.extend(removals);
    steps.extend(pieces(&removed).map(|piece| {
        let text = format!("DELETE FROM job_standings WHERE job IN ({})", marks(piece.len()));
        Statement { sql: text.into(), args: piece.iter().map(word).collect() }.anything()
    }));
    steps.extend(updates);
    steps.extend(pieces(&created).map(create));
    steps.extend(pieces(&relabelled).map(|piece| {
        let text = format!("DELETE FROM job_labels WHERE job IN ({})", marks(piece.len()));
        Statement { sql: text.into(), args: piece.iter().map(word).collect() }.anything()
    }));
    let labels: Vec<[Value; 5]> = saved.iter().flat_map(label_rows).collect();
    steps.extend(pieces(&labels).map(|piece| {
        let text = insert("job_labels", &["job", "label", "value", "namespace", "name"], piece.len());
        Statement { sql: text.into(), args: piece.iter().flatten().cloned().collect() }.anything()
    }));
    steps.extend(pieces(&saved).map(|piece| {
        let text = insert("job_revisions", &["job", "revision", "at", "author", "document"], piece.len());
        let row = |job: &Job| {
            [word(job.id), job.revision.into(), ms(now).into(), word(&actor.name), to_json(&job.document).into()]
        };
        Statement { sql: text.into(), args: piece.iter().flat_map(row).collect() }.anything()
    }));
    steps.extend(audit::rows(actor, now, &deeds));
    Plan { steps, applied }
}

fn create(jobs: &[(Job, u64)]) -> Step {
    let columns = [
        "seq",
        "removed_seq",
        "id",
        "namespace",
        "name",
        "revision",
        "enabled",
        "run_on",
        "created_at",
        "updated_at",
        "counts_from",
        "retention_age_ms",
        "retention_runs",
        "webhook_on",
        "webhook_receiver",
        "words",
        "document",
    ];
    let text = insert("jobs", &columns, jobs.len())
        .replace("(?, ?,", "((SELECT value FROM counters WHERE name = 'job_changes') - ?, ?,");
    let mut args = Vec::with_capacity(jobs.len() * columns.len());
    for (job, seq_back) in jobs {
        args.extend([Value::from(*seq_back), Value::Int(0), word(job.id)]);
        let doc = &job.document;
        args.extend([word(&doc.namespace), word(&doc.name), job.revision.into(), doc.enabled.into(), fired_by(doc)]);
        args.extend([ms(job.created_at).into(), ms(job.updated_at).into(), ms(job.counts_from).into()]);
        args.extend([retention_age(doc), doc.retention.runs.into(), webhook_on(doc), webhook_receiver(doc)]);
        args.extend([words(doc).into(), to_json(doc).into()]);
    }
    Statement { sql: text.into(), args }.touching(jobs.len() as u64)
}

fn update(job: &Job, expected_revision: u64, seq_back: u64) -> Step {
    let doc = &job.document;
    sql!(
        "UPDATE jobs SET seq = (SELECT value FROM counters WHERE name = 'job_changes') - ?, namespace = ?, name = ?, revision = ?, \
         enabled = ?, run_on = ?, updated_at = ?, counts_from = ?, retention_age_ms = ?, retention_runs = ?, \
         webhook_on = ?, webhook_receiver = ?, words = ?, document = ? \
         WHERE id = ? AND removed_seq = 0 AND revision = ?",
        seq_back,
        word(&doc.namespace),
        word(&doc.name),
        job.revision,
        doc.enabled,
        fired_by(doc),
        ms(job.updated_at),
        ms(job.counts_from),
        retention_age(doc),
        doc.retention.runs,
        webhook_on(doc),
        webhook_receiver(doc),
        words(doc),
        to_json(doc),
        word(job.id),
        expected_revision,
    )
    .touching(1)
}

fn remove(id: JobId, expected_revision: Option<u64>, seq_back: u64, now: Timestamp) -> Step {
    let (guard, revision) = expected_revision.map_or((">=", 0), |revision| ("=", revision));
    let text = format!(
        "UPDATE jobs SET seq = (SELECT value FROM counters WHERE name = 'job_changes') - ?, \
         removed_seq = (SELECT value FROM counters WHERE name = 'job_changes') - ?, removed_at = ? \
         WHERE id = ? AND removed_seq = 0 AND revision {guard} ?"
    );
    sql!(text, seq_back, seq_back, ms(now), word(id), revision).touching(1)
}

fn label_rows(job: &Job) -> impl Iterator<Item = [Value; 5]> + '_ {
    let doc = &job.document;
    doc.labels
        .iter()
        .map(move |(label, value)| [word(job.id), word(label), word(value), word(&doc.namespace), word(&doc.name)])
}

fn fired_by(doc: &JobDocument) -> Value {
    match (&doc.action, doc.run_on) {
        (Action::Service(_), _) => word(SERVICE),
        (_, kind) => run_on(kind),
    }
}

/// In the place of where a job runs: nobody fires a service.
pub(super) const SERVICE: &str = "service";

pub(super) fn run_on(run_on: RunOn) -> Value {
    word(match run_on {
        RunOn::One => "one",
        RunOn::Each => "each",
        RunOn::Home => "home",
    })
}

fn retention_age(doc: &JobDocument) -> Value {
    doc.retention.age.map(|age| age.get().as_millis() as u64).into()
}

fn webhook_on(doc: &JobDocument) -> Value {
    doc.webhook.as_ref().map_or(0, Webhook::told_bits).into()
}

fn webhook_receiver(doc: &JobDocument) -> Value {
    let cut = |hook: &Webhook| hook.receiver().chars().take(RECEIVER_CHARS_MAX).collect::<String>();
    doc.webhook.as_ref().map(cut).into()
}

/// What `q` is looked for in: name, description, what is run.
fn words(doc: &JobDocument) -> String {
    let text = format!("{} {} {}", doc.full_name(), doc.description, doc.action.summary()).to_lowercase();
    text.chars().take(WORDS_CHARS_MAX).collect()
}

fn changed_fields(old: &JobDocument, new: &JobDocument) -> Vec<String> {
    let fields = |doc: &JobDocument| match serde_json::to_value(doc) {
        Ok(serde_json::Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let (old, new) = (fields(old), fields(new));
    let mut changed: Vec<String> =
        old.keys().chain(new.keys()).filter(|key| old.get(*key) != new.get(*key)).cloned().collect();
    changed.sort();
    changed.dedup();
    changed
}
