//! What a shim needs at its deadline stays in memory. It may have slept for weeks by then; a machine that is short of memory takes the pages of such a
//! program away, and when its disk is slow too, a tree went on for half a minute beyond its deadline, which nobody may.
//!
//! Which pages these are nobody can list beforehand. So a shim is rehearsed once, in a copy of the zygote, with a process of its own that is past
//! its deadline; what is mapped there in the end is locked here. Shims are copies too and use the same pages; without a zygote they end at once.
//! Work that has soon ended needs none of it, and no start waits for it.

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

use super::out_of_reach::has_room;
use super::shim::Shim;
use super::{clone, close_all_but, launch, raw};
use crate::clock;
use crate::deadline::{Deadline, LastMoments};

#[derive(Default)]
pub(super) struct Memory {
    stage: Stage,
    /// When exclusive work may be old enough for what comes next. None: there is none, or nothing comes.
    next_look: Option<Duration>,
    failed: u32,
}

#[derive(Default)]
enum Stage {
    #[default]
    AsItComes,
    Rehearsing {
        pid: i32,
        /// Where it says what it touched, before it exits.
        touched: OwnedFd,
    },
    /// Nobody was told yet. None: nothing is kept, for no rehearsal came through.
    KeptInPart(Option<Kept>),
    Done,
}

/// Of the pages of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Kept {
    needed_bytes: u64,
    bytes: u64,
}

/// Nothing is killed by its deadline sooner: that is 0.3 TTL after a start, and a TTL has two seconds at least.
const REHEARSED_AT_AGE: Duration = Duration::from_millis(250);
/// Of what ends before, nothing is taken away; and cron mails every word of a `dcron`.
const TOLD_AT_AGE: Duration = Duration::from_secs(10);
const REHEARSALS_MAX: u32 = 5;
/// Of the first one. Of a shim that wakes up after its last moment nothing is learned, so each next one has more time for that.
const REHEARSED_FOR: Duration = Duration::from_millis(20);
/// After the first one that failed. A machine that is this busy may be so for a while.
const REHEARSED_AGAIN_AFTER: Duration = Duration::from_millis(250);
const EACH_NEXT: u32 = 4;
/// Places between two that were touched are locked as well when they are this small, though not read: each place on its own is work for every fork.
const GAP_BYTES_MAX: u64 = 64 * 1024;
/// In /proc/self/pagemap, a number for each page.
const PAGE_IS_THERE: u64 = 1 << 63;
const PAGE_IS_OF_A_FILE: u64 = 1 << 61;

impl Memory {
    /// Something exclusive was started.
    pub(super) fn work_began(&mut self, now: Duration) {
        self.next_look = self.next_look.or(self.age_needed().map(|age| now + age));
    }

    pub(super) fn next_look(&self) -> Option<Duration> {
        self.next_look
    }

    /// Does what is due. `oldest`: when the oldest exclusive work that lives has begun.
    pub(super) fn look(&mut self, now: Duration, oldest: impl FnOnce() -> Option<Duration>) {
        let is_due = |at: Option<Duration>| at.is_some_and(|at| at <= now);
        if !is_due(self.next_look) {
            return;
        }
        self.next_look = self.age_needed().and_then(|age| Some(oldest()? + age));
        if !is_due(self.next_look.take_if(|at| *at <= now)) {
            return;
        }
        match std::mem::take(&mut self.stage) {
            Stage::AsItComes => self.rehearse(now),
            Stage::KeptInPart(kept) => {
                tell(&kept.map_or_else(|| NOTHING_KEPT.to_owned(), Kept::line));
                self.stage = Stage::Done;
            }
            other @ (Stage::Rehearsing { .. } | Stage::Done) => self.stage = other,
        }
    }

    fn age_needed(&self) -> Option<Duration> {
        match self.stage {
            Stage::AsItComes => Some(REHEARSED_AT_AGE),
            Stage::KeptInPart(_) => Some(TOLD_AT_AGE),
            Stage::Rehearsing { .. } | Stage::Done => None,
        }
    }

    fn rehearse(&mut self, now: Duration) {
        match begin_rehearsal(self.failed) {
            Ok((pid, touched)) => self.stage = Stage::Rehearsing { pid, touched },
            // A machine that is short of processes: a little later.
            Err(_) => self.next_look = Some(now + REHEARSED_AT_AGE),
        }
    }

