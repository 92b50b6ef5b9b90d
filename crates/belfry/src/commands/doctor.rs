//! `belfry doctor`: one look at everything that usually goes wrong, each with what to do about it.

use std::path::Path;

use belfry_core::Timestamp;
use jiff::fmt::rfc2822;
use nix::sys::statvfs::statvfs;
use serde::Serialize;
use serde_json::Value;

use super::{Context, read};
use crate::client::{Client, NodeAnswer, Source, default_data_dir};
use crate::exit::Exit;
use crate::print::{Tone, Word};

/// The `Date` header has whole seconds, and the answer took its time.
const CLOCK_OFFSET_SECONDS_MAX: i64 = 3;
const NODE_CLOCK_OFFSET_MS_MAX: i64 = 500;
const ROOM_BYTES_LOW: u64 = 1 << 30;
const ROOM_BYTES_EMPTY: u64 = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warning,
    Wrong,
}

#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    verdict: Verdict,
    detail: String,
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, check: &'static str, verdict: Verdict, detail: impl Into<String>) {
        self.0.push(Finding { check, verdict, detail: detail.into() });
    }
}

pub async fn run(context: &Context) -> anyhow::Result<Exit> {
    let mut findings = Findings::default();
    let data_dir = match context.found() {
        Ok(found) => {
            findings.add("server found", Verdict::Ok, format!("{} by {}", found.url, found.source));
            match found.source {
                Source::DataDir(dir) => Some(dir),
                Source::Given | Source::SavedLogin(_) => None,
            }
        }
        Err(why) => {
            findings.add("server found", Verdict::Wrong, why.to_string());
            context.choice.data.clone().or_else(default_data_dir)
        }
    };
    if let Ok(client) = context.client()
        && look_from_outside(&client, context.print.now, &mut findings).await
    {
        look_inside(&client, &mut findings).await;
    }
    if let Some(dir) = data_dir.filter(|dir| dir.exists()) {
        look_at_room(&dir, &mut findings);
    }
    show(&findings, context)
}

/// Whether it answers at all.
async fn look_from_outside(client: &Client, now: Timestamp, findings: &mut Findings) -> bool {
    match client.probe("/healthz").await {
        Ok((status, date, _)) if status.is_success() => {
            findings.add("server answers", Verdict::Ok, client.url());
            match date.and_then(|date| clock_offset_seconds(&date, now)) {
                Some(offset) if offset.abs() > CLOCK_OFFSET_SECONDS_MAX => {
                    let detail = format!(
                        "the server's clock is {offset:+} s off this machine's; check time synchronisation on both"
                    );
                    findings.add("clock", Verdict::Warning, detail);
                }
                Some(offset) => {
                    findings.add("clock", Verdict::Ok, format!("{offset:+} s to this machine, to the second"))
                }
                None => {}
            }
            true
        }
        Ok((status, ..)) => {
            findings.add("server answers", Verdict::Wrong, format!("{} answers {status}: is it Belfry?", client.url()));
            false
        }
        Err(error) => {
            findings.add("server answers", Verdict::Wrong, error.to_string());
            false
        }
    }
}

fn clock_offset_seconds(date: &str, now: Timestamp) -> Option<i64> {
    let theirs = rfc2822::parse(date).ok()?.timestamp();
    Some(theirs.as_second() - now.as_second())
}

async fn look_inside(client: &Client, findings: &mut Findings) {
    match client.get(&["cluster"], &Vec::new()).await {
        Ok(cluster) => look_at_cluster(&cluster, findings),
        Err(error) => findings.add("login", Verdict::Wrong, error.to_string()),
    }
    match client
        .get(&["nodes"], &Vec::new())
        .await
        .map_err(anyhow::Error::from)
        .and_then(|answer| read(&answer["items"]))
    {
        Ok(nodes) => look_at_nodes(nodes, findings),
        Err(error) => findings.add("nodes", Verdict::Warning, format!("{error:#}")),
    }
}

fn look_at_cluster(cluster: &Value, findings: &mut Findings) {
    let server = cluster["version"].as_str().unwrap_or_default();
    let own = env!("CARGO_PKG_VERSION");
    if server == own {
        findings.add("version", Verdict::Ok, own);
    } else {
        findings.add(
            "version",
            Verdict::Warning,
            format!("the server is {server}, this is {own}; update the older one"),
        );
    }
    for part in ["store", "coordinator"] {
        let health = &cluster[part];
        if health["ok"].as_bool() == Some(true) {
            findings.add(part, Verdict::Ok, "answers");
        } else {
            let (since, message) =
                (health["since"].as_str().unwrap_or("?"), health["message"].as_str().unwrap_or("unknown"));
            findings.add(part, Verdict::Wrong, format!("away since {since}: {message}"));
        }
    }
    if let Some(warning) = cluster["coordinator_warning"].as_str() {
        findings.add("coordinator", Verdict::Warning, warning);
    }
    let waiting = &cluster["unrecorded"];
    if waiting["full"].as_bool() == Some(true) {
        let message = format!(
            "{} runs wait for the store, and nothing more is claimed; bring it back",
            waiting["runs"].as_u64().unwrap_or_default()
        );
        findings.add("records", Verdict::Wrong, message);
    }
    let full = cluster["shards"].as_array().into_iter().flatten().filter(|shard| shard["full"].as_bool() == Some(true));
    for shard in full {
        let (shard, open) = (&shard["shard"], &shard["open_runs"]);
        let message = format!(
            "shard {shard} has {open} open runs, and the coordinator has room for no more; what is due there waits: end runs, or raise etcd's quota"
        );
        findings.add("coordinator", Verdict::Wrong, message);
    }
    for server in cluster["servers"].as_array().into_iter().flatten() {
        if let Some(ms) = server["clock_off_ms"].as_i64() {
            let api = server["api"].as_str().unwrap_or("?");
            let message =
                format!("{api}: its clock is {ms:+} ms off, and it fires nothing; check time synchronisation");
            findings.add("server", Verdict::Wrong, message);
        }
    }
}

