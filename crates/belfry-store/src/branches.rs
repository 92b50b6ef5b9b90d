//! The ranges that a page of a list is merged from, each in the order of its own index. Knows no table.

use belfry_sql::Value;

use crate::columns::word;
use crate::dialect::marks;

/// More ranges than this are not merged: who may see that many namespaces sees a good part of all rows anyway.
pub(crate) const BRANCHES_MAX: usize = 120;

/// One range of one index, with what else must hold.
#[derive(Default)]
pub(crate) struct Branch {
    conditions: Vec<String>,
    args: Vec<Value>,
}

impl Branch {
    pub(crate) fn equal(mut self, column: &str, value: Value) -> Self {
        self.conditions.push(format!("{column} = ?"));
        self.args.push(value);
        self
    }

    /// What is only checked hides its column from the planner, which might else prefer that column's index and then sort.
    pub(crate) fn checked(mut self, column: &str, values: &[impl ToString]) -> Self {
        if !values.is_empty() {
            self.conditions.push(format!("COALESCE({column}, '') IN ({})", marks(values.len())));
            self.args.extend(values.iter().map(|value| word(value.to_string())));
        }
        self
    }

    pub(crate) fn within(mut self, namespaces: &Option<Vec<String>>) -> Self {
        match namespaces.as_deref() {
            None => self,
            Some([]) => {
                self.conditions.push("1 = 0".to_owned());
                self
            }
            Some(namespaces) => self.checked("namespace", namespaces),
        }
    }

    /// Something else that must hold.
    pub(crate) fn that(mut self, condition: &str, args: impl IntoIterator<Item = Value>) -> Self {
        self.conditions.push(condition.to_owned());
        self.args.extend(args);
        self
    }

    /// What stands after `WHERE`, and its arguments.
    pub(crate) fn spoken(self) -> (String, Vec<Value>) {
        (self.conditions.join(" AND "), self.args)
    }
}
