//! What is left of the trees of a zygote that was killed: its direct children die with it, their children do not. Found
//! by session and by tag, and ended by the agent. A shim ends its tree by itself and is waited for: it alone knows of those
//! who have neither (`setsid env -i`, sudo).

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::clock;
use crate::prepared::RunTag;
use crate::processes::{Process, Processes};

/// A run of that zygote.
pub(crate) struct Lost {
    /// Its first process; or the shim that stands above that one.
    pub root: Option<i32>,
    pub is_behind_shim: bool,
    pub tag: RunTag,
}

const PAUSE: Duration = Duration::from_millis(3);
/// A shim needs a few milliseconds, unless there is somebody whom it may not end.
const SHIMS_END_WITHIN: Duration = Duration::from_secs(2);
/// What is killed is gone sooner. After that somebody hangs in the kernel, and waiting longer would hold up all other runs.
const KILLED_WITHIN: Duration = Duration::from_secs(1);
/// On a machine where each of them takes long.
const ROUNDS_MIN: u32 = 20;

/// Kills what is left of `runs` until nothing is. Waits; call it where waiting is allowed.
#[expect(clippy::disallowed_methods, reason = "called on a blocking thread, where nothing else waits")]
pub(crate) fn end(runs: &[Lost]) {
    let mut looks_without_any = 0;
    let began = clock::boottime();
    let mut shims_until = began;
    for round in 1.. {
        let seen = Processes::look();
        let left: Vec<&Process> = seen.all().filter(|process| !process.dead && belongs(process, runs)).collect();
        looks_without_any = if left.is_empty() { looks_without_any + 1 } else { 0 };
        // Twice, because what forks and ends during a look can be missed once.
        if looks_without_any == 2 {
            return;
        }
        let (shims, others): (Vec<&Process>, Vec<&Process>) = left.iter().partition(|process| is_shim(process, runs));
        others.iter().for_each(|process| process.signal(Signal::SIGKILL));
        // It was told by the kernel; one that somebody has stopped has yet to hear it.
        let now = clock::boottime();
        let is_their_time_over = now >= began + SHIMS_END_WITHIN && round >= ROUNDS_MIN;
        let to_shims = if is_their_time_over { Signal::SIGKILL } else { Signal::SIGCONT };
        shims.iter().for_each(|shim| shim.signal(to_shims));
        if !shims.is_empty() && !is_their_time_over {
            shims_until = now;
        }
        if now >= shims_until + KILLED_WITHIN && round >= 2 * ROUNDS_MIN {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    tracing::warn!("some processes of lost runs do not end; they hang in the kernel");
}

/// The number of a session stays taken while the session has members, so right after the death it is still the run's.
fn belongs(process: &Process, runs: &[Lost]) -> bool {
    if runs.iter().any(|run| run.root == Some(process.session)) {
        return true;
    }
    let environ = process.environ();
    !environ.is_empty() && runs.iter().any(|run| run.tag.is_in(&environ))
}

/// Each leads a session of its own.
fn is_shim(process: &Process, runs: &[Lost]) -> bool {
    let is_root = |run: &Lost| run.is_behind_shim && run.root == Some(process.pid);
    process.session == process.pid && runs.iter().any(is_root)
}
