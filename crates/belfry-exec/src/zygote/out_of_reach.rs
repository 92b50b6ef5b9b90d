//! Processes of a tree that whoever ends it may not signal: they have become another user (sudo), and it is not root. Nobody here can end them.
//! That is said once, in words for whoever wrote the command, and they are waited for.

use std::io::{self, Write};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use crate::processes::{NotAllowed, Process};

#[derive(Default)]
pub(super) struct OutOfReach {
    /// Of the first; those that it starts are out of reach too.
    is_told: bool,
}

impl OutOfReach {
    /// True: not one of them can be ended from here, so there is nothing to do but to wait.
    pub(super) fn kill(&mut self, members: &[Process]) -> bool {
        let mut out_of_reach = 0;
        for member in members {
            if member.try_signal(Signal::SIGKILL) == Err(NotAllowed) {
                out_of_reach += 1;
                self.tell(member);
            }
        }
        out_of_reach > 0 && out_of_reach == members.len()
    }

    fn tell(&mut self, process: &Process) {
        if self.is_told || !has_room() {
            return;
        }
        self.is_told = true;
        let line = format!(
            "belfry: process {} ({}) runs as another user and cannot be ended from here: what started it is not root. It goes on until it ends by itself, perhaps beside its next start on another host. Let root start it: for dcron in root's crontab with DCRON_USER, or as `sudo dcron ...` instead of sudo in the command\n",
            process.pid,
            process.name(),
        );
        let _nobody_reads = io::stderr().write_all(line.as_bytes());
    }
}

/// Whoever ends a tree waits for nobody: a pipe that has no room is not written to. One that has takes a line whole.
pub(super) fn has_room() -> bool {
    let stderr = io::stderr();
    let mut ready = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    poll(&mut ready, PollTimeout::ZERO).is_ok_and(|count| count > 0)
}
