//! ZooKeeper with one or more members.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use super::ports::Port;
use super::process::{Identity, Launch, Process, program};

const PACKAGE: &str = "zookeeper";
/// The package, and where it puts what we need.
const JARS: &[(&str, &str)] =
    &[("zookeeper", "/usr/share/java/zookeeper.jar"), ("libslf4j-java", "/usr/share/java/slf4j-simple.jar")];
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

pub struct ZooKeeper {
    members: Vec<Member>,
    _folder: TempDir,
}

struct Member {
    process: Process,
    ports: Ports,
}

struct Ports {
    client: Port,
    follow: Port,
    elect: Port,
}

impl ZooKeeper {
    pub fn start(members: usize) -> Self {
        let folder = tempfile::Builder::new().prefix("zookeeper-").tempdir().expect("a temporary folder");
        let ports: Vec<Ports> =
            (0..members).map(|_| Ports { client: Port::free(), follow: Port::free(), elect: Port::free() }).collect();
        let ensemble = if members == 1 { String::new() } else { ensemble(&ports) };
        let start = |(number, ports): (usize, Ports)| Member::start(number, ports, &ensemble, folder.path());
        let mut members: Vec<Member> = ports.into_iter().enumerate().map(start).collect();
        members.iter_mut().for_each(Member::until_serving);
        Self { members, _folder: folder }
    }

    /// `127.0.0.1:PORT` of each member, killed ones too.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| member.ports.client.address()).collect()
    }

    pub fn url(&self) -> String {
        format!("zookeeper://{}", self.endpoints().join(","))
    }

    pub fn pid(&self, member: usize) -> u32 {
        self.members[member].process.pid()
    }

    /// SIGKILL.
    pub fn kill(&mut self, member: usize) {
        self.members[member].process.kill();
    }

    /// With the same data on the same ports. Waits until it serves, or where too few members run for that, until it
    /// answers.
    pub fn restart(&mut self, member: usize) {
        self.members[member].process.restart();
        let running = self.members.iter().filter(|member| member.process.is_running()).count();
        if running > self.members.len() / 2 {
            self.members[member].until_serving();
        } else {
            self.members[member].until_it_answers();
        }
    }

    /// SIGSTOP.
    pub fn suspend(&self, member: usize) {
        self.members[member].process.suspend();
    }

    pub fn resume(&self, member: usize) {
        self.members[member].process.resume();
    }

    /// The member that leads, when one does.
    pub fn leader(&self) -> Option<usize> {
        let leads = |member: &Member| {
            member.process.is_running()
                && status(&member.ports.client.address()).is_ok_and(|said| said.contains("Mode: leader"))
        };
        self.members.iter().position(leads)
    }

    /// How many ephemeral nodes there are, as the first member says.
    pub fn ephemerals(&self) -> u32 {
        let said = ask(&self.members[0].ports.client.address(), b"mntr").expect("the first member answers");
        let count = said.lines().find_map(|line| line.strip_prefix("zk_ephemerals_count"));
        count.and_then(|count| count.trim().parse().ok()).unwrap_or_else(|| panic!("no count of ephemerals in: {said}"))
    }
}

impl Member {
    fn start(number: usize, ports: Ports, ensemble: &str, folder: &Path) -> Self {
        let own = folder.join(format!("n{number}"));
        let data = own.join("data");
        std::fs::create_dir_all(&data).expect("a folder for the member");
        std::fs::write(data.join("myid"), (number + 1).to_string()).expect("the member's number");
        let config = format!(
            "tickTime=500\ninitLimit=10\nsyncLimit=4\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\n\
             admin.enableServer=false\nminSessionTimeout=1000\nmaxSessionTimeout=60000\n4lw.commands.whitelist=*\n\
             maxClientCnxns=0\n{ensemble}",
            data.display(),
            ports.client.number()
        );
        let file = own.join("zoo.cfg");
        std::fs::write(&file, config).expect("the member's configuration");
        let main = if ensemble.is_empty() { "ZooKeeperServerMain" } else { "quorum.QuorumPeerMain" };
        let process = Process::start(Launch {
            name: format!("ZooKeeper member {}", number + 1),
            package: PACKAGE,
            program: program("java", PACKAGE),
            args: vec![
                "-Xmx256m".into(),
                "-XX:+UseSerialGC".into(),
                // No file outside of our folder.
                "-XX:-UsePerfData".into(),
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn".into(),
                "-cp".into(),
                class_path(),
                format!("org.apache.zookeeper.server.{main}"),
                file.display().to_string(),
            ],
            folder: own,
            identity: Identity::Ourselves,
        });
        Self { process, ports }
    }

    fn until_serving(&mut self) {
        let address = self.ports.client.address();
        self.process.until_ready(|| match status(&address)? {
            answer if answer.contains("Mode: ") => Ok(()),
            answer => Err(answer),
        });
    }

    fn until_it_answers(&mut self) {
        let address = self.ports.client.address();
        self.process.until_ready(|| status(&address).map(drop));
    }
}

fn ensemble(ports: &[Ports]) -> String {
    let line = |(number, ports): (usize, &Ports)| {
        format!("server.{}=127.0.0.1:{}:{}\n", number + 1, ports.follow.number(), ports.elect.number())
    };
    ports.iter().enumerate().map(line).collect()
}

fn class_path() -> String {
    for (package, jar) in JARS {
        assert!(PathBuf::from(jar).is_file(), "the file {jar} is missing; install the Debian package {package}");
    }
    JARS.iter().map(|(_, jar)| *jar).collect::<Vec<_>>().join(":")
}

/// Tells its mode only while it serves.
fn status(address: &str) -> Result<String, String> {
    ask(address, b"srvr")
}

fn ask(address: &str, word: &[u8]) -> Result<String, String> {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(ASK_TIMEOUT))?;
        stream.write_all(word)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    match ask() {
        Ok(answer) if answer.is_empty() => Err("it closed the connection without an answer".into()),
        Ok(answer) => Ok(answer),
        Err(cause) => Err(format!("ask for its status: {cause}")),
    }
}
