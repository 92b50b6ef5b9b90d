//! Everything that SQLite, PostgreSQL and MySQL say differently, and the multi-row texts built from it. Nothing else in the
//! store asks which database it stands on.

use belfry_sql::{Dialect, Step, Value, sql};

/// Rows of one multi-row statement. A batch is cut into pieces of these sizes, so that few statement texts exist and each
/// stays prepared.
const PIECE_ROWS: [usize; 4] = [64, 16, 4, 1];

/// Cuts a batch into pieces whose lengths are in [`PIECE_ROWS`].
pub(crate) fn pieces<T>(mut rows: &[T]) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let size = PIECE_ROWS.into_iter().find(|size| *size <= rows.len())?;
        let (piece, rest) = rows.split_at(size);
        rows = rest;
        Some(piece)
    })
}

/// `?, ?, ?`
pub(crate) fn marks(count: usize) -> String {
    let mut text = "?, ".repeat(count);
    text.truncate(text.len().saturating_sub(2));
    text
}

/// ` AND column IN (…)`, as something to check only: the column is hidden from planners, which might else prefer its index and then sort.
pub(crate) fn checked_within(column: &str, among: Option<&[String]>) -> (String, Vec<Value>) {
    match among {
        None => (String::new(), Vec::new()),
        Some([]) => (" AND 1 = 0".to_owned(), Vec::new()),
        Some(among) => {
            let text = format!(" AND COALESCE({column}, '') IN ({})", marks(among.len()));
            (text, among.iter().map(|name| Value::Text(name.clone())).collect())
        }
    }
}

/// `INSERT INTO table (a, b) VALUES (?, ?), (?, ?)`
pub(crate) fn insert(table: &str, columns: &[&str], rows: usize) -> String {
    let row = format!("({}), ", marks(columns.len()));
    let mut values = row.repeat(rows);
    values.truncate(values.len().saturating_sub(2));
    format!("INSERT INTO {table} ({}) VALUES {values}", columns.join(", "))
}

/// `(first, second)` comes after a pair, as a range of an index that has both.
pub(crate) fn pair_after(dialect: Dialect, first: &str, second: &str, pair: (Value, Value)) -> (String, Vec<Value>) {
    pair_compared(dialect, first, second, '>', pair)
}

/// `(first, second)` comes before a pair, as a range of an index that has both.
pub(crate) fn pair_before(dialect: Dialect, first: &str, second: &str, pair: (Value, Value)) -> (String, Vec<Value>) {
    pair_compared(dialect, first, second, '<', pair)
}

/// MySQL reads from the beginning when rows are compared, but finds the two ranges of the spelt-out form.
fn pair_compared(dialect: Dialect, first: &str, second: &str, is: char, pair: (Value, Value)) -> (String, Vec<Value>) {
    let (a, b) = pair;
    match dialect {
        Dialect::Sqlite | Dialect::Postgres => (format!("({first}, {second}) {is} (?, ?)"), vec![a, b]),
        Dialect::MySql => (format!("(({first} = ? AND {second} {is} ?) OR {first} {is} ?)"), vec![a.clone(), b, a]),
    }
}

/// What an insert does about a row whose key is there already.
pub(crate) enum IfThere<'a> {
    Keep,
    /// Sets columns; each is `(column, expression)`, in which `old.x` and `new.x` name the row that is there and the one that
    /// came. With a guard, only where it holds.
    Set {
        columns: &'a [(&'a str, &'a str)],
        guard: Option<&'a str>,
    },
}

