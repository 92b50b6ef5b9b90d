//! Which addresses Belfry calls when a job says so. This machine itself, its link and the metadata services of clouds would answer
//! with what the job's author may not see, so they are called only where that was allowed.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::Deserialize;

/// An address with how many of its leading bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    pub fn contains(&self, ip: IpAddr) -> bool {
        let bits = u32::from(self.bits);
        match (self.address, ip) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (own.to_bits() ^ other.to_bits()).checked_shr(32 - bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()).checked_shr(128 - bits).unwrap_or(0) == 0
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || format!("`{text}` is not accepted; write an address or a network, such as 127.0.0.0/8 or ::1");
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| refuse())?;
        let all = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(all), |bits| bits.parse::<u8>()).map_err(|_| refuse())?;
        if bits > all { Err(refuse()) } else { Ok(Self { address, bits }) }
    }
}

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Where metadata services of clouds answer besides the link-local addresses.
const METADATA_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(192, 0, 0, 192)];
const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254);

/// Why an address is not called; None: it may be.
pub fn refuses(ip: IpAddr, allowed: &[Network]) -> Option<&'static str> {
    // An IPv4 address in the clothes of IPv6 leads to the same place.
    let (plain, ip) = (ip, embedded(ip).map_or(ip, IpAddr::V4));
    if allowed.iter().any(|network| network.contains(plain) || network.contains(ip)) {
        return None;
    }
    match ip {
        IpAddr::V4(v4) if v4.is_loopback() || v4.octets()[0] == 0 => Some("this machine itself"),
        IpAddr::V6(v6) if v6.is_loopback() || v6.is_unspecified() => Some("this machine itself"),
        IpAddr::V4(v4) if METADATA_V4.contains(&v4) => Some("a metadata service"),
        IpAddr::V6(METADATA_V6) => Some("a metadata service"),
        IpAddr::V4(v4) if v4.is_link_local() => Some("link-local"),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some("link-local"),
        IpAddr::V4(v4) if v4.is_multicast() || v4.is_broadcast() => Some("no single machine"),
        IpAddr::V6(v6) if v6.is_multicast() => Some("no single machine"),
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    }
}

/// The IPv4 address inside a mapped, compatible, translated (64:ff9b::/96) or 6to4 (2002::/16) one.
fn embedded(ip: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(v6) = ip else { return None };
    let [a, b, c, d, e, f, g, h] = v6.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match (a, b, c, d, e, f) {
        (0, 0, 0, 0, 0, 0xffff) | (0x64, 0xff9b, 0, 0, 0, 0) => Some(v4(g, h)),
        (0, 0, 0, 0, 0, 0) if (g, h) > (0, 1) => Some(v4(g, h)),
        (0x2002, high, low, ..) => Some(v4(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_its_link_and_metadata_are_not_called_unless_allowed() {
        for address in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "::1",
            "::",
            "169.254.169.254",
            "169.254.1.1",
            "fe80::1",
            "100.100.100.200",
            "168.63.129.16",
            "fd00:ec2::254",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "::127.0.0.1",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
        ] {
            assert!(refuses(address.parse().unwrap(), &[]).is_some(), "{address}");
        }
        for address in ["10.0.0.1", "192.168.1.1", "172.16.0.1", "8.8.8.8", "fd00::1", "2001:db8::1", "::ffff:10.0.0.1"]
        {
            assert_eq!(refuses(address.parse().unwrap(), &[]), None, "{address}");
        }
        let allowed: Vec<Network> = ["127.0.0.0/8", "fe80::/10"].map(|text| text.parse().unwrap()).to_vec();
        for address in ["127.0.0.1", "127.255.0.1", "::ffff:127.0.0.1", "fe80::9"] {
            assert_eq!(refuses(address.parse().unwrap(), &allowed), None, "{address}");
        }
        assert!(refuses("::1".parse().unwrap(), &allowed).is_some());
        assert!(refuses("169.254.169.254".parse().unwrap(), &allowed).is_some());
    }

    #[test]
    fn a_network_is_an_address_and_its_leading_bits() {
        let all: Network = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains("255.1.2.3".parse().unwrap()) && !all.contains("::1".parse().unwrap()));
        let one: Network = "10.1.2.3".parse().unwrap();
        assert!(one.contains("10.1.2.3".parse().unwrap()) && !one.contains("10.1.2.2".parse().unwrap()));
        assert_eq!(one.to_string(), "10.1.2.3/32");
        for wrong in ["", "x", "10.0.0.0/33", "10.0.0.0/", "::/129", "10.0.0"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
