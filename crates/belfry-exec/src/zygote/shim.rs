//! The shim of one exclusive run: a process between the zygote and the run's first process that holds it to the deadline. It needs
//! neither agent nor zygote for that: either may hang, be stopped or be killed.
//!
//! It is the reaper of the whole tree, so nobody in it gets away by setsid or a double fork. When the first process has exited, the
//! shim ends what is left, says how it went, and exits: exclusive work leaves nothing behind that could go on beside its next start.
//! Where the tree was asked to end, what is left of it has the time that was given for that; and no more than that, whatever comes after.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::unistd::{Pid, getpid, getppid, setsid};

use super::ending::end_all_descendants;
use super::reap::{End, has_children, reap_all};
use super::{close_all_but, memory, raw};
use crate::clock;
use crate::deadline::{Deadline, LastMoments};
use crate::processes::Processes;

/// Told by the kernel when the zygote is gone. Not TERM: that goes to every member of a tree that is being ended.
const ZYGOTE_GONE: Signal = Signal::SIGHUP;
/// From the zygote, which asks the whole tree to end, its shim first, and kills what is left when the grace is over.
const TREE_ASKED: Signal = Signal::SIGTERM;
/// From whoever passes a signal on to the tree that asks it to end, before it does.
pub(crate) const TREE_WILL_BE_ASKED: Signal = Signal::SIGUSR1;
/// Nobody kills what does not heed a signal that was passed on.
const PASSED_ON_GRACE: Duration = Duration::from_secs(10);

/// All that came from a shim that is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// The number of the first process, which said it before it became the program.
    pub first: Option<i32>,
    /// None: the shim was killed before it could say anything.
    pub last: Option<LastWord>,
}

/// What a shim says of its run before it exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LastWord {
    pub code: Option<i32>,
    pub signal: i32,
    pub left_behind: u32,
    /// The shim has ended it, or asked it to end, because the deadline was over.
    pub past_deadline: bool,
}

const WORD_BYTES: usize = 14;
const FIRST_BYTES: usize = size_of::<i32>();

impl Told {
    /// Of two words the later one counts. A first process that was killed before it came to speak has said no number. Never waits.
    pub(super) fn read_from(pipe: &OwnedFd) -> Told {
        let mut bytes = [0; FIRST_BYTES + 2 * WORD_BYTES];
        let Ok(count) = nix::unistd::read(pipe.as_fd(), &mut bytes) else { return Told::default() };
        let (number, words) = bytes[..count].split_at(count % WORD_BYTES);
        let last = words.chunks_exact(WORD_BYTES).last().map(LastWord::decode);
        Told { first: number.try_into().ok().map(i32::from_le_bytes), last }
    }
}

impl LastWord {
    fn encode(self) -> [u8; WORD_BYTES] {
        let mut bytes = [0; WORD_BYTES];
        bytes[0] = u8::from(self.past_deadline);
        bytes[1] = u8::from(self.code.is_some());
        bytes[2..6].copy_from_slice(&self.code.unwrap_or(0).to_le_bytes());
        bytes[6..10].copy_from_slice(&self.signal.to_le_bytes());
        bytes[10..].copy_from_slice(&self.left_behind.to_le_bytes());
        bytes
    }

    fn decode(word: &[u8]) -> LastWord {
        let number = |from: usize| word[from..from + 4].try_into().map(i32::from_le_bytes).unwrap_or_default();
        LastWord {
            past_deadline: word[0] == 1,
            code: (word[1] == 1).then(|| number(2)),
            signal: number(6),
            left_behind: number(10) as u32,
        }
    }
}

pub(super) struct Shim {
    zygote: Pid,
    word: OwnedFd,
    signals: SignalFd,
    timer: TimerFd,
    deadline: Deadline,
}