/// The tail of an insert.
pub(crate) fn if_there(dialect: Dialect, table: &str, key: &[&str], then: &IfThere<'_>) -> String {
    match (dialect, then) {
        (Dialect::Sqlite | Dialect::Postgres, IfThere::Keep) => format!(" ON CONFLICT ({}) DO NOTHING", key.join(", ")),
        (Dialect::Sqlite | Dialect::Postgres, IfThere::Set { columns, guard }) => {
            let spoken = |text: &str| name_rows(text, |old| format!("{table}.{old}"), |new| format!("excluded.{new}"));
            let sets: Vec<String> =
                columns.iter().map(|(column, value)| format!("{column} = {}", spoken(value))).collect();
            let guard = guard.map_or(String::new(), |guard| format!(" WHERE {}", spoken(guard)));
            format!(" ON CONFLICT ({}) DO UPDATE SET {}{guard}", key.join(", "), sets.join(", "))
        }
        (Dialect::MySql, IfThere::Keep) => format!(" ON DUPLICATE KEY UPDATE {0} = {table}.{0}", key[0]),
        (Dialect::MySql, IfThere::Set { columns, guard }) => {
            let spoken = |text: &str| name_rows(text, |old| format!("{table}.{old}"), |new| format!("VALUES({new})"));
            let guard = guard.map(spoken);
            // MySQL assigns from left to right and later expressions see it: a column that the guard reads comes last.
            let sets: Vec<String> = columns
                .iter()
                .map(|(column, value)| match &guard {
                    Some(guard) => format!("{column} = IF({guard}, {}, {table}.{column})", spoken(value)),
                    None => format!("{column} = {}", spoken(value)),
                })
                .collect();
            format!(" ON DUPLICATE KEY UPDATE {}", sets.join(", "))
        }
    }
}

/// What a column of [`incoming`] rows holds.
#[derive(Clone, Copy)]
pub(crate) enum Column {
    /// Compared with ids in tables: it has their character set, else MySQL would not use an index on them.
    Id,
    Number,
    Text,
}

/// Rows of arguments as a table of this name.
pub(crate) fn incoming(dialect: Dialect, name: &str, columns: &[(&str, Column)], rows: usize) -> String {
    let argument = |column: Column| match (dialect, column) {
        (Dialect::Sqlite, _) | (Dialect::Postgres, Column::Id | Column::Text) => "?",
        (Dialect::Postgres, Column::Number) => "CAST(? AS BIGINT)",
        (Dialect::MySql, Column::Id) => "CONVERT(? USING ascii) COLLATE ascii_bin",
        (Dialect::MySql, Column::Number | Column::Text) => "?",
    };
    let plain: Vec<&str> = columns.iter().map(|(_, column)| argument(*column)).collect();
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let values = || vec![format!("({})", plain.join(", ")); rows].join(", ");
    match dialect {
        Dialect::Sqlite => {
            let named: Vec<String> = names.iter().zip(1..).map(|(name, n)| format!("column{n} AS {name}")).collect();
            format!("(SELECT {} FROM (VALUES {})) AS {name}", named.join(", "), values())
        }
        Dialect::Postgres => format!("(VALUES {}) AS {name} ({})", values(), names.join(", ")),
        Dialect::MySql => {
            let named: Vec<String> =
                plain.iter().zip(&names).map(|(value, name)| format!("{value} AS {name}")).collect();
            let others = format!(" UNION ALL SELECT {}", plain.join(", ")).repeat(rows.saturating_sub(1));
            format!("(SELECT {}{others}) AS {name}", named.join(", "))
        }
    }
}

/// The texts of a group in one, that of the greatest `by` first.
pub(crate) fn joined_newest_first(dialect: Dialect, text: &str, by: &str) -> String {
    match dialect {
        Dialect::Sqlite => format!("GROUP_CONCAT({text}, '' ORDER BY {by} DESC)"),
        Dialect::Postgres => format!("STRING_AGG({text}, '' ORDER BY {by} DESC)"),
        Dialect::MySql => format!("GROUP_CONCAT({text} ORDER BY {by} DESC SEPARATOR '')"),
    }
}

fn name_rows(text: &str, old: impl Fn(&str) -> String, new: impl Fn(&str) -> String) -> String {
    let mut out = String::new();
    for (i, token) in text.split(' ').enumerate() {
        if i > 0 {
            out.push(' ');
        }
        match (token.strip_prefix("old."), token.strip_prefix("new.")) {
            (Some(column), _) => out.push_str(&old(column)),
            (_, Some(column)) => out.push_str(&new(column)),
            (None, None) => out.push_str(token),
        }
    }
    out
}

