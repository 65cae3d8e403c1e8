//! The end of a server in the quiet end: it never starts again, all masters unregister it, and leadership moves
//! away and back.
//!
//! No master that leads afterwards may list it: each of them has forgotten it, and no heartbeat of it is on its way.
//! There is no verdict unless each master has acknowledged the request in one and the same leadership.

use std::time::Duration;

use engine::ids::Uuid;
use nyala_common::rpc::client::RpcError;
use nyala_proto::kudu::master::list_tablet_servers_response_pb::Entry;
use nyala_proto::kudu::master::{
    ListTabletServersRequestPb, ListTabletServersResponsePb, UnregisterTServerRequestPb,
    UnregisterTServerResponsePb,
};

use super::outage::Outage;
use super::script::{Answer, Script};
use super::settings::{MASTERS, SERVERS, SETTLED, TRUSTED, UNRESPONSIVE};

/// Percentage of trials that end with a server that is unregistered, and of these with one that is unregistered by
/// force.
const UNREGISTERS: u64 = 50;
const FORCED: u64 = 50;
/// Attempts to let leadership move away and back, and the time in which another master comes to lead.
const ATTEMPTS: usize = 6;
const PAUSE: Duration = Duration::from_millis(500);
/// Time after which masters take a server for dead: its last heartbeat may arrive after its end.
const DEAD: Duration = Duration::from_secs(2).saturating_add(UNRESPONSIVE);

impl Script {
    /// In some trials, unregisters a server that never starts again. Nothing may follow that needs all servers.
    pub(super) async fn unregister_server(&mut self) -> Result<(), String> {
        if !self.random.percent(UNREGISTERS) {
            return Ok(());
        }
        let number = self.random.below(SERVERS as u64) as usize;
        let force = self.random.percent(FORCED);
        let id = {
            let mut state = self.state.lock();
            state.outage = Some(Outage::Begins(number));
            state.servers[number].id()
        };
        self.links.env.sleep(if force { SETTLED } else { DEAD }).await;
        match self.unregister_at_all(id, force).await {
            Some(leader) => self.check_next_leaders(id, leader).await,
            None => Ok(()),
        }
    }

    /// Asks each master to forget a server; returns the leader, if all of them have in its leadership.
    async fn unregister_at_all(&mut self, id: Uuid, force: bool) -> Option<usize> {
        let leader = self.leader().await?;
        let before = self.state.lock().leadership;
        let request = UnregisterTServerRequestPb {
            uuid: Some(id.to_string()),
            force_unregister_live_tserver: Some(force),
        };
        let mut forgotten = 0;
        for master in 0..MASTERS {
            let reply: Result<UnregisterTServerResponsePb, RpcError> =
                self.links.call(master, "UnregisterTServer", &request).await;
            forgotten += usize::from(matches!(&reply, Ok(reply) if reply.error.is_none()));
            let error = reply.map(|reply| reply.error);
            self.note(format!("{id} is to be unregistered at master {master}, force {force}: {error:?}"));
        }
        let is_same = before == self.state.lock().leadership && before.is_some_and(|of| of.master == leader);
        (is_same && forgotten == MASTERS).then_some(leader)
    }

    /// Lets another master lead and then the same one again, and lists servers each time.
    async fn check_next_leaders(&mut self, id: Uuid, leader: usize) -> Result<(), String> {
        let mut has_moved = false;
        for _ in 0..ATTEMPTS {
            match has_moved {
                false => self.transfer().await,
                true => self.transfer_to(leader).await,
            }
            self.links.env.sleep(PAUSE).await;
            let request = ListTabletServersRequestPb::default();
            let answer: Answer<ListTabletServersResponsePb> =
                self.ask(TRUSTED, "ListTabletServers", &request).await;
            let Answer::Done { master, reply } = answer else { continue };
            check_forgotten(&reply.servers, id).map_err(|what| format!("master {master}: {what}"))?;
            if has_moved && master == leader {
                self.note(format!("{id} is unregistered, and master {master} leads again without it"));
                return Ok(());
            }
            has_moved |= master != leader;
        }
        Ok(())
    }
}

/// Returns an error if a list has a server that was unregistered.
fn check_forgotten(listed: &[Entry], id: Uuid) -> Result<(), String> {
    let is_it = |entry: &&Entry| Uuid::parse(&entry.instance_id.permanent_uuid) == Ok(id);
    match listed.iter().find(is_it) {
        Some(entry) => Err(format!("{id} was unregistered and is dead, and is listed: {entry:?}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use nyala_common::wire::schema::id_bytes;
    use nyala_proto::kudu::NodeInstancePb;

    use super::*;

    #[test]
    fn a_list_without_the_unregistered_server_is_right() {
        let entry = |number: u8| Entry {
            instance_id: NodeInstancePb { permanent_uuid: id_bytes(&Uuid([number; 16])), instance_seqno: 1 },
            ..Entry::default()
        };
        let listed = [entry(1), entry(2)];
        assert_eq!(check_forgotten(&listed, Uuid([3; 16])), Ok(()));
        assert!(check_forgotten(&listed, Uuid([2; 16])).is_err());
    }
}
