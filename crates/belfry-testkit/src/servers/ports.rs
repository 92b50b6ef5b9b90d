//! Ports that stay ours while a server is down, so that it comes back where its clients look for it.

use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the range from which the kernel gives ports to outgoing connections: none of those can be in the way.
const FIRST: u32 = 16_000;
const COUNT: u32 = 16_000;

/// A port of loopback. Other processes of this kit leave it alone while this value lives; the kernel frees it with us.
pub struct Port {
    number: u16,
    _reserved: UnixDatagram,
}

impl Port {
    pub fn free() -> Self {
        static TRIED: AtomicU32 = AtomicU32::new(0);
        for _ in 0..COUNT {
            // Processes start at different places, so that they seldom meet.
            let step = TRIED.fetch_add(1, Ordering::Relaxed);
            let number = FIRST + (std::process::id().wrapping_mul(97).wrapping_add(step)) % COUNT;
            let number = u16::try_from(number).expect("a port");
            if let Some(_reserved) = reserve(number)
                && TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok()
            {
                return Self { number, _reserved };
            }
        }
        panic!("no port of 127.0.0.1 between {FIRST} and {} is free", FIRST + COUNT);
    }

    pub fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.number)
    }
}

/// A name that only one process of this machine can hold.
fn reserve(number: u16) -> Option<UnixDatagram> {
    let name = SocketAddr::from_abstract_name(format!("belfry-testkit-port-{number}")).expect("a short name");
    UnixDatagram::bind_addr(&name).ok()
}
