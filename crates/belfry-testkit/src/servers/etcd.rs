//! etcd with one or more members.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use super::ports::Port;
use super::process::{Identity, Launch, Process, ask_with, program};

const PACKAGE: &str = "etcd-server";
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Default)]
pub struct EtcdOptions {
    pub quota_bytes: Option<u64>,
    /// Clients need a certificate of the test's own authority; `url` names the files.
    pub tls: bool,
    /// The only user besides `root`, which has the same password; may read and write every key.
    pub user: Option<(String, String)>,
}

pub struct Etcd {
    options: EtcdOptions,
    members: Vec<Member>,
    folder: TempDir,
}

struct Member {
    process: Process,
    client: Port,
    /// Tells about health without TLS or user.
    health: Port,
    _peer: Port,
}

impl Etcd {
    pub fn start(members: usize) -> Self {
        Self::start_with(members, EtcdOptions::default())
    }

    pub fn start_with(members: usize, options: EtcdOptions) -> Self {
        let folder = tempfile::Builder::new().prefix("etcd-").tempdir().expect("a temporary folder");
        if options.tls {
            make_certificates(folder.path());
        }
        let peers: Vec<Port> = (0..members).map(|_| Port::free()).collect();
        let cluster: Vec<String> =
            peers.iter().enumerate().map(|(number, peer)| format!("n{number}=http://{}", peer.address())).collect();
        let cluster = cluster.join(",");
        let start = |(number, peer): (usize, Port)| Member::start(number, peer, &cluster, &options, folder.path());
        let members = peers.into_iter().enumerate().map(start).collect();
        let mut etcd = Self { options, members, folder };
        etcd.members.iter_mut().for_each(Member::until_healthy);
        etcd.make_user();
        etcd
    }

    /// `127.0.0.1:PORT` of each member, killed ones too.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| member.client.address()).collect()
    }

    /// For all members, with what the options need.
    pub fn url(&self) -> String {
        self.url_of(&self.endpoints())
    }

    /// The same for other addresses, as that of a proxy.
    pub fn url_of(&self, endpoints: &[String]) -> String {
        let user = self.options.user.as_ref().map_or_else(String::new, |(user, word)| format!("{user}:{word}@"));
        let mut query = Vec::new();
        if self.options.tls {
            let file = |name| self.file(name).display().to_string();
            query.push(format!(
                "tls=true&ca={}&cert={}&key={}",
                file("ca.pem"),
                file("client.pem"),
                file("client.key")
            ));
        }
        query.extend(self.options.quota_bytes.map(|bytes| format!("quota={bytes}B")));
        let mark = if query.is_empty() { "" } else { "?" };
        format!("etcd://{user}{}{mark}{}", endpoints.join(","), query.join("&"))
    }

    /// With TLS: the certificate of the authority that signed those of the members.
    pub fn ca_file(&self) -> PathBuf {
        self.file("ca.pem")
    }

    pub fn pid(&self, member: usize) -> u32 {
        self.members[member].process.pid()
    }

    /// SIGKILL.
    pub fn kill(&mut self, member: usize) {
        self.members[member].process.kill();
    }

    /// With the same data on the same ports. Waits until it is healthy, or where too few members run for that, until it
    /// answers.
    pub fn restart(&mut self, member: usize) {
        self.members[member].process.restart();
        let running = self.members.iter().filter(|member| member.process.is_running()).count();
        if running > self.members.len() / 2 {
            self.members[member].until_healthy();
        } else {
            self.members[member].until_it_answers();
        }
    }

    /// A member that runs reads through a leader.
    pub fn serves(&self) -> bool {
        let mut running = self.members.iter().filter(|member| member.process.is_running());
        running.any(|member| health(&member.health.address()).is_ok_and(|answer| is_healthy(&answer)))
    }

    /// The member that the others have elected.
    pub fn leader(&self) -> Option<usize> {
        let leads = |member: &Member| {
            let told = ask(&member.health.address(), "/metrics");
            told.is_ok_and(|metrics| metrics.lines().any(|line| line == "etcd_server_is_leader 1"))
        };
        self.members.iter().position(|member| member.process.is_running() && leads(member))
    }

    /// SIGSTOP.
    pub fn suspend(&self, member: usize) {
        self.members[member].process.suspend();
    }

    pub fn resume(&self, member: usize) {
        self.members[member].process.resume();
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn make_user(&self) {
        let Some((user, word)) = &self.options.user else { return };
        self.control(&["user", "add", &format!("root:{word}")]);
        self.control(&["user", "grant-role", "root", "root"]);
        if user != "root" {
            self.control(&["role", "add", "everything"]);
            self.control(&["role", "grant-permission", "everything", "readwrite", "--prefix", ""]);
            self.control(&["user", "add", &format!("{user}:{word}")]);
            self.control(&["user", "grant-role", user, "everything"]);
        }
        self.control(&["auth", "enable"]);
    }

    fn control(&self, command: &[&str]) {
        let endpoints = self.endpoints().join(",");
        let (ca, cert, key) = (self.file("ca.pem"), self.file("client.pem"), self.file("client.key"));
        let (ca, cert, key) = (ca.to_string_lossy(), cert.to_string_lossy(), key.to_string_lossy());
        let mut args = vec!["--endpoints", &endpoints];
        if self.options.tls {
            args.extend(["--cacert", &ca, "--cert", &cert, "--key", &key]);
        }
        args.extend(command);
        if let Err(said) = ask_with(&program("etcdctl", "etcd-client"), &args) {
            panic!("etcdctl {}: {said}", command.join(" "));
        }
    }
}

