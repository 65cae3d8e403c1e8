//! `nyala backup …` and `nyala restore`: tables to a directory of Parquet files and back; the commands of the program
//! `nyala-backup`, whose locations may be object stores.

use std::sync::Arc;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use engine::error::{Error, ErrorKind, Result};

use super::exit::{ExitError, FAILED, until_interrupted};
use super::export::timestamp;
use super::options::{base, connect, option, text, texts};
use super::output::{print, printed, table as text_table};
use nyala_backup::create::{self, BackupKind, Created, Snapshot, take_snapshot};
use nyala_backup::deep::verify_rows;
use nyala_backup::hold::HistoryHold;
use nyala_backup::manifest::{Manifest, time_text};
use nyala_backup::plan::{missing_base, plan};
use nyala_backup::prune::expired;
use nyala_backup::restore::{self, RestoreRequest, RestoreTarget};
use nyala_backup::storage::{OpenStorage, RunState};
use nyala_backup::store::{BackupStore, StoreListing, StoredBackup};
use nyala_client::Client;
use nyala_common::env::{BoxFuture, Env};
use nyala_common::number_text::{bytes, grouped};

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

const CREATE_HELP: &str = "\
All tables are read at one time, about a second before reading begins. A backup is incremental if the directory has \
one of the table to build on, and if servers still keep the history since then (--tablet_history_max_age_sec, 7 \
days). While a backup runs, servers keep the history that it reads. A table that fails does not stop the others; the \
exit code is 1.";

const RESTORE_HELP: &str = "\
All files are verified first. The table is called NAME.restoring-TIME until it is complete, and then renamed; if the \
restore fails, --resume continues it. A newer backup that is damaged refuses the restore; --until restores an earlier \
state. Backups that Kudu's Spark job wrote can be restored, too.";

/// A parsed command.
pub struct BackupCommand {
    matches: ArgMatches,
    restore: bool,
    /// Storages that are no directories.
    others: Arc<OpenStorage>,
}

fn directory(command: Command) -> Command {
    command.arg(
        Arg::new("dir")
            .value_name("DIR")
            .required(true)
            .help("Directory of the backups, a path or file://PATH"),
    )
}

fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

pub(super) fn commands() -> [Command; 2] {
    let create = directory(base("create", "Back up tables"))
        .after_help(CREATE_HELP)
        .arg(Arg::new("table").value_name("TABLE").num_args(0..).help("Names of the tables"))
        .arg(flag("all", "All tables").conflicts_with("table"))
        .arg(flag("full", "Read all rows").conflicts_with("incremental"))
        .arg(flag("incremental", "Fail if there is no backup to build on"))
        .arg(
            option("parallel", "N", "Tablets read at the same time")
                .default_value("4")
                .value_parser(value_parser!(u64).range(1..=64)),
        );
    let prune = directory(Command::new("prune").about("Remove backups that no restore needs"))
        .arg(
            option("keep", "DAYS", "Days to whose states tables can still be restored, e.g. 30d")
                .required(true)
                .value_parser(days),
        )
        .arg(flag("dry-run", "Only show what would be removed"));
    let backup = Command::new("backup")
        .about("Back up tables to a directory; list, verify and prune backups")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([
            create,
            directory(Command::new("list").about("List backups")),
            directory(Command::new("show").about("Show the backups that restore a table, and their files"))
                .arg(Arg::new("table").value_name("TABLE").required(true).help("Name of the table")),
            directory(Command::new("verify").about("Compare all files with their checksums"))
                .arg(flag("deep", "Also decode all rows, and check the order of their keys")),
            prune,
        ]);
    let restore = directory(base("restore", "Restore a table from its backups"))
        .arg(Arg::new("table").value_name("TABLE").required(true).help("Name of the table in the backup"))
        .arg(option("as", "NAME", "Name of the new table [default: the old one]"))
        .arg(option("until", "TIME", "The newest state until this time, e.g. 2026-01-31T12:00:00Z"))
        .arg(
            option("replicas", "N", "Replicas of each tablet [default: as backed up]")
                .value_parser(value_parser!(i32)),
        )
        .arg(flag("resume", "Complete the table of a restore that failed").conflicts_with("replicas"))
        .arg(
            flag(
                "into-existing",
                "Write to a table that exists: backed-up rows replace its own, others stay",
            )
            .conflicts_with_all(["replicas", "resume"]),
        )
        .arg(flag("dry-run", "Only show which backups would be read"))
        .after_help(RESTORE_HELP);
    [backup, restore]
}

