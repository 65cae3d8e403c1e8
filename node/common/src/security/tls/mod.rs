//! TLS of RPC connections, as a state machine without IO: bytes of the negotiation in, bytes out.
//!
//! ```text
//!   start ──▶ self-signed certificate ──▶ signed by the cluster's CA (heartbeat, master)   credentials, identity
//!        └──▶ external certificate, from files                                             files
//!   negotiation ──▶ TlsSession: one TLS_HANDSHAKE message per flight                       session, config
//!                        └──▶ wrapped mode: TlsStream around the socket                    stream
//!                        └──▶ authentication only: dropped, the socket continues in plain text
//!   a port of its own (HTTPS): the handshake first, without a negotiation                   port
//!   a web server (HTTPS), with its host name checked                                        web_client
//! ```
//!
//! Host names are not checked, as in Kudu: a server is trusted because the cluster's CA signed its certificate, and by
//! other servers because of the user in it (`rpc::negotiate`). There are no tickets, no resumption, no renegotiation,
//! no SNI and no ALPN.
//!
//! # Randomness
//!
//! Private keys, serial numbers, session ids and the random fields of hello messages come from the environment
//! ([`crate::env::Rng::fill_secret`]). The library takes the keys of a key exchange and the nonces of handshake
//! signatures from the operating system itself; the environment chooses these primitives
//! ([`crate::env::Rng::tls_primitives`]), so that a simulated cluster has the same bytes in every run of a seed.

mod config;
mod credentials;
mod end_point;
mod files;
mod identity;
mod key_file;
mod port;
mod session;
mod settings;
mod stream;
mod web_client;

pub use credentials::TlsCredentials;
pub use end_point::server_end_point;
pub use files::{ExternalPki, certificate_pem, certificates_from_pem};
pub use identity::{CertificateOrigin, OwnCertificate, PrivateKey, draw_key, draw_serial};
pub use key_file::KeyFile;
pub use port::TlsPort;
pub use session::{TlsFlight, TlsSession};
pub use settings::TlsSettings;
pub use stream::TlsStream;
pub use web_client::{TlsWebClient, WebTrust};

#[cfg(test)]
pub(crate) mod tests;
