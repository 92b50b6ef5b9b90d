//! What runs need of a machine, what it has, and what of that is free for them. Numbers only: an agent measures and counts.
//!
//! Two bounds hold at once. What the runs of a node were promised together is never more than the machine has; and a run is only promised
//! what measuring shows to be free, less what was promised so recently that measuring may not show its use yet.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::job::Needs;
use crate::units::Size;

/// A run may take what it needs so long after its start without being late: until then all of its need counts as not used yet.
pub const SHOWS_AFTER: Duration = Duration::from_secs(10);
/// A node that took no work for want of disk takes some again with so much more than the floor, so that it does not go back and forth.
const ABOVE_FLOOR_MIN: u64 = 1 << 20;

/// Bytes of memory, thousandths of a CPU, bytes of disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amounts {
    pub memory: u64,
    pub milli_cpus: u64,
    pub disk: u64,
}

/// What a node has in all for runs, and what of it is not promised and not used by anybody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    pub total: Amounts,
    pub free: Amounts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    Memory,
    Cpus,
    Disk,
}

/// What a node has too little of for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    pub of: Resource,
    pub needs: u64,
    pub has: u64,
    /// Also when nothing else goes on there.
    pub for_ever: bool,
}

/// A machine as its agent measured it. In a container its limits count.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    pub milli_cpus: u64,
    /// Of all of them, between the last two measurements.
    pub cpu_use_permille: Option<u32>,
    /// Of the last 1, 5 and 15 minutes.
    pub load: [f64; 3],
    pub memory_total: u64,
    pub memory_available: u64,
    /// Of the file system that the agent's data folder is on.
    pub disk_total: u64,
    pub disk_free: u64,
    pub disk_floor: u64,
    pub up_ms: u64,
    pub kernel: String,
    pub os: String,
}

impl Amounts {
    pub const NONE: Amounts = Amounts { memory: 0, milli_cpus: 0, disk: 0 };

    pub fn is_none(&self) -> bool {
        *self == Amounts::NONE
    }

    pub fn plus(self, other: Amounts) -> Amounts {
        self.with(other, u64::saturating_add)
    }

    pub fn minus(self, other: Amounts) -> Amounts {
        self.with(other, u64::saturating_sub)
    }

    fn with(self, other: Amounts, combined: impl Fn(u64, u64) -> u64) -> Amounts {
        Amounts {
            memory: combined(self.memory, other.memory),
            milli_cpus: combined(self.milli_cpus, other.milli_cpus),
            disk: combined(self.disk, other.disk),
        }
    }

    fn each(self) -> [(Resource, u64); 3] {
        [(Resource::Memory, self.memory), (Resource::Cpus, self.milli_cpus), (Resource::Disk, self.disk)]
    }
}

impl From<&Needs> for Amounts {
    fn from(needs: &Needs) -> Amounts {
        let bytes = |size: Option<Size>| size.map_or(0, Size::bytes);
        let milli_cpus = (needs.cpus.unwrap_or(0.0) * 1000.0).ceil() as u64;
        Amounts { memory: bytes(needs.memory), milli_cpus, disk: bytes(needs.disk) }
    }
}

impl Host {
    /// `promised`: to all runs that it has. `unseen`: of that, what measuring may not show yet.
    pub fn room(&self, promised: Amounts, unseen: Amounts) -> Room {
        let disk = |bytes: u64| bytes.saturating_sub(self.disk_floor);
        let total = Amounts { memory: self.memory_total, milli_cpus: self.milli_cpus, disk: disk(self.disk_total) };
        let available =
            Amounts { memory: self.memory_available, milli_cpus: self.milli_cpus, disk: disk(self.disk_free) };
        Room { total, free: total.minus(promised).with(available.minus(unseen), u64::min) }
    }

    /// Whether it has so little disk left that it takes no work; `was_low`: it did not take any so far.
    pub fn is_low(&self, was_low: bool) -> bool {
        let above = if was_low { ABOVE_FLOOR_MIN.max(self.disk_floor / 8) } else { 0 };
        self.disk_floor > 0 && self.disk_free < self.disk_floor.saturating_add(above).min(self.disk_total)
    }
}

impl Room {
    /// The first thing that there is too little of; what can never be comes before what is not at the moment.
    pub fn short_of(&self, needs: Amounts) -> Option<Short> {
        let lacks = |has: Amounts, for_ever| {
            let both = needs.each().into_iter().zip(has.each());
            both.map(|((of, needs), (_, has))| Short { of, needs, has, for_ever }).find(|short| short.needs > short.has)
        };
        lacks(self.total, true).or_else(|| lacks(self.free, false))
    }

