//! The masters of the double: leaders, the table's definition, locations, changes of ranges.

use bytes::Bytes;
use nyala_common::rpc::{Call, Reply};
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::consensus::raft_peer_pb::Role;
use nyala_proto::kudu::master::master_error_pb::Code;
use nyala_proto::kudu::master::tablet_locations_pb::InternedReplicaPb;
use nyala_proto::kudu::master::{
    AlterTableResponsePb, ConnectToMasterResponsePb, GetTableLocationsRequestPb, GetTableLocationsResponsePb,
    GetTableSchemaResponsePb, IsAlterTableDoneResponsePb, MasterErrorPb, TabletLocationsPb, TsInfoPb,
};
use nyala_proto::kudu::partition_schema_pb::column_identifier_pb::Identifier;
use nyala_proto::kudu::partition_schema_pb::{ColumnIdentifierPb, RangeSchemaPb};
use nyala_proto::kudu::security::SignedTokenPb;
use nyala_proto::kudu::{
    AppStatusPb, ColumnSchemaPb, DataType, HostPortPb, PartitionPb, PartitionSchemaPb, SchemaPb,
};
use sim_plan::Host;

use super::cluster::Cluster;
use super::codec::{COLUMNS, decoded_key};
use super::limits::{MASTERS, RPC_TIMEOUT, SERVERS, TABLE};
use super::tablets::{OPEN, tablet_id};
use crate::workload::{MASTER_PORT, TSERVER_PORT};

/// Returns a status with an error.
pub(super) fn status(code: ErrorCode, message: &str) -> AppStatusPb {
    AppStatusPb { code: code as i32, message: Some(message.to_string()), posix_code: None }
}

fn refusal(code: Code, of: ErrorCode, message: &str) -> Option<MasterErrorPb> {
    Some(MasterErrorPb { code: code as i32, status: status(of, message) })
}

impl Cluster {
    /// Executes a call at a master; its reply leaves `after` then.
    pub(super) fn master_call(&mut self, number: usize, call: &Call, now: u64, after: u64) -> Reply {
        if call.method == "ConnectToMaster" {
            return self.connect(number);
        }
        let error = self.not_leader(number);
        match call.method {
            "GetTableSchema" => Reply::message(&GetTableSchemaResponsePb { error, ..self.definition() }),
            "GetTableLocations" if error.is_none() => self.locations(call, now, after),
            "GetTableLocations" => {
                Reply::message(&GetTableLocationsResponsePb { error, ..Default::default() })
            }
            "AlterTable" => {
                let error = error.or_else(|| self.alter(now));
                Reply::message(&AlterTableResponsePb { error, ..Default::default() })
            }
            _ => {
                let done = Some(self.random.percent(60));
                Reply::message(&IsAlterTableDoneResponsePb { error, done, schema_version: Some(1) })
            }
        }
    }

    fn not_leader(&mut self, number: usize) -> Option<MasterErrorPb> {
        if number != self.leader {
            return refusal(Code::NotTheLeader, ErrorCode::IllegalState, "the double does not lead");
        }
        let starts = self.masters[number] == super::conditions::Condition::Starting;
        let text = "the double's catalog is being loaded";
        (starts && self.random.percent(70))
            .then(|| refusal(Code::CatalogManagerNotInitialized, ErrorCode::ServiceUnavailable, text))
            .flatten()
    }

    fn connect(&self, number: usize) -> Reply {
        let role = if number == self.leader { Role::Leader } else { Role::Follower };
        let address = |number| host_port(Host::Master(number as u8), MASTER_PORT);
        Reply::message(&ConnectToMasterResponsePb {
            role: Some(role as i32),
            master_addrs: (0..MASTERS).map(address).collect(),
            ..Default::default()
        })
    }