    /// Of whoever is no run.
    pub(super) fn reaped(&mut self, reaped: i32, now: Duration) {
        match std::mem::take(&mut self.stage) {
            Stage::Rehearsing { pid, touched } if pid == reaped => {
                self.next_look = Some(now);
                self.stage = match Touched::read_from(touched).map(|touched| touched.keep()) {
                    Some(kept) if kept.bytes < kept.needed_bytes => Stage::KeptInPart(Some(kept)),
                    Some(_) => Stage::Done,
                    None if self.failed + 1 == REHEARSALS_MAX => Stage::KeptInPart(None),
                    None => {
                        self.next_look = Some(now + REHEARSED_AGAIN_AFTER * EACH_NEXT.pow(self.failed));
                        self.failed += 1;
                        Stage::AsItComes
                    }
                };
            }
            other => self.stage = other,
        }
    }
}

const NOTHING_KEPT: &str = "belfry: the program that ends exclusive work at its deadline could not be locked in memory, for this machine has been too busy each time it was tried; where memory is short and the disk is slow that end may come late\n";

fn tell(line: &str) {
    if has_room() {
        let _nobody_reads = io::stderr().write_all(line.as_bytes());
    }
}

impl Kept {
    fn line(self) -> String {
        let [bytes, needed] = [self.bytes, self.needed_bytes].map(|bytes| bytes >> 10);
        let enough = self.needed_bytes.next_multiple_of(1 << 20) >> 10;
        format!(
            "belfry: {bytes} of {needed} KiB of the program that ends exclusive work at its deadline could be locked in memory; where memory is short and the disk is slow that may come late. Allow {enough} KiB: `ulimit -l {enough}`, `memlock` in limits.conf, or LimitMEMLOCK={}M of systemd\n",
            enough >> 10
        )
    }
}

/// `failed`: how many have, before.
fn begin_rehearsal(failed: u32) -> io::Result<(i32, OwnedFd)> {
    let (touched, say) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    let zygote = getpid();
    let mut body = || {
        // Also the output of whatever is starting, whose end is waited for.
        close_all_but(&[raw(&say)]);
        let _seen_by_the_zygote = rehearse(zygote, REHEARSED_FOR * EACH_NEXT.pow(failed))
            .and_then(|touched| touched.write_to(say.try_clone()?));
        launch::exit_now()
    };
    Ok((clone::copying_memory(&mut body)?, touched))
}

/// A shim's whole way, and then where the pages are that it went through.
fn rehearse(zygote: Pid, time: Duration) -> io::Result<Touched> {
    let deadline = Deadline::new()?;
    let nobody_reads = File::options().write(true).open("/dev/null")?;
    let shim = Shim::prepare(zygote, nobody_reads.into(), deadline.clone())?;
    prctl::set_name(c"belfry-zygote")?;
    let mut waits_for_its_end = || {
        let _killed_at_the_deadline_at_the_latest = prctl::set_pdeathsig(Signal::SIGKILL);
        loop {
            pause();
        }
    };
    let first = clone::copying_memory(&mut waits_for_its_end)?;
    // Only now, or their time might be over before it is waited for.
    let now = clock::boottime();
    deadline.put_off(LastMoments { ask: now + time / 10, kill: now + time });
    let has_asked = shim.hold(first);
    if has_asked { Touched::present() } else { Err(io::Error::other("it stood still beyond the deadline")) }
}

/// Pages, each range with its first and without its last place.
#[derive(Debug, PartialEq, Eq)]
struct Touched {
    /// First, for whoever may not lock all: a copy begins without any of those, so they are what it went through.
    of_files: Vec<Range<u64>>,
    /// Taken away only where there is swap.
    inherited: Vec<Range<u64>>,
}

