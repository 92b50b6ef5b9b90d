//! The users that jobs run as, asked for once and kept for a minute: the user database may be slow, and a start is not.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use belfry_exec::{Login, LookupError, lookup_user};

/// A user as a run needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub login: Login,
    pub has_home: bool,
}

pub(crate) struct Logins {
    /// The agent's own user.
    own: Login,
    /// Who jobs without `as` run as.
    default: Account,
    known: Mutex<HashMap<String, (Duration, Account)>>,
}

const KNOWN_FOR: Duration = Duration::from_secs(60);
const KNOWN_MAX: usize = 1000;

impl Account {
    fn new(login: Login) -> Account {
        Account { has_home: login.home.is_dir(), login }
    }
}

impl Logins {
    /// Asks the user database; call it where waiting is allowed.
    pub(crate) fn new(own: Login, default_user: &str, allow_root: bool) -> Result<Logins, LookupError> {
        let default = if own.uid == 0 && !allow_root { lookup_user(default_user)? } else { own.clone() };
        Ok(Logins { own, default: Account::new(default), known: Mutex::default() })
    }

    pub(crate) fn own(&self) -> &Login {
        &self.own
    }

    pub(crate) fn default(&self) -> &Account {
        &self.default
    }

    /// Does not wait when the user is known.
    pub(crate) async fn find(&self, user: &str, now: Duration) -> Result<Account, LookupError> {
        if let Some((_, account)) = self.known().get(user).filter(|(since, _)| now.saturating_sub(*since) < KNOWN_FOR) {
            return Ok(account.clone());
        }
        let name = user.to_owned();
        let asked = tokio::task::spawn_blocking(move || lookup_user(&name).map(Account::new)).await;
        let account =
            asked.map_err(|cause| LookupError::Failed { user: user.to_owned(), reason: cause.to_string() })??;
        let mut known = self.known();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(user.to_owned(), (now, account.clone()));
        Ok(account)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<String, (Duration, Account)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
