//! Credentials of a calling process: what it presents, what it demands of servers.

use engine::sync::{Mutex, MutexGuard};
use std::fmt;
use std::sync::Arc;

use nyala_proto::kudu::security::SignedTokenPb;
use zeroize::Zeroizing;

use super::tls::TlsCredentials;
use crate::env::kerberos::ClientKerberos;

/// Name and credentials with which a process calls servers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RpcCaller {
    user: Arc<str>,
    security: Option<Arc<ClientSecurity>>,
}

impl RpcCaller {
    /// Returns a caller that can use TLS and authenticate. `user` is its name where it has no proof.
    pub fn secure(user: &str, security: Arc<ClientSecurity>) -> RpcCaller {
        RpcCaller { user: user.into(), security: Some(security) }
    }

    pub fn user(&self) -> &str {
        &self.user
    }

    pub fn security(&self) -> Option<&Arc<ClientSecurity>> {
        self.security.as_ref()
    }
}

impl From<&str> for RpcCaller {
    /// Returns a caller that only states its name.
    fn from(user: &str) -> RpcCaller {
        RpcCaller { user: user.into(), security: None }
    }
}

impl From<&String> for RpcCaller {
    fn from(user: &String) -> RpcCaller {
        user.as_str().into()
    }
}

impl From<&RpcCaller> for RpcCaller {
    fn from(caller: &RpcCaller) -> RpcCaller {
        caller.clone()
    }
}

/// Connections that a client encrypts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EncryptionPolicy {
    /// None; TLS is not listed.
    Disabled,
    /// Those to servers that have TLS; within one host only the handshake.
    #[default]
    Optional,
    /// All to other hosts; within one host as [`EncryptionPolicy::Optional`].
    RequiredRemote,
    /// All, also within one host.
    Required,
}

/// Secret text. Wiped when dropped, never printed.
#[derive(Clone)]
pub struct SecretText(Arc<Zeroizing<String>>);

impl SecretText {
    pub fn new(text: String) -> SecretText {
        SecretText(Arc::new(Zeroizing::new(text)))
    }

    /// Returns the text, for the one place that sends or compares it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(redacted)")
    }
}

/// Demands of a client, and what it presents besides a token.
#[derive(Debug, Clone, Default)]
pub struct ClientSecurityOptions {
    pub encryption: EncryptionPolicy,
    /// True if the server's certificate is verified even where a mere name is presented. Then a CA must be trusted.
    pub verify_server: bool,
    /// JSON Web Token to present. A client with one never falls back to a mere name.
    pub jwt: Option<SecretText>,
    /// Source of tickets, which a client with a ticket presents to servers that take them.
    pub kerberos: Option<ClientKerberos>,
    /// True if the client refuses to present a mere name.
    pub require_authentication: bool,
    /// User that a server must prove to be: its certificate names it, or Kerberos proves the server. Implies
    /// `require_authentication`. `None`: any certificate of a trusted CA will do.
    pub server_user: Option<String>,
}

/// Credentials of a client, and its demands.
#[derive(Debug)]
pub struct ClientSecurity {
    pub tls: Arc<TlsCredentials>,
    options: ClientSecurityOptions,
    token: HeldToken,
}

impl ClientSecurity {
    pub fn new(tls: Arc<TlsCredentials>, options: ClientSecurityOptions) -> ClientSecurity {
        ClientSecurity { tls, options, token: HeldToken::default() }
    }

    pub fn verifies_server(&self) -> bool {
        self.options.verify_server
    }

    pub fn jwt(&self) -> Option<&SecretText> {
        self.options.jwt.as_ref()
    }

    pub fn kerberos(&self) -> Option<&ClientKerberos> {
        self.options.kerberos.as_ref()
    }

    pub fn has_tls(&self) -> bool {
        self.options.encryption != EncryptionPolicy::Disabled
    }

    /// Returns true if a server without TLS is refused. A secret to present, or a server to verify, needs TLS, too.
    pub fn requires_tls(&self, loopback: bool) -> bool {
        let required = match self.options.encryption {
            EncryptionPolicy::Disabled | EncryptionPolicy::Optional => false,
            EncryptionPolicy::RequiredRemote => !loopback,
            EncryptionPolicy::Required => true,
        };
        required || self.options.verify_server || self.options.jwt.is_some()
    }

    pub fn encrypts_loopback(&self) -> bool {
        self.options.encryption == EncryptionPolicy::Required
    }

    pub fn requires_authentication(&self) -> bool {
        let options = &self.options;
        options.require_authentication || options.jwt.is_some() || options.server_user.is_some()
    }

    /// Returns the user that a server must prove to be, if this matters.
    pub fn server_user(&self) -> Option<&str> {
        self.options.server_user.as_deref()
    }

    /// Returns the authentication token to present, if any.
    pub fn token(&self) -> Option<SignedTokenPb> {
        self.held_token().clone()
    }

    /// Sets the token for connections that begin from now on.
    pub fn set_token(&self, token: SignedTokenPb) {
        *self.held_token() = Some(token);
    }

    /// Forgets the token, so that the next connection presents the client's own credentials. Returns true if there was
    /// one.
    pub fn forget_token(&self) -> bool {
        self.held_token().take().is_some()
    }

    fn held_token(&self) -> MutexGuard<'_, Option<SignedTokenPb>> {
        self.token.0.lock()
    }
}

/// Authentication token that masters replace. Never printed.
#[derive(Default)]
struct HeldToken(Mutex<Option<SignedTokenPb>>);

impl fmt::Debug for HeldToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeldToken(redacted)")
    }
}