impl Shim {
    /// In the new process. Whatever fails here fails before anything was started.
    pub(super) fn prepare(zygote: Pid, word: OwnedFd, deadline: Deadline) -> Result<Shim, Errno> {
        prctl::set_child_subreaper(true)?;
        prctl::set_pdeathsig(ZYGOTE_GONE)?;
        if getppid() != zygote {
            return Err(Errno::ESRCH);
        }
        prctl::set_name(c"belfry-shim")?;
        let _already_leader = setsid();
        SigSet::all().thread_block()?;
        memory::keep_what_is_touched();
        let wanted = SigSet::from_iter([Signal::SIGCHLD, ZYGOTE_GONE, TREE_ASKED, TREE_WILL_BE_ASKED]);
        let signals = SignalFd::with_flags(&wanted, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        Ok(Shim { zygote, word, signals, timer, deadline })
    }

    /// In the first process, before any word of the shim: should the shim be killed, the zygote ends what is left of this session.
    pub(super) fn say_who_is_first(&self) -> Result<(), Errno> {
        nix::unistd::write(&self.word, &getpid().as_raw().to_le_bytes()).map(drop)
    }

    pub(super) fn watch(self, first: i32) -> ! {
        // Also the pipes of its output, whose end is waited for, and the zygote's socket.
        close_all_but(&[raw(&self.word), self.signals.as_fd().as_raw_fd(), self.timer.as_fd().as_raw_fd()]);
        let _was_asked = self.hold(first);
        super::launch::exit_now()
    }

    /// Until nothing of the run is left. `first`: its first process. True: it was asked to end because of the deadline.
    pub(super) fn hold(&self, first: i32) -> bool {
        let mut watch = Watch::of(first);
        let is_orphaned = loop {
            match self.step(&mut watch) {
                Ok(Step::GoOn) => {}
                Ok(Step::ZygoteGone) => break true,
                // Without a timer or signals nothing can be promised any more.
                Ok(Step::Over) | Err(_) => break false,
            }
        };
        let left_behind = if is_orphaned { 0 } else { watch.left_behind() };
        if has_children() {
            end_all_descendants(|pid, end| watch.reaped(pid, end));
        }
        self.say(&watch, left_behind);
        watch.asked.is_some()
    }

    fn say(&self, watch: &Watch, left_behind: u32) {
        let end = watch.end.as_ref();
        let (code, signal) = end.map_or((None, Signal::SIGKILL as i32), |end| (end.code, end.signal));
        let said = LastWord { code, signal, left_behind, past_deadline: watch.past_deadline };
        let _zygote_gone = nix::unistd::write(&self.word, &said.encode());
    }

    fn step(&self, watch: &mut Watch) -> io::Result<Step> {
        let now = clock::boottime();
        let moments = self.deadline.last_moments();
        let next = watch.hold_to(moments, self.deadline.was_asked_at(moments.ask), now);
        let Some(mut next) = next else { return Ok(Step::Over) };
        if watch.end.is_some() {
            match watch.rest_may_go_on_until(moments) {
                Some(until) if now < until && has_children() => next = next.min(until),
                _ => return Ok(Step::Over),
            }
            // Said now: at the end of its grace the tree is killed, and this process with it.
            if !std::mem::replace(&mut watch.has_said, true) {
                self.say(watch, 0);
            }
        }
        // From this moment on, which says the same: it counts suspend as well. A process whose wall clock is faked (libfaketime) has moments
        // shifted. Read again: to ask a large tree takes its time.
        let left = next.saturating_sub(clock::boottime()).max(Duration::from_nanos(1));
        let once = Expiration::OneShot(TimeSpec::from_duration(left));
        self.timer.set(once, TimerSetTimeFlags::empty())?;
        let mut ready =
            [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN), PollFd::new(self.timer.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        while let Ok(Some(signal)) = self.signals.read_signal() {
            let is = |wanted: Signal| signal.ssi_signo == wanted as u32;
            // Anybody may send it: only a parent that is another one by now says that the zygote is gone. When the kernel sends it, it is.
            if is(ZYGOTE_GONE) && getppid() != self.zygote {
                return Ok(Step::ZygoteGone);
            }
            // A program that signals whomever it may has not asked its own tree to end.
            if is(TREE_ASKED) && signal.ssi_pid == self.zygote.as_raw() as u32 {
                watch.asked_by = AskedBy::Zygote;
            } else if is(TREE_WILL_BE_ASKED) && watch.asked_by == AskedBy::Nobody {
                watch.asked_by = AskedBy::SignalPassedOn;
            }
        }
        reap_all(|pid, end| watch.reaped(pid, end));
        Ok(Step::GoOn)
    }
}

enum Step {
    GoOn,
    /// What is left of the tree is to be killed now.
    Over,
    ZygoteGone,
}

struct Watch {
    first: i32,
    end: Option<End>,
    ended_at: Duration,
    asked_by: AskedBy,
    /// It was asked to end because of the deadline: the moment at which what is left of it is killed.
    asked: Option<Duration>,
    past_deadline: bool,
    has_said: bool,
}

/// Apart from the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AskedBy {
    Nobody,
    Zygote,
    SignalPassedOn,
}

impl Watch {
    fn of(first: i32) -> Watch {
        Watch {
            first,
            end: None,
            ended_at: Duration::ZERO,
            asked_by: AskedBy::Nobody,
            asked: None,
            past_deadline: false,
            has_said: false,
        }
    }

    fn reaped(&mut self, pid: i32, end: End) {
        if pid == self.first {
            self.end = Some(end);
            self.ended_at = clock::boottime();
        }
    }

    /// How long what is left may go on after the first process. None: not at all, for nobody has asked it to end.
    fn rest_may_go_on_until(&self, LastMoments { kill, .. }: LastMoments) -> Option<Duration> {
        match self.asked_by {
            // Which kills it, and this process with it.
            AskedBy::Zygote => Some(kill),
            AskedBy::SignalPassedOn => Some(kill.min(self.ended_at + PASSED_ON_GRACE)),
            AskedBy::Nobody => self.asked,
        }
    }

