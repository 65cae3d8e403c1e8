//! The cluster that runbooks are tried on, and the shell that runs their blocks.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::machines::{self, Machine};
use super::page::{Block, Runbook};
use crate::command::CommandLine;
use crate::interop::daemon::Role;
use crate::interop::small_disk::SmallDisk;
use crate::test_cluster::http_get;

const MASTERS: usize = 3;
const TABLET_SERVERS: usize = 5;
/// Rows of the table that must be there after each runbook.
const ROWS: usize = 2000;
/// The tablet server whose disk can be filled.
pub(super) const SMALL_DISK: usize = 2;
/// Longest wait until a failure is noticed.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(30);
const BLOCK_TIMEOUT: Duration = Duration::from_secs(180);

pub(super) struct Site {
    pub dir: PathBuf,
    pub machines: BTreeMap<String, Machine>,
    /// Variables of the page.
    pub variables: BTreeMap<&'static str, String>,
    pub masters: Vec<String>,
    pub tablet_servers: Vec<String>,
    /// Disk of one tablet server; `None` where mounting is not allowed.
    pub small_disk: Option<SmallDisk>,
    control: TcpListener,
}

impl Site {
    /// Starts 3 masters and 5 tablet servers, each on an address of its own, and loads a table.
    pub(super) fn start(program: &Path, dir: &Path) -> Result<Site> {
        let [_, _, middle, low] = std::process::id().to_be_bytes();
        // Other tests of this machine use 127.64 to 127.127.
        let ip = |index: usize| Ipv4Addr::new(127, 200 + index as u8, middle, low.max(1));
        let role = |index| if index < MASTERS { Role::Master } else { Role::TabletServer };
        let all = (0..MASTERS + TABLET_SERVERS)
            .map(|index| Machine::new(program, role(index), ip(index), dir))
            .map(|machine| (machine.ip.to_string(), machine));
        let control = TcpListener::bind("127.0.0.1:0")?;
        control.set_nonblocking(true)?;
        machines::write_programs(&dir.join("bin"), program, control.local_addr()?)?;
        let host = |index: usize| ip(index).to_string();
        let mut site = Site {
            dir: dir.to_path_buf(),
            machines: all.collect(),
            variables: BTreeMap::new(),
            masters: (0..MASTERS).map(host).collect(),
            tablet_servers: (MASTERS..MASTERS + TABLET_SERVERS).map(host).collect(),
            small_disk: None,
            control,
        };
        let small = site.machines[&site.tablet_servers[SMALL_DISK]].dir.join("disk");
        site.small_disk = SmallDisk::mount(&small)?;
        let masters = site.addresses(&site.masters);
        let (hosts, master_hosts) = (site.tablet_servers.join(" "), site.masters.join(" "));
        let tablet_servers = site.addresses(&site.tablet_servers).join(",");
        site.variables.extend([
            ("MASTERS", masters.join(",")),
            ("HOSTS", hosts),
            ("MASTER_HOSTS", master_hosts),
            ("TABLET_SERVERS", tablet_servers),
            ("SCHEME", "http".to_owned()),
        ]);
        for machine in site.machines.values_mut() {
            machine.install(&masters)?;
            machine.start()?;
        }
        site.until_healthy()?;
        site.load()?;
        Ok(site)
    }

    fn addresses(&self, hosts: &[String]) -> Vec<String> {
        hosts.iter().map(|host| self.machines[host].rpc()).collect()
    }

    pub(super) fn machine(&mut self, host: &str) -> Result<&mut Machine> {
        self.machines.get_mut(host).with_context(|| format!("there is no machine {host}"))
    }

    /// Sets the variables that name one server.
    pub(super) fn choose(&mut self, host: &str) -> Result<()> {
        let machine = self.machine(host)?;
        let path = |path: PathBuf| path.display().to_string();
        let variables = [
            ("HOST", host.to_owned()),
            ("SERVER", machine.rpc()),
            ("WAL", path(machine.wal())),
            ("DATA", path(machine.data(1))),
            ("CONF", path(machine.conf())),
        ];
        self.variables.extend(variables);
        Ok(())
    }

