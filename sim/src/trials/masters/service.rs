//! The services of the made-up tablet servers.

use std::future::pending;
use std::sync::Arc;

use engine::ids::Uuid;
use engine::sync::Mutex;
use node::server::security::ServerIdentity;
use nyala_common::env::{BoxFuture, Env};
use nyala_common::rpc::server::RpcServer;
use nyala_common::rpc::{Call, MethodInfo, Reply, RpcConfig, Service};
use nyala_common::security::acl::MethodRole;
use nyala_common::wire::schema::id_bytes;
use nyala_proto::kudu::consensus::bulk_change_config_request_pb::ConfigChangeItemPb;
use nyala_proto::kudu::consensus::get_consensus_state_response_pb::TabletConsensusInfoPb;
use nyala_proto::kudu::consensus::{
    BulkChangeConfigRequestPb, ChangeConfigResponsePb, GetConsensusStateRequestPb,
    GetConsensusStateResponsePb, LeaderStepDownResponsePb,
};
use nyala_proto::kudu::tserver::{
    AlterSchemaResponsePb, CreateTabletResponsePb, DeleteTabletResponsePb, QuiesceTabletServerResponsePb,
    TabletServerErrorPb,
};
use sim_plan::SecuritySpec;

use super::beats::Beats;
use super::orders::Refused;
use super::settings::MASTERS;
use super::state::State;
use crate::security;
use crate::trials::fleet::host;
use crate::wire::client::{ADMIN, CONSENSUS};
use crate::workload::TSERVER_PORT;
use crate::world::ProgramResult;

const ADMIN_METHODS: [MethodInfo; 4] =
    [method("CreateTablet"), method("DeleteTablet"), method("AlterSchema"), method("Quiesce")];
const CONSENSUS_METHODS: [MethodInfo; 4] = [
    method("ChangeConfig"),
    method("BulkChangeConfig"),
    method("GetConsensusState"),
    method("LeaderStepDown"),
];

const fn method(name: &'static str) -> MethodInfo {
    MethodInfo { name, role: MethodRole::Service, audited: false, tracked: false, required: &[] }
}

struct DoubleService {
    env: Env,
    state: Arc<Mutex<State>>,
    number: usize,
    name: &'static str,
    methods: &'static [MethodInfo],
}

fn error(result: Result<(), Refused>) -> Option<TabletServerErrorPb> {
    result.err().map(|refused| *refused)
}

impl DoubleService {
    fn execute(&self, call: &Call) -> Result<Reply, Reply> {
        let (mut state, number, now) = (self.state.lock(), self.number, self.env.now().mono);
        Ok(match call.method {
            "CreateTablet" => {
                let error = error(state.create_tablet(number, &call.decode()?, now));
                Reply::message(&CreateTabletResponsePb { error })
            }
            "DeleteTablet" => {
                let error = error(state.delete_tablet(number, &call.decode()?));
                Reply::message(&DeleteTabletResponsePb { error })
            }
            "AlterSchema" => {
                let error = error(state.alter_schema(number, &call.decode()?));
                Reply::message(&AlterSchemaResponsePb { error, timestamp: None })
            }
            "Quiesce" => Reply::message(&QuiesceTabletServerResponsePb::default()),
            "ChangeConfig" => {
                let error = error(state.change_config(number, &call.decode()?, now));
                Reply::message(&ChangeConfigResponsePb { error, ..Default::default() })
            }
            "BulkChangeConfig" => {
                let error = error(self.change_many(&mut state, &call.decode()?));
                Reply::message(&ChangeConfigResponsePb { error, ..Default::default() })
            }
            "GetConsensusState" => Reply::message(&self.states(&state, &call.decode()?)),
            "LeaderStepDown" => {
                let error = error(state.step_down(number, &call.decode()?));
                Reply::message(&LeaderStepDownResponsePb { error })
            }
            other => return Err(Reply::no_such_method(other)),
        })
    }

    fn change_many(&self, state: &mut State, request: &BulkChangeConfigRequestPb) -> Result<(), Refused> {
        let id = state.check_destination(self.number, request.dest_uuid.as_deref())?;
        let item = |item: &ConfigChangeItemPb| (item.r#type(), item.peer.clone().unwrap_or_default());
        let changes: Vec<_> = request.config_changes.iter().map(item).collect();
        let now = self.env.now().mono;
        state.change_members(id, &request.tablet_id, request.cas_config_opid_index, &changes, now)
    }

    fn states(&self, state: &State, request: &GetConsensusStateRequestPb) -> GetConsensusStateResponsePb {
        let server = &state.servers[self.number];
        let named = |id: &[u8]| request.tablet_ids.is_empty() || request.tablet_ids.iter().any(|of| of == id);
        let own = server.replicas.keys().filter(|tablet| named(&id_bytes(tablet)));
        let info = |tablet: &Uuid| TabletConsensusInfoPb {
            tablet_id: id_bytes(tablet),
            cstate: state.groups.get(tablet).map(|group| group.state(server.id())),
        };
        GetConsensusStateResponsePb { tablets: own.map(info).collect(), ..Default::default() }
    }
}

impl Service for DoubleService {
    fn name(&self) -> &'static str {
        self.name
    }

    fn features(&self) -> &'static [u32] {
        &[]
    }

    fn methods(&self) -> &'static [MethodInfo] {
        self.methods
    }

    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply> {
        call.release_slot();
        Box::pin(async move { self.execute(&call).unwrap_or_else(|error| error) })
    }
}

/// Serves a tablet server until its host dies.
pub(super) async fn serve(
    env: Env,
    state: Arc<Mutex<State>>,
    number: usize,
    security: Option<SecuritySpec>,
) -> ProgramResult {
    let settings = security.map(|spec| security::settings(&spec, host(number)));
    let identity = ServerIdentity::new(&env, settings.as_ref(), &host(number).name())?;
    let mut config = RpcConfig::default();
    if settings.is_some() {
        security::require(&mut config);
    }
    let listener = env.net.listen(([0, 0, 0, 0], TSERVER_PORT).into()).await?;
    let life = state.lock().servers[number].start(env.now().mono);
    let service = |name, methods| {
        Arc::new(DoubleService { env: env.clone(), state: state.clone(), number, name, methods })
    };
    let _server = RpcServer::new(env.clone(), config)
        .with_security(identity.server())
        .add(service(ADMIN, &ADMIN_METHODS))
        .add(service(CONSENSUS, &CONSENSUS_METHODS))
        .serve(listener);
    for master in 0..MASTERS {
        let beats = Beats::new(env.clone(), state.clone(), (number, life), master, identity.clone());
        env.spawn("beats", beats.run());
    }
    pending().await
}
