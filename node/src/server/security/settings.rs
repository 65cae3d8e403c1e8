//! Conversion of flags to security settings. Combinations that would leave a hole are rejected.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use engine::error::{Error, Result};

use super::jwks_url::{JwksUrl, JwksUrlConfig, log_unused};
use super::key_password::key_password;
use super::private_file::warn_if_public;
use crate::server::flags::Flags;
use nyala_common::env::Env;
use nyala_common::env::kerberos::{BindingFaults, ServerKerberos};
use nyala_common::security::acl::AccessLists;
use nyala_common::security::pki::certificate_user;
use nyala_common::security::tls::{ExternalPki, KeyFile, OwnCertificate, TlsSettings, server_end_point};
use nyala_common::security::token::{TOKEN_KEYS_MAX, TokenConfig};
use nyala_common::security::{EncryptionPolicy, JwtKeySet, SecurityLevel};

/// Validity of the certificates that masters sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CertificateValidity {
    /// The CA's own certificate (`ipki_ca_cert_expiration_seconds`).
    pub authority: Duration,
    /// Certificates of servers (`ipki_server_cert_expiration_seconds`).
    pub server: Duration,
}

/// Certificate of the operator's CA.
#[derive(Debug, Clone)]
pub struct ExternalIdentity {
    pub own: OwnCertificate,
    /// DER certificates of the CA.
    pub trusted: Vec<Vec<u8>>,
}

/// Source of the keys of JSON Web Tokens.
#[derive(Clone)]
pub enum JwtKeys {
    /// Read once from a file.
    File(Arc<JwtKeySet>),
    /// Fetched while the server runs.
    Url(Arc<JwksUrl>),
}

/// Demands on the servers that this one calls, so that no process in their place gets a heartbeat or a log entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PeerDemands {
    pub encryption: EncryptionPolicy,
    /// True if a server is refused that takes a mere name for a proof, or does not prove to be the service user.
    pub authentication: bool,
}

impl PeerDemands {
    /// Returns the demands that are those on callers (`rpc_encryption`, `rpc_authentication`). `loopback`: connections
    /// within one host are encrypted, too.
    pub fn new(encryption: SecurityLevel, authentication: SecurityLevel, loopback: bool) -> PeerDemands {
        let encryption = match encryption {
            SecurityLevel::Disabled => EncryptionPolicy::Disabled,
            SecurityLevel::Optional => EncryptionPolicy::Optional,
            SecurityLevel::Required if loopback => EncryptionPolicy::Required,
            SecurityLevel::Required => EncryptionPolicy::RequiredRemote,
        };
        PeerDemands { encryption, authentication: authentication == SecurityLevel::Required }
    }
}

/// Security settings of one server.
#[derive(Clone)]
pub struct SecuritySettings {
    /// User that the cluster's servers act as: that of the operator's certificate, of the keytab's principal, or of the
    /// process.
    pub service_user: String,
    pub access: AccessLists,
    pub peers: PeerDemands,
    /// Versions and cipher suites; `None` without TLS (`rpc_encryption=disabled`).
    pub tls: Option<TlsSettings>,
    /// Certificate from files, instead of one of the cluster's CA.
    pub external: Option<ExternalIdentity>,
    /// Keytab, if clients may come with Kerberos tickets.
    pub kerberos: Option<Arc<ServerKerberos>>,
    /// Keys of JSON Web Tokens, if those are accepted.
    pub jwt: Option<JwtKeys>,
    pub tokens: TokenConfig,
    pub validity: CertificateValidity,
}

impl fmt::Debug for SecuritySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SecuritySettings { service_user, access, tokens, validity, .. } = self;
        f.debug_struct("SecuritySettings")
            .field("service_user", service_user)
            .field("access", access)
            .field("tokens", tokens)
            .field("validity", validity)
            .finish_non_exhaustive()
    }
}

