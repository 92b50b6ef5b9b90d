mod asked;
mod needs;

use belfry_core::RunId;
use belfry_proto::session::{AgreedTime, Dispatch, Hello, Kill, LocalJob, Recall, Stored, Welcome};

use super::*;
use crate::local::Kept;

const ONE: SessionId = SessionId(1);

struct World {
    desk: Desk,
    now: Moment,
}

fn key(run: u128) -> Key {
    Key { run: RunId::from_u128(run), attempt: 1 }
}

impl World {
    /// A node with one slot whose first heartbeat was acknowledged, with a TTL of 10 s, and that knows the time.
    fn trusted() -> World {
        let mut world = World::without_time();
        world.acknowledge(1, true);
        world.receive(to_agent::Message::AgreedTime(AgreedTime::default()));
        world
    }

    /// A node that was welcomed, and told nothing else.
    fn without_time() -> World {
        let facts = NodeFacts {
            node: NodeId::from_u128(1),
            name: "node1".into(),
            labels: BTreeMap::new(),
            slots: 1,
            runs_as: "nobody".into(),
            credential: String::new(),
        };
        let mut last = 6;
        let incarnations = move || {
            last += 1;
            Incarnation(last)
        };
        let now = Moment { boot: Duration::from_secs(1000), wall_ms: 0, shown_ms: 0 };
        let local = Local::new(facts.node, Kept::default(), "", &[], now);
        let mut world = World {
            desk: Desk::new(facts, Box::new(incarnations), Trust::default(), Default::default(), local, now),
            now,
        };
        world.on(Event::Opened { session: ONE });
        world.receive(to_agent::Message::Welcome(Welcome { server: "s".into(), ttl_ms: 10_000 }));
        world
    }

    fn on(&mut self, event: Event) -> Vec<Act> {
        self.desk.on(event, self.now);
        self.desk.tick(self.now);
        self.desk.take_acts()
    }

    fn receive(&mut self, message: to_agent::Message) -> Vec<Act> {
        let at = self.now.boot;
        self.on(Event::Received { session: ONE, message, at })
    }

    fn acknowledge(&mut self, sequence: u64, accepted: bool) -> Vec<Act> {
        self.receive(to_agent::Message::Heartbeat(belfry_proto::session::HeartbeatAck { sequence, accepted }))
    }

    fn dispatch(&mut self, run: u128, start_in_ms: i64) -> Vec<Act> {
        let (key, incarnation) = (Some(key(run).to_wire()), self.desk.incarnation.0);
        self.receive(to_agent::Message::Dispatch(Dispatch { key, incarnation, start_in_ms, ..Default::default() }))
    }

    fn pass(&mut self, ms: u64) -> Vec<Act> {
        self.now.boot += Duration::from_millis(ms);
        self.desk.tick(self.now);
        self.desk.take_acts()
    }

    fn end(&mut self, run: u128) -> Vec<Act> {
        self.on(Event::Exited { key: key(run) });
        let ended = Ended { key: Some(key(run).to_wire()), ..Default::default() };
        self.on(Event::Written(vec![FromAgent { message: Some(from_agent::Message::Ended(ended)) }]))
    }
}

fn starts(acts: &[Act]) -> Vec<Key> {
    acts.iter().filter_map(|act| if let Act::Start { key, .. } = act { Some(*key) } else { None }).collect()
}

fn hellos(acts: Vec<Act>) -> Vec<Hello> {
    let hello = |act| match act {
        Act::Send { message: from_agent::Message::Hello(hello), .. } => Some(hello),
        _ => None,
    };
    acts.into_iter().filter_map(hello).collect()
}

#[test]
fn the_desk_wakes_at_the_instant_of_the_first_run_and_starts_it_then() {
    let mut world = World::trusted();
    assert!(starts(&world.dispatch(1, 400)).is_empty());
    assert_eq!(world.desk.next_wake(), Some(world.now.boot + Duration::from_millis(400)));
    assert!(starts(&world.pass(399)).is_empty());
    assert_eq!(starts(&world.pass(1)), [key(1)]);
}

