//! Passwords: argon2id, off the async threads, a few at a time so that logins can neither eat the memory nor stop everything else.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use argon2::Argon2;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::errors::{Answer, ApiError};

/// Each takes about 19 MiB and 20 ms of a core.
const HASHES_AT_ONCE_MAX: usize = 2;
const WAIT_MAX: Duration = Duration::from_secs(10);
pub const PASSWORD_CHARS_MIN: usize = 10;
const PASSWORD_BYTES_MAX: usize = 1024;

#[derive(Clone)]
pub struct Passwords {
    turns: Arc<Semaphore>,
}

impl Default for Passwords {
    fn default() -> Self {
        Self { turns: Arc::new(Semaphore::new(HASHES_AT_ONCE_MAX)) }
    }
}

impl Passwords {
    pub async fn hash(&self, password: &str) -> Answer<String> {
        let password = password.to_owned();
        self.in_turn(move || hash_now(&password)).await
    }

    /// Whether the password is the one behind `hash`. Without a hash (no such user) it takes as long and answers no.
    pub async fn is_right(&self, password: &str, hash: Option<String>) -> Answer<bool> {
        let known = hash.is_some();
        let password = password.to_owned();
        if password.len() > PASSWORD_BYTES_MAX {
            return Ok(false);
        }
        let right = self
            .in_turn(move || {
                let hash = hash.unwrap_or_else(|| nobodys_hash().to_owned());
                Argon2::default().verify_password(password.as_bytes(), hash.as_str()).is_ok()
            })
            .await?;
        Ok(right && known)
    }

    async fn in_turn<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Answer<T> {
        let turn: OwnedSemaphorePermit = tokio::time::timeout(WAIT_MAX, self.turns.clone().acquire_owned())
            .await
            .map_err(|_| ApiError::away("busy", "too many sign-ins at once; try again soon"))?
            .map_err(|closed| ApiError::internal(&closed))?;
        tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        })
        .await
        .map_err(|failed| ApiError::internal(&failed))
    }
}

fn hash_now(password: &str) -> String {
    let hash: argon2::PasswordHash =
        Argon2::default().hash_password(password.as_bytes()).expect("the default parameters are valid");
    hash.to_string()
}

/// With the same parameters as a real one, so that an unknown user costs the same time.
fn nobodys_hash() -> &'static str {
    static HASH: OnceLock<String> = OnceLock::new();
    HASH.get_or_init(|| hash_now("nobody has this password"))
}

pub fn check_new_password(field: &str, password: &str) -> Answer<()> {
    if password.chars().count() < PASSWORD_CHARS_MIN || password.len() > PASSWORD_BYTES_MAX {
        let message =
            format!("a password has at least {PASSWORD_CHARS_MIN} characters and at most {PASSWORD_BYTES_MAX} bytes");
        return Err(ApiError::invalid(field, message));
    }
    Ok(())
}
