//! Flags with an effect. Names and defaults are Kudu's unless the help says otherwise; times and sizes carry their unit
//! in the name. [`super::flag_table_security`] has those of security, [`super::flag_table_kudu`] the flags of Kudu
//! without effect here.

use super::flag_table_kudu::WITHOUT_EFFECT;
use super::flag_table_security::SECURITY;
use super::flags::Class::{Effective, Safeguard};
use super::flags::FlagScope::{Master, TabletServer};
use super::flags::FlagSpec;

const STABLE: &[&str] = &["stable"];
const EVOLVING: &[&str] = &["evolving", "advanced"];
const UNSAFE: &[&str] = &["unsafe", "hidden"];
const HIDDEN: &[&str] = &["hidden"];
const EXPERIMENTAL: &[&str] = &["experimental"];

type F = FlagSpec;

/// All flags.
pub static TABLE: &[FlagSpec] = &joined::<{ WITH_EFFECT.len() + SECURITY.len() + WITHOUT_EFFECT.len() }>();

const fn joined<const N: usize>() -> [FlagSpec; N] {
    let mut table = [WITH_EFFECT[0]; N];
    let mut at = 0;
    while at < N {
        table[at] = if at < WITH_EFFECT.len() {
            WITH_EFFECT[at]
        } else if at < WITH_EFFECT.len() + SECURITY.len() {
            SECURITY[at - WITH_EFFECT.len()]
        } else {
            WITHOUT_EFFECT[at - WITH_EFFECT.len() - SECURITY.len()]
        };
        at += 1;
    }
    table
}

