//! Writes at the double: each request takes effect once at a tablet, at its leader.

use nyala_common::rpc::{Call, Reply, RequestIdPb, RpcErrorCodePb};
use nyala_common::sidecars::Sidecars;
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::tserver::tablet_server_error_pb::Code;
use nyala_proto::kudu::tserver::write_response_pb::PerRowErrorPb;
use nyala_proto::kudu::tserver::{ResourceMetricsPb, TabletServerErrorPb, WriteRequestPb, WriteResponsePb};
use prost::Message;
use sim_plan::client_ops::WriteKind;

use super::cluster::{Cluster, Intent, seconds};
use super::codec::{self, RowOp};
use super::conditions::Condition;
use super::limits::{PROPAGATION, RPC_TIMEOUT};
use super::masters::status;
use super::rows::RowResult;

/// Returns an error of a tablet server.
pub(super) fn refusal(code: Code, of: ErrorCode, message: &str) -> Option<TabletServerErrorPb> {
    Some(TabletServerErrorPb { code: code as i32, status: status(of, message) })
}

/// Returns the error of a call whose token is old.
pub(super) fn token_refusal() -> Reply {
    Reply::error(RpcErrorCodePb::ErrorInvalidAuthorizationToken, "the double's token has expired")
}

impl Cluster {
    /// Executes a call at a tablet server.
    pub(super) fn tserver_call(&mut self, server: usize, call: &Call, now: u64) -> Reply {
        match call.method {
            "Write" => self.write_call(server, call, now),
            "Scan" => self.scan_call(server, call, now),
            _ => self.keep_alive_call(server, call),
        }
    }

    fn write_call(&mut self, server: usize, call: &Call, now: u64) -> Reply {
        let (request, id) = match (call.decode::<WriteRequestPb>(), &call.request_id) {
            (Ok(request), Some(id)) => (request, id.clone()),
            (Err(reply), _) => return reply,
            (_, None) => {
                self.report("a Write without a request id".to_string());
                return Reply::too_busy("no request id");
            }
        };
        if !self.accepts(request.authz_token.as_ref()) {
            return token_refusal();
        }
        let ops = request.row_operations.as_ref().map(codec::row_ops).unwrap_or_else(|| Ok(Vec::new()));
        let ops = ops.unwrap_or_else(|error| {
            self.report(format!("a Write that cannot be decoded: {error}"));
            Vec::new()
        });
        self.object_to_write(&request.tablet_id, &ops, now);
        let refused = |error| Reply::message(&WriteResponsePb { error, ..Default::default() });
        let tablet = match self.served_tablet(server, &request.tablet_id) {
            Ok(tablet) => tablet,
            Err(error) => return refused(Some(error)),
        };
        if self.tablets.all[tablet].leader != Some(server) {
            return refused(refusal(Code::NotTheLeader, ErrorCode::IllegalState, "the double follows"));
        }
        self.write_once(tablet, &id, &ops, now)
    }

    /// Executes a request, unless it was executed before.
    fn write_once(&mut self, tablet: usize, id: &RequestIdPb, ops: &[RowOp], now: u64) -> Reply {
        let incomplete = self.incomplete.entry(id.client_id.clone()).or_default();
        *incomplete = (*incomplete).max(id.first_incomplete_seq_no);
        let incomplete = *incomplete;
        self.replies.retain(|(_, client, number), _| *client != id.client_id || *number >= incomplete);
        if let Some(reply) = self.replies.get(&(tablet, id.client_id.clone(), id.seq_no)) {
            return Reply::Ok { body: reply.clone(), sidecars: Sidecars::default(), cache: false };
        }
        if id.seq_no < incomplete {
            return Reply::error(RpcErrorCodePb::ErrorRequestStale, "the double has dropped the reply");
        }
        let reply = self.write(tablet, ops, now).encode_to_vec();
        self.replies.insert((tablet, id.client_id.clone(), id.seq_no), reply.clone());
        Reply::Ok { body: reply, sidecars: Sidecars::default(), cache: false }
    }

