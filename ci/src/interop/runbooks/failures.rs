//! The failure that each runbook is for.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::site::Site;
use crate::interop::faketime;

pub(super) struct Failure {
    /// Title of the section.
    pub title: &'static str,
    /// Makes the failure. Returns false, with the reason printed, where this machine does not allow it.
    pub make: fn(&mut Site) -> Result<bool>,
    /// Checks that belong to this runbook alone, after its blocks.
    pub after: fn(&mut Site) -> Result<()>,
}

const fn failure(title: &'static str, make: fn(&mut Site) -> Result<bool>) -> Failure {
    Failure { title, make, after: |_| Ok(()) }
}

/// Position of a byte in the first records of a log segment.
const LOG_RECORD_AT: usize = 200;

/// In the page's order, which ends with what leaves the least behind.
pub(super) const FAILURES: [Failure; 13] = [
    failure("Rolling restart", |_| Ok(true)),
    Failure { title: "Upgrade", make: |_| Ok(true), after: upgraded },
    failure("Dead tablet server", dead_tablet_server),
    failure("Dead disk", dead_disk),
    failure("Full disk", full_disk),
    failure("Bad clock", bad_clock),
    Failure { title: "Memory pressure", make: memory_pressure, after: memory_is_raised },
    failure("Damaged file", damaged_file),
    failure("Dropped table", dropped_table),
    Failure { title: "Decommission", make: |site| chosen(site, 4), after: decommissioned },
    failure("Lost master", lost_master),
    failure("Lost majority", lost_majority),
    failure("Lost masters", lost_masters),
];

/// Chooses a tablet server as the subject of the page's variables.
fn chosen(site: &mut Site, index: usize) -> Result<bool> {
    let host = site.tablet_servers[index].clone();
    site.choose(&host)?;
    Ok(true)
}

fn host(site: &Site) -> String {
    site.variables["HOST"].clone()
}

fn upgraded(site: &mut Site) -> Result<()> {
    let hosts = site.machines.len();
    let installed = fs::read_to_string(site.dir.join("installed")).context("nothing was installed")?;
    ensure!(installed.lines().count() == hosts, "not every machine was upgraded:\n{installed}");
    Ok(())
}

/// Loses a server in maintenance mode, which the runbook has to end: the masters wait for such a server.
fn dead_tablet_server(site: &mut Site) -> Result<bool> {
    chosen(site, 1)?;
    let host = host(site);
    site.nyala(&["cluster", "maintenance", &format!("{host}:7050"), "on"])?;
    site.machine(&host)?.lose()?;
    site.until_unhealthy()?;
    Ok(true)
}

/// Takes one of two data directories away; the server refuses to start without it.
fn dead_disk(site: &mut Site) -> Result<bool> {
    chosen(site, 0)?;
    let host = host(site);
    let machine = site.machine(&host)?;
    machine.kill();
    fs::remove_dir_all(machine.data(1))?;
    let refused = machine.start().err().context("it starts with a data directory missing")?;
    ensure!(refused.to_string().contains("exit status: 4"), "{refused}");
    Ok(true)
}

fn full_disk(site: &mut Site) -> Result<bool> {
    let index = super::site::SMALL_DISK;
    chosen(site, index)?;
    let Some(disk) = &site.small_disk else { return Ok(false) };
    let bytes = disk.fill()?;
    println!("    {} MB were left", bytes >> 20);
    site.until_logged(&host(site), "hardly any space")?;
    Ok(true)
}

fn bad_clock(site: &mut Site) -> Result<bool> {
    if !faketime::is_installed() {
        println!("    NO CLOCK IS SET WRONG, as libfaketime is not there (apt-get install faketime)");
        return Ok(false);
    }
    chosen(site, 3)?;
    let host = host(site);
    let machine = site.machine(&host)?;
    machine.kill();
    machine.clock_ahead = 3600;
    machine.start()?;
    site.until_unhealthy()?;
    Ok(true)
}

/// Sets the limit so low that the server's own memory is near it.
fn memory_pressure(site: &mut Site) -> Result<bool> {
    chosen(site, 1)?;
    let host = host(site);
    let machine = site.machine(&host)?;
    machine.set("memory_limit_hard_bytes", "67108864")?;
    machine.kill();
    machine.start()?;
    let page = site.page(&host, "/varz?raw")?;
    ensure!(page.contains("memory_limit_hard_bytes=67108864"), "the low limit has no effect:\n{page}");
    Ok(true)
}

fn memory_is_raised(site: &mut Site) -> Result<()> {
    let page = site.page(&host(site), "/varz?raw")?;
    ensure!(page.contains("memory_limit_hard_bytes=4294967296"), "the new limit has no effect:\n{page}");
    Ok(())
}

/// Flips a byte in the log of one replica while its server is down.
fn damaged_file(site: &mut Site) -> Result<bool> {
    chosen(site, 0)?;
    let host = host(site);
    let machine = site.machine(&host)?;
    machine.kill();
    let file = first_file(&first_file(&machine.wal().join("wals"))?)?;
    let mut bytes = fs::read(&file)?;
    bytes[LOG_RECORD_AT] ^= 0x10;
    fs::write(&file, bytes)?;
    machine.start()?;
    site.until_logged(&host, "is damaged at offset")?;
    Ok(true)
}

/// Returns the first entry of a folder by name.
fn first_file(dir: &Path) -> Result<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.sort();
    files.into_iter().next().with_context(|| format!("nothing in {}", dir.display()))
}

fn dropped_table(site: &mut Site) -> Result<bool> {
    site.nyala(&["table", "drop", "accounts", "--yes"])?;
    ensure!(!site.nyala(&["table", "list"])?.contains("accounts"), "the table is still listed");
    Ok(true)
}

fn decommissioned(site: &mut Site) -> Result<()> {
    let host = host(site);
    let machine = site.machine(&host)?;
    ensure!(!machine.is_running(), "it still runs");
    machine.lose()
}

fn lost_master(site: &mut Site) -> Result<bool> {
    let host = site.masters[1].clone();
    site.choose(&host)?;
    site.machine(&host)?.lose()?;
    site.until_unhealthy()?;
    Ok(true)
}

fn lost_majority(site: &mut Site) -> Result<bool> {
    for index in [1, 3] {
        let host = site.tablet_servers[index].clone();
        site.machine(&host)?.lose()?;
    }
    let lost = [1, 3].map(|index| format!("{}:7050", site.tablet_servers[index]));
    site.variables.insert("LOST", lost.join(" "));
    site.until_unhealthy()?;
    Ok(true)
}

fn lost_masters(site: &mut Site) -> Result<bool> {
    for host in site.masters.clone() {
        site.machine(&host)?.lose()?;
    }
    let first = site.masters[0].clone();
    site.choose(&first)?;
    Ok(true)
}