/// The order was lost on its way, or is still on it.
#[test]
fn what_was_recalled_or_killed_before_its_order_came_is_refused_for_ever() {
    let refused = |acts: &[Act]| -> Vec<bool> {
        let answer = |act: &Act| match act {
            Act::Send { message: from_agent::Message::Taken(taken), .. } => Some(!taken.refused.is_empty()),
            _ => None,
        };
        acts.iter().filter_map(answer).collect()
    };
    let mut world = World::trusted();
    let recall = |run| to_agent::Message::Recall(Recall { key: Some(key(run).to_wire()), ..Default::default() });
    let kill = to_agent::Message::Kill(Kill { key: Some(key(2).to_wire()), ..Default::default() });
    for (run, message) in [(1, recall(1)), (2, kill)] {
        assert_eq!(refused(&world.receive(message)), [true], "its server waits for a word");
        let late = world.dispatch(run, 0);
        assert_eq!((refused(&late), starts(&late)), (vec![true], vec![]));
    }
    // What runs goes on, and the server learns that it does.
    assert_eq!(starts(&world.dispatch(3, 0)), [key(3)]);
    assert_eq!(refused(&world.receive(recall(3))), [false]);
}

#[test]
fn a_slot_is_given_on_as_soon_as_its_run_has_exited() {
    let mut world = World::trusted();
    assert_eq!(starts(&world.dispatch(1, 0)), [key(1)]);
    let waiting = world.receive(to_agent::Message::Dispatch(Dispatch {
        key: Some(key(2).to_wire()),
        incarnation: world.desk.incarnation.0,
        start_within_ms: 1000,
        ..Default::default()
    }));
    assert!(starts(&waiting).is_empty());
    world.on(Event::Started { key: key(1), at_ms: 0 });
    assert_eq!(starts(&world.on(Event::Exited { key: key(1) })), [key(2)]);
}

#[test]
fn that_a_run_takes_too_long_is_said_at_once_and_to_whoever_orders_it_again() {
    let told = |acts: &[Act]| -> Vec<Option<i64>> {
        let overdue = |act: &Act| match act {
            Act::Send { message: from_agent::Message::Started(started), .. } => Some(started.overdue_at_ms),
            _ => None,
        };
        acts.iter().filter_map(overdue).collect()
    };
    let mut world = World::trusted();
    world.dispatch(1, 0);
    assert_eq!(told(&world.on(Event::Started { key: key(1), at_ms: 5 })), [None]);
    assert_eq!(told(&world.on(Event::Overdue { key: key(1), at_ms: 9 })), [Some(9)]);
    assert_eq!(told(&world.dispatch(1, 0)), [Some(9)]);
    world.end(1);
    assert!(told(&world.on(Event::Overdue { key: key(1), at_ms: 10 })).is_empty());
}

#[test]
fn a_result_is_sent_again_when_nobody_stores_it() {
    let mut world = World::trusted();
    world.dispatch(1, 0);
    let acts = world.end(1);
    assert!(
        matches!(acts.as_slice(), [Act::Send { session: ONE, message: from_agent::Message::Ended(_) }]),
        "{acts:?}"
    );
    let is_resent = |acts: &[Act]| acts.iter().any(|act| matches!(act, Act::SendSpooled { session: ONE, .. }));
    assert!(!is_resent(&world.pass(30_000)));
    assert!(is_resent(&world.pass(45_000)));
    world.receive(to_agent::Message::Stored(Stored { keys: vec![key(1).to_wire()] }));
    assert!(!is_resent(&world.pass(100_000)));
}

