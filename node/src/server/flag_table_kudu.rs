//! Kudu's flags without effect here: harmless ones are accepted, those that would grant something nyala lacks are
//! rejected.
//!
//! Where Kudu's default would claim such a feature (expiring tokens, a synchronized clock), the default here states the
//! facts.

use super::flags::Class::{Inert, Only};
use super::flags::FlagScope::{Master, TabletServer};
use super::flags::{FlagSpec, Missing};

const UNSAFE: &[&str] = &["unsafe", "hidden"];
const EXPERIMENTAL: &[&str] = &["experimental"];

const AUTHENTICATION: Missing = Missing {
    fault: "clients are not authenticated, any user name is believed",
    action: "leave it out, and let only trusted clients reach the RPC port (trusted_subnets)",
};
const ENCRYPTION: Missing = Missing {
    fault: "RPCs have no TLS, everything is sent in plain text",
    action: "leave it out, and keep the traffic on a trusted network or in a tunnel",
};
const AUTHORIZATION: Missing = Missing {
    fault: "nothing is authorized, every client may do everything",
    action: "leave it out, and let only trusted clients reach the RPC port (trusted_subnets)",
};
const TOKENS: Missing = Missing {
    fault: "no tokens are issued or checked",
    action: "leave it out, and let only trusted clients reach the RPC port (trusted_subnets)",
};
const WEB: Missing = Missing {
    fault: "the web port is in plain text and open to every client",
    action: "leave it out, and put a proxy before the port or close it (webserver_enabled=false)",
};
const FILES: Missing = Missing {
    fault: "files are not encrypted",
    action: "leave it out, and encrypt the device or its file system",
};
const CLOCK: Missing = Missing {
    fault: "there is no NTP client in the server",
    action: "leave it out, and keep the machine's clock right with an NTP service such as chrony",
};
const HYBRID: Missing = Missing { fault: "the hybrid clock is the only one", action: "leave it out" };
const LOG: Missing = Missing {
    fault: "the log goes to standard error only",
    action: "leave it out, and redirect standard error",
};

type F = FlagSpec;

