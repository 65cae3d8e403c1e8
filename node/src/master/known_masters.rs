//! Known masters: the registrations that the other masters last replied with.
//!
//! The configuration of the system tablet has the masters' RPC addresses only. So a master that does not reply has the
//! web address that it had before, for as long as it is a member and this master runs.

use engine::sync::Mutex;
use std::collections::BTreeMap;

use bytes::Bytes;
use nyala_proto::kudu::ServerRegistrationPb;
use nyala_proto::kudu::master::ListMastersResponsePb;

/// Registrations by the masters' ids.
#[derive(Debug, Default)]
pub(super) struct KnownMasters(Mutex<BTreeMap<Bytes, ServerRegistrationPb>>);

impl KnownMasters {
    /// Records the registrations of a list, and gives the masters that did not reply their last ones. Masters that are
    /// not in the list are forgotten.
    pub(super) fn complete(&self, mut list: ListMastersResponsePb) -> ListMastersResponsePb {
        let mut known = self.0.lock();
        let mut listed = BTreeMap::new();
        for master in &mut list.masters {
            let Some(instance) = &master.instance_id else { continue };
            let last = known.remove(&instance.permanent_uuid);
            if master.error.is_some() && last.is_some() {
                master.registration = last;
            }
            if let Some(registration) = &master.registration {
                listed.insert(instance.permanent_uuid.clone(), registration.clone());
            }
        }
        *known = listed;
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyala_proto::kudu::{AppStatusPb, HostPortPb, NodeInstancePb, ServerEntryPb};

    /// Returns the entry of a master; one that does not reply has no port.
    fn entry(id: &'static str, web_port: Option<u32>) -> ServerEntryPb {
        let address = |port| HostPortPb { host: id.to_string(), port };
        ServerEntryPb {
            error: web_port.is_none().then(AppStatusPb::default),
            instance_id: Some(NodeInstancePb { permanent_uuid: Bytes::from(id), instance_seqno: 0 }),
            registration: Some(ServerRegistrationPb {
                http_addresses: web_port.map(address).into_iter().collect(),
                ..ServerRegistrationPb::default()
            }),
            ..ServerEntryPb::default()
        }
    }

    fn web_ports(known: &KnownMasters, masters: Vec<ServerEntryPb>) -> Vec<u32> {
        let list = ListMastersResponsePb { masters, ..ListMastersResponsePb::default() };
        let registrations = known.complete(list).masters.into_iter().filter_map(|master| master.registration);
        registrations.flat_map(|registration| registration.http_addresses).map(|web| web.port).collect()
    }

    #[test]
    fn a_silent_member_keeps_its_last_registration() {
        let known = KnownMasters::default();
        assert_eq!(web_ports(&known, vec![entry("a", Some(1)), entry("b", None)]), [1], "b was never known");
        assert_eq!(web_ports(&known, vec![entry("a", Some(1)), entry("b", Some(2))]), [1, 2]);
        for _ in 0..2 {
            assert_eq!(web_ports(&known, vec![entry("a", None), entry("b", Some(3))]), [1, 3]);
        }
        assert_eq!(web_ports(&known, vec![entry("b", None)]), [3]);
        assert_eq!(
            web_ports(&known, vec![entry("a", None), entry("b", None)]),
            [3],
            "a was removed meanwhile"
        );
    }
}
