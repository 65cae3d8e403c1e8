//! Table of all metrics. A value is reported only under a definition of this table.
//!
//! Kudu's names stand for what Kudu means by them, with its units. Metrics that Kudu lacks are marked `own`.

use super::definition::EntityKind::{Server, Table, Tablet};
use super::definition::MetricKind::{Counter, Gauge, Histogram};
use super::definition::MetricLevel::{Debug, Info, Warn};
use super::definition::{MergeKind, MetricDef};

/// Expands rows into constants and a list of them. A row ends with `own` if Kudu has no such metric, and with `max` or
/// `min` if merged entities have the largest or the smallest value instead of the sum.
macro_rules! metrics {
    ($(
        $constant:ident = $entity:ident $kind:ident $name:literal [$unit:literal] $level:ident
        $help:literal $(, $word:ident)*;
    )+) => {
        $(pub static $constant: MetricDef = MetricDef {
            name: $name,
            kind: $kind,
            entity: $entity,
            unit: $unit,
            level: $level,
            merge: metrics!(@merge $($word)*),
            help: $help,
            own: metrics!(@own $($word)*),
        };)+

        /// All metrics.
        pub static METRICS: &[&MetricDef] = &[$(&$constant),+];
    };
    (@own) => { false };
    (@own own $($word:ident)*) => { true };
    (@own max $($word:ident)*) => { metrics!(@own $($word)*) };
    (@own min $($word:ident)*) => { metrics!(@own $($word)*) };
    (@merge) => { MergeKind::Sum };
    (@merge max $($word:ident)*) => { MergeKind::Max };
    (@merge min $($word:ident)*) => { MergeKind::Min };
    (@merge own $($word:ident)*) => { metrics!(@merge $($word)*) };
}

