//! What webhooks are to be told, one row for each piece of news of a run. A row is made in the transaction that records the news, so
//! that neither exists without the other; it says the same at every try. It posts nothing.

use belfry_core::job::Webhook;
use belfry_core::run::{Run, RunState};
use belfry_core::webhook::{Delivery, DeliveryId, News, bit};
use belfry_core::{JobId, RunId, Timestamp};
use belfry_sql::{Row, Statement, Step, sql};

use crate::columns::{from_json, instant, ms, opt_instant, parsed, word};
use crate::dialect::{IfThere, if_there, marks};
use crate::{Store, StoreError};

const COLUMNS: &str = "run, attempt, news, job, namespace, job_name, revision, reason, planned, started_at, ended_at, exit_code, \
     exit_signal, node_name, late, receiver, tries, first_try_at, last_try_at, last_status, last_error, next_try_at, delivered_at";
/// The reason that is told with it.
const OVERDUE: &str = "it runs longer than timeout.after, and goes on";
/// Receivers whose next deliveries are fetched by one statement.
const RECEIVERS_PER_READ: usize = 32;
/// How many receivers one look finds; those beyond it have their turn when others are done.
const RECEIVERS_MAX: usize = 10_000;

/// What a try came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tried {
    Delivered {
        status: u16,
    },
    /// Without `next_try_at` it is given up.
    InVain {
        status: Option<u16>,
        error: String,
        next_try_at: Option<Timestamp>,
    },
}

impl Store {
    /// What becomes due with ends that were just recorded. The row of the run decides, not what was brought: the same end again, or one
    /// that came too late, adds nothing; `lost` that is corrected is news.
    pub(crate) fn tell_ended(&self, ids: &[RunId]) -> Step {
        let bits: Vec<String> = RunState::ALL
            .into_iter()
            .filter(|state| state.is_ended())
            .map(|state| format!("WHEN '{state}' THEN {}", bit(state)))
            .collect();
        let text = format!(
            "INSERT INTO deliveries ({COLUMNS}) \
             SELECT r.id, r.attempt, r.state, r.job, r.namespace, r.job_name, r.revision, r.reason, r.planned, r.started_at, r.ended_at, \
             r.exit_code, r.exit_signal, r.node_name, r.late, j.webhook_receiver, 0, NULL, NULL, NULL, NULL, r.ended_at, NULL \
             FROM runs r JOIN jobs j ON j.id = r.job WHERE r.id IN ({}) AND r.progress >= {} \
             AND (j.webhook_on & (CASE r.state {} ELSE 0 END)) <> 0 AND j.webhook_receiver IS NOT NULL AND r.ended_at IS NOT NULL{}",
            marks(ids.len()),
            Run::ENDED_PROGRESS,
            bits.join(" "),
            if_there(self.dialect(), "deliveries", &["run", "attempt", "news"], &IfThere::Keep)
        );
        Statement { sql: text.into(), args: ids.iter().map(word).collect() }.anything()
    }

    /// The same for runs that take too long and go on: whoever wants to hear of `timed_out` hears of it.
    pub(crate) fn tell_overdue(&self, ids: &[RunId]) -> Step {
        let text = format!(
            "INSERT INTO deliveries ({COLUMNS}) \
             SELECT r.id, r.attempt, 'overdue', r.job, r.namespace, r.job_name, r.revision, '{OVERDUE}', r.planned, r.started_at, NULL, \
             NULL, NULL, r.node_name, 0, j.webhook_receiver, 0, NULL, NULL, NULL, NULL, r.overdue_at, NULL \
             FROM runs r JOIN jobs j ON j.id = r.job WHERE r.id IN ({}) AND r.overdue_at IS NOT NULL \
             AND (j.webhook_on & {}) <> 0 AND j.webhook_receiver IS NOT NULL{}",
            marks(ids.len()),
            bit(RunState::TimedOut),
            if_there(self.dialect(), "deliveries", &["run", "attempt", "news"], &IfThere::Keep)
        );
        Statement { sql: text.into(), args: ids.iter().map(word).collect() }.anything()
    }

    /// Of each receiver that is not busy the deliveries that have been due longest, up to `each`. Asking this costs as much as there
    /// are receivers, not as what waits for one of them.
    pub async fn due_deliveries(
        &self,
        now: Timestamp,
        each: usize,
        busy: impl Fn(&str) -> bool,
    ) -> Result<Vec<Delivery>, StoreError> {
        let mut receivers = self.receivers().await?;
        receivers.retain(|receiver| !busy(receiver));
        let mut due = Vec::new();
        for some in receivers.chunks(RECEIVERS_PER_READ) {
            let of_one = |i| format!("SELECT {COLUMNS} FROM ({}) AS receiver{i}", due_of_one(each));
            let text = (0..some.len()).map(of_one).collect::<Vec<_>>().join(" UNION ALL ");
            let args = some.iter().flat_map(|receiver| [word(receiver), ms(now).into()]).collect();
            let rows = self.read(Statement { sql: text.into(), args }).await?;
            due.extend(rows.iter().map(delivery_from).collect::<Result<Vec<_>, _>>()?);
        }
        // A union promises no order.
        due.sort_by_key(|delivery| delivery.next_try_at);
        Ok(due)
    }

