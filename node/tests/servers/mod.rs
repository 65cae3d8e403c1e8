//! Tablet servers as separate processes, without a master.
#![allow(dead_code, reason = "each program uses a part")]

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use bytes::Bytes;
use engine::ids::Uuid;
use engine::schema::row_ops::RowOpKind;
use engine::schema::{ColumnSchema, DataType, Schema};
use nyala_common::env::Env;
use nyala_common::env::os::{OsEnv, OsOptions};
use nyala_common::rpc::RequestIdPb;
use nyala_common::rpc::client::{CallOptions, Proxy, RpcError};
use nyala_common::wire::schema;
use nyala_proto::kudu::consensus::{
    GetConsensusStateRequestPb, GetConsensusStateResponsePb, RaftConfigPb, RaftPeerPb,
};
use nyala_proto::kudu::server::{GetStatusRequestPb, GetStatusResponsePb};
use nyala_proto::kudu::tserver::{
    CreateTabletRequestPb, CreateTabletResponsePb, NewScanRequestPb, ScanRequestPb, ScanResponsePb,
    WriteRequestPb, WriteResponsePb,
};
use nyala_proto::kudu::{HostPortPb, PartitionPb, PartitionSchemaPb, ReadMode, RowOperationsPb};
use prost::Message;

const CLIENT: &str = "kudu.tserver.TabletServerService";
const ADMIN: &str = "kudu.tserver.TabletServerAdminService";
const CONSENSUS: &str = "kudu.consensus.ConsensusService";
const GENERIC: &str = "kudu.server.GenericService";
pub(crate) const COUNT: usize = 3;

/// Three tablet servers as processes, and connections to them.
pub(crate) struct Servers {
    pub env: Env,
    dir: tempfile::TempDir,
    settings: Vec<String>,
    addrs: Vec<SocketAddr>,
    pub children: Vec<Option<Child>>,
    proxies: Vec<Proxy>,
    uuids: Vec<Bytes>,
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ignored = child.kill();
            let _ignored = child.wait();
        }
    }
}

impl Servers {
    pub(crate) async fn start(settings: &[&str]) -> Servers {
        let mut servers = Servers::planned(settings);
        servers.launch().await;
        servers
    }

    /// Chooses addresses and directories without starting the servers.
    pub(crate) fn planned(settings: &[&str]) -> Servers {
        let env = OsEnv::new(&OsOptions::default()).unwrap();
        // Connections leave from 127.0.0.1: none takes the port of a server that is down for a while.
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let own = Ipv4Addr::new(127, 64 | (high & 0x3f), middle, low);
        let free: Vec<TcpListener> = (0..COUNT).map(|_| TcpListener::bind((own, 0)).unwrap()).collect();
        let addrs: Vec<SocketAddr> = free.iter().map(|listener| listener.local_addr().unwrap()).collect();
        drop(free);
        // Tablets are created and members called by servers only.
        let user = env.disks.process_user().unwrap();
        let proxies = addrs.iter().map(|addr| Proxy::new(env.clone(), *addr, &user)).collect();
        Servers {
            env,
            dir: tempfile::tempdir().unwrap(),
            settings: settings.iter().map(ToString::to_string).collect(),
            addrs,
            children: (0..COUNT).map(|_| None).collect(),
            proxies,
            uuids: Vec::new(),
        }
    }

    /// Starts all servers.
    pub(crate) async fn launch(&mut self) {
        for number in 0..COUNT {
            self.run(number);
        }
        for number in 0..COUNT {
            let uuid = self.uuid(number).await;
            self.uuids.push(uuid);
        }
    }

    /// Returns the directory of a server.
    pub(crate) fn dir(&self, number: usize) -> PathBuf {
        self.dir.path().join(number.to_string())
    }

    pub(crate) fn run(&mut self, number: usize) {
        let (dir, addr) = (format!("--fs-wal-dir={}", self.dir(number).display()), self.addrs[number]);
        let addr = format!("--rpc-bind-addresses={addr}");
        let mut command =
            super::common::nyala(&["tserver", &dir, &addr, "--webserver-enabled=false", "--log-level=warn"]);
        // No master listens at this address.
        command.args(["--tserver-master-addrs=127.0.0.1:1", "--superuser-acl=*"]).args(&self.settings);
        self.children[number] = Some(command.spawn().unwrap());
    }

