//! The wrapper as a real cron daemon starts it: Debian's cron in a mount namespace of its own, with a crontab of several hosts on each
//! backend.
#![expect(clippy::disallowed_methods, reason = "the daemon is started as a system starts it")]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use belfry_testkit::chaos::Backend;
use belfry_testkit::{Ground, Holdings, Host, until, until_within};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tokio::time::Instant;

const PROGRAM: &str = env!("CARGO_BIN_EXE_belfry");
const BACKENDS: [Backend; 4] = [Backend::Etcd, Backend::ZooKeeper, Backend::Postgres, Backend::MariaDb];
const HOSTS: usize = 3;
/// Cron wakes once a minute.
const CRON_PATIENCE: Duration = Duration::from_secs(150);
/// From the death of an owner until all who wait are back.
const TWO_CRON_MINUTES: Duration = Duration::from_secs(120);

/// Ends with its value; what it started is the grounds' to end.
struct Cron(Child);

impl Cron {
    /// What the machine's own cron does is hidden from it, and it from that.
    fn start(crontab: &str, folder: &std::path::Path) -> Cron {
        let file = folder.join("crontab");
        std::fs::write(&file, crontab).unwrap();
        let hide = "mount -t tmpfs tmpfs /etc/cron.d && mount -t tmpfs tmpfs /run && mount --bind /dev/null /etc/crontab \
                    && mkdir -p /var/spool/cron && mount -t tmpfs tmpfs /var/spool/cron && mkdir -p /var/spool/cron/crontabs";
        let script = format!("{hide} && install -m 644 -o root {} /etc/cron.d/belfry && exec cron -f", file.display());
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", &script]);
        Cron(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("unshare of util-linux"))
    }
}

