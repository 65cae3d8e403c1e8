//! Kerberos of a host, as the negotiation of a connection uses it.
//!
//! ```text
//!   client: Kerberos::initiate ─▶ KerberosContext ◀─ tokens ─▶ KerberosContext ◀─ Kerberos::accept :server
//! ```
//!
//! *Not here:* the messages that carry the tokens ([`crate::rpc::negotiate`]).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Source of a client's ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KerberosCredentials {
    /// Credential cache of the user, filled by `kinit`.
    Cache,
    /// Keys of a principal in a keytab. Tickets are got and renewed as they are needed.
    Keytab { file: String, principal: String },
}

/// Kerberos of a host. A call may wait for files, name servers and KDCs: see [`super::Env::run`].
pub trait Kerberos: Send + Sync {
    /// Checks that a keytab has a key of `principal`, and returns the principal's full name. `_HOST` in the name stands
    /// for this host; an empty name for any principal. A keytab that others can read is an error unless
    /// `world_readable`.
    fn check_keytab(&self, file: &str, principal: &str, world_readable: bool) -> Result<String, String>;

    /// Begins a context with the service `service/host`. The error is the reason why there are no credentials.
    fn initiate(
        &self,
        credentials: &KerberosCredentials,
        service: &str,
        host: &str,
    ) -> Result<Box<dyn KerberosContext>, String>;

    /// Begins the context of a server with the keys of a keytab.
    fn accept(&self, keytab: &str) -> Result<Box<dyn KerberosContext>, String>;

    /// As [`Kerberos::accept`], for a web server, whose clients agree on the mechanism first (SPNEGO, RFC 4559).
    fn accept_web(&self, keytab: &str) -> Result<Box<dyn KerberosContext>, String>;

    /// Returns the user of `principal` by the host's rules (`auth_to_local`); `None` if no rule applies.
    fn local_name(&self, principal: &str) -> Option<String>;
}

/// Result of a token of the peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KerberosStep {
    /// Token for the peer, if not empty.
    pub token: Vec<u8>,
    /// True if this side is done. It has then checked that messages are protected and, for a client, who the server is.
    pub complete: bool,
}

/// One side of a security context with one peer.
pub trait KerberosContext: Send {
    /// Processes a token of the peer. A client's first token is empty.
    fn step(&mut self, token: &[u8]) -> Result<KerberosStep, String>;

    /// Protects a message against changes, without hiding it. Only after completion.
    fn wrap(&mut self, message: &[u8]) -> Result<Vec<u8>, String>;

    /// Checks a message of the peer's `wrap` and returns what was wrapped. Only after completion.
    fn unwrap(&mut self, bytes: &[u8]) -> Result<Vec<u8>, String>;

    /// Returns the full name of the client's principal. Only after completion.
    fn client(&self) -> Result<String, String>;
}

/// Kerberos of a server: its keys, and the mapping of principals to users.
#[derive(Clone)]
pub struct ServerKerberos {
    pub library: Arc<dyn Kerberos>,
    /// Path of the keytab.
    pub keytab: String,
    /// Full name of the own principal.
    pub principal: String,
    /// True if the host's rules map principals to users; otherwise it is always the first component.
    pub host_rules: bool,
    pub faults: BindingFaults,
}

/// Faults of channel bindings, for tests of clients. The values are those of flags, which may change at run time.
#[derive(Clone, Default)]
pub struct BindingFaults {
    /// 0 if no bindings are sent.
    pub send: Option<Arc<AtomicU64>>,
    /// Share of wrong bindings, as the bits of an `f64`.
    pub invalid_ratio: Option<Arc<AtomicU64>>,
}

impl BindingFaults {
    /// Returns true if bindings are sent at all.
    pub fn sends(&self) -> bool {
        self.send.as_ref().is_none_or(|send| send.load(Ordering::Relaxed) != 0)
    }

    /// Returns true if bindings are sent wrong. `draw` is a random number.
    pub fn spoils(&self, draw: u64) -> bool {
        let ratio =
            self.invalid_ratio.as_ref().map_or(0.0, |ratio| f64::from_bits(ratio.load(Ordering::Relaxed)));
        ratio > 0.0 && draw as f64 / (u64::MAX as f64) < ratio
    }
}

impl ServerKerberos {
    /// Returns the user of a principal; `None` if it names none.
    pub fn user(&self, principal: &str) -> Option<String> {
        let by_rule = if self.host_rules { self.library.local_name(principal) } else { None };
        let user = by_rule.unwrap_or_else(|| first_component(principal).to_string());
        (!user.is_empty()).then_some(user)
    }

    /// Returns the service of the own principal, by which clients name it.
    pub fn service(&self) -> &str {
        first_component(&self.principal)
    }
}

impl fmt::Debug for ServerKerberos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerKerberos").field("principal", &self.principal).finish_non_exhaustive()
    }
}

/// Kerberos of a client.
#[derive(Clone)]
pub struct ClientKerberos {
    pub library: Arc<dyn Kerberos>,
    pub credentials: KerberosCredentials,
    /// First component of the servers' principals.
    pub service: String,
}

impl fmt::Debug for ClientKerberos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientKerberos")
            .field("credentials", &self.credentials)
            .field("service", &self.service)
            .finish_non_exhaustive()
    }
}

/// Returns the part of a principal before the first slash or the realm.
fn first_component(principal: &str) -> &str {
    principal.split(['/', '@']).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::kerberos_double::KerberosDouble;

    #[test]
    fn a_principal_is_the_user_of_its_first_component_unless_a_rule_says_otherwise() {
        let by = |host_rules| ServerKerberos {
            library: Arc::new(KerberosDouble::default()),
            keytab: String::new(),
            principal: "kudu/h.example@R".to_string(),
            host_rules,
            faults: BindingFaults::default(),
        };
        assert_eq!(by(true).user("ann/admin@R").as_deref(), Some("ann"));
        assert_eq!(by(true).user("ann@OTHER").as_deref(), Some("other-ann"), "the double's rule");
        assert_eq!(by(false).user("ann@OTHER").as_deref(), Some("ann"));
        assert_eq!(by(true).user("@R"), None);
        assert_eq!(by(true).service(), "kudu");
    }
}