    /// With these promised too.
    pub fn less(self, promised: Amounts) -> Room {
        Room { free: self.free.minus(promised), ..self }
    }
}

/// `needs 2GiB memory, has 1GiB free`
impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let much = |amount: u64| match self.of {
            Resource::Memory | Resource::Disk => Size::from_bytes(amount).about(),
            Resource::Cpus => (amount as f64 / 1000.0).to_string(),
        };
        let what = match self.of {
            Resource::Memory => "memory",
            Resource::Cpus => "cpus",
            Resource::Disk => "disk",
        };
        let how = if self.for_ever { "in all" } else { "free" };
        write!(f, "needs {} {what}, has {} {how}", much(self.needs), much(self.has))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn host() -> Host {
        Host {
            milli_cpus: 4000,
            memory_total: 8 * GIB,
            memory_available: 6 * GIB,
            disk_total: 100 * GIB,
            disk_free: 10 * GIB,
            disk_floor: GIB,
            ..Host::default()
        }
    }

    fn memory(gib: u64) -> Amounts {
        Amounts { memory: gib * GIB, ..Amounts::NONE }
    }

    fn short(room: Room, needs: Amounts) -> Option<String> {
        room.short_of(needs).map(|short| short.to_string())
    }

    #[test]
    fn what_is_free_is_neither_promised_nor_used() {
        let host = host();
        let free = |promised, unseen| host.room(promised, unseen).free.memory / GIB;
        assert_eq!(free(memory(0), memory(0)), 6, "as measured");
        assert_eq!(free(memory(3), memory(3)), 3, "promised, and not used yet as far as anybody knows");
        assert_eq!(
            free(memory(3), memory(0)),
            5,
            "promised, and seen in what is measured: never more than there is in all"
        );
        assert_eq!(free(memory(7), memory(0)), 1);
        assert_eq!(free(memory(9), memory(9)), 0);
    }

    #[test]
    fn what_is_short_is_said_with_its_numbers() {
        let room = host().room(Amounts { milli_cpus: 3500, ..memory(5) }, memory(5));
        assert_eq!(short(room, memory(1)), None);
        assert_eq!(short(room, memory(2)).unwrap(), "needs 2GiB memory, has 1GiB free");
        assert_eq!(short(room, memory(9)).unwrap(), "needs 9GiB memory, has 8GiB in all");
        let cpus = |milli_cpus| Amounts { milli_cpus, ..Amounts::NONE };
        assert_eq!(short(room, cpus(500)), None);
        assert_eq!(short(room, cpus(1500)).unwrap(), "needs 1.5 cpus, has 0.5 free");
        assert_eq!(short(room, cpus(4001)).unwrap(), "needs 4.001 cpus, has 4 in all");
        let disk = |gib: u64| Amounts { disk: gib * GIB, ..Amounts::NONE };
        assert_eq!(short(room, disk(9)), None);
        assert_eq!(short(room, disk(10)).unwrap(), "needs 10GiB disk, has 9GiB free", "the floor is nobody's");
        let both = Amounts { disk: 1000 * GIB, ..memory(2) };
        assert_eq!(short(room, both).unwrap(), "needs 1000GiB disk, has 99GiB in all", "what can never be comes first");
    }

    #[test]
    fn a_node_near_its_floor_of_disk_does_not_go_back_and_forth() {
        let with = |disk_free| Host { disk_free, ..host() };
        assert!(!with(GIB).is_low(false));
        assert!(with(GIB - 1).is_low(false));
        assert!(with(GIB + GIB / 8 - 1).is_low(true));
        assert!(!with(GIB + GIB / 8).is_low(true));
        assert!(!Host { disk_floor: 0, ..with(0) }.is_low(true), "switched off");
        let small = Host { disk_total: GIB, ..with(GIB) };
        assert!(!small.is_low(true), "an empty disk is never too full");
    }

    #[test]
    fn a_part_of_a_cpu_is_not_rounded_away() {
        let needs = Needs { memory: None, cpus: Some(0.0001), disk: Some(Size::from_bytes(7)) };
        assert_eq!(Amounts::from(&needs), Amounts { memory: 0, milli_cpus: 1, disk: 7 });
    }
}
