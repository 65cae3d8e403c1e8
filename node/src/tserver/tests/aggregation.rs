//! Scans that return groups of rows.

use std::collections::BTreeMap;

use super::*;
use crate::hosting::maintenance::run_job;
use engine::replica::JobKind;
use engine::schema::aggregation::{Aggregate, AggregateFunction, Aggregation};
use nyala_common::rpc::RpcErrorCodePb;
use nyala_common::wire::aggregation::to_pb;
use nyala_proto::kudu::tserver::{ChecksumRequestPb, ChecksumResponsePb, NyalaAggregationPb};
use nyala_proto::kudu::{OrderMode, ReadMode};

const FEATURE: u32 = 1000;
const COLUMNAR: u64 = 2;

/// Rows, values of `n`, their sum, and the smallest and largest key of the groups by `v`.
fn by_v() -> NyalaAggregationPb {
    let of = |function, column| Aggregate { function, column };
    to_pb(&Aggregation {
        group_by: vec![0],
        aggregates: vec![
            of(AggregateFunction::Count, None),
            of(AggregateFunction::Count, Some(1)),
            of(AggregateFunction::Sum, Some(1)),
            of(AggregateFunction::Min, Some(2)),
            of(AggregateFunction::Max, Some(2)),
        ],
    })
}

fn aggregating() -> NewScanRequestPb {
    NewScanRequestPb {
        nyala_aggregation: Some(by_v()),
        row_format_flags: Some(COLUMNAR),
        ..new_scan(&["v", "n", "key"])
    }
}

/// A group's rows, values, sum, smallest and largest key.
type Group = (i64, i64, Option<i64>, i32, i32);

fn numbers<const WIDTH: usize>(bytes: &Bytes) -> Vec<[u8; WIDTH]> {
    bytes.chunks(WIDTH).map(|cell| cell.try_into().expect("whole cells")).collect()
}

/// Returns the groups of a reply. Its sidecars: texts and their validity; rows; values; sums, extremes with theirs.
fn groups(reply: &RpcResponse<ScanResponsePb>) -> Vec<(Option<String>, Group)> {
    let rows = reply.message.columnar_data.clone().expect("columns").num_rows() as usize;
    let [offsets, texts, valid, count, values, sums, summed, min, _, max, _] = &reply.sidecars[..] else {
        panic!("{} sidecars", reply.sidecars.len())
    };
    let offsets: Vec<usize> =
        numbers(offsets).into_iter().map(|offset| u32::from_le_bytes(offset) as usize).collect();
    let is_set = |bits: &Bytes, row: usize| bits[row / 8] >> (row % 8) & 1 == 1;
    let long = |bytes: &Bytes, row: usize| i64::from_le_bytes(numbers(bytes)[row]);
    let int = |bytes: &Bytes, row: usize| i32::from_le_bytes(numbers(bytes)[row]);
    let group = |row: usize| {
        let text = String::from_utf8(texts[offsets[row]..offsets[row + 1]].to_vec()).expect("UTF-8");
        let sum = is_set(summed, row).then(|| long(sums, row));
        let values = (long(count, row), long(values, row), sum, int(min, row), int(max, row));
        (is_set(valid, row).then_some(text), values)
    };
    (0..rows).map(group).collect()
}

/// Adds the groups of a reply to those of earlier ones.
fn merge(all: &mut BTreeMap<Option<String>, Group>, partial: Vec<(Option<String>, Group)>) {
    for (key, (rows, values, sum, min, max)) in partial {
        let group = all.entry(key).or_insert((0, 0, None, i32::MAX, i32::MIN));
        group.0 += rows;
        group.1 += values;
        group.2 = [group.2, sum].into_iter().flatten().reduce(|a, b| a + b);
        group.3 = group.3.min(min);
        group.4 = group.4.max(max);
    }
}

impl Fixture {
    async fn aggregate(&self, request: &ScanRequestPb) -> Result<RpcResponse<ScanResponsePb>, RpcError> {
        let features = vec![FEATURE];
        self.call(CLIENT_SERVICE, "Scan", request, CallOptions { features, ..CallOptions::default() }).await
    }

    /// Reads a scan to its end. Returns its merged groups and the number of replies.
    async fn all_groups(&self, new: NewScanRequestPb, batch: u32) -> (BTreeMap<Option<String>, Group>, u32) {
        let mut request = ScanRequestPb { batch_size_bytes: Some(batch), ..open(new) };
        let mut all = BTreeMap::new();
        for seq in 1.. {
            let reply = self.aggregate(&request).await.expect("the call succeeds");
            assert_eq!(reply.message.error, None);
            merge(&mut all, groups(&reply));
            if !reply.message.has_more_results() {
                return (all, seq);
            }
            let scanner_id = reply.message.scanner_id.or(request.scanner_id);
            request = ScanRequestPb {
                scanner_id,
                call_seq_id: Some(seq),
                batch_size_bytes: Some(batch),
                ..Default::default()
            };
        }
        unreachable!("a scan ends")
    }

