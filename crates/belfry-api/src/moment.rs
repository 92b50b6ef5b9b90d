//! Instants as the API writes them: RFC 3339, UTC, always three decimals, so that text order is time order.

use belfry_core::Timestamp;
use serde::{Serialize, Serializer};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub Timestamp);

impl From<Timestamp> for Moment {
    fn from(at: Timestamp) -> Self {
        Self(at)
    }
}

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3}", self.0)
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl PartialSchema for Moment {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .description(Some("RFC 3339 in UTC, with milliseconds"))
            .build()
            .into()
    }
}

impl ToSchema for Moment {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_moment_has_three_decimals() {
        for (given, shown) in [
            ("2026-11-15T04:00:00Z", "2026-11-15T04:00:00.000Z"),
            ("2026-11-15T04:00:00.1239Z", "2026-11-15T04:00:00.123Z"),
        ] {
            assert_eq!(Moment(given.parse().unwrap()).to_string(), shown);
        }
    }
}
