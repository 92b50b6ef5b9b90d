//! What can go wrong in the store, in words that the API can pass on, and whether to try again.

use belfry_sql::SqlError;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("not found")]
    NotFound,
    #[error("the name `{name}` is taken")]
    NameTaken { name: String },
    #[error("it was changed in the meantime and is now at revision {revision}")]
    Conflict { revision: u64 },
    #[error("at least one enabled user must be admin everywhere")]
    LastAdmin,
    #[error("it is used by {}", by.join(", "))]
    InUse { by: Vec<String> },
    /// Written by a newer version of Belfry, or damaged.
    #[error("the stored {what} cannot be read")]
    Unreadable {
        what: String,
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the store did not answer as it should")]
    Database(#[source] SqlError),
}

impl StoreError {
    /// The same call may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            StoreError::Database(cause) => cause.is_transient(),
            StoreError::NotFound
            | StoreError::NameTaken { .. }
            | StoreError::Conflict { .. }
            | StoreError::LastAdmin
            | StoreError::InUse { .. }
            | StoreError::Unreadable { .. } => false,
        }
    }

    /// The write may have taken effect, or may still: look before trying again.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, StoreError::Database(cause) if cause.outcome_unknown())
    }

    /// The store is there, and answers others: this question was too much for it.
    pub fn took_too_long(&self) -> bool {
        matches!(self, StoreError::Database(SqlError::TooSlow(_)))
    }

    pub(crate) fn unreadable(
        what: impl Into<String>,
        cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        StoreError::Unreadable { what: what.into(), cause: cause.into() }
    }
}

impl From<SqlError> for StoreError {
    fn from(cause: SqlError) -> Self {
        StoreError::Database(cause)
    }
}

/// Why `apply` changed nothing: the first change that cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("change {index} is refused")]
pub struct ChangeRefused {
    pub index: usize,
    #[source]
    pub cause: StoreError,
}
