//! `host:port` as text, and the addresses by which others reach a bound one.

use std::net::{IpAddr, SocketAddr};

use engine::error::{Error, Result};

/// Splits `host:port`; an IPv6 host is in brackets. `Invalid` for any other form.
pub fn split_host_port(text: &str) -> Result<(String, u16)> {
    let parts = text.rsplit_once(':').and_then(|(host, port)| {
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        port.parse().ok().filter(|_| !host.is_empty()).map(|port| (host.to_string(), port))
    });
    parts.ok_or_else(|| Error::invalid(format!("{text:?} is not host:port")))
}

/// Splits all names; `Invalid` for the first that is not `host:port`.
pub(super) fn parse_names(names: &[String]) -> Result<Vec<(String, u16)>> {
    names.iter().map(|name| split_host_port(name)).collect()
}

pub(crate) fn join_host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Returns true if an address of `host:port` can only be one of this machine's: a loopback address, or the wildcard,
/// to which a client on this machine may connect.
pub(crate) fn is_local_address(address: &str) -> bool {
    let host = split_host_port(address).map_or_else(|_| address.to_string(), |(host, _)| host);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified())
}

/// Returns the address at which others reach a bound one: with `host`, or the loopback address, instead of a wildcard.
fn reachable(bound: SocketAddr, host: Option<&str>) -> (String, u16) {
    let host = match (bound.ip(), host) {
        (ip, _) if !ip.is_unspecified() => ip.to_string(),
        (_, Some(host)) => host.to_string(),
        (IpAddr::V6(_), None) => "::1".to_string(),
        (IpAddr::V4(_), None) => "127.0.0.1".to_string(),
    };
    (host, bound.port())
}

/// Returns the addresses to register for a bound one: the advertised names, whose port 0 stands for the bound one, or
/// itself if there are none.
pub(super) fn registered(
    bound: SocketAddr,
    names: &[(String, u16)],
    host: Option<&str>,
) -> Vec<(String, u16)> {
    if names.is_empty() {
        return vec![reachable(bound, host)];
    }
    let named = |(host, port): &(String, u16)| (host.clone(), if *port == 0 { bound.port() } else { *port });
    names.iter().map(named).collect()
}
