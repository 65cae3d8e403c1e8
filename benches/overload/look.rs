//! What the server and its process are like now, and since the last look.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::load::Counts;

/// How often the server is looked at.
pub const EVERY: Duration = Duration::from_millis(500);

/// One look.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Since the first look.
    pub at: Duration,
    /// Since the last look, as are all that are no levels.
    pub rows: u64,
    pub failed: u64,
    pub p99: Duration,
    pub refused: f64,
    pub bytes_written: u64,
    pub bloom_lookups: f64,
    pub key_lookups: f64,
    /// Levels: bytes tracked, of which rows and of which pages; bytes resident; the limit.
    pub tracked: u64,
    pub tablets: u64,
    pub pages: u64,
    pub resident: u64,
    pub limit: u64,
    /// What may be held: the limit, or what was held when it became less.
    pub most: u64,
}

pub struct Looker {
    web: SocketAddr,
    counts: Arc<Counts>,
    began: Instant,
    last: Totals,
    most: u64,
}

#[derive(Default, Clone, Copy)]
struct Totals {
    rows: u64,
    failed: u64,
    refused: f64,
    written: u64,
    blooms: f64,
    keys: f64,
}

impl Looker {
    pub fn new(web: SocketAddr, counts: Arc<Counts>) -> Looker {
        let last = Totals { written: bytes_written(), ..Totals::default() };
        Looker { web, counts, began: Instant::now(), last, most: u64::MAX }
    }

    pub fn look(&mut self, limit: u64) -> Sample {
        let page = tokio::task::block_in_place(|| metrics(self.web));
        let sum = |name: &str, label: &str| {
            let lines = page.lines().filter(|line| line.starts_with(name) && line.contains(label));
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
        };
        let now = Totals {
            rows: self.counts.rows.load(Ordering::Relaxed),
            failed: self.counts.failed.load(Ordering::Relaxed),
            refused: sum("memory_refusals_total", ""),
            written: bytes_written(),
            blooms: sum("tablet_write_lookups_total", "in=\"bloom\""),
            keys: sum("tablet_write_lookups_total", "in=\"keys\""),
        };
        let last = std::mem::replace(&mut self.last, now);
        let tracked = |name: &str| sum("memory_tracked_bytes{", &format!("tracker=\"{name}\"")) as u64;
        let (held, rows) = (tracked("server"), (now.rows - last.rows).max(1) as f64);
        let most = self.most.max(limit);
        self.most = limit.max(self.most.min(held));
        Sample {
            at: self.began.elapsed(),
            rows: now.rows - last.rows,
            failed: now.failed - last.failed,
            p99: self.p99(),
            refused: now.refused - last.refused,
            bytes_written: now.written - last.written,
            bloom_lookups: (now.blooms - last.blooms) / rows,
            key_lookups: (now.keys - last.keys) / rows,
            tracked: held,
            tablets: tracked("tablets"),
            pages: tracked("page-cache"),
            resident: resident_bytes(),
            limit,
            most,
        }
    }

    fn p99(&self) -> Duration {
        let taken =
            std::mem::take(&mut *self.counts.latencies.lock().expect("nobody panics while holding it"));
        let mut latencies = taken;
        latencies.sort_unstable();
        latencies.get(latencies.len() * 99 / 100).copied().unwrap_or_default()
    }
}

fn metrics(web: SocketAddr) -> String {
    let mut page = String::new();
    let mut stream = TcpStream::connect(web).expect("the web port is open");
    let request = b"GET /metrics HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n";
    stream.write_all(request).and_then(|()| stream.read_to_string(&mut page)).expect("it answers");
    page
}

/// Bytes this process has handed to devices.
fn bytes_written() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|kb| kb.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) << 10
}
