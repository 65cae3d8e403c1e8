//! The cluster's format level on a master: read from its own replica of the catalog, raised by the leader.

use std::sync::Arc;
use std::time::Duration;

use engine::catalog::{CatalogCommand, ClusterRecord, SystemRecord, SystemRowKey};
use engine::error::{Error, ErrorKind, Result};
use engine::format_level::FormatLevel;
use nyala_common::env::Env;
use nyala_common::rpc::Call;
use nyala_common::wire::errors::error_from_status;
use nyala_proto::kudu::ServerEntryPb;
use nyala_proto::kudu::master::master_error_pb::Code;
use nyala_proto::kudu::master::{NyalaRaiseLevelRequestPb, NyalaRaiseLevelResponsePb};

use super::proto::registered_levels;
use super::service::{MasterErrorReply, MasterService, master_error};
use super::system_tablet;
use crate::dirs::ServerDirs;
use crate::hosting::replica::ReplicaHandle;
use crate::server::ServerStatus;

/// Interval at which a master reads the level.
const READ_INTERVAL: Duration = Duration::from_secs(5);

/// Stores the level of the own replica's catalog in the directories, as long as the master runs.
pub(super) async fn follow(
    env: Env,
    replica: ReplicaHandle,
    dirs: Arc<ServerDirs>,
    status: Arc<ServerStatus>,
) {
    loop {
        let tablet = replica.tablet().clone();
        let taken = match env.run(|| read(&tablet)).await {
            Ok(Some(level)) => status.formats.take_level(&env, &dirs, level).await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = taken {
            tracing::error!(%error, "the cluster's format level cannot be taken");
            if error.kind == ErrorKind::Unsupported {
                status.formats.refuse(error);
            }
        }
        env.sleep(READ_INTERVAL).await;
    }
}

/// Returns the level in the catalog; `None` until the first leader has stored it.
fn read(tablet: &engine::tablet::Tablet) -> Result<Option<FormatLevel>> {
    let rows = system_tablet::read_from_cluster(tablet)?;
    let cluster = rows.iter().find(|(key, _)| *key == SystemRowKey::Cluster);
    cluster.map(|(_, metadata)| Ok(ClusterRecord::unseal(metadata)?.level)).transpose()
}

impl MasterService {
    /// Raises the cluster's format level, unless a server's program does not support the new one.
    pub(super) async fn raise_level(
        &self,
        call: &Call,
        request: NyalaRaiseLevelRequestPb,
    ) -> Result<NyalaRaiseLevelResponsePb, MasterErrorReply> {
        self.loaded()?;
        let newest = self.status.formats.levels().newest;
        let refused = |error: Error| master_error(Code::UnknownError, &error);
        let level = request.level.map_or(Ok(newest), |level| {
            u16::try_from(level)
                .map(FormatLevel)
                .map_err(|_| Error::invalid(format!("{level} is no format level")))
        });
        let level = level.map_err(refused)?;
        for master in self.list_masters().await?.masters {
            check_master(&master, level).map_err(refused)?;
        }
        self.run(call, CatalogCommand::RaiseLevel(level)).await?;
        Ok(NyalaRaiseLevelResponsePb { error: None, level: Some(level.0.into()) })
    }
}

fn check_master(master: &ServerEntryPb, level: FormatLevel) -> Result<()> {
    let registration = master.registration.clone().unwrap_or_default();
    let address = registration.rpc_addresses.first().map(|at| format!("{}:{}", at.host, at.port));
    let address = address.unwrap_or_default();
    if let Some(status) = &master.error {
        return Err(Error::not_ready(format!(
            "the format level cannot be raised: the master {address} does not reply ({}), so that its program is \
             unknown; start it, or remove it with nyala cluster remove-master",
            error_from_status(status).message
        )));
    }
    let levels = registered_levels(&registration)?;
    match levels.contains(level) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "the format level cannot be raised: the program of the master {address} ({}) supports {levels}; upgrade \
             it first",
            registration.software_version()
        ))),
    }
}
