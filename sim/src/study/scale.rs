//! The ingest study: rate by number of servers with two tablets on each, and by number of tablets on fourteen servers.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};

use super::setup::{
    DiskModel, LinkModel, MachineModel, StudyArgs, StudyOp, StudyPoint, StudySetup, StudyWorkload, machines,
};
use chart::{BLUE, GRAY, Line};

/// The study's numbers of servers, and smaller ones.
const SERVERS: [u8; 7] = [1, 2, 4, 7, 14, 28, 56];
/// Tablets on [`FEW`] servers.
const TABLETS: [u32; 7] = [7, 14, 28, 42, 56, 112, 224];
const FEW: u8 = 14;
/// Loading sessions for each server. Several, so that their batches do not come in waves.
const SESSIONS: usize = 8;
/// Rows of a batch, as many as the study's bulk inserts had.
const BATCH: u64 = 1_000;
/// Rows of a point, at most, which bounds the time to simulate it.
const ROWS_MAX: u64 = 2_400_000;
/// A local flash disk that is not the bottleneck: 3 GB/s; the log is not synced.
const DISK: DiskModel = DiskModel { kib_ns: 300, sync_ns: 60_000 };
/// 10 Gbit/s between machines of one data centre.
const LINK: LinkModel = LinkModel { latency_ns: 50_000, bytes_per_ms: 1_250_000 };

/// Largest relative difference of the one-server model from the measurements it is made of.
const DISAGREEMENT_MAX: f64 = 0.25;

pub(super) fn setups(args: &StudyArgs) -> Vec<StudySetup> {
    let machine = MachineModel {
        cores: args.cores,
        message_ns: args.message_ns,
        kib_ns: args.kib_ns,
        wal: DISK,
        data: DISK,
    };
    let by_servers = SERVERS.into_iter().map(|servers| (servers, 2 * u32::from(servers)));
    let by_tablets = TABLETS.into_iter().filter(|tablets| *tablets != 2 * u32::from(FEW));
    let points = by_servers.chain(by_tablets.map(|tablets| (FEW, tablets)));
    points.map(|(servers, tablets)| setup(&machine, servers, tablets)).collect()
}

fn setup(machine: &MachineModel, servers: u8, tablets: u32) -> StudySetup {
    // A row is about a KiB: no more of them can reach a server's cores in a millisecond.
    let rows_per_ms = machine.cores as u64 * 1_000_000 / machine.kib_ns.max(1) * u64::from(servers);
    let ms = (ROWS_MAX / rows_per_ms.max(1)).clamp(100, 400);
    let clients = SESSIONS * usize::from(servers);
    let work = StudyWorkload { operations: vec![StudyOp::Insert], clients, batch: BATCH, warm_ms: 60, ms };
    StudySetup { servers, replicas: 1, tablets, log_sync: false, machine: machine.clone(), link: LINK, work }
}

/// Returns the page, with a row for each point.
pub(super) fn page(args: &StudyArgs, points: &[StudyPoint]) -> String {
    let mut page = format!(
        "# Rows loaded by servers and tablets\n\nWritten by `cargo sim study scale --out FILE`; do not edit. {} \
         {SESSIONS} sessions for each server load rows as in YCSB (about 1 KB) in batches of {BATCH}; replication 1, \
         the log is not synced, links of 10 Gbit/s, disks of 3 GB/s. On a real server a row takes {} us of CPU \
         (VERSUS-YCSB.md), so this many cores would load {:.0} rows/s with clients on other machines: the first row \
         of the table. The model's input comes from there too: agreement at one server checks the model's arithmetic \
         and predicts nothing.\n\n\
         ![rows per second by servers](STUDY-SCALE/servers.svg)\n\
         ![rows per second by tablets](STUDY-SCALE/tablets.svg)\n\n\
         | servers | tablets | rows/s | per server | cores busy | links busy | batch p50, ms |\n\
         |---|---|---|---|---|---|---|\n",
        machines(args),
        args.measured_us,
        measured(args)
    );
    let _ = writeln!(page, "| 1, real, by its CPU | | {:.0} | {:.0} | | | |", measured(args), measured(args));
    for StudyPoint { setup, measured } in points {
        let m = &measured[0];
        let _ = writeln!(
            page,
            "| {} | {} | {:.0} | {:.0} | {:.0} % | {:.0} % | {:.1} |",
            setup.servers,
            setup.tablets,
            m.rows_per_second,
            m.rows_per_second / f64::from(setup.servers),
            m.cores_busy * 100.0,
            m.link_busy * 100.0,
            m.p50_us / 1e3
        );
    }
    page
}

/// Returns the rows per second of all cores of one real server.
fn measured(args: &StudyArgs) -> f64 {
    args.cores as f64 * 1e6 / args.measured_us
}

/// Checks that one server reaches the rate that follows from the measurements.
pub(super) fn check(args: &StudyArgs, points: &[StudyPoint]) -> Result<()> {
    let one = points.iter().find(|point| point.setup.servers == 1).context("no point of one server")?;
    let (rate, real) = (one.measured[0].rows_per_second, measured(args));
    let agrees = (rate / real - 1.0).abs() < DISAGREEMENT_MAX;
    ensure!(agrees, "{rate:.0} rows/s on one modelled server, where a real one's CPU allows {real:.0}");
    Ok(())
}

/// Draws the charts: rate by servers, beside the multiple of one server, and by tablets on a few.
pub(super) fn draw(folder: &Path, points: &[StudyPoint]) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let million = |point: &StudyPoint| point.measured[0].rows_per_second / 1e6;
    let by_servers = &points[..SERVERS.len()];
    let servers = |point: &StudyPoint| f64::from(point.setup.servers);
    let one = million(&points[0]);
    let title = "million rows per second, two tablets on each server";
    let lines = [
        line("multiple of one server", GRAY, by_servers, servers, |point| one * servers(point)),
        line("modelled servers", BLUE, by_servers, servers, million),
    ];
    let drawn = chart::draw_over("servers", &folder.join("servers.svg"), title, &lines);
    drawn.map_err(|error| anyhow!("drawing: {error}"))?;
    let on_few: Vec<StudyPoint> = points.iter().filter(|point| point.setup.servers == FEW).cloned().collect();
    let tablets = |point: &StudyPoint| f64::from(point.setup.tablets);
    let title = format!("million rows per second on {FEW} servers");
    let lines = [line("modelled servers", BLUE, &on_few, tablets, million)];
    let drawn = chart::draw_over("tablets", &folder.join("tablets.svg"), &title, &lines);
    drawn.map_err(|error| anyhow!("drawing: {error}"))
}

/// Returns the points as a line with `x` by point.
fn line<'a>(
    label: &'a str,
    colour: chart::Colour,
    points: &[StudyPoint],
    x: impl Fn(&StudyPoint) -> f64,
    y: impl Fn(&StudyPoint) -> f64,
) -> Line<'a> {
    let mut points: Vec<(f64, f64)> = points.iter().map(|point| (x(point), y(point))).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    Line { label, colour, points }
}
