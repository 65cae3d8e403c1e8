//! Kudu's flags without effect here: harmless ones are accepted, those that would grant something nyala lacks are
//! rejected.
//!
//! Where Kudu's default would claim such a feature (a synchronized clock), the default here states the facts.

use super::flags::Class::{Inert, Only};
use super::flags::FlagScope::{Master, TabletServer};
use super::flags::{FlagSpec, Missing};

const UNSAFE: &[&str] = &["unsafe", "hidden"];
const EXPERIMENTAL: &[&str] = &["experimental"];

const PASSWORDS: Missing = Missing {
    fault: "stored keys have no password",
    action: "leave it out, and protect the files by their permissions",
};
const RANGER: Missing = Missing {
    fault: "rights are not asked of Apache Ranger",
    action: "leave it out, and write the rights into a file (authz_policy_file)",
};
const FILES: Missing = Missing {
    fault: "files are not encrypted",
    action: "leave it out, and encrypt the device or its file system",
};
const TRANSACTIONS: Missing =
    Missing { fault: "there are no multi-row transactions", action: "leave it out" };
const HYBRID: Missing = Missing { fault: "the hybrid clock is the only one", action: "leave it out" };
const LOG: Missing = Missing {
    fault: "the log goes to standard error only",
    action: "leave it out, and redirect standard error",
};

type F = FlagSpec;

/// Flags without an effect, by subject; rejected ones first.
pub(super) const WITHOUT_EFFECT: &[FlagSpec] = &[
    // Passwords of keys.
    F::text("ipki_private_key_password_cmd", Only(&[""], PASSWORDS), "", "keys have no password"),
    // Authorization.
    F::text("ranger_config_path", Only(&[""], RANGER), "", "rights come from authz_policy_file").of(Master),
    F::text("tsk_private_key_password_cmd", Only(&[""], PASSWORDS), "", "keys have no password"),
    // Files.
    F::bool("encrypt_data_at_rest", Only(&["false"], FILES), "false", "files are plain"),
    F::text("encryption_key_provider", Only(&[""], FILES), "", "files are plain"),
    F::number("encryption_key_length", Only(&["0"], FILES), "0", "files are plain"),
    F::text("encryption_cluster_key_name", Only(&[""], FILES), "", "files are plain"),
    F::text("ranger_kms_url", Only(&[""], FILES), "", "files are plain"),
    F::bool("enable_multi_tenancy", Only(&["false"], FILES), "false", "files are plain").tagged(EXPERIMENTAL),
    // Transactions.
    F::bool("txn_manager_enabled", Only(&["false"], TRANSACTIONS), "false", "there are no transactions")
        .of(Master),
    F::bool(
        "enable_txn_system_client_init",
        Only(&["false"], TRANSACTIONS),
        "false",
        "there are no transactions",
    )
    .of(TabletServer),
    // The clock.
    F::bool("use_hybrid_clock", Only(&["true"], HYBRID), "true", "there is one kind of clock").tagged(UNSAFE),
    // The log.
    F::bool("logtostderr", Only(&["true"], LOG), "true", "the log goes to standard error"),
    F::text("log_dir", Only(&[""], LOG), "", "the log goes to standard error"),
    F::text("log_filename", Only(&[""], LOG), "", "the log goes to standard error"),
    F::number("max_log_size", Only(&["0"], LOG), "0", "the log goes to standard error"),
    F::number("max_log_files", Only(&["0"], LOG), "0", "the log goes to standard error"),
    // Harmless: nothing is locked, there is one block manager, pages are cached in memory.
    F::bool("unlock_unsafe_flags", Inert, "false", "nothing is locked here"),
    F::bool("unlock_experimental_flags", Inert, "false", "nothing is locked here"),
    F::text("block_manager", Inert, "log", "there is one block manager"),
    F::text("block_cache_type", Inert, "DRAM", "pages are cached in memory"),
    F::bool("never_fsync", Inert, "false", "use log_sync").tagged(UNSAFE),
    F::bool("enable_rowset_compaction", Inert, "true", "overlapping rowsets are always compacted")
        .of(TabletServer)
        .tagged(UNSAFE),
    F::bool("enable_minidumps", Inert, "false", "none are written"),
    // `all` is accepted too: cells are never printed, and no flag is a secret.
    F::choice("redact", Inert, &["all", "log", "none"], "all", "cells are not logged or shown on pages"),
    F::number("metrics_log_interval_ms", Inert, "60000", "metrics are served, not logged"),
    F::bool("rpc_server_allow_ephemeral_ports", Inert, "true", "port 0 is always allowed"),
    F::bool("rpc_reuseport", Inert, "false", "the address is bound once").tagged(EXPERIMENTAL),
    F::text("local_ip_for_outbound_sockets", Inert, "", "the system chooses").tagged(EXPERIMENTAL),
    F::text("host_for_tests", Inert, "", "for tests").tagged(UNSAFE),
    F::number("ipki_server_key_size", Inert, "2048", "keys are of the curve P-256").tagged(EXPERIMENTAL),
    F::number("ipki_ca_key_size", Inert, "2048", "keys are of the curve P-256").tagged(EXPERIMENTAL),
    F::number("tsk_num_rsa_bits", Inert, "2048", "keys are Ed25519").tagged(EXPERIMENTAL),
    F::fraction("rpc_inject_invalid_authn_token_ratio", Inert, "0", "no faults are injected").tagged(UNSAFE),
    F::number("txn_keepalive_interval_ms", Inert, "30000", "there are no transactions"),
    F::bool("txn_schedule_background_tasks", Inert, "true", "there are no transactions"),
    F::number("txn_staleness_tracker_interval_ms", Inert, "10000", "there are no transactions"),
    F::number(
        "txn_status_manager_inject_latency_finalize_commit_ms",
        Inert,
        "0",
        "there are no transactions",
    ),
];
