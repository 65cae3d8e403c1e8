//! Scans of an audit: one tablet of a table is read twice at its leader, which counts its open scanners before and
//! after that.

use std::time::Duration;

use engine::time::Instant;
use nyala_client::{ScanSpec, Table};
use nyala_common::rpc::client::{CallOptions, RpcResponse};
use nyala_proto::kudu::tserver::{
    QuiesceTabletServerRequestPb, QuiesceTabletServerResponsePb, ResourceMetricsPb, ScanRequestPb,
    ScanResponsePb,
};

use super::quiesce_check::open_only;
use crate::oracle::quiet_scans::{QuietScan, ReplyCost, ScanReplies};
use crate::wire::client::{ADMIN, PlainClient, TSERVER};

/// Most calls of one scan: small tablets need a few.
const CALLS_MAX: u32 = 16;
/// Size of a reply that has one block.
const SMALL_BYTES: u32 = 1;

/// Scans the first tablet of a table. `None` for a table without a tablet, if a call has no reply or an error, and if
/// the time is over.
pub(super) async fn scan_quiet_tablet(
    client: &mut PlainClient,
    table: &Table,
    deadline: Instant,
) -> Option<QuietScan> {
    if client.is_over(deadline) {
        return None;
    }
    let tokens = table.scan_tokens(&ScanSpec::default()).await.ok()?;
    let tablet = tokens.first()?.tablet();
    let leader = tablet.replicas.iter().find(|replica| replica.leader)?.address.clone();
    let before = open_scanners(client, &leader).await?;
    let mut scans = Vec::new();
    for is_small in [false, true] {
        let place = (leader.as_str(), tablet.id.as_str());
        scans.push(read_replies(client, table, place, is_small, deadline).await?);
    }
    let after = open_scanners(client, &leader).await?;
    Some(QuietScan { server: leader, tablet: tablet.id.clone(), scanners: (before, after), scans })
}

/// Returns the number of open scanners that a server tells.
async fn open_scanners(client: &mut PlainClient, address: &str) -> Option<i32> {
    let request = QuiesceTabletServerRequestPb { quiesce: None, return_stats: Some(true) };
    let told: RpcResponse<QuiesceTabletServerResponsePb> =
        client.call(address, ADMIN, "Quiesce", &request, CallOptions::default()).await.ok()?;
    told.message.num_active_scanners
}

/// Reads a tablet to its end: after a call that only opens the scanner, or one block by each call. Such a scan is given
/// up after some calls.
async fn read_replies(
    client: &mut PlainClient,
    table: &Table,
    (address, tablet): (&str, &str),
    is_small: bool,
    deadline: Instant,
) -> Option<ScanReplies> {
    let batch = is_small.then_some(SMALL_BYTES);
    let opening = open_only(table, tablet);
    let batch_size_bytes = batch.or(opening.batch_size_bytes);
    let mut request = ScanRequestPb { batch_size_bytes, ..opening };
    let (mut scan, mut scanner) = (ScanReplies { is_small, ..ScanReplies::default() }, None);
    for call_seq_id in 1..=CALLS_MAX {
        let called = client.env.now().mono;
        let reply = scan_once(client, address, &request, deadline).await?;
        let waited = client.env.now().mono.since(called);
        let rows = reply.data.as_ref().map_or(0, |data| i64::from(data.num_rows()));
        scan.replies.push((rows, reply.resource_metrics.as_ref().and_then(|told| cost(told, waited))));
        if !reply.has_more_results() {
            scan.is_whole = true;
            return Some(scan);
        }
        // Only the reply that opens the scanner names it.
        scanner = scanner.or(reply.scanner_id);
        request = ScanRequestPb {
            scanner_id: scanner.clone(),
            call_seq_id: Some(call_seq_id),
            batch_size_bytes: batch,
            ..Default::default()
        };
    }
    let close = ScanRequestPb { batch_size_bytes: Some(0), close_scanner: Some(true), ..request };
    scan_once(client, address, &close, deadline).await.map(|_| scan)
}

async fn scan_once(
    client: &mut PlainClient,
    address: &str,
    request: &ScanRequestPb,
    deadline: Instant,
) -> Option<ScanResponsePb> {
    if client.is_over(deadline) {
        return None;
    }
    let reply: RpcResponse<ScanResponsePb> =
        client.call(address, TSERVER, "Scan", request, CallOptions::default()).await.ok()?;
    Some(reply.message).filter(|reply| reply.error.is_none())
}

/// Returns the cost of a call for whose reply the client has waited for some time.
fn cost(told: &ResourceMetricsPb, waited: Duration) -> Option<ReplyCost> {
    Some(ReplyCost {
        cached: told.cfile_cache_hit_bytes?,
        from_files: told.cfile_cache_miss_bytes?,
        bytes: told.bytes_read?,
        queued_nanos: told.queue_duration_nanos?,
        total_nanos: told.total_duration_nanos?,
        waited_nanos: i64::try_from(waited.as_nanos()).unwrap_or(i64::MAX),
    })
}
