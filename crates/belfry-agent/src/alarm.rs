//! Wakes at an instant with the kernel's precision: tokio's own timers have a grain of a millisecond. A timer descriptor
//! costs no thread and burns no time.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Sleep;

pub(crate) struct Alarm {
    source: Source,
    /// What it is set to, on the caller's clock.
    set_to: Option<Duration>,
}

enum Source {
    Kernel(AsyncFd<Timer>),
    /// For simulated time, which only tokio knows of. None: not set.
    Tokio(Option<Pin<Box<Sleep>>>),
}

/// Shown to tokio, which wants the number too.
struct Timer(TimerFd);

#[expect(unsafe_code, reason = "tokio cannot know that the number stays the same and open")]
fn watched(timer: TimerFd) -> io::Result<AsyncFd<Timer>> {
    // SAFETY: the timer owns its descriptor, gives it to nobody, and closes it only when it is dropped.
    unsafe { AsyncFd::register_with_interest(Timer(timer), Interest::READABLE) }.map_err(io::Error::from)
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Timer {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// A timer set to zero would be switched off.
const WAIT_MIN: Duration = Duration::from_nanos(1);

impl Alarm {
    /// Must be called inside a tokio runtime.
    pub(crate) fn new() -> io::Result<Alarm> {
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        Ok(Alarm { source: Source::Kernel(watched(timer)?), set_to: None })
    }

    pub(crate) fn simulated() -> Alarm {
        Alarm { source: Source::Tokio(None), set_to: None }
    }

    /// Rings at `at`, given that it is `now`; never with `None`.
    pub(crate) fn set(&mut self, at: Option<Duration>, now: Duration) {
        if at == self.set_to {
            return;
        }
        let wait = at.map(|at| at.saturating_sub(now).max(WAIT_MIN));
        let done = match (&mut self.source, wait) {
            (Source::Kernel(timer), None) => timer.get_ref().0.unset(),
            (Source::Kernel(timer), Some(wait)) => {
                let once = Expiration::OneShot(TimeSpec::from_duration(wait));
                timer.get_ref().0.set(once, TimerSetTimeFlags::empty())
            }
            (Source::Tokio(sleep), wait) => {
                *sleep = wait.map(|wait| Box::pin(tokio::time::sleep(wait)));
                Ok(())
            }
        };
        match done {
            Ok(()) => self.set_to = at,
            Err(cause) => tracing::error!(%cause, "set the timer for the next start"),
        }
    }

    pub(crate) async fn rings(&mut self) {
        match &mut self.source {
            Source::Kernel(timer) => match timer.readable().await {
                Ok(mut ready) => {
                    // Reading it makes it silent until it is set again.
                    let mut count = [0; 8];
                    let _spurious = nix::unistd::read(timer.get_ref(), &mut count);
                    ready.clear_ready();
                }
                Err(cause) => tracing::error!(%cause, "wait for the timer for the next start"),
            },
            Source::Tokio(None) => std::future::pending().await,
            Source::Tokio(sleep) => {
                if let Some(sleep) = sleep {
                    sleep.await;
                }
                *sleep = None;
            }
        }
        self.set_to = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};

    #[tokio::test]
    async fn it_rings_at_its_instant_and_not_before() {
        let mut alarm = Alarm::new().unwrap();
        let clock = SystemClock;
        for _round in 0..20 {
            let at = clock.boottime() + Duration::from_micros(2300);
            alarm.set(Some(at), clock.boottime());
            alarm.rings().await;
            assert!(clock.boottime() >= at);
        }
        alarm.set(Some(clock.boottime()), clock.boottime() + Duration::from_secs(1));
        alarm.rings().await;
    }
}
