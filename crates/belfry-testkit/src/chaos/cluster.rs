//! The cluster under test: servers, agents and backend as real processes, and a proxy on each link between two of them, so that any
//! one link can be cut.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::Plan;
use super::backend::{Backend, Ground};
use super::clock::FakeClock;
use super::disk::SmallDisk;
use crate::client::Client;
use crate::daemon::{Daemon, processes_with};
use crate::proxy::Proxy;
use crate::servers::Port;
use crate::until::until;

pub(super) const SHARDS: usize = 16;
const AGENTS: usize = 5;
const SLOTS: &str = "100";
const AGENT_DISK_BYTES: u64 = 6 << 20;
const SERVER_DISK_BYTES: u64 = 96 << 20;
const STOP_PATIENCE: Duration = Duration::from_secs(60);
const GONE_PATIENCE: Duration = Duration::from_secs(5);

pub(super) struct Cluster {
    program: PathBuf,
    pub(super) ttl: Duration,
    env: Vec<(String, String)>,
    /// In the environment of all its processes.
    mark: (String, String),
    // Dropped in this order: who uses something goes before it.
    pub(super) agents: Vec<Agent>,
    pub(super) servers: Vec<Server>,
    pub(super) ground: Ground,
    folder: TempDir,
}

pub(super) struct Server {
    name: String,
    daemon: Option<Daemon>,
    api: Port,
    for_agents: Port,
    data: PathBuf,
    /// To the database of the store, and of the coordinator where that is the same.
    pub(super) store_link: Option<Proxy>,
    pub(super) member_links: Vec<Proxy>,
    pub(super) clock: Option<FakeClock>,
    pub(super) disk: Option<SmallDisk>,
    client: Option<Client>,
}

pub(super) struct Agent {
    pub(super) name: String,
    daemon: Option<Daemon>,
    data: PathBuf,
    /// The token that it joins with, once.
    join: String,
    /// To each server.
    pub(super) links: Vec<Proxy>,
    pub(super) clock: Option<FakeClock>,
    pub(super) disk: Option<SmallDisk>,
}

impl Cluster {
    /// Everything runs and is connected.
    pub(super) async fn start(plan: &Plan) -> Self {
        let folder = tempfile::Builder::new().prefix("belfry-chaos-").tempdir().expect("a temporary folder");
        let mark = ("BELFRY_TESTKIT".to_owned(), folder.path().display().to_string());
        let ground = plan.backend.start();
        let mut env = vec![mark.clone(), ("BELFRY_TTL".to_owned(), format!("{}s", plan.ttl.as_secs()))];
        env.extend(plan.planted.iter().map(|bug| ("BELFRY_PLANTED_BUG".to_owned(), bug.clone())));
        let (program, ttl) = (plan.program.clone(), plan.ttl);
        let mut cluster = Self { program, ttl, env, mark, agents: Vec::new(), servers: Vec::new(), ground, folder };
        for number in 0..plan.backend.servers() {
            let server = Server::new(number, plan.backend, &cluster.ground, cluster.folder.path());
            cluster.servers.push(server);
            cluster.start_server(number);
            cluster.until_serving(number).await;
        }
        for number in 0..AGENTS {
            let join = cluster.servers[0].client().join_token().await;
            let agent = Agent::new(number, &cluster.servers, cluster.folder.path(), join);
            cluster.agents.push(agent);
            cluster.start_agent(number);
        }
        cluster.until_whole().await;
        cluster
    }

    pub(super) fn start_server(&mut self, number: usize) {
        let server = &self.servers[number];
        // A killed server leaves its address behind; only a new one means that it is up.
        let _absent = std::fs::remove_file(server.data.join("address"));
        let args = ["server", "--listen", &server.api.address(), "--listen-agents", &server.for_agents.address()];
        let args: Vec<String> = args.map(str::to_owned).to_vec();
        let mut env = self.env.clone();
        env.push(("BELFRY_DATA".to_owned(), server.data.display().to_string()));
        // Agents know their own links to each server, and take no other.
        env.push(("BELFRY_ADVERTISE_AGENTS".to_owned(), "none".to_owned()));
        let store = server.store_link.as_ref().and_then(|link| self.ground.store_url(&link.address()));
        env.extend(store.map(|url| ("BELFRY_STORE".to_owned(), url)));
        let members: Vec<String> = server.member_links.iter().map(Proxy::address).collect();
        env.extend(self.ground.coordinator_url(&members).map(|url| ("BELFRY_COORDINATOR".to_owned(), url)));
        env.extend(server.clock.iter().flat_map(FakeClock::env));
        let daemon = Daemon::start(&server.name, &self.program, &args, &env, &self.log(&server.name));
        self.servers[number].daemon = Some(daemon);
    }

