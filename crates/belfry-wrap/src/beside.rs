//! `DCRON_COMPAT`: beside hosts that still have the old wrapper. Whoever has won an instance by our own record takes the old wrapper's
//! lock too before it starts anything, and keeps it until the instance is over.
//!
//! An instance that the old wrapper has is over for all of our hosts: should its host die, those that stand by there may run it, ours do
//! not. And when one of ours dies or is cut off, those that stand by there run the instance whatever its rule is, at most once more: the
//! old wrapper knows no other end of a host. What else the lock cannot keep apart is said where it is (`old_lock.rs` in belfry-coord).

use std::pin::pin;
use std::time::Duration;

use belfry_coord::{CoordError, OldLock, OldTake, Pulse, PulseError};
use belfry_core::wrapped::End;
use tokio::task::JoinHandle;

use crate::exit::Failure;
use crate::hold::{ASK_AGAIN_AFTER, Hold, TAKEN};
use crate::parameters::Parameters;
use crate::tasks;

/// Of the coordinator's URL, `NAME.INSTANCE`, this host's id, and how long the lock stays when this host is cut off.
pub type OpenOldLock = fn(&str, &str, &str, Duration) -> Result<OldLock, CoordError>;

pub(crate) struct Beside {
    lock: OldLock,
    /// Says so when the lock is lost.
    watch: Option<JoinHandle<()>>,
}

pub(crate) enum Lock {
    /// Or nobody asks for it.
    Ours,
    Elsewhere {
        reason: String,
    },
}

impl Beside {
    /// None: this host need not care.
    pub(crate) fn of(
        parameters: &Parameters,
        instance: &str,
        host: &str,
        open: OpenOldLock,
    ) -> Result<Option<Beside>, Failure> {
        if !parameters.compat {
            return Ok(None);
        }
        let whole = format!("{}.{instance}", parameters.name.name);
        // A host that is cut off ends its command within 0.8 TTL, and the session may have been silent for a moment before.
        let opened = open(&parameters.coordinator, &whole, host, parameters.ttl * 3 / 2);
        let lock = opened.map_err(|cause| Failure::SaidWrong(format!("DCRON_COMPAT: {cause}")))?;
        Ok(Some(Beside { lock, watch: None }))
    }

    pub(crate) async fn leave(self) {
        if let Some(watch) = self.watch {
            watch.abort();
        }
        self.lock.release().await;
    }

    fn watch(&mut self, ttl: Duration) {
        if let Some(stays_for) = self.lock.stays_for().filter(|stays_for| *stays_for < ttl) {
            tracing::warn!(
                "the old wrapper's lock goes {stays_for:?} after this host is cut off, perhaps before the command is ended; set DCRON_TTL to at most {}, or maxSessionTimeout of ZooKeeper to more",
                stays_for.as_secs()
            );
        }
        let lost = self.lock.lost();
        // Fate: ends with the hold, or when it has said its word.
        self.watch = Some(tasks::spawn("old lock", async move {
            lost.await;
            tracing::warn!(
                "the old wrapper's lock is lost; the command goes on, and a host that still has the old wrapper may start it too"
            );
        }));
    }
}

impl Hold<'_> {
    pub(crate) async fn take_old_lock(&mut self) -> Result<Lock, Failure> {
        let Some(beside) = &mut self.beside else { return Ok(Lock::Ours) };
        let (clock, ttl) = (&self.instance.clock, self.instance.ttl);
        // A host of ours that is dead leaves its lock for longer than its record.
        let until = clock.boottime() + self.parameters.wait.max(ttl * 2);
        loop {
            let reason = match beating(&mut self.pulse, ttl / 4, beside.lock.take()).await? {
                Ok(OldTake::Taken) => {
                    beside.watch(ttl);
                    return Ok(Lock::Ours);
                }
                Ok(OldTake::Held { by }) => format!("{by} runs it with the old wrapper"),
                Ok(OldTake::Finished) => "it was run with the old wrapper".to_owned(),
                Err(cause) if !cause.is_transient() => return Err(Failure::Cannot(cause.to_string())),
                Err(cause) if clock.boottime() > until => return Err(self.away_before_start(&cause)),
                Err(_) => {
                    beating(&mut self.pulse, ttl / 4, tokio::time::sleep(ASK_AGAIN_AFTER)).await?;
                    continue;
                }
            };
            return Ok(Lock::Elsewhere { reason });
        }
    }

    /// Before our own record says it: whoever dies in between has left an instance that nobody runs again.
    pub(crate) async fn tell_the_old(&mut self, end: &End) -> Result<(), Failure> {
        let Some(beside) = &mut self.beside else { return Ok(()) };
        let code = end.exit_code.or(end.signal.map(|signal| 128 + signal)).unwrap_or(i32::from(u8::MAX));
        let told = beside.lock.finish(u8::try_from(code).unwrap_or(u8::MAX));
        if let Err(cause) = beating(&mut self.pulse, self.instance.ttl / 4, told).await? {
            tracing::warn!(%cause, "hosts that stand by with the old wrapper do not know that the instance has ended, and may run it again");
        }
        Ok(())
    }
}

/// The record is kept alive meanwhile.
async fn beating<T>(pulse: &mut Pulse, every: Duration, work: impl Future<Output = T>) -> Result<T, Failure> {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return Ok(done),
            () = tokio::time::sleep(every) => {}
        }
        match pulse.beat().await {
            Err(PulseError::Dead(_)) => return Err(Failure::CutOff(TAKEN.into())),
            Ok(()) | Err(PulseError::Refused(_) | PulseError::Renew { .. }) => {}
        }
    }
}