    /// Those that anything is waiting for: a walk over the index that touches one entry per receiver.
    async fn receivers(&self) -> Result<Vec<String>, StoreError> {
        let text = format!(
            "WITH RECURSIVE walk (receiver, n) AS (\
               SELECT MIN(receiver), 1 FROM deliveries \
               UNION ALL \
               SELECT (SELECT MIN(d.receiver) FROM deliveries d WHERE d.receiver > walk.receiver), n + 1 \
               FROM walk WHERE walk.receiver IS NOT NULL AND n < {RECEIVERS_MAX}) \
             SELECT receiver FROM walk WHERE receiver IS NOT NULL"
        );
        let rows = self.read(sql!(text)).await?;
        Ok(rows.iter().map(|row| row.text(0).to_owned()).collect())
    }

    /// Where a job's news go now, also those of a removed one. None: nobody is told any more.
    pub async fn webhook_of(&self, job: JobId) -> Result<Option<Webhook>, StoreError> {
        let rows = self.read(sql!("SELECT document FROM jobs WHERE id = ?", word(job))).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let document: belfry_core::JobDocument = from_json(row.text(0), &format!("job {job}"))?;
        Ok(document.webhook)
    }

    /// Of one run, in the order in which it happened.
    pub async fn deliveries(&self, run: RunId) -> Result<Vec<Delivery>, StoreError> {
        let text = format!("SELECT {COLUMNS} FROM deliveries WHERE run = ?");
        let rows = self.read(sql!(text, word(run))).await?;
        let mut found = rows.iter().map(delivery_from).collect::<Result<Vec<_>, _>>()?;
        let rank = |news| match news {
            News::Overdue => 0,
            News::Ended(RunState::Lost) => 1,
            News::Ended(_) => 2,
        };
        found.sort_by_key(|delivery| (delivery.id.attempt, rank(delivery.id.news)));
        Ok(found)
    }

    /// After a try. What was delivered, or given up, stays so.
    pub async fn tried(&self, id: DeliveryId, now: Timestamp, tried: &Tried) -> Result<(), StoreError> {
        let (status, error, next, delivered) = match tried {
            Tried::Delivered { status } => (Some(*status), None, None, Some(now)),
            Tried::InVain { status, error, next_try_at } => (*status, Some(error.as_str()), *next_try_at, None),
        };
        let text = "UPDATE deliveries SET tries = tries + 1, first_try_at = COALESCE(first_try_at, ?), last_try_at = ?, \
                    last_status = ?, last_error = ?, next_try_at = ?, delivered_at = ? \
                    WHERE run = ? AND attempt = ? AND news = ? AND next_try_at IS NOT NULL";
        let statement = sql!(
            text,
            ms(now),
            ms(now),
            status.map(u32::from),
            error,
            next.map(ms),
            delivered.map(ms),
            word(id.run),
            id.attempt,
            id.news.as_str(),
        );
        // What waited longer than its run was kept goes when it waits no more.
        let forget = "DELETE FROM deliveries WHERE run = ? AND next_try_at IS NULL AND NOT EXISTS (SELECT 1 FROM runs WHERE id = ?)";
        let forget = sql!(forget, word(id.run), word(id.run));
        self.write(vec![statement.anything(), forget.anything()]).await.map(drop)
    }
}

pub(crate) fn due_of_one(each: usize) -> String {
    format!(
        "SELECT {COLUMNS} FROM deliveries WHERE receiver = ? AND next_try_at <= ? ORDER BY next_try_at LIMIT {each}"
    )
}

fn delivery_from(row: &Row) -> Result<Delivery, StoreError> {
    let unknown = || StoreError::unreadable("delivery", format!("`{}` is not known as news of a run", row.text(2)));
    Ok(Delivery {
        id: DeliveryId {
            run: parsed(row, 0, "run id of a delivery")?,
            attempt: row.int(1) as u32,
            news: News::parse(row.text(2)).ok_or_else(unknown)?,
        },
        job: parsed(row, 3, "job id of a delivery")?,
        namespace: row.text(4).to_owned(),
        job_name: row.text(5).to_owned(),
        revision: row.int(6) as u64,
        reason: row.opt_text(7).map(str::to_owned),
        planned: instant(row.int(8)),
        started_at: opt_instant(row, 9),
        ended_at: opt_instant(row, 10),
        exit_code: row.opt_int(11).map(|code| code as i32),
        signal: row.opt_int(12).map(|signal| signal as i32),
        node_name: row.opt_text(13).map(str::to_owned),
        late: row.int(14) != 0,
        receiver: row.text(15).to_owned(),
        tries: row.int(16) as u32,
        first_try_at: opt_instant(row, 17),
        last_try_at: opt_instant(row, 18),
        last_status: row.opt_int(19).map(|status| status as u16),
        last_error: row.opt_text(20).map(str::to_owned),
        next_try_at: opt_instant(row, 21),
        delivered_at: opt_instant(row, 22),
    })
}
