//! Every setting that does something. Names and defaults are Kudu's unless the help says otherwise; times and sizes carry
//! their unit in the name. [`super::flag_table_kudu`] has the settings of Kudu that do nothing here.

use super::flag_table_kudu::WITHOUT_EFFECT;
use super::flags::Class::{Effective, Safeguard};
use super::flags::FlagSpec;
use super::flags::Servers::{Master, TabletServer};

const STABLE: &[&str] = &["stable"];
const EVOLVING: &[&str] = &["evolving", "advanced"];
const UNSAFE: &[&str] = &["unsafe", "hidden"];
const EXPERIMENTAL: &[&str] = &["experimental"];

type F = FlagSpec;

/// Every setting there is.
pub static TABLE: &[FlagSpec] = &joined::<{ WITH_EFFECT.len() + WITHOUT_EFFECT.len() }>();

const fn joined<const N: usize>() -> [FlagSpec; N] {
    let mut table = [WITH_EFFECT[0]; N];
    let mut at = 0;
    while at < N {
        table[at] = match at.checked_sub(WITH_EFFECT.len()) {
            Some(at) => WITHOUT_EFFECT[at],
            None => WITH_EFFECT[at],
        };
        at += 1;
    }
    table
}

/// By what they are about.
const WITH_EFFECT: &[FlagSpec] = &[
    // Addresses.
    F::text(
        "rpc_bind_addresses", Effective,
        "",
        "host:port to serve RPCs at; port 0 takes a free one. \
        Default 0.0.0.0:7051 for a master, 0.0.0.0:7050 for a tablet server",
    )
    .tagged(STABLE),
    F::list(
        "rpc_advertised_addresses", Effective,
        "",
        "host:port names for clients to use instead of the bound address",
    )
    .tagged(STABLE),
    F::text("webserver_interface", Effective, "", "host to serve /metrics and /healthz at; the RPC host by default")
        .tagged(STABLE),
    F::number(
        "webserver_port", Effective,
        "0",
        "port to serve /metrics and /healthz at; 0 takes a free one. Default 8051 for \
        a master, 8050 for a tablet server, unless it is given",
    )
    .within(0, 65535)
    .tagged(STABLE),
    F::bool("webserver_enabled", Effective, "true", "serve /metrics and /healthz").tagged(STABLE),
    F::list("tserver_master_addrs", Effective, "127.0.0.1:7051", "host:port of every master")
        .of(TabletServer)
        .tagged(STABLE),
    F::list("master_addresses", Effective, "", "host:port of every master, when there are several")
        .of(Master)
        .tagged(STABLE),
    F::bool("master_auto_join_cluster", Effective, "true", "a new master of a cluster that is there has itself added")
        .of(Master),
    // Directories.
    F::text("fs_wal_dir", Effective, "", "directory of the write-ahead logs; required").tagged(STABLE),
    F::list("fs_data_dirs", Effective, "", "directories of the data; the directory of the logs by default")
        .tagged(STABLE),
    // Logs, identity.
    F::choice("log_format", Effective, &["text", "json"], "text", "how log lines are written to standard error")
        .tagged(STABLE),
    F::text("log_level", Effective, "info", "what is logged: a level, or directives such as info,node::rpc=debug")
        .tagged(STABLE),
    F::text("server_dump_info_path", Effective, "", "file to write the server's status to once it serves")
        .tagged(UNSAFE),
    F::choice("server_dump_info_format", Effective, &["json", "pb"], "json", "form of that file").tagged(UNSAFE),
    // Durability.
    F::bool(
        "log_sync", Safeguard,
        "true",
        "acknowledge a write only when it is on the disk; false is Kudu's default, \
        where a power failure may lose acknowledged writes",
    )
    .tagged(STABLE),
    F::number("log_segment_size_mb", Effective, "8", "size at which a segment of a write-ahead log is closed")
        .within(1, 1024),
    F::bool("log_preallocate_segments", Effective, "true", "reserve a segment's space when it is begun"),
    F::choice(
        "log_compression_codec", Effective,
        &["NO_COMPRESSION", "LZ4"],
        "LZ4",
        "compression of the write-ahead log",
    ),
    // Memory.
    F::number("memory_limit_hard_bytes", Effective, "0", "memory the server may use; 0 is four fifths of the machine's")
        .tagged(STABLE),
    F::number(
        "memory_limit_soft_percentage", Effective,
        "80",
        "share of the memory limit above which writes are slowed",
    )
    .within(1, 100),
    F::number("block_cache_capacity_mb", Effective, "512", "memory for pages of column files")
        .of(TabletServer)
        .tagged(STABLE),
    // RPC.
    F::number("rpc_service_queue_length", Effective, "50", "calls of a service that may wait").within(1, 1 << 20),
    F::number("rpc_num_service_threads", Effective, "20", "calls of a service that may run at once").within(1, 1 << 20),
    // A replicated operation has to fit one message, with room for what surrounds its rows.
    F::number("rpc_max_message_size", Effective, "52428800", "bytes of the longest message accepted")
        .within(1 << 20, 1 << 31),
    F::number(
        "rpc_default_keepalive_time_ms", Effective,
        "65000",
        "an idle connection is closed after this long; \
        0 is never",
    ),
    F::number("rpc_negotiation_timeout_ms", Effective, "3000", "time for a new connection to introduce itself")
        .within(1, 1 << 40),
    F::number("rpc_negotiation_inject_delay_ms", Effective, "0", "for tests: time every negotiation takes")
        .tagged(UNSAFE),
    F::bool("rpc_trace_negotiation", Effective, "false", "log how each client introduced itself"),
    F::list(
        "trusted_subnets", Safeguard,
        "127.0.0.0/8,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,169.254.0.0/16",
        "networks from which connections need no encryption",
    ),
    F::number("remember_responses_ttl_ms", Effective, "600000", "how long replies are kept for retries"),
    F::number("remember_clients_ttl_ms", Effective, "3600000", "how long a silent client is remembered"),
    // Clock and history.
    F::number(
        "max_clock_sync_error_usec", Safeguard,
        "10000000",
        "how far ahead of this server's clock a timestamp may be",
    )
    .tagged(EVOLVING),
    F::number("tablet_history_max_age_sec", Effective, "604800", "snapshots older than this are refused")
        .of(TabletServer)
        .tagged(EVOLVING),
    // Scans.
    F::number("scanner_ttl_ms", Effective, "60000", "how long an idle scanner is kept").of(TabletServer).runtime(),
    F::number("scanner_gc_check_interval_us", Effective, "5000000", "how often expired scanners are looked for")
        .of(TabletServer)
        .within(1, 1 << 50),
    F::number("scanner_max_wait_ms", Effective, "1000", "how long a scan may wait for its snapshot")
        .of(TabletServer)
        .runtime(),
    F::number("scanner_default_batch_size_bytes", Effective, "1048576", "size of a scan's reply unless the client says")
        .of(TabletServer)
        .runtime(),
    F::number("scanner_max_batch_size_bytes", Effective, "8388608", "size no scan's reply exceeds by much")
        .of(TabletServer)
        .runtime(),
    F::number("scanner_inject_latency_on_each_batch_ms", Effective, "0", "for tests: time every batch of a scan takes")
        .of(TabletServer)
        .tagged(UNSAFE)
        .runtime(),
    // Replication.
    F::choice(
        "raft_profile", Effective,
        &["kudu", "fast"],
        "kudu",
        "times of replication: kudu's, or for servers close to each other, where a dead leader is replaced \
        within 300 ms; settings that are given go before it",
    )
    .tagged(STABLE),
    F::number("raft_heartbeat_interval_ms", Effective, "500", "how often a leader lets its followers hear from it")
        .within(1, 1 << 40)
        .tagged(EXPERIMENTAL),
    F::fraction(
        "leader_failure_max_missed_heartbeat_periods", Effective,
        "3",
        "heartbeats a follower misses before it thinks its leader gone",
    )
    .tagged(EXPERIMENTAL),
    F::number(
        "follower_unavailable_considered_failed_sec", Effective,
        "300",
        "a replica silent for this long is replaced",
    )
    .within(1, 1 << 40)
    .tagged(EVOLVING),
    // Copies of tablets.
    F::number("num_tablets_to_open_simultaneously", Effective, "4", "tablets whose logs are replayed at once")
        .within(1, 1024)
        .of(TabletServer)
        .tagged(EVOLVING),
    F::number("num_tablets_to_copy_simultaneously", Effective, "10", "tablets copied to this server at once")
        .within(1, 1024)
        .of(TabletServer)
        .tagged(EVOLVING),
    F::number("tablet_copy_sessions_max", Effective, "64", "copies from this server at once; no setting of Kudu's")
        .within(1, 1 << 20)
        .tagged(EVOLVING),
    F::number(
        "tablet_copy_bytes_per_second", Effective,
        "0",
        "bytes that all copies from this server together may take in a second; 0 is no bound; no setting of Kudu's",
    )
    .within(0, 1 << 40)
    .tagged(EVOLVING),
    F::number("tablet_copy_idle_timeout_sec", Effective, "180", "a copy that asks for nothing for so long is given up")
        .within(1, 1 << 20)
        .tagged(EVOLVING),
    F::number("tablet_copy_timeout_poll_period_ms", Effective, "10000", "how often such copies are looked for")
        .within(1, 1 << 40)
        .tagged(EVOLVING),
    F::number("tablet_copy_transfer_chunk_size_bytes", Effective, "4194304", "bytes fetched at once by a copy")
        .within(1, 16 << 20)
        .tagged(EVOLVING),
    F::number("consensus_rpc_timeout_ms", Effective, "30000", "how long a replica may take to answer entries")
        .within(1, 1 << 40)
        .tagged(EVOLVING),
    F::number("consensus_max_batch_size_bytes", Effective, "1048576", "bytes of entries sent to a replica at once")
        .within(1024, 1 << 30)
        .tagged(EVOLVING),
    // Heartbeats, maintenance, flushes.
    F::number("heartbeat_interval_ms", Effective, "1000", "how often the masters hear from a tablet server")
        .of(TabletServer)
        .within(1, 1 << 40),
    F::number("heartbeat_rpc_timeout_ms", Effective, "15000", "how long a master may take to answer").of(TabletServer),
    F::number("update_tablet_stats_interval_ms", Effective, "5000", "how often row counts and sizes are taken")
        .of(TabletServer),
    F::number("maintenance_manager_polling_interval_ms", Effective, "250", "how often maintenance looks for work")
        .of(TabletServer)
        .within(1, 1 << 40),
    F::number("flush_threshold_mb", Effective, "128", "size at which a tablet's recent inserts are flushed")
        .of(TabletServer)
        .within(1, 1 << 20)
        .runtime(),
    F::number("flush_threshold_secs", Effective, "120", "age at which a tablet's recent inserts are flushed")
        .of(TabletServer)
        .runtime(),
    F::number("log_target_replay_size_mb", Effective, "1024", "log size above which flushes make it shorter")
        .of(TabletServer),
    F::number("max_cell_size_bytes", Effective, "65536", "bytes of the longest cell").tagged(UNSAFE),
    F::number("max_encoded_key_size_bytes", Effective, "16384", "bytes of the longest primary key").tagged(UNSAFE),
    // Master.
    F::number("default_num_replicas", Effective, "3", "replicas of a table whose creator names no number")
        .of(Master)
    .within(1, 7),
    F::number("max_num_replicas", Effective, "7", "replicas that a table may have").of(Master).within(1, 7),
    F::number("min_num_replicas", Effective, "1", "replicas that a table has at least").of(Master).within(1, 7),
    F::bool("allow_unsafe_replication_factor", Effective, "false", "let tables have an even number of replicas")
        .of(Master)
        .tagged(UNSAFE),
    F::bool(
        "allow_creating_under_replicated_tables", Effective,
        "false",
        "make tables while only a majority of their replicas finds a tablet server",
    )
    .of(Master),
    F::bool("master_add_server_when_underreplicated", Effective, "true", "replace failed replicas")
        .of(Master)
        .tagged(UNSAFE),
    F::bool(
        "master_tombstone_evicted_tablet_replicas", Effective,
        "true",
        "remove replicas that their tablets no longer count",
    )
    .of(Master)
    .tagged(UNSAFE),
    F::text(
        "location_mapping_cmd", Effective,
        "",
        "program that is given a host and prints its location, as /room2/rack7; replicas are spread over locations",
    )
    .of(Master)
    .tagged(EVOLVING),
    F::list("location_mapping_by_uuid", Effective, "", "locations of tablet servers: UUID=/LOCATION, and so on")
        .of(Master)
        .tagged(EVOLVING),
    F::bool("master_client_location_assignment_enabled", Effective, "true", "tell clients their location")
        .of(Master),
    F::number("max_create_tablets_per_ts", Effective, "60", "new tablets of one table, per tablet server").of(Master),
    F::number("max_num_columns", Effective, "300", "columns that a table may have").of(Master).tagged(UNSAFE),
    F::number("max_identifier_length", Effective, "256", "bytes of a table's or column's name")
        .of(Master)
        .tagged(UNSAFE),
    F::number("table_locations_ttl_ms", Effective, "300000", "how long clients may keep what they learned of locations")
        .of(Master),
    F::number(
        "tserver_unresponsive_timeout_ms", Effective,
        "60000",
        "a tablet server silent for this long counts as dead",
    )
    .of(Master),
    F::number("master_ts_rpc_timeout_ms", Effective, "30000", "time a tablet server has to answer the master")
        .of(Master),
    F::bool("master_support_connect_to_master_rpc", Effective, "true", "offer ConnectToMaster")
        .of(Master)
        .tagged(UNSAFE),
    F::bool("master_support_ignore_operations", Effective, "true", "tell clients that IGNORE operations are understood")
        .of(Master)
        .tagged(UNSAFE),
    F::bool("master_support_immutable_column_attribute", Effective, "true", "let clients make immutable columns")
        .of(Master)
        .tagged(UNSAFE),
    F::bool(
        "master_support_auto_incrementing_column", Effective,
        "true",
        "let clients make tables without a unique key",
    )
    .of(Master)
    .tagged(UNSAFE),
    F::bool("enable_per_range_hash_schemas", Effective, "true", "let ranges have hash buckets of their own")
        .of(Master)
        .tagged(UNSAFE),
    F::number("tablet_creation_timeout_ms", Effective, "30000", "a tablet not up after this long is replaced")
        .of(Master),
    F::number(
        "default_deleted_table_reserve_seconds", Effective,
        "0",
        "how long a deleted table can be recalled if the request does not say",
    )
    .of(Master),
    F::number("master_inject_latency_on_tablet_lookups_ms", Effective, "0", "for tests: time every lookup takes")
        .of(Master)
        .tagged(UNSAFE),
];
