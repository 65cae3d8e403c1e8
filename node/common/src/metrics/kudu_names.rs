//! Kudu's metrics that dashboards and alerts use: those here have its name, kind and unit, the others a reason.

use std::collections::BTreeMap;

use super::definition::EntityKind;
use super::table::METRICS;

/// Metrics that nyala has: entity, kind, unit, names.
const PRESENT: &str = "
server counter connections: rpc_connections_accepted
server counter requests: rpcs_queue_overflow rpcs_timed_out_in_queue queue_overflow_rejections timed_out_on_response
server histogram microseconds: rpc_incoming_queue_time handler_latency scanner_duration
server histogram microseconds: create_tablet_run_time delete_tablet_run_time
server histogram microseconds: maintenance_op_find_best_candidate_duration
server histogram milliseconds: tablet_copy_duration
server gauge microseconds: uptime hybrid_clock_timestamp hybrid_clock_error
server gauge milliseconds: cpu_utime cpu_stime startup_progress_time_elapsed
server gauge units: startup_progress_steps_remaining
server gauge threads: threads_running
server gauge context_switches: voluntary_context_switches involuntary_context_switches
server gauge bytes: memory_usage data_dirs_space_available_bytes wal_dir_space_available_bytes block_cache_usage
server counter messages: glog_error_messages glog_warning_messages glog_info_messages
server gauge data_directories: data_dirs_full
server counter blocks: block_cache_lookups block_cache_hits block_cache_hits_caching
server counter blocks: block_cache_misses block_cache_misses_caching block_cache_evictions
server gauge tablets: tablets_num_running tablets_num_bootstrapping tablets_num_failed tablets_num_stopping
server gauge tablets: tablets_num_stopped num_raft_leaders cluster_replica_skew
server gauge scanners: active_scanners slow_scans
server counter scanners: scanners_expired
server counter bytes: tablet_copy_bytes_fetched tablet_copy_bytes_sent
server gauge sessions: tablet_copy_open_client_sessions tablet_copy_open_source_sessions
table gauge rows: live_row_count
table gauge bytes: on_disk_size
table gauge columns: column_count
table gauge versions: schema_version
tablet counter rows: rows_inserted rows_upserted rows_updated rows_deleted insertions_failed_dup_key
tablet counter rows: insert_ignore_errors update_ignore_errors upsert_ignore_errors delete_ignore_errors
tablet counter rows: scanner_rows_returned
tablet counter cells: scanner_cells_returned
tablet counter bytes: scanner_bytes_returned scanner_bytes_scanned_from_disk log_bytes_logged log_reader_bytes_read
tablet counter entries: log_reader_entries_read
tablet gauge seconds: last_read_elapsed_time last_write_elapsed_time
tablet counter probes: bloom_lookups key_file_lookups
tablet gauge bytes: on_disk_size on_disk_data_size memrowset_size
tablet gauge rows: live_row_count
tablet gauge units: average_diskrowset_height num_rowsets_on_disk raft_term
tablet gauge state: state
tablet gauge scanners: tablet_active_scanners
tablet counter scanners: scans_started
tablet histogram microseconds: log_append_latency log_sync_latency log_group_commit_latency
tablet histogram microseconds: snapshot_read_inflight_wait_duration commit_wait_duration replication_duration
tablet histogram microseconds: write_op_duration_client_propagated_consistency
tablet histogram microseconds: write_op_duration_commit_wait_consistency
tablet histogram requests: log_entry_batches_per_group
tablet histogram milliseconds: scan_duration_wall_time log_gc_duration flush_mrs_duration flush_dms_duration
tablet histogram milliseconds: compact_rs_duration delta_minor_compact_rs_duration
tablet histogram seconds: delta_major_compact_rs_duration
tablet gauge operations: in_progress_ops majority_done_ops ops_behind_leader log_gc_running
tablet gauge milliseconds: time_since_last_leader_heartbeat
tablet gauge transactions: write_transactions_inflight all_transactions_inflight
tablet gauge transactions: alter_schema_transactions_inflight
tablet gauge maintenance_operations: flush_mrs_running flush_dms_running compact_rs_running
tablet gauge maintenance_operations: delta_major_compact_rs_running delta_minor_compact_rs_running
";

