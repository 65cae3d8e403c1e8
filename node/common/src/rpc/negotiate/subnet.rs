//! Networks that clients may come from.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A network: all addresses whose first `prefix` bits equal those of `address`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet {
    pub address: IpAddr,
    pub prefix: u8,
}

impl Subnet {
    /// Returns the networks of loopback, private and link-local addresses.
    pub fn private() -> Vec<Subnet> {
        let v4 = |a, b, prefix| Subnet { address: Ipv4Addr::new(a, b, 0, 0).into(), prefix };
        let v6 = |first, prefix| Subnet { address: Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 0).into(), prefix };
        vec![
            v4(127, 0, 8),
            v4(10, 0, 8),
            v4(172, 16, 12),
            v4(192, 168, 16),
            v4(169, 254, 16),
            Subnet { address: Ipv6Addr::LOCALHOST.into(), prefix: 128 },
            v6(0xfc00, 7),
            v6(0xfe80, 10),
        ]
    }

    /// Parses `address/prefix`, for example `10.0.0.0/8`.
    pub fn parse(text: &str) -> Result<Subnet, String> {
        let bad = || format!("{text:?} is not a subnet; write it as 10.0.0.0/8");
        let (address, prefix) = text.trim().split_once('/').ok_or_else(bad)?;
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let prefix: u8 = prefix.parse().map_err(|_| bad())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        if prefix > bits { Err(bad()) } else { Ok(Subnet { address, prefix }) }
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        // A dual-stack socket reports an IPv4 client as ::ffff:a.b.c.d.
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(address)) => {
                same_prefix(net.to_bits().into(), address.to_bits().into(), 32, self.prefix)
            }
            (IpAddr::V6(net), IpAddr::V6(address)) => {
                same_prefix(net.to_bits(), address.to_bits(), 128, self.prefix)
            }
            _ => false,
        }
    }
}

/// Returns the network whose connections count as those of one client: an address of IPv4, or a /64 of IPv6, of which
/// one host may have all addresses.
pub fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

fn same_prefix(a: u128, b: u128, bits: u8, prefix: u8) -> bool {
    prefix == 0 || (a ^ b) >> (bits - prefix) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_of_one_host_count_together() {
        let network = |ip: &str| client_network(ip.parse().expect("an address"));
        assert_eq!(network("2001:db8:0:1::1"), network("2001:db8:0:1:ffff:ffff:ffff:ffff"));
        assert_ne!(network("2001:db8:0:1::1"), network("2001:db8:0:2::1"));
        assert_eq!(network("::ffff:10.0.0.1"), network("10.0.0.1"));
        assert_ne!(network("10.0.0.1"), network("10.0.0.2"));
    }

    #[test]
    fn subnets() {
        let private = Subnet::private();
        let trusted = |ip: &str| private.iter().any(|net| net.contains(ip.parse().expect("an address")));
        for ip in ["127.0.0.1", "10.255.0.1", "172.16.0.1", "172.31.255.255", "192.168.3.4", "::1", "fe80::1"]
        {
            assert!(trusted(ip), "{ip}");
        }
        for ip in ["128.0.0.1", "172.32.0.0", "8.8.8.8", "::2", "2001:db8::1", "::ffff:8.8.8.8"] {
            assert!(!trusted(ip), "{ip}");
        }
        assert!(trusted("::ffff:10.0.0.1"), "an IPv4 client of a dual-stack socket");
        let everywhere = Subnet::parse("0.0.0.0/0").expect("a subnet");
        assert!(everywhere.contains("8.8.8.8".parse().expect("an address")));
        for text in ["", "10.0.0.0", "10.0.0.0/33", "x/8", "::/129"] {
            assert!(Subnet::parse(text).is_err(), "{text}");
        }
    }
}
