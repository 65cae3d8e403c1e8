//! Calls of an access trial: each is done, refused for want of a right, or for want of a valid token.

use std::time::Duration;

use bytes::Bytes;
use engine::ids::{PeerId, TabletId, Uuid};
use engine::time::Timestamp;
use nyala_common::env::Env;
use nyala_common::rpc::client::{CallOptions, Proxy, RpcError, RpcResponse};
use nyala_common::wire::schema::id_bytes;
use nyala_proto::kudu::HostPortPb;
use nyala_proto::kudu::consensus::RaftPeerPb;
use nyala_proto::kudu::consensus::raft_peer_pb::MemberType;
use nyala_proto::kudu::security::SignedTokenPb;
use nyala_proto::kudu::tserver::*;
use prost::Message;
use sim_plan::RandomStream;
use sim_plan::client_ops::RowsFormat;
use sim_plan::tables::{ColumnSpec, ModelTable};

use super::names::{CALLER, SERVER, SUPERUSER};
use super::rights::{ReadShape, Rights};
use super::tokens::{Issuer, TokenKind};
use super::verdict::{self, Verdict, expect, verdict};
use crate::model::{ColNo, Condition, draws};
use crate::security::SERVICE;
use crate::trials::rows::TrialRows;
use crate::trials::{draw, requests, shape};
use crate::wire::client::{ADMIN, TSERVER, text_of};
use crate::wire::scan::{ScanTime, TabletScan};
use crate::wire::{keys, schema};
use crate::workload::TSERVER_PORT;

const TABLET: TabletId = Uuid([7; 16]);
const TABLE: Uuid = Uuid([8; 16]);
/// Calls of a trial.
const CALLS: usize = 60;
/// Timeout of a call, and attempts until the tablet has a leader.
const TIMEOUT: Duration = Duration::from_secs(10);
const ATTEMPTS: usize = 100;
const PAUSE: Duration = Duration::from_millis(50);
/// Span of a diff scan, shorter than the history that is kept.
const DIFF_MICROS: u64 = 1_000_000;
/// Most rows of a write.
const ROWS: u64 = 4;

pub(super) struct AccessCalls {
    env: Env,
    random: RandomStream,
    table: ModelTable,
    issuer: Issuer,
}

impl AccessCalls {
    pub(super) fn new(env: Env, random: RandomStream, table: ModelTable, issuer: Issuer) -> AccessCalls {
        AccessCalls { env, random, table, issuer }
    }

    /// Creates the tablet and makes all calls; returns what is wrong.
    pub(super) async fn play(mut self) -> Result<(), String> {
        self.create().await?;
        for number in 0..CALLS {
            let done = match self.random.below(10) {
                0..4 => self.write().await,
                4..8 => self.scan().await,
                8 => self.split().await,
                _ => self.checksum().await,
            };
            done.map_err(|what| format!("call {number}: {what}"))?;
        }
        Ok(())
    }

    async fn create(&mut self) -> Result<(), String> {
        let own = shape::schema_of(&self.table).map_err(|error| error.to_string())?;
        let id = self.server_id().await?;
        let peer = RaftPeerPb {
            permanent_uuid: Some(id_bytes(&id)),
            member_type: Some(MemberType::Voter as i32),
            last_known_addr: Some(HostPortPb { host: SERVER.name(), port: u32::from(TSERVER_PORT) }),
            ..Default::default()
        };
        let request = requests::create_tablet(id, (TABLE, TABLET), &own, vec![peer]);
        let created: CreateTabletResponsePb = self.done_by(SERVICE, ADMIN, "CreateTablet", &request).await?;
        created.error.map_or(Ok(()), |error| Err(text_of(&error.status)))?;
        let token = self.issuer.token(TokenKind::Valid, &Rights::all(), &TABLE.to_string());
        for _ in 0..ATTEMPTS {
            let request = self.write_request(1, token.clone()).0;
            let reply: WriteResponsePb = self.done_by(CALLER, TSERVER, "Write", &request).await?;
            if reply.error.is_none() {
                return Ok(());
            }
            self.env.sleep(PAUSE).await;
        }
        Err("the tablet does not lead".to_string())
    }

