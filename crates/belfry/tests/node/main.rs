//! A node from the outside: what it has, what runs need of it, how it ends, and its local API. Real servers, agents and processes.

mod commands;
mod life;
mod limits;
mod local_api;
mod needs;

use std::path::{Path, PathBuf};
use std::time::Duration;

use belfry_testkit::servers::Port;
use belfry_testkit::{Client, Daemon, until};
use serde_json::Value;

pub const BELFRY: &str = env!("CARGO_BIN_EXE_belfry");
pub const STOP_PATIENCE: Duration = Duration::from_secs(40);

/// A server, and agents beside it in folders of their own.
pub struct Cluster {
    folder: tempfile::TempDir,
    pub client: Client,
    ports: [Port; 2],
    pub server: Daemon,
}

impl Cluster {
    pub async fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("belfry-node-").tempdir().unwrap();
        let ports = [Port::free(), Port::free()];
        let mut server = start(folder.path(), "server", &server_args(&ports));
        let data = folder.path().join("server");
        let address = until("the address is written", async || {
            assert!(server.ended().is_none(), "{}", server.stderr());
            std::fs::read_to_string(data.join("address")).ok().filter(|text| text.ends_with('\n'))
        })
        .await;
        let token = std::fs::read_to_string(data.join("cli-token")).unwrap();
        Self { client: Client::new(address.trim(), token.trim()), folder, ports, server }
    }

    /// Where it is found again after an end.
    pub async fn start_again(&mut self) {
        self.server = start(self.folder.path(), "server", &server_args(&self.ports));
        until("it says that it is ready", async || self.client.is_ready().await.then_some(())).await;
    }

    pub fn data(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A node that joins, with these flags too.
    pub async fn join(&self, name: &'static str, more: &[&str]) -> Daemon {
        let token = self.client.join_token().await;
        let args = ["agent", "--name", name, "--join", &token];
        let agent = start(self.folder.path(), name, &args.iter().chain(more).collect::<Vec<_>>());
        self.until_node(name, |node| node["connected"] == true).await;
        agent
    }

    /// One whose machine gives it no control groups. None: only root can take them away.
    pub async fn join_without_control_groups(&self, name: &'static str) -> Option<Daemon> {
        if !nix::unistd::geteuid().is_root() {
            return None;
        }
        let token = self.client.join_token().await;
        let script = "umount --all --lazy --types cgroup,cgroup2 && exec \"$0\" \"$@\"";
        let unshare = ["--mount", "sh", "-c", script, BELFRY];
        let agent = start_by(
            "unshare",
            self.folder.path(),
            name,
            &[&unshare[..], &["agent", "--name", name, "--join", &token]].concat(),
        );
        self.until_node(name, |node| node["connected"] == true).await;
        Some(agent)
    }

    /// As it is started again.
    pub fn again(&self, name: &'static str, more: &[&str]) -> Daemon {
        start(self.folder.path(), name, &["agent", "--name", name].iter().chain(more).collect::<Vec<_>>())
    }

    pub async fn until_node(&self, name: &str, is: impl Fn(&Value) -> bool) -> Value {
        until(&format!("node {name} is as it should be"), async || {
            let nodes = self.client.nodes().await;
            nodes.into_iter().find(|node| node["name"] == name && is(node))
        })
        .await
    }
}

fn server_args([api, agents]: &[Port; 2]) -> Vec<String> {
    let address = |port: &Port| format!("127.0.0.1:{}", port.number());
    let words = ["server", "--ttl", "2s", "--listen", &address(api), "--listen-agents", &address(agents)];
    words.map(str::to_owned).to_vec()
}

fn start(folder: &Path, name: &'static str, args: &[impl AsRef<str>]) -> Daemon {
    start_by(BELFRY, folder, name, args)
}

fn start_by(program: &str, folder: &Path, name: &'static str, args: &[impl AsRef<str>]) -> Daemon {
    let args: Vec<String> = args.iter().map(|arg| arg.as_ref().to_owned()).collect();
    let env = [("BELFRY_DATA".to_owned(), folder.join(name).display().to_string())];
    Daemon::start(name, Path::new(program), &args, &env, &folder.join(format!("{name}.err")))
}
