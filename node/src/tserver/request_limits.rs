//! Limits of the requests of `kudu.tserver.TabletServerService`.
//!
//! Rows, keys and Bloom filters are bytes, and may be as long as a frame. Elements of lists are far fewer in requests
//! of clients than the limits: a table has 300 columns unless an operator allows more.

use nyala_common::rpc::request_limits::{RepeatedLimit, RequestLimits, field};

/// Columns of a schema, predicates of a scan.
const COLUMNS_MAX: usize = 10_000;
/// Values of all IN-lists of a scan. A value has 32 bytes of memory beside its own.
const VALUES_MAX: usize = 1_000_000;

/// Returns the fields of a request with a new scan in field `$number`.
macro_rules! fields_of_new_scan {
    ($number:literal) => {
        &[
            field(&[$number, 3], "DEPRECATED_range_predicates", COLUMNS_MAX),
            field(&[$number, 4], "projected_columns", COLUMNS_MAX),
            field(&[$number, 13], "column_predicates", COLUMNS_MAX),
            field(&[$number, 13, 5, 1], "column_predicates.in_list.values", VALUES_MAX),
            field(&[$number, 13, 7, 1], "column_predicates.in_bloom_filter.bloom_filters", COLUMNS_MAX),
            field(&[$number, 1000, 2], "nyala_aggregation.aggregates", COLUMNS_MAX),
        ]
    };
}

const SCAN: &[RepeatedLimit] = fields_of_new_scan!(2);
const CHECKSUM: &[RepeatedLimit] = fields_of_new_scan!(1);
const WRITE: &[RepeatedLimit] = &[field(&[2, 1], "schema.columns", COLUMNS_MAX)];
const SPLIT_KEY_RANGE: &[RepeatedLimit] = &[field(&[5], "columns", COLUMNS_MAX)];

/// Returns the limits of a method's request. A method that is not named here has small requests.
pub(super) fn of(method: &str) -> RequestLimits {
    match method {
        "Write" => RequestLimits::repeated(WRITE),
        "Scan" => RequestLimits::repeated(SCAN),
        "Checksum" => RequestLimits::repeated(CHECKSUM),
        "SplitKeyRange" => RequestLimits::repeated(SPLIT_KEY_RANGE),
        _ => RequestLimits::SMALL,
    }
}
