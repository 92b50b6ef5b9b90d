//! Threads that answer queries, each on its own connection that cannot write. A query begins after it was taken from the
//! queue, so it sees every commit that was answered before it was asked.

use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::step::{run, sql_error};
use crate::{Row, SqlError, Statement};

pub(super) struct Question {
    pub statement: Statement,
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

pub(super) fn answer_all(connection: &Connection, questions: &Questions) {
    while let Some(Question { statement, answer }) = questions.next() {
        if answer.is_closed() {
            continue;
        }
        // An asker that left meanwhile is no error.
        answer.send(run(connection, &statement).map(|result| result.rows).map_err(sql_error)).ok();
    }
}
