//! Last replies of the masters to this server's heartbeats.

use engine::sync::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

use engine::time::Instant;
use nyala_proto::kudu::master::TsHeartbeatResponsePb;

/// Masters by address.
#[derive(Debug, Default)]
pub struct MasterContacts(Mutex<BTreeMap<String, MasterContact>>);

#[derive(Debug)]
struct MasterContact {
    at: Instant,
    /// True if the master led and knew this server.
    accepted: bool,
}

impl MasterContacts {
    /// Records a master's reply.
    pub fn heard(&self, master: &str, reply: &TsHeartbeatResponsePb, now: Instant) {
        let accepted = reply.leader_master() && !reply.needs_reregister();
        let mut masters = self.0.lock();
        masters.insert(master.to_string(), MasterContact { at: now, accepted });
    }

    /// Returns the leading master that accepted this server's heartbeat at most `age` ago.
    pub fn leader(&self, now: Instant, age: Duration) -> Option<String> {
        let masters = self.0.lock();
        let lately = |contact: &&MasterContact| contact.accepted && now.since(contact.at) <= age;
        let accepted = masters.iter().filter(|(_, contact)| lately(contact));
        accepted.max_by_key(|(_, contact)| contact.at).map(|(master, _)| master.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leader_is_who_accepted_a_heartbeat_lately() {
        let contacts = MasterContacts::default();
        let reply = |leads| TsHeartbeatResponsePb { leader_master: Some(leads), ..Default::default() };
        let age = Duration::from_nanos(5);
        contacts.heard("a:1", &reply(false), Instant(1));
        assert_eq!(contacts.leader(Instant(1), age), None);
        contacts.heard("b:1", &reply(true), Instant(2));
        assert_eq!(contacts.leader(Instant(7), age).as_deref(), Some("b:1"));
        assert_eq!(contacts.leader(Instant(8), age), None);
        contacts.heard("b:1", &reply(false), Instant(8));
        contacts.heard("a:1", &reply(true), Instant(9));
        assert_eq!(contacts.leader(Instant(9), age).as_deref(), Some("a:1"));
    }
}