    /// Returns the tablet of a call, or the error if the server does not serve it.
    pub(super) fn served_tablet(&mut self, server: usize, id: &[u8]) -> Result<usize, TabletServerErrorPb> {
        let known = self.tablets.find(id).filter(|number| {
            let tablet = &self.tablets.all[*number];
            tablet.is_live && tablet.replicas.contains(&server)
        });
        let missing = || refusal(Code::TabletNotFound, ErrorCode::NotFound, "the double has no such tablet");
        let tablet = known.ok_or_else(|| missing().expect("an error"))?;
        if self.servers[server] == Condition::Starting && self.random.percent(60) {
            let starts = refusal(Code::TabletNotRunning, ErrorCode::IllegalState, "the double starts");
            return Err(starts.expect("an error"));
        }
        Ok(tablet)
    }

    fn write(&mut self, tablet: usize, ops: &[RowOp], now: u64) -> WriteResponsePb {
        let stamp = self.tick();
        let (mut errors, mut ignored) = (Vec::new(), [0; 4]);
        for (at, op) in ops.iter().enumerate() {
            let result = self.apply(tablet, op, (stamp, now));
            let error = match result {
                RowResult::Present => status(ErrorCode::AlreadyPresent, "the double has this row"),
                RowResult::Missing => status(ErrorCode::NotFound, "the double has no such row"),
                RowResult::Written => continue,
                RowResult::Ignored => {
                    ignored[ignore_counter(op.kind)] += 1;
                    continue;
                }
            };
            errors.push(PerRowErrorPb { row_index: at as i32, error });
        }
        let metrics = ResourceMetricsPb {
            insert_ignore_errors: Some(ignored[0]),
            update_ignore_errors: Some(ignored[1]),
            delete_ignore_errors: Some(ignored[2]),
            ..Default::default()
        };
        WriteResponsePb {
            per_row_errors: errors,
            timestamp: Some(stamp),
            resource_metrics: Some(metrics),
            error: None,
        }
    }

    /// Applies a row operation, and finds the intent behind it.
    fn apply(&mut self, number: usize, op: &RowOp, (stamp, now): (u64, u64)) -> RowResult {
        let tablet = &self.tablets.all[number];
        if op.key < tablet.lower || op.key >= tablet.upper {
            self.report(format!("a row of another tablet than {number}: {op:?}"));
        }
        let cells = op.cells();
        let result = self.rows.apply(op.kind, op.key, &cells, (stamp, now));
        let Some(at) = self.intent(op) else {
            self.report(format!("a row that the client was not told to write: {op:?}"));
            return result;
        };
        if self.intents[at].results.iter().any(|(of, _)| *of == number) {
            self.report(format!("a row operation takes effect twice: {:?}", self.intents[at]));
        }
        self.intents[at].results.push((number, result));
        result
    }

    /// Returns the number of the intent behind a row operation.
    fn intent(&self, op: &RowOp) -> Option<usize> {
        let cells = op.cells();
        let same = |intent: &Intent| intent.key == op.key && intent.kind == op.kind && intent.cells == cells;
        self.intents.iter().rposition(same)
    }

    /// Reports a Write to a tablet that the client knew not to be there.
    fn object_to_write(&mut self, id: &[u8], ops: &[RowOp], now: u64) {
        let began = ops.first().and_then(|op| self.intent(op)).map(|at| self.ops[self.intents[at].op].began);
        if let (Some(tablet), Some(began)) = (self.tablets.find(id), began) {
            self.object(tablet, began, now);
        }
    }

    /// Reports a call of an operation to a tablet that the client knew not to be there.
    pub(super) fn object(&mut self, tablet: usize, began: u64, now: u64) {
        let objection = self.tablets.objection(tablet, began, self.ttl, PROPAGATION.as_nanos() as u64);
        let text = |what| format!("at {:.3} s: {what}", seconds(now));
        objection.into_iter().for_each(|what| self.report(text(what)));
    }

    /// Takes note of a reply that leaves now: later operations of the client know its effect.
    pub(super) fn replied(&mut self, method: &str, received: u64, now: u64) {
        if method != "AlterTable" {
            return;
        }
        let Some(op) = self.ops.iter().rposition(|op| op.change.is_some()) else { return };
        let in_time = now < received + RPC_TIMEOUT.as_nanos() as u64 / 2;
        if let Some(change) = self.ops[op].change.filter(|_| self.ops[op].is_changed && in_time) {
            self.tablets.all[change.drop].dropped_by_client = Some(now);
        }
    }
}

fn ignore_counter(kind: WriteKind) -> usize {
    match kind {
        WriteKind::InsertIgnore => 0,
        WriteKind::UpdateIgnore => 1,
        WriteKind::DeleteIgnore => 2,
        _ => 3,
    }
}