fn days(text: &str) -> Result<u64, String> {
    let number = text.strip_suffix('d').and_then(|days| days.parse().ok());
    let fits = number.filter(|days: &u64| *days < 100_000);
    fits.ok_or_else(|| "give a number of days, for example 30d".to_string())
}

pub(super) fn parse(name: &str, matches: &ArgMatches) -> BackupCommand {
    BackupCommand { matches: matches.clone(), restore: name == "restore", others: Arc::new(|_| None) }
}

/// Returns the command line of a program of its own, whose locations may be object stores.
pub fn program(name: &'static str) -> Command {
    let [backup, restore] = commands();
    backup
        .name(name)
        .about("Back up tables to a directory or an object store, and restore them")
        .subcommand(restore)
}

/// Parses the command line of [`program`].
pub fn parse_program(matches: &ArgMatches, others: Arc<OpenStorage>) -> BackupCommand {
    match matches.subcommand() {
        Some(("restore", of_restore)) => BackupCommand { matches: of_restore.clone(), restore: true, others },
        _ => BackupCommand { matches: matches.clone(), restore: false, others },
    }
}

impl BackupCommand {
    /// Returns the first word of the command and what follows it.
    pub(super) fn words(&self) -> (&'static str, &ArgMatches) {
        (if self.restore { "restore" } else { "backup" }, &self.matches)
    }

    /// Runs the command to its end, or until `stop` is ready.
    pub async fn run_until(self, env: &Env, stop: BoxFuture<'static, ()>) -> Result<(), ExitError> {
        let (watched, closes) = nyala_client::closing::watch(env);
        let done = until_interrupted(stop, self.run(&watched)).await;
        closes.wait(env).await;
        printed(done)
    }

    async fn run(self, env: &Env) -> Result<(), ExitError> {
        if self.restore {
            let store = self.open(env, &self.matches)?;
            return restore_table(env, &store, &self.matches).await;
        }
        let (name, matches) = self.matches.subcommand().expect("clap asks for a command");
        if name == "create" {
            let open = || match self.other(matches)? {
                Some(store) => Ok(store),
                None => BackupStore::create(env, location(matches)),
            };
            return create_backups(env, open, matches).await;
        }
        let store = self.open(env, matches)?;
        match name {
            "list" => Ok(list(&store)?),
            "show" => Ok(show(&store, matches)?),
            "verify" => verify(env, &store, matches.get_flag("deep")).await,
            _ => prune(env, &store, matches),
        }
    }

    fn other(&self, matches: &ArgMatches) -> Result<Option<BackupStore>> {
        BackupStore::open_other(&*self.others, location(matches))
    }

    fn open(&self, env: &Env, matches: &ArgMatches) -> Result<BackupStore> {
        match self.other(matches)? {
            Some(store) => Ok(store),
            None => BackupStore::open(env, location(matches)),
        }
    }
}

fn location(matches: &ArgMatches) -> &str {
    text(matches, "dir").expect("it is required")
}

fn kind_of(manifest: &Manifest) -> String {
    match manifest.is_full() {
        true => "full".to_string(),
        false => format!("since {}", time_text(manifest.from_ms)),
    }
}

async fn create_backups(
    env: &Env,
    open: impl Fn() -> Result<BackupStore>,
    matches: &ArgMatches,
) -> Result<(), ExitError> {
    let named = named_tables(matches).map_err(ExitError::usage)?;
    let client = connect(env, matches).await?;
    let names = match named {
        Some(names) => names,
        None => all_names(&client).await?,
    };
    // Order: the cluster and the names are checked before a directory is created.
    let store = open()?;
    let listing = store.list()?;
    for unreadable in &listing.unreadable {
        eprintln!("nyala: {}", unreadable.error.message);
    }
    let snapshot = take_snapshot(&client, &names).await;
    let held = create::oldest_reads(&snapshot, &listing, requested_kind(matches));
    let (hold, not_held) = HistoryHold::acquire(env, held).await;
    not_held.iter().for_each(|error| eprintln!("nyala: {}", error.message));
    let failures = create_all(&store, &snapshot, &listing, matches).await;
    hold.release().await;
    let (all, as_of) = (snapshot.tables.len(), time_text(snapshot.to_ms));
    print(&format!("{} of {all} tables, as of {as_of}\n", all - failures.len()));
    fail_with(&failures)
}

/// Backs up each table of a snapshot. Returns the failures.
async fn create_all(
    store: &BackupStore,
    snapshot: &Snapshot,
    listing: &StoreListing,
    matches: &ArgMatches,
) -> Vec<String> {
    let parallel = *matches.get_one::<u64>("parallel").expect("it has a default") as usize;
    let kind = requested_kind(matches);
    let mut failures = Vec::new();
    for (name, table) in &snapshot.tables {
        let created = match table {
            Ok(table) => create::create(store, table, snapshot.to_ms, listing, kind, parallel).await,
            Err(error) => Err(error.clone()),
        };
        match created {
            Ok(created) => report_created(name, &created),
            Err(error) => failures.push(format!("table {name}: {}", error.message)),
        }
    }
    failures
}

