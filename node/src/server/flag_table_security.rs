//! Flags of encryption, authentication and access control. They take effect at the start only: a change of a running
//! server would be shown without protecting anything.

use super::flags::Class::{Effective, Safeguard};
use super::flags::FlagScope::{Master, TabletServer};
use super::flags::FlagSpec;

const STABLE: &[&str] = &["stable"];
const HIDDEN: &[&str] = &["hidden"];
const UNSAFE: &[&str] = &["unsafe", "hidden"];
const EXPERIMENTAL: &[&str] = &["experimental"];

/// Ten years.
const CERTIFICATE_SECONDS: &str = "315360000";
/// The longest validity, a thousand years: the last year of a certificate is 9999.
const SECONDS_MAX: u64 = 31_536_000_000;

type F = FlagSpec;

pub(super) const SECURITY: &[FlagSpec] = &[
    F::choice(
        "rpc_encryption",
        Safeguard,
        &["disabled", "optional", "required"],
        "optional",
        "use of TLS: required refuses clients without it; disabled offers none",
    )
    .tagged(STABLE),
    F::choice(
        "rpc_authentication",
        Safeguard,
        &["disabled", "optional", "required"],
        "optional",
        "use of proofs of identity: required refuses clients that only state a name, and needs keytab_file or \
        rpc_certificate_file",
    )
    .tagged(STABLE),
    F::bool(
        "rpc_encrypt_loopback_connections",
        Safeguard,
        "false",
        "encrypts connections within one host, too; without it they are only authenticated by TLS",
    )
    .tagged(EXPERIMENTAL),
    F::text(
        "keytab_file",
        Safeguard,
        "",
        "keytab with the key of principal; with it clients can come with Kerberos tickets, servers with theirs",
    )
    .tagged(STABLE),
    F::text(
        "principal",
        Safeguard,
        "kudu/_HOST",
        "Kerberos principal of this server in keytab_file; _HOST stands for the name of this host. Clients ask for its \
        first component and the host that they connect to",
    )
    .tagged(EXPERIMENTAL),
    F::bool(
        "use_system_auth_to_local",
        Safeguard,
        "true",
        "maps principals to users by auth_to_local of krb5.conf, and by the first component where no rule applies; \
        false for the first component always",
    )
    .tagged(EXPERIMENTAL),
    F::bool(
        "allow_world_readable_credentials",
        Safeguard,
        "false",
        "accepts a keytab that every user of this machine can read, and does not warn of such private keys and \
        symmetric keys",
    )
    .tagged(UNSAFE),
    F::text(
        "umask",
        Safeguard,
        "077",
        "permissions that files and directories of the server do not get, as an octal number: 077 keeps all other \
        users out, 027 lets the group read",
    ),
    F::bool(
        "rpc_send_channel_bindings",
        Effective,
        "true",
        "for tests: binds tickets to the TLS connection; clients refuse a server that does not",
    )
    .tagged(UNSAFE)
    .runtime(),
    F::fraction(
        "rpc_inject_invalid_channel_bindings_ratio",
        Effective,
        "0",
        "for tests: share of connections whose bindings are wrong, which clients refuse",
    )
    .tagged(UNSAFE)
    .runtime(),
    F::text("rpc_tls_min_protocol", Safeguard, "TLSv1.2", "lowest version of TLS: TLSv1.2 or TLSv1.3"),
    F::list("rpc_tls_excluded_protocols", Safeguard, "", "versions of TLS that are not used"),
    F::text(
        "rpc_tls_ciphers",
        Safeguard,
        "",
        "cipher suites of TLS 1.2, separated by colons; empty for all with authenticated encryption",
    ),
    F::text(
        "rpc_tls_ciphersuites",
        Safeguard,
        "",
        "cipher suites of TLS 1.3, separated by colons; empty for all",
    ),
    F::text(
        "rpc_certificate_file",
        Safeguard,
        "",
        "PEM file of this server's certificate, signed by a CA of your own; its subject's UID is the user that the \
        cluster's servers act as",
    ),
    F::text("rpc_private_key_file", Safeguard, "", "PEM file (PKCS#8) of the key of rpc_certificate_file"),
    F::text(
        "rpc_private_key_password_cmd",
        Safeguard,
        "",
        "command that prints the password of rpc_private_key_file: a program and its arguments, without a shell",
    )
    .tagged(EXPERIMENTAL),
    F::text("rpc_ca_certificate_file", Safeguard, "", "PEM file of the CA of rpc_certificate_file"),
    F::number(
        "ipki_ca_cert_expiration_seconds",
        Effective,
        CERTIFICATE_SECONDS,
        "validity of the cluster's own CA, in seconds",
    )
    .within(1, SECONDS_MAX),
    F::number(
        "ipki_server_cert_expiration_seconds",
        Effective,
        CERTIFICATE_SECONDS,
        "validity of a server's certificate of the cluster's own CA, in seconds; a restart gets a new one",
    )
    .within(1, SECONDS_MAX),
    F::text(
        "webserver_certificate_file",
        Safeguard,
        "",
        "PEM file of the certificate of the web port, with its chain; empty for plain text",
    )
    .tagged(STABLE),
    F::text(
        "webserver_private_key_file",
        Safeguard,
        "",
        "PEM file (PKCS#8) of the key of webserver_certificate_file",
    )
    .tagged(STABLE),
    F::text(
        "webserver_private_key_password_cmd",
        Safeguard,
        "",
        "command that prints the password of webserver_private_key_file: a program and its arguments, without a shell",
    )
    .tagged(STABLE),
    F::text(
        "webserver_tls_min_protocol",
        Safeguard,
        "TLSv1.2",
        "lowest version of TLS of the web port: TLSv1.2 or TLSv1.3",
    ),
    F::text("webserver_tls_ciphers", Safeguard, "", "cipher suites of TLS 1.2 of the web port; empty for all"),
    F::text("webserver_tls_ciphersuites", Safeguard, "", "cipher suites of TLS 1.3 of the web port; empty for all"),
    F::text(
        "webserver_password_file",
        Safeguard,
        "",
        "file of the users of the web port, a line each by htpasswd -B or htdigest, read at start; needs \
        webserver_certificate_file; empty for no passwords",
    )
    .tagged(STABLE),
    F::text(
        "webserver_authentication_domain",
        Safeguard,
        "kudu",
        "name that browsers show when they ask for a password, and the domain of the lines of htdigest",
    ),
    F::bool(
        "webserver_require_spnego",
        Safeguard,
        "false",
        "demands a Kerberos ticket of every request to the web port but those for health; needs spnego_keytab_file and \
        webserver_certificate_file",
    )
    .tagged(STABLE),
    F::text(
        "spnego_keytab_file",
        Safeguard,
        "",
        "keytab with the key of HTTP/HOST, for the tickets of the web port's clients",
    )
    .tagged(STABLE),
    F::list(
        "webserver_trusted_subnets",
        Safeguard,
        "",
        "networks from which the web port takes connections; empty for all. Not a flag of Kudu",
    ),
    F::text(
        "user_acl",
        Safeguard,
        "*",
        "users who may read, write and manage tables: names separated by commas, or * for everybody",
    )
    .tagged(STABLE),
    F::text(
        "superuser_acl",
        Safeguard,
        "",
        "users who may also administer servers: names separated by commas, or * for everybody; empty for the user that \
        the servers act as",
    )
    .tagged(STABLE),
    F::text(
        "audit_log_dir",
        Safeguard,
        "",
        "directory of the audit log: DDL, administrative and denied calls, failed authentication; empty for none",
    )
    .tagged(STABLE),
    F::number("audit_log_file_size_mb", Safeguard, "64", "size in MiB at which the next audit file begins")
        .within(1, 1 << 20),
    F::number(
        "audit_log_files_max",
        Safeguard,
        "16",
        "audit files that are kept; those of denied actions and failed authentication count apart",
    )
    .within(2, 1 << 20),
    F::bool(
        "audit_log_required",
        Safeguard,
        "false",
        "rejects DDL and administrative calls while the audit log cannot be written",
    ),
    F::bool(
        "enable_jwt_token_auth",
        Safeguard,
        "false",
        "accepts JSON Web Tokens as proofs of identity; needs jwks_file_path or jwks_url",
    )
    .tagged(EXPERIMENTAL),
    F::text("jwks_file_path", Safeguard, "", "file of the JSON Web Key Set for these tokens, read at start"),
    F::text(
        "jwks_url",
        Safeguard,
        "",
        "URL of the JSON Web Key Set for these tokens (https, or http within a trusted network), instead of a file",
    )
    .tagged(EXPERIMENTAL),
    F::bool(
        "jwks_verify_server_certificate",
        Safeguard,
        "true",
        "verifies the certificate of an https jwks_url, for its host",
    )
    .tagged(EXPERIMENTAL),
    F::text(
        "trusted_certificate_file",
        Safeguard,
        "",
        "PEM file of the CAs of the certificate of jwks_url; empty for those that this machine trusts",
    )
    .tagged(EXPERIMENTAL),
    F::number("jwks_update_frequency_s", Effective, "60", "interval at which jwks_url is fetched, in seconds")
        .within(1, SECONDS_MAX)
        .tagged(EXPERIMENTAL),
    F::number("jwks_pulling_timeout_s", Effective, "10", "time limit of a fetch of jwks_url, in seconds")
        .within(1, 3_600)
        .tagged(EXPERIMENTAL),
    F::number(
        "authn_token_validity_seconds",
        Effective,
        "604800",
        "validity of authentication tokens, in seconds",
    )
    .within(1, SECONDS_MAX),
    F::number(
        "authz_token_validity_seconds",
        Effective,
        "300",
        "validity of authorization tokens, in seconds; a changed right takes effect after it at the latest",
    )
    .within(1, SECONDS_MAX),
    F::number(
        "tsk_rotation_seconds",
        Effective,
        "86400",
        "interval at which the masters make a new key that signs tokens, in seconds; at least about a thousandth of \
        the validity of tokens",
    )
    .within(1, SECONDS_MAX),
    F::bool(
        "tserver_enforce_access_control",
        Safeguard,
        "false",
        "requires an authorization token of a master for reads and writes, and checks it by table, column and kind of \
        row",
    )
    .of(TabletServer),
    F::text(
        "authz_policy_file",
        Safeguard,
        "",
        "TOML file with the users' rights on databases, tables and columns; without it every user may use all tables",
    )
    .of(Master)
    .tagged(STABLE),
    F::number(
        "authz_policy_reload_interval_seconds",
        Safeguard,
        "10",
        "interval at which authz_policy_file is read again, in seconds",
    )
    .within(1, 86_400)
    .of(Master),
    F::text(
        "trusted_user_acl",
        Safeguard,
        "",
        "users to whom authz_policy_file does not apply: names separated by commas",
    )
    .of(Master),
    F::bool(
        "master_support_authz_tokens",
        Effective,
        "true",
        "gives clients that open a table a token with their rights to it",
    )
    .of(Master)
    .tagged(HIDDEN),
    F::fraction(
        "tserver_inject_invalid_authz_token_ratio",
        Effective,
        "0",
        "for tests: share of valid authorization tokens that are rejected",
    )
    .of(TabletServer)
    .tagged(UNSAFE)
    .runtime(),
];
