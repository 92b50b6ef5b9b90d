//! Whether the store answers those who ask for people, and whose a credential is while it does not. One caller at a time finds out
//! whether it is back; the others are told at once that it is away.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use belfry_core::Timestamp;
use belfry_core::role::Grants;
use belfry_store::{Callers, Contact, SecretHash, StoreFailure, TokenOwner};
use tokio::time::Instant;

use crate::auth::common_grants;
use crate::state::ApiState;

#[derive(Debug, Default)]
pub(crate) struct StoreContact {
    lost: Mutex<Option<Lost>>,
    callers: RwLock<Arc<Callers>>,
}

#[derive(Debug)]
struct Lost {
    why: String,
    ask_again_at: Instant,
}

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

    fn lock(&self) -> MutexGuard<'_, Option<Lost>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Contact for StoreContact {
    fn is_lost(&self) -> Option<String> {
        let mut lost = self.lock();
        let known = lost.as_mut()?;
        let now = Instant::now();
        if now < known.ask_again_at {
            return Some(known.why.clone());
        }
        known.ask_again_at = now + ASK_AGAIN_AFTER;
        None
    }

    fn lost(&self, why: &StoreFailure) {
        let ask_again_at = Instant::now() + ASK_AGAIN_AFTER;
        // Without what the layers before it have said already.
        let why = match why {
            StoreFailure::Away(why) => why.clone(),
            other => other.to_string(),
        };
        *self.lock() = Some(Lost { why, ask_again_at });
    }

    fn found(&self) {
        *self.lock() = None;
    }
}

impl ApiState {
    /// Learns whose the credentials are. Never ends.
    pub async fn keep_contact(self) {
        loop {
            self.look().await;
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    pub async fn look(&self) {
        match self.store.callers(self.now()).await {
            Ok(callers) => {
                self.contact.knows(callers);
                self.control.store_answers();
            }
            Err(cause) => self.control.store_does_not_answer(&cause),
        }
    }
}
