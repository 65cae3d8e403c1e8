//! Security of a running server: its certificate, the keys by which it checks tokens, its access lists.
//!
//! ```text
//!   flags ──▶ SecuritySettings ──▶ ServerIdentity ──▶ RpcServer (certificate, token keys, access lists)
//!                                      │    └────────▶ RpcCaller of every call to another server
//!   start: own key, self-signed certificate, request ── heartbeat, or the system tablet ──▶ certificate of the CA
//! ```
//!
//! - Nothing is stored: a restart means a new key and a new request.
//! - Servers prove who they are to one another by certificate, once both have one of the cluster's CA.
//! - What the server demands of its callers it demands of the servers that it calls. Where that is a proof, they must
//!   prove to be the service user: by Kerberos, or by a certificate that names that user.
//! - Invariant: access lists are in force from the first connection on.
//!
//! *Not here:* the CA and the signing of tokens (`master::secrets`), the steps of a negotiation.

mod identity;
mod jwks_url;
mod key_password;
mod private_file;
mod settings;

pub use self::identity::ServerIdentity;
pub use self::jwks_url::JwksUrl;
pub(super) use self::key_password::key_password;
pub(super) use self::private_file::warn_if_public;
pub use self::settings::{CertificateValidity, PeerDemands, SecuritySettings, settings};
