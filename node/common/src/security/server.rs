//! Security of a server: its credentials, and the verifiers of what clients present.

use std::fmt;
use std::sync::Arc;

use engine::time::WallTime;

use super::AuthnTokenVerifier;
use super::acl::AccessLists;
use super::audit::AuditSink;
use super::tls::TlsCredentials;
use crate::env::kerberos::ServerKerberos;

/// Use of a protection: Kudu's values of `rpc_authentication` and `rpc_encryption`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SecurityLevel {
    Disabled,
    #[default]
    Optional,
    Required,
}

impl SecurityLevel {
    /// Parses `disabled`, `optional` or `required`.
    pub fn parse(text: &str) -> Option<SecurityLevel> {
        Some(match text {
            "disabled" => SecurityLevel::Disabled,
            "optional" => SecurityLevel::Optional,
            "required" => SecurityLevel::Required,
            _ => return None,
        })
    }
}

/// Verifier of JSON Web Tokens.
pub trait JwtTokenVerifier: Send + Sync {
    /// Verifies a token and returns its subject, which is the user. The error is the reason that clients see.
    fn verify(&self, jwt: &[u8], now: WallTime) -> Result<String, String>;
}

/// Credentials, verifiers and access lists of a server. Without any, a server has neither TLS nor tokens, and every
/// user may call every method.
#[derive(Clone, Default)]
pub struct ServerSecurity {
    pub tls: Option<Arc<TlsCredentials>>,
    pub tokens: Option<Arc<dyn AuthnTokenVerifier>>,
    pub jwt: Option<Arc<dyn JwtTokenVerifier>>,
    /// Keys by which clients prove who they are with a ticket.
    pub kerberos: Option<Arc<ServerKerberos>>,
    /// Users who may call each method.
    pub access: Arc<AccessLists>,
    /// Receiver of audit events, if there is an audit log.
    pub audit: Option<Arc<dyn AuditSink>>,
}

impl fmt::Debug for ServerSecurity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerSecurity")
            .field("tls", &self.tls)
            .field("tokens", &self.tokens.is_some())
            .field("jwt", &self.jwt.is_some())
            .field("kerberos", &self.kerberos)
            .field("access", &self.access)
            .field("audit", &self.audit.is_some())
            .finish()
    }
}
