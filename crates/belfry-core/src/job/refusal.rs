//! Why a document is not accepted: the field, and a sentence that names the value and what would be accepted.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct Refusal {
    /// Dotted path into the document, as `retry.delay` or `schedule[1]`.
    pub field: String,
    pub message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() { f.write_str(&self.message) } else { write!(f, "{}: {}", self.field, self.message) }
    }
}

impl Refusal {
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }

    pub fn not_supported_yet(field: &str, what: &str) -> Self {
        Self::new(field, format!("{what} is not supported yet; remove it from the document"))
    }

    pub(super) fn from_schedule(error: &crate::schedule::ScheduleError) -> Self {
        let field = match error.field {
            "timezone" | "window" => error.field.to_owned(),
            _ => match error.index {
                Some(index) => format!("schedule[{index}]"),
                None => "schedule".to_owned(),
            },
        };
        Self::new(field, error.to_string())
    }
}