    async fn flush_rows(&self) {
        let replica = self.running.server.tablets.get(TABLET).expect("it was made").running();
        let flushed = run_job(&self.env, &replica.expect("it runs"), JobKind::FlushRows).await;
        assert!(flushed.expect("the job succeeds"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_are_those_of_the_rows_with_their_deltas() {
    let fixture = Fixture::start().await;
    fixture.create_tablet().await;
    let mut rows: Vec<Op<'_>> =
        (0..600).map(|key| insert(key, if key % 2 == 0 { "even" } else { "odd" })).collect();
    rows.iter_mut().step_by(3).for_each(|row| row.n = Some(Some(i64::from(row.key))));
    assert_eq!(fixture.write(&rows).await.per_row_errors, []);
    fixture.flush_rows().await;
    // Changes beside the flushed rows, and rows in memory.
    let changes = [
        Op { v: Some(None), n: Some(None), ..op(RowOpKind::Update, 6) },
        Op { n: Some(Some(-1)), ..op(RowOpKind::Update, 7) },
        op(RowOpKind::Delete, 0),
        insert(1000, "even"),
    ];
    assert_eq!(fixture.write(&changes).await.per_row_errors, []);
    let sum = |first: i64| (0..100).map(|at| first + 6 * at).sum::<i64>();
    let expected = BTreeMap::from([
        (None, (1, 0, None, 6, 6)),
        (Some("even".to_string()), (299, 98, Some(sum(0) - 6), 2, 1000)),
        (Some("odd".to_string()), (300, 101, Some(sum(3) - 1), 1, 599)),
    ]);
    assert_eq!(fixture.all_groups(aggregating(), 1 << 20).await, (expected.clone(), 1));
    // A reply that is full after a block has the groups of the rows so far, and the scanner continues.
    let (found, replies) = fixture.all_groups(aggregating(), 1).await;
    assert!(replies > 3, "{replies} replies");
    assert_eq!(found, expected);
    assert!(fixture.running.server.scanners().is_empty());
}

/// A client that lost its server continues after the last key of the last reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordered_aggregation_resumes_after_its_last_key() {
    let fixture = Fixture::start().await;
    fixture.create_tablet().await;
    let rows: Vec<Op<'_>> = (0..300).map(|key| insert(key, "same")).collect();
    let written = fixture.write(&rows).await.timestamp();
    let ordered = NewScanRequestPb {
        read_mode: Some(ReadMode::ReadAtSnapshot as i32),
        order_mode: Some(OrderMode::Ordered as i32),
        snap_timestamp: Some(written + 1),
        ..aggregating()
    };
    let first = ScanRequestPb { batch_size_bytes: Some(1), ..open(ordered.clone()) };
    let reply = fixture.aggregate(&first).await.expect("the call succeeds");
    let last = reply.message.last_primary_key.clone();
    let mut all = BTreeMap::new();
    merge(&mut all, groups(&reply));
    assert!(reply.message.has_more_results() && last.is_some() && all[&Some("same".to_string())].0 < 300);
    let rest = NewScanRequestPb { last_primary_key: last, ..ordered };
    let reply = fixture.aggregate(&open(rest)).await.expect("the call succeeds");
    merge(&mut all, groups(&reply));
    assert_eq!(all, BTreeMap::from([(Some("same".to_string()), (300, 0, None, 0, 299))]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_supported_is_refused() {
    let fixture = Fixture::start().await;
    fixture.create_tablet().await;
    let error_of = async |change: &dyn Fn(&mut NewScanRequestPb)| {
        let mut new = aggregating();
        change(&mut new);
        error_text(&fixture.aggregate(&open(new)).await.expect("a reply").message.error)
    };
    let sum_of = |column| {
        let aggregates = vec![Aggregate { function: AggregateFunction::Sum, column: Some(column) }];
        Some(to_pb(&Aggregation { group_by: Vec::new(), aggregates }))
    };
    let errors = [
        error_of(&|new| new.row_format_flags = None).await,
        error_of(&|new| new.limit = Some(1)).await,
        error_of(&|new| new.nyala_aggregation = sum_of(0)).await,
        error_of(&|new| new.nyala_aggregation = sum_of(3)).await,
        error_of(&|new| {
            if let Some(aggregation) = &mut new.nyala_aggregation {
                aggregation.aggregates[0].function = Some(99);
            }
        })
        .await,
        error_of(&|new| {
            if let Some(aggregation) = &mut new.nyala_aggregation {
                aggregation.group_by = vec![0; 300];
            }
        })
        .await,
    ];
    expect_test::expect![[r#"
        INVALID_SCAN_SPEC + INVALID_ARGUMENT: an aggregation needs the columnar layout
        INVALID_SCAN_SPEC + INVALID_ARGUMENT: an aggregation has no limit and no start of a diff scan
        INVALID_SCAN_SPEC + NOT_SUPPORTED: aggregation: sum(v) of type STRING is not supported
        INVALID_SCAN_SPEC + INVALID_ARGUMENT: aggregation: there is no projected column 3
        INVALID_SCAN_SPEC + INVALID_ARGUMENT: aggregation: unknown function 99
        INVALID_SCAN_SPEC + NOT_SUPPORTED: aggregation: v is named twice; name it once
    "#]]
    .assert_eq(&(errors.join("\n") + "\n"));
    let new_request = Some(aggregating());
    let checksum = ChecksumRequestPb { new_request, ..Default::default() };
    let called: Result<RpcResponse<ChecksumResponsePb>, RpcError> =
        fixture.call(CLIENT_SERVICE, "Checksum", &checksum, CallOptions::default()).await;
    let Err(RpcError::Remote { code, .. }) = called else { panic!("a checksum has no groups") };
    assert_eq!(code, RpcErrorCodePb::ErrorApplication);
}