    pub(crate) fn kill(&mut self, number: usize) {
        let mut child = self.children[number].take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    async fn call<Q: Message, R: Message + Default>(
        &self,
        number: usize,
        (service, method): (&str, &str),
        request: &Q,
        request_id: Option<RequestIdPb>,
    ) -> Result<R, RpcError> {
        let deadline = self.env.now().mono.after(Duration::from_secs(5));
        let options = CallOptions { request_id, ..CallOptions::default() };
        let called = self.proxies[number].call(service, method, request, deadline, options).await;
        called.map(|response| response.message)
    }

    /// Waits until the server replies, and returns its id.
    pub(crate) async fn uuid(&self, number: usize) -> Bytes {
        loop {
            let request = GetStatusRequestPb {};
            let status: Result<GetStatusResponsePb, _> =
                self.call(number, (GENERIC, "GetStatus"), &request, None).await;
            match status {
                Ok(response) => return response.status.node_instance.permanent_uuid,
                Err(_) => self.env.sleep(Duration::from_millis(20)).await,
            }
        }
    }

    pub(crate) async fn create(&self, tablet: Uuid) {
        let peers: Vec<RaftPeerPb> = (0..COUNT)
            .map(|number| RaftPeerPb {
                permanent_uuid: Some(self.uuids[number].clone()),
                member_type: Some(1),
                last_known_addr: Some(HostPortPb {
                    host: self.addrs[number].ip().to_string(),
                    port: self.addrs[number].port().into(),
                }),
                ..Default::default()
            })
            .collect();
        for number in 0..COUNT {
            let request = CreateTabletRequestPb {
                dest_uuid: Some(self.uuids[number].clone()),
                table_id: schema::id_bytes(&Uuid([1; 16])),
                tablet_id: schema::id_bytes(&tablet),
                partition: Some(PartitionPb::default()),
                table_name: "t".to_string(),
                schema: schema::schema_to_pb(&schema()),
                partition_schema: Some(PartitionSchemaPb::default()),
                config: RaftConfigPb { opid_index: Some(-1), peers: peers.clone(), ..Default::default() },
                ..Default::default()
            };
            let created: CreateTabletResponsePb =
                self.call(number, (ADMIN, "CreateTablet"), &request, None).await.unwrap();
            assert_eq!(created.error, None);
        }
    }

    /// Waits for and returns the server that claims leadership of the highest known term.
    pub(crate) async fn leader(&self, tablet: Uuid) -> usize {
        loop {
            let mut newest = (-1, None);
            for number in (0..COUNT).filter(|number| self.children[*number].is_some()) {
                let request = GetConsensusStateRequestPb {
                    tablet_ids: vec![schema::id_bytes(&tablet)],
                    ..Default::default()
                };
                let state: Result<GetConsensusStateResponsePb, _> =
                    self.call(number, (CONSENSUS, "GetConsensusState"), &request, None).await;
                let Ok(state) = state else { continue };
                let Some(state) = state.tablets.into_iter().next().and_then(|tablet| tablet.cstate) else {
                    continue;
                };
                let leads = state.leader_uuid().as_bytes() == self.uuids[number];
                if state.current_term > newest.0 || leads && state.current_term == newest.0 {
                    newest = (state.current_term, leads.then_some(number));
                }
            }
            match newest.1 {
                Some(leader) => return leader,
                None => self.env.sleep(Duration::from_millis(5)).await,
            }
        }
    }

    /// Inserts a row: tries one server after the other until one accepts it. Returns that server.
    pub(crate) async fn insert(&self, tablet: Uuid, key: i64) -> usize {
        self.insert_at(tablet, key, 0, 1).await
    }

    /// As [`Servers::insert`], as one of several clients, first at the server `number`. Each client inserts ascending
    /// keys.
    pub(crate) async fn insert_at(&self, tablet: Uuid, key: i64, client: u8, mut number: usize) -> usize {
        let mut attempt_no = 0;
        loop {
            attempt_no += 1;
            let client_id = format!("0123456789abcdef0123456789abcd{client:02x}");
            let id = RequestIdPb { client_id, seq_no: key, first_incomplete_seq_no: key, attempt_no };
            let written: Result<WriteResponsePb, _> =
                self.call(number, (CLIENT, "Write"), &insert(tablet, key), Some(id)).await;
            match written {
                Ok(response) if response.error.is_none() => {
                    assert_eq!(response.per_row_errors, [], "row {key} was written once");
                    return number;
                }
                _ => self.env.sleep(Duration::from_millis(1)).await,
            }
            number = (number + 1) % COUNT;
        }
    }

    /// Returns all keys on one server, at a snapshot timestamp chosen by the server.
    pub(crate) async fn keys(&self, number: usize, tablet: Uuid) -> Vec<i64> {
        let new = NewScanRequestPb {
            tablet_id: schema::id_bytes(&tablet),
            projected_columns: schema::schema_to_client_pb(&schema()).columns,
            read_mode: Some(ReadMode::ReadAtSnapshot as i32),
            ..Default::default()
        };
        let open = ScanRequestPb { new_scan_request: Some(new), call_seq_id: Some(0), ..Default::default() };
        loop {
            let deadline = self.env.now().mono.after(Duration::from_secs(5));
            let options = CallOptions::default();
            let scanned = self.proxies[number].call(CLIENT, "Scan", &open, deadline, options).await;
            match scanned {
                Ok(response) => {
                    let message: ScanResponsePb = response.message;
                    if message.error.is_none() {
                        assert!(!message.has_more_results());
                        let key = |key: &[u8]| i64::from_le_bytes(key.try_into().unwrap());
                        return response.sidecars[0].chunks(8).map(key).collect();
                    }
                }
                Err(error) => assert!(error.is_busy() || error.is_unreachable(), "{error}"),
            }
            self.env.sleep(Duration::from_millis(20)).await;
        }
    }
}

fn schema() -> Schema {
    Schema::new(vec![ColumnSchema::new(0, "key", DataType::Int64)], 1).unwrap()
}

fn insert(tablet: Uuid, key: i64) -> WriteRequestPb {
    let mut rows = vec![RowOpKind::Insert as u8, 1];
    rows.extend(key.to_le_bytes());
    WriteRequestPb {
        tablet_id: schema::id_bytes(&tablet),
        schema: Some(schema::schema_to_client_pb(&schema())),
        row_operations: Some(RowOperationsPb { rows: Some(Bytes::from(rows)), indirect_data: None }),
        ..Default::default()
    }
}

/// Id of the test tablet.
pub(crate) const TABLET: Uuid = Uuid([7; 16]);
