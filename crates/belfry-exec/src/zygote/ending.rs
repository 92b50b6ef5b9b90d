//! The end of whole trees: TERM to every member, a time of grace, then KILL in rounds until no member is left.
//!
//! A run's tree is: what descends from its root; what is in the root's session or process group while the root is not
//! reaped (and of the first process below a shim that was killed); what came to us as an orphan and carries the run's tag;
//! what was once seen as a member; and all below these.
//! Only descendants of the zygote are ever looked at, so nobody else's process can be meant.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::out_of_reach::OutOfReach;
use super::reap::{End, reap_all};
use super::serve::{Root, Zygote};
use crate::clock;
use crate::prepared::RunTag;
use crate::processes::{Process, Processes};
use crate::wire::{Exited, Reply, Token};

pub(super) struct Ending {
    token: Token,
    tag: RunTag,
    /// The agent waits for it.
    is_ordered: bool,
    /// Told when nobody is left.
    exited: Option<Exited>,
    /// Gone once it is reaped: from then on its number may be anybody's.
    root: Option<i32>,
    /// Below a shim that was killed. Its number is nobody else's while its session or group has members.
    first: Option<i32>,
    /// Process number → when it started.
    known: HashMap<i32, u64>,
    phase: Phase,
    /// Looks in a row that found nobody.
    clear_looks: u32,
    next_look: Duration,
    pause: Duration,
    out_of_reach: OutOfReach,
    /// Nobody who is left can be ended from here.
    only_waits: bool,
}

enum Phase {
    Ask { grace: Duration },
    Grace { until: Duration },
    Kill { rounds: u32 },
}

const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Between looks at what cannot be ended from here.
const PAUSE_OUT_OF_REACH_MAX: Duration = Duration::from_secs(1);
/// After an exit another one mostly follows at once: one look for all of them.
const PAUSE_AFTER_EXIT: Duration = Duration::from_millis(1);
/// A tree that has new members after this many rounds forks faster than we kill, and is stopped first.
const ROUNDS_BEFORE_STOPPING: u32 = 1;
/// One is not enough: a chain of processes that fork, exec and exit at once was seen to slip through a look now and then.
const CLEAR_LOOKS: u32 = 3;
const STOP_PASSES_MAX: u32 = 64;

impl Ending {
    pub(super) fn next_look(&self) -> Duration {
        self.next_look
    }
}

impl Zygote {
    pub(super) fn end_tree(&mut self, token: Token, tag: RunTag, grace: Duration) {
        self.begin_ending(token, tag, grace).is_ordered = true;
    }

    /// Ends what a shim that was killed has left, and only then says that the run is over.
    pub(super) fn answer_when_ended(&mut self, root: &Root, first: Option<i32>, exited: Exited) {
        let ending = self.begin_ending(root.token, root.tag.clone(), Duration::ZERO);
        (ending.first, ending.exited) = (first, Some(exited));
    }

    /// A second order for the same tree can only bring its end nearer.
    fn begin_ending(&mut self, token: Token, tag: RunTag, grace: Duration) -> &mut Ending {
        let now = clock::monotonic();
        if let Some(at) = self.endings.iter().position(|ending| ending.token == token) {
            let ending = &mut self.endings[at];
            match &mut ending.phase {
                Phase::Ask { grace: planned } => *planned = grace.min(*planned),
                Phase::Grace { until } => *until = (now + grace).min(*until),
                Phase::Kill { .. } => {}
            }
            ending.next_look = now;
            return ending;
        }
        let root = self.roots.iter().find(|(_, root)| root.token == token).map(|(pid, _)| *pid);
        let phase = if grace.is_zero() { Phase::Kill { rounds: 0 } } else { Phase::Ask { grace } };
        self.endings.push_mut(Ending {
            token,
            tag,
            is_ordered: false,
            exited: None,
            root,
            first: None,
            known: HashMap::new(),
            phase,
            clear_looks: 0,
            next_look: now,
            pause: PAUSE_MIN,
            out_of_reach: OutOfReach::default(),
            only_waits: false,
        })
    }

