//! The users and groups that jobs run as, asked for once and kept for a minute: the user database may be slow, and a start is not.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use belfry_exec::{Login, LookupError, lookup_group, lookup_user};

/// A user as a run needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub login: Login,
    pub has_home: bool,
}

pub(crate) struct Logins {
    /// The agent's own user.
    own: Account,
    users: Known<Account>,
    groups: Known<u32>,
}

const KNOWN_FOR: Duration = Duration::from_secs(60);
const KNOWN_MAX: usize = 1000;

impl Account {
    fn new(login: Login) -> Account {
        Account { has_home: login.home.is_dir(), login }
    }
}

impl Logins {
    pub(crate) fn new(own: Login) -> Logins {
        Logins { own: Account::new(own), users: Known::default(), groups: Known::default() }
    }

    pub(crate) fn own(&self) -> &Account {
        &self.own
    }

    /// Does not wait when the user is known.
    pub(crate) async fn user(&self, name: &str, now: Duration) -> Result<Account, LookupError> {
        self.users.get(name, now, |name| lookup_user(name).map(Account::new)).await
    }

    /// Its number. Does not wait when the group is known.
    pub(crate) async fn group(&self, name: &str, now: Duration) -> Result<u32, LookupError> {
        self.groups.get(name, now, lookup_group).await
    }
}

struct Known<T>(Mutex<HashMap<String, (Duration, T)>>);

impl<T> Default for Known<T> {
    fn default() -> Self {
        Known(Mutex::default())
    }
}

impl<T: Clone + Send + 'static> Known<T> {
    async fn get(
        &self,
        name: &str,
        now: Duration,
        ask: impl FnOnce(&str) -> Result<T, LookupError> + Send + 'static,
    ) -> Result<T, LookupError> {
        if let Some((_, found)) = self.lock().get(name).filter(|(since, _)| now.saturating_sub(*since) < KNOWN_FOR) {
            return Ok(found.clone());
        }
        let asked = name.to_owned();
        let found = tokio::task::spawn_blocking(move || ask(&asked)).await;
        let found =
            found.map_err(|cause| LookupError::Failed { name: name.to_owned(), reason: cause.to_string() })??;
        let mut known = self.lock();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(name.to_owned(), (now, found.clone()));
        Ok(found)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, (Duration, T)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
