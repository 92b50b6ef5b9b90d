//! One MariaDB server.

use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use super::ports::Port;
use super::process::{Identity, Launch, Process, ask_with, program};

const PACKAGE: &str = "mariadb-server";

pub struct MariaDb {
    process: Process,
    port: Port,
    databases: AtomicU32,
    _folder: TempDir,
}

impl MariaDb {
    pub fn start() -> Self {
        let identity = Identity::of_service("mysql", PACKAGE);
        let folder = tempfile::Builder::new().prefix("mariadb-").tempdir().expect("a temporary folder");
        identity.give(folder.path());
        let port = Port::free();
        let launch = |name: &str, args: Vec<String>| Launch {
            name: name.to_owned(),
            package: PACKAGE,
            program: program(name, PACKAGE),
            args,
            folder: folder.path().to_owned(),
            identity,
        };
        let data = format!("--datadir={}", folder.path().join("data").display());
        let no_defaults = || "--no-defaults".to_owned();
        launch(
            "mariadb-install-db",
            vec![
                no_defaults(),
                data.clone(),
                "--auth-root-authentication-method=normal".into(),
                "--skip-test-db".into(),
            ],
        )
        .run_to_end();
        let process = Process::start(launch(
            "mariadbd",
            vec![
                no_defaults(),
                data,
                format!("--port={}", port.number()),
                "--bind-address=127.0.0.1".into(),
                // Below the data folder: a whole path may be longer than a socket's may be.
                "--socket=s.sock".into(),
                "--pid-file=pid".into(),
                "--skip-log-bin".into(),
                "--character-set-server=utf8mb4".into(),
                "--skip-name-resolve".into(),
                "--max-connections=200".into(),
                // With io_uring the kernel may carry out a write of a killed server after its successor has begun, which ruins its files:
                // that is not what the loss of a machine's power does.
                "--innodb-use-native-aio=0".into(),
            ],
        ));
        let mut mariadb = Self { process, port, databases: AtomicU32::new(0), _folder: folder };
        mariadb.until_ready();
        mariadb
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.port.address()
    }

    pub fn url(&self, database: &str) -> String {
        self.url_of(&self.address(), database)
    }

    /// The same for another address, as that of a proxy.
    pub fn url_of(&self, address: &str, database: &str) -> String {
        format!("mysql://root@{address}/{database}")
    }

    /// The url of a new and empty database.
    pub fn fresh_database(&self) -> String {
        self.url(&self.fresh_database_name())
    }

    pub fn fresh_database_name(&self) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        if let Err(said) = sql(&self.port, &format!("CREATE DATABASE {name}")) {
            panic!("make the MariaDB database {name}: {said}");
        }
        name
    }

    /// One statement in no database; what it answers, one line per row.
    pub fn sql(&self, statement: &str) -> Result<String, String> {
        sql(&self.port, statement)
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// With the same data on the same port. Waits until it answers queries.
    pub fn restart(&mut self) {
        self.process.restart();
        self.until_ready();
    }

    /// SIGSTOP.
    pub fn suspend(&self) {
        self.process.suspend();
    }

    pub fn resume(&self) {
        self.process.resume();
    }

    fn until_ready(&mut self) {
        let port = &self.port;
        self.process.until_ready(|| sql(port, "SELECT 1").map(drop));
    }
}

fn sql(port: &Port, statement: &str) -> Result<String, String> {
    let port = format!("--port={}", port.number());
    let to = ["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", &port, "--user=root", "-N", "-B", "-e", statement];
    ask_with(&program("mariadb", "mariadb-client"), &to)
}
