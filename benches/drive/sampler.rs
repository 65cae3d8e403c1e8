//! A thread that samples the clients' counts and the server four times a second.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use benches::process::ProcessStats;
use benches::server_metrics::ServerCounts;
use engine::sync::Mutex;
use hdrhistogram::Histogram;

use crate::Target;
use crate::report::{Report, Sample};

const EVERY: Duration = Duration::from_millis(250);
/// Significant digits of latencies.
const DIGITS: u8 = 3;

/// Operations done by clients.
pub(crate) struct OpCounts {
    operations: AtomicU64,
    failed: AtomicU64,
    /// Latencies in microseconds since they were last taken.
    latencies: Mutex<Histogram<u64>>,
}

fn latencies() -> Histogram<u64> {
    Histogram::new(DIGITS).expect("so many digits are allowed")
}

impl OpCounts {
    pub(crate) fn new() -> Arc<OpCounts> {
        let latencies = Mutex::new(latencies());
        Arc::new(OpCounts { operations: AtomicU64::new(0), failed: AtomicU64::new(0), latencies })
    }

    /// Counts operations done together, the failed ones among them, and their duration if it is measured.
    pub(crate) fn done(&self, operations: u64, failed: u64, took: Option<Duration>) {
        self.operations.fetch_add(operations - failed, Ordering::Relaxed);
        self.failed.fetch_add(failed, Ordering::Relaxed);
        if let Some(took) = took {
            let mut latencies = self.latencies.lock();
            latencies.record(took.as_micros() as u64).expect("it grows");
        }
    }

    fn take(&self) -> Histogram<u64> {
        let mut held = self.latencies.lock();
        std::mem::replace(&mut *held, latencies())
    }
}

fn milliseconds(latencies: &Histogram<u64>, share: f64) -> f64 {
    latencies.value_at_quantile(share) as f64 / 1e3
}

/// Running sampler thread.
pub(crate) struct Sampler {
    stop: Sender<()>,
    looking: JoinHandle<io::Result<Report>>,
}

impl Sampler {
    /// Starts sampling; the run begins now.
    pub(crate) fn start(target: &Target, tally: Arc<OpCounts>) -> io::Result<Sampler> {
        let mut looker = Looker::new(target.clone(), tally)?;
        let (stop, stopped) = mpsc::channel();
        let looking = thread::spawn(move || {
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                looker.look()?;
            }
            looker.end()
        });
        Ok(Sampler { stop, looking })
    }

    /// Ends the run and returns its report.
    pub(crate) fn end(self) -> io::Result<Report> {
        drop(self.stop);
        self.looking.join().expect("looking does not panic")
    }
}

struct Looker {
    target: Target,
    tally: Arc<OpCounts>,
    process: ProcessStats,
    began: Instant,
    last: Totals,
    samples: Vec<Sample>,
    latencies: Histogram<u64>,
}

#[derive(Clone, Copy)]
struct Totals {
    at: Instant,
    operations: u64,
    written_bytes: u64,
    server: ServerCounts,
}

impl Looker {
    fn new(target: Target, tally: Arc<OpCounts>) -> io::Result<Looker> {
        let process = ProcessStats::of(target.server_pid);
        let server = ServerCounts::ask(target.server_web, target.server)?;
        let (began, written_bytes) = (Instant::now(), process.written_bytes());
        let last = Totals { at: began, operations: 0, written_bytes, server };
        let (samples, latencies) = (Vec::new(), latencies());
        Ok(Looker { target, tally, process, began, last, samples, latencies })
    }

    fn look(&mut self) -> io::Result<()> {
        let now = Totals {
            at: Instant::now(),
            operations: self.tally.operations.load(Ordering::Relaxed),
            written_bytes: self.process.written_bytes(),
            server: ServerCounts::ask(self.target.server_web, self.target.server)?,
        };
        let last = std::mem::replace(&mut self.last, now);
        let latencies = self.tally.take();
        self.samples.push(Sample {
            seconds: (now.at - self.began).as_secs_f64(),
            over_seconds: (now.at - last.at).as_secs_f64(),
            operations: now.operations - last.operations,
            p99_ms: milliseconds(&latencies, 0.99),
            refused: now.server.refused - last.server.refused,
            written_bytes: now.written_bytes.saturating_sub(last.written_bytes),
            resident_bytes: self.process.resident_bytes(),
            bloom_lookups: now.server.blooms - last.server.blooms,
            key_lookups: now.server.keys - last.server.keys,
        });
        self.latencies.add(latencies).map_err(io::Error::other)
    }

    fn end(mut self) -> io::Result<Report> {
        let seconds = self.began.elapsed().as_secs_f64();
        self.look()?;
        let at = |share| milliseconds(&self.latencies, share);
        Ok(Report {
            operations: self.last.operations,
            failed: self.tally.failed.load(Ordering::Relaxed),
            seconds,
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            samples: self.samples,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_all_that_was_counted() {
        let tally = OpCounts::new();
        (1..=1000).for_each(|ms| tally.done(1, 0, Some(Duration::from_millis(ms))));
        tally.done(10, 3, None);
        assert_eq!(tally.operations.load(Ordering::Relaxed), 1007);
        assert_eq!(tally.failed.load(Ordering::Relaxed), 3);
        let latencies = tally.take();
        let near = |share, ms: f64| (milliseconds(&latencies, share) / ms - 1.0).abs() < 1e-3;
        assert!(near(0.5, 500.0) && near(0.99, 990.0) && near(0.999, 999.0));
        assert!(tally.take().is_empty());
    }
}
