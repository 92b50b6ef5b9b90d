//! `?` placeholders as PostgreSQL numbers them, worked out once per text.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};

/// More than the store and the coordinator have; beyond it all are forgotten and worked out anew.
const TEXTS_MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct NumberedTexts(Mutex<HashMap<Box<str>, SqlStr>>);

impl NumberedTexts {
    pub(crate) fn of(&self, text: &str) -> SqlStr {
        let mut texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(numbered) = texts.get(text) {
            return numbered.clone();
        }
        if texts.len() >= TEXTS_MAX {
            texts.clear();
        }
        let numbered = AssertSqlSafe(Arc::<str>::from(number(text))).into_sql_str();
        texts.insert(text.into(), numbered.clone());
        numbered
    }
}

/// Leaves what is quoted, and comments, as they are. A doubled quote ends and begins again, which comes to the same.
fn number(text: &str) -> String {
    let mut numbered = String::with_capacity(text.len() + text.len() / 4);
    let mut within: Option<char> = None;
    let mut marks = 0;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (within, c) {
            (None, '?') => {
                marks += 1;
                numbered.push_str(&format!("${marks}"));
                continue;
            }
            (None, '\'' | '"') => within = Some(c),
            (None, '-') if chars.peek() == Some(&'-') => within = Some('\n'),
            (Some(end), c) if c == end => within = None,
            (None | Some(_), _) => {}
        }
        numbered.push(c);
    }
    numbered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_numbered_outside_of_quotes_and_comments() {
        for (text, numbered) in [
            ("SELECT ? + ?", "SELECT $1 + $2"),
            ("SELECT '?', 'it''s ?', \"?\", ?", "SELECT '?', 'it''s ?', \"?\", $1"),
            ("SELECT 1 -- why?\n, ? - ?", "SELECT 1 -- why?\n, $1 - $2"),
            ("SELECT '\\', ?", "SELECT '\\', $1"),
            ("", ""),
        ] {
            assert_eq!(number(text), numbered);
        }
        let texts = NumberedTexts::default();
        for _ in 0..2 {
            assert_eq!(texts.of("a = ?").as_str(), "a = $1");
        }
    }
}