    pub(super) fn look_at_endings_now(&mut self) {
        let soon = clock::monotonic() + PAUSE_AFTER_EXIT;
        for ending in &mut self.endings {
            ending.next_look = ending.next_look.min(soon);
        }
    }

    /// The last moment when the session and group of a root are surely its own.
    pub(super) fn remember_members_before_reaping(&mut self, pid: i32) {
        let Some(ending) = self.endings.iter_mut().find(|ending| ending.root == Some(pid)) else { return };
        ending.members(&Processes::look(), &self.roots);
        ending.root = None;
    }

    /// Does what is due for each tree that is being ended. One look at /proc serves all of them.
    pub(super) fn advance_endings(&mut self) {
        let now = clock::monotonic();
        if self.endings.iter().all(|ending| ending.next_look > now) {
            return;
        }
        let seen = Processes::look();
        let mut ended = Vec::new();
        for ending in self.endings.iter_mut().filter(|ending| ending.next_look <= now) {
            if ending.advance(&seen, &self.roots, now) {
                ended.push(ending.token);
            }
        }
        let endings = std::mem::take(&mut self.endings).into_iter();
        let (ended, rest): (Vec<Ending>, Vec<Ending>) = endings.partition(|ending| ended.contains(&ending.token));
        self.endings = rest;
        for Ending { token, is_ordered, exited, .. } in ended {
            if let Some(exited) = exited {
                self.answer(&Reply::Exited(exited));
            }
            if is_ordered {
                self.answer(&Reply::TreeEnded { token });
            }
        }
    }
}

impl Ending {
    /// `true`: nobody is left.
    fn advance(&mut self, seen: &Processes, roots: &HashMap<i32, Root>, now: Duration) -> bool {
        let before = self.known.clone();
        let Seen { members, is_certain } = self.members(seen, roots);
        if members.is_empty() && is_certain && self.root.is_none() {
            self.clear_looks += 1;
            self.next_look = now + PAUSE_MIN;
            return self.clear_looks == CLEAR_LOOKS;
        }
        self.clear_looks = 0;
        self.pause = (self.pause * 2).min(if self.only_waits { PAUSE_OUT_OF_REACH_MAX } else { PAUSE_MAX });
        self.next_look = now + self.pause;
        match self.phase {
            Phase::Ask { grace } => {
                for member in &members {
                    member.signal(Signal::SIGTERM);
                    // A stopped process would only notice when somebody lets it go on.
                    member.signal(Signal::SIGCONT);
                }
                self.phase = Phase::Grace { until: now + grace };
                self.pause = PAUSE_MIN;
            }
            Phase::Grace { until } if now < until => self.next_look = self.next_look.min(until),
            Phase::Grace { .. } => {
                self.phase = Phase::Kill { rounds: 0 };
                self.kill(&members);
            }
            Phase::Kill { rounds } => {
                let grows = members.iter().any(|member| !before.contains_key(&member.pid));
                if rounds >= ROUNDS_BEFORE_STOPPING && grows && !self.only_waits {
                    let members = self.stop(members, roots);
                    self.kill(&members);
                } else {
                    self.kill(&members);
                }
            }
        }
        false
    }

    fn kill(&mut self, members: &[Process]) {
        self.only_waits = self.out_of_reach.kill(members);
        if self.only_waits {
            // That may take days, in which its number may become somebody else's; whoever is left is known by now.
            self.first = None;
        }
        if let Phase::Kill { rounds } = &mut self.phase {
            *rounds += 1;
        }
        if !self.only_waits {
            self.pause = PAUSE_MIN.max(self.pause.min(PAUSE_MIN * 8));
        }
        self.next_look = clock::monotonic() + self.pause;
    }

    /// Stops members until a look finds no new one: what is stopped cannot fork.
    fn stop(&mut self, mut members: Vec<Process>, roots: &HashMap<i32, Root>) -> Vec<Process> {
        let mut stopped = HashSet::new();
        for _pass in 0..STOP_PASSES_MAX {
            let new: Vec<_> =
                members.iter().filter(|member| stopped.insert((member.pid, member.started_ticks))).collect();
            if new.is_empty() {
                break;
            }
            new.iter().for_each(|member| member.signal(Signal::SIGSTOP));
            members = self.members(&Processes::look(), roots).members;
        }
        members
    }