    fn definition(&self) -> GetTableSchemaResponsePb {
        let column = |(number, name): (usize, &&str)| ColumnSchemaPb {
            id: Some(number as u32),
            name: (*name).to_string(),
            r#type: if number == 2 { DataType::String } else { DataType::Int64 } as i32,
            is_key: Some(number == 0),
            is_nullable: Some(number > 0),
            ..Default::default()
        };
        let key = ColumnIdentifierPb { identifier: Some(Identifier::Name(COLUMNS[0].to_string())) };
        GetTableSchemaResponsePb {
            schema: Some(SchemaPb { columns: COLUMNS.iter().enumerate().map(column).collect() }),
            partition_schema: Some(PartitionSchemaPb {
                range_schema: Some(RangeSchemaPb { columns: vec![key] }),
                ..Default::default()
            }),
            num_replicas: Some(3),
            table_id: Some(Bytes::from_static(TABLE.as_bytes())),
            table_name: Some(TABLE.to_string()),
            authz_token: Some(self.token()),
            ..Default::default()
        }
    }

    fn token(&self) -> SignedTokenPb {
        let token_data = Some(Bytes::copy_from_slice(&self.token.to_le_bytes()));
        SignedTokenPb {
            token_data,
            signature: Some(Bytes::from_static(b"sound")),
            signing_key_seq_num: Some(1),
        }
    }

    /// Returns true if a call may use the table.
    pub(super) fn accepts(&self, token: Option<&SignedTokenPb>) -> bool {
        token == Some(&self.token())
    }

    fn locations(&mut self, call: &Call, now: u64, after: u64) -> Reply {
        let request: GetTableLocationsRequestPb = match call.decode() {
            Ok(request) => request,
            Err(reply) => return reply,
        };
        let from = match request.partition_key_start() {
            [] => Some(OPEN.0),
            key => decoded_key(key),
        };
        let Some(from) = from else {
            self.report(format!("a lookup of a key that no row can have: {request:?}"));
            return Reply::too_busy("a key of no row");
        };
        let tablets = self.tablets.from(from);
        // A reply that may come too late, or that the client may not keep, is no knowledge.
        let at = if after == u64::MAX { now } else { now + after };
        let is_late = after > 0 || now - call.received.0 >= RPC_TIMEOUT.as_nanos() as u64 / 4;
        let sure = !is_late && !self.has_old_lookups();
        self.tablets.tell(from, &tablets, at, sure);
        let tablet_locations = tablets.iter().map(|number| self.location(*number)).collect();
        let server = |number| TsInfoPb {
            permanent_uuid: Bytes::from(format!("server-{number}")),
            rpc_addresses: vec![host_port(Host::Tserver(number as u8), TSERVER_PORT)],
            ..Default::default()
        };
        Reply::message(&GetTableLocationsResponsePb {
            tablet_locations,
            ts_infos: (0..SERVERS).map(server).collect(),
            ttl_millis: Some((self.ttl / 1_000_000) as u32),
            error: None,
        })
    }

    fn location(&self, number: usize) -> TabletLocationsPb {
        let tablet = &self.tablets.all[number];
        let (start, end) = tablet.partition_keys();
        let replica = |server: &usize| InternedReplicaPb {
            ts_info_idx: *server as u32,
            role: if Some(*server) == tablet.leader { Role::Leader } else { Role::Follower } as i32,
            dimension_label: None,
        };
        TabletLocationsPb {
            tablet_id: tablet_id(number).into(),
            partition: Some(PartitionPb {
                partition_key_start: Some(start.into()),
                partition_key_end: Some(end.into()),
                ..Default::default()
            }),
            interned_replicas: tablet.replicas.iter().map(replica).collect(),
            ..Default::default()
        }
    }

    /// Makes the change of ranges that the client has begun last.
    fn alter(&mut self, now: u64) -> Option<MasterErrorPb> {
        let missing = || refusal(Code::UnknownError, ErrorCode::NotFound, "the double has no such range");
        let op = self.ops.iter().rposition(|op| op.change.is_some());
        let change = op.and_then(|op| self.ops[op].change.map(|change| (op, change)));
        let Some((op, change)) = change else { return missing() };
        if !self.tablets.fits(change) {
            self.ops[op].is_refused = true;
            return missing();
        }
        self.ops[op].is_changed = true;
        self.change_ranges(change, now);
        None
    }
}

fn host_port(host: Host, port: u16) -> HostPortPb {
    HostPortPb { host: host.name(), port: u32::from(port) }
}
