//! The calls about the masters themselves: who leads, who there is, one more, one less.

use std::time::Duration;

use engine::error::{Error, ErrorKind};
use engine::ids::Uuid;
use engine::raft::{Change, ChangePart, Config, Member, Peer, Status};
use futures_util::future::join_all;

use super::convert::id;
use super::founding;
use super::reign::{Absent, absent};
use super::requests::MASTER_USER;
use super::service::{MASTER_SERVICE, MasterService, Refused, refused, unavailable};
use crate::proto::kudu::consensus::raft_peer_pb::{MemberType, Role};
use crate::proto::kudu::master::master_error_pb::Code;
use crate::proto::kudu::master::*;
use crate::proto::kudu::{HostPortPb, NodeInstancePb, ServerEntryPb, ServerRegistrationPb};
use crate::rpc::Call;
use crate::rpc::client::{CallOptions, Proxy};
use crate::server::split_host_port;
use crate::tserver::replica::ReplicaHandle;
use crate::wire::status::status_from_error;

type Result<T, E = Refused> = std::result::Result<T, E>;

/// How long another master may take to introduce itself.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

fn invalid(error: Error) -> Refused {
    refused(Code::UnknownError, &error)
}

impl MasterService {
    fn open(&self) -> Result<&ReplicaHandle> {
        self.opened.get().ok_or_else(|| unavailable(&absent(Absent::NotOpen)))
    }

    /// This master's part, as clients are to see it: it leads once it has the catalog.
    fn role(&self, status: &Status) -> Role {
        match status.committed_config.peer(self.status.uuid()) {
            _ if self.standing.catalog().is_ok() => Role::Leader,
            Some(peer) if peer.is_voter() => Role::Follower,
            Some(_) => Role::Learner,
            None => Role::NonParticipant,
        }
    }

    async fn cluster_id(&self) -> Option<String> {
        let catalog = self.standing.catalog().ok()?;
        catalog.read(|catalog, _| catalog.cluster_id().to_string()).await.ok()
    }

    /// The addresses of all masters. One alone is reached as it is now, whatever it was when the cluster was founded.
    fn addresses(&self, config: &Config) -> Vec<HostPortPb> {
        let pb = |(host, port): (String, u16)| HostPortPb { host, port: u32::from(port) };
        if config.is_only_voter(self.status.uuid()) {
            let own = || self.status.rpc_addresses().into_iter().take(1).collect();
            let names = if self.config.masters.is_empty() { own() } else { self.config.masters.clone() };
            return names.iter().filter_map(|name| split_host_port(name).ok()).map(pb).collect();
        }
        config.peers.iter().map(|peer| pb((peer.host.clone(), peer.port))).collect()
    }

    pub(super) async fn connect_to_master(&self, call: &Call) -> Result<ConnectToMasterResponsePb> {
        let status = self.open()?.status();
        if let Err(Absent::NotOpen) = self.standing.catalog() {
            return Err(unavailable(&absent(Absent::NotOpen)));
        }
        Ok(ConnectToMasterResponsePb {
            role: Some(self.role(&status) as i32),
            master_addrs: self.addresses(&status.committed_config),
            cluster_id: self.cluster_id().await,
            client_location: self.locator.client(&call.remote.ip().to_string()).await,
            ..ConnectToMasterResponsePb::default()
        })
    }

    pub(super) async fn get_master_registration(&self) -> Result<GetMasterRegistrationResponsePb> {
        let status = self.open().map(ReplicaHandle::status);
        let error = match (&status, self.standing.catalog()) {
            (Err(error), _) => Some(error.clone()),
            (Ok(_), Err(Absent::NotOpen)) => Some(unavailable(&absent(Absent::NotOpen))),
            (Ok(_), _) => None,
        };
        let role = status.as_ref().map_or(Role::Follower, |status| self.role(status));
        let voter = !matches!(role, Role::Learner | Role::NonParticipant);
        Ok(GetMasterRegistrationResponsePb {
            instance_id: self.status.node_instance(),
            registration: Some(self.status.registration()),
            role: Some(role as i32),
            error,
            cluster_id: self.cluster_id().await,
            member_type: Some(if voter { MemberType::Voter } else { MemberType::NonVoter } as i32),
        })
    }

    /// Every master introduces itself; one that does not answer is named with the error.
    pub(super) async fn list_masters(&self) -> Result<ListMastersResponsePb> {
        let status = self.open()?.status();
        let masters = join_all(status.committed_config.peers.iter().map(|peer| self.entry(peer))).await;
        Ok(ListMastersResponsePb { masters, deprecated_error: None, error: None })
    }

