//! TLS of RPC connections: own certificate, trusted CAs.
//!
//! ```text
//!   start ──▶ self-signed certificate ──▶ signed by the cluster's CA (heartbeat, master)
//!        └──▶ external certificate, from files
//! ```

mod credentials;

pub use credentials::{CertificateOrigin, OwnCertificate, PrivateKey, TlsCredentials};