    /// Runs a command of nyala, which must succeed; returns its output.
    pub(super) fn nyala(&self, words: &[&str]) -> Result<String> {
        let masters = &self.variables["MASTERS"];
        let output =
            CommandLine::new(self.dir.join("bin/nyala")).args(words).args(["--masters", masters]).output()?;
        ensure!(output.success, "nyala {}:\n{}{}", words.join(" "), output.stdout, output.stderr);
        Ok(output.stdout)
    }

    /// Returns a page of a server.
    pub(super) fn page(&self, host: &str, path: &str) -> Result<String> {
        http_get(&self.machines[host].web(), path)
    }

    /// Waits until a server's log has the text: a failure that no server noticed would make its runbook pass idly.
    pub(super) fn until_logged(&self, host: &str, text: &str) -> Result<()> {
        let begun = Instant::now();
        let log = self.machines[host].dir.join("log");
        while !fs::read_to_string(&log)?.contains(text) {
            ensure!(begun.elapsed() < NOTICE_TIMEOUT, "{host} never logged {text:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Waits until the check finds errors.
    pub(super) fn until_unhealthy(&self) -> Result<()> {
        let begun = Instant::now();
        while self.nyala(&["cluster", "check"]).is_ok() {
            ensure!(begun.elapsed() < NOTICE_TIMEOUT, "the check finds no error");
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    pub(super) fn until_healthy(&self) -> Result<()> {
        self.nyala(&["cluster", "check", "--wait", "120"]).map(drop)
    }

    fn load(&self) -> Result<()> {
        let rows: String = (0..ROWS).map(|row| format!("{row},name {row}\n")).collect();
        let file = self.dir.join("rows.csv");
        fs::write(&file, format!("id,name\n{rows}"))?;
        let columns = ["--column", "id int64", "--column", "name string null"];
        let create = ["table", "create", "accounts", "--hash", "id:3", "--replicas", "3"];
        self.nyala(&[&create[..], &columns].concat())?;
        self.nyala(&["table", "import", "accounts", &file.display().to_string()])?;
        Ok(())
    }

    /// Runs all blocks of a runbook, each in a shell as the page asks for it.
    pub(super) fn follow(&mut self, runbook: &Runbook) -> Result<()> {
        runbook.blocks.iter().try_for_each(|block| {
            self.run(block).with_context(|| format!("the block at node/RUNBOOKS.md:{}", block.line))
        })
    }

    fn run(&mut self, block: &Block) -> Result<()> {
        let path = format!("{}:{}", self.dir.join("bin").display(), std::env::var("PATH")?);
        let mut shell = Command::new("bash")
            .args(["-euo", "pipefail", "-c", &block.script])
            .current_dir(&self.dir)
            .envs(&self.variables)
            .env("PATH", path)
            .env("SITE", &self.dir)
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()?;
        let begun = Instant::now();
        loop {
            machines::serve(&self.control, &mut self.machines)?;
            if let Some(status) = shell.try_wait()? {
                ensure!(status.success(), "it ended with {status}");
                return Ok(());
            }
            if begun.elapsed() > BLOCK_TIMEOUT {
                // The shell leads a group, and its commands are in it.
                CommandLine::new("kill").args(["-KILL", "--", &format!("-{}", shell.id())]).run()?;
                shell.wait()?;
                bail!("it still ran after {} s", BLOCK_TIMEOUT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Checks that all rows are there and that every server is in use again; a machine that was lost is set up again.
    pub(super) fn check(&mut self) -> Result<()> {
        self.until_healthy()?;
        let rows = self.nyala(&["table", "export", "accounts", "-", "--format", "csv"])?;
        let mut rows: Vec<&str> = rows.lines().skip(1).collect();
        rows.sort();
        rows.dedup();
        ensure!(rows.len() == ROWS, "{} of {ROWS} rows are there", rows.len());
        let masters = self.addresses(&self.masters);
        for machine in self.machines.values_mut().filter(|machine| !machine.dir.join("disk").exists()) {
            machine.install(&masters)?;
            machine.start()?;
        }
        let stopped = self.machines.values_mut().find_map(|m| (!m.is_running()).then_some(m.ip));
        ensure!(stopped.is_none(), "{stopped:?} does not run after the runbook");
        self.until_healthy()
    }
}