/// Flags without an effect, by subject; rejected ones first.
pub(super) const WITHOUT_EFFECT: &[FlagSpec] = &[
    // Authentication.
    F::choice(
        "rpc_authentication",
        Only(&["disabled", "optional"], AUTHENTICATION),
        &["disabled", "optional", "required"],
        "optional",
        "client names are accepted without authentication",
    ),
    F::text("keytab_file", Only(&[""], AUTHENTICATION), "", "there is no Kerberos"),
    F::text("principal", Only(&[""], AUTHENTICATION), "", "there is no Kerberos"),
    F::bool("enable_jwt_token_auth", Only(&["false"], AUTHENTICATION), "false", "there are no tokens")
        .tagged(EXPERIMENTAL),
    F::text("jwks_file_path", Only(&[""], AUTHENTICATION), "", "there are no tokens"),
    F::text("jwks_url", Only(&[""], AUTHENTICATION), "", "there are no tokens"),
    F::text("trusted_certificate_file", Only(&[""], AUTHENTICATION), "", "there are no tokens"),
    // Encryption of RPCs.
    F::choice(
        "rpc_encryption",
        Only(&["disabled", "optional"], ENCRYPTION),
        &["disabled", "optional", "required"],
        "optional",
        "there is no TLS",
    ),
    F::bool("rpc_encrypt_loopback_connections", Only(&["false"], ENCRYPTION), "false", "there is no TLS")
        .tagged(EXPERIMENTAL),
    F::text("rpc_tls_min_protocol", Only(&[""], ENCRYPTION), "", "there is no TLS"),
    F::list("rpc_tls_excluded_protocols", Only(&[""], ENCRYPTION), "", "there is no TLS"),
    F::text("rpc_tls_ciphers", Only(&[""], ENCRYPTION), "", "there is no TLS"),
    F::text("rpc_tls_ciphersuites", Only(&[""], ENCRYPTION), "", "there is no TLS"),
    F::text("rpc_certificate_file", Only(&[""], ENCRYPTION), "", "there is no TLS"),
    F::text("rpc_private_key_file", Only(&[""], ENCRYPTION), "", "there is no TLS"),
    F::text("rpc_private_key_password_cmd", Only(&[""], ENCRYPTION), "", "there is no TLS"),
    F::text("rpc_ca_certificate_file", Only(&[""], ENCRYPTION), "", "there is no TLS"),
    F::text("ipki_private_key_password_cmd", Only(&[""], ENCRYPTION), "", "there is no TLS"),
    F::number("ipki_ca_cert_expiration_seconds", Only(&["0"], ENCRYPTION), "0", "there is no TLS"),
    F::number("ipki_server_cert_expiration_seconds", Only(&["0"], ENCRYPTION), "0", "there is no TLS"),
    // Authorization.
    F::text("user_acl", Only(&["*"], AUTHORIZATION), "*", "ignored: there is no authorization"),
    F::text("superuser_acl", Only(&["", "*"], AUTHORIZATION), "", "ignored: there is no authorization"),
    F::text("trusted_user_acl", Only(&[""], AUTHORIZATION), "", "ignored: there is no authorization"),
    F::bool(
        "tserver_enforce_access_control",
        Only(&["false"], AUTHORIZATION),
        "false",
        "ignored: there is no authorization",
    )
    .of(TabletServer),
    F::text("ranger_config_path", Only(&[""], AUTHORIZATION), "", "ignored: there is no authorization")
        .of(Master),
    // Tokens.
    F::number("authn_token_validity_seconds", Only(&["0"], TOKENS), "0", "there are no tokens"),
    F::number("authz_token_validity_seconds", Only(&["0"], TOKENS), "0", "there are no tokens"),
    F::number("tsk_rotation_seconds", Only(&["0"], TOKENS), "0", "there are no tokens"),
    F::text("tsk_private_key_password_cmd", Only(&[""], TOKENS), "", "there are no tokens"),
    // The web port.
    F::text("webserver_certificate_file", Only(&[""], WEB), "", "there is no TLS"),
    F::text("webserver_private_key_file", Only(&[""], WEB), "", "there is no TLS"),
    F::text("webserver_private_key_password_cmd", Only(&[""], WEB), "", "there is no TLS"),
    F::text("webserver_tls_min_protocol", Only(&[""], WEB), "", "there is no TLS"),
    F::text("webserver_tls_ciphers", Only(&[""], WEB), "", "there is no TLS"),
    F::text("webserver_tls_ciphersuites", Only(&[""], WEB), "", "there is no TLS"),
    F::text("webserver_password_file", Only(&[""], WEB), "", "there are no passwords"),
    F::text("webserver_authentication_domain", Only(&[""], WEB), "", "there are no passwords"),
    F::bool("webserver_require_spnego", Only(&["false"], WEB), "false", "there is no Kerberos"),
    F::text("spnego_keytab_file", Only(&[""], WEB), "", "there is no Kerberos"),
    // Files.
    F::bool("encrypt_data_at_rest", Only(&["false"], FILES), "false", "files are plain"),
    F::text("encryption_key_provider", Only(&[""], FILES), "", "files are plain"),
    F::number("encryption_key_length", Only(&["0"], FILES), "0", "files are plain"),
    F::text("encryption_cluster_key_name", Only(&[""], FILES), "", "files are plain"),
    F::text("ranger_kms_url", Only(&[""], FILES), "", "files are plain"),
    F::bool("enable_multi_tenancy", Only(&["false"], FILES), "false", "files are plain").tagged(EXPERIMENTAL),
    // The clock.
    F::list("builtin_ntp_servers", Only(&[""], CLOCK), "", "no NTP server is queried"),
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
    F::number("ipki_server_key_size", Inert, "2048", "there is no TLS").tagged(EXPERIMENTAL),
    F::number("ipki_ca_key_size", Inert, "2048", "there is no TLS").tagged(EXPERIMENTAL),
    F::number("tsk_num_rsa_bits", Inert, "2048", "there are no tokens").tagged(EXPERIMENTAL),
    F::fraction("tserver_inject_invalid_authz_token_ratio", Inert, "0", "there are no tokens").tagged(UNSAFE),
    F::fraction("rpc_inject_invalid_authn_token_ratio", Inert, "0", "there are no tokens").tagged(UNSAFE),
    F::bool("txn_manager_enabled", Inert, "false", "there are no transactions").of(Master),
    F::bool("enable_txn_system_client_init", Inert, "false", "there are no transactions").of(TabletServer),
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