impl Touched {
    /// All of this process that is in memory, but for what the kernel itself put there.
    fn present() -> io::Result<Touched> {
        let page_bytes = page_bytes()?;
        let (maps, pagemap) = (std::fs::read_to_string("/proc/self/maps")?, File::open("/proc/self/pagemap")?);
        let mut touched = Touched { of_files: Vec::new(), inherited: Vec::new() };
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
                    let is_of_a_file = page & PAGE_IS_OF_A_FILE != 0;
                    let pages = if is_of_a_file { &mut touched.of_files } else { &mut touched.inherited };
                    if page & PAGE_IS_THERE != 0 {
                        match pages.last_mut().filter(|last| last.end == place) {
                            Some(last) => last.end = place + page_bytes,
                            None => pages.push(place..place + page_bytes),
                        }
                    }
                    place += page_bytes;
                }
            }
        }
        Ok(touched)
    }

    /// At once, for who reads it waits until this process has exited; a pipe has room for thousands of them.
    fn write_to(&self, pipe: OwnedFd) -> io::Result<()> {
        let counts = [self.of_files.len() as u64, self.inherited.len() as u64];
        let places = self.of_files.iter().chain(&self.inherited).flat_map(|range| [range.start, range.end]);
        let bytes: Vec<u8> = counts.into_iter().chain(places).flat_map(u64::to_ne_bytes).collect();
        File::from(pipe).write_all(&bytes)
    }

    /// Never waits: whoever wrote them is gone. None: it could not tell all.
    fn read_from(pipe: OwnedFd) -> Option<Touched> {
        let mut bytes = Vec::new();
        let _what_came = File::from(pipe).read_to_end(&mut bytes);
        let numbers: Vec<u64> = bytes
            .chunks_exact(size_of::<u64>())
            .filter_map(|number| number.try_into().ok())
            .map(u64::from_ne_bytes)
            .collect();
        let (&[of_files, inherited], places) = numbers.split_first_chunk()?;
        let mut ranges: Vec<Range<u64>> = places.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect();
        let is_whole = of_files > 0 && of_files.checked_add(inherited) == Some(ranges.len() as u64);
        let inherited = is_whole.then(|| ranges.split_off(of_files as usize))?;
        Some(Touched { of_files: ranges, inherited })
    }

    /// As much as this user may.
    fn keep(&self) -> Kept {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mappings: Vec<Range<u64>> = maps.lines().filter_map(mapping).collect();
        let Ok(page_bytes) = page_bytes() else { return Kept::default() };
        let (mut kept, mut more) = (Kept::default(), Kept::default());
        let of_files = places(&self.of_files, &mappings);
        kept.needed_bytes = of_files.iter().map(|place| bytes_of(&place.whole)).sum();
        if of_files.iter().all(|place| place.lock(place.whole.clone(), page_bytes, &mut kept)) {
            places(&self.inherited, &mappings)
                .iter()
                .all(|place| place.lock(place.whole.clone(), page_bytes, &mut more));
        }
        kept
    }
}

/// Within one mapping of this process.
struct Place<'a> {
    whole: Range<u64>,
    touched: Vec<&'a Range<u64>>,
}

/// What only the rehearsal had is not here.
fn places<'a>(touched: &'a [Range<u64>], mappings: &[Range<u64>]) -> Vec<Place<'a>> {
    let mut places: Vec<Place<'a>> = Vec::new();
    for mapping in mappings {
        for range in touched.iter().filter(|range| range.start < mapping.end && mapping.start < range.end) {
            let here = range.start.max(mapping.start)..range.end.min(mapping.end);
            let is_near = |last: &&mut Place<'_>| {
                last.whole.start >= mapping.start && here.start.saturating_sub(last.whole.end) <= GAP_BYTES_MAX
            };
            match places.last_mut().filter(is_near) {
                Some(last) => {
                    last.whole.end = here.end;
                    last.touched.push(range);
                }
                None => places.push(Place { whole: here, touched: vec![range] }),
            }
        }
    }
    places
}

impl Place<'_> {
    /// By halves where it is too much, for the kernel locks all of a range or nothing. False: there is no room for a single page more.
    #[expect(unsafe_code, reason = "mlock2 takes a place by its number, and a page is there once it was read")]
    fn lock(&self, part: Range<u64>, page_bytes: u64, kept: &mut Kept) -> bool {
        // SAFETY: nothing of what is there changes; it only stays in memory once it is there.
        let locked = unsafe {
            libc::syscall(libc::SYS_mlock2, part.start as *const libc::c_void, bytes_of(&part) as usize, LOCK_ON_FAULT)
        };
        if locked != 0 {
            let half = part.start + bytes_of(&part) / page_bytes / 2 * page_bytes;
            return half > part.start
                && self.lock(part.start..half, page_bytes, kept)
                && self.lock(half..part.end, page_bytes, kept);
        }
        kept.bytes += bytes_of(&part);
        let inside = |range: &&Range<u64>| range.start.max(part.start)..range.end.min(part.end);
        for page in self.touched.iter().map(inside).flat_map(|range| range.step_by(page_bytes as usize)) {
            // SAFETY: within a mapping that may be read, in a process without another thread that could take it away.
            unsafe { std::ptr::read_volatile(page as *const u8) };
        }
        true
    }
}

const LOCK_ON_FAULT: libc::c_uint = 1;

fn bytes_of(range: &Range<u64>) -> u64 {
    range.end - range.start
}

fn page_bytes() -> io::Result<u64> {
    Ok(sysconf(SysconfVar::PAGE_SIZE)?.unwrap_or(4096) as u64)
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

/// For a shim, whose own pages are those that it wrote to. Only root may: others have little that could be swapped out.
#[expect(unsafe_code, reason = "nix does not know the flag")]
pub(super) fn keep_what_is_touched() {
    // SAFETY: nothing of what is there changes; it only stays in memory.
    unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_ONFAULT) };
}

