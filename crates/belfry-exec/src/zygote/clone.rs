//! Two ways to make a child process. One shares the memory of the zygote until it execs: a third cheaper, but the zygote
//! waits for the exec. The other copies, and nobody waits.

use std::ffi::{c_int, c_void};

use nix::errno::Errno;
use nix::unistd::{ForkResult, fork};

/// What the child runs: it execs or exits, and never returns.
pub(super) type Body<'a> = &'a mut dyn FnMut();

/// The stack of children that share our memory. They live one after the other, so one is enough.
pub(super) struct ChildStack(Vec<u128>);

const STACK_BYTES: usize = 64 * 1024;

impl ChildStack {
    pub(super) fn new() -> ChildStack {
        ChildStack(vec![0; STACK_BYTES / size_of::<u128>()])
    }
}

/// Returns when the child has execed or exited.
#[expect(unsafe_code, reason = "no wrapper offers a child that shares memory and may do more than posix_spawn")]
pub(super) fn sharing_memory(stack: &mut ChildStack, mut body: Body<'_>) -> Result<i32, Errno> {
    extern "C" fn run(body: *mut c_void) -> c_int {
        // SAFETY: the pointer is to `body` below, which outlives the child: its maker is suspended until the exec.
        let body = unsafe { &mut *body.cast::<Body<'_>>() };
        body();
        127
    }
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let top = stack.0.as_mut_ptr_range().end;
    // SAFETY: the stack is ours alone, aligned, and large enough for a few system calls; this process has one thread,
    // which is suspended meanwhile, so the child may use its memory, errno included. No signal handler exists.
    Errno::result(unsafe { libc::clone(run, top.cast(), flags, (&raw mut body).cast()) })
}

/// Returns at once.
#[expect(unsafe_code, reason = "fork is unsafe where there are threads; here is one")]
pub(super) fn copying_memory(body: Body<'_>) -> Result<i32, Errno> {
    // SAFETY: a single thread, so the child may run ordinary code.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(child.as_raw()),
        ForkResult::Child => {
            body();
            // SAFETY: leaves without running anybody's exit handlers; not reached, since the body execs or exits.
            unsafe { libc::_exit(127) }
        }
    }
}
