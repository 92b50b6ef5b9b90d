//! Numbers for the front page, from kept counts: never by reading through runs.

use belfry_core::Timestamp;
use belfry_core::run::RunState;
use belfry_sql::{Statement, Value, sql};

use crate::columns::{DAY_MS, instant, ms, word};
use crate::dialect::{cheap_facts, marks};
use crate::{Store, StoreError};

/// Runs that were planned on a UTC day and have ended so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DayCount {
    /// Its first instant.
    pub day: Timestamp,
    pub state: RunState,
    pub runs: u64,
}

/// How many jobs there are in a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceCount {
    pub namespace: String,
    pub jobs: u64,
    pub jobs_enabled: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overview {
    /// Those that have a job, by name.
    pub namespaces: Vec<NamespaceCount>,
    /// By state, of runs that have not ended.
    pub open: Vec<(RunState, u64)>,
    pub days: Vec<DayCount>,
}

/// About how much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreFacts {
    pub jobs: u64,
    /// An estimate.
    pub runs: u64,
    pub database_bytes: u64,
}

impl Store {
    /// `namespaces` None: all. Days from that of `from` up to that of `to`, both included.
    pub async fn overview(
        &self,
        namespaces: Option<&[String]>,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Overview, StoreError> {
        let (within, names) = within(namespaces);
        let mut open = Vec::new();
        for state in RunState::ALL.into_iter().filter(|state| !state.is_ended()) {
            let text = format!("SELECT COUNT(*) FROM runs WHERE state = ?{within}");
            let args = [vec![word(state)], names.clone()].concat();
            open.push((state, self.read(Statement { sql: text.into(), args }).await?[0].int(0) as u64));
        }
        Ok(Overview {
            namespaces: self.namespaces(namespaces).await?,
            open,
            days: self.run_counts(namespaces, from, to).await?,
        })
    }

    /// Those of them that have a job, by name; `only` None: of all.
    pub async fn namespaces(&self, only: Option<&[String]>) -> Result<Vec<NamespaceCount>, StoreError> {
        let (within, args) = within(only);
        let text = format!(
            "SELECT namespace, COUNT(*), SUM(enabled) FROM jobs WHERE removed_seq = 0{within} GROUP BY namespace ORDER BY namespace"
        );
        let count = |row: &belfry_sql::Row| NamespaceCount {
            namespace: row.text(0).to_owned(),
            jobs: row.int(1) as u64,
            jobs_enabled: row.int(2) as u64,
        };
        Ok(self.read(Statement { sql: text.into(), args }).await?.iter().map(count).collect())
    }

    /// Ended runs per day and state. Runs that were pruned since are still counted.
    pub async fn run_counts(
        &self,
        namespaces: Option<&[String]>,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<DayCount>, StoreError> {
        let (within, names) = within(namespaces);
        let text = format!(
            "SELECT day, state, SUM(n) FROM run_counts WHERE day >= ? AND day <= ?{within} GROUP BY day, state HAVING SUM(n) > 0 ORDER BY day, state"
        );
        let args = [vec![Value::Int(day_of(from)), Value::Int(ms(to))], names].concat();
        let rows = self.read(Statement { sql: text.into(), args }).await?;
        let count = |row: &belfry_sql::Row| {
            let state = RunState::parse(row.text(1))?;
            Some(DayCount { day: instant(row.int(0)), state, runs: row.int(2) as u64 })
        };
        Ok(rows.iter().filter_map(count).collect())
    }

    pub async fn store_facts(&self) -> Result<StoreFacts, StoreError> {
        let jobs = self.read(sql!("SELECT COUNT(*) FROM jobs WHERE removed_seq = 0")).await?[0].int(0) as u64;
        let facts = self.read(sql!(cheap_facts(self.dialect()))).await?;
        Ok(StoreFacts { jobs, runs: facts[0].int(0) as u64, database_bytes: facts[0].int(1) as u64 })
    }
}

fn day_of(at: Timestamp) -> i64 {
    ms(at) - ms(at).rem_euclid(DAY_MS)
}

fn within(namespaces: Option<&[String]>) -> (String, Vec<Value>) {
    match namespaces {
        None => (String::new(), Vec::new()),
        Some([]) => (" AND 1 = 0".to_owned(), Vec::new()),
        Some(namespaces) => {
            (format!(" AND namespace IN ({})", marks(namespaces.len())), namespaces.iter().map(word).collect())
        }
    }
}
