//! The end of an ordeal: everything comes to its end, and every job is judged, where nodes fire it by themselves for each of them apart.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::Plan;
use super::cluster::Cluster;
use super::jobs::{self, ChaosJob};
use super::report::Report;
use crate::client::Run;
use crate::judge::{Case, Firer, MarkedLost, Tally, Trouble, is_settled, judge};
use crate::until::{now, until_within};
use crate::witness::{Line, Mark, Witness};

const SETTLE_PATIENCE: Duration = Duration::from_secs(60);
/// What a takeover may cost beyond the TTL before a start is late.
const LATE_BEYOND_TTL: Duration = Duration::from_secs(5);
/// A node waits for nobody.
const LATE_BY_ITSELF: SignedDuration = SignedDuration::from_secs(2);

/// All that is known of a job, and who is to account for it.
struct Known<'a> {
    job: &'a ChaosJob,
    /// The job's, and the node's where each node has to account for it.
    name: String,
    firer: Firer<'a>,
    due: Vec<Timestamp>,
    lines: Vec<Line>,
    records: Vec<Run>,
}

pub(super) async fn judge_all(
    cluster: &Cluster,
    jobs: &[ChaosJob],
    witness: &Witness,
    plan: &Plan,
    troubles: &[Trouble],
    report: &mut Report,
) {
    let client = cluster.any_client();
    // What comes after this is not judged: a pause takes its time to get around.
    let end = now();
    for job in jobs {
        jobs::pause(client, job).await;
    }
    let nodes = cluster.nodes();
    let mut lines: Vec<Line> = Vec::new();
    let mut records: Vec<Run> = Vec::new();
    // Whatever does not end or appear in time is for the judge to say.
    let _settled = until_within(SETTLE_PATIENCE, async || {
        tokio::time::sleep(Duration::from_millis(500)).await;
        records = client.all_runs().await;
        let all_ended = records.iter().all(Run::has_ended);
        records.retain(|run| run.planned <= end);
        lines = witness.all();
        lines.retain(|line| line.planned <= end);
        let known = known(jobs, &nodes, &lines, &records, end);
        (all_ended && known.iter().all(|known| is_settled(&known.case(plan, &[], &[])))).then_some(())
    })
    .await;
    let known = known(jobs, &nodes, &lines, &records, end);
    let marked_lost = marked_lost(cluster).await;
    let mut tally = Tally::default();
    for known in &known {
        report.faults.extend(judge(&known.case(plan, troubles, &marked_lost), &mut tally));
    }
    report.fires = known.iter().map(|known| known.due.len()).sum();
    report.starts = lines.iter().filter(|line| line.mark == Mark::Started).count();
    report.ends = tally;
    report.count_reasons(&records);
    report.fired_by_nodes(&records);
    if plan.quiet_machine {
        report.judge_recoveries(plan.ttl);
    }
}

fn known<'a>(
    jobs: &'a [ChaosJob],
    nodes: &'a [String],
    lines: &[Line],
    records: &[Run],
    end: Timestamp,
) -> Vec<Known<'a>> {
    let of_firer = |job: &'a ChaosJob, firer: Firer<'a>| {
        let on = match firer {
            Firer::Node { name, .. } => Some(name),
            Firer::Server | Firer::Home { .. } => None,
        };
        let is_meant = |name: &str, node: Option<&str>| name == job.name && (on.is_none() || on == node);
        let lines = lines.iter().filter(|line| is_meant(&line.job, Some(&line.node)));
        let records = records.iter().filter(|run| is_meant(&run.job_name, run.node_name.as_deref()));
        let name = on.map_or(job.name.clone(), |node| format!("{} of {node}", job.name));
        let (lines, records) = (lines.cloned().collect(), records.cloned().collect());
        Known { job, name, firer, due: job.due(end), lines, records }
    };
    jobs.iter().flat_map(|job| job.firers(nodes).into_iter().map(move |firer| of_firer(job, firer))).collect()
}

impl Known<'_> {
    fn case<'a>(&'a self, plan: &Plan, troubles: &'a [Trouble], marked_lost: &'a [MarkedLost]) -> Case<'a> {
        let late_after = match self.firer {
            Firer::Server | Firer::Home { .. } => {
                SignedDuration::try_from(plan.ttl + LATE_BEYOND_TTL).expect("a short time")
            }
            Firer::Node { .. } => LATE_BY_ITSELF,
        };
        Case {
            job: &self.name,
            due: &self.due,
            witness: &self.lines,
            records: &self.records,
            firer: self.firer,
            promise: self.job.promise,
            overlap_forbidden: self.job.overlap_forbidden,
            late_after: plan.quiet_machine.then_some(late_after + self.job.jitter),
            troubles,
            marked_lost,
        }
    }
}

/// What leaders said when they gave nodes up.
async fn marked_lost(cluster: &Cluster) -> Vec<MarkedLost> {
    let nodes = cluster.any_client().nodes().await;
    let name_of = |id: &str| {
        let node = nodes.iter().find(|node| node["id"] == id);
        node.and_then(|node| node["name"].as_str()).map(str::to_owned)
    };
    let read = |line: &str| {
        let (_, said) = line.split_once(" is marked lost: node ")?;
        let (id, incarnation) = said.split_once(", incarnation ")?;
        let at: Timestamp = line.split_whitespace().next()?.parse().ok()?;
        let incarnation = incarnation.split_whitespace().next()?.parse().ok()?;
        Some(MarkedLost { node: name_of(id)?, incarnation, at: in_real_time(at) })
    };
    cluster.logs().values().flat_map(|log| log.lines().filter_map(read).collect::<Vec<_>>()).collect()
}

/// A server whose clock was an hour off says so in its log.
fn in_real_time(said: Timestamp) -> Timestamp {
    let hours = now().duration_since(said).as_secs_f64() / 3600.0;
    said + SignedDuration::from_hours(if hours < -0.4 { -1 } else { i64::from(hours > 0.9) })
}
