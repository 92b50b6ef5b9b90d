//! Why a schedule was refused, in words for the person who wrote it.

/// Names the expression, its field, the offending value and what would be accepted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}{message}", self.place())]
pub struct ScheduleError {
    /// Position in the job's list of schedules; none when the zone or the window itself is wrong.
    pub index: Option<usize>,
    /// The expression as written; empty when the zone or the window itself is wrong.
    pub expression: String,
    /// `second`, `minute`, `hour`, `day-of-month`, `month`, `day-of-week`, `year`, or `schedule`, `timezone`, `window`.
    pub field: &'static str,
    pub message: String,
}

impl ScheduleError {
    pub(super) fn timezone(message: String) -> Self {
        Self { index: None, expression: String::new(), field: "timezone", message }
    }

    pub(super) fn window(message: String) -> Self {
        Self { index: None, expression: String::new(), field: "window", message }
    }

    fn place(&self) -> String {
        match self.index {
            Some(_) => format!("schedule \"{}\": ", self.expression),
            None => String::new(),
        }
    }
}

/// A refusal by a part of the parser that does not know which expression of the job it reads.
#[derive(Debug)]
pub(super) struct Refusal {
    pub field: &'static str,
    pub message: String,
}

impl Refusal {
    pub fn new(field: &'static str, message: impl Into<String>) -> Self {
        Self { field, message: message.into() }
    }

    pub fn of(self, index: usize, expression: &str) -> ScheduleError {
        ScheduleError {
            index: Some(index),
            expression: expression.to_owned(),
            field: self.field,
            message: self.message,
        }
    }
}
