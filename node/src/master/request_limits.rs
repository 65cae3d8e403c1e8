//! Limits of the requests of `kudu.master.MasterService`.
//!
//! Clients create tables with thousands of range partitions and alter them in as many steps. Bounds of ranges are
//! bytes, and may be as long as a frame. Heartbeats, which only servers may send, report as many tablets as there are.

use nyala_common::rpc::request_limits::{RepeatedLimit, RequestLimits, field};

/// Columns, hash dimensions, range partitions, steps, entries of maps, tablets.
const ELEMENTS_MAX: usize = 10_000;
/// Hash dimensions of all range partitions, and their columns.
const NESTED_MAX: usize = 100_000;

const CREATE_TABLE: &[RepeatedLimit] = &[
    field(&[2, 1], "schema.columns", ELEMENTS_MAX),
    field(&[7, 1], "partition_schema.hash_schema", ELEMENTS_MAX),
    field(&[7, 1, 1], "partition_schema.hash_schema.columns", NESTED_MAX),
    field(&[7, 2, 1], "partition_schema.range_schema.columns", ELEMENTS_MAX),
    field(&[7, 5], "partition_schema.custom_hash_schema_ranges", ELEMENTS_MAX),
    field(&[7, 5, 2], "partition_schema.custom_hash_schema_ranges.hash_schema", NESTED_MAX),
    field(&[7, 5, 2, 1], "partition_schema.custom_hash_schema_ranges.hash_schema.columns", NESTED_MAX),
    field(&[9], "extra_configs", ELEMENTS_MAX),
];

const ALTER_TABLE: &[RepeatedLimit] = &[
    field(&[2], "alter_schema_steps", ELEMENTS_MAX),
    field(&[2, 5, 3, 1], "alter_schema_steps.add_range_partition.custom_hash_schema", NESTED_MAX),
    field(&[2, 5, 3, 1, 1], "alter_schema_steps.add_range_partition.custom_hash_schema.columns", NESTED_MAX),
    field(&[4, 1], "schema.columns", ELEMENTS_MAX),
    field(&[6], "new_extra_configs", ELEMENTS_MAX),
];

const GET_TABLET_LOCATIONS: &[RepeatedLimit] = &[field(&[1], "tablet_ids", ELEMENTS_MAX)];

/// Returns the limits of a method's request. A method that is not named here has small requests.
pub(super) fn of(method: &str) -> RequestLimits {
    match method {
        "CreateTable" => RequestLimits::repeated(CREATE_TABLE),
        "AlterTable" => RequestLimits::repeated(ALTER_TABLE),
        "GetTabletLocations" => RequestLimits { repeated: GET_TABLET_LOCATIONS, ..RequestLimits::SMALL },
        "TSHeartbeat" => RequestLimits::FRAME,
        _ => RequestLimits::SMALL,
    }
}
