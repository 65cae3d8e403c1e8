//! Samples of the server and its process, absolute and since the previous sample.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use benches::process::ProcessStats;
use benches::server_metrics::{self, ServerCounts, ServerMake};

use crate::load::LoadCounts;

/// Interval between samples.
pub(crate) const EVERY: Duration = Duration::from_millis(500);

/// One sample.
#[derive(Debug, Clone, Default)]
pub(crate) struct OverloadSample {
    /// Time since the first sample.
    pub at: Duration,
    /// Rows since the previous sample, as all other counts.
    pub rows: u64,
    pub failed: u64,
    pub p99: Duration,
    pub refused: f64,
    pub bytes_written: u64,
    pub bloom_lookups: f64,
    pub key_lookups: f64,
    /// Levels: tracked bytes, of which rows and of which pages; resident bytes; the limit.
    pub tracked: u64,
    pub tablets: u64,
    pub pages: u64,
    pub resident: u64,
    pub limit: u64,
    /// Largest allowed tracked memory: the limit, or the tracked memory when the limit shrank.
    pub most: u64,
}

pub(crate) struct OverloadSampler {
    web: SocketAddr,
    counts: Arc<LoadCounts>,
    began: Instant,
    last: Totals,
    most: u64,
}

#[derive(Default, Clone, Copy)]
struct Totals {
    rows: u64,
    failed: u64,
    written: u64,
    server: ServerCounts,
}

impl OverloadSampler {
    pub(crate) fn new(web: SocketAddr, counts: Arc<LoadCounts>) -> OverloadSampler {
        let last = Totals { written: ProcessStats::own().written_bytes(), ..Totals::default() };
        OverloadSampler { web, counts, began: Instant::now(), last, most: u64::MAX }
    }

    pub(crate) fn look(&mut self, limit: u64) -> OverloadSample {
        let ask = |path: &str| tokio::task::block_in_place(|| server_metrics::get(self.web, path));
        let page = ask("/metrics_prometheus?types=server").expect("the web port answers");
        let server = tokio::task::block_in_place(|| ServerCounts::ask(self.web, ServerMake::Nyala));
        let now = Totals {
            rows: self.counts.rows.load(Ordering::Relaxed),
            failed: self.counts.failed.load(Ordering::Relaxed),
            written: ProcessStats::own().written_bytes(),
            server: server.expect("the web port answers"),
        };
        let last = std::mem::replace(&mut self.last, now);
        let tracked = |name: &str| {
            server_metrics::sum(&page, "nyala_tracked_memory_bytes{", &format!("tracker=\"{name}\"")) as u64
        };
        let held = server_metrics::sum(&page, "kudu_tserver_memory_usage{", "") as u64;
        let rows = (now.rows - last.rows).max(1) as f64;
        let most = self.most.max(limit);
        self.most = limit.max(self.most.min(held));
        OverloadSample {
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
            resident: ProcessStats::own().resident_bytes(),
            limit,
            most,
        }
    }

    fn p99(&self) -> Duration {
        let taken = std::mem::take(&mut *self.counts.latencies.lock());
        let mut latencies = taken;
        latencies.sort_unstable();
        latencies.get(latencies.len() * 99 / 100).copied().unwrap_or_default()
    }
}
