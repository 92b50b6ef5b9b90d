//! Values to and from MySQL's binary format.

use sqlx::mysql::{MySqlArguments, MySqlRow, MySqlTypeInfo};
use sqlx::{Arguments as _, Decode, Error, MySql, Row as _, TypeInfo as _, ValueRef as _};

use crate::{Row, Value};

pub(super) fn arguments(values: &[Value]) -> Result<MySqlArguments, Error> {
    let mut arguments = MySqlArguments::default();
    for value in values {
        let added = match value {
            Value::Null => arguments.add(None::<i64>),
            Value::Int(v) => arguments.add(*v),
            Value::Real(v) => arguments.add(*v),
            Value::Text(v) => arguments.add(v.as_str()),
            Value::Blob(v) => arguments.add(v.as_slice()),
        };
        added.map_err(Error::Encode)?;
    }
    Ok(arguments)
}

pub(super) fn row(row: &MySqlRow) -> Result<Row, Error> {
    (0..row.len()).map(|column| value(row, column)).collect::<Result<_, _>>().map(Row)
}

fn value(row: &MySqlRow, column: usize) -> Result<Value, Error> {
    let raw = row.try_get_raw(column)?;
    if raw.is_null() {
        return Ok(Value::Null);
    }
    let of = raw.type_info().into_owned();
    let decoded = if is::<i64>(&of) {
        <i64 as Decode<MySql>>::decode(raw).map(Value::Int)
    } else if is::<u64>(&of) {
        <u64 as Decode<MySql>>::decode(raw).map(|v| i64::try_from(v).map_or(Value::Real(v as f64), Value::Int))
    } else if is::<f64>(&of) {
        <f64 as Decode<MySql>>::decode(raw).map(Value::Real)
    } else if of.name() == "DECIMAL" {
        // What SUM gives, as text.
        <&str as Decode<MySql>>::decode(raw).and_then(|text| match text.parse() {
            Ok(whole) => Ok(Value::Int(whole)),
            Err(_) => Ok(Value::Real(text.parse()?)),
        })
    } else if is::<str>(&of) {
        // Known by its collation: a text that is compared byte by byte has the flag of bytes, too.
        <&str as Decode<MySql>>::decode(raw).map(|text| Value::Text(text.to_owned()))
    } else if is::<[u8]>(&of) {
        <&[u8] as Decode<MySql>>::decode(raw).map(|bytes| Value::Blob(bytes.to_vec()))
    } else {
        Err(format!("MySQL's type {} is not one that Belfry uses", of.name()).into())
    };
    decoded.map_err(|source| Error::ColumnDecode { index: column.to_string(), source })
}

fn is<T: sqlx::Type<MySql> + ?Sized>(of: &MySqlTypeInfo) -> bool {
    T::compatible(of)
}
