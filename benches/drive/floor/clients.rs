//! Clients that run one operation at a time, and what a run of them measures.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use benches::process::ProcessStats;
use hdrhistogram::Histogram;
use rand::distr::{Distribution, Uniform};
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::SeedableRng;

use super::{Failure, Operation, Options, Report, System, seconds};

/// Significant digits of latencies.
const DIGITS: u8 = 3;

/// State shared by the clients of a run.
struct Job {
    operation: Operation,
    /// Rows to pick from.
    existing: Uniform<u64>,
    next_row: AtomicU64,
    /// Begin and end of the measured time.
    measured: (Instant, Instant),
}

/// Latencies in nanoseconds of one client's operations that ended in the measured time.
type Latencies = Histogram<u64>;

fn latencies() -> Latencies {
    Histogram::new(DIGITS).expect("so many digits are allowed")
}

/// Drives each of `systems` by a client of its own.
pub(super) async fn run<S: System + 'static>(options: &Options, systems: Vec<S>) -> Result<Report, Failure> {
    let begin = Instant::now() + seconds(options.warm_up)?;
    let end = begin + seconds(options.seconds)?;
    let job = Arc::new(Job {
        operation: options.operation,
        existing: Uniform::new(0, options.rows.max(1))?,
        next_row: AtomicU64::new(options.rows),
        measured: (begin, end),
    });
    let clients: Vec<_> = systems
        .into_iter()
        .zip(0..)
        .map(|(system, seed)| tokio::spawn(work(job.clone(), system, seed)))
        .collect();
    let servers: Vec<ProcessStats> = options.server_pids.iter().copied().map(ProcessStats::of).collect();
    let cpu = || (servers.iter().map(ProcessStats::cpu).sum::<Duration>(), ProcessStats::own().cpu());
    tokio::time::sleep_until(begin.into()).await;
    let before = cpu();
    tokio::time::sleep_until(end.into()).await;
    let after = cpu();
    let mut all = latencies();
    for client in clients {
        all.add(client.await??)?;
    }
    let used = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    let rows = job.next_row.load(Ordering::Relaxed);
    Ok(report(&all, rows, end - begin, used))
}

fn report(all: &Latencies, rows: u64, measured: Duration, (server, client): (Duration, Duration)) -> Report {
    let micros = |share| all.value_at_quantile(share) as f64 / 1e3;
    Report {
        rows,
        operations: all.len(),
        seconds: measured.as_secs_f64(),
        p50_us: micros(0.5),
        p99_us: micros(0.99),
        p999_us: micros(0.999),
        server_cpu_seconds: server.as_secs_f64(),
        client_cpu_seconds: client.as_secs_f64(),
    }
}

/// Operates until the end; the first error ends the run.
async fn work(job: Arc<Job>, mut system: impl System, seed: u64) -> Result<Latencies, Failure> {
    let (mut rng, mut measured) = (ChaCha12Rng::seed_from_u64(seed), latencies());
    let (begin, end) = job.measured;
    let mut now = Instant::now();
    while now < end {
        let row = match job.operation {
            Operation::Insert => job.next_row.fetch_add(1, Ordering::Relaxed),
            Operation::Update | Operation::Read => job.existing.sample(&mut rng),
        };
        let began = Instant::now();
        system.operate(job.operation, row).await?;
        now = Instant::now();
        if now >= begin && now <= end {
            measured.record((now - began).as_nanos() as u64)?;
        }
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_percentiles_in_microseconds() {
        let mut all = latencies();
        (1..=1000).for_each(|us| all.record(us * 1000).unwrap());
        let used = (Duration::from_millis(30), Duration::from_millis(20));
        let report = report(&all, 7, Duration::from_secs(2), used);
        let near = |found: f64, wanted: f64| (found / wanted - 1.0).abs() < 2e-3;
        assert!(near(report.p50_us, 500.0) && near(report.p99_us, 990.0) && near(report.p999_us, 999.0));
        assert_eq!((report.rows, report.operations, report.seconds), (7, 1000, 2.0));
        assert_eq!((report.server_cpu_seconds, report.client_cpu_seconds), (0.03, 0.02));
    }

    /// System that counts the rows it is given and refuses one of them.
    struct Refusing {
        seen: Arc<AtomicU64>,
        refused: u64,
    }

    impl System for Refusing {
        async fn operate(&mut self, _: Operation, row: u64) -> Result<(), Failure> {
            self.seen.fetch_add(1, Ordering::Relaxed);
            if row == self.refused { Err("refused".into()) } else { Ok(()) }
        }
    }

    fn options(operation: Operation) -> Options {
        Options {
            system: super::super::SystemKind::Echo,
            address: String::new(),
            operation,
            clients: 1,
            rows: 100,
            seconds: 0.01,
            warm_up: 0.0,
            server_pids: Vec::new(),
        }
    }

    #[tokio::test]
    async fn inserts_take_new_rows_and_reads_existing_ones() {
        for (operation, refused) in [(Operation::Insert, 0), (Operation::Read, 100)] {
            let seen = Arc::new(AtomicU64::new(0));
            let systems = vec![Refusing { seen: seen.clone(), refused }];
            let report = run(&options(operation), systems).await.unwrap();
            let inserted = report.rows - 100;
            let seen = seen.load(Ordering::Relaxed);
            assert!(seen > 0 && report.operations <= seen);
            assert_eq!(inserted, if operation == Operation::Insert { seen } else { 0 });
        }
    }

    #[tokio::test]
    async fn a_failed_operation_fails_the_run() {
        let systems = vec![Refusing { seen: Arc::default(), refused: 100 }];
        let error = run(&options(Operation::Insert), systems).await.unwrap_err();
        assert_eq!(error.to_string(), "refused");
    }
}
