//! Places for connections, each used by one caller at a time. A connection comes back only when it is known to be clean and is
//! dropped otherwise. Not sqlx's pool: that one tests a returned connection in a task of its own without a limit, and while the
//! network is silent such a test keeps the place for many minutes.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::Connection as _;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use super::{ConnectionOf, Driver, Failure, Purpose};

/// To wait for a place and to connect.
const CONNECTION_WITHIN: Duration = Duration::from_secs(3);
/// A connection that lay idle for longer is asked whether it is still there.
const TRUSTED_IDLE: Duration = Duration::from_secs(1);
const PING_WITHIN: Duration = Duration::from_secs(1);
/// Longer than this, and it is closed; firewalls forget silent connections.
const KEPT_IDLE: Duration = Duration::from_secs(600);

pub(super) struct Places<D: Driver> {
    purpose: Purpose,
    free: Semaphore,
    /// The last that came back is the first to go out.
    idle: Mutex<Vec<Idle<D>>>,
}

struct Idle<D: Driver> {
    connection: ConnectionOf<D>,
    since: Instant,
}

/// Dropping it closes the connection.
pub(super) struct Lent<'p, D: Driver> {
    pub connection: ConnectionOf<D>,
    /// It was not opened for this caller.
    pub was_idle: bool,
    places: &'p Places<D>,
    _place: SemaphorePermit<'p>,
}

impl<D: Driver> Places<D> {
    pub(super) fn new(purpose: Purpose, places: usize) -> Self {
        Self { purpose, free: Semaphore::new(places), idle: Mutex::default() }
    }

    pub(super) async fn lend(&self, driver: &D) -> Result<Lent<'_, D>, Failure> {
        let found = timeout(CONNECTION_WITHIN, self.find(driver)).await;
        found.unwrap_or_else(|_| Err(Failure::away(format!("no connection within {} s", CONNECTION_WITHIN.as_secs()))))
    }

    async fn find(&self, driver: &D) -> Result<Lent<'_, D>, Failure> {
        let place = self.free.acquire().await.map_err(|_| Failure::away("it was closed"))?;
        while let Some(mut idle) = self.take_idle() {
            let answers = idle.since.elapsed() <= TRUSTED_IDLE
                || matches!(timeout(PING_WITHIN, idle.connection.ping()).await, Ok(Ok(())));
            if answers {
                return Ok(Lent { connection: idle.connection, was_idle: true, places: self, _place: place });
            }
            // What killed this one has killed those that lie here longer.
            self.forget_idle();
        }
        let connection = connect(driver, self.purpose).await?;
        Ok(Lent { connection, was_idle: false, places: self, _place: place })
    }

    pub(super) fn forget_idle(&self) {
        self.idle().clear();
    }

    fn take_idle(&self) -> Option<Idle<D>> {
        let mut idle = self.idle();
        idle.retain(|one| one.since.elapsed() <= KEPT_IDLE);
        idle.pop()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle<D>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Driver> Lent<'_, D> {
    pub(super) fn give_back(self) {
        self.places.idle().push(Idle { connection: self.connection, since: Instant::now() });
    }
}

pub(super) async fn connect<D: Driver>(driver: &D, purpose: Purpose) -> Result<ConnectionOf<D>, Failure> {
    let connected = timeout(CONNECTION_WITHIN, driver.connect(purpose)).await;
    connected.unwrap_or(Err(Failure::Silent(CONNECTION_WITHIN)))
}