    /// When to look again; none: it is too late for the tree to live. The agent asks first; the shim does it in its place a little later.
    ///
    /// What was asked is killed at the moment that was in force then, also when contact is back and the deadline is put off: it is on its
    /// way out, and nobody may take it for work that goes on. Else a worker that takes no more work and hangs would be kept alive for
    /// ever, and one that does not heed it and succeeds hours later would be told as cut off, and run again. The agent does the same with
    /// what it asks by itself (`desk/exclusive.rs`). Sooner than promised nothing is killed, for a deadline that is put off is only later.
    fn hold_to(
        &mut self,
        LastMoments { ask, kill }: LastMoments,
        agent_asked: bool,
        now: Duration,
    ) -> Option<Duration> {
        let kill = self.asked.map_or(kill, |asked| asked.min(kill));
        if now >= kill {
            self.past_deadline = true;
            return None;
        }
        let ask_at = ask + (kill.saturating_sub(ask)) / 4;
        if self.asked.is_none() && now < ask_at {
            return Some(ask_at);
        }
        if self.asked.is_none() && !agent_asked {
            self.past_deadline = true;
            for process in Processes::look().descendants_of(std::process::id() as i32) {
                process.signal(Signal::SIGTERM);
                process.signal(Signal::SIGCONT);
            }
        }
        self.asked = Some(kill);
        Some(kill)
    }

    fn left_behind(&self) -> u32 {
        if self.end.is_none() || !has_children() {
            return 0;
        }
        let left = Processes::look().descendants_of(std::process::id() as i32);
        left.iter().filter(|process| !process.dead).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_word_is_read_as_it_was_said() {
        for word in [
            LastWord { code: Some(3), signal: 0, left_behind: 0, past_deadline: false },
            LastWord { code: None, signal: 15, left_behind: 7, past_deadline: true },
        ] {
            let (read, write) = nix::unistd::pipe().unwrap();
            let says = |bytes: &[u8]| assert_eq!(nix::unistd::write(&write, bytes), Ok(bytes.len()));
            let first = 70_000_i32;
            says(&first.to_le_bytes());
            assert_eq!(Told::read_from(&read), Told { first: Some(first), last: None });
            let earlier = LastWord { code: Some(1), signal: 0, left_behind: 0, past_deadline: false };
            for words in [&[word][..], &[earlier, word]] {
                says(&first.to_le_bytes());
                words.iter().for_each(|word| says(&word.encode()));
                assert_eq!(Told::read_from(&read), Told { first: Some(first), last: Some(word) });
                words.iter().for_each(|word| says(&word.encode()));
                assert_eq!(
                    Told::read_from(&read),
                    Told { first: None, last: Some(word) },
                    "its first process never spoke"
                );
            }
            drop(write);
            assert_eq!(Told::read_from(&read), Told::default());
        }
    }

    #[test]
    fn the_tree_is_asked_a_little_after_the_agent_should_have_and_killed_at_the_end() {
        let at = Duration::from_secs;
        let moments = LastMoments { ask: at(60), kill: at(80) };
        let mut watch = Watch::of(1);
        assert_eq!(watch.hold_to(moments, false, at(64)), Some(at(65)));
        assert_eq!(watch.hold_to(moments, true, at(66)), Some(at(80)));
        assert!(!watch.past_deadline, "the agent asked by itself");
        assert_eq!(watch.hold_to(moments, true, at(80)), None);
        assert!(watch.past_deadline);
    }

    #[test]
    fn what_was_asked_is_killed_at_the_moment_of_then_however_far_the_deadline_is_put_off() {
        let at = Duration::from_secs;
        let (moments, put_off) =
            (LastMoments { ask: at(60), kill: at(80) }, LastMoments { ask: at(160), kill: at(180) });
        for agent_asked in [false, true] {
            let mut watch = Watch::of(1);
            assert_eq!(watch.hold_to(moments, agent_asked, at(66)), Some(at(80)));
            assert_eq!(watch.hold_to(put_off, false, at(79)), Some(at(80)), "it is not forgiven");
            assert_eq!(watch.rest_may_go_on_until(put_off), Some(at(80)));
            assert_eq!(watch.hold_to(put_off, false, at(80)), None);
            assert!(watch.past_deadline);
        }
        let mut watch = Watch::of(1);
        assert_eq!(watch.hold_to(moments, false, at(64)), Some(at(65)));
        assert_eq!(watch.hold_to(put_off, false, at(66)), Some(at(165)), "nobody has asked it");
        assert!(!watch.past_deadline);
        let over = LastMoments { ask: at(0), kill: at(0) };
        assert_eq!(watch.hold_to(over, false, at(67)), None);
    }
}
