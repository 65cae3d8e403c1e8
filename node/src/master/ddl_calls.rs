//! Calls that change the catalog.

use engine::catalog::{
    AlterTable, CatalogCommand, CommandReply, Heartbeat, HeartbeatReply, ServerStateChange,
};
use engine::error::{Error, ErrorKind};
use engine::ids::{TableId, Uuid};

use super::admission::{ClockOffset, TserverAdmission};
use super::authz::TableQuestion;
use super::authz_calls::unauthorized;
use super::leadership::{CatalogUnavailable, absent};
use super::proto::{self, id, refusal_to_pb};
use super::service::{MasterErrorReply, MasterService, master_error, unavailable};
use nyala_common::rpc::Call;
use nyala_proto::kudu::consensus::replica_management_info_pb::ReplacementScheme;
use nyala_proto::kudu::master::change_t_server_state_request_pb::HandleMissingTs;
use nyala_proto::kudu::master::master_error_pb::Code;
use nyala_proto::kudu::master::t_server_state_change_pb::StateChange;
use nyala_proto::kudu::master::*;

type Result<T, E = MasterErrorReply> = std::result::Result<T, E>;

fn invalid(error: Error) -> MasterErrorReply {
    master_error(Code::UnknownError, &error)
}

impl MasterService {
    pub(super) async fn create_table(
        &self,
        call: &Call,
        request: CreateTableRequestPb,
    ) -> Result<CreateTableResponsePb> {
        self.authorize_create(call, &request.name, request.owner.as_deref())?;
        let mut create = proto::create_table(&request).map_err(|refusal| refusal_to_pb(&refusal))?;
        let flags = &self.config.flags;
        // The flag may have changed since the start, from which the catalog has its own default.
        if create.replicas.is_none() && flags.is_given("default_num_replicas") {
            create.replicas = Some(flags.number("default_num_replicas") as i32);
        }
        let created = self.run(call, CatalogCommand::Create(Box::new(create))).await?;
        let table_id = match created {
            CommandReply::Created(table) => Some(id(table)),
            _ => None,
        };
        Ok(CreateTableResponsePb { error: None, table_id })
    }

    pub(super) async fn try_alter_table(
        &self,
        call: &Call,
        request: &AlterTableRequestPb,
    ) -> Result<(TableId, u32)> {
        let new_owner = request.new_table_owner.is_some();
        let question = TableQuestion::Alter { new_name: request.new_table_name.as_deref(), new_owner };
        let table = self.table(call, &request.table, question).await?;
        let limits = request.disk_size_limit.is_some() || request.row_count_limit.is_some();
        if limits && !self.identity.access().is_privileged(&call.user) {
            return Err(unauthorized(call));
        }
        let alter = proto::alter_table(request).map_err(|refusal| refusal_to_pb(&refusal))?;
        let alter = AlterTable { table, ..alter };
        match self.run(call, CatalogCommand::Alter(Box::new(alter))).await? {
            CommandReply::Altered { table, version } => Ok((table, version)),
            other => Err(invalid(Error::aborted(format!("unexpected reply to an alteration: {other:?}")))),
        }
    }

    pub(super) async fn delete_table(
        &self,
        call: &Call,
        request: DeleteTableRequestPb,
    ) -> Result<DeleteTableResponsePb> {
        let table = self.table(call, &request.table, TableQuestion::Drop).await?;
        self.run(call, CatalogCommand::Delete { table, reserve_seconds: request.reserve_seconds }).await?;
        Ok(DeleteTableResponsePb { error: None })
    }

    pub(super) async fn recall_deleted_table(
        &self,
        call: &Call,
        request: RecallDeletedTableRequestPb,
    ) -> Result<RecallDeletedTableResponsePb> {
        let mut table = self.table(call, &request.table, TableQuestion::Drop).await?;
        let new_name = request.new_table_name.filter(|name| !name.is_empty());
        // Other rights apply to another name, so the recall needs also those of a renaming.
        if let Some(name) = new_name.as_deref().filter(|name| table.name.as_deref() != Some(*name)) {
            self.authorize_create(call, name, None)?;
            let question = TableQuestion::Alter { new_name: Some(name), new_owner: false };
            table = self.authorize(call, table, question).await?;
        }
        self.run(call, CatalogCommand::Recall { table, new_name }).await?;
        Ok(RecallDeletedTableResponsePb { error: None })
    }

    pub(super) async fn replace_tablet(
        &self,
        call: &Call,
        request: ReplaceTabletRequestPb,
    ) -> Result<ReplaceTabletResponsePb> {
        let tablet = Uuid::parse(request.tablet_id.as_deref().unwrap_or_default()).map_err(invalid)?;
        let replacement_tablet_id = match self.run(call, CatalogCommand::ReplaceTablet(tablet)).await? {
            CommandReply::Replaced(by) => Some(id(by)),
            _ => None,
        };
        Ok(ReplaceTabletResponsePb { error: None, replacement_tablet_id })
    }

