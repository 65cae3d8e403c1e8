//! `nyala debug fs …`: checks the files of a stopped server against each other, and shows its superblocks.
//!
//! ```text
//!   instance ─ superblocks ─ rowset files ─ log ─ consensus metadata       each must be readable and named by another
//! ```

use std::collections::BTreeSet;
use std::fmt;

use clap::{Arg, ArgAction, ArgMatches, Command};
use engine::disk::Disk;
use engine::error::{Error, ErrorKind, Result};
use engine::ids::TabletId;
use engine::replica::{consensus_meta_store, tombstone};
use engine::tablet::flush::data_dir;
use engine::tablet::superblock::{DataState, Superblock};

use super::super::exit::{ExitError, FAILED};
use super::super::output::print;
use super::arguments::{tablet_argument, with_directories};
use super::stopped::{open_replica, open_server, tablets, view, wanted_tablets};
use crate::dirs::{Directory, StoppedServer};
use crate::server::flags::Flags;
use nyala_common::env::Env;

pub(super) fn command() -> Command {
    let switch = |name, help| Arg::new(name).long(name).help(help).action(ArgAction::SetTrue);
    let check = Command::new("check")
        .about("Check all files of a stopped server; exit code 1: rows or logs are damaged")
        .arg(switch("deep", "Also read every page of every file"))
        .arg(switch("repair", "Remove files that nothing refers to; nothing else is changed"));
    let dump =
        Command::new("dump").about("Show the server's identity and superblocks").arg(tablet_argument(false));
    Command::new("fs")
        .about("Check or show the files of a stopped server")
        .subcommand_required(true)
        .subcommands([with_directories(check), with_directories(dump)])
}

pub(super) async fn run(env: &Env, matches: &ArgMatches, flags: &Flags) -> Result<(), ExitError> {
    let (name, matches) = matches.subcommand().expect("clap asks for a command");
    let server = open_server(env, flags).await?;
    match name {
        "check" => {
            let (deep, repair) = (matches.get_flag("deep"), matches.get_flag("repair"));
            if repair && let Some(why) = &server.incomplete {
                // Files of a tablet whose superblock is in another directory look like orphans.
                return Err(ExitError::start(Error::invalid(format!("--repair: {why}"))));
            }
            let report = env.run(|| check(env, &server, deep)).await?;
            print(&report.to_string());
            if repair {
                print(&env.run(|| remove_orphans(&server, &report)).await?);
            }
            match report.errors.len() {
                0 => Ok(()),
                errors => Err(ExitError { code: FAILED, message: format!("{errors} errors") }),
            }
        }
        _ => {
            let wanted = super::super::options::text(matches, "tablet");
            print(&env.run(|| dump(&server, wanted, KeyBounds::Shown)).await?);
            Ok(())
        }
    }
}

/// Result of a check.
#[derive(Default)]
struct FilesReport {
    replicas: usize,
    tombstones: usize,
    files: usize,
    errors: Vec<String>,
    /// Files that nothing refers to, as directory and path.
    orphans: Vec<(String, String)>,
    warnings: Vec<String>,
}

impl fmt::Display for FilesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for error in &self.errors {
            writeln!(f, "ERROR: {error}")?;
        }
        for warning in &self.warnings {
            writeln!(f, "WARNING: {warning}")?;
        }
        for (dir, path) in &self.orphans {
            writeln!(f, "WARNING: {dir}/{path}: nothing refers to it")?;
        }
        writeln!(
            f,
            "{} replicas, {} tombstones, {} files, {} errors, {} orphans",
            self.replicas,
            self.tombstones,
            self.files,
            self.errors.len(),
            self.orphans.len()
        )
    }
}

/// Returns the report of a check that reads every page.
pub(super) fn check_text(env: &Env, server: &StoppedServer) -> Result<String> {
    check(env, server, true).map(|report| report.to_string())
}

fn check(env: &Env, server: &StoppedServer, deep: bool) -> Result<FilesReport> {
    let warnings = server.damaged.iter().chain(&server.incomplete).cloned().collect();
    let mut report = FilesReport { warnings, ..FilesReport::default() };
    let mut seen = BTreeSet::new();
    for (tablet, dir) in tablets(server)? {
        if !seen.insert(tablet) {
            report.errors.push(format!("tablet {tablet} has superblocks in two directories"));
        }
        let found = check_tablet(env, server, &dir, tablet, deep, &mut report);
        found.unwrap_or_else(|error| report.errors.push(format!("tablet {tablet}: {error}")));
    }
    for dir in &server.data {
        let disk = view(dir);
        for name in list(&*disk, "tablet-meta")?.into_iter().filter(|name| name.ends_with(".tmp")) {
            report.orphans.push((dir.path.clone(), format!("tablet-meta/{name}")));
        }
        for (kind, what) in [("data", "rows"), ("consensus-meta", "vote")] {
            for name in list(&*disk, kind)? {
                if name.parse().is_ok_and(|tablet: TabletId| !seen.contains(&tablet)) {
                    let path = &dir.path;
                    let warning = format!("{path}/{kind}/{name}: {what} of a tablet without a superblock");
                    report.warnings.push(warning);
                }
            }
        }
    }
    for name in list(&*view(&server.wal), "wals")? {
        if name.parse().is_ok_and(|tablet: TabletId| !seen.contains(&tablet)) {
            let path = &server.wal.path;
            report.errors.push(format!("{path}/wals/{name}: a log of a tablet without a superblock"));
        }
    }
    Ok(report)
}