    /// All living members, which are also remembered.
    fn members(&mut self, seen: &Processes, roots: &HashMap<i32, Root>) -> Seen {
        let (root, first) = (self.root, self.first);
        let in_root = |process: &Process| {
            root.is_some_and(|root| [process.pid, process.session, process.group].contains(&root))
                || first.is_some_and(|first| [process.session, process.group].contains(&first))
        };
        let known = |process: &Process| self.known.get(&process.pid) == Some(&process.started_ticks);
        let seeds: Vec<i32> =
            seen.all().filter(|process| in_root(process) || known(process)).map(|process| process.pid).collect();
        let found = descendants_of_run(seen, &self.tag, roots, &seeds);
        self.known = found.members.iter().map(|member| (member.pid, member.started_ticks)).collect();
        found
    }
}

pub(super) struct Seen {
    pub members: Vec<Process>,
    /// False: somebody may have been missed. A look at /proc takes time, and a process may fork and end during it. Its
    /// heir is then not in the look, but it is itself, as an orphan not reaped: only we reap, and not during a look.
    is_certain: bool,
}

/// The living processes among `seeds`, orphans that carry `tag`, and all below these; never one that does not descend
/// from this process. What stands below a root of another run is that run's, so only orphans are asked for their tag.
pub(super) fn descendants_of_run(seen: &Processes, tag: &RunTag, roots: &HashMap<i32, Root>, seeds: &[i32]) -> Seen {
    let me = std::process::id() as i32;
    let seeds: HashSet<i32> = seeds.iter().copied().collect();
    let mut found = Seen { members: Vec::new(), is_certain: true };
    let mut to_visit: Vec<(Process, bool)> = Vec::new();
    to_visit.extend(seen.children_of(me).map(|child| (*child, !roots.contains_key(&child.pid))));
    let mut visited = HashSet::new();
    // The second value: 'may be asked for its tag'; a member's children come as members.
    let mut members: HashSet<i32> = HashSet::new();
    while let Some((process, orphaned)) = to_visit.pop() {
        if !visited.insert(process.pid) {
            continue;
        }
        let by_place = members.contains(&process.parent) || seeds.contains(&process.pid);
        found.is_certain &= !(orphaned && process.dead);
        let by_tag = !by_place && orphaned && !process.dead && {
            let environ = process.settled_environ();
            found.is_certain &= environ.is_some();
            environ.is_some_and(|environ| tag.is_in(&environ))
        };
        if by_place || by_tag {
            members.insert(process.pid);
            if !process.dead {
                found.members.push(process);
            }
        }
        to_visit.extend(seen.children_of(process.pid).map(|child| (*child, orphaned)));
    }
    found
}

/// Stops and kills whatever descends from this process, until nothing does; tells of each that was a child of it.
#[expect(clippy::disallowed_methods, reason = "the zygote has one thread and no runtime")]
pub(super) fn end_all_descendants(mut reaped: impl FnMut(i32, End)) {
    let me = std::process::id() as i32;
    let mut pause = Duration::from_micros(500);
    let mut stopped = HashSet::new();
    let mut out_of_reach = OutOfReach::default();
    loop {
        reap_all(&mut reaped);
        let seen = Processes::look();
        let living: Vec<_> = seen.descendants_of(me).into_iter().filter(|process| !process.dead).collect();
        if living.is_empty() && seen.children_of(me).next().is_none() {
            return;
        }
        let mut has_stopped = false;
        for process in living.iter().filter(|process| stopped.insert((process.pid, process.started_ticks))) {
            // What cannot be stopped and forks on would be new with every look.
            has_stopped |= process.try_signal(Signal::SIGSTOP).is_ok();
        }
        if has_stopped {
            continue;
        }
        let only_waits = out_of_reach.kill(&living);
        std::thread::sleep(pause);
        pause = (pause * 2).min(if only_waits { PAUSE_OUT_OF_REACH_MAX } else { PAUSE_MAX });
    }
}