    pub(super) async fn change_tserver_state(
        &self,
        call: &Call,
        request: ChangeTServerStateRequestPb,
    ) -> Result<ChangeTServerStateResponsePb> {
        let nothing = || invalid(Error::invalid("the request does not say which state change it wants"));
        let change = request.change.as_ref().ok_or_else(nothing)?;
        let server = Uuid::parse(change.uuid.as_deref().unwrap_or_default().as_bytes()).map_err(invalid)?;
        let allow_missing = request.handle_missing_tserver() == HandleMissingTs::AllowMissingTserver;
        let change = match change.change() {
            StateChange::EnterMaintenanceMode => ServerStateChange::EnterMaintenance,
            StateChange::ExitMaintenanceMode => ServerStateChange::ExitMaintenance,
            StateChange::UnknownStateChange => return Err(nothing()),
        };
        self.run(call, CatalogCommand::ChangeServerState { server, change, allow_missing }).await?;
        Ok(ChangeTServerStateResponsePb { error: None })
    }

    pub(super) async fn unregister_tserver(
        &self,
        call: &Call,
        request: UnregisterTServerRequestPb,
    ) -> Result<UnregisterTServerResponsePb> {
        let server = Uuid::parse(request.uuid.as_deref().unwrap_or_default().as_bytes()).map_err(invalid)?;
        let force = request.force_unregister_live_tserver();
        // Tools send this to every master: each forgets the server in its own table, and the leader also in the
        // catalog.
        if matches!(self.leadership.catalog(), Err(CatalogUnavailable::NotLeader)) {
            let limit = self.config.server_unresponsive_after;
            let silent = self
                .known_tservers
                .time_since_heartbeat(self.env.now().mono, server)
                .is_none_or(|for_| for_ > limit);
            if !force && !silent {
                let message = format!("tablet server {server} is alive; stop it first, or force it");
                return Err(invalid(Error::not_leader(message)));
            }
        } else {
            self.run(call, CatalogCommand::UnregisterServer { server, force }).await?;
        }
        self.known_tservers.forget(server);
        self.admission.forget(server);
        Ok(UnregisterTServerResponsePb { error: None })
    }

    /// Reads the policy file at once.
    pub(super) async fn refresh_authz_cache(&self) -> Result<RefreshAuthzCacheResponsePb> {
        let message = "this master has no policy whose file it could read (no authz_policy_file)";
        let policy = self.authorizer.policy_file().ok_or_else(|| invalid(Error::unsupported(message)))?;
        policy.reload(&self.env).await.map_err(invalid)?;
        Ok(RefreshAuthzCacheResponsePb { error: None })
    }

    pub(super) async fn ts_heartbeat(
        &self,
        call: &Call,
        request: TsHeartbeatRequestPb,
    ) -> Result<TsHeartbeatResponsePb> {
        check_replica_management(&request)?;
        let heartbeat = proto::heartbeat(&request).map_err(invalid)?;
        let server = heartbeat.server;
        let now = self.env.now();
        let received = now.wall.micros;
        let offset = request.nyala_state.as_ref().and_then(|state| ClockOffset::of(state, received));
        let clock = self.admission.check_clock(now.mono, server, offset, self.config.max_clock_ahead_us);
        let mut response = match clock {
            Ok(()) => {
                let mut response = self.admit(&request, heartbeat).await?;
                self.add_credentials(call, &request, &mut response)?;
                response
            }
            Err(error) => {
                if let Ok(catalog) = self.leadership.catalog() {
                    // Its replicas stay, and it gets no more of them. It lives, though it registers in each heartbeat
                    // because the last one was refused. A run that the catalog does not know is not registered by this.
                    let wrong =
                        Heartbeat { takes_replicas: false, ..Heartbeat::of(server, heartbeat.instance) };
                    catalog.heartbeat(wrong).await.map_err(|error| unavailable(&error))?;
                }
                refused_heartbeat(error.context(format_args!("tablet server {server}")))
            }
        };
        response.nyala_wall_micros = Some(received);
        if response.leader_master() && response.error.is_none() {
            response.nyala_history = self.held_history();
        }
        if self.admission.set_refused(now.mono, server, response.error.is_some())
            && let Some(refused) = &response.error
        {
            tracing::error!(error = %super::service::error_of(refused), "a tablet server is refused");
        }
        Ok(response)
    }

    /// Adds certificates and token keys to the leader's reply to a server that wants them.
    fn add_credentials(
        &self,
        call: &Call,
        request: &TsHeartbeatRequestPb,
        response: &mut TsHeartbeatResponsePb,
    ) -> Result<()> {
        if !response.leader_master() || response.error.is_some() {
            return Ok(());
        }
        if let Some(csr) = request.csr_der.as_ref().filter(|_| self.may_certify(call)) {
            let certificate = self.secrets.sign_request(csr, &call.user).map_err(|error| unsigned(&error))?;
            response.signed_cert_der = Some(certificate.into());
            response.ca_cert_der = self.identity.trusted().into_iter().map(Into::into).collect();
        }
        if let Some(known) = request.latest_tsk_seq_num {
            response.tsks = self.secrets.public_keys(known);
        }
        Ok(())
    }