fn look_at_nodes(nodes: Vec<NodeAnswer>, findings: &mut Findings) {
    let is_short = |node: &NodeAnswer| node.spool_full || node.disk_low || node.clock_off;
    if !nodes.iter().any(|node| node.connected && !node.draining && !node.excluded && !is_short(node)) {
        findings.add(
            "nodes",
            Verdict::Wrong,
            "no node takes runs; see `belfry node ls`, and start an agent or undrain one",
        );
    }
    for node in nodes {
        if !node.connected {
            findings.add("node", Verdict::Warning, format!("{} is away; see the agent's log there", node.name));
            continue;
        }
        match node.clock_offset_ms {
            Some(ms) if node.clock_off => {
                let message = format!(
                    "{}: its clock is {ms:+} ms off, and it gets no work; check time synchronisation",
                    node.name
                );
                findings.add("node", Verdict::Wrong, message);
            }
            Some(ms) if ms.abs() > NODE_CLOCK_OFFSET_MS_MAX => {
                findings.add(
                    "node",
                    Verdict::Warning,
                    format!("{}: its clock is {ms:+} ms off; check time synchronisation", node.name),
                );
            }
            _ => findings.add(
                "node",
                Verdict::Ok,
                format!("{} is connected; jobs without `as` run as {}", node.name, node.runs_as),
            ),
        }
        if node.spool_full {
            findings.add(
                "node",
                Verdict::Wrong,
                format!(
                    "{}: its spool is full of results that no server has stored, and it takes no work; bring the store back, or raise --spool-max there",
                    node.name
                ),
            );
        }
        if node.disk_low {
            findings.add(
                "node",
                Verdict::Wrong,
                format!(
                    "{}: it has less free disk than its floor, and takes no work; make room in its data folder, or lower --disk-floor there",
                    node.name
                ),
            );
        }
        if node.runs_as == "root" {
            findings.add(
                "node",
                Verdict::Warning,
                format!("{}: jobs run as root; name a user in `as`, or start without --allow-root", node.name),
            );
        }
    }
}

fn look_at_room(dir: &Path, findings: &mut Findings) {
    match statvfs(dir) {
        Ok(room) => {
            let bytes = room.blocks_available().saturating_mul(room.fragment_size());
            let verdict = match bytes {
                0..ROOM_BYTES_EMPTY => Verdict::Wrong,
                ROOM_BYTES_EMPTY..ROOM_BYTES_LOW => Verdict::Warning,
                ROOM_BYTES_LOW.. => Verdict::Ok,
            };
            let advice = if verdict == Verdict::Ok { "" } else { "; make room, or shorten retention" };
            findings.add("room on disk", verdict, format!("{} MiB free in {}{advice}", bytes >> 20, dir.display()));
        }
        Err(error) => findings.add("room on disk", Verdict::Warning, format!("{}: {error}", dir.display())),
    }
}

fn show(findings: &Findings, context: &Context) -> anyhow::Result<Exit> {
    let wrong = findings.0.iter().any(|finding| finding.verdict == Verdict::Wrong);
    if context.print.json {
        context.print.json(&serde_json::to_value(&findings.0)?)?;
    } else {
        let rows = findings.0.iter().map(|finding| {
            let verdict = match finding.verdict {
                Verdict::Ok => Word::toned("ok", Tone::Good),
                Verdict::Warning => Word::toned("warning", Tone::Warn),
                Verdict::Wrong => Word::toned("wrong", Tone::Bad),
            };
            vec![Word::from(finding.check), verdict, finding.detail.as_str().into()]
        });
        context.print.table(&["check", "result", "detail"], rows.collect())?;
    }
    Ok(if wrong { Exit::Failed } else { Exit::Done })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_a_server_is_read_from_its_date() {
        let now = "2026-11-16T00:14:30Z".parse().unwrap();
        assert_eq!(clock_offset_seconds("Mon, 16 Nov 2026 00:14:27 GMT", now), Some(-3));
        assert_eq!(clock_offset_seconds("soon", now), None);
    }

    #[test]
    fn what_is_away_is_wrong_and_says_since_when() {
        let mut findings = Findings::default();
        let cluster = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"), "store": {"ok": true},
            "coordinator": {"ok": false, "since": "2026-11-16T00:00:00.000Z", "message": "disk full"},
        });
        look_at_cluster(&cluster, &mut findings);
        let verdicts: Vec<Verdict> = findings.0.iter().map(|finding| finding.verdict).collect();
        assert_eq!(verdicts, [Verdict::Ok, Verdict::Ok, Verdict::Wrong]);
        assert_eq!(findings.0[2].detail, "away since 2026-11-16T00:00:00.000Z: disk full");
    }
}
