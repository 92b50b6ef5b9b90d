//! What a shim needs at its deadline stays in memory. It may have slept for weeks by then; a machine that is short of memory takes the pages of such a
//! program away, and when its disk is slow too, a tree went on for half a minute beyond its deadline, which nobody may.
//!
//! Which pages these are nobody can list beforehand. So a shim is rehearsed once, in a copy of the zygote, with a process of its own that is past
//! its deadline; what is mapped there in the end is locked here. Shims are copies too and use the same pages; without a zygote they end at once.

use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, SysconfVar, getpid, pause, pipe2, sysconf};

use super::shim::Shim;
use super::{clone, close_all_but, launch, raw};
use crate::clock;
use crate::deadline::{Deadline, LastMoments};

#[derive(Default)]
pub(super) enum Memory {
    /// Nothing has been exclusive yet.
    #[default]
    AsItComes,
    Rehearsing {
        pid: i32,
        /// Where it says what it touched, before it exits.
        touched: OwnedFd,
    },
    Kept,
}

/// Places between two that were touched are kept as well when they are this small: each place on its own is work for every fork.
const GAP_BYTES_MAX: u64 = 64 * 1024;
const REHEARSED_DEADLINE: Duration = Duration::from_millis(2);
/// In /proc/self/pagemap, a number for each page.
const PAGE_IS_THERE: u64 = 1 << 63;
const PAGE_IS_OF_A_FILE: u64 = 1 << 61;

impl Memory {
    /// Not before it is needed: it takes a few milliseconds.
    pub(super) fn keep_what_shims_need(&mut self) {
        if !matches!(self, Memory::AsItComes) {
            return;
        }
        let Ok((touched, say)) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK) else { return };
        let zygote = getpid();
        let mut body = || {
            // Also the output of whatever is starting, whose end is waited for.
            close_all_but(&[raw(&say)]);
            let _seen_by_the_zygote = rehearse(zygote).and_then(|touched| write_ranges(say.try_clone()?, &touched));
            launch::exit_now()
        };
        // A machine that is short of processes: with the next start.
        if let Ok(pid) = clone::copying_memory(&mut body) {
            *self = Memory::Rehearsing { pid, touched };
        }
    }

    /// Of whoever is no run.
    pub(super) fn reaped(&mut self, reaped: i32) {
        match std::mem::take(self) {
            Memory::Rehearsing { pid, touched } if pid == reaped => {
                read_ranges(touched).for_each(lock);
                *self = Memory::Kept;
            }
            other => *self = other,
        }
    }
}

/// A shim's whole way, and then where the pages are that it went through.
fn rehearse(zygote: Pid) -> io::Result<Vec<Range<u64>>> {
    let deadline = Deadline::new()?;
    let now = clock::boottime();
    deadline.put_off(LastMoments { ask: now, kill: now + REHEARSED_DEADLINE });
    let nobody_reads = File::options().write(true).open("/dev/null")?;
    let shim = Shim::prepare(zygote, nobody_reads.into(), deadline)?;
    prctl::set_name(c"belfry-zygote")?;
    let mut waits_for_its_end = || {
        let _killed_at_the_deadline_at_the_latest = prctl::set_pdeathsig(Signal::SIGKILL);
        loop {
            pause();
        }
    };
    shim.hold(clone::copying_memory(&mut waits_for_its_end)?);
    present_pages()
}

/// All of this process that is in memory, but for what the kernel itself put there. Pages of files come first, for whoever may not lock all:
/// a copy begins without any of those, so they are what it went through; what it has inherited is taken away only where there is swap.
fn present_pages() -> io::Result<Vec<Range<u64>>> {
    let page_bytes = sysconf(SysconfVar::PAGE_SIZE)?.unwrap_or(4096) as u64;
    let (maps, pagemap) = (std::fs::read_to_string("/proc/self/maps")?, File::open("/proc/self/pagemap")?);
    let (mut of_files, mut inherited): (Vec<Range<u64>>, Vec<Range<u64>>) = (Vec::new(), Vec::new());
    let mut numbers = vec![0; 64 * 1024];
    for mapping in maps.lines().filter_map(mapping) {
        let mut place = mapping.start;
        while place < mapping.end {
            let pages_left = ((mapping.end - place) / page_bytes) as usize;
            let wanted = numbers.len().min(pages_left * size_of::<u64>());
            let count = pagemap.read_at(&mut numbers[..wanted], place / page_bytes * size_of::<u64>() as u64)?;
            if count == 0 {
                break;
            }
            for number in numbers[..count].chunks_exact(size_of::<u64>()) {
                let page = number.try_into().map_or(0, u64::from_ne_bytes);
                let pages = if page & PAGE_IS_OF_A_FILE != 0 { &mut of_files } else { &mut inherited };
                if page & PAGE_IS_THERE != 0 {
                    let near = |last: &&mut Range<u64>| last.end >= mapping.start && place - last.end <= GAP_BYTES_MAX;
                    match pages.last_mut().filter(near) {
                        Some(last) => last.end = place + page_bytes,
                        None => pages.push(place..place + page_bytes),
                    }
                }
                place += page_bytes;
            }
        }
    }
    of_files.append(&mut inherited);
    Ok(of_files)
}

/// A line of /proc/self/maps, if something may be read there.
fn mapping(line: &str) -> Option<Range<u64>> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let may_be_read = words.next()?.starts_with('r');
    let is_the_kernels = line.ends_with("[vvar]") || line.ends_with("[vsyscall]") || line.contains("[vvar_");
    let number = |text| u64::from_str_radix(text, 16).ok();
    (may_be_read && !is_the_kernels).then_some(number(from)?..number(to)?)
}

/// At once, for who reads it waits until this process has exited; a pipe has room for thousands of them.
fn write_ranges(pipe: OwnedFd, ranges: &[Range<u64>]) -> io::Result<()> {
    let bytes: Vec<u8> = ranges.iter().flat_map(|range| [range.start, range.end]).flat_map(u64::to_ne_bytes).collect();
    File::from(pipe).write_all(&bytes)
}

/// Never waits: whoever wrote them is gone. None: it could not tell, and pages come and go as they do.
fn read_ranges(pipe: OwnedFd) -> impl Iterator<Item = Range<u64>> {
    let mut bytes = Vec::new();
    let _what_came = File::from(pipe).read_to_end(&mut bytes);
    let numbers: Vec<u64> = bytes
        .chunks_exact(size_of::<u64>())
        .filter_map(|number| number.try_into().ok())
        .map(u64::from_ne_bytes)
        .collect();
    let ranges: Vec<Range<u64>> = numbers.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect();
    ranges.into_iter()
}

/// For a shim, whose own pages are those that it wrote to. Only root may: others have little that could be swapped out.
#[expect(unsafe_code, reason = "nix does not know the flag")]
pub(super) fn keep_what_is_touched() {
    // SAFETY: as below.
    unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_ONFAULT) };
}

/// As much as this user may; what only the rehearsal had is not here.
#[expect(unsafe_code, reason = "mlock takes a place by its number")]
fn lock(pages: Range<u64>) {
    // SAFETY: nothing of what is there changes; it only stays in memory.
    unsafe { libc::mlock(pages.start as *const libc::c_void, (pages.end - pages.start) as usize) };
}
