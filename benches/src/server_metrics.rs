//! Metrics of a server, from its web port.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(10);

/// Returns a page's body.
pub fn get(web: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(web)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {web}\r\nconnection: close\r\n\r\n")?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    let no_body = || io::Error::other(format!("{web}{path} answered without a body"));
    Ok(reply.split_once("\r\n\r\n").ok_or_else(no_body)?.1.to_string())
}

/// Make of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ServerMake {
    Nyala,
    Kudu,
}

/// Counters of a tablet server since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServerCounts {
    /// Writes rejected because of memory pressure.
    pub refused: f64,
    /// Lookups of the keys of writes in Bloom filters and in key indexes.
    pub blooms: f64,
    pub keys: f64,
}

const KUDU_REFUSED: [&str; 3] = [
    "leader_memory_pressure_rejections",
    "transaction_memory_pressure_rejections",
    "transaction_memory_limit_rejections",
];

const NYALA_REFUSED: [&str; 1] = ["memory_rejections"];

impl ServerCounts {
    /// Reads the counters of a tablet server.
    pub fn ask(web: SocketAddr, whose: ServerMake) -> io::Result<ServerCounts> {
        match whose {
            ServerMake::Nyala => Self::read(web, &NYALA_REFUSED),
            ServerMake::Kudu => Self::read(web, &KUDU_REFUSED),
        }
    }

    fn read(web: SocketAddr, refused: &[&str]) -> io::Result<ServerCounts> {
        let wanted = [refused, &["bloom_lookups", "key_file_lookups"]].concat().join(",");
        let page = get(web, &format!("/metrics?compact=1&metrics={wanted}"))?;
        Ok(ServerCounts::of_page(&serde_json::from_str(&page).map_err(io::Error::other)?, refused))
    }

    /// Reads a page: a list of entities, each with a list of metrics.
    pub fn of_page(page: &Value, refused: &[&str]) -> ServerCounts {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let metrics: Vec<Value> = list(page).iter().flat_map(|entity| list(&entity["metrics"])).collect();
        let sum = |names: &[&str]| {
            let named = |metric: &&Value| metric["name"].as_str().is_some_and(|name| names.contains(&name));
            metrics.iter().filter(named).filter_map(|metric| metric["value"].as_f64()).sum()
        };
        ServerCounts {
            refused: sum(refused),
            blooms: sum(&["bloom_lookups"]),
            keys: sum(&["key_file_lookups"]),
        }
    }
}

/// Returns the sum of the lines of a Prometheus page that begin with `name` and contain `label`.
pub fn sum(page: &str, name: &str, label: &str) -> f64 {
    let lines = page.lines().filter(|line| line.starts_with(name) && line.contains(label));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_summed_over_entities() {
        let page = serde_json::json!([
            {"type": "tablet", "metrics": [
                {"name": "leader_memory_pressure_rejections", "value": 2},
                {"name": "bloom_lookups", "value": 7},
                {"name": "key_file_lookups", "value": 1},
            ]},
            {"type": "tablet", "metrics": [
                {"name": "bloom_lookups", "value": 4},
                {"name": "transaction_memory_pressure_rejections", "value": 1},
            ]},
            {"type": "server", "metrics": []},
        ]);
        assert_eq!(
            ServerCounts::of_page(&page, &KUDU_REFUSED),
            ServerCounts { refused: 3.0, blooms: 11.0, keys: 1.0 }
        );
    }
}
