//! Security of connections: who the peer is, how that was proved, and the keys and certificates behind it.
//!
//! ```text
//!   rpc::negotiate ──reads──▶ TlsCredentials ◀──replaces── heartbeats, masters (certificate, trusted CAs)
//!         │ └────────asks──▶ AuthnTokenVerifier (token keys)
//!         ▼
//!   PeerIdentity, in every Call: user, principal, method of authentication, confidential or not
//! ```
//!
//! Pure cores, without IO: `token` (keys, tokens, rotation), `pki` (CA, requests, certificates), `acl` (who may call
//! what), `jwt` (tokens of other issuers).
//!
//! *Not here:* the steps of the negotiation ([`crate::rpc::negotiate`]).

pub mod acl;
pub mod audit;
mod caller;
mod jwt;
pub mod pki;
mod server;
pub mod tls;
pub mod token;

use std::fmt;
use std::sync::Arc;

use engine::time::WallTime;
use nyala_proto::kudu::rpc::error_status_pb::RpcErrorCodePb;
use nyala_proto::kudu::security::SignedTokenPb;

pub use caller::{ClientSecurity, ClientSecurityOptions, EncryptionPolicy, RpcCaller, SecretText};
pub use jwt::JwtKeySet;
pub use server::{JwtTokenVerifier, SecurityLevel, ServerSecurity};
pub use tls::{CertificateOrigin, OwnCertificate, PrivateKey, TlsCredentials, TlsSettings};

/// Proof of a peer's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthnMethod {
    /// None: the peer states a name (SASL PLAIN).
    Plain,
    /// Authentication token, signed by a master.
    Token,
    /// Certificate of a server, signed by the cluster's CA.
    Certificate,
    /// JSON Web Token, signed by a known key.
    Jwt,
    /// Kerberos ticket (SASL GSSAPI).
    Kerberos,
}

/// Peer of one connection, as its negotiation established it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIdentity {
    /// Short user name. Unproved if [`PeerIdentity::method`] is [`AuthnMethod::Plain`].
    pub user: Arc<str>,
    /// Full principal name, if the method has one (Kerberos, or a certificate that carries it).
    pub principal: Option<Arc<str>>,
    pub method: AuthnMethod,
    /// True if no third party can read the connection: TLS, or loopback while loopback needs no encryption.
    pub confidential: bool,
}

impl PeerIdentity {
    /// Returns the identity of a peer that only stated its name.
    pub fn unproved(user: &str, confidential: bool) -> PeerIdentity {
        PeerIdentity { user: user.into(), principal: None, method: AuthnMethod::Plain, confidential }
    }

    /// Returns true if the peer proved its name.
    pub fn is_authenticated(&self) -> bool {
        self.method != AuthnMethod::Plain
    }

    /// Returns true if the peer may get an authentication token: only on a confidential connection, and never with the
    /// proof of another token, so that a token's validity cannot be extended without bound.
    pub fn can_get_authn_token(&self) -> bool {
        self.confidential && !matches!(self.method, AuthnMethod::Token | AuthnMethod::Jwt)
    }

    /// Returns true if the peer may get a certificate, which is valid for years: never with the proof of a token, which
    /// is valid for days. A mere name is enough only in a cluster that requires no proof of any server.
    pub fn can_get_certificate(&self, proof_required: bool) -> bool {
        match self.method {
            AuthnMethod::Certificate | AuthnMethod::Kerberos => true,
            AuthnMethod::Plain => !proof_required,
            AuthnMethod::Token | AuthnMethod::Jwt => false,
        }
    }
}

/// Bearer of a verified authentication token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenIdentity {
    pub user: String,
    pub principal: Option<String>,
}

/// Reason why a token is not accepted. Clients react to the code: 16 asks for a new token, 7 retries later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRejection {
    pub code: RpcErrorCodePb,
    /// Text after `Not authorized: `, for example `token expired`.
    pub message: String,
}

impl TokenRejection {
    pub fn new(code: RpcErrorCodePb, message: impl Into<String>) -> TokenRejection {
        TokenRejection { code, message: message.into() }
    }
}

impl fmt::Display for TokenRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.as_str_name(), self.message)
    }
}

/// Verifier of authentication tokens that clients present in the negotiation.
pub trait AuthnTokenVerifier: Send + Sync {
    /// Returns true if at least one token signing key is known. Without one, TOKEN is not chosen.
    fn has_keys(&self) -> bool;

    /// Verifies a token at the time `now`. The order of the checks is part of the protocol, because clients react to
    /// the code of the first that fails.
    fn verify(&self, token: &SignedTokenPb, now: WallTime) -> Result<TokenIdentity, TokenRejection>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_given_to_confidential_peers_that_came_without_one() {
        let peer = |method, confidential| PeerIdentity {
            method,
            confidential,
            ..PeerIdentity::unproved("ann", confidential)
        };
        for method in [AuthnMethod::Plain, AuthnMethod::Kerberos, AuthnMethod::Certificate] {
            assert!(peer(method, true).can_get_authn_token(), "{method:?}");
            assert!(!peer(method, false).can_get_authn_token(), "{method:?}");
        }
        for method in [AuthnMethod::Token, AuthnMethod::Jwt] {
            assert!(!peer(method, true).can_get_authn_token(), "{method:?}");
        }
        assert!(!PeerIdentity::unproved("ann", true).is_authenticated());
    }

    #[test]
    fn a_certificate_is_given_for_lasting_proofs_and_for_a_name_only_where_none_is_required() {
        use AuthnMethod::{Certificate, Jwt, Kerberos, Plain, Token};
        let allowed = |proof_required| {
            let peer = |method| PeerIdentity { method, ..PeerIdentity::unproved("kudu", true) };
            let methods = [Plain, Token, Certificate, Jwt, Kerberos].into_iter();
            methods.filter(|method| peer(*method).can_get_certificate(proof_required)).collect::<Vec<_>>()
        };
        assert_eq!(allowed(true), [Certificate, Kerberos]);
        assert_eq!(allowed(false), [Plain, Certificate, Kerberos]);
    }
}
