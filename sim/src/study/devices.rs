//! The interconnect and storage study: three replicas, one client and sixteen, by disks and links.

use std::fmt::Write;

use super::setup::{
    DiskModel, LinkModel, MachineModel, StudyArgs, StudyOp, StudyPoint, StudySetup, StudyWorkload, machines,
};

/// 150 MB/s and half a turn of the platter for a sync; flash behind a bus; flash without one. A log is appended to, so
/// nothing seeks.
const HDD: DiskModel = DiskModel { kib_ns: 6_500, sync_ns: 8_000_000 };
const SSD: DiskModel = DiskModel { kib_ns: 2_000, sync_ns: 1_000_000 };
const NVME: DiskModel = DiskModel { kib_ns: 300, sync_ns: 60_000 };
/// Devices of WAL and data.
const DISKS: [(DiskModel, DiskModel); 4] = [(HDD, HDD), (SSD, HDD), (SSD, SSD), (NVME, NVME)];
/// TCP over 40 Gbit/s Ethernet, and over 100 Gbit/s InfiniBand, which carries a quarter more by the study's results.
const LINKS: [LinkModel; 2] = [
    LinkModel { latency_ns: 25_000, bytes_per_ms: 4_000_000 },
    LinkModel { latency_ns: 15_000, bytes_per_ms: 5_000_000 },
];
const CLIENTS: [usize; 2] = [1, 16];
const TABLETS: u32 = 4;
/// Half a second each: some dozens of syncs of the slowest disk.
const MS: u64 = 500;

pub(super) fn setups(args: &StudyArgs) -> Vec<StudySetup> {
    let mut setups = Vec::new();
    for log_sync in [false, true] {
        for (wal, data) in DISKS {
            for link in LINKS {
                setups.extend(CLIENTS.map(|clients| setup(args, log_sync, (wal, data), link, clients)));
            }
        }
    }
    setups
}

fn setup(
    args: &StudyArgs,
    log_sync: bool,
    (wal, data): (DiskModel, DiskModel),
    link: LinkModel,
    clients: usize,
) -> StudySetup {
    let &StudyArgs { cores, message_ns, kib_ns, .. } = args;
    let operations = vec![StudyOp::Insert, StudyOp::Update, StudyOp::Read];
    let work = StudyWorkload { operations, clients, batch: 1, warm_ms: MS / 10, ms: MS };
    let machine = MachineModel { cores, message_ns, kib_ns, wal, data };
    StudySetup { servers: 3, replicas: 3, tablets: TABLETS, log_sync, machine, link, work }
}

/// Returns the page: all latencies and rates, then the study's ratios beside those found here.
pub(super) fn page(args: &StudyArgs, points: &[StudyPoint]) -> String {
    let mut page = format!(
        "# Operations by key, by disks and links\n\nWritten by `cargo sim study devices --out FILE`; do not edit. {} \
         Three servers, three replicas, a table of {TABLETS} tablets, rows as in YCSB. An unsynced write does not wait \
         for the log's disk, as the page cache takes it; the writeback that slowed the study's runs \
         is not modelled. Assumed, \
         as the study does not say: HDD 150 MB/s, 8 ms per sync; SSD 500 MB/s, 1 ms; NVMe 3 GB/s, 60 us; latency 25 us \
         on 40 GbE, 15 us on 100 Gb. The study says that 100 Gb carries a quarter more bytes. \
         Ratios between links follow from \
         those latencies.\n\n\
         | log sync | WAL, data | link | clients | insert, us (rows/s) | update | read |\n\
         |---|---|---|---|---|---|---|\n",
        machines(args)
    );
    for StudyPoint { setup, measured } in points {
        let cells: Vec<String> =
            measured.iter().map(|m| format!("{:.0} ({:.0})", m.p50_us, m.rows_per_second)).collect();
        let sync = if setup.log_sync { "on" } else { "off" };
        let (disks, link) = (disks(&setup.machine), link(setup.link));
        let _ =
            writeln!(page, "| {sync} | {disks} | {link} | {} | {} |", setup.work.clients, cells.join(" | "));
    }
    page + &ratios(points)
}

fn name(device: DiskModel) -> &'static str {
    match device {
        HDD => "HDD",
        SSD => "SSD",
        _ => "NVMe",
    }
}

fn disks(machine: &MachineModel) -> String {
    format!("{}, {}", name(machine.wal), name(machine.data))
}

fn link(link: LinkModel) -> &'static str {
    if link == LINKS[0] { "40 GbE" } else { "100 Gb" }
}

/// Returns the study's ratios and the same two points here: one client, the log not synced, as Kudu had it.
fn ratios(points: &[StudyPoint]) -> String {
    let at = |disks: (DiskModel, DiskModel), link: LinkModel, operation: usize| -> f64 {
        let found = points.iter().find(|StudyPoint { setup, .. }| {
            let same = setup.link == link && (setup.machine.wal, setup.machine.data) == disks;
            same && !setup.log_sync && setup.work.clients == 1
        });
        found.map_or(f64::NAN, |point| point.measured[operation].p50_us)
    };
    let change = |from: f64, to: f64| format!("{:+.0} %", (to / from - 1.0) * 100.0);
    let [slow, fast] = LINKS;
    let (hdd, mixed, ssd) = (DISKS[0], DISKS[1], DISKS[2]);
    let rows = [
        ("insert: 100 Gb for 40 GbE", "-21 %", change(at(ssd, slow, 0), at(ssd, fast, 0))),
        ("update: 100 Gb for 40 GbE, WAL on SSD", "-24 %", change(at(mixed, slow, 1), at(mixed, fast, 1))),
        ("insert: SSD for HDD, 100 Gb", "-16 %", change(at(hdd, fast, 0), at(ssd, fast, 0))),
        ("insert: SSD for HDD, 40 GbE", "-14 %", change(at(hdd, slow, 0), at(ssd, slow, 0))),
        ("insert: all on SSD for the WAL alone", "level", change(at(mixed, fast, 0), at(ssd, fast, 0))),
        ("read: SSD for HDD", "level", change(at(hdd, fast, 2), at(ssd, fast, 2))),
    ];
    let mut table =
        "\nChange of latency, in the study and here:\n\n| | study | here |\n|---|---|---|\n".to_string();
    for (what, study, here) in rows {
        let _ = writeln!(table, "| {what} | {study} | {here} |");
    }
    table
}
