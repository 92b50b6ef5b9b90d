//! Whether the store answers those who ask for people, and whose a credential is while it does not. Once it is known to be away all are
//! told so at once; whether it is back one task of the server finds out, so that no request waits for it twice.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use belfry_core::Timestamp;
use belfry_core::role::Grants;
use belfry_store::{Callers, Contact, SecretHash, StoreFailure, TokenOwner};
use tokio::sync::Notify;

use crate::auth::common_grants;
use crate::state::ApiState;

#[derive(Debug, Default)]
pub(crate) struct StoreContact {
    /// Why, while it is away.
    lost: Mutex<Option<String>>,
    /// It has just been found away.
    noticed: Notify,
    callers: RwLock<Arc<Callers>>,
}

/// Of the one who finds out whether it is back, and so asks all the same.
#[derive(Debug)]
pub(crate) struct Finder(pub(crate) Arc<StoreContact>);

const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// So old may be what is known of credentials when the store goes away: one that was revoked before that is good no longer.
const LOOK_EVERY: Duration = Duration::from_secs(5);

impl StoreContact {
    pub(crate) fn knows(&self, callers: Callers) {
        *self.callers.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(callers);
    }

    pub(crate) fn caller_of_token(&self, secret: &SecretHash, now: Timestamp) -> Option<(TokenOwner, Grants)> {
        let callers = self.callers();
        let (owner, grants) = callers.token_of(secret, now)?;
        let grants = match &owner {
            TokenOwner::Service(_) => grants.clone(),
            TokenOwner::User(name) => common_grants(grants, callers.user(name)?),
        };
        Some((owner, grants))
    }

    pub(crate) fn caller_of_session(&self, secret: &SecretHash, now: Timestamp) -> Option<(String, Grants)> {
        let callers = self.callers();
        callers.session_user(secret, now).map(|(name, grants)| (name.to_owned(), grants.clone()))
    }

    fn callers(&self) -> Arc<Callers> {
        self.callers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Contact for StoreContact {
    fn is_lost(&self) -> Option<String> {
        self.lock().clone()
    }

    fn lost(&self, why: &StoreFailure) {
        // Without what the layers before it have said already.
        let why = match why {
            StoreFailure::Away(why) => why.clone(),
            other => other.to_string(),
        };
        if self.lock().replace(why).is_none() {
            self.noticed.notify_one();
        }
    }

    fn found(&self) {
        *self.lock() = None;
    }
}

impl Contact for Finder {
    fn is_lost(&self) -> Option<String> {
        None
    }

    fn lost(&self, why: &StoreFailure) {
        self.0.lost(why);
    }

    fn found(&self) {
        self.0.found();
    }
}

impl ApiState {
    /// Learns whose the credentials are, and whether a store that was away is back. Never ends.
    pub async fn keep_contact(self) {
        loop {
            self.look().await;
            if self.contact.is_lost().is_some() {
                tokio::time::sleep(ASK_AGAIN_AFTER).await;
            } else {
                // Not an error: it is time to look when nobody has noticed anything.
                let _ = tokio::time::timeout(LOOK_EVERY, self.contact.noticed.notified()).await;
            }
        }
    }

    pub async fn look(&self) {
        match self.finder.callers(self.now()).await {
            Ok(callers) => {
                self.contact.knows(callers);
                self.control.store_answers();
            }
            Err(cause) => self.control.store_does_not_answer(&cause),
        }
    }
}
