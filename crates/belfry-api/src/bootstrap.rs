//! The first start: an admin with a random password, and a token for the command line on the same machine.

use belfry_core::role::{Grants, Role};
use belfry_core::{JobId, Timestamp};
use belfry_store::{Actor, NewToken, NewUser, SecretHash, Store, StoreError, TokenOwner};

use crate::auth::{Passwords, new_password, new_token, random_bits};
use crate::errors::ApiError;

pub const ADMIN: &str = "admin";

#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    #[error("make the first admin")]
    Store(#[from] StoreError),
    #[error("hash the first admin's password: {0}")]
    Password(ApiError),
}

/// Makes the user `admin` when there is no user at all, and answers the password, which is nowhere else.
pub async fn ensure_admin(store: &Store, now: Timestamp) -> Result<Option<String>, BootstrapError> {
    if !store.list_users().await?.is_empty() {
        return Ok(None);
    }
    let password = new_password();
    let password_hash = Passwords::default().hash(&password).await.map_err(BootstrapError::Password)?;
    let new = NewUser { name: ADMIN.to_owned(), password_hash, grants: Grants::everywhere(Role::Admin) };
    match store.create_user(new, now, &Actor::new("belfry")).await {
        Ok(_) => Ok(Some(password)),
        // Another server was faster; its password is the one that counts.
        Err(StoreError::NameTaken { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Makes a token and answers its secret, which is nowhere else.
pub async fn create_token(
    store: &Store,
    owner: TokenOwner,
    label: &str,
    grants: Grants,
    now: Timestamp,
) -> Result<String, StoreError> {
    let secret = new_token();
    let id = JobId::new(now, random_bits()).to_string();
    let new =
        NewToken { id, owner, label: label.to_owned(), secret: SecretHash::of(&secret), grants, expires_at: None };
    store.create_token(new, now, &Actor::new("belfry")).await?;
    Ok(secret)
}
