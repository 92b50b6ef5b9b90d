//! The zygote: a small process with one thread that starts children for the agent, reaps them, and ends whole trees.
//! When the agent's end of the socket closes, for whatever reason, it ends everything it started and exits.
//!
//! It is the reaper of its descendants, so what a child leaves behind, even after setsid and a double fork, comes back
//! to it. It keeps nothing on disk and decides nothing.

mod clone;
mod ending;
mod launch;
mod memory;
mod mounts;
mod out_of_reach;
mod reap;
mod serve;
mod shim;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::fcntl::{OFlag, open};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::Mode;
use nix::unistd::{chdir, setsid};

use crate::deadline::Deadline;
use serve::Zygote;
pub(crate) use shim::TREE_WILL_BE_ASKED;

/// Runs the zygote on the socket at stdin; ends when the agent does. Call it before any thread or runtime exists.
pub fn zygote_main() -> ! {
    match prepare().and_then(Zygote::serve) {
        Ok(()) => std::process::exit(0),
        Err(cause) => {
            eprintln!("belfry zygote: {cause}; it ends now and the agent starts another one");
            std::process::exit(1)
        }
    }
}

fn prepare() -> io::Result<Zygote> {
    // Ctrl-C and a closed terminal are for the agent to handle; it drains first.
    let _already_leader = setsid();
    chdir("/")?;
    close_descriptors_from(3);
    prctl::set_child_subreaper(true)?;
    prctl::set_name(c"belfry-zygote")?;
    // Children inherit this too; it is for servers that hold many small things.
    prctl::set_thp_disable(false)?;
    // Children inherit dispositions. Signals that would end this process wait in the mask instead, which they do not.
    (1..=SIGNALS_MAX).for_each(reset_to_default);
    SigSet::from_iter([
        Signal::SIGCHLD,
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGTSTP,
        // Nobody may read any more what is said on stderr.
        Signal::SIGPIPE,
    ])
    .thread_block()?;
    let exits = SignalFd::with_flags(&SigSet::from(Signal::SIGCHLD), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let null = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?;
    let deadline = Deadline::at(take_stdout(&null)?)?;
    Zygote::new(take_stdin(&null)?, exits, null, deadline)
}

/// Moves the socket away from number 0, so that no child can get it as its stdin.
fn take_stdin(null: &OwnedFd) -> io::Result<OwnedFd> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    nix::unistd::dup2_stdin(null.as_fd())?;
    Ok(socket)
}

/// The memory of the deadline comes as stdout.
fn take_stdout(null: &OwnedFd) -> io::Result<OwnedFd> {
    let memory = io::stdout().as_fd().try_clone_to_owned()?;
    nix::unistd::dup2_stdout(null.as_fd())?;
    Ok(memory)
}

const SIGNALS_MAX: i32 = 64;

#[expect(
    unsafe_code,
    reason = "libc refuses to touch the two signals it keeps for itself, which we may have inherited as ignored"
)]
fn reset_to_default(signal: i32) {
    // The kernel's form of sigaction, at its largest: all zero is the default action without flags.
    let default = [0_u64; 4];
    let mask_bytes = size_of::<u64>();
    // SAFETY: the kernel only reads `default`; no handler is installed. For KILL and STOP it refuses, which is fine.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), std::ptr::null::<u64>(), mask_bytes);
    }
}

/// Everything here is close-on-exec anyway; on kernels before 5.9, which do not know the call, that has to do.
pub(super) fn close_descriptors_from(first: u32) {
    let _unknown_call = close_range(first, u32::MAX);
}

/// Also on kernels that do not know the call: what does not exec would hold on to others' pipes.
#[expect(unsafe_code, reason = "no object of this process uses its descriptors any more")]
pub(super) fn close_all_but(kept: &[i32]) {
    let mut kept: Vec<u32> = kept.iter().map(|number| *number as u32).collect();
    kept.sort_unstable();
    let mut first = 3;
    for number in kept.iter().copied().chain([u32::MAX]) {
        if first < number && !close_range(first, number - 1) {
            let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
            let numbers = open.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
            for other in numbers.filter(|other| *other > 2 && !kept.contains(&(*other as u32))).collect::<Vec<_>>() {
                // SAFETY: whatever stood there is not used any more in this process.
                unsafe { libc::close(other) };
            }
            return;
        }
        first = number.saturating_add(1);
    }
}

/// False: the kernel does not know the call.
#[expect(unsafe_code, reason = "nix has no close_range")]
fn close_range(first: u32, last: u32) -> bool {
    // SAFETY: called where no object of this process uses a descriptor in between any more, or in a child about to exec.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) == 0 }
}

fn raw(descriptor: &OwnedFd) -> i32 {
    descriptor.as_raw_fd()
}