/// Metrics that nyala does not show, by reason.
const ABSENT: [(&str, &str); 11] = [
    (
        "nothing here is counted so: no thread per operation, no queue of its own for prepare or apply, no log cache",
        "op_apply_queue_length op_apply_queue_time op_apply_run_time op_apply_queue_overload_rejections \
         op_prepare_queue_length op_prepare_queue_time op_prepare_run_time ops_timed_out_in_prepare_queue \
         log_cache_size log_cache_num_ops rpc_pending_connections threads_started table_locations_cache_hits",
    ),
    (
        "the allocator is built without its statistics; /memz shows resident and tracked memory",
        "generic_current_allocated_bytes generic_heap_size",
    ),
    (
        "files are opened by rowset, not by a block manager or a cache of files",
        "block_manager_blocks_open_reading block_manager_blocks_open_writing block_manager_total_bytes_read \
         block_manager_total_bytes_written block_manager_total_disk_sync log_block_manager_bytes_under_management \
         log_block_manager_blocks_under_management file_cache_usage file_cache_hits_caching file_cache_misses_caching",
    ),
    ("a miss always inserts", "block_cache_inserts"),
    (
        "no NTP client is built in, and the clock is not extrapolated: see clock_trusted",
        "hybrid_clock_extrapolating hybrid_clock_max_errors hybrid_clock_extrapolation_intervals clock_ntp_status \
      builtin_ntp_error builtin_ntp_local_clock_delta",
    ),
    (
        "a directory that fails ends its replicas, which tablets_num_failed counts",
        "data_dirs_failed tablets_num_initialized tablets_num_not_initialized tablets_num_shutdown \
         tablets_num_total_startup tablets_num_opened_startup tablets_opening_time_startup",
    ),
    (
        "refused for the whole server, in memory_rejections",
        "leader_memory_pressure_rejections follower_memory_pressure_rejections transaction_memory_pressure_rejections \
         transaction_memory_limit_rejections",
    ),
    (
        "the feature is missing: UNDO delta files of their own, location cache",
        "undo_delta_block_gc_running undo_delta_block_gc_bytes_deleted undo_delta_block_estimated_retained_bytes \
         deleted_rowset_estimated_retained_bytes delta_file_lookups delta_file_lookups_per_op mrs_lookups \
         bloom_lookups_per_op key_file_lookups_per_op location_mapping_cache_hits location_mapping_cache_queries",
    ),
    (
        "the engine does not count it: rows and cells before conditions, CPU time, kinds of upserts",
        "scanner_rows_scanned scanner_cells_scanned_from_disk \
         scanner_predicates_disabled scan_duration_user_time scan_duration_system_time upserts_as_updates",
    ),
    ("upstream gives it the unit of bytes, and means microseconds", "log_reader_read_batch_latency"),
    (
        "not counted yet: log, Raft, upkeep",
        "log_roll_latency failed_elections_since_stable_leader election_duration bytes_flushed \
         tablet_copy_source_duration maintenance_op_prepare_failed sys_catalog_oversized_write_requests",
    ),
];

/// Returns entity, kind and unit of each metric of [`PRESENT`].
fn present() -> BTreeMap<(&'static str, &'static str), (&'static str, &'static str)> {
    let lines = PRESENT.lines().filter(|line| !line.is_empty());
    let of_line = |line: &'static str| {
        let (about, names) = line.split_once(": ").expect("a colon");
        let [entity, kind, unit] = about.split(' ').collect::<Vec<_>>()[..] else { panic!("{about}") };
        names.split(' ').map(move |name| ((entity, name), (kind, unit))).collect::<Vec<_>>()
    };
    lines.flat_map(of_line).collect()
}

/// A metric without the mark `own` means that a dashboard made for Kudu shows the same thing here.
#[test]
fn metrics_with_kudus_names_are_kudus() {
    let mut expected = present();
    for def in METRICS.iter().filter(|def| !def.own) {
        let found = expected.remove(&(def.entity.name(), def.name));
        assert_eq!(found, Some((def.kind.name(), def.unit)), "{} of a {}", def.name, def.entity.name());
    }
    assert!(expected.is_empty(), "gone from the table: {expected:?}");
}

#[test]
fn every_metric_that_others_use_is_here_or_has_a_reason() {
    let mut reasons: BTreeMap<&str, &str> = BTreeMap::new();
    for (reason, names) in ABSENT {
        for name in names.split_whitespace() {
            assert_eq!(reasons.insert(name, reason), None, "{name} has two reasons");
        }
    }
    for (_, name) in present().keys() {
        assert_eq!(reasons.get(name), None, "{name} is here");
    }
    let own = METRICS.iter().filter(|def| def.own && def.entity != EntityKind::Table);
    for def in own {
        assert_eq!(reasons.get(def.name), None, "{} would be mistaken for Kudu's", def.name);
    }
    assert!(present().len() + reasons.len() >= 150, "{} and {}", present().len(), reasons.len());
}
