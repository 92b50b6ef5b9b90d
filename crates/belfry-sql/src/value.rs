//! Values that travel to and from a database: portable types only (BIGINT, DOUBLE, text, bytes, NULL).

/// One argument or one column.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Int(i64),
    Real(f64),
    Text(String),
    Blob(Vec<u8>),
}

/// One row, columns in the order of the query.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row(pub Vec<Value>);

impl Row {
    /// Panics when the query has no such column: that is a defect of the query, not of the data.
    pub fn get(&self, column: usize) -> &Value {
        &self.0[column]
    }
    pub fn int(&self, column: usize) -> i64 {
        match self.get(column) {
            Value::Int(v) => *v,
            Value::Real(v) => *v as i64,
            other => panic!("column {column} holds {other:?}, an integer was expected"),
        }
    }
    pub fn opt_int(&self, column: usize) -> Option<i64> {
        (*self.get(column) != Value::Null).then(|| self.int(column))
    }
    pub fn text(&self, column: usize) -> &str {
        match self.get(column) {
            Value::Text(v) => v,
            other => panic!("column {column} holds {other:?}, text was expected"),
        }
    }
    pub fn opt_text(&self, column: usize) -> Option<&str> {
        (*self.get(column) != Value::Null).then(|| self.text(column))
    }
    pub fn blob(&self, column: usize) -> &[u8] {
        match self.get(column) {
            Value::Blob(v) => v,
            Value::Text(v) => v.as_bytes(),
            other => panic!("column {column} holds {other:?}, bytes were expected"),
        }
    }
}

impl From<i64> for Value {
    fn from(v: i64) -> Self {
        Value::Int(v)
    }
}
impl From<u64> for Value {
    fn from(v: u64) -> Self {
        // A larger one comes from outside, as a bound or an offset: it is beyond everything, and stays so.
        Value::Int(i64::try_from(v).unwrap_or(i64::MAX))
    }
}
impl From<u32> for Value {
    fn from(v: u32) -> Self {
        Value::Int(v.into())
    }
}
impl From<i32> for Value {
    fn from(v: i32) -> Self {
        Value::Int(v.into())
    }
}
impl From<bool> for Value {
    fn from(v: bool) -> Self {
        Value::Int(v.into())
    }
}
impl From<f64> for Value {
    fn from(v: f64) -> Self {
        Value::Real(v)
    }
}
impl From<&str> for Value {
    fn from(v: &str) -> Self {
        Value::Text(v.to_owned())
    }
}
impl From<String> for Value {
    fn from(v: String) -> Self {
        Value::Text(v)
    }
}
impl From<Vec<u8>> for Value {
    fn from(v: Vec<u8>) -> Self {
        Value::Blob(v)
    }
}
impl From<&[u8]> for Value {
    fn from(v: &[u8]) -> Self {
        Value::Blob(v.to_vec())
    }
}
impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(v: Option<T>) -> Self {
        v.map_or(Value::Null, Into::into)
    }
}
