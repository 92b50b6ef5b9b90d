//! The permit of an answer that goes on for hours: what was allowed at its beginning may be no longer.

use axum::http::{HeaderMap, Method};

use super::{Permit, gate};
use crate::errors::Answer;
use crate::state::ApiState;

pub(crate) struct LastingPermit {
    pub permit: Permit,
    /// Of the request, for the credential in them.
    pub headers: HeaderMap,
}

impl LastingPermit {
    /// Fails when the credential is good no longer. While the store is away, what was known last holds.
    pub async fn renew(&mut self, state: &ApiState) -> Answer<()> {
        match gate::find_caller(state, &Method::GET, &self.headers, self.permit.caller.address).await {
            Ok(caller) => self.permit.caller = caller,
            Err(refused) if refused.status().is_client_error() => return Err(refused),
            Err(_) => {}
        }
        Ok(())
    }
}
