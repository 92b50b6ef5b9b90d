//! What is left of the trees of a zygote that was killed: its direct children die with it, their children do not. Found
//! by session and by tag, and ended by the agent.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::prepared::RunTag;
use crate::processes::{Process, Processes};

const PAUSE: Duration = Duration::from_millis(3);
/// After that somebody hangs in the kernel, and waiting longer would hold up all other runs.
const ROUNDS_MAX: u32 = 100;

/// Kills what is left of `runs` until nothing is. Waits; call it where waiting is allowed.
#[expect(clippy::disallowed_methods, reason = "called on a blocking thread, where nothing else waits")]
pub(crate) fn end(runs: &[(Option<u32>, RunTag)]) {
    let mut looks_without_any = 0;
    for _round in 0..ROUNDS_MAX {
        let seen = Processes::look();
        let left: Vec<&Process> = seen.all().filter(|process| !process.dead && belongs(process, runs)).collect();
        looks_without_any = if left.is_empty() { looks_without_any + 1 } else { 0 };
        // Twice, because what forks and ends during a look can be missed once.
        if looks_without_any == 2 {
            return;
        }
        left.iter().for_each(|process| process.signal(Signal::SIGKILL));
        std::thread::sleep(PAUSE);
    }
    tracing::warn!("some processes of lost runs do not end; they hang in the kernel");
}

/// The number of a session stays taken while the session has members, so right after the death it is still the run's.
fn belongs(process: &Process, runs: &[(Option<u32>, RunTag)]) -> bool {
    let by_session = |(root, _): &(Option<u32>, RunTag)| root.is_some_and(|root| process.session == root as i32);
    if runs.iter().any(by_session) {
        return true;
    }
    let environ = process.environ();
    !environ.is_empty() && runs.iter().any(|(_, tag)| tag.is_in(&environ))
}