/// Returns the security settings in the flags. Reads certificate files.
pub fn settings(env: &Env, flags: &Flags) -> Result<SecuritySettings> {
    let level = |name: &str| SecurityLevel::parse(&flags.text(name)).unwrap_or_default();
    let (encryption, authentication) = (level("rpc_encryption"), level("rpc_authentication"));
    let external = external(env, flags)?;
    let kerberos = kerberos(env, flags)?.map(Arc::new);
    let certified = external.as_ref().and_then(|external| certificate_user(&external.own.chain[0]));
    if let (Some(external), Some(_)) = (&external, &kerberos) {
        server_end_point(&external.own.chain[0]).map_err(|why| {
            Error::invalid(format!("rpc_certificate_file: of no use with keytab_file ({why})"))
        })?;
    }
    let proofs = ServerProofs {
        external: external.is_some(),
        certified: certified.is_some(),
        kerberos: kerberos.is_some(),
    };
    check(encryption, authentication, &proofs)?;
    let principal = kerberos.as_ref().and_then(|kerberos| kerberos.user(&kerberos.principal));
    let service_user = match certified.or(principal) {
        Some(user) => user,
        None => env.disks.process_user().map_err(|error| Error::io("look up the process's user", &error))?,
    };
    let access = AccessLists {
        fine_grained: flags.bool("tserver_enforce_access_control"),
        ..AccessLists::new(&service_user, &flags.text("superuser_acl"), &flags.text("user_acl"))?
    };
    let tls = TlsSettings::parse(
        "rpc",
        &flags.text("rpc_tls_min_protocol"),
        &flags.list("rpc_tls_excluded_protocols"),
        &flags.text("rpc_tls_ciphers"),
        &flags.text("rpc_tls_ciphersuites"),
    )?;
    let seconds = |name: &str| Duration::from_secs(flags.number(name));
    Ok(SecuritySettings {
        service_user,
        access,
        peers: PeerDemands::new(encryption, authentication, flags.bool("rpc_encrypt_loopback_connections")),
        tls: (encryption != SecurityLevel::Disabled).then_some(tls),
        external,
        kerberos,
        jwt: jwt(env, flags, encryption)?,
        tokens: tokens(flags)?,
        validity: CertificateValidity {
            authority: seconds("ipki_ca_cert_expiration_seconds"),
            server: seconds("ipki_server_cert_expiration_seconds"),
        },
    })
}

/// Returns the validity of tokens. Rejects keys that change so often that servers would drop those of valid tokens.
fn tokens(flags: &Flags) -> Result<TokenConfig> {
    let seconds = |name: &str| Duration::from_secs(flags.number(name));
    let tokens = TokenConfig {
        authn_validity: seconds("authn_token_validity_seconds"),
        authz_validity: seconds("authz_token_validity_seconds"),
        rotation: seconds("tsk_rotation_seconds"),
    };
    let (keys, limit) = (tokens.keys_max(), TOKEN_KEYS_MAX as u64);
    if keys > limit {
        return Err(Error::invalid(format!(
            "tsk_rotation_seconds: servers would need too many keys for tokens that are still valid ({keys}, limit \
             {limit}); raise it, or lower authn_token_validity_seconds and authz_token_validity_seconds"
        )));
    }
    Ok(tokens)
}

/// Means by which this server could prove to others who it is.
struct ServerProofs {
    /// True with a certificate of the operator's CA.
    external: bool,
    /// True if that certificate names a user.
    certified: bool,
    kerberos: bool,
}

/// Rejects settings that nothing could satisfy.
fn check(encryption: SecurityLevel, authentication: SecurityLevel, proofs: &ServerProofs) -> Result<()> {
    let ServerProofs { external, certified, kerberos } = *proofs;
    let disabled = encryption == SecurityLevel::Disabled;
    if disabled && external {
        return Err(Error::invalid(
            "rpc_certificate_file: a certificate is of no use with rpc_encryption=disabled; leave one of them out",
        ));
    }
    if authentication != SecurityLevel::Required {
        return Ok(());
    }
    // An own CA turns off the cluster's, and a ticket then serves each connection between servers.
    if kerberos && !disabled {
        return Ok(());
    }
    if disabled {
        return Err(Error::invalid(
            "rpc_authentication: no client can prove who it is without TLS (required, rpc_encryption=disabled); \
             set rpc_encryption to required",
        ));
    }
    if !external {
        return Err(Error::invalid(
            "rpc_authentication: servers cannot prove who they are (required, without keytab_file and \
             rpc_certificate_file); give each server a keytab with keytab_file and principal, or a certificate of your \
             own CA with rpc_certificate_file, rpc_private_key_file and rpc_ca_certificate_file",
        ));
    }
    if !certified {
        return Err(Error::invalid(
            "rpc_certificate_file: the certificate names no user, so it does not prove who the server is \
             (rpc_authentication=required); give its subject the attribute UID, for example \
             openssl req -subj /UID=kudu",
        ));
    }
    Ok(())
}