#[cfg(test)]
mod tests {
    use nix::sys::wait::waitpid;

    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_rehearsal_goes_through_all_that_a_shim_waits_with() {
        let rehearsed = |failed| {
            let (pid, touched) = begin_rehearsal(failed).unwrap();
            waitpid(Pid::from_raw(pid), None).unwrap();
            Touched::read_from(touched)
        };
        let touched = (0..REHEARSALS_MAX).find_map(rehearsed).expect("all that it touched");
        let is_kept = |place: usize| touched.of_files.iter().any(|range| range.contains(&(place as u64)));
        for (name, place) in [
            ("poll", libc::poll as *const () as usize),
            ("timerfd_settime", libc::timerfd_settime as *const () as usize),
            ("waitid", libc::waitid as *const () as usize),
            ("hold", Shim::hold as *const () as usize),
        ] {
            assert!(is_kept(place), "{name} at {place:x} is not in {touched:x?}");
        }
    }

    #[test]
    fn nothing_is_rehearsed_for_work_that_has_soon_ended() {
        let mut memory = Memory::default();
        assert_eq!(memory.next_look(), None);
        memory.work_began(at(1_000));
        memory.work_began(at(1_200));
        assert_eq!(memory.next_look(), Some(at(1_250)));
        memory.look(at(1_249), || unreachable!("not yet"));
        memory.look(at(1_250), || Some(at(1_200)));
        assert_eq!(memory.next_look(), Some(at(1_450)), "the first one has ended");
        memory.look(at(1_450), || None);
        assert_eq!(memory.next_look(), None);
        assert!(matches!(memory.stage, Stage::AsItComes));
        memory.work_began(at(9_000));
        memory.look(at(9_250), || Some(at(9_000)));
        let Stage::Rehearsing { pid, .. } = memory.stage else { panic!("it is old enough") };
        waitpid(Pid::from_raw(pid), None).unwrap();
        assert_eq!(memory.next_look(), None);
    }

    #[test]
    fn a_rehearsal_that_could_not_tell_is_tried_again_later_and_at_last_that_is_told() {
        let mut memory = Memory::default();
        for failed in 1..=REHEARSALS_MAX {
            let (touched, half_of_a_number) = pipe2(OFlag::O_NONBLOCK).unwrap();
            nix::unistd::write(&half_of_a_number, &[1, 0, 0]).unwrap();
            drop(half_of_a_number);
            memory.stage = Stage::Rehearsing { pid: 7, touched };
            memory.reaped(8, at(500));
            memory.reaped(7, at(500));
            assert_eq!(matches!(memory.stage, Stage::AsItComes), failed < REHEARSALS_MAX, "{failed}");
            let next = [750, 1_500, 4_500, 16_500, 500][failed as usize - 1];
            assert_eq!(memory.next_look(), Some(at(next)), "{failed}");
        }
        assert!(matches!(memory.stage, Stage::KeptInPart(None)), "it is told");
        memory.look(at(10_500), || Some(at(500)));
        assert!(matches!((&memory.stage, memory.next_look()), (Stage::Done, None)));
    }

    #[test]
    fn what_was_touched_is_told_whole_or_not_at_all() {
        let touched =
            Touched { of_files: vec![4096..8192, 0x7000..0x9000], inherited: vec![0x1000..0x2000, 0x4000..0x5000] };
        let (read, write) = pipe2(OFlag::O_NONBLOCK).unwrap();
        touched.write_to(write).unwrap();
        let mut bytes = Vec::new();
        File::from(read).read_to_end(&mut bytes).unwrap();
        for count in 0..=bytes.len() {
            let (read, write) = pipe2(OFlag::O_NONBLOCK).unwrap();
            File::from(write).write_all(&bytes[..count]).unwrap();
            assert_eq!(Touched::read_from(read).is_some(), count == bytes.len(), "{count} bytes");
        }
    }

    #[test]
    fn places_that_are_near_are_one_but_not_across_mappings() {
        let gap = GAP_BYTES_MAX;
        let touched = [4096..8192, 8192 + gap..8192 + gap + 4096, 1_000_000..1_004_096, 1_500_000..1_600_000];
        let mappings = [4096..900_000, 900_000..1_002_048];
        let found: Vec<Range<u64>> = places(&touched, &mappings).into_iter().map(|place| place.whole).collect();
        assert_eq!(found, [4096..8192 + gap + 4096, 1_000_000..1_002_048]);
    }

    #[test]
    fn the_line_says_what_to_allow() {
        let kept = Kept { needed_bytes: 1_400_000, bytes: 65_536 };
        assert!(kept.line().starts_with("belfry: 64 of 1367 KiB of the program"), "{}", kept.line());
        assert!(kept.line().contains("`ulimit -l 2048`") && kept.line().ends_with("LimitMEMLOCK=2M of systemd\n"));
    }
}
