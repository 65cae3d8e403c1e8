//! The faults of the nemesis.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::super::daemon::Role;
use super::super::proxies::{LinkProxies, Node};
use super::writers::LOADGEN_TABLE;
use super::{Arena, SMALL_DISK_TSERVER};

const SECOND: Duration = Duration::from_secs(1);

impl Arena<'_> {
    /// Applies all faults, one after another.
    pub(super) fn faults(&mut self) -> Result<()> {
        thread::sleep(SECOND * 3);
        self.processes()?;
        self.link_faults()?;
        self.say("replicas are added and removed");
        self.change_config()?;
        self.full_disk()?;
        self.say("a tablet server's directory is wiped");
        self.wipe(3)?;
        thread::sleep(SECOND * 6);
        self.say("kill -9 of a tablet server for longer than it takes to be replaced");
        self.kill_and_start(Role::TabletServer, 1, SECOND * 12)?;
        thread::sleep(SECOND * 3);
        Ok(())
    }

    /// Applies a few faults, each of which ends many connections while tokens and their keys expire.
    pub(super) fn short_faults(&mut self) -> Result<()> {
        thread::sleep(SECOND * 2);
        self.say("kill -9 of a tablet server");
        self.kill_and_start(Role::TabletServer, 0, SECOND * 2)?;
        let leader = eventually(|| self.leading_master())?;
        self.say("kill -9 of the leading master");
        self.kill_and_start(leader.0, leader.1, SECOND * 4)?;
        let leader = eventually(|| self.leading_master())?;
        self.during("the leading master is cut off from the others", |links| {
            others(leader, 3).for_each(|other| links.cut(leader, other));
        })?;
        self.say("every connection is reset, five times");
        for _ in 0..5 {
            self.links()?.reset();
            thread::sleep(SECOND);
        }
        Ok(())
    }

    fn processes(&mut self) -> Result<()> {
        self.say("kill -9 of a tablet server");
        self.kill_and_start(Role::TabletServer, 0, SECOND * 4)?;
        thread::sleep(SECOND * 3);
        self.say("a tablet server stands still");
        self.freeze(Role::TabletServer, 1, SECOND * 3)?;
        thread::sleep(SECOND * 2);
        self.say("kill -9 of each master in turn");
        for index in 0..3 {
            self.kill_and_start(Role::Master, index, SECOND * 2)?;
            thread::sleep(SECOND * 2);
        }
        self.say("a master and a tablet server stand still together");
        self.cluster.daemon(Role::Master, 0)?.signal("STOP")?;
        self.freeze(Role::TabletServer, 2, SECOND * 3)?;
        self.cluster.daemon(Role::Master, 0)?.signal("CONT")?;
        thread::sleep(SECOND * 3);
        Ok(())
    }

    /// Applies network faults between servers. Clients reach every server throughout.
    fn link_faults(&mut self) -> Result<()> {
        let (leader, _) = eventually(|| self.replicas())?;
        self.during("nothing that a leader sends reaches the other tablet servers", |links| {
            others(leader, 4).for_each(|other| links.hold(leader, other));
        })?;
        let (leader, _) = eventually(|| self.replicas())?;
        self.during("nothing reaches a leader from the other tablet servers", |links| {
            others(leader, 4).for_each(|other| links.hold(other, leader));
        })?;
        let (leader, follower) = eventually(|| self.replicas())?;
        self.during("a leader and a follower are cut off from each other", |links| {
            links.cut(leader, follower);
        })?;
        let leader = eventually(|| self.leading_master())?;
        self.during("the leading master is cut off from the others", |links| {
            others(leader, 3).for_each(|other| links.cut(leader, other));
        })?;
        self.during("a tablet server is cut off from the masters", |links| {
            (0..3).for_each(|index| links.cut((Role::TabletServer, 2), (Role::Master, index)));
        })?;
        self.say("every connection is reset, three times");
        for _ in 0..3 {
            self.links()?.reset();
            thread::sleep(SECOND);
        }
        Ok(())
    }

    /// Breaks links for longer than an election takes, then restores them.
    fn during(&self, what: &str, breaks: impl FnOnce(&LinkProxies)) -> Result<()> {
        self.say(what);
        let links = self.links()?;
        links.heal();
        breaks(links);
        thread::sleep(SECOND * 3);
        ensure!(links.heal() > 0, "{what}: nothing was sent that way");
        thread::sleep(SECOND);
        Ok(())
    }

    fn links(&self) -> Result<&LinkProxies> {
        self.cluster.links.as_ref().context("the cluster has no doors")
    }

    /// Returns the servers of the leader and of a follower of a tablet of the loaded table, as the masters know them.
    fn replicas(&self) -> Result<(Node, Node)> {
        let words = ["table", "list", &self.masters, "--list_tablets", &format!("--tables={LOADGEN_TABLE}")];
        let said = self.done(&words)?;
        let (mut leader, mut follower) = (None, None);
        for line in said.lines() {
            match line.split_whitespace().next() {
                Some("T") => (leader, follower) = (None, None),
                Some("L") => leader = self.tserver_in(line),
                Some("V") => follower = self.tserver_in(line),
                _ => {}
            }
            if let (Some(leader), Some(follower)) = (leader, follower) {
                return Ok((leader, follower));
            }
        }
        bail!("no tablet with a leader and a follower in:\n{said}");
    }

    /// Returns the server whose address is in the line.
    fn tserver_in(&self, line: &str) -> Option<Node> {
        let named = |address: String| line.split_whitespace().any(|word| word.contains(&address));
        let index = self.cluster.tservers.iter().position(|server| named(server.spec.address().to_string()));
        index.map(|index| (Role::TabletServer, index))
    }

    fn leading_master(&self) -> Result<Node> {
        let said =
            self.done(&["master", "list", &self.masters, "--columns=role,rpc-addresses", "--format=csv"])?;
        let index = self.cluster.masters.iter().position(|master| {
            let address = master.spec.address().to_string();
            said.lines().any(|line| line.starts_with("LEADER") && line.contains(&address))
        });
        Ok((Role::Master, index.with_context(|| format!("no leader in:\n{said}"))?))
    }

    /// Fills a disk for a while. Its server may react in any way; one that ends is started again.
    fn full_disk(&mut self) -> Result<()> {
        let Some(disk) = &self.disk else { return Ok(()) };
        let bytes = disk.fill()?;
        self.say(&format!("a tablet server's disk is full: {} MB were left", bytes >> 20));
        thread::sleep(SECOND * 5);
        disk.free()?;
        let daemon = self.cluster.daemon(Role::TabletServer, SMALL_DISK_TSERVER)?;
        if let Err(ended) = daemon.check_runs() {
            println!("    {}", ended.to_string().lines().next().unwrap_or_default());
            daemon.kill();
            self.cluster.start_daemon(Role::TabletServer, SMALL_DISK_TSERVER)?;
        }
        thread::sleep(SECOND * 3);
        Ok(())
    }

    fn say(&self, what: &str) {
        println!("    {what}");
    }

    fn kill_and_start(&mut self, role: Role, index: usize, away: Duration) -> Result<()> {
        self.cluster.daemon(role, index)?.kill();
        thread::sleep(away);
        self.cluster.start_daemon(role, index)
    }

    fn freeze(&mut self, role: Role, index: usize, still: Duration) -> Result<()> {
        self.cluster.daemon(role, index)?.signal("STOP")?;
        thread::sleep(still);
        self.cluster.daemon(role, index)?.signal("CONT")
    }

    /// Moves a replica of a tablet to the server that has none, by hand, and asks its leader to step down.
    fn change_config(&self) -> Result<()> {
        let (tablet, members) = self.first_tablet()?;
        let servers = self.servers()?;
        let Some(free) = servers.iter().find(|server| !members.contains(server)) else {
            bail!("tablet {tablet} is on every server of {servers:?}");
        };
        self.tried(&["tablet", "change_config", "add_replica", &self.masters, &tablet, free, "NON_VOTER"]);
        thread::sleep(Duration::from_secs(3));
        self.tried(&["tablet", "change_config", "remove_replica", &self.masters, &tablet, free]);
        self.tried(&["tablet", "leader_step_down", &self.masters, &tablet]);
        thread::sleep(Duration::from_secs(2));
        let (tablet, members) = self.first_tablet()?;
        let free = servers.iter().find(|server| !members.contains(server));
        if let (Some(from), Some(to)) = (members.first(), free) {
            self.tried(&["tablet", "change_config", "move_replica", &self.masters, &tablet, from, to]);
        }
        Ok(())
    }

    /// Returns a tablet of the loaded table and the servers of its replicas.
    fn first_tablet(&self) -> Result<(String, Vec<String>)> {
        let words = ["table", "list", &self.masters, "--list_tablets", &format!("--tables={LOADGEN_TABLE}")];
        let said = self.done(&words)?;
        let mut tablet = None;
        let mut members = Vec::new();
        for line in said.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["T", id, ..] if tablet.is_some() => {
                    let _next = id;
                    break;
                }
                ["T", id, ..] => tablet = Some(id.to_string()),
                ["L" | "V" | "N", server, ..] if tablet.is_some() => members.push(server.to_string()),
                _ => {}
            }
        }
        Ok((tablet.with_context(|| format!("no tablet in:\n{said}"))?, members))
    }

    fn servers(&self) -> Result<Vec<String>> {
        let said = self.done(&["tserver", "list", &self.masters, "--columns=uuid", "--format=csv"])?;
        Ok(said.lines().map(|line| line.trim().to_string()).filter(|uuid| uuid.len() == 32).collect())
    }

    /// Wipes a server's disk: it returns as another server, and its replicas are copied elsewhere. It gets another
    /// address, too: the Java client keeps connections by address, and would take the new server for the old one while
    /// it caches locations.
    fn wipe(&mut self, index: usize) -> Result<()> {
        let before = self.servers()?;
        let daemon = self.cluster.daemon(Role::TabletServer, index)?;
        let rpc = daemon.spec.address().to_string();
        let lost = self.uuid_at(&rpc)?;
        let daemon = self.cluster.daemon(Role::TabletServer, index)?;
        daemon.kill();
        daemon.spec.wipe()?;
        self.cluster.move_daemon(Role::TabletServer, index)?;
        self.cluster.start_daemon(Role::TabletServer, index)?;
        self.say(&format!("{lost} is gone of {} servers", before.len()));
        // It is unresponsive after a while; then the masters can forget it.
        thread::sleep(Duration::from_secs(8));
        self.tried(&["tserver", "unregister", &self.masters, &lost]);
        Ok(())
    }

    fn uuid_at(&self, rpc: &str) -> Result<String> {
        let said =
            self.done(&["tserver", "list", &self.masters, "--columns=uuid,rpc-addresses", "--format=csv"])?;
        let line = said.lines().find(|line| line.contains(rpc));
        let uuid = line.and_then(|line| line.split(',').next());
        Ok(uuid.with_context(|| format!("no server at {rpc} in:\n{said}"))?.to_string())
    }
}

/// Returns the servers of a kind but for one.
fn others(node: Node, count: usize) -> impl Iterator<Item = Node> {
    (0..count).map(move |index| (node.0, index)).filter(move |other| *other != node)
}

/// Polls `look` until it succeeds: elections take time.
fn eventually<T>(mut look: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..20 {
        if let Ok(found) = look() {
            return Ok(found);
        }
        thread::sleep(SECOND);
    }
    look()
}
