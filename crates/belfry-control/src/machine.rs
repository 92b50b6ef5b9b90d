//! What agents say of their machines and are told of needs: from messages to values, and back.

use belfry_core::room::{Amounts, Host, Room};
use belfry_proto::session;

pub fn host(said: session::Host) -> Host {
    Host {
        milli_cpus: said.milli_cpus,
        cpu_use_permille: said.cpu_use_permille,
        load: [said.load_1m, said.load_5m, said.load_15m],
        memory_total: said.memory_total,
        memory_available: said.memory_available,
        disk_total: said.disk_total,
        disk_free: said.disk_free,
        disk_floor: said.disk_floor,
        up_ms: said.up_ms,
        kernel: said.kernel,
        os: said.os,
    }
}

pub fn room(said: session::Room) -> Room {
    Room { total: amounts(said.total), free: amounts(said.free) }
}

fn amounts(said: Option<session::Amounts>) -> Amounts {
    let session::Amounts { memory, milli_cpus, disk } = said.unwrap_or_default();
    Amounts { memory, milli_cpus, disk }
}

/// None: nothing in particular.
pub fn needs(needs: Amounts) -> Option<session::Amounts> {
    let Amounts { memory, milli_cpus, disk } = needs;
    (!needs.is_none()).then_some(session::Amounts { memory, milli_cpus, disk })
}