    async fn server_id(&mut self) -> Result<PeerId, String> {
        let request = ListTabletsRequestPb::default();
        let _: ListTabletsResponsePb = self.done_by(SUPERUSER, TSERVER, "ListTablets", &request).await?;
        let request = nyala_proto::kudu::server::GetStatusRequestPb {};
        let reply: nyala_proto::kudu::server::GetStatusResponsePb =
            self.done_by(SUPERUSER, "kudu.server.GenericService", "GetStatus", &request).await?;
        Uuid::parse(&reply.status.node_instance.permanent_uuid).map_err(|error| error.to_string())
    }

    /// Makes a call that must be executed.
    async fn done_by<Q: Message, R: Message + Default>(
        &mut self,
        user: &str,
        service: &str,
        method: &str,
        request: &Q,
    ) -> Result<R, String> {
        let reply = self.call(user, service, method, request, Vec::new()).await;
        reply.map(|reply| reply.message).map_err(|error| format!("{method} by {user}: {error}"))
    }

    async fn call<Q: Message, R: Message + Default>(
        &mut self,
        user: &str,
        service: &str,
        method: &str,
        request: &Q,
        features: Vec<u32>,
    ) -> Result<RpcResponse<R>, RpcError> {
        let address = format!("{}:{TSERVER_PORT}", SERVER.name());
        let proxy = Proxy::new(self.env.clone(), address.as_str(), user);
        let deadline = self.env.now().mono.after(TIMEOUT);
        let options = CallOptions { features, ..CallOptions::default() };
        proxy.call(service, method, request, deadline, options).await
    }

    /// Draws the rights, kind and token of the next call; the caller derives what to expect from the first two.
    fn draw_token(&mut self) -> (Rights, TokenKind, Option<SignedTokenPb>) {
        let rights = Rights::draw(&mut self.random, &self.table);
        let kind = TokenKind::draw(&mut self.random);
        let token = self.issuer.token(kind, &rights, &TABLE.to_string());
        (rights, kind, token)
    }

    fn write_request(
        &mut self,
        rows: u64,
        token: Option<SignedTokenPb>,
    ) -> (WriteRequestPb, Vec<crate::model::RowWrite>) {
        let rows = draw::rows(&mut self.random, &self.table, &TrialRows::default(), rows);
        let request = WriteRequestPb { authz_token: token, ..requests::write(TABLET, &self.table, &rows) };
        (request, rows)
    }

    async fn write(&mut self) -> Result<(), String> {
        let (rights, kind, token) = self.draw_token();
        let count = self.random.between(1, ROWS);
        let (request, rows) = self.write_request(count, token);
        let kinds: Vec<_> = rows.iter().map(|row| row.kind).collect();
        let before = self.checksum_of_all().await?;
        let reply: Result<RpcResponse<WriteResponsePb>, RpcError> =
            self.call(CALLER, TSERVER, "Write", &request, Vec::new()).await;
        let error = |reply: &WriteResponsePb| reply.error.as_ref().map(|error| text_of(&error.status));
        let told = verdict(reply, error)?;
        let after = self.checksum_of_all().await?;
        if told != Verdict::Done && before != after {
            return Err(format!("a write of {kinds:?} with {rights:?} is refused and changes rows"));
        }
        expect(kind, rights.may_write(&kinds), Verdict::Done, told, || {
            format!("a write of {kinds:?} with {rights:?}")
        })
    }