#[test]
fn a_refused_heartbeat_ends_what_waits_and_says_hello_as_a_new_incarnation() {
    let mut world = World::trusted();
    world.dispatch(1, 0);
    world.dispatch(2, 60_000);
    world.pass(2500);
    let acts = world.acknowledge(2, false);
    let kept = acts.iter().find_map(|act| if let Act::Keep(ended) = act { Some(ended.clone()) } else { None });
    assert_eq!(kept.unwrap().key, Some(key(2).to_wire()));
    let hellos = hellos(acts);
    assert_eq!(hellos.len(), 1);
    assert_eq!((hellos[0].incarnation, hellos[0].running.len()), (8, 0));
    assert!(world.acknowledge(2, false).is_empty(), "only once");
    assert!(starts(&world.dispatch(3, 0)).is_empty(), "no trust before the new one is acknowledged");
}

/// An incarnation that is held dead is welcomed so that it hears of that; nothing else that is said in its session is heard.
#[test]
fn what_was_told_to_the_session_of_a_dead_incarnation_is_told_again_when_the_next_one_is_welcomed() {
    let mut world = World::trusted();
    world.dispatch(1, 0);
    world.end(1);
    world.dispatch(2, 0);
    world.on(Event::Started { key: key(2), at_ms: 0 });
    world.pass(2500);
    world.acknowledge(2, false);
    let acts = world.receive(to_agent::Message::Welcome(Welcome { server: "s".into(), ttl_ms: 10_000 }));
    let spooled = |act: &Act| if let Act::SendSpooled { session: ONE, key } = act { Some(*key) } else { None };
    let started = |act: &Act| matches!(act, Act::Send { message: from_agent::Message::Started(_), .. });
    assert_eq!(acts.iter().filter_map(spooled).collect::<Vec<_>>(), [key(1), key(2)]);
    assert_eq!(acts.iter().filter(|act| started(act)).count(), 1);
}

#[test]
fn a_run_of_a_former_incarnation_is_not_taken_again() {
    let mut world = World::trusted();
    world.dispatch(1, 0);
    world.end(1);
    world.receive(to_agent::Message::Stored(Stored { keys: vec![key(1).to_wire()] }));
    let acts = world.dispatch(1, 0);
    assert!(matches!(acts.as_slice(), [Act::Send { message: from_agent::Message::Taken(_), .. }]), "{acts:?}");
}

#[test]
fn every_server_hears_how_many_runs_the_node_has() {
    let mut world = World::trusted();
    let two = SessionId(2);
    world.on(Event::Opened { session: two });
    let at = world.now.boot;
    let message = to_agent::Message::Welcome(Welcome { server: "t".into(), ttl_ms: 10_000 });
    world.on(Event::Received { session: two, message, at });
    world.acknowledge(2, true);
    let taken = |acts: &[Act]| match acts.first() {
        Some(Act::Send { session: ONE, message: from_agent::Message::Taken(taken) }) => taken.live,
        other => panic!("{other:?}"),
    };
    assert_eq!(taken(&world.dispatch(1, 0)), Some(1));
    assert_eq!(taken(&world.dispatch(2, 60_000)), Some(2), "one executes, one waits");
    let told = |acts: &[Act]| -> Vec<(SessionId, u32)> {
        let load = |act: &Act| match act {
            Act::Send { session, message: from_agent::Message::Load(load) } => Some((*session, load.live)),
            _ => None,
        };
        acts.iter().filter_map(load).collect()
    };
    assert_eq!(told(&world.pass(2_500)), [(ONE, 2), (two, 2)], "with the next heartbeat");
    world.end(1);
    world.acknowledge(3, true);
    assert_eq!(told(&world.pass(2_500)), [(ONE, 1), (two, 1)]);
}

/// What has ended is forgotten after some hours; a server that missed its end must not bring it to life again.
#[test]
fn a_reminder_of_a_run_that_is_not_known_starts_nothing() {
    let mut world = World::trusted();
    let (key, incarnation) = (Some(key(1).to_wire()), world.desk.incarnation.0);
    let reminder = Dispatch { key, incarnation, start_in_ms: -1, reminder: true, ..Default::default() };
    let acts = world.receive(to_agent::Message::Dispatch(reminder));
    assert!(acts.is_empty(), "{acts:?}");
    let acts = world.dispatch(1, -1);
    assert!(acts.iter().any(|act| matches!(act, Act::Start { .. })), "the order itself is still taken: {acts:?}");
}

