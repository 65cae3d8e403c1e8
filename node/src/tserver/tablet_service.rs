//! `kudu.tserver.TabletServerService`: calls of clients.

use std::sync::Arc;

use bytes::Bytes;
use engine::schema::Schema;
use engine::tablet::KeyRange;
use engine::tablet::superblock::Superblock;
use prost::Message;

use super::consensus_host;
use super::scan_error::ScanError;
use super::scan_request::ScanRequest;
use super::scan_spec;
use super::server::TabletServer;
use super::{request_limits, scan, table_access, write};
use crate::hosting::consensus_service::NamedTablet;
use crate::hosting::tablet_entry::TabletEntry;
use nyala_common::env::BoxFuture;
use nyala_common::rpc::request_limits::RequestLimits;
use nyala_common::rpc::{Call, MethodInfo, Reply, Service};
use nyala_common::security::acl::MethodRole;
use nyala_common::service_methods;
use nyala_common::wire::errors::{TabletError, TabletErrorCode};
use nyala_common::wire::partition;
use nyala_common::wire::schema;
use nyala_proto::kudu::KeyRangePb;
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::tablet::TabletStatusPb;
use nyala_proto::kudu::tserver::list_tablets_response_pb::StatusAndSchemaPb;
use nyala_proto::kudu::tserver::{
    ListTabletsRequestPb, ListTabletsResponsePb, PingResponsePb, SplitKeyRangeRequestPb,
    SplitKeyRangeResponsePb, TabletServerFeatures,
};

/// Features of this service and of the administrative service.
pub const FEATURES: &[u32] = &[
    TabletServerFeatures::ColumnPredicates as u32,
    TabletServerFeatures::PadUnixtimeMicrosTo16Bytes as u32,
    TabletServerFeatures::Quiescing as u32,
    TabletServerFeatures::ColumnarLayoutFeature as u32,
    TabletServerFeatures::BloomFilterPredicateV2 as u32,
];

/// Features of this service with aggregations.
const WITH_AGGREGATION: [u32; FEATURES.len() + 1] = {
    let mut features = [TabletServerFeatures::NyalaAggregation as u32; FEATURES.len() + 1];
    features.split_at_mut(FEATURES.len()).0.copy_from_slice(FEATURES);
    features
};

service_methods! {
    fn dispatch(service: TabletServerService, call) of METHODS;
    "Ping" { role: MethodRole::ClientOrService, audited: false, tracked: false, required: &[] } =>
        Reply::message(&PingResponsePb {}),
    "Write" { role: MethodRole::Client, audited: false, tracked: true, required: &[1] } =>
        write::write(&service.0, call).await,
    "Scan" { role: MethodRole::Client, audited: false, tracked: false, required: &[] } =>
        scan::scan(&service.0, call).await,
    "ScannerKeepAlive" { role: MethodRole::Client, audited: false, tracked: false, required: &[1] } =>
        scan::keep_alive(&service.0, &call),
    "ListTablets" { role: MethodRole::ClientUnlessFineGrained, audited: false, tracked: false, required: &[] } =>
        Reply::message(&list_tablets(&service.0, &call.decode()?)),
    "SplitKeyRange" { role: MethodRole::Client, audited: false, tracked: false, required: &[1] } =>
        split_key_range(&service.0, &call).await,
    "Checksum" { role: MethodRole::Client, audited: false, tracked: false, required: &[] } =>
        scan::checksum(&service.0, call).await,
}

/// The client service of one server.
pub struct TabletServerService(pub Arc<TabletServer>);

impl Service for TabletServerService {
    fn name(&self) -> &'static str {
        "kudu.tserver.TabletServerService"
    }

    fn features(&self) -> &'static [u32] {
        if self.0.runtime_flags.has_aggregation() { &WITH_AGGREGATION } else { FEATURES }
    }

    fn methods(&self) -> &'static [MethodInfo] {
        METHODS
    }

    fn request_limits(&self, method: &str) -> RequestLimits {
        request_limits::of(method)
    }

    fn subject(&self, method: &str, body: &Bytes) -> Option<String> {
        let tablet = match method {
            "Scan" => ScanRequest::decode(body.clone()).ok()?.new_scan_request.and_then(first_field)?,
            "Checksum" => first_field(body.clone()).and_then(first_field)?,
            "Write" | "SplitKeyRange" => NamedTablet::decode(body.clone()).ok()?.first?,
            _ => return None,
        };
        Some(tablet_of_table(&self.0, &tablet))
    }

    /// Reads of one key end at once if their pages are cached; other scans leave the connection. Small writes end at
    /// once if their replica is idle and needs no other server and no sync.
    fn begins_on_connection(&self, method: &str) -> bool {
        matches!(method, "Scan" | "Write")
    }

    /// A commit wait ends before each reply, also before one that this server knows from the log.
    fn before_repeat<'a>(&'a self, call: &'a Call, reply: &'a Bytes) -> BoxFuture<'a, Result<(), Reply>> {
        Box::pin(async move {
            match call.method {
                "Write" => write::wait_before_repeat(&self.0, call, reply).await,
                _ => Ok(()),
            }
        })
    }

    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply> {
        dispatch(self, call)
    }
}

/// Returns the first field of a message: the new scan of a checksum, the tablet of a new scan. The rest is skipped,
/// because requests of denied callers are read, too.
fn first_field(message: Bytes) -> Option<Bytes> {
    #[derive(Clone, PartialEq, Message)]
    struct FirstField {
        #[prost(bytes = "bytes", optional, tag = "1")]
        first: Option<Bytes>,
    }
    FirstField::decode(message).ok()?.first
}

