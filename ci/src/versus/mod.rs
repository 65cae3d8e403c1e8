//! `cargo ci versus`: nyala and real Kudu under the same load, in the same run, round by round.
//!
//! Each round starts on fresh directories, with one client for both: the real `kudu` tool, or `benches/drive`. Log
//! sync is off for both, then on for both. A B A B …: other load on the machine affects both alike.
//!
//! ```text
//!   single.rs      one replica: the default load, two million rows with their scan, a table scan
//!   replicated.rs  three replicas: a load, a master's failover, a tablet copy
//!   idle.rs        and the cost of idle tablets
//!   loadgen.rs     more loads with one replica and three: random keys, batches, a hundred columns
//!   ycsb.rs        YCSB's loads, and its workloads on loaded rows
//!   flush.rs       rows flushed in the background, by number of clients and buffer watermark
//!   latency.rs     insert, update and read by key: one client and 16, the WAL beside the data and elsewhere
//!   security.rs    a load, inserts and connections with TLS, tickets and tokens
//!   lineitem.rs    TPC-H's lineitem, beside Parquet files too
//!   tpch/          TPC-H's 22 queries over nyala, Kudu and Parquet files
//!   floor/         the cheapest servers that do such an operation, and Redis, in place of Kudu
//!   load_driver.rs runs `benches/drive` against a round's cluster: results and costs
//!   round.rs       one round: its server, options and fresh cluster
//!   measure.rs     processes and folders → CPU, memory, bytes; the tool's output → rows and seconds
//!   report.rs      samples → medians, spreads, a report under benches/
//!   charts.rs      reports → charts of throughput, latency and memory beside Kudu
//! ```

mod charts;
mod floor;
mod flush;
mod idle;
mod latency;
mod lineitem;
mod load_driver;
mod loadgen;
mod measure;
mod replicated;
mod report;
mod round;
mod security;
mod single;
mod tpch;
mod ycsb;

use std::path::Path;

use anyhow::{Result, ensure};
use clap::ValueEnum;

use crate::command::{cargo, target_dir};
use crate::interop::packages::Packages;
use crate::interop::{ServerChoice, nyala, server};
use crate::steps::Steps;
use crate::tools::require_kerberos;
use report::{ReportInput, ReportSpec, Sample};
pub(crate) use round::VersusOptions;
use round::{Part, Prepared, PreparedKudu, Turn};

impl Part {
    fn page(self) -> ReportSpec {
        match self {
            Part::Single => single::PAGE,
            Part::Replicated => replicated::PAGE,
            Part::Loadgen => loadgen::PAGE,
            Part::Ycsb => ycsb::PAGE,
            Part::Flush => flush::PAGE,
            Part::Latency => latency::PAGE,
            Part::Lineitem => lineitem::PAGE,
            Part::Security => security::PAGE,
            Part::Tpch => tpch::PAGE,
            Part::Floor => floor::PAGE,
        }
    }

    /// Returns the settings of its rounds.
    fn settings(self, options: &VersusOptions) -> String {
        match self {
            Part::Single | Part::Replicated => String::new(),
            Part::Loadgen => loadgen::settings(options),
            Part::Ycsb => ycsb::settings(options),
            Part::Flush => flush::settings(options),
            Part::Latency => latency::settings(options),
            Part::Lineitem => lineitem::settings(options),
            Part::Security => security::settings(options),
            Part::Tpch => tpch::settings(options),
            Part::Floor => floor::settings(options),
        }
    }

    /// Returns true if `benches/drive` is its client.
    fn is_driven(self) -> bool {
        !matches!(self, Part::Single | Part::Replicated | Part::Loadgen | Part::Tpch)
    }

    /// Returns true if its rounds run Kudu beside nyala.
    fn has_kudu(self) -> bool {
        self != Part::Floor
    }

    /// Returns the settings of log sync that its rounds have.
    fn log_sync(self) -> &'static [bool] {
        if self == Part::Security { &[false] } else { &[false, true] }
    }

    fn turn(self, turn: &Turn<'_>) -> Result<Vec<Sample>> {
        match self {
            Part::Single => single::turn(turn),
            Part::Replicated => replicated::turn(turn),
            Part::Loadgen => loadgen::turn(turn),
            Part::Ycsb => ycsb::turn(turn),
            Part::Flush => flush::turn(turn),
            Part::Latency => latency::turn(turn),
            Part::Lineitem => lineitem::turn(turn),
            Part::Security => security::turn(turn),
            Part::Tpch => anyhow::bail!("its rounds are of queries"),
            Part::Floor => floor::turn(turn),
        }
    }
}

