//! Threads that answer queries, each on its own connection that cannot write. A query begins after it was taken from the
//! queue, so it sees every commit that was answered before it was asked.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::step::{run, sql_error};
use crate::{Row, SqlError, Statement};

/// Between two looks whether the asker still waits: less than a millisecond of work.
const STEPS_BETWEEN_LOOKS: c_int = 4_000;

pub(super) struct Question {
    pub statement: Statement,
    /// Gone with the asker, who may stop waiting.
    pub asker: Weak<()>,
    pub answer: oneshot::Sender<Result<Vec<Row>, SqlError>>,
}

/// One queue for all readers: an idle one waits inside the lock, the others wait for the lock.
#[derive(Clone)]
pub(super) struct Questions(Arc<Mutex<mpsc::Receiver<Question>>>);

impl Questions {
    pub(super) fn new(queue: mpsc::Receiver<Question>) -> Self {
        Self(Arc::new(Mutex::new(queue)))
    }

    fn next(&self) -> Option<Question> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv()
    }
}

/// What nobody waits for any more is ended: a reader that went on with it would be missing for all others.
pub(super) fn answer_all(connection: &mut Connection, questions: &Questions) {
    while let Some(Question { statement, asker, answer }) = questions.next() {
        if answer.is_closed() {
            continue;
        }
        let is_gone = move || asker.strong_count() == 0;
        let answered = connection
            .progress_handler(STEPS_BETWEEN_LOOKS, Some(is_gone))
            .and_then(|()| run(connection, &statement))
            .map(|result| result.rows);
        // An asker that left meanwhile is no error.
        answer.send(answered.map_err(sql_error)).ok();
    }
}
