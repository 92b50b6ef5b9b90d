//! Audit rows for what changes nothing in the store by itself: runs that are started or killed by hand. Edits bring their own row, in
//! their own transaction.

use crate::auth::Permit;
use crate::state::ApiState;

pub async fn record(state: &ApiState, permit: &Permit, action: &'static str, namespace: &str, subject: &str) {
    // What was asked for has been done: an answer that says otherwise would make people ask again.
    if let Err(cause) = state.store.record_deed(action, namespace, subject, state.now(), &permit.actor()).await {
        tracing::warn!(action, namespace, subject, "the deed could not be written to the audit trail: {cause}");
    }
}
