//! `cargo ci upgrade`: a cluster of an older program is upgraded server by server under load, goes back, is upgraded
//! again and finalized; then the older program is refused.
//!
//! ```text
//!   3 masters, 3 tablet servers   load.rs: rows are written all the time
//!   old ──▶ new ──▶ old ──▶ new ── finalize ──▶ every server stores the level ──▶ old: exit code 4
//!   each step: TERM, start, `nyala cluster check`
//! ```
//!
//! At the end all acknowledged rows are there and no others, a restart of all servers changes none, and the replicas of
//! each tablet hold the same rows.

mod load;
mod program;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;

use super::cluster::{Cluster, ClusterPlan};
use super::daemon::{Role, ServerKind};
use crate::command::{CommandLine, Output, target_dir};
use crate::steps::Steps;
use load::Load;

#[derive(Args)]
pub(crate) struct UpgradeOptions {
    /// Path of the older program
    #[arg(long, value_name = "PROGRAM", required_unless_present = "from", conflicts_with = "from")]
    old: Option<PathBuf>,
    /// Tag or commit whose program is the older one: it is built in a folder under target
    #[arg(long, value_name = "COMMIT")]
    from: Option<String>,
    /// Path of the newer program [default: the one of this source tree, which is built]
    #[arg(long, value_name = "PROGRAM")]
    new: Option<PathBuf>,
}

const MASTERS: usize = 3;
const TABLET_SERVERS: usize = 3;
/// Longest wait for a healthy cluster, in seconds.
const HEALTHY_SECONDS: &str = "120";
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Exit code of a server that refuses its directories.
const REFUSED: i32 = 4;
/// Offset of the format's version in an `instance` file, and the first version that records a level.
const VERSION_AT: usize = 4;
const WITH_LEVEL: u8 = 3;

/// Runs an upgrade as steps.
pub(crate) fn run(root: &Path, options: &UpgradeOptions, steps: &mut Steps) {
    let mut programs = None;
    steps.run("upgrade: the programs", || {
        let old = match (&options.old, &options.from) {
            (Some(program), _) => program.clone(),
            (None, Some(commit)) => program::of_commit(root, commit)?,
            (None, None) => anyhow::bail!("name the older program: --old PROGRAM or --from COMMIT"),
        };
        let new = match &options.new {
            Some(program) => program.clone(),
            None => program::of_tree(root)?,
        };
        println!("    from {}to   {}", program::version(&old)?, program::version(&new)?);
        programs = Some((old, new));
        Ok(())
    });
    let Some((old, new)) = programs else { return };
    steps.run("upgrade: there, back, there again, finalize", || {
        let folder = target_dir()?.join("upgrade");
        fs::create_dir_all(&folder)?;
        let dir = tempfile::Builder::new().prefix("run-").tempdir_in(&folder)?;
        let result = Upgrade::begin(&old, &new, dir.path()).and_then(Upgrade::run);
        if result.is_err() {
            eprintln!("what the servers left is in {}", dir.keep().display());
        }
        result
    });
}

struct Upgrade {
    cluster: Cluster,
    old: ServerKind,
    new: ServerKind,
    /// Program of the commands.
    tool: PathBuf,
    masters: String,
    load: Load,
    begun: Instant,
}

impl Upgrade {
    /// Starts a cluster of the old program, and the load.
    fn begin(old: &Path, new: &Path, dir: &Path) -> Result<Upgrade> {
        let flags = |flags: &[&str]| flags.iter().map(|flag| flag.to_string()).collect();
        let plan = ClusterPlan {
            masters: MASTERS,
            tablet_servers: TABLET_SERVERS,
            master_gflags: flags(&["--raft_heartbeat_interval_ms=200"]),
            tserver_gflags: flags(&["--raft_heartbeat_interval_ms=200", "--heartbeat_interval_ms=300"]),
            ..ClusterPlan::default()
        };
        let (old, tool) = (ServerKind::Nyala(old.to_owned()), new.to_owned());
        let cluster = Cluster::started(old.clone(), dir, &plan)?;
        let masters = cluster.master_addresses();
        let begun = Instant::now();
        let load = Load::start(&tool, &masters, dir)?;
        Ok(Upgrade { cluster, old, new: ServerKind::Nyala(tool.clone()), tool, masters, load, begun })
    }

    fn run(mut self) -> Result<()> {
        let (old, new) = (self.old.clone(), self.new.clone());
        self.replace_all("upgraded", &new)?;
        self.replace_all("back", &old)?;
        for index in 0..MASTERS {
            self.replace(Role::Master, index, &new)?;
        }
        self.check_refusal()?;
        for index in 0..TABLET_SERVERS {
            self.replace(Role::TabletServer, index, &new)?;
        }
        self.say("upgraded again");
        self.finalize()?;
        let rows = self.load.stop()?;
        let before = self.rows()?;
        ensure!(before.len() as u64 == rows, "{} rows are there, {rows} were acknowledged", before.len());
        self.replace_all("restarted", &new)?;
        ensure!(self.rows()? == before, "a restart changed the rows");
        self.refuse_old()?;
        ensure!(self.rows()? == before, "the attempt of the old program changed the rows");
        self.compare_replicas()?;
        self.say(&format!("{rows} rows are there, as written"));
        Ok(())
    }

    /// Stops the tablet servers and compares the rows that each has of every tablet.
    fn compare_replicas(&mut self) -> Result<()> {
        for index in 0..TABLET_SERVERS {
            self.stop(Role::TabletServer, index)?;
        }
        let servers = self.cluster.tservers.iter().map(|daemon| self.stored_rows(&daemon.spec.wal_dir()));
        let servers = servers.collect::<Result<Vec<_>>>()?;
        ensure!(!servers[0].is_empty(), "the tablet servers have no tablets");
        ensure!(
            servers.iter().all(|rows| *rows == servers[0]),
            "the replicas of a tablet have different rows"
        );
        Ok(())
    }