fn report_created(name: &str, Created { manifest, full_because }: &Created) {
    if let Some(error) = full_because {
        eprintln!(
            "nyala: table {name}: a full backup, because the history since the last one is gone: {}",
            error.message
        );
    }
    let (rows, size) = (grouped(manifest.rows()), bytes(manifest.bytes()));
    print(&format!("backed up {name}: {rows} rows, {size}, {}\n", kind_of(manifest)));
}

fn requested_kind(matches: &ArgMatches) -> BackupKind {
    match (matches.get_flag("full"), matches.get_flag("incremental")) {
        (true, _) => BackupKind::Full,
        (_, true) => BackupKind::Incremental,
        _ => BackupKind::Any,
    }
}

/// Returns the error that lists all failures, if there are any.
fn fail_with(failures: &[String]) -> Result<(), ExitError> {
    match failures.is_empty() {
        true => Ok(()),
        false => Err(ExitError { code: FAILED, message: failures.join("\n") }),
    }
}

/// Returns the names of all tables. A user without rights sees none, and a backup of nothing must not pass as one.
async fn all_names(client: &Client) -> Result<Vec<String>> {
    let tables = client.list_tables(None).await?;
    if tables.is_empty() {
        return Err(Error::not_found(
            "--all: no table is visible to this user, so that nothing was backed up; run it as a user who may read the \
             tables",
        ));
    }
    Ok(tables.into_iter().map(|table| table.name).collect())
}

/// Returns the tables that the command line names, each once; `None` for all.
fn named_tables(matches: &ArgMatches) -> Result<Option<Vec<String>>> {
    if matches.get_flag("all") {
        return Ok(None);
    }
    let mut names: Vec<String> = Vec::new();
    for name in texts(matches, "table") {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_string());
        }
    }
    if names.is_empty() {
        return Err(Error::invalid("no table given; name tables, or give --all"));
    }
    Ok(Some(names))
}

fn list(store: &BackupStore) -> Result<()> {
    let listing = store.list()?;
    let row = |backup: &StoredBackup| {
        let manifest = &backup.manifest;
        let (rows, size) = (grouped(manifest.rows()), bytes(manifest.bytes()));
        vec![manifest.table_name.clone(), time_text(manifest.to_ms), kind_of(manifest), rows, size]
    };
    if listing.backups.is_empty() {
        print("no backups\n");
    } else {
        let header = ["table", "state of", "kind", "rows>", "size>"];
        print(&text_table(&header, listing.backups.iter().map(row)));
    }
    for (dir, _) in &listing.unfinished {
        let state = match store.run_state(dir) {
            RunState::Running => "being written",
            RunState::Unknown => "being written, or interrupted",
            RunState::Ended => "interrupted, no backup",
        };
        print(&format!("{dir}: {state}\n"));
    }
    faults(&listing).iter().for_each(|fault| print(&fault_line(fault)));
    Ok(())
}

/// Returns the errors of backups that no restore can read.
fn faults(listing: &StoreListing) -> Vec<Error> {
    let unreadable = listing.unreadable.iter().map(|unreadable| unreadable.error.clone());
    unreadable.chain(listing.orphans().into_iter().map(missing_base)).collect()
}

/// Shows a backup that no restore can read. One that this user may not read, or of a newer version, may be whole.
fn fault_line(fault: &Error) -> String {
    let state = if fault.kind == ErrorKind::Corrupt { "damaged" } else { "cannot be read" };
    format!("{state}: {}\n", fault.message)
}

fn show(store: &BackupStore, matches: &ArgMatches) -> Result<()> {
    let table = text(matches, "table").expect("it is required");
    print_chain(&plan(&store.list()?, table, None)?);
    Ok(())
}

fn print_chain(chain: &[StoredBackup]) {
    for backup in chain {
        print(&format!("{}: {}\n", backup.dir, kind_of(&backup.manifest)));
        for part in &backup.manifest.parts {
            print(&format!("  {}: {} rows, {}\n", part.file, grouped(part.rows), bytes(part.bytes)));
        }
    }
}

