//! When exclusive work has to end, in memory that the agent shares with the shims: they hold to it also while the agent hangs, is
//! stopped, or is cut off and does not know it yet. Moments are those of the clock that goes on while the machine sleeps.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};

/// Clones are the same deadline. A new one is over: nothing exclusive may run before it is put off for the first time.
#[derive(Clone, Debug)]
pub struct Deadline {
    page: Arc<Page>,
}

/// Trees are asked to end at `ask`, and are gone at `kill`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastMoments {
    pub ask: Duration,
    pub kill: Duration,
}

#[derive(Debug)]
struct Page {
    file: OwnedFd,
    moments: NonNull<Moments>,
}

#[derive(Debug)]
#[repr(C)]
struct Moments {
    ask_ns: AtomicU64,
    kill_ns: AtomicU64,
    /// The agent itself has asked at the moment that was in force then, so that nobody is asked twice.
    asked_ns: AtomicU64,
}

const PAGE_BYTES: usize = 4096;

impl Deadline {
    pub fn new() -> io::Result<Deadline> {
        let file = memfd_create(c"belfry-deadline", MFdFlags::MFD_CLOEXEC)?;
        let file = File::from(file);
        file.set_len(PAGE_BYTES as u64)?;
        Deadline::at(file.into())
    }

    pub(crate) fn at(file: OwnedFd) -> io::Result<Deadline> {
        let moments = map(&file)?;
        Ok(Deadline { page: Arc::new(Page { file, moments }) })
    }

    pub(crate) fn file(&self) -> io::Result<OwnedFd> {
        self.page.file.try_clone()
    }

    /// From now on these count. Whoever reads in between sees a moment that is too early at worst.
    pub fn put_off(&self, to: LastMoments) {
        self.page.moments().kill_ns.store(ns(to.kill), Ordering::Release);
        self.page.moments().ask_ns.store(ns(to.ask), Ordering::Release);
    }

    /// Whatever is exclusive is to be gone now.
    pub fn is_over(&self) {
        self.page.moments().ask_ns.store(0, Ordering::Release);
        self.page.moments().kill_ns.store(0, Ordering::Release);
    }

    /// The agent asks all trees by itself.
    pub fn asked(&self) {
        let ask_ns = self.page.moments().ask_ns.load(Ordering::Acquire);
        self.page.moments().asked_ns.store(ask_ns, Ordering::Release);
    }

    pub(crate) fn last_moments(&self) -> LastMoments {
        let moments = self.page.moments();
        let ask = Duration::from_nanos(moments.ask_ns.load(Ordering::Acquire));
        LastMoments { ask, kill: Duration::from_nanos(moments.kill_ns.load(Ordering::Acquire)).max(ask) }
    }

    pub(crate) fn was_asked_at(&self, ask: Duration) -> bool {
        self.page.moments().asked_ns.load(Ordering::Acquire) == ns(ask)
    }
}

fn ns(moment: Duration) -> u64 {
    u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX)
}

#[expect(unsafe_code, reason = "memory that is shared between processes has no safe form")]
impl Page {
    fn moments(&self) -> &Moments {
        // SAFETY: mapped for as long as this lives, aligned to a page, and only ever used as atomics.
        unsafe { self.moments.as_ref() }
    }
}

#[expect(unsafe_code, reason = "the mapping is nobody's but this type's")]
impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped with this size, and nobody has a reference any more.
        unsafe { libc::munmap(self.moments.as_ptr().cast(), PAGE_BYTES) };
    }
}

#[expect(unsafe_code, reason = "only atomics are reached through the pointer")]
// SAFETY: see above; a mapping belongs to the process, not to a thread.
unsafe impl Send for Page {}
#[expect(unsafe_code, reason = "only atomics are reached through the pointer")]
// SAFETY: as above.
unsafe impl Sync for Page {}

#[expect(unsafe_code, reason = "nix maps files only with a feature that nothing else here needs")]
fn map(file: &OwnedFd) -> io::Result<NonNull<Moments>> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at a place of the kernel's choice; the file has a whole page.
    let place = unsafe { libc::mmap(std::ptr::null_mut(), PAGE_BYTES, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if place == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(place.cast()).ok_or_else(|| io::Error::other("the kernel mapped nothing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_writes_the_other_reads_and_a_new_one_is_over() {
        let ours = Deadline::new().unwrap();
        let theirs = Deadline::at(ours.file().unwrap()).unwrap();
        let over = LastMoments { ask: Duration::ZERO, kill: Duration::ZERO };
        assert_eq!(theirs.last_moments(), over);
        let later = LastMoments { ask: Duration::from_secs(6), kill: Duration::from_secs(8) };
        ours.put_off(later);
        assert_eq!(theirs.last_moments(), later);
        assert!(!theirs.was_asked_at(later.ask));
        ours.asked();
        assert!(theirs.was_asked_at(later.ask));
        ours.put_off(LastMoments { ask: Duration::from_secs(7), kill: Duration::from_secs(9) });
        assert!(!theirs.was_asked_at(Duration::from_secs(7)), "each moment is asked for anew");
        ours.is_over();
        assert_eq!(theirs.last_moments(), over);
    }
}
