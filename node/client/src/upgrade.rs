//! Upgrades: programs of the servers, the format levels that they support, and the cluster's level.

use engine::error::{Error, Result};
use engine::format_level::{FormatLevel, LevelRange};
use engine::ids::{PeerId, Uuid};

use super::Client;
use nyala_common::wire::errors::error_from_status;
use nyala_proto::kudu::consensus::raft_peer_pb::Role;
use nyala_proto::kudu::master::{
    ListMastersRequestPb, ListMastersResponsePb, ListTabletServersRequestPb, ListTabletServersResponsePb,
    NyalaRaiseLevelRequestPb, NyalaRaiseLevelResponsePb,
};
use nyala_proto::kudu::{NodeInstancePb, ServerRegistrationPb};

/// Program of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerProgram {
    pub id: Option<PeerId>,
    /// `host:port`; empty if it is unknown.
    pub address: String,
    /// `leader`, `master` or `tablet server`.
    pub role: &'static str,
    pub version: String,
    /// Format levels that it supports.
    pub levels: LevelRange,
    /// Reason that the server's program is unknown.
    pub error: Option<String>,
}

/// State of an upgrade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpgradeStatus {
    /// Format level of the cluster.
    pub level: FormatLevel,
    /// Masters, then tablet servers.
    pub servers: Vec<ServerProgram>,
}

impl UpgradeStatus {
    /// Returns the newest level that every program supports.
    pub fn supported(&self) -> FormatLevel {
        let newest = self.servers.iter().map(|server| server.levels.newest);
        newest.min().unwrap_or(self.level)
    }
}

impl Client {
    /// Returns the cluster's format level, and the programs of its servers as the leading master knows them.
    pub async fn upgrade_status(&self) -> Result<UpgradeStatus> {
        let masters = &self.shared.masters;
        let request = ListMastersRequestPb {};
        let reply: ListMastersResponsePb =
            masters.call("ListMasters", &request, self.deadline(), &[]).await?;
        let mut servers = Vec::new();
        for entry in &reply.masters {
            let role = if entry.role() == Role::Leader { "leader" } else { "master" };
            let error = entry.error.as_ref().map(|status| error_from_status(status).message);
            servers.push(program(entry.instance_id.as_ref(), entry.registration.as_ref(), role, error)?);
        }
        let request = ListTabletServersRequestPb::default();
        let tservers: ListTabletServersResponsePb =
            masters.call("ListTabletServers", &request, self.deadline(), &[]).await?;
        for entry in &tservers.servers {
            let (instance, registration) = (Some(&entry.instance_id), entry.registration.as_ref());
            servers.push(program(instance, registration, "tablet server", None)?);
        }
        // A leader of the first release has the first level.
        Ok(UpgradeStatus { level: level(reply.nyala_format_level.unwrap_or(1))?, servers })
    }

    /// Raises the cluster's format level to the newest of the leading master's program. Afterwards no server can
    /// return to a program that does not support it. Returns the level.
    pub async fn raise_format_level(&self) -> Result<FormatLevel> {
        let (masters, request) = (&self.shared.masters, NyalaRaiseLevelRequestPb::default());
        let reply: NyalaRaiseLevelResponsePb =
            masters.call("NyalaRaiseLevel", &request, self.deadline(), &[]).await?;
        level(reply.level.unwrap_or_default())
    }
}

fn level(number: u32) -> Result<FormatLevel> {
    let level = u16::try_from(number).ok().filter(|level| *level > 0);
    level.map(FormatLevel).ok_or_else(|| Error::corrupt(format!("{number} is no format level")))
}

fn program(
    instance: Option<&NodeInstancePb>,
    registration: Option<&ServerRegistrationPb>,
    role: &'static str,
    error: Option<String>,
) -> Result<ServerProgram> {
    let address = registration.and_then(|registration| registration.rpc_addresses.first());
    let levels = registration.and_then(|pb| Some((pb.nyala_oldest_level?, pb.nyala_newest_level?)));
    Ok(ServerProgram {
        id: instance.and_then(|instance| Uuid::parse(&instance.permanent_uuid).ok()),
        address: address.map(|at| format!("{}:{}", at.host, at.port)).unwrap_or_default(),
        role,
        version: registration.map(|pb| pb.software_version().to_string()).unwrap_or_default(),
        levels: levels.map_or(Ok(LevelRange::FIRST), |(oldest, newest)| LevelRange::new(oldest, newest))?,
        error,
    })
}
