//! The operator's calls to servers, and the states of their replicas.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::raft::{RaftStatus, Role};
use engine::sync::Mutex;
use futures_util::future::join;
use node::hosting::replica::ReplicaHandle;
use node::hosting::tablet_entry::EntryState;
use nyala_common::env::Env;
use nyala_common::rpc::client::CallOptions;
use nyala_common::wire::schema::{id_bytes, schema_to_pb};
use nyala_proto::kudu::consensus::raft_peer_pb::MemberType;
use nyala_proto::kudu::consensus::{RaftConfigPb, RaftPeerPb};
use nyala_proto::kudu::tserver::{
    CreateTabletRequestPb, CreateTabletResponsePb, WriteRequestPb, WriteResponsePb,
};
use nyala_proto::kudu::{HostPortPb, PartitionPb, PartitionSchemaPb};
use prost::Message;

use super::{HostingTrial, MEMBERS, SERVERS, TABLE, TABLET, host};
use crate::trials::rows::TrialRows;
use crate::trials::{draw, shape};
use crate::wire::client::{ADMIN, CallFailure, PlainClient, TSERVER, text_of};
use crate::wire::schema;
use crate::workload::TSERVER_PORT;
use crate::world::{HostProgram, World};

/// Machine of the operator, where no server is.
pub(super) const OPERATOR: &str = "operator";
/// Timeout of a call.
const CALL: Duration = Duration::from_secs(2);
/// Most rows of a write.
const ROWS: u64 = 8;

/// A call to a server.
#[derive(Clone)]
pub(super) struct OneCall<Q> {
    pub server: usize,
    pub service: &'static str,
    pub method: &'static str,
    pub request: Q,
}

impl<Q: Message> OneCall<Q> {
    async fn make<R: Message + Default>(self, env: Env) -> Result<R, CallFailure> {
        let mut client = PlainClient::new(env, Vec::new(), 0, CALL);
        let (address, options) = (address(self.server), CallOptions::default());
        let called = client.call(&address, self.service, self.method, &self.request, options).await;
        called.map(|reply| reply.message)
    }
}

