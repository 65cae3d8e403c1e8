//! The quiet end: all is acknowledged that is requested, tables are whole and counted, nothing is left elsewhere, a
//! server drains.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::ids::Uuid;

use super::draining;
use super::group::{Group, Member};
use super::listing::Located;
use super::outage::Outage;
use super::script::Script;
use super::settings::{CREATED_WITHIN, SERVERS, SETTLED, TICK, TRUSTED, UNRESPONSIVE};
use super::state::State;

/// Time until masters lead and all tables are whole, and the pause between two looks.
const WHOLE: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_secs(1);
/// Tables that are created while a server is down, and the time in which their tablets come up.
const TABLES: usize = 4;
const COMING_UP: Duration = Duration::from_millis(1_500);
/// Percentage of trials in which another master is to lead as a server drains.
const TRANSFERS: u64 = 30;
/// Tables that are created at last, all of which must succeed.
const LAST_TABLES: usize = 10;
/// Attempts to end the maintenance mode of all servers.
const ATTEMPTS: usize = 20;

impl Script {
    pub(super) async fn end(&mut self) -> Result<(), String> {
        self.note("the quiet end".to_string());
        self.links.env.sleep(UNRESPONSIVE + SETTLED).await;
        // Failed members in maintenance mode are not replaced.
        self.end_maintenance().await?;
        self.until_whole().await?;
        self.look_as_users().await?;
        self.policy = None;
        self.create_in_outage().await?;
        let moves = self.random.percent(TRANSFERS);
        if moves {
            self.transfer().await;
        }
        draining::drain(self, moves).await?;
        self.until_whole().await?;
        let before = self.state.lock().tables.known.len();
        for _ in 0..LAST_TABLES {
            self.create().await?;
        }
        let after = self.state.lock().tables.known.len();
        if after < before + LAST_TABLES {
            let created = after - before;
            return Err(format!("of {LAST_TABLES} tables {created} are created, without faults"));
        }
        self.until_whole().await?;
        self.unregister_server().await
    }

    /// Creates tables while a server is down that masters still take for alive. Once it is back, it must get its
    /// replicas from the masters.
    async fn create_in_outage(&mut self) -> Result<(), String> {
        let server = self.random.below(SERVERS as u64) as usize;
        self.note(format!("server {server} is down while tables are created"));
        self.state.lock().outage = Some(Outage::Begins(server));
        while self.state.lock().outage != Some(Outage::Lasts) {
            self.links.env.sleep(TICK).await;
        }
        for _ in 0..TABLES {
            self.create().await?;
        }
        self.links.env.sleep(COMING_UP).await;
        self.state.lock().outage = Some(Outage::Ends(server));
        self.links.env.sleep(CREATED_WITHIN + SETTLED).await;
        self.until_whole().await
    }

    /// Waits until all tables are whole, and masters and servers agree on them.
    pub(super) async fn until_whole(&mut self) -> Result<(), String> {
        let until = self.links.now().after(WHOLE);
        loop {
            let Err(what) = self.look().await? else { return Ok(()) };
            if self.links.now() > until {
                return Err(format!("after {WHOLE:?} without faults: {what}"));
            }
            self.links.env.sleep(LOOK).await;
        }
    }

    /// Returns what is not whole yet; the outer error is wrong at any time.
    async fn look(&mut self) -> Result<Result<(), String>, String> {
        self.list_tables().await?;
        self.list_servers().await?;
        self.list_masters().await?;
        if let Err(what) = self.check_known() {
            return Ok(Err(what));
        }
        let ids: Vec<String> = self.state.lock().tables.known.keys().cloned().collect();
        let (mut tablets, mut tables) = (BTreeSet::new(), BTreeMap::new());
        for id in ids {
            let answer = self.ask_created(TRUSTED, &id).await;
            self.take_created(&id, answer)?;
            let Some(located) = self.locate(&id).await? else {
                return Ok(Err(format!("table {id} cannot be located")));
            };
            let state = self.state.lock();
            for located in &located {
                if let Err(what) = check_whole(&state, located) {
                    return Ok(Err(what));
                }
            }
            let its: Vec<Uuid> = located.iter().map(|located| located.tablet).collect();
            tablets.extend(its.iter().copied());
            tables.insert(id, its);
        }
        if let Err(what) = self.compare_sums(&tables).await {
            return Ok(Err(what));
        }
        let state = self.state.lock();
        // One whose deletion has no reply may be deleted yet.
        match state.tables.known.values().find(|table| !table.done && !table.ending) {
            Some(table) => Ok(Err(format!("{:?} does not count as created", table.names))),
            None => Ok(check_left(&state, &tablets)),
        }
    }

    /// Returns an error unless all servers reach all masters.
    fn check_known(&self) -> Result<(), String> {
        let (state, now) = (self.state.lock(), self.links.now());
        match state.masters.iter().position(|master| master.alive(now).count() < SERVERS) {
            Some(master) => Err(format!("not all servers reach master {master}")),
            None => Ok(()),
        }
    }

    /// Takes all servers out of maintenance mode.
    async fn end_maintenance(&mut self) -> Result<(), String> {
        for _ in 0..ATTEMPTS {
            let kept: Vec<Uuid> = {
                let state = self.state.lock();
                state.unsure.iter().chain(state.maintenance.keys()).copied().collect()
            };
            let Some(kept) = kept.first() else { return Ok(()) };
            self.set_maintenance(*kept, false).await?;
        }
        Err("no server leaves maintenance mode, without faults".to_string())
    }
}

/// Compares a tablet as masters locate it with its group, which must be whole.
fn check_whole(state: &State, located: &Located) -> Result<(), String> {
    let Some(group) = state.groups.get(&located.tablet) else {
        return Err(format!("{} was never created", located.tablet));
    };
    let voters: BTreeSet<Uuid> = group.voters().map(|voter| voter.id).collect();
    let runs = |member: &Member| state.runs(member.id, &located.tablet);
    let is_whole = voters.len() == group.wanted
        && group.members.len() == voters.len()
        && group.members.iter().all(runs)
        && !group.members.iter().any(|member| member.replace);
    if !is_whole {
        return Err(format!("tablet {} is not whole: {group:?}", located.tablet));
    }
    match located.voters == voters && located.leader == group.leader {
        true => Ok(()),
        false => Err(format!("{located:?} is {group:?}")),
    }
}

/// Returns an error for replicas that belong to no tablet or whose server is no member.
fn check_left(state: &State, tablets: &BTreeSet<Uuid>) -> Result<(), String> {
    for server in &state.servers {
        let is_of = |group: &Group| group.has(server.id());
        let left = |tablet: &&Uuid| !tablets.contains(tablet) || !state.groups.get(tablet).is_some_and(is_of);
        if let Some(left) = server.replicas.keys().find(left) {
            let group = &state.groups[left];
            return Err(format!("{} has a replica of {left}, which it should not: {group:?}", server.id()));
        }
    }
    Ok(())
}
