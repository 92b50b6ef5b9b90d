//! One PostgreSQL server, of the newest version that is installed.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use super::ports::Port;
use super::process::{Identity, Launch, Process, ask_with};

const PACKAGE: &str = "postgresql";
/// A folder per major version.
const VERSIONS: &str = "/usr/lib/postgresql";

pub struct Postgres {
    process: Process,
    port: Port,
    programs: PathBuf,
    databases: AtomicU32,
    _folder: TempDir,
}

impl Postgres {
    pub fn start() -> Self {
        let programs = newest_version().join("bin");
        let identity = Identity::of_service("postgres", PACKAGE);
        let folder = tempfile::Builder::new().prefix("postgres-").tempdir().expect("a temporary folder");
        identity.give(folder.path());
        let port = Port::free();
        let launch = |program: &str, args: &[&str]| Launch {
            name: program.to_owned(),
            package: PACKAGE,
            program: programs.join(program),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            folder: folder.path().to_owned(),
            identity,
        };
        let locale = "--locale=C.UTF-8";
        launch("initdb", &["-D", "data", "-U", "test", "--auth=trust", "--no-sync", "-E", "UTF8", locale]).run_to_end();
        let number = port.number().to_string();
        let process = Process::start(launch(
            "postgres",
            &[
                "-D",
                "data",
                "-p",
                &number,
                "-c",
                "listen_addresses=127.0.0.1",
                "-c",
                "unix_socket_directories=",
                "-c",
                "max_connections=200",
            ],
        ));
        let mut postgres = Self { process, port, programs, databases: AtomicU32::new(0), _folder: folder };
        postgres.until_ready();
        postgres
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
        format!("postgres://test@{address}/{database}")
    }

    /// The url of a new and empty database.
    pub fn fresh_database(&self) -> String {
        self.url(&self.fresh_database_name())
    }

    pub fn fresh_database_name(&self) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        if let Err(said) = sql(&self.programs, &self.port, &format!("CREATE DATABASE {name}")) {
            panic!("make the PostgreSQL database {name}: {said}");
        }
        name
    }

    /// One statement in the database `postgres`; what it answers, one line per row.
    pub fn sql(&self, statement: &str) -> Result<String, String> {
        sql(&self.programs, &self.port, statement)
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// SIGKILL for all of its processes.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// With the same data on the same port. Waits until it answers queries.
    pub fn restart(&mut self) {
        self.process.restart();
        self.until_ready();
    }

    /// SIGSTOP for all of its processes.
    pub fn suspend(&self) {
        self.process.suspend();
    }

    pub fn resume(&self) {
        self.process.resume();
    }

    fn until_ready(&mut self) {
        let (programs, port) = (&self.programs, &self.port);
        self.process.until_ready(|| sql(programs, port, "SELECT 1").map(drop));
    }
}

fn sql(programs: &Path, port: &Port, statement: &str) -> Result<String, String> {
    let port = port.number().to_string();
    let to = ["-X", "-A", "-t", "-q", "-h", "127.0.0.1", "-p", &port, "-U", "test", "-d", "postgres", "-c", statement];
    ask_with(&programs.join("psql"), &to)
}

fn newest_version() -> PathBuf {
    let versions = std::fs::read_dir(VERSIONS).into_iter().flatten().flatten();
    let with_server = versions.filter(|version| version.path().join("bin/postgres").is_file());
    let number = |version: &std::fs::DirEntry| version.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
    let newest = with_server.max_by_key(number);
    newest.map_or_else(|| panic!("no server is in {VERSIONS}; install the Debian package {PACKAGE}"), |it| it.path())
}
