//! A simulated process: the futures of one server or agent, which can be stopped for a while, and killed at any await.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use belfry_control::Host;
use futures_util::future::BoxFuture;
use tokio::sync::watch;

pub struct Process {
    state: Mutex<State>,
    ended: watch::Sender<bool>,
}

struct State {
    life: Life,
    /// None: being polled right now.
    futures: BTreeMap<u64, Option<BoxFuture<'static, ()>>>,
    last: u64,
    stops: u64,
    /// Woken while the process was stopped.
    waiting: Vec<Waker>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Runs,
    Stopped,
    Dead,
}

struct Gated {
    process: Arc<Process>,
    number: u64,
}

impl Process {
    pub fn new() -> Arc<Self> {
        let state = State { life: Life::Runs, futures: BTreeMap::new(), last: 0, stops: 0, waiting: Vec::new() };
        Arc::new(Self { state: Mutex::new(state), ended: watch::Sender::new(false) })
    }

    pub fn run(self: &Arc<Self>, future: BoxFuture<'static, ()>) {
        let number = {
            let mut state = self.lock();
            if state.life == Life::Dead {
                return;
            }
            state.last += 1;
            let number = state.last;
            state.futures.insert(number, Some(future));
            number
        };
        crate::world::spawn(Gated { process: self.clone(), number });
    }

    /// As SIGSTOP: nothing of it runs until it goes on; clocks and everybody else do.
    pub fn stop(&self) {
        let mut state = self.lock();
        if state.life == Life::Runs {
            state.life = Life::Stopped;
            state.stops += 1;
        }
    }

    pub fn go_on(&self) {
        let woken = {
            let mut state = self.lock();
            if state.life == Life::Stopped {
                state.life = Life::Runs;
            }
            std::mem::take(&mut state.waiting)
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// As SIGKILL.
    pub fn kill(&self) {
        let (futures, woken) = {
            let mut state = self.lock();
            state.life = Life::Dead;
            (std::mem::take(&mut state.futures), std::mem::take(&mut state.waiting))
        };
        drop(futures);
        woken.into_iter().for_each(Waker::wake);
        self.ended.send_replace(true);
    }

    /// How often it was stopped so far.
    pub fn stops(&self) -> u64 {
        self.lock().stops
    }

    pub fn is_stopped(&self) -> bool {
        self.lock().life == Life::Stopped
    }

    pub fn is_dead(&self) -> bool {
        self.lock().life == Life::Dead
    }

    pub async fn ended(&self) {
        // The sender is this process itself.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A server's own end: it is killed by itself.
pub struct ServerProcess(pub Arc<Process>);

impl Host for ServerProcess {
    fn spawn(&self, _name: &'static str, future: BoxFuture<'static, ()>) {
        self.0.run(future);
    }

    fn exit(&self, _status: i32) {
        self.0.kill();
    }
}

impl Future for Gated {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let taken = {
            let mut state = self.process.lock();
            match state.life {
                Life::Dead => return Poll::Ready(()),
                Life::Stopped => {
                    state.waiting.push(context.waker().clone());
                    return Poll::Pending;
                }
                Life::Runs => state.futures.get_mut(&self.number).and_then(Option::take),
            }
        };
        let Some(mut future) = taken else { return Poll::Ready(()) };
        let polled = future.as_mut().poll(context);
        let mut state = self.process.lock();
        if polled.is_ready() || state.life == Life::Dead {
            state.futures.remove(&self.number);
            drop(state);
            return Poll::Ready(());
        }
        state.futures.insert(self.number, Some(future));
        Poll::Pending
    }
}