fn check_tablet(
    env: &Env,
    server: &StoppedServer,
    dir: &Directory,
    tablet: TabletId,
    deep: bool,
    report: &mut FilesReport,
) -> Result<()> {
    let disk = view(dir);
    let meta = Superblock::load(&*disk, tablet)?;
    let vote = consensus_meta_store::load(&*disk, tablet);
    if meta.data_state != DataState::Ready {
        report.tombstones += 1;
        // A tombstone whose vote is unknown has no metadata either.
        return match vote {
            Err(error) if error.kind == ErrorKind::NotFound && meta.tombstone_last_op.is_none() => Ok(()),
            vote => vote.map(drop),
        };
    }
    report.replicas += 1;
    let known: Vec<&str> = meta.rowsets.iter().flat_map(|rowset| rowset.files()).collect();
    report.files += known.len();
    let rows = data_dir(tablet);
    for name in list(&*disk, &rows)? {
        let path = format!("{rows}/{name}");
        if !known.contains(&path.as_str()) {
            report.orphans.push((dir.path.clone(), path));
        }
    }
    if let Err(error) = vote {
        report.errors.push(format!("tablet {tablet}: {error}"));
        return Ok(());
    }
    let (replica, _log) = open_replica(env, server, dir, tablet)?;
    if deep {
        for file in replica.tablet().open_files() {
            if let Err(error) = file.check_whole() {
                report.errors.push(format!("tablet {tablet}: {error}"));
            }
        }
    }
    Ok(())
}

fn list(disk: &dyn Disk, dir: &str) -> Result<Vec<String>> {
    match disk.list(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        names => names.map_err(|error| Error::io(format_args!("list {dir}"), &error)),
    }
}

/// Removes the orphans of a report, rows of tablets without a superblock, and their logs and votes if the logs are
/// empty. `server` has all directories.
fn remove_orphans(server: &StoppedServer, report: &FilesReport) -> Result<String> {
    let mut removed = 0;
    for (dir, path) in &report.orphans {
        let disk = &server.data.iter().find(|known| known.path == *dir).expect("it was checked").disk;
        disk.remove(path).map_err(|error| Error::io(format_args!("remove {dir}/{path}"), &error))?;
        removed += 1;
    }
    let known: Vec<TabletId> = tablets(server)?.into_iter().map(|(tablet, _)| tablet).collect();
    for dir in &server.data {
        removed += tombstone::remove_strays(&*dir.disk, &known)?;
        removed += tombstone::remove_stray_metadata(&*server.wal.disk, &*dir.disk, &known)?;
    }
    let logs = tombstone::remove_stray_logs(&*server.wal.disk, &known)?;
    Ok(format!("removed {} orphans; {} logs with operations stay\n", removed + logs.removed, logs.kept.len()))
}

/// Treatment of the first and last key of each rowset in a dump: they are cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyBounds {
    Shown,
    LeftOut,
}

/// Returns the server's identity and the superblocks, of all tablets or of the wanted one; `NotFound` if there is none.
pub(super) fn dump(server: &StoppedServer, wanted: Option<&str>, bounds: KeyBounds) -> Result<String> {
    let cluster = server.cluster.map_or("none".to_string(), |cluster| cluster.to_string());
    let mut out =
        format!("{} {}, cluster {cluster}\nWAL {}\n", server.kind.name(), server.uuid, server.wal.path);
    for dir in &server.data {
        out.push_str(&format!("data {}\n", dir.path));
    }
    for (tablet, dir) in wanted_tablets(server, wanted)? {
        match Superblock::load(&*view(&dir), tablet) {
            Ok(mut meta) => {
                if bounds == KeyBounds::LeftOut {
                    meta.rowsets
                        .iter_mut()
                        .flat_map(|it| [&mut it.min_key, &mut it.max_key])
                        .for_each(Vec::clear);
                }
                out.push_str(&format!("\ntablet {tablet} in {}\n{meta:#?}\n", dir.path));
            }
            Err(error) => out.push_str(&format!("\ntablet {tablet} in {}: {error}\n", dir.path)),
        }
    }
    Ok(out)
}
