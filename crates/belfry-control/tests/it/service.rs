//! Services: started at once, again when they end, elsewhere when they may not stay, and never two at a time.

use belfry_control::{Control, ControlError};
use belfry_coord::{Clock, SystemClock};
use belfry_core::job::{Action, JobDocument, Service};
use belfry_core::run::{Event, RunState, Verdict};
use belfry_core::units::Span;
use belfry_core::{JobId, NodeId, RunId};
use belfry_proto::session::{self, RunKey, to_agent};
use belfry_store::{Actor, NodeChange};

use crate::support::{Cluster, ENDLESS_TTL, Session, manual, until};

const JOB: u128 = 3;

pub fn service(document: &mut JobDocument) {
    service_again_after(document, Span::from_millis(100));
}

fn service_again_after(document: &mut JobDocument, restart_delay: Span) {
    let restart_delay = Some(restart_delay);
    let (command, stop_grace) = (Some("serve".to_owned()), None);
    document.action = Action::Service(Service { command, argv: vec![], stop_grace, restart_delay });
}

impl Session {
    /// The next order of another run than these.
    async fn order_besides(&mut self, known: &[&RunKey]) -> session::Dispatch {
        self.order_of(|key| !known.contains(&key)).await
    }

    async fn kill_of(&mut self, key: &RunKey) -> String {
        self.until(|message| match message {
            to_agent::Message::Kill(kill) if kill.key.as_ref() == Some(key) => Some(kill.reason),
            _ => None,
        })
        .await
    }

    fn has_order(&mut self) -> bool {
        while let Ok(message) = self.told.try_recv() {
            if let Some(to_agent::Message::Dispatch(order)) = message.message
                && !order.reminder
            {
                return true;
            }
        }
        false
    }
}

/// A service that runs on node 1, the only one.
async fn running(cluster: &Cluster) -> (Control, Session, JobId, RunKey) {
    let server = cluster.server("a").await;
    let mut one = Session::open(&server, 1).await;
    let job = cluster.job_with(JOB, service).await;
    server.jobs_changed().await;
    let key = one.order().await.key.unwrap();
    runs(cluster, &one, &key).await;
    (server, one, job, key)
}

/// The next order of another run than these, and which of the nodes has it.
async fn order_of_either(nodes: &mut [Session; 2], known: &[RunKey]) -> (usize, session::Dispatch) {
    let [one, two] = nodes;
    let is_other = |key: &RunKey| !known.contains(key);
    tokio::select! {
        order = one.order_of(is_other) => (0, order),
        order = two.order_of(is_other) => (1, order),
    }
}

async fn runs(cluster: &Cluster, node: &Session, key: &RunKey) {
    node.start(key).await;
    cluster.stored(run_of(key), |run| run.state == RunState::Running).await;
}