/// Checks the keytab, if the flags name one.
fn kerberos(env: &Env, flags: &Flags) -> Result<Option<ServerKerberos>> {
    let (keytab, principal) = (flags.text("keytab_file"), flags.text("principal"));
    if keytab.is_empty() {
        return Ok(None);
    }
    let Some(library) = env.net.kerberos() else {
        return Err(Error::invalid(format!(
            "keytab_file: this program was built without Kerberos (given {keytab}); leave it out, or build with the \
             cargo feature kerberos"
        )));
    };
    let world_readable = flags.bool("allow_world_readable_credentials");
    let principal = library.check_keytab(&keytab, &principal, world_readable);
    let principal = principal.map_err(|why| Error::invalid(format!("keytab_file: {why}")))?;
    let host_rules = flags.bool("use_system_auth_to_local");
    let faults = BindingFaults {
        send: Some(flags.live("rpc_send_channel_bindings")),
        invalid_ratio: Some(flags.live("rpc_inject_invalid_channel_bindings_ratio")),
    };
    Ok(Some(ServerKerberos { library, keytab, principal, host_rules, faults }))
}

/// Returns the keys of JSON Web Tokens, if those are accepted.
fn jwt(env: &Env, flags: &Flags, encryption: SecurityLevel) -> Result<Option<JwtKeys>> {
    let (path, url) = (flags.text("jwks_file_path"), flags.text("jwks_url"));
    if !flags.bool("enable_jwt_token_auth") {
        return match [("jwks_file_path", &path), ("jwks_url", &url)]
            .iter()
            .find(|(_, value)| !value.is_empty())
        {
            None => Ok(None),
            Some((name, _)) => {
                let fault = "of no use without enable_jwt_token_auth; set both or none";
                Err(Error::invalid(format!("{name}: {fault}")))
            }
        };
    }
    if encryption == SecurityLevel::Disabled {
        return Err(Error::invalid(
            "enable_jwt_token_auth: tokens are only accepted inside TLS (rpc_encryption=disabled); set it to optional \
             or required",
        ));
    }
    match (path.is_empty(), url.is_empty()) {
        (true, true) => Err(Error::invalid(
            "enable_jwt_token_auth: the keys are missing (no jwks_file_path, no jwks_url); name the file or the URL of \
             a JSON Web Key Set",
        )),
        (false, false) => Err(Error::invalid(
            "jwks_url: the keys have two sources (jwks_file_path is set, too); leave one of them out",
        )),
        (false, true) => {
            let json = env.disks.read_file(&path);
            let json =
                json.map_err(|error| Error::io(format_args!("jwks_file_path: read {path}"), &error))?;
            let keys = JwtKeySet::parse(&json, &path)?;
            if keys.has_secrets() {
                warn_if_public(env, flags, "jwks_file_path", &path);
            }
            log_unused(keys.unused(), &path);
            Ok(Some(JwtKeys::File(Arc::new(keys))))
        }
        (true, false) => {
            let config = JwksUrlConfig {
                url,
                verify: flags.bool("jwks_verify_server_certificate"),
                trusted_certificate_file: flags.text("trusted_certificate_file"),
                interval: Duration::from_secs(flags.number("jwks_update_frequency_s")),
                timeout: Duration::from_secs(flags.number("jwks_pulling_timeout_s")),
            };
            Ok(Some(JwtKeys::Url(Arc::new(JwksUrl::new(env, config)?))))
        }
    }
}

/// Reads the operator's certificate, if the flags name one.
fn external(env: &Env, flags: &Flags) -> Result<Option<ExternalIdentity>> {
    let names = ["rpc_certificate_file", "rpc_private_key_file", "rpc_ca_certificate_file"];
    let [certificate_file, private_key_file, ca_certificate_file] = names.map(|name| flags.text(name));
    let given = [&certificate_file, &private_key_file, &ca_certificate_file];
    match given.iter().filter(|path| !path.is_empty()).count() {
        0 => return Ok(None),
        3 => {}
        _ => {
            let missing = names.iter().zip(given).find(|(_, path)| path.is_empty());
            let name = missing.map_or("", |(name, _)| name);
            return Err(Error::invalid(format!("{name}: not given; give {} together", names.join(", "))));
        }
    }
    let password = key_password(env, flags, "rpc_private_key_password_cmd")?;
    let private_key_file = KeyFile { path: private_key_file, password };
    let files = ExternalPki { certificate_file, private_key_file, ca_certificate_file };
    let (own, trusted) = files.load(env)?;
    warn_if_public(env, flags, "rpc_private_key_file", &files.private_key_file.path);
    Ok(Some(ExternalIdentity { own, trusted }))
}
