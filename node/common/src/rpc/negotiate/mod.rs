//! Negotiation before a connection's first call, both sides, as state machines: bytes in, bytes out.
//!
//! ```text
//! client                                               server
//!   "hrpc" 9 0 0, NEGOTIATE(features, types)       ──▶
//!                                                  ◀──  NEGOTIATE(features, one type, SASL mechanisms)
//!   TLS_HANDSHAKE (if both listed TLS)             ◀─▶  one message per flight
//!   SASL_INITIATE(PLAIN, \0user\0)                 ──▶  or TOKEN_EXCHANGE, JWT_EXCHANGE; nothing for a certificate
//!                                                  ◀──  SASL_SUCCESS, or the same step, empty
//!   ConnectionContext                              ──▶  (no reply; calls may follow in the same segment)
//! ```
//!
//! All frames except the last have call id -33. An error is an `ErrorStatusPB` under that id and ends the connection.
//!
//! - After the handshake all frames are inside TLS. If both sides are on one host and both listed
//!   TLS_AUTHENTICATION_ONLY, the frames continue in plain text.
//! - PLAIN accepts any user name, so it is offered to trusted networks only, and never if authentication is required.
//! - Names of more than 256 bytes are refused, whatever proves them: log lines and audit events repeat names.
//! - With a keytab SASL is GSSAPI instead of PLAIN, with more steps: see `gssapi`. Steps that may wait for files or a
//!   KDC are announced by `may_block`, so that their owner runs them elsewhere.
//! - A secret (token, JWT) is sent only inside TLS, to a server whose certificate was verified.
//! - Where proofs are required, a server demands more of those that it calls: the certificate names the user that
//!   servers act as, or Kerberos proves the server (`ClientSecurityOptions::server_user`).
//!
//! *Not here:* Kerberos itself ([`crate::env::kerberos`]).

mod client;
mod gssapi;
mod message;
mod server;
mod server_kerberos;
mod subnet;

pub use client::ClientNegotiation;
pub use message::{NEGOTIATION_FRAME_BYTES_MAX, NegotiationStep, PREAMBLE, check_preamble};
pub use server::{ServerNegotiation, ServerNegotiationConfig};
pub use subnet::{Subnet, client_network};
