//! A network namespace for a host, with two links to the rest of the machine: one to the coordinator, which can be cut, and one to the witness,
//! who sees what goes on meanwhile.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use crate::servers::Port;

pub struct Namespace {
    /// Nobody else has its number, so nobody has these names and addresses.
    port: Port,
}

/// What RFC 2544 sets apart for tests of networks.
const FIRST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
const ADDRESSES_PER_HOST: u32 = 4;
/// Where Debian has it, which is on nobody's path but root's.
const IP: [&str; 3] = ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"];

impl Namespace {
    /// None: only root can make one.
    pub fn make() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("not root: hosts have no network of their own, and their links are cut by proxies");
            return None;
        }
        let namespace = Self { port: Port::free() };
        // Of a test that was killed.
        namespace.remove();
        let (name, [coordinator, witness]) = (namespace.name(), namespace.links());
        ip(&["netns", "add", &name]).expect("a network namespace");
        ip(&["-n", &name, "link", "set", "lo", "up"]).expect("its loopback");
        for (link, [outside, inside]) in [(coordinator, namespace.addresses(0)), (witness, namespace.addresses(2))] {
            let end = format!("{link}i");
            ip(&["link", "add", &link, "type", "veth", "peer", "name", &end, "netns", &name]).expect("a link");
            ip(&["addr", "add", &outside, "peer", &format!("{inside}/32"), "dev", &link]).expect("an address");
            ip(&["-n", &name, "addr", "add", &inside, "peer", &format!("{outside}/32"), "dev", &end])
                .expect("an address");
            ip(&["link", "set", &link, "up"]).expect("a link that is up");
            ip(&["-n", &name, "link", "set", &end, "up"]).expect("a link that is up");
        }
        Some(namespace)
    }

    /// What goes to the coordinator, and comes from there, is lost from now on; nobody is told.
    pub fn cut(&self) {
        ip(&["link", "set", &self.links()[0], "down"]).expect("a link that is down");
    }

    pub fn heal(&self) {
        ip(&["link", "set", &self.links()[0], "up"]).expect("a link that is up");
    }

    /// Where the host finds what listens there for the coordinator.
    pub fn to_coordinator(&self) -> String {
        self.addresses(0)[0].clone()
    }

    pub fn to_witness(&self) -> String {
        self.addresses(2)[0].clone()
    }

    /// Runs the rest of its arguments in there, as the same process.
    #[expect(clippy::disallowed_methods, reason = "a program for tests")]
    pub fn command(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name())).arg("--");
        command
    }

    fn name(&self) -> String {
        format!("belfry{}", self.port.number())
    }

    /// Seen from outside; the other end of each has one letter more.
    fn links(&self) -> [String; 2] {
        ["c", "w"].map(|end| format!("bf{}{end}", self.port.number()))
    }

    /// Outside and inside.
    fn addresses(&self, nth: u32) -> [String; 2] {
        let first = u32::from(FIRST) + u32::from(self.port.number()) * ADDRESSES_PER_HOST % (1 << 16) + nth;
        [first, first + 1].map(|address| Ipv4Addr::from(address).to_string())
    }

    fn remove(&self) {
        for link in self.links() {
            let _not_there = ip(&["link", "del", &link]);
        }
        let _not_there = ip(&["netns", "del", &self.name()]);
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.remove();
    }
}

#[expect(clippy::disallowed_methods, reason = "a program for tests")]
fn ip(args: &[&str]) -> Result<(), String> {
    let program = IP.into_iter().find(|path| std::path::Path::new(path).exists()).ok_or("iproute2 is not installed")?;
    let done = Command::new(program).args(args).stdin(Stdio::null()).output().map_err(|cause| cause.to_string())?;
    if done.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&done.stderr).into_owned()) }
}
