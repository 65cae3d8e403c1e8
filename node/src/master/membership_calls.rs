//! Calls about the masters: the leader, the list of masters, adding and removing one.

use std::time::Duration;

use bytes::Bytes;
use engine::error::{Error, ErrorKind};
use engine::ids::Uuid;
use engine::raft::{ConfigChange, ConfigChangePart, MemberKind, Peer, RaftConfig, RaftStatus};
use futures_util::future::join_all;

use super::cluster_init;
use super::leadership::{CatalogUnavailable, absent};
use super::proto::id;
use super::service::{MASTER_SERVICE, MasterErrorReply, MasterService, master_error, unavailable};
use crate::hosting::replica::ReplicaHandle;
use crate::server::split_host_port;
use nyala_common::rpc::Call;
use nyala_common::rpc::client::{CallOptions, Proxy};
use nyala_common::wire::errors::status_from_error;
use nyala_proto::kudu::consensus::raft_peer_pb::{MemberType, Role};
use nyala_proto::kudu::master::master_error_pb::Code;
use nyala_proto::kudu::master::*;
use nyala_proto::kudu::security::SignedTokenPb;
use nyala_proto::kudu::{HostPortPb, NodeInstancePb, ServerEntryPb, ServerRegistrationPb};

type Result<T, E = MasterErrorReply> = std::result::Result<T, E>;

/// Deadline of a question to another master for its identity.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

fn invalid(error: Error) -> MasterErrorReply {
    master_error(Code::UnknownError, &error)
}

/// Returns the error of a master that is a member already, by which Kudu's tool knows that its first attempt succeeded.
fn present(message: String) -> MasterErrorReply {
    master_error(Code::MasterAlreadyPresent, &Error::already_present(message))
}

fn host_and_port(address: HostPortPb) -> Result<(String, u16)> {
    let no_port = |_| invalid(Error::invalid(format!("{} is no port of {:?}", address.port, address.host)));
    Ok((address.host.clone(), u16::try_from(address.port).map_err(no_port)?))
}

impl MasterService {
    fn open(&self) -> Result<&ReplicaHandle> {
        self.opened.get().ok_or_else(|| unavailable(&absent(CatalogUnavailable::NotOpen)))
    }

    /// Returns this master's role as clients see it: it leads once it has the catalog.
    fn role(&self, status: &RaftStatus) -> Role {
        match status.committed_config.peer(self.status.uuid()) {
            _ if self.leadership.catalog().is_ok() => Role::Leader,
            Some(peer) if peer.is_voter() => Role::Follower,
            Some(_) => Role::Learner,
            None => Role::NonParticipant,
        }
    }

    async fn cluster_id(&self) -> Option<String> {
        let catalog = self.leadership.catalog().ok()?;
        catalog.read(|catalog, _| catalog.cluster_id().to_string()).await.ok()
    }

    /// Returns the addresses of all masters. A single master reports its present address, which may have changed since
    /// the cluster was initialized.
    fn addresses(&self, config: &RaftConfig) -> Vec<HostPortPb> {
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
        if let Err(CatalogUnavailable::NotOpen) = self.leadership.catalog() {
            return Err(unavailable(&absent(CatalogUnavailable::NotOpen)));
        }
        let role = self.role(&status);
        // Other masters give out neither, as in Kudu: clients take the leader's.
        let leads = role == Role::Leader;
        let authorities = if leads { self.identity.trusted() } else { Vec::new() };
        Ok(ConnectToMasterResponsePb {
            ca_cert_der: authorities.into_iter().map(Bytes::from).collect(),
            authn_token: if leads { self.authn_token(call) } else { None },
            role: Some(role as i32),
            master_addrs: self.addresses(&status.committed_config),
            cluster_id: self.cluster_id().await,
            client_location: self.locator.client(&call.remote.ip().to_string()).await,
            ..ConnectToMasterResponsePb::default()
        })
    }

    /// Returns a token that proves the caller's name, if the caller may have one.
    fn authn_token(&self, call: &Call) -> Option<SignedTokenPb> {
        let allowed = self.identity.has_tls() && call.peer.can_get_authn_token();
        allowed.then(|| self.secrets.authn_token(&call.user)).flatten()
    }