/// An exclusive run on a node whose last acknowledged heartbeat was sent at the very beginning; and its kill orders.
fn exclusive_run(world: &mut World) -> watch::Receiver<Option<KillOrder>> {
    let (key, incarnation) = (Some(key(1).to_wire()), world.desk.incarnation.0);
    let order = Dispatch { key, incarnation, exclusive: true, ..Default::default() };
    let acts = world.receive(to_agent::Message::Dispatch(order));
    let kills = acts.into_iter().find_map(|act| if let Act::Start { kills, .. } = act { Some(kills) } else { None });
    world.on(Event::Started { key: self::key(1), at_ms: 0 });
    kills.expect("it is started")
}

fn grace(kills: &watch::Receiver<Option<KillOrder>>) -> Option<Duration> {
    kills.borrow().as_ref().and_then(|order| order.grace)
}

#[test]
fn exclusive_work_is_asked_to_end_and_killed_before_anybody_may_hold_the_node_dead() {
    let mut world = World::trusted();
    let kills = exclusive_run(&mut world);
    world.desk.beats.pause();
    world.pass(5999);
    assert_eq!(*kills.borrow(), None);
    assert_eq!(world.desk.next_wake(), Some(world.now.boot + Duration::from_millis(1)));
    world.pass(1);
    assert_eq!(grace(&kills), Some(Duration::from_secs(2)), "0.6 of the TTL, and until 0.8");
    assert!(kills.borrow().as_ref().unwrap().abandoned);
    assert_eq!(world.desk.next_wake(), Some(world.now.boot + Duration::from_secs(2)));
    world.pass(2000);
    assert_eq!(grace(&kills), Some(Duration::ZERO), "whatever became of the grace");
    assert_eq!(world.desk.next_wake(), None, "it is not killed again and again");
}

#[test]
fn exclusive_work_goes_on_while_heartbeats_are_acknowledged_and_other_work_without() {
    let mut world = World::trusted();
    let kills = exclusive_run(&mut world);
    for sequence in 2..20 {
        world.pass(2500);
        world.acknowledge(sequence, true);
    }
    assert_eq!(*kills.borrow(), None);
    let mut world = World::trusted();
    world.dispatch(1, 0);
    world.pass(60_000);
    assert!(world.desk.live.values().all(|live| match &live.state {
        LiveState::Starting { kill } => kill.borrow().is_none(),
        _ => false,
    }));
}

#[test]
fn a_node_that_was_held_dead_says_hello_when_nothing_exclusive_is_left() {
    let mut world = World::trusted();
    let kills = exclusive_run(&mut world);
    world.pass(2500);
    assert!(hellos(world.acknowledge(2, false)).is_empty(), "its exclusive run has not ended");
    assert_eq!(grace(&kills), Some(Duration::ZERO));
    let two = SessionId(2);
    assert!(hellos(world.on(Event::Opened { session: two })).is_empty());
    let hellos = hellos(world.end(1));
    assert_eq!(hellos.len(), 2);
    assert!(hellos.iter().all(|hello| hello.incarnation == 8 && hello.finished == [key(1).to_wire()]));
}