/// Flags with an effect, by subject.
const WITH_EFFECT: &[FlagSpec] = &[
    // Addresses.
    F::text(
        "rpc_bind_addresses", Effective,
        "",
        "host:port of the RPC server; port 0 takes a free one. \
        Default 0.0.0.0:7051 for a master, 0.0.0.0:7050 for a tablet server",
    )
    .tagged(STABLE),
    F::list(
        "rpc_advertised_addresses", Effective,
        "",
        "host:port names for clients to use instead of the bound address; by default, this host's name if the server \
        is bound to all addresses and has masters on other machines",
    )
    .tagged(STABLE),
    F::text("webserver_interface", Effective, "",
        "host of the web server (/metrics, /healthz); the RPC host by default"),
    F::list("webserver_advertised_addresses", Effective, "",
        "host:port names of the web server instead of the bound address; the RPC host if it is bound to all addresses")
        .tagged(STABLE),
    F::number(
        "webserver_port", Effective,
        "0",
        "port of the web server (/metrics, /healthz); 0 takes a free one. \
        Default 8051 for a master, 8050 for a tablet server",
    )
    .within(0, 65535)
    .tagged(STABLE),
    F::bool("webserver_enabled", Effective, "true", "serves /metrics and /healthz").tagged(STABLE),
    F::bool("enable_pprof", Effective, "false",
        "serves /pprof/profile and /pprof/cmdline, which cost CPU time and show the command line")
        .tagged(EVOLVING)
        .runtime(),
    F::list("tserver_master_addrs", Effective, "127.0.0.1:7051", "host:port of every master")
        .of(TabletServer)
        .tagged(STABLE),
    F::list("master_addresses", Effective, "", "host:port of every master, if there are several")
        .of(Master)
        .tagged(STABLE),
    F::bool("master_auto_join_cluster", Effective, "true", "a new master asks the existing masters to add it")
        .of(Master),
    // Directories.
    F::text("fs_wal_dir", Effective, "", "directory of the write-ahead logs; required").tagged(STABLE),
    F::list("fs_data_dirs", Effective, "", "directories of the data; fs_wal_dir by default")
        .tagged(STABLE),
    // Logs, identity.
    F::choice("log_format", Effective, &["text", "json"], "text", "format of log lines on standard error")
        .tagged(STABLE),
    F::text("trace_dir", Effective, "",
        "directory of the spans of sampled and slow requests, as OTLP JSON; empty for no spans"),
    F::number("trace_sampled_per_million", Effective, "1000", "requests that are sampled of a million")
        .within(0, 1_000_000),
    F::number("trace_file_size_mb", Effective, "64", "size in MiB at which the next file of spans begins")
        .within(1, 1 << 20),
    F::number("trace_files_max", Effective, "4", "files of spans that are kept").within(2, 1 << 20),
    F::text("log_level", Effective, "info", "log level, or directives such as info,node::tserver=debug")
        .tagged(STABLE)
        .runtime(),
    F::text("server_dump_info_path", Effective, "", "file for the server's status, written once it serves")
        .tagged(UNSAFE),
    F::choice("server_dump_info_format", Effective, &["json", "pb"], "json", "format of that file").tagged(UNSAFE),
    // Durability.
    F::bool(
        "log_sync", Safeguard,
        "true",
        "acknowledges a write only after its log entry is synced; false, Kudu's default, \
        may lose acknowledged writes in a power failure",
    )
    .tagged(STABLE),
    F::number("log_segment_size_mb", Effective, "8", "size in MiB at which a log segment is closed")
        .within(1, 1024),
    F::bool("log_preallocate_segments", Effective, "true", "allocates the space of a new log segment at once"),
    F::choice(
        "log_compression_codec", Effective,
        &["NO_COMPRESSION", "LZ4"],
        "LZ4",
        "compression of the write-ahead log",
    ),
    // Memory.
    F::number("memory_limit_hard_bytes", Effective, "0",
        "memory budget in bytes; 0 is 80 percent of the memory of the machine or of its control group")
        .tagged(STABLE),
    F::number(
        "memory_limit_soft_percentage", Effective,
        "80",
        "percentage of the memory limit above which writes are throttled",
    )
    .within(1, 100),
    F::number("block_cache_capacity_mb", Effective, "512",
        "MiB of the page cache, which takes a quarter of the memory limit at most")
        .of(TabletServer)
        .tagged(STABLE),
    // RPC.
    F::number("rpc_service_queue_length", Effective, "50", "calls of a service in its queue").within(1, 1 << 20),
    F::number("rpc_num_service_threads", Effective, "20", "calls of a service that run at once").within(1, 1 << 20),
    // A replicated operation must fit one message, together with the headers around its rows.
    F::number("rpc_max_message_size", Effective, "52428800", "bytes of the longest message accepted")
        .within(1 << 20, 1 << 31),
    F::number("rpc_connections_max", Effective, "65536",
        "connections above which further ones are refused. Not a flag of Kudu")
        .within(100, 1 << 24),
    F::number(
        "rpc_default_keepalive_time_ms", Effective,
        "65000",
        "idle time after which a connection is closed; \
        0 never",
    ),
    F::number("rpc_negotiation_timeout_ms", Effective, "3000", "deadline of connection negotiation")
        .within(1, 1 << 40),
    F::number("rpc_negotiation_inject_delay_ms", Effective, "0", "for tests: delay of every negotiation")
        .tagged(UNSAFE),
    F::bool("rpc_trace_negotiation", Effective, "false", "logs each connection negotiation"),
    F::number("rpc_duration_too_long_ms", Effective, "1000",
        "time in milliseconds from which a call is slow: it is logged with its steps, and has a span")
        .within(0, 1 << 40)
        .tagged(EVOLVING)
        .runtime(),
    F::list(
        "trusted_subnets", Safeguard,
        "127.0.0.0/8,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,169.254.0.0/16",
        "networks from which connections need no encryption",
    ),
    F::number("remember_responses_ttl_ms", Effective, "600000", "time for which replies are cached for retries"),
    F::number("remember_clients_ttl_ms", Effective, "3600000",
        "idle time after which a client's cached replies are dropped"),
    // Clock and history.
    F::list(
        "fs_lost_data_dirs", Effective,
        "",
        "data directories of this server to give up at this start, with all that was in them: their tablets are copied \
        from other servers. One that is empty, or whose disk fails, may stay in fs_data_dirs",
    )
    .tagged(EVOLVING),
    F::text(
        "fs_wal_dir_reserved_bytes", Effective,
        "-1",
        "bytes kept free for others in the device of the WAL directory; -1: 1 percent. With less, writes are refused",
    )
    .of(TabletServer)
    .tagged(EVOLVING),
    F::text(
        "fs_data_dirs_reserved_bytes", Effective,
        "-1",
        "bytes kept free for others in the device of a data directory; -1: 1 percent. With less, writes are refused",
    )
    .of(TabletServer)
    .tagged(EVOLVING),
    F::number(
        "scrub_interval_sec", Effective,
        "1209600",
        "time from the begin of a pass of the scrubber, which verifies all stored files, to the begin of the next; 0 \
        never, and a server started with 0 must be restarted to scrub; not a flag of Kudu",
    )
    .within(0, 1 << 40)
    .tagged(EVOLVING)
    .runtime(),
    F::number(
        "scrub_bytes_per_second", Effective,
        "8388608",
        "bytes that the scrubber reads per second, at most; not a flag of Kudu",
    )
    .within(1, 1 << 40)
    .tagged(EVOLVING)
    .runtime(),
    F::choice(
        "time_source", Safeguard,
        &["auto", "builtin", "system", "system_unsync", "mock"],
        "auto",
        "system: the machine's clock, which must be synchronised; system_unsync: as it is; auto: system_unsync if all \
        known addresses of the server and the masters are loopback or wildcard addresses, else system; builtin: a \
        clock of the server's own, set by builtin_ntp_servers; mock is refused",
    )
    .tagged(STABLE),
    F::list(
        "builtin_ntp_servers", Effective,
        "0.pool.ntp.org,1.pool.ntp.org,2.pool.ntp.org,3.pool.ntp.org",
        "host[:port] of the NTP servers of time_source=builtin; more than half of them must agree",
    )
    .tagged(EVOLVING),
    F::number("builtin_ntp_poll_interval_ms", Effective, "16000", "interval between requests to each of them")
        .within(1000, 1 << 40)
        .tagged(EVOLVING),
    F::number("builtin_ntp_request_timeout_ms", Effective, "3000", "deadline of a request to one of them")
        .within(1, 1 << 40)
        .tagged(EVOLVING),
    F::number(
        "ntp_initial_sync_wait_secs", Effective,
        "60",
        "longest wait at the start for a synchronised clock",
    )
    .tagged(EVOLVING),
    F::number(
        "max_clock_sync_error_usec", Safeguard,
        "10000000",
        "largest error of this server's clock, and distance of a timestamp or another server's clock from it",
    )
    .tagged(EVOLVING),
    F::number("tablet_history_max_age_sec", Effective, "604800",
        "age in seconds above which snapshots are rejected; -1 never")
        .or_never()
        .of(TabletServer)
        .tagged(EVOLVING),
    F::number("history_hold_lease_ms", Effective, "60000", "time after which a hold on a table's history ends, \
        unless its holder asks again")
        .of(Master)
        .within(1, 1 << 32)
        .tagged(EVOLVING),
    F::number("history_hold_max_sec", Effective, "1209600", "age of the oldest snapshot whose history can be held")
        .of(Master)
        .tagged(EVOLVING),
    // Scans.
    F::number("scanner_ttl_ms", Effective, "60000",
        "idle time after which a scanner expires").of(TabletServer).runtime(),
    F::number("scanner_gc_check_interval_us", Effective, "5000000", "interval between searches for expired scanners")
        .of(TabletServer)
        .within(1, 1 << 50),
    F::number("scanner_max_wait_ms", Effective, "1000", "longest wait of a scan for its snapshot")
        .of(TabletServer)
        .runtime(),
    F::number("scanner_default_batch_size_bytes", Effective, "1048576",
        "bytes of a scan's response if the client names none")
        .of(TabletServer)
        .runtime(),
    F::number("scanner_max_batch_size_bytes", Effective, "8388608",
        "largest size of a scan's response, exceeded by at most a block")
        .of(TabletServer)
        .runtime(),
    F::bool("tserver_support_aggregation", Effective, "true",
        "aggregates rows for clients; without it they read the rows")
        .of(TabletServer)
        .tagged(EVOLVING)
        .runtime(),
    F::number("scanner_inject_latency_on_each_batch_ms", Effective, "0", "for tests: delay of every batch of a scan")
        .of(TabletServer)
        .tagged(UNSAFE)
        .runtime(),
    // Replication.
    F::choice(
        "raft_profile", Effective,
        &["kudu", "fast"],
        "kudu",
        "Raft timing: kudu, or fast for servers in one location, where a failed leader is replaced \
        within 300 ms; flags that are given override it",
    )
    .tagged(STABLE),
    F::number("raft_heartbeat_interval_ms", Effective, "500", "interval between heartbeats of a leader")
        .within(1, 1 << 40)
        .tagged(EXPERIMENTAL),
    F::fraction(
        "leader_failure_max_missed_heartbeat_periods", Effective,
        "3",
        "missed heartbeats before a follower starts an election",
    )
    // With the longest interval between heartbeats, times after lost elections can still be computed.
    .at_most(100_000)
    .tagged(EXPERIMENTAL),
    F::number(
        "follower_unavailable_considered_failed_sec", Effective,
        "300",
        "time in seconds without contact after which a replica is replaced",
    )
    .within(1, 1 << 40)
    .tagged(EVOLVING)
    .runtime(),
    // Copies of tablets.
    F::number("num_tablets_to_open_simultaneously", Effective, "4", "tablets bootstrapped at once")
        .within(1, 1024)
        .of(TabletServer)
        .tagged(EVOLVING),
    F::number("num_tablets_to_copy_simultaneously", Effective, "10", "tablets copied to this server at once")
        .within(1, 1024)
        .of(TabletServer)
        .tagged(EVOLVING),
    F::number("tablet_copy_sessions_max", Effective, "64",
        "sessions that copy from this server at once; not a flag of Kudu")
        .within(1, 1 << 20)
        .tagged(EVOLVING),
    F::number(
        "tablet_copy_bytes_per_second", Effective,
        "0",
        "bytes per second of all copies from this server together; 0 is unlimited; not a flag of Kudu",
    )
    .within(0, 1 << 40)
    .tagged(EVOLVING),
    F::number("tablet_copy_idle_timeout_sec", Effective, "180", "idle time after which a tablet copy session ends")
        .within(1, 1 << 20)
        .tagged(EVOLVING),
    F::number("tablet_copy_timeout_poll_period_ms", Effective, "10000",
        "interval between searches for idle tablet copy sessions")
        .within(1, 1 << 40)
        .tagged(EVOLVING),
    F::number("tablet_copy_transfer_chunk_size_bytes", Effective, "4194304", "bytes that a tablet copy fetches at once")
        .within(1, 16 << 20)
        .tagged(EVOLVING),
    F::number("consensus_rpc_timeout_ms", Effective, "30000", "deadline of a call that sends entries to a replica")
        .within(1, 1 << 40)
        .tagged(EVOLVING),
    F::number("consensus_max_batch_size_bytes", Effective, "1048576", "bytes of entries sent to a replica at once")
        .within(1024, 1 << 30)
        .tagged(EVOLVING),
    // Heartbeats, maintenance, flushes.
    F::number("heartbeat_interval_ms", Effective, "1000", "interval between heartbeats to each master")
        .of(TabletServer)
        .within(1, 1 << 40),
    F::number("heartbeat_rpc_timeout_ms", Effective, "15000", "deadline of a heartbeat to a master").of(TabletServer),
    F::number("update_tablet_stats_interval_ms", Effective, "5000", "interval between updates of row counts and sizes")
        .of(TabletServer),
    F::number("maintenance_manager_polling_interval_ms", Effective, "250",
        "interval at which maintenance searches for work")
        .of(TabletServer)
        .within(1, 1 << 40),
    F::number("flush_threshold_mb", Effective, "128", "size in MiB at which a MemRowSet is flushed")
        .of(TabletServer)
        .within(1, 1 << 20)
        .runtime(),
    F::number("flush_threshold_secs", Effective, "120", "age at which a MemRowSet is flushed")
        .of(TabletServer)
        .runtime(),
    F::number("log_target_replay_size_mb", Effective, "1024", "log size in MiB above which flushes shorten the log")
        .of(TabletServer),
    F::number("max_cell_size_bytes", Effective, "65536", "bytes of the longest cell").tagged(UNSAFE),
    F::number("max_encoded_key_size_bytes", Effective, "16384", "bytes of the longest primary key").tagged(UNSAFE),
    // Master.
    F::number("default_num_replicas", Effective, "3",
        "replication factor if the request names none; odd, from min_num_replicas to max_num_replicas")
        .of(Master)
        .within(1, 7)
        .runtime(),
    F::number("max_num_replicas", Effective, "7", "largest replication factor").of(Master).within(1, 7),
    F::number("min_num_replicas", Effective, "1", "smallest replication factor").of(Master).within(1, 7),
    F::bool("allow_unsafe_replication_factor", Effective, "false", "allows even replication factors")
        .of(Master)
        .tagged(UNSAFE),
    F::bool(
        "allow_creating_under_replicated_tables", Effective,
        "false",
        "creates tables even if only a majority of their replicas finds a tablet server",
    )
    .of(Master),
    F::bool("master_add_server_when_underreplicated", Effective, "true", "replaces failed replicas")
        .of(Master)
        .tagged(UNSAFE),
    F::bool(
        "master_tombstone_evicted_tablet_replicas", Effective,
        "true",
        "deletes the data of evicted replicas",
    )
    .of(Master)
    .tagged(UNSAFE),
    F::text(
        "location_mapping_cmd", Effective,
        "",
        "program that prints the location of a given host, such as /room2/rack7; replicas are spread over locations",
    )
    .of(Master)
    .tagged(EVOLVING),
    F::list("location_mapping_by_uuid", Effective, "", "locations of tablet servers, each as UUID=/LOCATION")
        .of(Master)
        .tagged(EVOLVING),
    F::bool("master_client_location_assignment_enabled", Effective, "true", "sends clients their location")
        .of(Master),
    F::number(
        "max_create_tablets_per_ts", Effective,
        "60",
        "replicas that a new table may have per live tablet server, if its tablets have several; 0: no limit",
    )
    .of(Master),
    F::number("max_num_columns", Effective, "300", "columns that a table may have").of(Master).tagged(UNSAFE),
    F::number("max_identifier_length", Effective, "256", "bytes of a table's or column's name")
        .of(Master)
        .tagged(UNSAFE),
    F::number("table_locations_ttl_ms", Effective, "300000", "time for which clients may cache tablet locations")
        .of(Master),
    F::number(
        "tserver_unresponsive_timeout_ms", Effective,
        "60000",
        "time without heartbeats after which a tablet server counts as unresponsive",
    )
    .of(Master),
    F::number("master_ts_rpc_timeout_ms", Effective, "30000", "deadline of the master's requests to a tablet server")
        .of(Master),
    F::bool("master_support_connect_to_master_rpc", Effective, "true", "offers ConnectToMaster")
        .of(Master)
        .tagged(UNSAFE),
    F::bool("master_support_ignore_operations", Effective, "true", "allows IGNORE operations")
        .of(Master)
        .tagged(UNSAFE),
    F::bool("master_support_immutable_column_attribute", Effective, "true", "allows immutable columns")
        .of(Master)
        .tagged(UNSAFE),
    F::bool(
        "master_support_auto_incrementing_column", Effective,
        "true",
        "allows tables without a unique key",
    )
    .of(Master)
    .tagged(UNSAFE),
    F::bool("enable_per_range_hash_schemas", Effective, "true", "allows a separate hash schema per range")
        .of(Master)
        .tagged(UNSAFE),
    F::number("tablet_creation_timeout_ms", Effective, "30000",
        "time after which a tablet that is still creating is replaced")
        .of(Master),
    F::number(
        "default_deleted_table_reserve_seconds", Effective,
        "0",
        "time for which a deleted table can be recalled if the request names none",
    )
    .of(Master),
    F::bool("mock_table_metrics_for_testing", Effective, "false",
        "for tests: reports made-up sizes and row counts of all tables")
        .of(Master)
        .tagged(HIDDEN)
        .runtime(),
    F::number("on_disk_size_for_testing", Effective, "0", "for tests: the made-up bytes of every table")
        .of(Master)
        .tagged(HIDDEN)
        .runtime(),
    F::number("live_row_count_for_testing", Effective, "0", "for tests: the made-up rows of every table")
        .of(Master)
        .tagged(HIDDEN)
        .runtime(),
    F::number("master_inject_latency_on_tablet_lookups_ms", Effective, "0", "for tests: delay of every location lookup")
        .of(Master)
        .tagged(UNSAFE),
];