    /// Returns the checksum and the number of all rows, which a superuser may see without a token.
    async fn checksum_of_all(&mut self) -> Result<(u64, i64), String> {
        let scan = self.scan_of(self.table.columns.clone());
        let request = ChecksumRequestPb {
            new_request: Some(scan.request(&TABLET.to_string(), 0, None)),
            batch_size_bytes: Some(u32::MAX),
            ..Default::default()
        };
        let reply: ChecksumResponsePb = self.done_by(SUPERUSER, TSERVER, "Checksum", &request).await?;
        Ok((reply.checksum(), reply.rows_checksummed()))
    }

    /// Returns a scan of the newest rows.
    fn scan_of(&self, columns: Vec<ColumnSpec>) -> TabletScan {
        TabletScan {
            columns,
            keys: self.table.key_columns().len(),
            conditions: Vec::new(),
            lower: None,
            upper: None,
            time: ScanTime::Latest,
            since: None,
            ordered: false,
            limit: None,
            format: RowsFormat::RowWise,
        }
    }

    /// Draws a scan, and what it depends on.
    fn draw_scan(&mut self) -> (TabletScan, ReadShape) {
        let (table, now) = (self.table.clone(), self.env.now().wall.micros);
        let stamp = |micros: u64| Timestamp::from_micros(micros).0;
        let some = |random: &mut RandomStream, percent: u64| -> Vec<ColumnSpec> {
            table.columns.iter().filter(|_| random.percent(percent)).cloned().collect()
        };
        let random = &mut self.random;
        let percent = random.pick(&[0, 40, 70]);
        let projected = some(random, percent);
        let filtered = some(random, 15);
        let old_form = if random.percent(5) { some(random, 25) } else { Vec::new() };
        let bounded = random.percent(15);
        let tells_changes = random.percent(10);
        let ordered = tells_changes || random.percent(15);
        let lower = bounded.then(|| {
            let cells = draws::row(random, &table, sim_plan::client_ops::WriteKind::Delete).cells;
            let cell = |number: u8| cells.get(&number).cloned().unwrap_or(sim_plan::tables::Value::Null);
            keys::primary_key(&table, &cell)
        });
        let lower = lower.filter(|key| !key.is_empty());
        let numbers = |columns: &[ColumnSpec]| columns.iter().map(|column| column.number).collect();
        let shape = ReadShape {
            projected: numbers(&projected),
            filtered: numbers(&filtered),
            old_form: numbers(&old_form),
            uses_keys: ordered || lower.is_some(),
            tells_changes,
        };
        let scan = TabletScan {
            conditions: filtered.into_iter().map(|column| (column, Condition::NotNull)).collect(),
            lower,
            time: match (tells_changes, ordered) {
                (true, _) => ScanTime::Named(stamp(now)),
                (false, true) => ScanTime::Chosen,
                (false, false) => ScanTime::Latest,
            },
            since: tells_changes.then(|| stamp(now - DIFF_MICROS)),
            ordered,
            ..self.scan_of(projected)
        };
        (scan, shape)
    }

    fn new_scan(
        &self,
        scan: &TabletScan,
        shape: &ReadShape,
        token: Option<SignedTokenPb>,
    ) -> NewScanRequestPb {
        let keys = self.table.key_columns().len();
        let column = |number: &ColNo| self.table.columns.iter().find(|column| column.number == *number);
        let old_form = shape.old_form.iter().filter_map(column).map(|of| ColumnRangePredicatePb {
            column: schema::column(of, usize::from(of.number) < keys),
            ..Default::default()
        });
        NewScanRequestPb {
            authz_token: token,
            deprecated_range_predicates: old_form.collect(),
            ..scan.request(&TABLET.to_string(), 0, None)
        }
    }

