//! Values to and from PostgreSQL's binary format, by the types that the server has given to placeholders and columns.

use sqlx::postgres::{PgArguments, PgRow, PgStatement, PgTypeInfo};
use sqlx::{Arguments as _, Either, Error, Row as _, Statement as _, ValueRef as _};

use crate::{Row, Value};

/// By the numbers of the catalogue, which are fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bool,
    Int2,
    Int4,
    Int8,
    Float4,
    Float8,
    Numeric,
    Text,
    Bytes,
    Void,
}

fn kind(of: &PgTypeInfo) -> Result<Kind, Error> {
    Ok(match of.oid().map_or(0, |oid| oid.0) {
        16 => Kind::Bool,
        17 => Kind::Bytes,
        20 => Kind::Int8,
        21 => Kind::Int2,
        23 => Kind::Int4,
        700 => Kind::Float4,
        701 => Kind::Float8,
        1700 => Kind::Numeric,
        // name, text, unknown, char(n), varchar
        19 | 25 | 705 | 1042 | 1043 => Kind::Text,
        2278 => Kind::Void,
        other => return Err(broken(format!("PostgreSQL's type number {other} is not one that Belfry uses"))),
    })
}

pub(super) fn arguments(prepared: &PgStatement, values: &[Value]) -> Result<PgArguments, Error> {
    let Some(Either::Left(types)) = prepared.parameters() else {
        return Err(broken("PostgreSQL did not say what the statement takes"));
    };
    if types.len() != values.len() {
        return Err(broken(format!("the statement takes {} arguments, not {}", types.len(), values.len())));
    }
    let mut arguments = PgArguments::default();
    arguments.reserve(values.len(), values.iter().map(|value| size(value) + 4).sum());
    for (index, (value, of)) in values.iter().zip(types).enumerate() {
        let kind = kind(of)?;
        let unfit = || broken(format!("argument {index} cannot be a {kind:?}; write CAST(? AS …) around it"));
        let narrow = |v: i64| i32::try_from(v).map_err(|_| broken(format!("argument {index} does not fit: {v}")));
        let added = match (value, kind) {
            (Value::Null, _) => arguments.add(None::<i64>),
            (Value::Int(v), Kind::Int8) => arguments.add(*v),
            (Value::Int(v), Kind::Int4) => arguments.add(narrow(*v)?),
            (Value::Int(v), Kind::Bool) => arguments.add(*v != 0),
            (Value::Int(v), Kind::Float8) => arguments.add(*v as f64),
            (Value::Real(v), Kind::Float8) => arguments.add(*v),
            (Value::Text(v), Kind::Text) => arguments.add(v.as_str()),
            (Value::Blob(v), Kind::Bytes) => arguments.add(v.as_slice()),
            (Value::Int(_) | Value::Real(_) | Value::Text(_) | Value::Blob(_), _) => return Err(unfit()),
        };
        added.map_err(Error::Encode)?;
    }
    Ok(arguments)
}

fn size(value: &Value) -> usize {
    match value {
        Value::Null => 0,
        Value::Int(_) | Value::Real(_) => 8,
        Value::Text(text) => text.len(),
        Value::Blob(bytes) => bytes.len(),
    }
}

pub(super) fn row(row: &PgRow) -> Result<Row, Error> {
    (0..row.len()).map(|column| value(row, column)).collect::<Result<_, _>>().map(Row)
}

fn value(row: &PgRow, column: usize) -> Result<Value, Error> {
    let raw = row.try_get_raw(column)?;
    if raw.is_null() {
        return Ok(Value::Null);
    }
    let kind = kind(&raw.type_info())?;
    let bytes = raw.as_bytes().map_err(Error::Decode)?;
    let damaged = || broken(format!("column {column} is no {kind:?}"));
    Ok(match kind {
        Kind::Bool => Value::Int(i64::from(bytes != [0])),
        Kind::Int2 => Value::Int(i16::from_be_bytes(bytes.try_into().map_err(|_| damaged())?).into()),
        Kind::Int4 => Value::Int(i32::from_be_bytes(bytes.try_into().map_err(|_| damaged())?).into()),
        Kind::Int8 => Value::Int(i64::from_be_bytes(bytes.try_into().map_err(|_| damaged())?)),
        Kind::Float4 => Value::Real(f32::from_be_bytes(bytes.try_into().map_err(|_| damaged())?).into()),
        Kind::Float8 => Value::Real(f64::from_be_bytes(bytes.try_into().map_err(|_| damaged())?)),
        Kind::Numeric => numeric(bytes).ok_or_else(damaged)?,
        Kind::Text => Value::Text(raw.as_str().map_err(Error::Decode)?.to_owned()),
        Kind::Bytes => Value::Blob(bytes.to_vec()),
        Kind::Void => Value::Null,
    })
}

/// What SUM gives: digits to the base of 10000, the first of them worth 10000 to the power of `weight`.
fn numeric(bytes: &[u8]) -> Option<Value> {
    const NEGATIVE: u16 = 0x4000;
    let mut words = bytes.chunks_exact(2).map(|word| u16::from_be_bytes([word[0], word[1]]));
    let (digits, weight) = (words.next()?, i32::from(words.next()? as i16));
    let (sign, _scale) = (words.next()?, words.next()?);
    let digits: Vec<u16> = words.take(digits.into()).collect();
    let negative = match sign {
        0 => false,
        NEGATIVE => true,
        _ => return None,
    };
    if weight < 5 && digits.len() as i32 <= weight + 1 {
        let whole = (0..=weight).map(|i| digits.get(i as usize).copied().unwrap_or(0));
        let whole = whole.fold(0i128, |sum, digit| sum * 10_000 + i128::from(digit));
        if let Ok(whole) = i64::try_from(if negative { -whole } else { whole }) {
            return Some(Value::Int(whole));
        }
    }
    let worth = |(i, digit): (usize, &u16)| f64::from(*digit) * 10_000f64.powi(weight - i as i32);
    let real: f64 = digits.iter().enumerate().map(worth).sum();
    Some(if digits.is_empty() { Value::Int(0) } else { Value::Real(if negative { -real } else { real }) })
}

fn broken(says: impl Into<String>) -> Error {
    Error::InvalidArgument(says.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_whole_numbers_where_they_fit() {
        let read = |words: &[i16]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            numeric(&bytes)
        };
        assert_eq!(read(&[0, 0, 0, 0]), Some(Value::Int(0)));
        assert_eq!(read(&[1, 0, 0, 0, 42]), Some(Value::Int(42)));
        assert_eq!(read(&[1, 1, 0x4000, 0, 3]), Some(Value::Int(-30_000)));
        assert_eq!(read(&[2, 0, 0, 2, 1, 5_000]), Some(Value::Real(1.5)));
        assert_eq!(read(&[5, 4, 0x4000, 0, 922, 3372, 368, 5477, 5808]), Some(Value::Int(i64::MIN)));
        assert!(matches!(read(&[1, 5, 0, 0, 1]), Some(Value::Real(_))));
        assert_eq!(read(&[0, 0, -0x4000, 0]), None, "not a number");
    }
}
