//! Steps of a client trial: what changes at the double.

use std::time::Duration;

use sim_plan::Host;

use super::ClientTrial;
use super::cluster::seconds;
use super::conditions::Condition;
use super::limits::{CLIENT, MASTERS, SERVERS};
use crate::world::World;

/// Most servers out of order at once.
const DISTURBED_SERVERS: usize = 2;

impl ClientTrial {
    pub(super) fn take_step(&mut self) {
        let what = [
            ("server", 30),
            ("leaders off", 20),
            ("leader", 12),
            ("no leader", 2),
            ("member", 6),
            ("ranges", 12),
            ("token", 6),
            ("master", 6),
            ("leader master", 4),
            ("resets", 4),
            ("calm", 8),
        ];
        let what = self.random.weighted(&what);
        let now = self.world.mono().0;
        self.cluster.lock().mark_disturbances(now);
        match what {
            "server" => self.disturb_server(),
            "leaders off" => self.move_leaders_off(),
            "leader" => self.move_leader(),
            "no leader" => self.cluster_tablet(|tablet, _| tablet.leader = None),
            "member" => self.replace_member(),
            "ranges" => self.change_ranges(now),
            "token" => self.cluster.lock().token += 1,
            "master" => self.disturb_master(),
            "leader master" => self.cluster.lock().leader = self.random.below(MASTERS as u64) as usize,
            "resets" => self.reset_connections(),
            _ => self.calm(),
        }
        let now = self.world.mono().0;
        let mut cluster = self.cluster.lock();
        let state = format!("{:.3} s: {what}: {:?} {:?}", seconds(now), cluster.servers, cluster.masters);
        cluster.note(state);
        cluster.mark_disturbances(now);
        if !matches!(what, "calm" | "server" | "master" | "token") {
            cluster.mark_change(now);
        }
    }

    /// Lets all servers serve for a long while, or the present conditions last.
    fn calm(&mut self) {
        if self.random.percent(60) {
            self.heal();
        }
        self.pass(Duration::from_secs(12));
    }

    fn disturb_server(&mut self) {
        let server = self.random.below(SERVERS as u64) as usize;
        let old = self.cluster.lock().servers[server];
        let count = self.cluster.lock().servers.iter().filter(|server| **server != Condition::Fine).count();
        if old != Condition::Fine {
            return self.mend_server(server, old);
        }
        if count >= DISTURBED_SERVERS {
            return;
        }
        let conditions = [
            (Condition::Busy, 20),
            (Condition::Silent, 25),
            (Condition::Slow, 15),
            (Condition::Deaf, 15),
            (Condition::Starting, 15),
            (Condition::Down, 15),
        ];
        let condition = self.random.weighted(&conditions);
        self.cluster.lock().servers[server] = condition;
        if condition == Condition::Down {
            self.world.kill(&Host::Tserver(server as u8).name());
            self.cluster.lock().lose_scanners(server);
        }
    }

    fn mend_server(&mut self, server: usize, old: Condition) {
        self.cluster.lock().servers[server] = Condition::Fine;
        if old == Condition::Down {
            self.world.restart(&Host::Tserver(server as u8).name());
        }
    }

    /// Moves the leaders of servers that are out of order to others.
    fn move_leaders_off(&mut self) {
        let mut cluster = self.cluster.lock();
        let servers = cluster.servers;
        let serves = |server: &usize| servers[*server] == Condition::Fine;
        for tablet in &mut cluster.tablets.all {
            if !tablet.leader.is_some_and(|leader| serves(&leader)) {
                tablet.leader = tablet.replicas.iter().copied().find(serves).or(tablet.leader);
            }
        }
    }

    fn move_leader(&mut self) {
        self.cluster_tablet(|tablet, draw| {
            tablet.leader = Some(tablet.replicas[draw % tablet.replicas.len()])
        });
    }

    /// Replaces a member of a tablet by the server that is none.
    fn replace_member(&mut self) {
        self.cluster_tablet(|tablet, draw| {
            let Some(new) = (0..SERVERS).find(|server| !tablet.replicas.contains(server)) else { return };
            let at = draw % tablet.replicas.len();
            let old = std::mem::replace(&mut tablet.replicas[at], new);
            tablet.leader = tablet.leader.map(|leader| if leader == old { new } else { leader });
        });
    }

    fn cluster_tablet(&mut self, change: impl FnOnce(&mut super::tablets::Tablet, usize)) {
        let mut cluster = self.cluster.lock();
        let live: Vec<usize> = cluster.tablets.live().map(|(number, _)| number).collect();
        if let Some(number) = live.get(self.random.below(live.len() as u64) as usize) {
            change(&mut cluster.tablets.all[*number], self.random.next_u64() as usize % 1_000);
        }
    }

    fn change_ranges(&mut self, now: u64) {
        let mut cluster = self.cluster.lock();
        let change = cluster.tablets.draw_change(&mut self.random);
        change.into_iter().for_each(|change| cluster.change_ranges(change, now));
    }

    fn disturb_master(&mut self) {
        let leader = self.cluster.lock().leader;
        let number =
            if self.random.percent(50) { leader } else { self.random.below(MASTERS as u64) as usize };
        let conditions = [
            Condition::Fine,
            Condition::Busy,
            Condition::Silent,
            Condition::Slow,
            Condition::Deaf,
            Condition::Starting,
        ];
        let condition = self.random.pick(&conditions);
        self.cluster.lock().masters[number] = condition;
    }

    fn reset_connections(&mut self) {
        let server = Host::Tserver(self.random.below(SERVERS as u64) as u8).name();
        self.world.reset_between(CLIENT, &server);
    }

    /// Puts all servers in order, and gives each tablet a leader.
    pub(super) fn heal(&mut self) {
        let now = self.world.mono().0;
        self.cluster.lock().mark_disturbances(now);
        for server in 0..SERVERS {
            let old = self.cluster.lock().servers[server];
            self.mend_server(server, old);
        }
        let mut cluster = self.cluster.lock();
        cluster.masters = [Condition::Fine; MASTERS];
        for tablet in &mut cluster.tablets.all {
            tablet.leader = tablet.leader.or(tablet.replicas.first().copied());
        }
    }
}