    pub(super) async fn until_serving(&mut self, number: usize) {
        let server = &mut self.servers[number];
        until("a server has written its address", async || {
            if let Some(status) = server.daemon.as_mut().and_then(Daemon::ended) {
                panic!("{} ended by itself with {status}", server.name);
            }
            std::fs::read_to_string(server.data.join("address")).ok().filter(|text| text.ends_with('\n'))
        })
        .await;
        let token = std::fs::read_to_string(server.data.join("cli-token")).expect("the token for the command line");
        server.client = Some(Client::new(&format!("http://{}", server.api.address()), token.trim()));
    }

    /// The one place that knows how an agent is let in.
    pub(super) fn start_agent(&mut self, number: usize) {
        let agent = &self.agents[number];
        let mut args = vec!["agent", "--name", &agent.name, "--slots", SLOTS, "--join", &agent.join];
        let links: Vec<String> = agent.links.iter().map(Proxy::address).collect();
        args.extend(links.iter().flat_map(|link| ["--server", link]));
        let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
        let mut env = self.env.clone();
        env.push(("BELFRY_DATA".to_owned(), agent.data.display().to_string()));
        // Else no work would be taken long before the disk is full.
        env.push(("BELFRY_DISK_FLOOR".to_owned(), "0".to_owned()));
        env.extend(agent.clock.iter().flat_map(FakeClock::env));
        let daemon = Daemon::start(&agent.name, &self.program, &args, &env, &self.log(&agent.name));
        self.agents[number].daemon = Some(daemon);
    }

    /// Every agent is connected to every server, and the shards are shared evenly.
    pub(super) async fn until_whole(&self) {
        let mut found = String::new();
        let whole = crate::until::until_within(Duration::from_secs(60), async || {
            for server in &self.servers {
                let nodes = server.client().nodes_if_any().await;
                let connected = nodes.iter().filter(|node| node["connected"] == true).count();
                let owned = server.shards().await.len();
                found = format!("{} sees {connected} nodes and owns {owned} shards", server.name);
                if connected < self.agents.len() || owned + 1 < SHARDS / self.servers.len() {
                    return None;
                }
            }
            Some(())
        });
        if whole.await.is_none() {
            panic!("the cluster is not whole after a minute: {found}");
        }
    }

    pub(super) fn kill_server(&mut self, number: usize) {
        if let Some(mut daemon) = self.servers[number].daemon.take() {
            daemon.kill9();
        }
    }

    pub(super) fn kill_agent(&mut self, number: usize) {
        if let Some(mut daemon) = self.agents[number].daemon.take() {
            daemon.kill9();
        }
    }

    pub(super) async fn stop_server(&mut self, number: usize) {
        if let Some(mut daemon) = self.servers[number].daemon.take() {
            let status = daemon.stop(STOP_PATIENCE).await;
            assert!(status.success(), "{} stopped with {status}", self.servers[number].name);
        }
    }

    /// One that runs, to ask.
    pub(super) fn any_client(&self) -> &Client {
        let running = self.servers.iter().find(|server| server.daemon.is_some());
        running.expect("a server runs").client()
    }

    pub(super) fn log(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.err"))
    }

    /// What a process has said so far, to be read on from there.
    pub(super) fn said(&self, name: &str) -> Said {
        let file = self.log(name);
        Said { from: std::fs::metadata(&file).map_or(0, |facts| facts.len()), file }
    }

    pub(super) fn logs(&self) -> BTreeMap<String, String> {
        let names = self.servers.iter().map(|server| &server.name).chain(self.agents.iter().map(|agent| &agent.name));
        let read = |name: &String| (name.clone(), std::fs::read_to_string(self.log(name)).unwrap_or_default());
        names.map(read).collect()
    }