impl Member {
    fn start(number: usize, peer: Port, cluster: &str, options: &EtcdOptions, folder: &Path) -> Self {
        let (client, health) = (Port::free(), Port::free());
        let own = folder.join(format!("n{number}"));
        std::fs::create_dir(&own).expect("a folder for the member");
        let client_url = format!("{}://{}", if options.tls { "https" } else { "http" }, client.address());
        let peer_url = format!("http://{}", peer.address());
        let mut args = vec![
            format!("--name=n{number}"),
            format!("--data-dir={}", own.join("data").display()),
            format!("--listen-client-urls={client_url}"),
            format!("--advertise-client-urls={client_url}"),
            format!("--listen-metrics-urls=http://{}", health.address()),
            format!("--listen-peer-urls={peer_url}"),
            format!("--initial-advertise-peer-urls={peer_url}"),
            format!("--initial-cluster={cluster}"),
            "--initial-cluster-state=new".to_owned(),
            "--logger=zap".to_owned(),
            "--log-level=error".to_owned(),
        ];
        if let Some(bytes) = options.quota_bytes {
            args.push(format!("--quota-backend-bytes={bytes}"));
        }
        if options.tls {
            args.push(format!("--cert-file={}", folder.join("server.pem").display()));
            args.push(format!("--key-file={}", folder.join("server.key").display()));
            args.push(format!("--trusted-ca-file={}", folder.join("ca.pem").display()));
            args.push("--client-cert-auth".to_owned());
        }
        let process = Process::start(Launch {
            name: format!("etcd member n{number}"),
            package: PACKAGE,
            program: program("etcd", PACKAGE),
            args,
            folder: own,
            identity: Identity::Ourselves,
        });
        Self { process, client, health, _peer: peer }
    }

    fn until_healthy(&mut self) {
        let address = self.health.address();
        self.process.until_ready(|| match health(&address)? {
            answer if is_healthy(&answer) => Ok(()),
            answer => Err(answer),
        });
    }

    fn until_it_answers(&mut self) {
        let address = self.health.address();
        self.process.until_ready(|| health(&address).map(drop));
    }
}

/// It has a leader and reads through it. A full database is no reason to wait.
fn is_healthy(answer: &str) -> bool {
    answer.contains("\"health\":\"true\"") || answer.contains("NOSPACE")
}

fn health(address: &str) -> Result<String, String> {
    ask(address, "/health").map_err(|cause| format!("ask for its health: {cause}"))
}

fn ask(address: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ASK_TIMEOUT))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// An authority, and certificates of it for the members and for a client.
fn make_certificates(folder: &Path) {
    let ca_key = KeyPair::generate().expect("a key");
    let mut ca = CertificateParams::new(vec![]).expect("no names");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    write(folder, "ca.pem", &ca.self_signed(&ca_key).expect("a certificate").pem());
    let issuer = Issuer::new(ca, ca_key);
    for (name, purpose) in
        [("server", ExtendedKeyUsagePurpose::ServerAuth), ("client", ExtendedKeyUsagePurpose::ClientAuth)]
    {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["127.0.0.1".into(), "localhost".into()]).expect("two names");
        params.extended_key_usages.push(purpose);
        // etcd calls itself with the members' certificate.
        if name == "server" {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        }
        write(folder, &format!("{name}.pem"), &params.signed_by(&key, &issuer).expect("a certificate").pem());
        write(folder, &format!("{name}.key"), &key.serialize_pem());
    }
}

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).expect("write into the temporary folder");
}
