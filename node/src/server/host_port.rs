//! `host:port` as text.

use engine::error::{Error, Result};

/// Splits `host:port`; an IPv6 host is in brackets. `Invalid` for any other form.
pub fn split_host_port(text: &str) -> Result<(String, u16)> {
    let parts = text.rsplit_once(':').and_then(|(host, port)| {
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        port.parse().ok().filter(|_| !host.is_empty()).map(|port| (host.to_string(), port))
    });
    parts.ok_or_else(|| Error::invalid(format!("{text:?} is not host:port")))
}

pub(super) fn join_host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