    async fn scan(&mut self) -> Result<(), String> {
        let (rights, kind, token) = self.draw_token();
        let (scan, shape) = self.draw_scan();
        let new = self.new_scan(&scan, &shape, token);
        let request = ScanRequestPb {
            new_scan_request: Some(new),
            batch_size_bytes: Some(self.random.pick(&[0, 1, 1 << 20])),
            ..Default::default()
        };
        let reply: Result<RpcResponse<ScanResponsePb>, RpcError> =
            self.call(CALLER, TSERVER, "Scan", &request, scan.features()).await;
        let scanner = reply.as_ref().ok().and_then(|reply| reply.message.scanner_id.clone());
        let error = |reply: &ScanResponsePb| reply.error.as_ref().map(|error| text_of(&error.status));
        let told = verdict(reply, error)?;
        let allowed = rights.may_read(&self.table, &shape);
        expect(kind, allowed, verdict::allowed(&shape), told, || {
            format!("a scan of {shape:?} with {rights:?}")
        })?;
        match scanner {
            Some(scanner) => self.continue_as_other(scanner).await,
            None => Ok(()),
        }
    }

    /// Continues a scan as another user than its own, who must not get a row.
    async fn continue_as_other(&mut self, scanner: Bytes) -> Result<(), String> {
        let request = ScanRequestPb {
            scanner_id: Some(scanner),
            call_seq_id: Some(1),
            batch_size_bytes: Some(1 << 20),
            ..Default::default()
        };
        let reply: Result<RpcResponse<ScanResponsePb>, RpcError> =
            self.call("other", TSERVER, "Scan", &request, Vec::new()).await;
        match reply {
            Ok(reply) if reply.message.error.is_none() => Err("another user continues a scan".to_string()),
            _ => Ok(()),
        }
    }

    async fn split(&mut self) -> Result<(), String> {
        let (rights, kind, token) = self.draw_token();
        let (scan, shape) = self.draw_scan();
        let new = scan.request(&TABLET.to_string(), 0, None);
        let keys = self.table.key_columns().len();
        let request = SplitKeyRangeRequestPb {
            tablet_id: id_bytes(&TABLET),
            start_primary_key: new.start_primary_key,
            // Every key that the tablet has a sample of bounds a range.
            target_chunk_size_bytes: Some(1),
            columns: scan
                .columns
                .iter()
                .map(|column| schema::column(column, usize::from(column.number) < keys))
                .collect(),
            authz_token: token,
            ..Default::default()
        };
        let reply: Result<RpcResponse<SplitKeyRangeResponsePb>, RpcError> =
            self.call(CALLER, TSERVER, "SplitKeyRange", &request, Vec::new()).await;
        let error =
            |reply: &SplitKeyRangeResponsePb| reply.error.as_ref().map(|error| text_of(&error.status));
        let ranges = reply.as_ref().map_or(Vec::new(), |reply| reply.message.ranges.clone());
        let told = verdict(reply, error)?;
        let bounded = request.start_primary_key.is_some();
        let projected = shape.projected;
        let shape = ReadShape { projected, uses_keys: bounded, ..ReadShape::default() };
        let keyed = ReadShape { uses_keys: true, ..shape.clone() };
        if !rights.may_read(&self.table, &keyed)
            && ranges.iter().any(|range| range.stop_primary_key.is_some())
        {
            return Err(format!("a split tells keys to a caller with {rights:?}"));
        }
        expect(kind, rights.may_read(&self.table, &shape), Verdict::Done, told, || {
            format!("a split of {shape:?} with {rights:?}")
        })
    }

    async fn checksum(&mut self) -> Result<(), String> {
        let (rights, kind, token) = self.draw_token();
        let (scan, shape) = self.draw_scan();
        let new = self.new_scan(&scan, &shape, token);
        let request = ChecksumRequestPb { new_request: Some(new), ..Default::default() };
        let reply: Result<RpcResponse<ChecksumResponsePb>, RpcError> =
            self.call(CALLER, TSERVER, "Checksum", &request, scan.features()).await;
        let error = |reply: &ChecksumResponsePb| reply.error.as_ref().map(|error| text_of(&error.status));
        let told = verdict(reply, error)?;
        let allowed = rights.may_read(&self.table, &shape);
        expect(kind, allowed, verdict::allowed(&shape), told, || {
            format!("a checksum of {shape:?} with {rights:?}")
        })
    }
}
