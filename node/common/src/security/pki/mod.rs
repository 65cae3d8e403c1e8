//! Certificates of the cluster: the masters' certification authority (CA), requests of servers, signing. Pure.
//!
//! ```text
//!   server:  EcdsaKey ──▶ request(user, host) ── heartbeat ──▶ leading master: check, sign ──▶ certificate
//!                └── self-signed certificate until then                  CertAuthority: key + certificate, stored
//! ```
//!
//! Keys are ECDSA P-256 with SHA-256, and signatures are deterministic (RFC 6979): equal inputs give equal bytes. A
//! server's user is the UID attribute of the subject, as in Kudu. Keys and serial numbers are arguments.
//!
//! *Not here:* TLS, storage of the CA (`node::master`), the extension for Kerberos principals.

mod authority;
mod ecdsa_key;
mod parse;

pub use self::authority::{CertAuthority, CertValidity, self_signed};
pub use self::ecdsa_key::EcdsaKey;
pub use self::parse::{CertRequest, certificate_user};

#[cfg(test)]
mod tests;