async fn verify(env: &Env, store: &BackupStore, deep: bool) -> Result<(), ExitError> {
    let listing = store.list()?;
    let all = listing.backups.len() + listing.unreadable.len();
    if all == 0 {
        // A mistyped directory must not pass as verified.
        return Err(Error::not_found(format!("{}: no backups in this directory", store.location())).into());
    }
    let mut faults: Vec<String> = faults(&listing).into_iter().map(|fault| fault.message).collect();
    for backup in &listing.backups {
        let verify = || {
            store.verify(backup)?;
            if deep { verify_rows(store, backup) } else { Ok(()) }
        };
        if let Err(error) = env.run(verify).await {
            faults.push(error.message);
        }
    }
    print(&format!("{} read, {}\n", counted(all, "backup"), counted(faults.len(), "fault")));
    fail_with(&faults)
}

fn prune(env: &Env, store: &BackupStore, matches: &ArgMatches) -> Result<(), ExitError> {
    let listing = store.list()?;
    let keep_ms = matches.get_one::<u64>("keep").expect("it is required") * DAY_MS;
    let dirs = expired(store, &listing, env.now().wall.micros / 1000, keep_ms);
    for dir in &dirs {
        if matches.get_flag("dry-run") {
            print(&format!("would remove {dir}\n"));
        } else {
            store.remove(dir)?;
            print(&format!("removed {dir}\n"));
        }
    }
    print(&format!("{} of {} backups stay\n", kept(&listing, &dirs), listing.backups.len()));
    let blocked = |error: &Error| format!("{}; all backups of this table stay", error.message);
    let failures: Vec<String> = listing.unreadable.iter().map(|found| blocked(&found.error)).collect();
    fail_with(&failures)
}

fn kept(listing: &StoreListing, removed: &[String]) -> usize {
    listing.backups.iter().filter(|backup| !removed.contains(&backup.dir)).count()
}

async fn restore_table(env: &Env, store: &BackupStore, matches: &ArgMatches) -> Result<(), ExitError> {
    let until = text(matches, "until").map(|at| timestamp(env, "--until", at));
    let until = until.transpose().map_err(ExitError::usage)?;
    let request = RestoreRequest {
        table: text(matches, "table").expect("it is required").to_string(),
        until_ms: until.map(|at| (at >> 12) / 1000),
        name: text(matches, "as").map(str::to_string),
        replicas: matches.get_one::<i32>("replicas").copied(),
        target: match (matches.get_flag("resume"), matches.get_flag("into-existing")) {
            (true, _) => RestoreTarget::Resumed,
            (_, true) => RestoreTarget::Existing,
            _ => RestoreTarget::New,
        },
    };
    if request.target != RestoreTarget::Existing
        && let Some(name) = &request.name
    {
        restore::check_new_name(name).map_err(ExitError::usage)?;
    }
    let listing = store.list()?;
    warn_of_kudus(&plan(&listing, &request.table, request.until_ms)?);
    if matches.get_flag("dry-run") {
        print_chain(&plan(&listing, &request.table, request.until_ms)?);
        return Ok(());
    }
    let client = connect(env, matches).await?;
    let done = restore::restore(&client, store, &listing, &request).await?;
    if done.resumed > 0 {
        print(&format!("{} restored before\n", counted(done.resumed as usize, "file")));
    }
    let (upserts, deletes) = (grouped(done.upserts), grouped(done.deletes));
    let skipped = match done.skipped {
        0 => String::new(),
        rows => format!(", {} rows of dropped ranges left out", grouped(rows)),
    };
    print(&format!(
        "restored {} as of {} from {}: {upserts} rows written, {deletes} deleted{skipped}\n",
        done.name,
        time_text(done.to_ms),
        counted(done.backups, "backup")
    ));
    Ok(())
}

/// Names the backups of Kudu in a chain.
fn warn_of_kudus(chain: &[StoredBackup]) {
    for backup in chain.iter().filter(|backup| backup.manifest.is_kudus()) {
        let (dir, files) = (&backup.dir, counted(backup.manifest.parts.len(), "file"));
        eprintln!(
            "nyala: {dir}: written by Kudu, without checksums: {files} found, and a file that is missing or changed is \
             not noticed"
        );
    }
}

/// Returns a number of things: "1 backup", "2 backups".
fn counted(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_that_may_not_be_read_is_not_called_damaged() {
        let denied = std::io::Error::from_raw_os_error(libc::EACCES);
        let faults = [
            Error::io("read .kudu-metadata.json", &denied),
            Error::corrupt("its checksum is 1 instead of 2"),
        ];
        insta::assert_snapshot!(faults.iter().map(fault_line).collect::<String>(), @r"
        cannot be read: read .kudu-metadata.json: Permission denied (os error 13)
        damaged: its checksum is 1 instead of 2
        ");
    }
}
