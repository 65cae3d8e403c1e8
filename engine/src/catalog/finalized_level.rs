//! The cluster's format level: kept in the catalog, raised when every server supports the new one.
//!
//! ```text
//!   new cluster: the newest level of the master's program
//!   old cluster: its level ── RaiseLevel, all servers' programs support it ──▶ stored ──▶ told in heartbeat replies
//! ```
//!
//! Invariant: a level is never lowered.

use std::collections::BTreeSet;

use super::Catalog;
use super::commands::CommandReply;
use super::error::{CatalogError, CatalogResult};
use super::heartbeat::{Tserver, TserverRegistration};
use super::record::{HostPort, SystemRowKey};
use crate::error::{Error, Result};
use crate::format_level::{FormatLevel, LevelRange};
use crate::ids::PeerId;

impl Catalog {
    /// Returns the format level of the cluster.
    pub fn level(&self) -> FormatLevel {
        self.cluster.level
    }

    /// Returns `Unsupported` unless this program supports the cluster's format level.
    pub(super) fn check_level(&self) -> Result<()> {
        let checked = self.config.levels.check(self.level(), "this master's");
        checked.map_err(|error| error.context(format!("cluster {}", self.cluster.id)))
    }

    /// Returns the error for a server whose program does not support the cluster's level.
    pub(super) fn unsupported(&self, server: PeerId, registration: &TserverRegistration) -> Option<Error> {
        let level = self.level();
        let levels = registration.levels.filter(|levels| !levels.contains(level))?;
        let version = &registration.software_version;
        Some(Error::unsupported(format!(
            "tablet server {server}: its program ({version}) supports format {levels}, but the cluster has level \
             {level}; install a program that supports it"
        )))
    }

    pub(super) fn raise_level(&mut self, level: FormatLevel) -> CatalogResult<CommandReply> {
        if level == self.level() {
            return Ok(CommandReply::Done);
        }
        self.check_new_level(level)?;
        self.cluster.level = level;
        self.dirty.insert(SystemRowKey::Cluster);
        Ok(CommandReply::Done)
    }

    fn check_new_level(&self, level: FormatLevel) -> CatalogResult<()> {
        let LevelRange { newest, .. } = self.config.levels;
        if level < self.level() {
            return Err(refused(format!(
                "the cluster has format level {} already, and keeps it",
                self.level()
            )));
        }
        if level > newest {
            return Err(refused(format!("the leading master's program supports levels up to {newest} only")));
        }
        for (id, server) in &self.servers {
            check_server(*id, server, level)?;
        }
        match self.replica_servers().iter().find(|server| !self.servers.contains_key(server)) {
            None => Ok(()),
            Some(server) => Err(refused(format!(
                "tablet server {server} has replicas, but this master has not heard of it, so that its program is \
                 unknown; start it, or wait until its replicas are replaced"
            ))),
        }
    }

    /// Returns the servers that have replicas of live tablets.
    fn replica_servers(&self) -> BTreeSet<PeerId> {
        let live = self.tablets.values().filter(|tablet| tablet.record.state.is_live());
        live.flat_map(|tablet| &tablet.record.consensus.peers).map(|peer| peer.server).collect()
    }
}

fn check_server(id: PeerId, server: &Tserver, level: FormatLevel) -> CatalogResult<()> {
    let registration = &server.registration;
    if registration.levels.is_none_or(|levels| levels.contains(level)) {
        return Ok(());
    }
    let address = registration.rpc.first().map_or_else(String::new, HostPort::to_string);
    let levels = registration.levels.unwrap_or(LevelRange::FIRST);
    Err(refused(format!(
        "the program of tablet server {id} {address} ({}) supports {levels}; upgrade it first, or remove it with \
         nyala cluster remove-server",
        registration.software_version
    )))
}

fn refused(why: String) -> CatalogError {
    CatalogError::invalid(format!("the format level cannot be raised: {why}"))
}
