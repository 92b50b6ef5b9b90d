//! One statement on one SQLite connection: binding, rows out, and what SQLite's error codes mean to us.

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, ToSql, ffi, params_from_iter};

use crate::{Row, SqlError, Statement, Step, StepResult, Value};

/// Why a step did not happen.
pub(super) enum Failed {
    /// It did not find what it expected, or a unique key broke: undo its transaction, and only that.
    Refused {
        found: Vec<Row>,
    },
    Error(rusqlite::Error),
}

pub(super) fn run_step(connection: &Connection, step: &Step) -> Result<StepResult, Failed> {
    let result = run(connection, &step.statement).map_err(|error| match unique_broken(&error) {
        true => Failed::Refused { found: vec![] },
        false => Failed::Error(error),
    })?;
    if step.expect.holds(&result) { Ok(result) } else { Err(Failed::Refused { found: result.rows }) }
}

pub(super) fn run(connection: &Connection, statement: &Statement) -> rusqlite::Result<StepResult> {
    let mut prepared = connection.prepare_cached(&statement.sql)?;
    let columns = prepared.column_count();
    let mut rows = vec![];
    if columns == 0 {
        prepared.execute(params_from_iter(&statement.args))?;
    } else {
        let mut found = prepared.query(params_from_iter(&statement.args))?;
        while let Some(row) = found.next()? {
            let values = (0..columns).map(|column| value(column, row.get_ref(column)?));
            rows.push(Row(values.collect::<Result<_, rusqlite::Error>>()?));
        }
    }
    // `changes` keeps the number of the last write, so a query must not report it.
    let touched = if prepared.readonly() { 0 } else { connection.changes() };
    Ok(StepResult { touched, rows })
}

fn value(column: usize, value: ValueRef<'_>) -> rusqlite::Result<Value> {
    Ok(match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(v) => Value::Int(v),
        ValueRef::Real(v) => Value::Real(v),
        ValueRef::Text(v) => match std::str::from_utf8(v) {
            Ok(text) => Value::Text(text.to_owned()),
            Err(error) => return Err(rusqlite::Error::Utf8Error(column, error)),
        },
        ValueRef::Blob(v) => Value::Blob(v.to_vec()),
    })
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Value::Null => ValueRef::Null,
            Value::Int(v) => ValueRef::Integer(*v),
            Value::Real(v) => ValueRef::Real(*v),
            Value::Text(v) => ValueRef::Text(v.as_bytes()),
            Value::Blob(v) => ValueRef::Blob(v),
        }))
    }
}

fn unique_broken(error: &rusqlite::Error) -> bool {
    let extended = error.sqlite_error().map(|e| e.extended_code);
    matches!(
        extended,
        Some(ffi::SQLITE_CONSTRAINT_UNIQUE | ffi::SQLITE_CONSTRAINT_PRIMARYKEY | ffi::SQLITE_CONSTRAINT_ROWID)
    )
}

/// The error of a statement that is not a COMMIT: it has had no effect, whatever it is.
pub(super) fn sql_error(error: rusqlite::Error) -> SqlError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => SqlError::Full(error.to_string()),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            SqlError::Away(format!("another process holds its lock ({error})"))
        }
        Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen | ErrorCode::OutOfMemory | ErrorCode::ReadOnly) => {
            SqlError::Away(error.to_string())
        }
        _ => SqlError::Broken(error.to_string()),
    }
}

/// The error of a COMMIT. When the sync of the log failed, the commit record may be on the disk already and a restart may
/// bring it back, so that outcome is unknown; a full disk refused the record itself, so nothing was written.
pub(super) fn commit_error(error: rusqlite::Error) -> SqlError {
    match error.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure) => SqlError::Unknown,
        _ => sql_error(error),
    }
}
