//! Security of a plan's cluster: TLS and proofs of identity are required of every connection.
//!
//! ```text
//!   first connection   ticket of the machine (a double of Kerberos) ──▶ master ──▶ token, CA
//!   servers            certificates of the cluster's own CA
//!   later connections  tokens, which expire and whose keys rotate within the run
//! ```
//!
//! The double stands for the KDC and its library, which are outside the seam. All else is production code.

use std::sync::Arc;
use std::time::Duration;

use node::server::security::{CertificateValidity, PeerDemands, SecuritySettings};
use nyala_common::env::Env;
use nyala_common::env::kerberos::{BindingFaults, ClientKerberos, KerberosCredentials, ServerKerberos};
use nyala_common::env::kerberos_double::KerberosDouble;
use nyala_common::rpc::RpcConfig;
use nyala_common::security::acl::{AccessList, AccessLists};
use nyala_common::security::token::TokenConfig;
use nyala_common::security::{
    ClientSecurity, ClientSecurityOptions, RpcCaller, SecurityLevel, TlsCredentials, TlsSettings,
};
use sim_plan::{Host, SecuritySpec};

/// First component of the servers' principals, and the user that they act as.
pub(crate) const SERVICE: &str = "kudu";
/// User of every client, who may do everything that an operator may.
pub(crate) const OPERATOR: &str = "operator";
const REALM: &str = "R";
/// Validity of certificates: longer than any run.
const CERTIFICATES: Duration = Duration::from_secs(365 * 86_400);

/// Returns the Kerberos of a client's machine, with a ticket.
pub(crate) fn client_kerberos() -> KerberosDouble {
    KerberosDouble { principal: Some(format!("{OPERATOR}@{REALM}")) }
}

/// Returns the security settings of a server.
pub(crate) fn settings(spec: &SecuritySpec, host: Host) -> SecuritySettings {
    let principal = format!("{SERVICE}/{host}@{REALM}");
    let kerberos = ServerKerberos {
        library: Arc::new(KerberosDouble { principal: Some(principal.clone()) }),
        keytab: "keytab".to_string(),
        principal,
        host_rules: false,
        faults: BindingFaults::default(),
    };
    let access = AccessLists {
        service: AccessList::user(SERVICE),
        superusers: AccessList::user(OPERATOR),
        users: AccessList::Users(Default::default()),
        fine_grained: false,
    };
    SecuritySettings {
        access,
        peers: PeerDemands::new(SecurityLevel::Required, SecurityLevel::Required, false),
        tls: Some(TlsSettings::default()),
        kerberos: Some(Arc::new(kerberos)),
        tokens: TokenConfig {
            authn_validity: spec.authn,
            authz_validity: spec.authz,
            rotation: spec.rotation,
        },
        ..trusted_settings(OPERATOR)
    }
}

/// Returns the security settings of a server on a trusted network: it checks the rights of callers, who state their
/// names.
pub(crate) fn trusted_settings(superuser: &str) -> SecuritySettings {
    SecuritySettings {
        service_user: SERVICE.to_string(),
        access: AccessLists {
            service: AccessList::user(SERVICE),
            superusers: AccessList::user(superuser),
            users: AccessList::Everyone,
            fine_grained: true,
        },
        peers: PeerDemands::default(),
        tls: None,
        external: None,
        kerberos: None,
        jwt: None,
        tokens: TokenConfig::default(),
        validity: CertificateValidity { authority: CERTIFICATES, server: CERTIFICATES },
    }
}

/// Requires TLS and proofs of identity of a server's connections.
pub(crate) fn require(rpc: &mut RpcConfig) {
    (rpc.authentication, rpc.encryption) = (SecurityLevel::Required, SecurityLevel::Required);
}

/// Returns the caller of a client that keeps no token: with the machine's ticket, or with its mere name `unproved`.
pub(crate) fn caller(env: &Env, unproved: &str) -> RpcCaller {
    let Some(library) = env.net.kerberos() else { return unproved.into() };
    let (credentials, service) = (KerberosCredentials::Cache, SERVICE.to_string());
    let kerberos = Some(ClientKerberos { library, credentials, service });
    let options = ClientSecurityOptions { kerberos, require_authentication: true, ..Default::default() };
    let tls =
        TlsCredentials::new(env, TlsSettings::default()).expect("a client without certificates has TLS");
    RpcCaller::secure(OPERATOR, Arc::new(ClientSecurity::new(tls, options)))
}