    /// The node of an agent, as any server that answers shows it.
    pub(super) async fn node(&self, agent: usize) -> Option<Value> {
        for server in &self.servers {
            let nodes = server.client().nodes_if_any().await;
            if let Some(node) = nodes.into_iter().find(|node| node["name"] == self.agents[agent].name.as_str()) {
                return Some(node);
            }
        }
        None
    }

    /// By their names.
    pub(super) fn nodes(&self) -> Vec<String> {
        self.agents.iter().map(|agent| agent.name.clone()).collect()
    }

    /// Its own processes and those of its jobs.
    fn processes(&self) -> Vec<i32> {
        processes_with(&format!("{}={}", self.mark.0, self.mark.1))
    }
}

impl Drop for Cluster {
    #[expect(clippy::disallowed_methods, reason = "drop cannot await, and the test is over")]
    fn drop(&mut self) {
        self.agents.iter_mut().for_each(|agent| drop(agent.daemon.take()));
        self.servers.iter_mut().for_each(|server| drop(server.daemon.take()));
        let mut turns = GONE_PATIENCE.as_millis() / 10;
        while turns > 0 && !self.processes().is_empty() {
            std::thread::sleep(Duration::from_millis(10));
            turns -= 1;
        }
        let left = self.processes();
        for pid in &left {
            let _gone = nix::sys::signal::kill(nix::unistd::Pid::from_raw(*pid), Signal::SIGKILL);
        }
        if !left.is_empty() && !std::thread::panicking() {
            panic!("processes {left:?} outlived the cluster");
        }
    }
}

impl Server {
    fn new(number: usize, backend: Backend, ground: &Ground, folder: &Path) -> Self {
        let name = format!("s{}", number + 1);
        let data = folder.join(&name);
        // Only files of its own can fill up its disk.
        let disk = (backend == Backend::Sqlite).then(|| SmallDisk::mount(&data, SERVER_DISK_BYTES)).flatten();
        Self {
            daemon: None,
            api: Port::free(),
            for_agents: Port::free(),
            data,
            store_link: ground.database_address().map(|address| Proxy::before(&address)),
            member_links: ground.member_addresses().iter().map(|address| Proxy::before(address)).collect(),
            clock: (number == 0).then(|| FakeClock::new(folder.join(format!("{name}.clock")))),
            disk,
            client: None,
            name,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn client(&self) -> &Client {
        self.client.as_ref().expect("it was started")
    }

    pub(super) fn signal(&self, signal: Signal) {
        self.daemon.as_ref().expect("it runs").signal(signal);
    }

    /// Links to what coordinates: the members, or the database in both roles.
    pub(super) fn coordinator_links(&self) -> Vec<&Proxy> {
        if self.member_links.is_empty() { self.store_link.iter().collect() } else { self.member_links.iter().collect() }
    }

    /// What it says it owns; nothing when it does not answer.
    pub(super) async fn shards(&self) -> Vec<u64> {
        let Some(cluster) = self.client().ask("/cluster").await else { return Vec::new() };
        let shards = cluster["shards"].as_array().cloned().unwrap_or_default();
        shards.iter().filter_map(|shard| shard["shard"].as_u64()).collect()
    }
}

impl Agent {
    fn new(number: usize, servers: &[Server], folder: &Path, join: String) -> Self {
        let name = format!("a{}", number + 1);
        let data = folder.join(&name);
        Self {
            daemon: None,
            join,
            links: servers.iter().map(|server| Proxy::before(&server.for_agents.address())).collect(),
            clock: (number == 0).then(|| FakeClock::new(folder.join(format!("{name}.clock")))),
            disk: (number == 1).then(|| SmallDisk::mount(&data, AGENT_DISK_BYTES)).flatten(),
            data,
            name,
        }
    }

    pub(super) fn signal(&self, signal: Signal) {
        self.daemon.as_ref().expect("it runs").signal(signal);
    }
}

/// The place up to which a log was read.
pub(super) struct Said {
    file: PathBuf,
    from: u64,
}

impl Said {
    pub(super) fn since(&self) -> String {
        let text = std::fs::read(&self.file).unwrap_or_default();
        String::from_utf8_lossy(text.get(self.from as usize..).unwrap_or_default()).into_owned()
    }
}