    pub(super) async fn get_master_registration(&self) -> Result<GetMasterRegistrationResponsePb> {
        let status = self.open().map(ReplicaHandle::status);
        let error = match (&status, self.leadership.catalog()) {
            (Err(error), _) => Some(error.clone()),
            (Ok(_), Err(CatalogUnavailable::NotOpen)) => {
                Some(unavailable(&absent(CatalogUnavailable::NotOpen)))
            }
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

    /// Lists all masters, each by its own reply; one that does not reply is listed with the error.
    pub(super) async fn list_masters(&self) -> Result<ListMastersResponsePb> {
        let status = self.open()?.status();
        let masters = join_all(status.committed_config.peers.iter().map(|peer| self.entry(peer))).await;
        let nyala_format_level = match self.leadership.catalog() {
            Ok(catalog) => catalog.read(|catalog, _| catalog.level().0.into()).await.ok(),
            Err(_) => None,
        };
        Ok(ListMastersResponsePb { masters, nyala_format_level, ..ListMastersResponsePb::default() })
    }

    async fn entry(&self, peer: &Peer) -> ServerEntryPb {
        let result = match peer.id == self.status.uuid() {
            true => self.get_master_registration().await.map_err(|error| super::service::error_of(&error)),
            false => self.ask_registration(peer).await,
        };
        let identity = result.and_then(|identity| match &identity.error {
            Some(error) => Err(super::service::error_of(error)),
            None => Ok(identity),
        });
        match identity {
            Ok(identity) => ServerEntryPb {
                error: None,
                instance_id: Some(identity.instance_id),
                registration: identity.registration,
                role: identity.role,
                cluster_id: identity.cluster_id,
                member_type: identity.member_type,
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
        let proxy = Proxy::new(self.env.clone(), format!("{}:{}", peer.host, peer.port), &self.caller);
        let until = self.env.now().mono.after(ASK_TIMEOUT);
        let request = GetMasterRegistrationRequestPb {};
        let options = CallOptions::default();
        let result = proxy.call(MASTER_SERVICE, "GetMasterRegistration", &request, until, options).await;
        result.map(|response| response.message).map_err(|error| Error::not_ready(error.to_string()))
    }

    /// Adds the master at an address, first as a learner; it votes once it has caught up.
    pub(super) async fn add_master(&self, request: AddMasterRequestPb) -> Result<AddMasterResponsePb> {
        self.loaded()?;
        let replica = self.open()?;
        let missing = || invalid(Error::invalid("the request does not say which master to add"));
        let address = request.rpc_addr.ok_or_else(missing)?;
        let (host, port) = host_and_port(address)?;
        let config = replica.status().committed_config.clone();
        // A single master may have moved, so that another one has the address that is stored for it.
        let is_single = |peer: &Peer| peer.id == self.status.uuid() && config.is_only_voter(peer.id);
        let is_there = |peer: &&Peer| (&peer.host, peer.port) == (&host, port) && !is_single(peer);
        if let Some(peer) = config.peers.iter().find(is_there) {
            let message = format!(
                "Master already present: {host}:{port} is {}; if that one is gone for good, remove it first",
                peer.id
            );
            return Err(present(message));
        }
        let address = format!("{host}:{port}");
        let uuid = self.ask_identity(&address).await.map_err(invalid)?;
        if config.peer(uuid).is_some() {
            let message = format!("Master already present: {uuid} is at {host}:{port}, too");
            return Err(present(message));
        }
        self.check_catalog_of(&address, uuid, &config).await?;
        let peer = Peer { member: MemberKind::NonVoter, promote: true, ..Peer::voter(uuid, host, port) };
        self.change(replica, ConfigChangePart::Add(peer), &config).await?;
        Ok(AddMasterResponsePb { error: None })
    }

    async fn ask_identity(&self, address: &str) -> Result<Uuid, Error> {
        let asked = cluster_init::ask(&self.env, &self.caller, address);
        let unreachable = || Error::not_ready(format!("no master replies at {address}; start it first"));
        self.env.timeout(ASK_TIMEOUT, asked).await.ok_or_else(unreachable)?
    }

    /// Fails if the master at `address`, which is `uuid`, has a catalog that is not this cluster's. A new master waits
    /// without one; a removed one has this cluster's as of its removal.
    async fn check_catalog_of(&self, address: &str, uuid: Uuid, config: &RaftConfig) -> Result<()> {
        let asked = cluster_init::ask_stored(&self.env, &self.caller, address, uuid);
        let Some(stored) = self.env.timeout(ASK_TIMEOUT, asked).await else {
            let message = format!("the master at {address} cannot tell yet if it has a catalog; try again");
            return Err(invalid(Error::not_ready(message)));
        };
        let is_ours = |stored: &RaftConfig| stored.peers.iter().any(|peer| config.peer(peer.id).is_some());
        if stored.as_ref().is_none_or(is_ours) {
            return Ok(());
        }
        Err(invalid(Error::invalid(format!(
            "the master at {address} belongs to another cluster: its catalog names none of these masters; to add a \
             master here, start it with empty directories and with all masters in master_addresses"
        ))))
    }

    pub(super) async fn remove_master(
        &self,
        request: RemoveMasterRequestPb,
    ) -> Result<RemoveMasterResponsePb> {
        self.loaded()?;
        let replica = self.open()?;
        let config = replica.status().committed_config.clone();
        let address = request.rpc_addr.map(host_and_port).transpose()?;
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
        self.change(replica, ConfigChangePart::Remove(peer.id), &config).await?;
        Ok(RemoveMasterResponsePb { error: None })
    }

    async fn change(
        &self,
        replica: &ReplicaHandle,
        part: ConfigChangePart,
        config: &RaftConfig,
    ) -> Result<()> {
        let change = ConfigChange { parts: vec![part], cas_opid_index: Some(config.kudu_index()) };
        replica.change_config(change).await.map_err(|error| match error.kind {
            ErrorKind::NotLeader => master_error(Code::NotTheLeader, &error),
            _ => invalid(error),
        })
    }
}