    /// Returns true if the caller's proof is good enough for a certificate. The heartbeat is served without one, too: a
    /// server that has a certificate keeps it.
    fn may_certify(&self, call: &Call) -> bool {
        let required = self.identity.settings().is_some_and(|settings| settings.peers.authentication);
        let allowed = call.peer.can_get_certificate(required);
        if !allowed {
            let reason = "a certificate is signed only for a server with a ticket or a certificate";
            call.note_denied(reason);
            let (user, authn, remote) = (call.user.escape_debug(), call.peer.method, call.remote);
            tracing::warn!(%user, ?authn, %remote, "no certificate for a heartbeat: {reason}");
        }
        allowed
    }

    /// Processes the heartbeat of a server whose clock is right.
    async fn admit(
        &self,
        request: &TsHeartbeatRequestPb,
        mut heartbeat: Heartbeat,
    ) -> Result<TsHeartbeatResponsePb> {
        if let Some(host) = heartbeat.registration.as_ref().and_then(|registration| registration.rpc.first())
        {
            let location = self.locator.server(heartbeat.server, &host.host).await;
            heartbeat.location = location.map_err(|error| unavailable(&error))?;
        }
        let catalog = self.leadership.catalog();
        let silence_max = self.config.server_unresponsive_after;
        if !self.known_tservers.record_heartbeat(self.env.now().mono, &heartbeat, silence_max) {
            let reply = HeartbeatReply { needs_registration: true, ..HeartbeatReply::default() };
            return Ok(self.reply_to_heartbeat(request, reply, catalog.is_ok()));
        }
        match catalog {
            Ok(catalog) => {
                let (server, its) = (heartbeat.server, heartbeat.cluster);
                let reply = catalog.heartbeat(heartbeat).await.map_err(|error| unavailable(&error))?;
                if reply.foreign {
                    self.known_tservers.forget(server);
                    return Ok(refused_heartbeat(TserverAdmission::foreign(server, its, reply.cluster)));
                }
                if let Some(error) = reply.unsupported {
                    self.known_tservers.forget(server);
                    // The level tells the server itself that it must end.
                    let nyala_format_level = reply.level.map(|level| level.0.into());
                    return Ok(TsHeartbeatResponsePb { nyala_format_level, ..refused_heartbeat(error) });
                }
                Ok(self.reply_to_heartbeat(request, reply, true))
            }
            // A master that does not lead only records the tablet server.
            Err(CatalogUnavailable::NotLeader | CatalogUnavailable::Loading) => {
                Ok(self.reply_to_heartbeat(request, HeartbeatReply::default(), false))
            }
            Err(CatalogUnavailable::NotOpen) => Err(unavailable(&absent(CatalogUnavailable::NotOpen))),
        }
    }

    fn reply_to_heartbeat(
        &self,
        request: &TsHeartbeatRequestPb,
        reply: HeartbeatReply,
        leads: bool,
    ) -> TsHeartbeatResponsePb {
        let acknowledged =
            |tablet: &Uuid| ReportedTabletUpdatesPb { tablet_id: id(*tablet), state_msg: None };
        let tablets: Vec<_> = reply.tablets.iter().map(acknowledged).collect();
        TsHeartbeatResponsePb {
            master_instance: Some(self.status.node_instance()),
            needs_reregister: Some(reply.needs_registration),
            needs_full_tablet_report: Some(reply.needs_full_report),
            tablet_report: request.tablet_report.as_ref().map(|_| TabletReportUpdatesPb { tablets }),
            leader_master: Some(leads),
            nyala_cluster_id: reply.cluster.map(|cluster| cluster.to_string()),
            nyala_format_level: reply.level.map(|level| level.0.into()),
            ..TsHeartbeatResponsePb::default()
        }
    }
}

/// Returns the error for a certificate that is not signed. A master that has just lost its leadership has no CA any
/// more: the server asks the next one.
fn unsigned(error: &Error) -> MasterErrorReply {
    match error.kind {
        ErrorKind::NotReady => unavailable(error),
        _ => invalid(error.clone()),
    }
}

/// Returns the reply to a server that is refused.
fn refused_heartbeat(error: Error) -> TsHeartbeatResponsePb {
    TsHeartbeatResponsePb { error: Some(invalid(error)), ..TsHeartbeatResponsePb::default() }
}

/// Rejects a tablet server with another replica management scheme, because the two would remove each other's replicas.
fn check_replica_management(request: &TsHeartbeatRequestPb) -> Result<()> {
    let Some(info) = &request.replica_management_info else { return Ok(()) };
    if info.replacement_scheme() == ReplacementScheme::PrepareReplacementBeforeEviction {
        return Ok(());
    }
    let error = Error::invalid(format!(
        "this master replaces replicas by PREPARE_REPLACEMENT_BEFORE_EVICTION, the tablet server by {}; \
         set them alike",
        info.replacement_scheme().as_str_name()
    ));
    Err(master_error(Code::IncompatibleReplicaManagement, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_asks_again_after_a_master_without_the_ca() {
        let code = |error: &Error| unsigned(error).code();
        assert_eq!(code(&Error::not_ready("no CA")), Code::CatalogManagerNotInitialized);
        assert_eq!(code(&Error::invalid("no request")), Code::UnknownError);
    }
}