    async fn entry(&self, peer: &Peer) -> ServerEntryPb {
        let asked = match peer.id == self.status.uuid() {
            true => self.get_master_registration().await.map_err(|error| super::service::said(&error)),
            false => self.ask_registration(peer).await,
        };
        let said = asked.and_then(|said| match &said.error {
            Some(error) => Err(super::service::said(error)),
            None => Ok(said),
        });
        match said {
            Ok(said) => ServerEntryPb {
                error: None,
                instance_id: Some(said.instance_id),
                registration: said.registration,
                role: said.role,
                cluster_id: said.cluster_id,
                member_type: said.member_type,
            },
            Err(error) => ServerEntryPb {
                error: Some(status_from_error(&error)),
                instance_id: Some(NodeInstancePb { permanent_uuid: id(peer.id), instance_seqno: 0 }),
                registration: Some(ServerRegistrationPb {
                    rpc_addresses: vec![HostPortPb { host: peer.host.clone(), port: u32::from(peer.port) }],
                    ..ServerRegistrationPb::default()
                }),
                ..ServerEntryPb::default()
            },
        }
    }

    async fn ask_registration(&self, peer: &Peer) -> Result<GetMasterRegistrationResponsePb, Error> {
        let proxy = Proxy::new(self.env.clone(), format!("{}:{}", peer.host, peer.port), MASTER_USER);
        let until = self.env.now().mono.after(ASK_TIMEOUT);
        let request = GetMasterRegistrationRequestPb {};
        let options = CallOptions::default();
        let asked = proxy.call(MASTER_SERVICE, "GetMasterRegistration", &request, until, options).await;
        asked.map(|response| response.message).map_err(|error| Error::not_ready(error.to_string()))
    }

    /// Adds the master that runs at an address: first as one that only listens; it votes when it has caught up.
    pub(super) async fn add_master(&self, request: AddMasterRequestPb) -> Result<AddMasterResponsePb> {
        self.loaded()?;
        let replica = self.open()?;
        let missing = || invalid(Error::invalid("the request does not say which master to add"));
        let address = request.rpc_addr.ok_or_else(missing)?;
        let (host, port) = (address.host.clone(), address.port as u16);
        let config = replica.status().committed_config.clone();
        if let Some(peer) = config.peers.iter().find(|peer| (&peer.host, peer.port) == (&host, port)) {
            let message = format!(
                "Master already present: {host}:{port} is {}; if that one is gone for good, remove it first",
                peer.id
            );
            return Err(invalid(Error::already_present(message)));
        }
        let asked = self.env.timeout(ASK_TIMEOUT, founding::ask(&self.env, &format!("{host}:{port}"))).await;
        let silent = || Error::not_ready(format!("no master answers at {host}:{port}; start it first"));
        let uuid = asked.ok_or_else(silent).and_then(|asked| asked).map_err(invalid)?;
        if config.peer(uuid).is_some() {
            let message = format!("Master already present: {uuid} is at {host}:{port}, too");
            return Err(invalid(Error::already_present(message)));
        }
        let peer = Peer { member: Member::NonVoter, promote: true, ..Peer::voter(uuid, host, port) };
        self.change(replica, ChangePart::Add(peer), &config).await?;
        Ok(AddMasterResponsePb { error: None })
    }

    pub(super) async fn remove_master(
        &self,
        request: RemoveMasterRequestPb,
    ) -> Result<RemoveMasterResponsePb> {
        self.loaded()?;
        let replica = self.open()?;
        let config = replica.status().committed_config.clone();
        let address = request.rpc_addr.map(|address| (address.host, address.port as u16));
        let uuid = request.master_uuid.as_deref().filter(|uuid| !uuid.is_empty());
        let uuid = uuid.map(|uuid| Uuid::parse(uuid.as_bytes())).transpose().map_err(invalid)?;
        let named = |peer: &&Peer| {
            let at = address.as_ref().is_none_or(|(host, port)| *host == peer.host && *port == peer.port);
            at && uuid.is_none_or(|uuid| uuid == peer.id)
        };
        let mut found = config.peers.iter().filter(named);
        let (Some(peer), None) = (found.next(), found.next()) else {
            let message = "Master not found: the request names none of the masters, or several";
            return Err(invalid(Error::not_found(message)));
        };
        if peer.id == self.status.uuid() {
            let message = "Can't remove the leader master; let another lead first";
            return Err(invalid(Error::not_leader(message)));
        }
        self.change(replica, ChangePart::Remove(peer.id), &config).await?;
        Ok(RemoveMasterResponsePb { error: None })
    }

    async fn change(&self, replica: &ReplicaHandle, part: ChangePart, config: &Config) -> Result<()> {
        let change = Change { parts: vec![part], cas_opid_index: Some(config.kudu_index()) };
        replica.change_config(change).await.map_err(|error| match error.kind {
            ErrorKind::NotLeader => refused(Code::NotTheLeader, &error),
            _ => invalid(error),
        })
    }
}