#[test]
fn without_room_for_results_the_servers_are_told_and_orders_are_refused_until_there_is_some() {
    let loads = |acts: &[Act]| -> Vec<bool> {
        let load = |act: &Act| match act {
            Act::Send { message: from_agent::Message::Load(load), .. } => Some(load.spool_full),
            _ => None,
        };
        acts.iter().filter_map(load).collect()
    };
    let refused = |acts: &[Act]| -> Vec<bool> {
        let taken = |act: &Act| match act {
            Act::Send { message: from_agent::Message::Taken(taken), .. } => Some(!taken.refused.is_empty()),
            _ => None,
        };
        acts.iter().filter_map(taken).collect()
    };
    let mut world = World::trusted();
    assert_eq!(loads(&world.on(Event::Space(Space::Enough))), [false; 0], "no news");
    assert_eq!(loads(&world.on(Event::Space(Space::Scarce))), [true]);
    assert_eq!(refused(&world.dispatch(1, 400)), [false], "it was sent before the server heard of it");
    world.on(Event::Space(Space::None));
    assert_eq!(refused(&world.dispatch(2, 400)), [true]);
    assert!(hellos(world.on(Event::Opened { session: SessionId(2) }))[0].spool_full);
    assert_eq!(starts(&world.pass(400)), [key(1)], "what was taken starts");
    assert_eq!(loads(&world.on(Event::Space(Space::Enough))), [false]);
    assert_eq!(refused(&world.dispatch(3, 400)), [false]);
    assert_eq!(refused(&world.dispatch(2, 400)), [true], "a refusal is for ever: the run may be elsewhere by now");
}

#[test]
fn a_service_takes_no_slot_and_is_ended_at_once_when_the_agent_stops() {
    let mut world = World::trusted();
    let incarnation = world.desk.incarnation.0;
    let service = |run| Dispatch { key: Some(key(run).to_wire()), incarnation, service: true, ..Default::default() };
    let first = world.receive(to_agent::Message::Dispatch(service(1)));
    assert_eq!(starts(&first), [key(1)]);
    let lives = |acts: &[Act]| -> Vec<u32> {
        let taken = acts.iter().filter_map(|act| match act {
            Act::Send { message: from_agent::Message::Taken(taken), .. } => taken.live,
            _ => None,
        });
        taken.collect()
    };
    assert_eq!(lives(&first), [0], "the servers place by slots");
    assert_eq!(starts(&world.dispatch(2, 0)), [key(2)], "the one slot is free");
    assert_eq!(starts(&world.dispatch(3, 0)), []);
    let full = world.receive(to_agent::Message::Dispatch(service(4)));
    assert_eq!(starts(&full), [key(4)], "however full the node is");
    assert_eq!(starts(&world.end(1)), [], "its end gives no slot away");
    world.on(Event::Drain { reason: "test".into() });
    let killed = |run| match &world.desk.live[&key(run)].state {
        LiveState::Starting { kill } => kill.borrow().as_ref().is_some_and(|order| order.abandoned),
        _ => false,
    };
    assert!(killed(4), "it would never end by itself");
    assert!(!killed(2), "a run has the time to quit");
}

/// By a wrong clock they would count from a wrong instant.
#[test]
fn jobs_that_come_before_the_time_is_known_wait_for_it_and_not_for_ever() {
    let jobs = || {
        let document =
            r#"{"name": "j", "schedule": "* * * * * *", "run_on": "each", "action": {"shell": {"command": "true"}}}"#;
        let id = JobId::from_u128(1).to_string();
        let job = LocalJob { id, revision: 1, document: document.as_bytes().into(), ..Default::default() };
        to_agent::Message::LocalJobs(LocalJobs { put: vec![job], ..Default::default() })
    };
    let kept = |acts: &[Act]| acts.iter().filter(|act| matches!(act, Act::KeepLocal(_))).count();
    let mut world = World::without_time();
    assert_eq!(kept(&world.receive(jobs())), 0);
    assert!(kept(&world.receive(to_agent::Message::AgreedTime(AgreedTime::default()))) > 0);
    let mut world = World::without_time();
    assert_eq!(kept(&world.receive(jobs())), 0);
    assert_eq!(kept(&world.pass(2_999)), 0);
    assert!(world.desk.next_wake() <= Some(world.now.boot + Duration::from_millis(1)));
    assert!(kept(&world.pass(1)) > 0, "nobody says what the time is");
    assert!(kept(&world.receive(jobs())) == 0, "they are here");
}