/// The step to begin with where a transaction reads before it writes: those that begin with the lock of this row of `counters` take
/// effect one after the other. SQLite has one writer at a time anyway.
pub(crate) fn lock(dialect: Dialect, counter: &'static str) -> Option<Step> {
    match dialect {
        Dialect::Sqlite => None,
        Dialect::Postgres | Dialect::MySql => {
            Some(sql!("SELECT value FROM counters WHERE name = ? FOR UPDATE", counter).returning(1))
        }
    }
}

/// The newest `limit` rows of a table that any branch finds; the caller sorts. `order` ends with the table's key, and each branch is the text
/// after `WHERE` and is read in the order of its own index, places only, so that no database reads more than a page from any of them.
pub(crate) fn newest_of(
    dialect: Dialect,
    table: &str,
    columns: &str,
    order: &[&str],
    branches: &[String],
    limit: usize,
) -> String {
    let (place, key) = (order.join(", "), order[order.len() - 1]);
    let newest = format!("ORDER BY {} DESC LIMIT {limit}", order.join(" DESC, "));
    let places: Vec<String> = match (dialect, branches) {
        (_, [one]) => return format!("SELECT {columns} FROM {table} WHERE {one} {newest}"),
        // Both merge ordered branches lazily.
        (Dialect::Sqlite | Dialect::Postgres, _) => {
            branches.iter().map(|b| format!("SELECT {place} FROM {table} WHERE {b}")).collect()
        }
        // Does not: each branch is cut first.
        (Dialect::MySql, _) => {
            branches.iter().map(|b| format!("(SELECT {place} FROM {table} WHERE {b} {newest})")).collect()
        }
    };
    let places = places.join(" UNION ALL ");
    format!("SELECT {columns} FROM {table} WHERE {key} IN (SELECT {key} FROM ({places} {newest}) AS newest)")
}

/// About how many runs there are and how many bytes the database takes, without reading a table.
pub(crate) fn cheap_facts(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Sqlite => {
            "SELECT (SELECT COALESCE(MAX(rowid), 0) FROM runs) - (SELECT COALESCE(MIN(rowid), 1) FROM runs) + 1, \
             (SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size)"
        }
        Dialect::Postgres => {
            "SELECT GREATEST((SELECT reltuples::BIGINT FROM pg_class WHERE oid = 'runs'::regclass), 0), \
             pg_database_size(current_database())"
        }
        Dialect::MySql => {
            "SELECT COALESCE(MAX(CASE WHEN table_name = 'runs' THEN table_rows END), 0), \
             CAST(COALESCE(SUM(data_length + index_length), 0) AS SIGNED) \
             FROM information_schema.tables WHERE table_schema = DATABASE()"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_cut_into_few_sizes() {
        let rows = [0; 150];
        let sizes: Vec<usize> = pieces(&rows).map(<[_]>::len).collect();
        assert_eq!(sizes, [64, 64, 16, 4, 1, 1]);
        assert_eq!(pieces::<u8>(&[]).count(), 0);
    }

    #[test]
    fn each_database_gets_its_own_upsert() {
        let then = IfThere::Set { columns: &[("n", "old.n + new.n"), ("p", "new.p")], guard: Some("new.p > old.p") };
        assert_eq!(
            if_there(Dialect::Sqlite, "t", &["k"], &then),
            " ON CONFLICT (k) DO UPDATE SET n = t.n + excluded.n, p = excluded.p WHERE excluded.p > t.p"
        );
        assert_eq!(
            if_there(Dialect::MySql, "t", &["k"], &then),
            " ON DUPLICATE KEY UPDATE n = IF(VALUES(p) > t.p, t.n + VALUES(n), t.n), p = IF(VALUES(p) > t.p, VALUES(p), t.p)"
        );
    }

    #[test]
    fn inserts_have_a_mark_for_each_value() {
        assert_eq!(insert("t", &["a", "b"], 2), "INSERT INTO t (a, b) VALUES (?, ?), (?, ?)");
    }
}