/// Measures and writes the reports.
pub(crate) fn run(root: &Path, options: &VersusOptions, steps: &mut Steps) {
    let options = &match options.settled() {
        Ok(options) => options,
        Err(error) => return steps.run("versus: options", || Err(error)),
    };
    if !options.charts {
        measure_parts(root, options, steps);
    }
    // The charts compare with Kudu.
    if !options.dry && (options.charts || CHARTED.iter().any(|part| options.wants(*part))) {
        steps.run("versus: charts", || charts::draw(root, &CHARTED.map(|part| part.page().path)));
    }
}

/// Parts whose reports are charted together.
const CHARTED: [Part; 5] = [Part::Single, Part::Replicated, Part::Ycsb, Part::Latency, Part::Lineitem];

fn measure_parts(root: &Path, options: &VersusOptions, steps: &mut Steps) {
    let mut prepared = None;
    steps.run("versus: packages and programs", || {
        prepared = Some(prepare(root, options)?);
        Ok(())
    });
    let Some(prepared) = prepared else { return };
    for part in Part::value_variants().iter().copied().filter(|part| options.wants(*part)) {
        match part {
            Part::Tpch => tpch::measure(root, options, &prepared, steps),
            _ => measure(root, options, part, &prepared, steps),
        }
    }
}

fn measure(root: &Path, options: &VersusOptions, part: Part, prepared: &Prepared, steps: &mut Steps) {
    let mut samples = Vec::new();
    for round in 0..options.rounds {
        for log_sync in part.log_sync().iter().copied() {
            let kudu = prepared.kudu.as_ref().filter(|_| part.has_kudu()).map(|kudu| &kudu.server);
            for server in [&prepared.nyala].into_iter().chain(kudu) {
                let name = server.name();
                let sync = if log_sync { "on" } else { "off" };
                steps.run(&format!("versus: round {}, {name}, log sync {sync}", round + 1), || {
                    let Prepared { kudu, drive, target, .. } = prepared;
                    let packages = kudu.as_ref().map(|kudu| &kudu.packages);
                    let turn = Turn { packages, drive, options, server, log_sync, target, kdc: None };
                    samples.extend(part.turn(&turn)?);
                    Ok(())
                });
            }
        }
    }
    let page = part.page();
    steps.run(&format!("versus: {}", page.path), || {
        ensure!(!samples.is_empty(), "nothing was measured");
        let note = if options.note.is_empty() { String::new() } else { format!(" {}", options.note) };
        let settings = part.settings(options) + &note;
        page.write(root, &ReportInput { samples: &samples, rounds: options.rounds, settings }, options.dry)?;
        match part {
            _ if options.dry => Ok(()),
            Part::Ycsb => ycsb::draw(root, prepared),
            Part::Floor => floor::draw(root, &samples),
            _ => Ok(()),
        }
    });
}

fn prepare(root: &Path, options: &VersusOptions) -> Result<Prepared> {
    let target = target_dir()?;
    let wants =
        |has: fn(Part) -> bool| Part::value_variants().iter().any(|part| has(*part) && options.wants(*part));
    if options.wants(Part::Floor) {
        floor::require()?;
    }
    if options.wants(Part::Security) {
        require_kerberos()?;
    }
    let tpch = if options.wants(Part::Tpch) { Some(tpch::build(root, &target, options)?) } else { None };
    // A short run does without Kudu, but where it is compared with nothing else.
    let has_kudu = wants(Part::has_kudu) && !(options.smoke && options.wants(Part::Tpch));
    let kudu = if has_kudu { Some(prepare_kudu(root, &target)?) } else { None };
    let nyala = match &tpch {
        // The debug build of both programs.
        Some(program) if options.smoke && options.nyala.is_none() => tpch::debug_nyala(root, program)?,
        _ => nyala(root, options.nyala.as_deref())?,
    };
    let drive = match &options.drive {
        Some(program) => program.clone(),
        None => target.join("release/drive"),
    };
    if options.drive.is_none() && wants(Part::is_driven) {
        let words = ["build", "--quiet", "--release", "--package", "benches", "--bin", "drive"];
        let kerberos: &[&str] =
            if options.wants(Part::Security) { &["--features", "nyala-common/kerberos"] } else { &[] };
        cargo(root, &[&words, kerberos].concat())?;
    }
    Ok(Prepared { nyala, kudu, drive, tpch, target })
}

fn prepare_kudu(root: &Path, target: &Path) -> Result<PreparedKudu> {
    let packages = Packages::fetch(root, &target.join("interop"))?;
    let server = server(root, ServerChoice::Kudu, None, &packages)?;
    Ok(PreparedKudu { packages, server })
}