/// Returns a tablet with its table, as the audit log names it.
pub(super) fn tablet_of_table(server: &TabletServer, tablet: &[u8]) -> String {
    let shown = String::from_utf8_lossy(tablet);
    match server.tablets.find(tablet) {
        Ok(entry) => format!("tablet {shown} of {}", entry.table_name()),
        Err(_) => format!("tablet {shown}"),
    }
}

fn list_tablets(server: &TabletServer, request: &ListTabletsRequestPb) -> ListTabletsResponsePb {
    let mut response = ListTabletsResponsePb::default();
    for entry in server.tablets.all() {
        let mut described = status_and_schema(&entry, request.need_schema_info());
        if request.nyala_need_superblocks() {
            described.nyala_superblock = Some(current_superblock(&entry).encode().into());
            described.nyala_consensus = Some(consensus_host::state(server.uuid(), &entry, false));
        }
        response.status_and_schema.push(described);
    }
    if request.nyala_need_superblocks() {
        response.nyala_format_level = Some(server.tablets.dirs().level().0.into());
        response.nyala_cluster_id = server.tablets.dirs().cluster().map(|cluster| cluster.to_string());
    }
    response
}

/// Returns the tablet's superblock with its current schema and without its files, for a rebuild of the catalog.
fn current_superblock(entry: &TabletEntry) -> Superblock {
    let mut meta = entry.meta.clone();
    meta.rowsets.clear();
    if let Some(tablet) = entry.tablet() {
        let current = tablet.table_schema();
        meta.schema = Schema::clone(&current.schema);
        meta.schema_version = current.version;
        meta.table_name.clone_from(&current.table_name);
        meta.extra.clone_from(&current.extra);
    }
    meta
}

fn status_and_schema(entry: &TabletEntry, schema: bool) -> StatusAndSchemaPb {
    let tablet = entry.tablet();
    let meta = &entry.meta;
    let current = tablet.as_ref().map(|tablet| tablet.schema());
    let current = current.as_deref().unwrap_or(&meta.schema);
    let role = consensus_host::role(entry);
    StatusAndSchemaPb {
        tablet_status: status(entry),
        schema: schema.then(|| schema::schema_to_pb(current)),
        partition_schema: schema.then(|| partition::schema_to_pb(&meta.partition_schema, current)),
        schema_version: Some(entry.schema_version()),
        role: Some(role as i32),
        ..StatusAndSchemaPb::default()
    }
}

/// Returns a tablet as tools list it.
pub fn status(entry: &TabletEntry) -> TabletStatusPb {
    let size = entry.sizes().map_or(0, |sizes| sizes.disk_bytes);
    let last_status = entry.failure().map_or_else(String::new, |error| error.message);
    TabletStatusPb {
        tablet_id: entry.id.to_string(),
        table_name: entry.table_name(),
        state: Some(entry.state_pb() as i32),
        tablet_data_state: Some(entry.data_state_pb() as i32),
        last_status,
        start_key: None,
        end_key: None,
        partition: Some(partition::to_pb(&entry.meta.partition)),
        estimated_on_disk_size: Some(size as i64),
        data_dirs: vec![Bytes::from(entry.data_dir.path.clone())],
    }
}

async fn split_key_range(server: &TabletServer, call: &Call) -> Reply {
    let request = match call.decode::<SplitKeyRangeRequestPb>() {
        Ok(request) => request,
        Err(reply) => return reply,
    };
    let response = match key_ranges(server, call, &request).await {
        Ok(ranges) => SplitKeyRangeResponsePb { error: None, ranges },
        Err(ScanError::Rpc(reply)) => return reply,
        Err(ScanError::Tablet(error)) => {
            SplitKeyRangeResponsePb { error: Some(error.to_pb()), ranges: Vec::new() }
        }
    };
    Reply::message(&response)
}

async fn key_ranges(
    server: &TabletServer,
    call: &Call,
    request: &SplitKeyRangeRequestPb,
) -> Result<Vec<KeyRangePb>, ScanError> {
    let entry = server.tablets.find(&request.tablet_id)?;
    let replica = entry.running()?;
    let schema = replica.tablet().schema();
    let access = table_access::access(server, call, request.authz_token.as_ref());
    let access = access.and_then(|access| access.check_table(entry.meta.table).map(|()| access));
    let access = access.map_err(ScanError::Rpc)?;
    access.check_split(request, &schema).map_err(ScanError::Rpc)?;
    let bound = |bytes: &Option<Bytes>| scan_spec::key_bound(bytes.as_deref(), &schema);
    let (lower, upper) = (bound(&request.start_primary_key)?, bound(&request.stop_primary_key)?);
    if let (Some(lower), Some(upper)) = (&lower, &upper)
        && lower > upper
    {
        let message = "Invalid primary key range: the start is after the stop";
        let code = TabletErrorCode::InvalidScanSpec;
        return Err(TabletError::new(code, ErrorCode::InvalidArgument, message).into());
    }
    let columns = scan_spec::projection(&request.columns, &schema, false)?;
    let columns: Vec<_> = columns.iter().filter_map(|column| column.id).collect();
    // The tablet is split at keys of its rows, which not every caller may see: then it stays whole.
    let target = if access.sees_keys(&schema) { request.target_chunk_size_bytes() } else { u64::MAX };
    let split = || replica.tablet().split_key_range(lower.as_deref(), upper.as_deref(), &columns, target);
    let ranges = server.env.run(split).await.map_err(|error| scan::read_failed(&replica, &error))?;
    let key = |bytes: Option<Vec<u8>>| bytes.map(Bytes::from);
    let to_pb = |range: KeyRange| KeyRangePb {
        start_primary_key: key(range.lower),
        stop_primary_key: key(range.upper),
        size_bytes_estimates: range.bytes,
    };
    Ok(ranges.into_iter().map(to_pb).collect())
}
