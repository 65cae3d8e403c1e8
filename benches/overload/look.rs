//! What the server and its process are like now, and since the last look.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use benches::process::Process;
use benches::web;

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
    written: u64,
    server: web::Counts,
}

impl Looker {
    pub fn new(web: SocketAddr, counts: Arc<Counts>) -> Looker {
        let last = Totals { written: Process::own().written_bytes(), ..Totals::default() };
        Looker { web, counts, began: Instant::now(), last, most: u64::MAX }
    }

    pub fn look(&mut self, limit: u64) -> Sample {
        let page = tokio::task::block_in_place(|| web::get(self.web, "/metrics"));
        let page = page.expect("the web port answers");
        let now = Totals {
            rows: self.counts.rows.load(Ordering::Relaxed),
            failed: self.counts.failed.load(Ordering::Relaxed),
            written: Process::own().written_bytes(),
            server: web::Counts::of_nyala(&page),
        };
        let last = std::mem::replace(&mut self.last, now);
        let tracked =
            |name: &str| web::sum(&page, "memory_tracked_bytes{", &format!("tracker=\"{name}\"")) as u64;
        let (held, rows) = (tracked("server"), (now.rows - last.rows).max(1) as f64);
        let most = self.most.max(limit);
        self.most = limit.max(self.most.min(held));
        Sample {
            at: self.began.elapsed(),
            rows: now.rows - last.rows,
            failed: now.failed - last.failed,
            p99: self.p99(),
            refused: now.server.refused - last.server.refused,
            bytes_written: now.written - last.written,
            bloom_lookups: (now.server.blooms - last.server.blooms) / rows,
            key_lookups: (now.server.keys - last.server.keys) / rows,
            tracked: held,
            tablets: tracked("tablets"),
            pages: tracked("page-cache"),
            resident: Process::own().resident_bytes(),
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