impl Drop for Cron {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// What follows a bare `%` of a crontab's line; each further one is a new line.
const INPUT: [&str; 2] = ["from the crontab", "second line"];

/// The name on the command line, and in a line of the environment; `%` is escaped in both. One reads what cron gives it.
fn crontab_of(out: &mut String, host: &Host, lines: &str, name: &str) {
    let Host { name: id, url, .. } = host;
    let (lib, log) = (host.lib(), host.log(""));
    let common = format!("DCRON_ID={id} DCRON_LIBDIR={} DCRON_LOGDIR={} DCRON_TTL=5", lib.display(), log.display());
    writeln!(out, "DCRON_COORD={url}\nBELFRY_TESTKIT={}", host.mark()).unwrap();
    let dcron = host.link_to_program().display().to_string();
    writeln!(
        out,
        "* * * * * root {dcron} DCRON_NAME={name}.\\%F_\\%H\\%M {common} -- sh -c 'echo {name} $(date +\\%F_\\%H\\%M) >> {lines}'"
    )
    .unwrap();
    writeln!(
        out,
        "* * * * * root {dcron} DCRON_NAME={name}-in.\\%F_\\%H\\%M {common} -- sh -c 'echo {name}-in $(date +\\%F_\\%H\\%M) $(cat) >> {lines}'%{}",
        INPUT.join("%")
    )
    .unwrap();
    writeln!(out, "DCRON_NAME={name}-env.\\%F_\\%H\\%M").unwrap();
    writeln!(out, "* * * * * root env {common} {dcron} sh -c 'echo {name}-env $(date +\\%F_\\%H\\%M) >> {lines}'")
        .unwrap();
    writeln!(out, "DCRON_NAME=\"\"").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_minute_of_a_real_cron_runs_on_one_host() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("not root: no cron daemon can be started");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("lines");
    let mut crontab = "SHELL=/bin/sh\nPATH=/usr/local/bin:/usr/bin:/bin\n".to_owned();
    let mut grounds = Vec::new();
    for backend in BACKENDS {
        let ground = Ground::start(backend);
        let hosts: Vec<Host> =
            (1..=HOSTS).map(|number| ground.host(PROGRAM, &format!("{}{number}", backend.name()))).collect();
        for host in &hosts {
            crontab_of(&mut crontab, host, &lines.display().to_string(), backend.name());
        }
        grounds.push((ground, hosts));
    }
    let _cron = Cron::start(&crontab, folder.path());
    let kinds = ["", "-env", "-in"];
    let names: Vec<String> =
        BACKENDS.iter().flat_map(|backend| kinds.map(|kind| format!("{}{kind}", backend.name()))).collect();
    let count = || {
        let text = std::fs::read_to_string(&lines).unwrap_or_default();
        let mut runs: BTreeMap<String, usize> = BTreeMap::new();
        text.lines().for_each(|line| *runs.entry(line.to_owned()).or_default() += 1);
        runs
    };
    let all = async || {
        let runs = count();
        let has_run = |name: &String| runs.keys().any(|run| run.split(' ').next() == Some(name));
        names.iter().all(has_run).then_some(())
    };
    if until_within(CRON_PATIENCE, all).await.is_none() {
        let said: Vec<String> = grounds.iter().flat_map(|(_, hosts)| hosts).map(Host::logs).collect();
        panic!("not all have run: {:?}\n{crontab}\n{}", count(), said.join("\n"));
    }
    until("all wrappers are done", async || {
        grounds.iter().all(|(ground, _)| ground.processes().is_empty()).then_some(())
    })
    .await;
    for run in count().keys().filter(|run| run.contains("-in ")) {
        assert!(run.ends_with(&INPUT.join(" ")), "{run}");
    }
    let twice: Vec<_> = count().into_iter().filter(|(_, runs)| *runs != 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
}

/// `BELFRY_OWNERS` says how many hosts die one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_lived_process_outlives_its_hosts_and_cron_brings_those_who_wait_back() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("not root: no cron daemon can be started");
        return;
    }
    let owners: usize = std::env::var("BELFRY_OWNERS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::start(Backend::ZooKeeper);
    let hosts: Vec<Host> = (1..=HOSTS).map(|number| ground.host(PROGRAM, &format!("h{number}"))).collect();
    let witness = Holdings::listen().await;
    let command = folder.path().join("command");
    std::fs::write(&command, format!("{} && exec sleep 100000", witness.hold("llap $HOST $BELFRY_FENCE"))).unwrap();
    let mut crontab = "SHELL=/bin/sh\nPATH=/usr/local/bin:/usr/bin:/bin\n".to_owned();
    for host in &hosts {
        let (dcron, lib, log) = (host.link_to_program(), host.lib(), host.log(""));
        writeln!(crontab, "DCRON_COORD={}\nBELFRY_TESTKIT={}\nHOST={}", host.url, host.mark(), host.name).unwrap();
        writeln!(
            crontab,
            "* * * * * root {} DCRON_NAME=llap.\\%F_\\%H\\%M DCRON_LLAP=true DCRON_MAXRETRY={HOSTS} DCRON_TTL=5 DCRON_ID={} DCRON_LIBDIR={} DCRON_LOGDIR={} -- bash {}",
            dcron.display(), host.name, lib.display(), log.display(), command.display()
        )
        .unwrap();
    }
    let _cron = Cron::start(&crontab, folder.path());
    let running = || witness.all().into_iter().find(|held| held.to.is_none());
    let mut until_then = Instant::now() + CRON_PATIENCE;
    for _ in 0..=owners {
        let all = async || {
            let wrappers: usize = hosts.iter().map(|host| host.wrappers().len()).sum();
            (wrappers == HOSTS && running().is_some()).then_some(())
        };
        if until_within(until_then - Instant::now(), all).await.is_none() {
            let said: Vec<String> = hosts.iter().map(Host::logs).collect();
            panic!("not all are back: {:?}\n{crontab}\n{}", witness.all(), said.join("\n"));
        }
        if witness.all().len() > owners {
            break;
        }
        let last = running().expect("it runs");
        let host = hosts.iter().find(|host| host.name == last.words[1]).expect("one of the hosts");
        let wrapper = *host.wrappers().first().expect("the wrapper of the host that has it");
        kill(Pid::from_raw(wrapper), Signal::SIGKILL).unwrap();
        until_then = Instant::now() + TWO_CRON_MINUTES;
        // Mostly on another host; on the same one where cron has just brought a wrapper back there, which is preferred.
        until("it runs again", async || running().filter(|held| held.from != last.from).map(drop)).await;
    }
    let all = witness.all();
    assert_eq!(all.len(), owners + 1, "{all:?}");
    assert!(all.windows(2).all(|pair| pair[0].to.is_some_and(|to| to < pair[1].from)), "never two at once: {all:?}");
    // On a line of its own, for whoever reads figures.
    let figure = "owners of a long-lived process killed one after the other, never two at once";
    println!("\n{}", json!({"figure": figure, "value": owners, "at_least": 20}));
}
