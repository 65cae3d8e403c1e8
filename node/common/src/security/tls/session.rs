//! Handshake of one connection, flight by flight, and the keys that remain after it.

use std::fmt;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

use super::end_point::server_end_point;
use super::identity::OwnCertificate;

/// TLS state of one connection.
pub struct TlsSession {
    pub(super) connection: Connection,
    /// Certificate that a server presents on this connection; the own one may be replaced meanwhile.
    own: Option<Arc<OwnCertificate>>,
}

/// Result of a flight of the peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TlsFlight {
    /// Send these bytes, never empty, and wait for the next flight.
    Continue(Vec<u8>),
    /// The handshake is complete once these bytes, if any, are sent.
    Done(Vec<u8>),
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.connection.protocol_version();
        f.debug_struct("TlsSession").field("version", &version).finish_non_exhaustive()
    }
}

impl TlsSession {
    pub(super) fn server(config: Arc<ServerConfig>, own: Option<Arc<OwnCertificate>>) -> Option<TlsSession> {
        Some(TlsSession { connection: ServerConnection::new(config).ok()?.into(), own })
    }

    pub(super) fn client(config: Arc<ClientConfig>) -> Option<TlsSession> {
        // The name is neither sent nor checked; the library wants one.
        let name = ServerName::from(IpAddr::V4(Ipv4Addr::LOCALHOST));
        Some(TlsSession { connection: ClientConnection::new(config, name).ok()?.into(), own: None })
    }

    /// Starts a session with the web server `name`.
    pub(super) fn web_client(config: Arc<ClientConfig>, name: ServerName<'static>) -> Option<TlsSession> {
        Some(TlsSession { connection: ClientConnection::new(config, name).ok()?.into(), own: None })
    }

    /// Returns the client's first flight.
    pub fn first_flight(&mut self) -> Vec<u8> {
        self.output()
    }

    /// Processes one flight of the peer. The error is a reason for the log and the peer.
    pub fn on_flight(&mut self, mut bytes: &[u8]) -> Result<TlsFlight, String> {
        let mut plaintext = 0;
        while !bytes.is_empty() {
            let read = self.connection.read_tls(&mut bytes).map_err(|error| error.to_string())?;
            let state = self.connection.process_new_packets().map_err(|error| error.to_string())?;
            plaintext = plaintext.max(state.plaintext_bytes_to_read());
            if read == 0 {
                return Err("bytes after the end of the session".to_string());
            }
        }
        if plaintext > 0 {
            return Err("application data inside the handshake".to_string());
        }
        let output = self.output();
        match (self.connection.is_handshaking(), output.is_empty()) {
            (false, _) => Ok(TlsFlight::Done(output)),
            (true, false) => Ok(TlsFlight::Continue(output)),
            // Each message carries a whole flight, so nothing more would come that completes this one.
            (true, true) => Err("incomplete flight".to_string()),
        }
    }

    /// Returns the peer's certificate as DER, if it sent one.
    pub fn peer_certificate(&self) -> Option<Vec<u8>> {
        self.connection.peer_certificates()?.first().map(|der| der.to_vec())
    }

    /// Returns the hash of the server's certificate on this connection: the own one, or that of the peer.
    pub fn server_end_point(&self) -> Result<Vec<u8>, String> {
        let own = self.own.as_ref().and_then(|own| own.chain.first().cloned());
        let certificate = own.or_else(|| self.peer_certificate()).ok_or("the server has no certificate")?;
        server_end_point(&certificate)
    }

    /// Returns version and cipher suite for the log.
    pub fn description(&self) -> String {
        let version = self.connection.protocol_version().and_then(|version| version.as_str()).unwrap_or("?");
        let suite = self.connection.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str());
        format!("{version} {}", suite.unwrap_or("?"))
    }

    fn output(&mut self) -> Vec<u8> {
        let mut output = Vec::new();
        while self.connection.wants_write() {
            self.connection.write_tls(&mut output).expect("a vector accepts all bytes");
        }
        output
    }

    /// Reads decrypted bytes that the library already has. `Ok(0)` only at the end of the session.
    pub(super) fn read_plaintext(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.connection.reader().read(buffer)
    }
}
