//! What the runs of this node were promised of the machine (`needs`), and whether there is room for one more. Whoever ordered them, all of
//! them are counted here, so what servers that do not know of each other send too much of waits until there is room.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use belfry_core::room::{Amounts, Host, Room, SHOWS_AFTER};
use belfry_proto::session;

use crate::key::Key;

#[derive(Default)]
pub(super) struct Promises {
    /// As it was measured last. None: it could not be.
    host: Option<Box<Host>>,
    /// It has too little free disk for any work.
    disk_low: bool,
    runs: HashMap<Key, (Amounts, Stage)>,
    /// In the order in which they started, those whose use measuring may not show yet, and some that are over.
    young: VecDeque<(Duration, Key)>,
    waiting: Amounts,
    unseen: Amounts,
    seen: Amounts,
    changed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It has not started.
    Waiting,
    Unseen,
    /// What it uses is in what is measured.
    Seen,
}

/// Whether a run that is due may start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Fits,
    Waits(String),
    Never(String),
}

impl Promises {
    /// True if that changes whether work is taken.
    pub(super) fn measured(&mut self, host: Box<Host>, at: Duration) -> bool {
        while let Some((_, key)) = self.young.front().copied().filter(|(since, _)| *since + SHOWS_AFTER <= at) {
            self.young.pop_front();
            if let Some((needs, stage @ Stage::Unseen)) = self.runs.get_mut(&key) {
                *stage = Stage::Seen;
                self.unseen = self.unseen.minus(*needs);
                self.seen = self.seen.plus(*needs);
            }
        }
        let was_low = self.disk_low;
        self.disk_low = host.is_low(was_low);
        self.host = Some(host);
        was_low != self.disk_low
    }

    pub(super) fn taken(&mut self, key: Key, needs: Amounts) {
        self.over(key);
        if !needs.is_none() {
            self.runs.insert(key, (needs, Stage::Waiting));
            self.waiting = self.waiting.plus(needs);
            self.changed = true;
        }
    }

    pub(super) fn started(&mut self, key: Key, now: Duration) {
        if let Some((needs, stage @ Stage::Waiting)) = self.runs.get_mut(&key) {
            *stage = Stage::Unseen;
            self.waiting = self.waiting.minus(*needs);
            self.unseen = self.unseen.plus(*needs);
            self.young.push_back((now, key));
        }
    }

    /// It does not execute any more, or never will.
    pub(super) fn over(&mut self, key: Key) {
        let Some((needs, stage)) = self.runs.remove(&key) else { return };
        let sum = match stage {
            Stage::Waiting => &mut self.waiting,
            Stage::Unseen => &mut self.unseen,
            Stage::Seen => &mut self.seen,
        };
        *sum = sum.minus(needs);
        self.changed = true;
    }

    pub(super) fn verdict(&self, needs: Amounts) -> Verdict {
        if needs.is_none() {
            return Verdict::Fits;
        }
        let Some(host) = &self.host else {
            return Verdict::Never("what this machine has free for its needs cannot be measured".to_owned());
        };
        match host.room(self.unseen.plus(self.seen), self.unseen).short_of(needs) {
            None => Verdict::Fits,
            Some(short) if short.for_ever => Verdict::Never(short.to_string()),
            Some(short) => Verdict::Waits(short.to_string()),
        }
    }

    pub(super) fn disk_low(&self) -> bool {
        self.disk_low
    }

    pub(super) fn host(&self) -> Option<&Host> {
        self.host.as_deref()
    }

    pub(super) fn concern(&self, key: Key) -> bool {
        self.runs.contains_key(&key)
    }

    /// What servers may still send, with all that waits here.
    pub(super) fn room(&self) -> Option<session::Room> {
        let not_used_yet = self.waiting.plus(self.unseen);
        let Room { total, free } = self.host.as_ref()?.room(not_used_yet.plus(self.seen), not_used_yet);
        Some(session::Room { total: Some(to_wire(total)), free: Some(to_wire(free)) })
    }

    /// Whether servers should hear of the room that there is, once.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }
}

pub(super) fn to_wire(amounts: Amounts) -> session::Amounts {
    let Amounts { memory, milli_cpus, disk } = amounts;
    session::Amounts { memory, milli_cpus, disk }
}

pub(super) fn from_wire(amounts: Option<session::Amounts>) -> Amounts {
    let session::Amounts { memory, milli_cpus, disk } = amounts.unwrap_or_default();
    Amounts { memory, milli_cpus, disk }
}

pub(super) fn host_to_wire(host: &Host) -> session::Host {
    session::Host {
        milli_cpus: host.milli_cpus,
        cpu_use_permille: host.cpu_use_permille,
        load_1m: host.load[0],
        load_5m: host.load[1],
        load_15m: host.load[2],
        memory_total: host.memory_total,
        memory_available: host.memory_available,
        disk_total: host.disk_total,
        disk_free: host.disk_free,
        disk_floor: host.disk_floor,
        up_ms: host.up_ms,
        kernel: host.kernel.clone(),
        os: host.os.clone(),
    }
}

#[cfg(test)]
mod tests {
    use belfry_core::RunId;

    use super::*;

    fn key(run: u128) -> Key {
        Key { run: RunId::from_u128(run), attempt: 1 }
    }

    fn memory(bytes: u64) -> Amounts {
        Amounts { memory: bytes, ..Amounts::NONE }
    }

    fn with(memory_available: u64) -> Box<Host> {
        Box::new(Host { memory_total: 100, memory_available, milli_cpus: 1000, ..Host::default() })
    }

    fn free(promises: &Promises) -> u64 {
        promises.room().unwrap().free.unwrap().memory
    }

    #[test]
    fn a_run_counts_from_its_taking_to_its_end_and_by_what_is_measured_once_that_shows_it() {
        let second = Duration::from_secs;
        let mut promises = Promises::default();
        assert_eq!(promises.room(), None);
        assert!(matches!(promises.verdict(memory(1)), Verdict::Never(_)));
        promises.measured(with(90), second(0));
        promises.taken(key(1), memory(40));
        assert!(promises.take_changed() && !promises.take_changed());
        assert_eq!(free(&promises), 50, "it waits, and servers must not send others into its room");
        assert_eq!(promises.verdict(memory(40)), Verdict::Fits, "nothing that waits is in its own way");
        promises.started(key(1), second(1));
        assert_eq!(free(&promises), 50);
        promises.measured(with(60), second(5));
        assert_eq!(free(&promises), 20, "it may use 30 already, or somebody else does");
        promises.measured(with(50), second(11));
        assert_eq!(free(&promises), 50, "what it uses is in what is measured");
        promises.measured(with(95), second(15));
        assert_eq!(free(&promises), 60, "it uses less than it was promised, which stays its own");
        assert_eq!(promises.verdict(memory(61)), Verdict::Waits("needs 61B memory, has 60B free".to_owned()));
        assert_eq!(promises.verdict(memory(101)), Verdict::Never("needs 101B memory, has 100B in all".to_owned()));
        promises.over(key(1));
        promises.over(key(1));
        assert_eq!(free(&promises), 95);
        assert!(promises.young.is_empty() && promises.runs.is_empty());
    }

    #[test]
    fn an_order_that_was_amended_counts_once_and_one_without_needs_not_at_all() {
        let mut promises = Promises::default();
        promises.measured(with(90), Duration::ZERO);
        promises.taken(key(1), memory(40));
        promises.taken(key(1), memory(10));
        promises.taken(key(2), Amounts::NONE);
        assert_eq!(free(&promises), 80);
        assert!(promises.concern(key(1)) && !promises.concern(key(2)));
    }
}
