//! Tokens: statements about a user, signed by the leading master and checked by every server. Pure.
//!
//! ```text
//!   created ──r──▶ active: signs ──r──▶ the next key signs; this one only verifies ──v──▶ expired
//!      └─ public part spreads to every server before the key is active (r is the rotation interval, v the validity)
//! ```
//!
//! - Invariant: a key signs only tokens that expire before it does. So no token is refused because of its key while it
//!   is valid.
//! - Invariant: key numbers are never used twice, so one number means one key on every server.
//! - A token is a bearer secret: it belongs on confidential connections only. There is no revocation.
//!
//! The model of these rules is `spec/Tokens.tla`. *Not here:* storage of keys (`node::master`), connections.

mod key;
mod keyring;
mod rotation;
mod signer;
mod verifier;

pub use self::key::{TokenKey, TokenKeyError};
pub use self::keyring::{TokenKeyring, seconds};
pub use self::rotation::{KeyLifetime, RotationPlan, TokenConfig};
pub use self::signer::TokenSigner;
pub use self::verifier::{TOKEN_KEYS_MAX, TokenFault, TokenFaultKind, TokenVerifier};

#[cfg(test)]
mod tests;