fn run_of(key: &RunKey) -> RunId {
    key.run.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_starts_when_it_is_saved_and_again_when_it_ends_with_growing_fences() {
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    let server = cluster.server("a").await;
    let mut one = Session::open(&server, 1).await;
    let job = cluster.job_with(JOB, service).await;
    server.jobs_changed().await;
    let first = one.order().await;
    assert!(first.exclusive && first.service);
    let first_key = first.key.unwrap();
    runs(&cluster, &one, &first_key).await;
    assert!(matches!(server.run_now(manual(job)).await, Err(ControlError::IsService)));
    one.end(&first_key, "succeeded", 0).await;
    let second = one.order_besides(&[&first_key]).await;
    assert!(second.fence > first.fence && second.planned_ms > first.planned_ms);
    let ended = cluster.stored(run_of(&first_key), |run| run.state.is_ended()).await;
    assert_eq!(ended.state, RunState::Succeeded);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_stopped_when_its_job_is_paused_changed_or_removed() {
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    let (server, mut one, job, first) = running(&cluster).await;

    cluster.change_job(job, |document| document.description = "nothing that it could notice".into()).await;
    cluster.change_job(job, |document| drop(document.run_as.env.insert("PORT".into(), "1".into()))).await;
    server.jobs_changed().await;
    assert_eq!(one.kill_of(&first).await, "its definition was changed, and it starts again");
    one.end(&first, "killed", 143).await;
    let second = one.order_besides(&[&first]).await;
    let document: JobDocument = serde_json::from_slice(&second.document).unwrap();
    assert!(document.run_as.env.contains_key("PORT"));
    let second = second.key.unwrap();
    runs(&cluster, &one, &second).await;

    cluster.change_job(job, |document| document.enabled = false).await;
    server.jobs_changed().await;
    assert_eq!(one.kill_of(&second).await, "its job was paused");
    one.end(&second, "killed", 143).await;
    until(|| server.cluster().open_runs == 0).await;
    assert!(!one.has_order(), "paused is paused");

    cluster.change_job(job, |document| document.enabled = true).await;
    server.jobs_changed().await;
    let third = one.order_besides(&[&first, &second]).await.key.unwrap();
    runs(&cluster, &one, &third).await;
    cluster.store.remove_job(job, None, SystemClock.now(), &Actor::new("ann")).await.unwrap();
    server.jobs_changed().await;
    assert_eq!(one.kill_of(&third).await, "its job was removed");
    one.end(&third, "killed", 143).await;
    until(|| server.cluster().open_runs == 0).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_starts_nothing_before_the_end_is_known() {
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    let (server, mut one, job, first) = running(&cluster).await;
    assert!(matches!(server.move_service(job, None, "ann").await, Err(ControlError::NowhereToMove)));

    let mut two = Session::open(&server, 2).await;
    assert_eq!(server.move_service(job, None, "ann").await.unwrap(), run_of(&first));
    assert_eq!(one.kill_of(&first).await, "moved to another node by ann");
    // Said until it has ended, and nothing is placed meanwhile.
    assert_eq!(one.kill_of(&first).await, "moved to another node by ann");
    assert!(!two.has_order());
    one.end(&first, "killed", 143).await;
    let second = two.order().await.key.unwrap();
    runs(&cluster, &two, &second).await;
    assert!(matches!(
        server.move_service(job, Some(NodeId::from_u128(2)), "ann").await,
        Err(ControlError::CannotMoveThere)
    ));

    // Drained by a person: the same way.
    let draining = NodeChange { draining: Some(true), ..NodeChange::default() };
    cluster.store.update_node(NodeId::from_u128(2), draining, SystemClock.now(), &Actor::new("ann")).await.unwrap();
    server.nodes_changed().await;
    assert_eq!(two.kill_of(&second).await, "it moves to another node (n2: draining)");
    two.end(&second, "killed", 143).await;
    let third = one.order_besides(&[&first]).await;
    assert_eq!(third.job, "j3");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_starts_again_where_it_ended_by_itself() {
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    let server = cluster.server("a").await;
    let mut nodes = [Session::open(&server, 1).await, Session::open(&server, 2).await];
    cluster.job_with(JOB, |document| service_again_after(document, Span::from_millis(1))).await;
    server.jobs_changed().await;
    let (home, first) = order_of_either(&mut nodes, &[]).await;
    let mut known = vec![first.key.unwrap()];
    // In turns the first would go elsewhere, by chance one of a thousand times none.
    for start in 2..=11 {
        let key = known.last().unwrap();
        runs(&cluster, &nodes[home], key).await;
        nodes[home].end(key, "failed", 1).await;
        let (node, next) = order_of_either(&mut nodes, &known).await;
        assert_eq!(node, home, "start {start}");
        known.push(next.key.unwrap());
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_whose_node_is_excluded_moves_when_it_has_ended_there() {
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    let (server, mut one, _, first) = running(&cluster).await;
    let mut two = Session::open(&server, 2).await;
    let out = NodeChange { excluded: Some(true), ..NodeChange::default() };
    cluster.store.update_node(one.node, out, SystemClock.now(), &Actor::new("ann")).await.unwrap();
    server.nodes_changed().await;
    assert_eq!(one.kill_of(&first).await, "it moves to another node (n1: excluded)");
    assert!(!two.has_order(), "it has not ended yet");
    one.end(&first, "killed", 143).await;
    assert_eq!(two.order().await.job, "j3");
    assert!(!one.has_order());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_whose_node_is_held_dead_starts_elsewhere_and_its_late_end_starts_no_third() {
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    let (server, one, _, first) = running(&cluster).await;
    let mut two = Session::open(&server, 2).await;
    cluster.hold_dead(1).await;
    let second = two.order().await.key.unwrap();
    runs(&cluster, &two, &second).await;
    one.end(&first, "killed", 143).await;
    let late = cluster.stored(run_of(&first), |run| run.late).await;
    assert_eq!(late.state, RunState::Killed);
    until(|| server.cluster().open_runs == 1).await;
    assert!(!two.has_order());
    server.stop().await;
}

/// What was open is taken over as it is; what had its end in the store, but its key still there, is followed by the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_owner_goes_on_with_what_runs_and_starts_what_has_ended() {
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    let job: JobId = cluster.job_with(JOB, service).await;
    let first = {
        let server = cluster.server("a").await;
        let mut one = Session::open(&server, 1).await;
        let key = one.order().await.key.unwrap();
        one.start(&key).await;
        cluster.stored(run_of(&key), |run| run.state == RunState::Running).await;
        server.stop().await;
        key
    };
    let server = cluster.server("b").await;
    let mut one = Session::connect(&server, 1);
    one.greet(session::Hello { running: vec![first.clone()], ..one.greeting(1) }).await;
    let reminder = one.order().await;
    assert_eq!((reminder.key.as_ref(), reminder.reminder), (Some(&first), true), "it goes on where it is");
    // As another server would record it.
    let mut run = cluster.store.run(run_of(&first)).await.unwrap().unwrap();
    run.on(Event::Decided { at: SystemClock.now(), verdict: Verdict::Lost, reason: "gone".into() }).unwrap();
    cluster.store.record_runs(&[run]).await.unwrap();
    server.stop().await;
    let server = cluster.server("c").await;
    let mut one = Session::connect(&server, 1);
    one.hello(2).await;
    let second = one.order_besides(&[&first]).await;
    assert_eq!(second.job_id, job.to_string());
    server.stop().await;
}