impl HostingTrial {
    /// Makes one call to a server.
    pub(super) fn call<Q, R>(
        &mut self,
        server: usize,
        (service, method): (&'static str, &'static str),
        request: Q,
    ) -> Result<R, CallFailure>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        self.send(OneCall { server, service, method, request })
    }

    /// Makes a call that was prepared.
    pub(super) fn send<Q, R>(&mut self, call: OneCall<Q>) -> Result<R, CallFailure>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let reply = self.run_client(move |env| call.clone().make(env));
        reply.unwrap_or_else(|| Err(CallFailure::Unknown("no reply".to_string())))
    }

    /// Makes two calls at once, the second one later by `delay`.
    pub(super) fn call_both<Q, R, P, S>(
        &mut self,
        first: OneCall<Q>,
        delay: Duration,
        second: OneCall<P>,
    ) -> Option<(Result<R, CallFailure>, Result<S, CallFailure>)>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
        P: Message + Clone + 'static,
        S: Message + Default + 'static,
    {
        self.run_client(move |env| {
            let (first, second) = (first.clone(), second.clone());
            async move {
                let later = async {
                    env.sleep(delay).await;
                    second.make(env.clone()).await
                };
                join(first.make(env.clone()), later).await
            }
        })
    }

    /// Runs a program on the operator's machine; returns its result if it ends in time.
    fn run_client<T, F>(&mut self, program: impl Fn(Env) -> F + Send + Sync + 'static) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let result: Arc<Mutex<Option<T>>> = Arc::default();
        let into = result.clone();
        let program: HostProgram = Arc::new(move |env| {
            let (into, running) = (into.clone(), program(env));
            Box::pin(async move {
                let ended = running.await;
                *into.lock() = Some(ended);
                Ok(())
            })
        });
        // Ends the program of the last call.
        self.world.kill(OPERATOR);
        self.world.client(OPERATOR, program);
        let until = self.world.now() + CALL * 2;
        self.run_until(until);
        result.lock().take()
    }

    pub(super) fn create_tablet(&mut self) {
        let members = RaftConfigPb {
            opid_index: Some(-1),
            peers: (0..MEMBERS).map(|server| self.peer(server, MemberType::Voter)).collect(),
            ..Default::default()
        };
        for server in 0..MEMBERS {
            let request = CreateTabletRequestPb {
                dest_uuid: Some(id_bytes(&self.ids[server])),
                table_id: id_bytes(&TABLE),
                tablet_id: tablet_id(),
                partition: Some(PartitionPb::default()),
                table_name: "trial".to_string(),
                schema: schema_to_pb(&self.schema),
                partition_schema: Some(PartitionSchemaPb::default()),
                config: members.clone(),
                ..Default::default()
            };
            // The first ones may have had it copied there before this arrives.
            let created: Result<CreateTabletResponsePb, _> =
                self.call(server, (ADMIN, "CreateTablet"), request);
            let refused = created.map(|reply| reply.error.map(|error| text_of(&error.status)));
            self.note(format!("creation at {server}: {refused:?}"));
        }
    }

    /// Writes some rows; their answers do not matter here.
    pub(super) fn write(&mut self) {
        let Some(leader) = self.leader() else { return };
        let count = self.random.between(1, ROWS);
        let rows = draw::rows(&mut self.random, &self.table, &TrialRows::default(), count);
        let request = WriteRequestPb {
            tablet_id: tablet_id(),
            schema: Some(schema::columns(&self.table.columns, self.table.key_columns().len())),
            row_operations: Some(shape::encoded(&self.table, &rows)),
            ..Default::default()
        };
        let written: Result<WriteResponsePb, _> = self.call(leader, (TSERVER, "Write"), request);
        let refused = written.map(|reply| reply.error.map(|error| text_of(&error.status)));
        self.note(format!("{count} rows at {leader}: {refused:?}"));
    }

    /// Returns a server as a member.
    pub(super) fn peer(&self, server: usize, member: MemberType) -> RaftPeerPb {
        RaftPeerPb {
            permanent_uuid: Some(id_bytes(&self.ids[server])),
            member_type: Some(member as i32),
            last_known_addr: Some(host_port(server)),
            ..Default::default()
        }
    }

    /// Returns the state of the tablet at a server; `None` if it runs without one, or not at all.
    pub(super) fn state(&self, server: usize) -> Option<EntryState> {
        let servers = self.observer.running().all();
        let (_, running) = servers.into_iter().find(|(of, _)| *of == host(server) && self.up[server])?;
        running.tablets.get(TABLET).map(|entry| entry.state())
    }

    /// Returns a server's replica, if it runs and has not failed.
    pub(super) fn replica(&self, server: usize) -> Option<ReplicaHandle> {
        match self.state(server)? {
            EntryState::Running(replica) if !replica.is_stopped() => Some(replica),
            _ => None,
        }
    }

    pub(super) fn status(&self, server: usize) -> Option<Arc<RaftStatus>> {
        self.replica(server).map(|replica| replica.status())
    }

    /// Returns the leader of the newest term, if there is one.
    pub(super) fn leader(&self) -> Option<usize> {
        let statuses = (0..SERVERS).filter_map(|server| Some((server, self.status(server)?)));
        let leaders = statuses.filter(|(_, status)| status.role == Role::Leader);
        leaders.max_by_key(|(_, status)| status.term).map(|(server, _)| server)
    }
}

fn host_port(server: usize) -> HostPortPb {
    HostPortPb { host: host(server).name(), port: u32::from(TSERVER_PORT) }
}

fn address(server: usize) -> String {
    format!("{}:{TSERVER_PORT}", host(server))
}

/// Returns the tablet's id in a request.
pub(super) fn tablet_id() -> Bytes {
    id_bytes(&TABLET)
}