    /// Returns the sorted rows of each tablet of a stopped server.
    fn stored_rows(&self, wal: &Path) -> Result<BTreeMap<String, Vec<String>>> {
        let debug = |words: &[&str]| -> Result<String> {
            let dirs = [OsStr::new("--fs-wal-dir"), wal.as_os_str()];
            let command = CommandLine::new(&self.tool).args(["debug", "replica"]).args(words).args(dirs);
            let output = command.output()?;
            ensure!(output.success, "nyala debug replica {}:\n{}", words.join(" "), output.stderr);
            Ok(output.stdout)
        };
        let list = debug(&["list"])?;
        let tablets = list.lines().skip(1).filter(|line| line.contains(" READY "));
        let tablets = tablets.filter_map(|line| line.split_whitespace().next());
        let rows = |tablet: &str| -> Result<(String, Vec<String>)> {
            let mut rows: Vec<String> = debug(&["dump", tablet])?.lines().map(str::to_owned).collect();
            rows.sort();
            Ok((tablet.to_owned(), rows))
        };
        tablets.map(rows).collect()
    }

    fn say(&self, what: &str) {
        println!("    {:4} s {what}", self.begun.elapsed().as_secs());
    }

    fn output(&self, words: &[&str]) -> Result<Output> {
        CommandLine::new(&self.tool).args(words).args(["--masters", &self.masters]).output()
    }

    /// Runs a command of nyala, which must succeed; returns its output.
    fn nyala(&self, words: &[&str]) -> Result<String> {
        let output = self.output(words)?;
        ensure!(output.success, "nyala {}:\n{}{}", words.join(" "), output.stdout, output.stderr);
        Ok(output.stdout)
    }

    fn replace_all(&mut self, what: &str, server: &ServerKind) -> Result<()> {
        for index in 0..MASTERS {
            self.replace(Role::Master, index, server)?;
        }
        for index in 0..TABLET_SERVERS {
            self.replace(Role::TabletServer, index, server)?;
        }
        self.load.check_runs()?;
        self.say(what);
        Ok(())
    }

    /// Stops one server and starts it with another program.
    fn replace(&mut self, role: Role, index: usize, server: &ServerKind) -> Result<()> {
        self.stop(role, index)?;
        self.cluster.server = server.clone();
        self.cluster.start_daemon(role, index)?;
        self.nyala(&["cluster", "check", "--wait", HEALTHY_SECONDS]).map(drop)
    }

    fn stop(&mut self, role: Role, index: usize) -> Result<()> {
        let daemon = self.cluster.daemon(role, index)?;
        daemon.signal("TERM")?;
        let code = daemon.exit_code_within(STOP_TIMEOUT)?;
        ensure!(code == Some(0), "{role:?} {index} ended with {code:?} after TERM:\n{}", daemon.log_tail());
        Ok(())
    }

    /// Checks that the level is not raised while a tablet server has the old program.
    fn check_refusal(&self) -> Result<()> {
        let refused = self.output(&["cluster", "upgrade", "finalize"])?;
        let named = refused.stderr.contains("the program of tablet server");
        ensure!(
            !refused.success && named,
            "finalize beside old servers:\n{}{}",
            refused.stdout,
            refused.stderr
        );
        Ok(())
    }

    fn finalize(&self) -> Result<()> {
        print!("{}", self.nyala(&["cluster", "upgrade", "status"])?);
        print!("{}", self.nyala(&["cluster", "upgrade", "finalize"])?);
        let begun = Instant::now();
        while !self.stored_versions()?.iter().all(|version| *version >= WITH_LEVEL) {
            let stored = self.stored_versions()?;
            ensure!(begun.elapsed() < START_TIMEOUT, "not every server stores the level: {stored:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
        self.say("finalized");
        Ok(())
    }

    /// Returns the versions of the servers' `instance` files.
    fn stored_versions(&self) -> Result<Vec<u8>> {
        let daemons = self.cluster.masters.iter().chain(&self.cluster.tservers);
        daemons.map(|daemon| Ok(fs::read(daemon.spec.wal_dir().join("instance"))?[VERSION_AT])).collect()
    }

    /// Checks that the old program starts with no server's directories.
    fn refuse_old(&mut self) -> Result<()> {
        for (role, count) in [(Role::Master, MASTERS), (Role::TabletServer, TABLET_SERVERS)] {
            for index in 0..count {
                self.stop(role, index)?;
                self.cluster.server = self.old.clone();
                self.cluster.launch(role, index)?;
                let daemon = self.cluster.daemon(role, index)?;
                let code = daemon.exit_code_within(START_TIMEOUT)?;
                ensure!(code == Some(REFUSED), "the old program ended with {code:?}:\n{}", daemon.log_tail());
                self.cluster.server = self.new.clone();
                self.cluster.start_daemon(role, index)?;
                self.nyala(&["cluster", "check", "--wait", HEALTHY_SECONDS])?;
            }
        }
        self.say("the old program is refused");
        Ok(())
    }

    /// Returns all rows, sorted.
    fn rows(&self) -> Result<Vec<String>> {
        let text = self.nyala(&["table", "export", load::TABLE, "-", "--format", "csv"])?;
        let mut rows: Vec<String> = text.lines().skip(1).map(str::to_owned).collect();
        rows.sort();
        Ok(rows)
    }
}