metrics! {
    // Calls.
    RPC_CONNECTIONS_ACCEPTED = Server Counter "rpc_connections_accepted" ["connections"] Info
        "Connections accepted.";
    RPC_INCOMING_QUEUE_TIME = Server Histogram "rpc_incoming_queue_time" ["microseconds"] Info
        "Time from the arrival of a call to the start of its method.";
    RPCS_QUEUE_OVERFLOW = Server Counter "rpcs_queue_overflow" ["requests"] Warn
        "Calls rejected by a full service queue.";
    RPCS_TIMED_OUT_IN_QUEUE = Server Counter "rpcs_timed_out_in_queue" ["requests"] Warn
        "Calls whose deadline passed in the service queue.";
    HANDLER_LATENCY = Server Histogram "handler_latency" ["microseconds"] Info
        "Time from the arrival of a call of this method to its reply.";
    QUEUE_OVERFLOW_REJECTIONS = Server Counter "queue_overflow_rejections" ["requests"] Info
        "Calls of this method that a full service queue rejected.";
    TIMED_OUT_ON_RESPONSE = Server Counter "timed_out_on_response" ["requests"] Info
        "Calls of this method that were answered after their deadline.";
    RPC_CALLS_RECEIVED = Server Counter "rpc_calls_received" ["requests"] Debug "Calls received.", own;
    RPC_CALLS_REPEATED = Server Counter "rpc_calls_repeated" ["requests"] Info
        "Retries answered with the reply of the first attempt.", own;
    RPC_CALLS_UNAUTHORIZED = Server Counter "rpc_calls_unauthorized" ["requests"] Warn
        "Calls refused by the access lists.", own;
    RPC_QUEUE_LENGTH = Server Gauge "rpc_queue_length" ["requests"] Info
        "Calls in the queues of the services.", own;
    RPC_CONNECTIONS_OPEN = Server Gauge "rpc_connections_open" ["connections"] Info
        "Open connections.", own;
    RPC_NEGOTIATIONS_FAILED = Server Counter "rpc_negotiations_failed" ["connections"] Warn
        "Connections that failed negotiation.", own;
    RPC_PROTOCOL_ERRORS = Server Counter "rpc_protocol_errors" ["connections"] Warn
        "Connections closed after a violation of the protocol.", own;

    // Process, clock, memory.
    UPTIME = Server Gauge "uptime" ["microseconds"] Info "Time since the start of the server.";
    MEMORY_USAGE = Server Gauge "memory_usage" ["bytes"] Info "Tracked memory of the server.";
    MEMORY_LIMIT = Server Gauge "memory_limit" ["bytes"] Info "Limit of tracked memory.", own;
    TRACKED_MEMORY = Server Gauge "tracked_memory" ["bytes"] Info "Tracked memory by consumer.", own;
    BUILD_INFO = Server Gauge "build_info" ["units"] Info "1, with the version as a label.", own;
    HYBRID_CLOCK_TIMESTAMP = Server Gauge "hybrid_clock_timestamp" ["microseconds"] Info
        "Hybrid time of the server.";
    HYBRID_CLOCK_ERROR = Server Gauge "hybrid_clock_error" ["microseconds"] Info
        "Bound of the clock's error; 2^64-1 if the clock cannot be read.";
    STARTUP_PROGRESS_STEPS_REMAINING = Server Gauge "startup_progress_steps_remaining" ["units"] Warn
        "Steps of the start that are not done.";
    STARTUP_PROGRESS_TIME_ELAPSED = Server Gauge "startup_progress_time_elapsed" ["milliseconds"] Info
        "Time of the start, so far or as a whole.";
    GLOG_ERROR_MESSAGES = Server Counter "glog_error_messages" ["messages"] Warn "Errors in the log.";
    GLOG_WARNING_MESSAGES = Server Counter "glog_warning_messages" ["messages"] Warn
        "Warnings in the log.";
    GLOG_INFO_MESSAGES = Server Counter "glog_info_messages" ["messages"] Debug
        "Lines in the log of level info.";
    CLOCK_TRUSTED = Server Gauge "clock_trusted" ["units"] Info
        "1 if the clock is within its bound or not checked, else 0.", own;
    CPU_UTIME = Server Gauge "cpu_utime" ["milliseconds"] Info "CPU time of the process in user mode.";
    CPU_STIME = Server Gauge "cpu_stime" ["milliseconds"] Info "CPU time of the process in the kernel.";
    THREADS_RUNNING = Server Gauge "threads_running" ["threads"] Info "Threads of the process.";
    VOLUNTARY_CONTEXT_SWITCHES = Server Gauge "voluntary_context_switches" ["context_switches"] Info
        "Times that a thread of the process waited.";
    INVOLUNTARY_CONTEXT_SWITCHES = Server Gauge "involuntary_context_switches" ["context_switches"] Info
        "Times that a thread of the process was preempted.";
    WORKERS = Server Gauge "workers" ["threads"] Info "Threads that run tasks.", own;
    WORKERS_BUSY = Server Counter "workers_busy" ["microseconds"] Info
        "Time that the threads that run tasks have spent in them, in total.", own;
    TASKS = Server Gauge "tasks" ["tasks"] Info "Tasks that have not ended.", own;
    PROCESS_RESIDENT_MEMORY = Server Gauge "process_resident_memory" ["bytes"] Info
        "Resident memory of the process.", own;
    PROCESS_OPEN_FDS = Server Gauge "process_open_fds" ["units"] Info "Open files of the process.", own;
    PROCESS_MAX_FDS = Server Gauge "process_max_fds" ["units"] Info "Limit of open files.", own;

    // Directories.
    DATA_DIRS_FULL = Server Gauge "data_dirs_full" ["data_directories"] Warn
        "Data directories whose free space is below the reserve.";
    DATA_DIRS_SPACE_AVAILABLE = Server Gauge "data_dirs_space_available_bytes" ["bytes"] Info
        "Free bytes of all data directories.";
    WAL_DIR_SPACE_AVAILABLE = Server Gauge "wal_dir_space_available_bytes" ["bytes"] Info
        "Free bytes of the log's directory.";
    DISK_FREE = Server Gauge "disk_free" ["bytes"] Info "Free bytes of a directory's device.", own;
    DISK_TOTAL = Server Gauge "disk_total" ["bytes"] Info "Bytes of a directory's device.", own;
    DISK_RESERVED = Server Gauge "disk_reserved" ["bytes"] Info
        "Free bytes below which writes are refused.", own;

    // Scrubber.
    SCRUB_FILES_CHECKED = Server Counter "scrub_files_checked" ["units"] Info
        "Files verified by the scrubber.", own;
    SCRUB_READ = Server Counter "scrub_read" ["bytes"] Info
        "Bytes verified by the scrubber.", own;
    SCRUB_FILES_DAMAGED = Server Counter "scrub_files_damaged" ["units"] Warn
        "Damaged files found by the scrubber.", own;
    SCRUB_PASSES = Server Counter "scrub_passes" ["units"] Info "Passes of the scrubber that ended.", own;
    SCRUB_LAST_PASS_AGE = Server Gauge "scrub_last_pass_age" ["seconds"] Info
        "Time since the begin of the last pass of the scrubber that ended.", own;

    // Page cache.
    BLOCK_CACHE_USAGE = Server Gauge "block_cache_usage" ["bytes"] Info "Bytes of pages in the page cache.";
    BLOCK_CACHE_LOOKUPS = Server Counter "block_cache_lookups" ["blocks"] Debug
        "Pages looked up in the page cache.";
    BLOCK_CACHE_HITS = Server Counter "block_cache_hits" ["blocks"] Debug "Pages found in the page cache.";
    BLOCK_CACHE_HITS_CACHING = Server Counter "block_cache_hits_caching" ["blocks"] Debug
        "Pages found in the page cache by lookups that would have inserted them.";
    BLOCK_CACHE_MISSES = Server Counter "block_cache_misses" ["blocks"] Debug "Pages read from disk.";
    BLOCK_CACHE_MISSES_CACHING = Server Counter "block_cache_misses_caching" ["blocks"] Debug
        "Pages read from disk and inserted into the page cache.";
    BLOCK_CACHE_EVICTIONS = Server Counter "block_cache_evictions" ["blocks"] Debug
        "Pages evicted from the page cache.";

    // Tablet server.
    TABLETS_NUM_RUNNING = Server Gauge "tablets_num_running" ["tablets"] Info "Running replicas.";
    TABLETS_NUM_BOOTSTRAPPING = Server Gauge "tablets_num_bootstrapping" ["tablets"] Info
        "Replicas that replay their log.";
    TABLETS_NUM_FAILED = Server Gauge "tablets_num_failed" ["tablets"] Warn "Failed replicas.";
    TABLETS_NUM_STOPPING = Server Gauge "tablets_num_stopping" ["tablets"] Info
        "Replicas that are being stopped.";
    TABLETS_NUM_STOPPED = Server Gauge "tablets_num_stopped" ["tablets"] Info
        "Stopped and tombstoned replicas.";
    TABLETS_COPYING = Server Gauge "tablets_copying" ["tablets"] Info
        "Replicas that are being copied to this server.", own;
    NUM_RAFT_LEADERS = Server Gauge "num_raft_leaders" ["tablets"] Info
        "Replicas that lead their Raft group.";
    RAFT_LEADERLESS_TABLETS = Server Gauge "raft_leaderless_tablets" ["tablets"] Warn
        "Running replicas that know no leader.", own;
    ACTIVE_SCANNERS = Server Gauge "active_scanners" ["scanners"] Info "Open scanners.";
    SCANNERS_EXPIRED = Server Counter "scanners_expired" ["scanners"] Warn
        "Scanners closed because no call used them in time.";
    SCANNER_DURATION = Server Histogram "scanner_duration" ["microseconds"] Info
        "Time from the opening of a scanner to its end.";
    SLOW_SCANS = Server Gauge "slow_scans" ["scanners"] Warn "Scans that are open for more than a minute.";
    CREATE_TABLET_RUN_TIME = Server Histogram "create_tablet_run_time" ["microseconds"] Debug
        "Time of a creation of a replica.";
    DELETE_TABLET_RUN_TIME = Server Histogram "delete_tablet_run_time" ["microseconds"] Debug
        "Time of a deletion of a replica.";
    MAINTENANCE_OP_FIND_BEST_CANDIDATE_DURATION = Server Histogram
        "maintenance_op_find_best_candidate_duration" ["microseconds"] Info
        "Time in which the next maintenance job is chosen.";
    TABLET_COPY_BYTES_FETCHED = Server Counter "tablet_copy_bytes_fetched" ["bytes"] Debug
        "Bytes received by tablet copies.";
    TABLET_COPY_BYTES_SENT = Server Counter "tablet_copy_bytes_sent" ["bytes"] Debug
        "Bytes sent by tablet copies.";
    TABLET_COPY_OPEN_CLIENT_SESSIONS = Server Gauge "tablet_copy_open_client_sessions" ["sessions"] Info
        "Tablet copies to this server.";
    TABLET_COPY_OPEN_SOURCE_SESSIONS = Server Gauge "tablet_copy_open_source_sessions" ["sessions"] Info
        "Tablet copies from this server.";
    TABLET_COPY_DURATION = Server Histogram "tablet_copy_duration" ["milliseconds"] Debug
        "Time of a tablet copy to this server.";
    COPIES_FINISHED = Server Counter "copies_finished" ["requests"] Info
        "Tablet copies to this server that succeeded.", own;
    COPIES_FAILED = Server Counter "copies_failed" ["requests"] Warn
        "Tablet copies to this server that failed.", own;
    MEMORY_REJECTIONS = Server Counter "memory_rejections" ["requests"] Warn
        "Writes and leaders' messages rejected because memory was short.", own;

    // Master.
    CLUSTER_REPLICA_SKEW = Server Gauge "cluster_replica_skew" ["tablets"] Warn
        "Difference between the largest and the smallest number of replicas on a live tablet server.";
    CATALOG_TABLES = Server Gauge "catalog_tables" ["tables"] Info "Tables, without deleted ones.", own;
    CATALOG_TABLETS = Server Gauge "catalog_tablets" ["tablets"] Info "Tablets of the tables.", own;
    CATALOG_TABLETS_NOT_RUNNING = Server Gauge "catalog_tablets_not_running" ["tablets"] Warn
        "Tablets that do not run yet.", own;
    CATALOG_TABLETS_UNDER_REPLICATED = Server Gauge "catalog_tablets_under_replicated" ["tablets"] Warn
        "Tablets with fewer live replicas than their table asks for.", own;
    CATALOG_TABLET_SERVERS = Server Gauge "catalog_tablet_servers" ["servers"] Info
        "Registered tablet servers.", own;
    CATALOG_TABLET_SERVERS_ALIVE = Server Gauge "catalog_tablet_servers_alive" ["servers"] Info
        "Tablet servers with a recent heartbeat.", own;
    CATALOG_TOMBSTONES = Server Gauge "catalog_tombstones" ["tablets"] Debug
        "Tombstones on tablet servers.", own;
    CATALOG_REQUESTS_PENDING = Server Gauge "catalog_requests_pending" ["requests"] Info
        "Requests to tablet servers without a reply.", own;

    // Table, on the leading master.
    TABLE_LIVE_ROW_COUNT = Table Gauge "live_row_count" ["rows"] Info
        "Rows of the table, as its leaders report them.";
    TABLE_ON_DISK_SIZE = Table Gauge "on_disk_size" ["bytes"] Info "Bytes of the table's leaders on disk.";
    TABLE_COLUMN_COUNT = Table Gauge "column_count" ["columns"] Info "Columns of the table.";
    TABLE_SCHEMA_VERSION = Table Gauge "schema_version" ["versions"] Info "Version of the table's schema.";

    // Rows of a tablet.
    ROWS_INSERTED = Tablet Counter "rows_inserted" ["rows"] Info "Rows inserted.";
    ROWS_UPSERTED = Tablet Counter "rows_upserted" ["rows"] Info "Rows upserted.";
    ROWS_UPDATED = Tablet Counter "rows_updated" ["rows"] Info "Rows updated.";
    ROWS_DELETED = Tablet Counter "rows_deleted" ["rows"] Info "Rows deleted.";
    INSERTIONS_FAILED_DUP_KEY = Tablet Counter "insertions_failed_dup_key" ["rows"] Debug
        "Inserts of keys that were present.";
    INSERT_IGNORE_ERRORS = Tablet Counter "insert_ignore_errors" ["rows"] Debug
        "INSERT IGNORE operations of keys that were present.";
    UPDATE_IGNORE_ERRORS = Tablet Counter "update_ignore_errors" ["rows"] Debug
        "UPDATE IGNORE operations of absent keys.";
    UPSERT_IGNORE_ERRORS = Tablet Counter "upsert_ignore_errors" ["rows"] Debug
        "UPSERT IGNORE operations that would have changed an immutable cell.";
    DELETE_IGNORE_ERRORS = Tablet Counter "delete_ignore_errors" ["rows"] Debug
        "DELETE IGNORE operations of absent keys.";
    ROW_ERRORS = Tablet Counter "row_errors" ["rows"] Debug
        "Row operations that were rejected, of every kind.", own;
    BLOOM_LOOKUPS = Tablet Counter "bloom_lookups" ["probes"] Debug
        "Bloom filters consulted for the keys of writes.";
    KEY_FILE_LOOKUPS = Tablet Counter "key_file_lookups" ["probes"] Debug
        "Key indexes searched for the keys of writes.";

    // Size of a tablet.
    ON_DISK_SIZE = Tablet Gauge "on_disk_size" ["bytes"] Info
        "Bytes of the replica on disk, log and metadata included.";
    ON_DISK_DATA_SIZE = Tablet Gauge "on_disk_data_size" ["bytes"] Info
        "Bytes of the replica's data files.";
    MEMROWSET_SIZE = Tablet Gauge "memrowset_size" ["bytes"] Info "Bytes of MemRowSets.";
    DELTAMEMSTORE_SIZE = Tablet Gauge "deltamemstore_size" ["bytes"] Info "Bytes of DeltaMemStores.", own;
    LIVE_ROW_COUNT = Tablet Gauge "live_row_count" ["rows"] Info
        "Rows of the tablet, without deleted ones.";
    AVERAGE_DISKROWSET_HEIGHT = Tablet Gauge "average_diskrowset_height" ["units"] Info
        "DiskRowSets that cover a key, on average.", max;
    NUM_ROWSETS_ON_DISK = Tablet Gauge "num_rowsets_on_disk" ["units"] Info "DiskRowSets.";
    TABLET_STATE = Tablet Gauge "state" ["state"] Info "State of the replica.";
    LOG_SIZE = Tablet Gauge "log_size" ["bytes"] Info "Bytes of the log's segments.", own;

    // Scans of a tablet.
    TABLET_ACTIVE_SCANNERS = Tablet Gauge "tablet_active_scanners" ["scanners"] Info "Open scans.";
    SCANS_STARTED = Tablet Counter "scans_started" ["scanners"] Info "Scans opened.";
    SCANNER_CELLS_RETURNED = Tablet Counter "scanner_cells_returned" ["cells"] Debug
        "Cells returned by scans.";
    SCANNER_BYTES_RETURNED = Tablet Counter "scanner_bytes_returned" ["bytes"] Debug
        "Bytes of rows returned by scans.";
    SCANNER_BYTES_SCANNED_FROM_DISK = Tablet Counter "scanner_bytes_scanned_from_disk" ["bytes"] Debug
        "Bytes of pages that scans got, from the page cache or from files.";
    SCAN_DURATION_WALL_TIME = Tablet Histogram "scan_duration_wall_time" ["milliseconds"] Debug
        "Time from the opening of a scan of the tablet to its end.";
    SNAPSHOT_READ_INFLIGHT_WAIT_DURATION = Tablet Histogram "snapshot_read_inflight_wait_duration"
        ["microseconds"] Debug "Time for which a scan waited until its snapshot was complete.";
    LAST_READ_ELAPSED_TIME = Tablet Gauge "last_read_elapsed_time" ["seconds"] Debug
        "Time since the latest scan of the tablet was opened, or since the replica was.", min;
    SCANNER_ROWS_RETURNED = Tablet Counter "scanner_rows_returned" ["rows"] Info "Rows returned by scans.";

    // Writes of a tablet.
    LAST_WRITE_ELAPSED_TIME = Tablet Gauge "last_write_elapsed_time" ["seconds"] Debug
        "Time since the latest write call to the replica, or since it was opened.", min;
    COMMIT_WAIT_DURATION = Tablet Histogram "commit_wait_duration" ["microseconds"] Debug
        "Time for which a write with commit wait waited for the clock.";
    WRITE_OP_DURATION_CLIENT_PROPAGATED_CONSISTENCY = Tablet Histogram
        "write_op_duration_client_propagated_consistency" ["microseconds"] Debug
        "Time of a write without commit wait, from its proposal to its effect.";
    WRITE_OP_DURATION_COMMIT_WAIT_CONSISTENCY = Tablet Histogram "write_op_duration_commit_wait_consistency"
        ["microseconds"] Debug "Time of a write with commit wait, from its proposal to its reply.";

    // Log of a tablet.
    LOG_BYTES_LOGGED = Tablet Counter "log_bytes_logged" ["bytes"] Debug "Bytes written to the log.";
    LOG_GC_RUNNING = Tablet Gauge "log_gc_running" ["operations"] Info "Deletions of log segments that run.";
    LOG_READER_BYTES_READ = Tablet Counter "log_reader_bytes_read" ["bytes"] Debug
        "Bytes of operations that were read from the log for members that lack them.";
    LOG_READER_ENTRIES_READ = Tablet Counter "log_reader_entries_read" ["entries"] Debug
        "Operations that were read from the log for members that lack them.";
    LOG_APPEND_LATENCY = Tablet Histogram "log_append_latency" ["microseconds"] Info
        "Time of an append of a group of entries to the log.";
    LOG_SYNC_LATENCY = Tablet Histogram "log_sync_latency" ["microseconds"] Info
        "Time of a sync of the log.";
    LOG_GROUP_COMMIT_LATENCY = Tablet Histogram "log_group_commit_latency" ["microseconds"] Debug
        "Time of an append of a group of entries and its sync.";
    LOG_ENTRY_BATCHES_PER_GROUP = Tablet Histogram "log_entry_batches_per_group" ["requests"] Debug
        "Appends that shared a sync.";
    LOG_GC_DURATION = Tablet Histogram "log_gc_duration" ["milliseconds"] Info
        "Time of a deletion of log segments.";

    // Raft group of a tablet.
    RAFT_TERM = Tablet Gauge "raft_term" ["units"] Debug "Term of the replica.", max;
    RAFT_REPLICA_LAG = Tablet Gauge "raft_replica_lag" ["operations"] Info
        "Operations that the slowest member is not known to have; 0 on replicas that do not lead.", own, max;
    IN_PROGRESS_OPS = Tablet Gauge "in_progress_ops" ["operations"] Debug
        "Operations of a leader that are not committed.";
    MAJORITY_DONE_OPS = Tablet Gauge "majority_done_ops" ["operations"] Debug
        "Operations of a leader that are committed, and that the slowest member is not known to have.";
    REPLICATION_DURATION = Tablet Histogram "replication_duration" ["microseconds"] Debug
        "Time from the proposal of a write until a majority has it.";
    OPS_BEHIND_LEADER = Tablet Gauge "ops_behind_leader" ["operations"] Warn
        "Operations that the leader has reported and that this replica lacks; 0 on a leader.", max;
    TIME_SINCE_LAST_LEADER_HEARTBEAT = Tablet Gauge "time_since_last_leader_heartbeat" ["milliseconds"] Debug
        "Time since the latest message of a leader; 0 on a leader.", max;
    ALL_TRANSACTIONS_INFLIGHT = Tablet Gauge "all_transactions_inflight" ["transactions"] Debug
        "Operations that have a timestamp and are not applied.";
    ALTER_SCHEMA_TRANSACTIONS_INFLIGHT = Tablet Gauge "alter_schema_transactions_inflight" ["transactions"] Debug
        "Alterations of the schema that are proposed and not applied.";
    WRITE_TRANSACTIONS_INFLIGHT = Tablet Gauge "write_transactions_inflight" ["transactions"] Debug
        "Writes that have a timestamp and are not applied.";
    SAFE_TIME_LAG = Tablet Gauge "safe_time_lag" ["microseconds"] Info
        "Time by which the replica's safe time is behind the clock.", own, max;

    // Maintenance of a tablet.
    FLUSH_MRS_RUNNING = Tablet Gauge "flush_mrs_running" ["maintenance_operations"] Debug
        "Flushes of a MemRowSet that run.";
    FLUSH_DMS_RUNNING = Tablet Gauge "flush_dms_running" ["maintenance_operations"] Debug
        "Flushes of DeltaMemStores that run.";
    COMPACT_RS_RUNNING = Tablet Gauge "compact_rs_running" ["maintenance_operations"] Debug
        "Compactions of rowsets that run.";
    DELTA_MAJOR_COMPACT_RS_RUNNING = Tablet Gauge "delta_major_compact_rs_running" ["maintenance_operations"] Debug
        "Major delta compactions that run.";
    DELTA_MINOR_COMPACT_RS_RUNNING = Tablet Gauge "delta_minor_compact_rs_running" ["maintenance_operations"] Debug
        "Minor delta compactions that run.";
    FLUSH_MRS_DURATION = Tablet Histogram "flush_mrs_duration" ["milliseconds"] Debug
        "Time of a flush of a MemRowSet.";
    FLUSH_DMS_DURATION = Tablet Histogram "flush_dms_duration" ["milliseconds"] Debug
        "Time of a flush of DeltaMemStores.";
    COMPACT_RS_DURATION = Tablet Histogram "compact_rs_duration" ["milliseconds"] Debug
        "Time of a compaction of rowsets.";
    DELTA_MAJOR_COMPACT_RS_DURATION = Tablet Histogram "delta_major_compact_rs_duration" ["seconds"] Debug
        "Time of a major delta compaction.";
    DELTA_MINOR_COMPACT_RS_DURATION = Tablet Histogram "delta_minor_compact_rs_duration" ["milliseconds"] Debug
        "Time of a minor delta compaction.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_within_an_entity_kind() {
        let names: BTreeSet<_> = METRICS.iter().map(|def| (def.entity, def.name)).collect();
        assert_eq!(names.len(), METRICS.len());
    }

    #[test]
    fn names_and_units_are_in_kudus_form() {
        let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        for def in METRICS {
            assert!(is_word(def.name) && is_word(def.unit), "{}", def.name);
            assert!(def.help.ends_with('.'), "{}: the help is a sentence", def.name);
            assert!(def.kind != Histogram || def.level != Warn, "{}", def.name);
        }
    }
}
