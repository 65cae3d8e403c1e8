//! Servers in this process under the load of `drive floor`: insert, update and read by key from 16 clients.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use benches::cluster;
use cores_model::{MeasuredRun, Section, SectionWait};
use engine::sync::contention;
use nyala_common::env::os::{OsEnv, OsOptions, decline_huge_pages};
use serde::Deserialize;

use crate::Done;
use crate::machine::{self, BusyCores};
use crate::sites::{self, OperationSites};
use crate::{driver, queues};

/// Tablets of the table that `drive floor` creates.
pub(crate) const TABLETS: u32 = 4;
const CLIENTS: u32 = 16;
/// Rows that are updated and read. All runs have as many, whatever the rate of their inserts: reads of more rows take
/// more CPU.
pub(crate) const ROWS: u64 = 100_000;
/// Time of a step of inserts that prepare these rows.
const STEP_SECONDS: f64 = 1.0;
const SETTINGS: &[(&str, &str)] = &[("log_sync", "false")];
const DRIVE: &str = env!("CARGO_BIN_EXE_drive");

/// Report of `drive floor`, as far as it is used.
#[derive(Deserialize)]
struct DriveReport {
    rows: u64,
    operations: u64,
    seconds: f64,
    p50_us: f64,
    server_cpu_seconds: f64,
    client_cpu_seconds: f64,
}

impl DriveReport {
    fn server_cpu_us(&self) -> f64 {
        self.server_cpu_seconds * 1e6 / self.operations as f64
    }
}

/// Runs every operation on the first `count` cores.
pub(crate) fn runs(count: usize, seconds: f64) -> Done<Vec<MeasuredRun>> {
    let cores = machine::use_cores(count)?;
    decline_huge_pages();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let place = tempfile::tempdir()?;
        let env = OsEnv::new(&OsOptions::default())?;
        let dir = place.path().to_str().ok_or("a temporary folder without a plain path")?;
        let mut cluster = cluster::start(&env, dir, SETTINGS).await?;
        let web = cluster.tablet_servers()[0].web_addr().ok_or("the tablet server has no web port")?;
        let load = Load { cores: &cores, masters: cluster.master_addresses().join(","), web, seconds };
        let rows = load.prepare()?;
        let (update, read) = (load.measure("update", ROWS)?, load.measure("read", ROWS)?);
        let insert = load.measure("insert", rows)?;
        cluster.shutdown().await;
        Ok(vec![insert, update, read])
    })
}

struct Load<'a> {
    cores: &'a [usize],
    masters: String,
    web: SocketAddr,
    seconds: f64,
}

impl Load<'_> {
    /// Inserts at least [`ROWS`] rows; returns their number.
    fn prepare(&self) -> Done<u64> {
        let mut rows = 0;
        while rows < ROWS {
            rows = self.drive("insert", rows, STEP_SECONDS)?.rows;
        }
        Ok(rows)
    }

    /// Measures rate, CPU and queues, then, with the clock on, sites and the I/O driver. `rows` exist before.
    fn measure(&self, operation: &str, rows: u64) -> Done<MeasuredRun> {
        let queues_before = queues::read(self.web)?;
        let busy = BusyCores::begin(self.cores);
        let report = self.drive(operation, rows, self.seconds)?;
        let busy = busy.count();
        let queues_after = queues::read(self.web)?;
        let (sites, driver_share, measured) = self.sites(operation, report.rows)?;
        let mut sections = sites.sections();
        sections.insert(0, io_driver(driver_share * measured.server_cpu_us()));
        let operations = report.operations as f64;
        let own = (report.server_cpu_seconds + report.client_cpu_seconds) / report.seconds;
        Ok(MeasuredRun {
            operation: operation.to_string(),
            cores: self.cores.len() as u32,
            clients: CLIENTS,
            operations: report.operations,
            seconds: report.seconds,
            p50_us: report.p50_us,
            server_cpu_us: report.server_cpu_us(),
            client_cpu_us: report.client_cpu_seconds * 1e6 / operations,
            other_cores: (busy - own).max(0.0),
            sections,
            sites: sites.sites(),
            queues: queues::results(&queues_before, &queues_after, operations),
        })
    }

    /// Drives the servers with the clock on; returns the sites, the driver's share of CPU, and the report.
    fn sites(&self, operation: &str, rows: u64) -> Done<(OperationSites, f64, DriveReport)> {
        let clock_cost_ns = sites::clock_cost_ns();
        contention::begin(sites::clock);
        contention::take();
        let guard = driver::begin()?;
        let report = self.drive(operation, rows, self.seconds)?;
        contention::pause();
        let share = driver::share(&guard)?;
        let operations = report.operations as f64;
        Ok((OperationSites { operations, clock_cost_ns, counts: contention::take() }, share, report))
    }

    fn drive(&self, operation: &str, rows: u64, seconds: f64) -> Done<DriveReport> {
        let mut drive = Command::new(DRIVE);
        drive.args(["floor", "--system", "nyala", "--address", &self.masters, "--operation", operation]);
        drive.args(["--clients", &CLIENTS.to_string(), "--rows", &rows.to_string(), "--warm-up", "0"]);
        drive.args(["--seconds", &seconds.to_string(), "--server-pid", &std::process::id().to_string()]);
        let output = drive.stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            return Err(format!("the load of {operation} ended with {}", output.status).into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

/// Returns the section of the I/O driver: one thread at a time asks for events, and takes those of all connections.
fn io_driver(held_us: f64) -> Section {
    let name = "tokio's I/O driver".to_string();
    Section { name, wait: SectionWait::InQueue, visits: 1.0, held_us, busiest_share: 1.0 }
}
