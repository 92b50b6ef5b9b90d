//! A whole Belfry, in one process or as server and agent in two, in temporary folders and on free ports.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::client::Client;
use crate::daemon::{Daemon, processes_with};
use crate::until::until;

/// Beyond the time that runs are given to end.
const STOP_PATIENCE: Duration = Duration::from_secs(40);
const GONE_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `belfry up`.
    OneProcess,
    /// `belfry server` and `belfry agent` over loopback.
    TwoProcesses,
}

/// How to start it, where that differs from the plain way.
#[derive(Clone, Debug)]
pub struct Setup {
    pub program: PathBuf,
    pub layout: Layout,
    /// For all of its processes, as `BELFRY_QUIT_TIME`.
    pub env: Vec<(String, String)>,
    /// A folder of its own when left out.
    pub data: Option<PathBuf>,
}

impl Setup {
    pub fn new(program: &str, layout: Layout) -> Self {
        Self { program: program.into(), layout, env: Vec::new(), data: None }
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub async fn start(self) -> Belfry {
        let mut belfry = Belfry::prepare(self);
        belfry.launch();
        belfry.until_ready().await;
        belfry
    }
}

pub struct Belfry {
    setup: Setup,
    data: PathBuf,
    /// The server, or both in one.
    pub main: Option<Daemon>,
    /// With two processes.
    pub agent: Option<Daemon>,
    client: Option<Client>,
    /// Where agents find the server; kept when the server is started again.
    agents_address: Option<String>,
    join: Option<String>,
    /// In the environment of all its processes.
    mark: String,
    nodes: Vec<String>,
    folder: TempDir,
}

impl Belfry {
    pub async fn start(program: &str, layout: Layout) -> Self {
        Setup::new(program, layout).start().await
    }

    /// Nothing runs yet.
    pub fn prepare(setup: Setup) -> Self {
        let folder = tempfile::Builder::new().prefix("belfry-e2e-").tempdir().expect("a temporary folder");
        let data = setup.data.clone().unwrap_or_else(|| folder.path().join("data"));
        let mark = format!("BELFRY_TESTKIT={}", folder.path().display());
        Self {
            setup,
            data,
            main: None,
            agent: None,
            client: None,
            agents_address: None,
            join: None,
            mark,
            nodes: Vec::new(),
            folder,
        }
    }

    pub fn client(&self) -> &Client {
        self.client.as_ref().expect("it was started")
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What its processes said.
    pub fn stderr(&self) -> String {
        let read = |name: &str| std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        read("main.err") + &read("agent.err")
    }

    /// Starts what does not run, without waiting for anything. With two processes, the agent follows in `until_ready`.
    pub fn launch(&mut self) {
        if self.main.is_some() {
            return;
        }
        // A killed server leaves its address behind; only a new one means that it is up.
        let _absent = std::fs::remove_file(self.data.join("address"));
        let mut args = match self.setup.layout {
            Layout::OneProcess => vec!["up".to_owned()],
            Layout::TwoProcesses => {
                let listen = self.agents_address.clone().unwrap_or_else(|| "127.0.0.1:0".to_owned());
                vec!["server".to_owned(), "--listen-agents".to_owned(), listen]
            }
        };
        args.extend(["--listen".to_owned(), "127.0.0.1:0".to_owned()]);
        self.main = Some(self.daemon("main", &args, &self.data));
    }

    async fn launch_agent(&mut self, client: &Client) {
        let address = std::fs::read_to_string(self.data.join("agents-address")).expect("the address for agents");
        self.agents_address = Some(address.trim().to_owned());
        let mut args = vec!["agent".to_owned()];
        if self.join.is_none() {
            self.join = Some(client.join_token().await);
        }
        // As a person would leave it on the command line.
        args.extend(["--join".to_owned()].into_iter().chain(self.join.clone()));
        self.agent = Some(self.daemon("agent", &args, &self.data.join("agent")));
    }

    fn daemon(&self, name: &'static str, args: &[String], data: &Path) -> Daemon {
        let (mark, value) = self.mark.split_once('=').expect("it has one");
        let mut env = self.setup.env.clone();
        env.push((mark.to_owned(), value.to_owned()));
        env.push(("BELFRY_DATA".to_owned(), data.display().to_string()));
        Daemon::start(name, &self.setup.program, args, &env, &self.folder.path().join(format!("{name}.err")))
    }

    /// It answers, and its node is connected.
    pub async fn until_ready(&mut self) {
        let address = until("the address is written", async || {
            self.must_run();
            std::fs::read_to_string(self.data.join("address")).ok().filter(|text| text.ends_with('\n'))
        })
        .await;
        let token = std::fs::read_to_string(self.data.join("cli-token")).expect("the token for the command line");
        let client = Client::new(address.trim(), token.trim());
        until("it says that it is ready", async || {
            self.must_run();
            client.is_ready().await.then_some(())
        })
        .await;
        if self.setup.layout == Layout::TwoProcesses && self.agent.is_none() {
            self.launch_agent(&client).await;
        }
        until("a node is connected", async || {
            self.must_run();
            let nodes = client.nodes().await;
            self.nodes = nodes.iter().filter_map(|node| node["id"].as_str().map(str::to_owned)).collect();
            nodes.iter().any(|node| node["connected"] == true).then_some(())
        })
        .await;
        self.client = Some(client);
    }

    fn must_run(&mut self) {
        for daemon in [&mut self.main, &mut self.agent].into_iter().flatten() {
            if let Some(status) = daemon.ended() {
                panic!("it ended by itself with {status}:\n{}", daemon.stderr());
            }
        }
    }

    /// SIGKILL to all of its processes.
    pub fn kill9(&mut self) {
        for daemon in [&mut self.main, &mut self.agent] {
            if let Some(mut daemon) = daemon.take() {
                daemon.kill9();
            }
        }
    }

    /// SIGTERM to the agent and then to the server; each must end with success.
    pub async fn stop(&mut self) {
        for daemon in [&mut self.agent, &mut self.main] {
            if let Some(mut daemon) = daemon.take() {
                let status = daemon.stop(STOP_PATIENCE).await;
                assert!(status.success(), "stopped with {status}:\n{}", daemon.stderr());
            }
        }
    }

    pub async fn restart(&mut self) {
        self.launch();
        self.until_ready().await;
    }

    /// Its own processes and those of its jobs.
    pub fn processes(&self) -> Vec<i32> {
        let of_jobs = self.nodes.iter().flat_map(|node| processes_with(&format!("BELFRY_NODE_ID={node}")));
        processes_with(&self.mark).into_iter().chain(of_jobs).collect()
    }
}

impl Drop for Belfry {
    #[expect(clippy::disallowed_methods, reason = "drop cannot await, and the test is over")]
    fn drop(&mut self) {
        drop(self.agent.take());
        drop(self.main.take());
        let give_up = std::time::Instant::now() + GONE_PATIENCE;
        while !self.processes().is_empty() && std::time::Instant::now() < give_up {
            std::thread::sleep(Duration::from_millis(10));
        }
        let left = self.processes();
        for pid in &left {
            let _gone = nix::sys::signal::kill(nix::unistd::Pid::from_raw(*pid), nix::sys::signal::Signal::SIGKILL);
        }
        if !left.is_empty() && !std::thread::panicking() {
            panic!("processes {left:?} outlived Belfry");
        }
    }
}
