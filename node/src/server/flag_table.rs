//! Every setting there is. Names and defaults are Kudu's unless the help says otherwise; times and sizes carry their
//! unit in the name.

use super::flags::FlagSpec;
use super::flags::Servers::{Master, TabletServer};

const STABLE: &[&str] = &["stable"];
const EVOLVING: &[&str] = &["evolving", "advanced"];
const UNSAFE: &[&str] = &["unsafe", "hidden"];
const EXPERIMENTAL: &[&str] = &["experimental"];

type F = FlagSpec;

/// By what they are about.
pub static TABLE: &[FlagSpec] = &[
    // Addresses.
    F::text(
        "rpc_bind_addresses",
        "",
        "host:port to serve RPCs at; port 0 takes a free one. \
        Default 0.0.0.0:7051 for a master, 0.0.0.0:7050 for a tablet server",
    )
    .tagged(STABLE),
    F::list(
        "rpc_advertised_addresses",
        "",
        "host:port names for clients to use instead of the bound address",
    )
    .tagged(STABLE),
    F::text("webserver_interface", "", "host to serve /metrics and /healthz at; the RPC host by default")
        .tagged(STABLE),
    F::number(
        "webserver_port",
        "0",
        "port to serve /metrics and /healthz at; 0 takes a free one. Default 8051 for \
        a master, 8050 for a tablet server, unless it is given",
    )
    .within(0, 65535)
    .tagged(STABLE),
    F::bool("webserver_enabled", "true", "serve /metrics and /healthz").tagged(STABLE),
    F::list("tserver_master_addrs", "127.0.0.1:7051", "host:port of every master")
        .of(TabletServer)
        .tagged(STABLE),
    F::list("master_addresses", "", "host:port of every master, when there are several")
        .of(Master)
        .tagged(STABLE),
    F::bool("master_auto_join_cluster", "true", "a new master of a cluster that is there has itself added")
        .of(Master),
    // Directories.
    F::text("fs_wal_dir", "", "directory of the write-ahead logs; required").tagged(STABLE),
    F::list("fs_data_dirs", "", "directories of the data; the directory of the logs by default")
        .tagged(STABLE),
    // Logs, identity.
    F::choice("log_format", &["text", "json"], "text", "how log lines are written to standard error")
        .tagged(STABLE),
    F::text("log_level", "info", "what is logged: a level, or directives such as info,node::rpc=debug")
        .tagged(STABLE),
    F::text("server_dump_info_path", "", "file to write the server's status to once it serves")
        .tagged(UNSAFE),
    F::choice("server_dump_info_format", &["json", "pb"], "json", "form of that file").tagged(UNSAFE),
    // Durability.
    F::bool(
        "log_sync",
        "true",
        "acknowledge a write only when it is on the disk; false is Kudu's default, \
        where a power failure may lose acknowledged writes",
    )
    .tagged(STABLE),
    F::number("log_segment_size_mb", "8", "size at which a segment of a write-ahead log is closed")
        .within(1, 1024),
    F::bool("log_preallocate_segments", "true", "reserve a segment's space when it is begun"),
    F::choice(
        "log_compression_codec",
        &["NO_COMPRESSION", "LZ4"],
        "LZ4",
        "compression of the write-ahead log",
    ),
    // Memory.
    F::number("memory_limit_hard_bytes", "0", "memory the server may use; 0 is four fifths of the machine's")
        .tagged(STABLE),
    F::number(
        "memory_limit_soft_percentage",
        "80",
        "share of the memory limit above which writes are slowed",
    )
    .within(1, 100),
    F::number("block_cache_capacity_mb", "512", "memory for pages of column files")
        .of(TabletServer)
        .tagged(STABLE),
    // RPC.
    F::number("rpc_service_queue_length", "50", "calls of a service that may wait").within(1, 1 << 20),
    F::number("rpc_num_service_threads", "20", "calls of a service that may run at once").within(1, 1 << 20),
    // A replicated operation has to fit one message, with room for what surrounds its rows.
    F::number("rpc_max_message_size", "52428800", "bytes of the longest message accepted")
        .within(1 << 20, 1 << 31),
    F::number(
        "rpc_default_keepalive_time_ms",
        "65000",
        "an idle connection is closed after this long; \
        0 is never",
    ),
    F::number("rpc_negotiation_timeout_ms", "3000", "time for a new connection to introduce itself")
        .within(1, 1 << 40),
    F::number("rpc_negotiation_inject_delay_ms", "0", "for tests: time every negotiation takes")
        .tagged(UNSAFE),
    F::list(
        "trusted_subnets",
        "127.0.0.0/8,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,169.254.0.0/16",
        "networks from which connections need no encryption",
    ),
    F::number("remember_responses_ttl_ms", "600000", "how long replies are kept for retries"),
    F::number("remember_clients_ttl_ms", "3600000", "how long a silent client is remembered"),
    // Clock and history.
    F::number(
        "max_clock_sync_error_usec",
        "10000000",
        "how far ahead of this server's clock a timestamp may be",
    )
    .tagged(EVOLVING),
    F::number("tablet_history_max_age_sec", "604800", "snapshots older than this are refused")
        .of(TabletServer)
        .tagged(EVOLVING),
    // Scans.
    F::number("scanner_ttl_ms", "60000", "how long an idle scanner is kept").of(TabletServer).runtime(),
    F::number("scanner_gc_check_interval_us", "5000000", "how often expired scanners are looked for")
        .of(TabletServer)
        .within(1, 1 << 50),
    F::number("scanner_max_wait_ms", "1000", "how long a scan may wait for its snapshot")
        .of(TabletServer)
        .runtime(),
    F::number("scanner_default_batch_size_bytes", "1048576", "size of a scan's reply unless the client says")
        .of(TabletServer)
        .runtime(),
    F::number("scanner_max_batch_size_bytes", "8388608", "size no scan's reply exceeds by much")
        .of(TabletServer)
        .runtime(),
    F::number("scanner_inject_latency_on_each_batch_ms", "0", "for tests: time every batch of a scan takes")
        .of(TabletServer)
        .tagged(UNSAFE)
        .runtime(),
    // Replication.
    F::choice(
        "raft_profile",
        &["kudu", "fast"],
        "kudu",
        "times of replication: kudu's, or for servers close to each other, where a dead leader is replaced \
        within 300 ms; settings that are given go before it",
    )
    .tagged(STABLE),
    F::number("raft_heartbeat_interval_ms", "500", "how often a leader lets its followers hear from it")
        .within(1, 1 << 40)
        .tagged(EXPERIMENTAL),
    F::fraction(
        "leader_failure_max_missed_heartbeat_periods",
        "3",
        "heartbeats a follower misses before it thinks its leader gone",
    )
    .tagged(EXPERIMENTAL),
    F::number(
        "follower_unavailable_considered_failed_sec",
        "300",
        "a replica silent for this long is replaced",
    )
    .within(1, 1 << 40)
    .tagged(EVOLVING),
    // Copies of tablets.
    F::number("num_tablets_to_open_simultaneously", "4", "tablets whose logs are replayed at once")
        .within(1, 1024)
        .of(TabletServer)
        .tagged(EVOLVING),
    F::number("num_tablets_to_copy_simultaneously", "10", "tablets copied to this server at once")
        .within(1, 1024)
        .of(TabletServer)
        .tagged(EVOLVING),
    F::number("tablet_copy_sessions_max", "64", "copies from this server at once; no setting of Kudu's")
        .within(1, 1 << 20)
        .tagged(EVOLVING),
    F::number(
        "tablet_copy_bytes_per_second",
        "0",
        "bytes that all copies from this server together may take in a second; 0 is no bound; no setting of Kudu's",
    )
    .within(0, 1 << 40)
    .tagged(EVOLVING),
    F::number("tablet_copy_idle_timeout_sec", "180", "a copy that asks for nothing for so long is given up")
        .within(1, 1 << 20)
        .tagged(EVOLVING),
    F::number("tablet_copy_timeout_poll_period_ms", "10000", "how often such copies are looked for")
        .within(1, 1 << 40)
        .tagged(EVOLVING),
    F::number("tablet_copy_transfer_chunk_size_bytes", "4194304", "bytes fetched at once by a copy")
        .within(1, 16 << 20)
        .tagged(EVOLVING),
    F::number("consensus_rpc_timeout_ms", "30000", "how long a replica may take to answer entries")
        .within(1, 1 << 40)
        .tagged(EVOLVING),
    F::number("consensus_max_batch_size_bytes", "1048576", "bytes of entries sent to a replica at once")
        .within(1024, 1 << 30)
        .tagged(EVOLVING),
    // Heartbeats, maintenance, flushes.
    F::number("heartbeat_interval_ms", "1000", "how often the masters hear from a tablet server")
        .of(TabletServer)
        .within(1, 1 << 40),
    F::number("heartbeat_rpc_timeout_ms", "15000", "how long a master may take to answer").of(TabletServer),
    F::number("update_tablet_stats_interval_ms", "5000", "how often row counts and sizes are taken")
        .of(TabletServer),
    F::number("maintenance_manager_polling_interval_ms", "250", "how often maintenance looks for work")
        .of(TabletServer)
        .within(1, 1 << 40),
    F::number("flush_threshold_mb", "128", "size at which a tablet's recent inserts are flushed")
        .of(TabletServer)
        .within(1, 1 << 20)
        .runtime(),
    F::number("flush_threshold_secs", "120", "age at which a tablet's recent inserts are flushed")
        .of(TabletServer)
        .runtime(),
    F::bool("enable_rowset_compaction", "true", "merge row sets whose keys overlap")
        .of(TabletServer)
        .tagged(UNSAFE),
    F::number("log_target_replay_size_mb", "1024", "log size above which flushes make it shorter")
        .of(TabletServer),
    F::number("max_cell_size_bytes", "65536", "bytes of the longest cell").tagged(UNSAFE),
    F::number("max_encoded_key_size_bytes", "16384", "bytes of the longest primary key").tagged(UNSAFE),
    // Master.
    F::number("default_num_replicas", "3", "replicas of a table whose creator names no number")
        .of(Master)
    .within(1, 7),
    F::number("max_num_replicas", "7", "replicas that a table may have").of(Master).within(1, 7),
    F::number("min_num_replicas", "1", "replicas that a table has at least").of(Master).within(1, 7),
    F::bool("allow_unsafe_replication_factor", "false", "let tables have an even number of replicas")
        .of(Master)
        .tagged(UNSAFE),
    F::bool(
        "allow_creating_under_replicated_tables",
        "false",
        "make tables while only a majority of their replicas finds a tablet server",
    )
    .of(Master),
    F::bool("master_add_server_when_underreplicated", "true", "replace failed replicas")
        .of(Master)
        .tagged(UNSAFE),
    F::bool(
        "master_tombstone_evicted_tablet_replicas",
        "true",
        "remove replicas that their tablets no longer count",
    )
    .of(Master)
    .tagged(UNSAFE),
    F::text(
        "location_mapping_cmd",
        "",
        "program that is given a host and prints its location, as /room2/rack7; replicas are spread over locations",
    )
    .of(Master)
    .tagged(EVOLVING),
    F::list("location_mapping_by_uuid", "", "locations of tablet servers: UUID=/LOCATION, and so on")
        .of(Master)
        .tagged(EVOLVING),
    F::bool("master_client_location_assignment_enabled", "true", "tell clients their location")
        .of(Master),
    F::number("max_create_tablets_per_ts", "60", "new tablets of one table, per tablet server").of(Master),
    F::number("max_num_columns", "300", "columns that a table may have").of(Master).tagged(UNSAFE),
    F::number("max_identifier_length", "256", "bytes of a table's or column's name")
        .of(Master)
        .tagged(UNSAFE),
    F::number("table_locations_ttl_ms", "300000", "how long clients may keep what they learned of locations")
        .of(Master),
    F::number(
        "tserver_unresponsive_timeout_ms",
        "60000",
        "a tablet server silent for this long counts as dead",
    )
    .of(Master),
    F::number("master_ts_rpc_timeout_ms", "30000", "time a tablet server has to answer the master")
        .of(Master),
    F::bool("master_support_connect_to_master_rpc", "true", "offer ConnectToMaster")
        .of(Master)
        .tagged(UNSAFE),
    F::bool("master_support_ignore_operations", "true", "tell clients that IGNORE operations are understood")
        .of(Master)
        .tagged(UNSAFE),
    F::bool("master_support_immutable_column_attribute", "true", "let clients make immutable columns")
        .of(Master)
        .tagged(UNSAFE),
    F::bool(
        "master_support_auto_incrementing_column",
        "true",
        "let clients make tables without a unique key",
    )
    .of(Master)
    .tagged(UNSAFE),
    F::bool("enable_per_range_hash_schemas", "true", "let ranges have hash buckets of their own")
        .of(Master)
        .tagged(UNSAFE),
    F::number("tablet_creation_timeout_ms", "30000", "a tablet not up after this long is replaced")
        .of(Master),
    F::number(
        "default_deleted_table_reserve_seconds",
        "0",
        "how long a deleted table can be recalled if the request does not say",
    )
    .of(Master),
    F::number("master_inject_latency_on_tablet_lookups_ms", "0", "for tests: time every lookup takes")
        .of(Master)
        .tagged(UNSAFE),
    F::bool("unlock_unsafe_flags", "false", "taken as Kudu's tools give it; nothing is locked here").inert(),
    F::bool("unlock_experimental_flags", "false", "taken as Kudu's tools give it; nothing is locked here")
        .inert(),
    // What Kudu's tools and tests give, and nothing here depends on.
    F::choice(
        "time_source",
        &["auto", "builtin", "system", "system_unsync", "mock"],
        "system",
        "the system's clock is used whatever is given",
    )
    .inert(),
    F::list("builtin_ntp_servers", "", "the system's clock is used, so it asks no server itself").inert(),
    F::text("block_manager", "log", "there is one block manager").inert(),
    F::text("block_cache_type", "DRAM", "pages are cached in memory").inert(),
    F::bool("never_fsync", "false", "use log_sync").tagged(UNSAFE).inert(),
    F::bool("enable_minidumps", "false", "none are written").inert(),
    F::text("redact", "all", "cells are not logged").inert(),
    F::bool("logtostderr", "true", "the log goes to standard error").inert(),
    F::text("log_dir", "", "the log goes to standard error").inert(),
    F::number("metrics_log_interval_ms", "60000", "metrics are served, not logged").inert(),
    F::bool("rpc_server_allow_ephemeral_ports", "true", "port 0 is always allowed").inert(),
    F::bool("rpc_reuseport", "false", "the address is bound once").tagged(EXPERIMENTAL).inert(),
    F::text("local_ip_for_outbound_sockets", "", "the system chooses").tagged(EXPERIMENTAL).inert(),
    F::text("host_for_tests", "", "for tests").tagged(UNSAFE).inert(),
    F::choice(
        "rpc_authentication",
        &["disabled", "optional", "required"],
        "optional",
        "clients say who they are and are believed",
    )
    .inert(),
    F::choice("rpc_encryption", &["disabled", "optional", "required"], "optional", "there is no TLS").inert(),
    F::bool("rpc_encrypt_loopback_connections", "false", "there is no TLS").tagged(EXPERIMENTAL).inert(),
    F::text("rpc_tls_min_protocol", "TLSv1.2", "there is no TLS").inert(),
    F::bool("rpc_trace_negotiation", "false", "log how each client introduced itself"),
    F::bool("enable_jwt_token_auth", "false", "there are no tokens").tagged(EXPERIMENTAL).inert(),
    F::text("user_acl", "*", "everybody may").inert(),
    F::text("superuser_acl", "", "everybody may").inert(),
    F::bool("tserver_enforce_access_control", "false", "everybody may").of(TabletServer).inert(),
    F::fraction("tserver_inject_invalid_authz_token_ratio", "0", "there are no tokens")
        .tagged(UNSAFE)
        .inert(),
    F::fraction("rpc_inject_invalid_authn_token_ratio", "0", "there are no tokens").tagged(UNSAFE).inert(),
    F::number("authn_token_validity_seconds", "604800", "there are no tokens").inert(),
    F::number("authz_token_validity_seconds", "300", "there are no tokens").inert(),
    F::number("ipki_server_key_size", "2048", "there is no TLS").tagged(EXPERIMENTAL).inert(),
    F::number("ipki_ca_key_size", "2048", "there is no TLS").tagged(EXPERIMENTAL).inert(),
    F::number("tsk_num_rsa_bits", "2048", "there are no tokens").tagged(EXPERIMENTAL).inert(),
    F::bool("txn_manager_enabled", "false", "there are no transactions").of(Master).inert(),
    F::bool("enable_txn_system_client_init", "false", "there are no transactions").of(TabletServer).inert(),
    F::number("txn_keepalive_interval_ms", "30000", "there are no transactions").inert(),
    F::bool("txn_schedule_background_tasks", "true", "there are no transactions").inert(),
    F::number("txn_staleness_tracker_interval_ms", "10000", "there are no transactions").inert(),
    F::number("txn_status_manager_inject_latency_finalize_commit_ms", "0", "there are no transactions")
        .inert(),
    F::bool("mock_table_metrics_for_testing", "false", "for tests").of(Master).tagged(UNSAFE).inert(),
    F::number("on_disk_size_for_testing", "0", "for tests").of(Master).tagged(UNSAFE).inert(),
    F::number("live_row_count_for_testing", "0", "for tests").of(Master).tagged(UNSAFE).inert(),
];
