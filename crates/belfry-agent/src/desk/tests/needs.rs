use super::*;

fn host(memory_available: u64, disk_free: u64) -> Event {
    Event::Measured(Box::new(Host {
        milli_cpus: 2000,
        memory_total: 100,
        memory_available,
        disk_total: 1 << 30,
        disk_free,
        disk_floor: 64 << 20,
        ..Host::default()
    }))
}

/// With nine slots, and this much memory free of 100.
fn world(memory_available: u64) -> World {
    let mut world = World::trusted();
    world.desk.facts.slots = 9;
    world.on(host(memory_available, 1 << 30));
    world
}

fn order(world: &mut World, run: u128, memory: u64) -> Vec<Act> {
    let needs = (memory > 0).then(|| belfry_proto::session::Amounts { memory, ..Default::default() });
    let incarnation = world.desk.incarnation.0;
    let (key, start_within_ms) = (Some(key(run).to_wire()), 60_000);
    let dispatch = Dispatch { key, incarnation, start_within_ms, needs, ..Default::default() };
    world.receive(to_agent::Message::Dispatch(dispatch))
}

/// What servers were told last.
fn told_free(acts: &[Act]) -> Option<u64> {
    let room = acts.iter().filter_map(|act| match act {
        Act::Send { message: from_agent::Message::Taken(taken), .. } => taken.room,
        Act::Send { message: from_agent::Message::Load(load), .. } => load.room,
        _ => None,
    });
    room.last().map(|room| room.free.unwrap().memory)
}

fn kept(acts: &[Act]) -> Vec<(String, String)> {
    let kept = |act: &Act| match act {
        Act::Keep(ended) => Some((ended.outcome.clone(), ended.reason.clone())),
        _ => None,
    };
    acts.iter().filter_map(kept).collect()
}

#[test]
fn runs_that_servers_sent_into_the_same_gap_start_one_after_the_other() {
    let mut world = world(90);
    let mut started = Vec::new();
    for run in 1..=10 {
        let acts = order(&mut world, run, 40);
        started.extend(starts(&acts));
        assert_eq!(
            told_free(&acts),
            Some(90_u64.saturating_sub(40 * run as u64)),
            "servers hear of it with the answer"
        );
    }
    assert_eq!(started, [key(1), key(2)], "two have room, however many are sent");
    assert_eq!(starts(&order(&mut world, 11, 0)), [key(11)], "one that needs nothing waits for nobody");
    assert_eq!(starts(&order(&mut world, 12, 1)), [], "one that needs a little does not pass those before it");
    let acts = world.on(Event::Exited { key: key(1) });
    assert_eq!((starts(&acts), told_free(&acts)), (vec![key(3)], Some(0)));
    assert_eq!(world.desk.next_wake().filter(|at| *at <= world.now.boot), None, "it does not turn in circles");
}

#[test]
fn what_somebody_else_uses_is_not_given_to_runs() {
    let mut world = world(30);
    assert!(starts(&order(&mut world, 1, 40)).is_empty());
    assert_eq!(starts(&world.on(host(50, 1 << 30))), [key(1)]);
    assert!(starts(&order(&mut world, 2, 40)).is_empty());
    world.pass(9_000);
    assert!(starts(&world.on(host(10, 1 << 30))).is_empty());
    let reason = "needs 40B memory, has 10B free on node1 for 1m".to_owned();
    world.pass(2_000);
    world.on(host(10, 1 << 30));
    let acts = world.pass(60_000);
    assert_eq!(kept(&acts), [("skipped".to_owned(), reason)]);
}

#[test]
fn what_the_machine_never_has_is_not_waited_for() {
    let mut world = world(90);
    let reason = "on node1: needs 101B memory, has 100B in all".to_owned();
    assert_eq!(kept(&order(&mut world, 1, 101)), [("skipped".to_owned(), reason)]);
    assert_eq!(starts(&order(&mut world, 2, 90)), [key(2)], "nor keeps it others back");
}

#[test]
fn below_its_floor_of_disk_a_node_takes_and_starts_nothing_and_says_so() {
    let low = |acts: &[Act]| {
        let loads = acts.iter().filter_map(|act| match act {
            Act::Send { message: from_agent::Message::Load(load), .. } => Some(load.disk_low),
            _ => None,
        });
        loads.last()
    };
    let mut world = world(90);
    let incarnation = world.desk.incarnation.0;
    let (key_of_it, start_in_ms, start_within_ms) = (Some(key(1).to_wire()), 400, 60_000);
    let soon = Dispatch { key: key_of_it, incarnation, start_in_ms, start_within_ms, ..Default::default() };
    assert!(starts(&world.receive(to_agent::Message::Dispatch(soon))).is_empty());
    let acts = world.on(host(90, (64 << 20) - 1));
    assert_eq!(low(&acts), Some(true));
    let refused = order(&mut world, 2, 0).iter().any(|act| match act {
        Act::Send { message: from_agent::Message::Taken(taken), .. } => taken.refused.contains("--disk-floor"),
        _ => false,
    });
    assert!(refused);
    assert!(hellos(world.on(Event::Opened { session: SessionId(2) }))[0].disk_low);
    assert!(starts(&world.pass(500)).is_empty(), "what was taken waits");
    assert!(starts(&world.on(host(90, (64 << 20) + 1))).is_empty(), "not at the first byte above it");
    let acts = world.on(host(90, 80 << 20));
    assert_eq!((low(&acts), starts(&acts)), (Some(false), vec![key(1)]));
}
