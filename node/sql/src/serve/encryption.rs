//! Encryption of connections: certificate and key of the server, and the request that precedes it in the Postgres
//! protocol.

use std::io;

use nyala_common::env::{Env, Stream};
use nyala_common::security::tls::{KeyFile, TlsPort, TlsSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::error::SqlError;

/// Codes of the requests for encryption by TLS and by GSSAPI.
pub(super) const TLS_REQUEST: u32 = 80_877_103;
pub(super) const GSSAPI_REQUEST: u32 = 80_877_104;
/// Code of a request to cancel. Clients send it without encryption: it holds only a key that is of no other use.
const CANCEL_REQUEST: u32 = 80_877_102;

/// Bytes of a request, or of the start of a startup message: length and code.
const HEADER_BYTES: usize = 8;
/// Requests of a client before it gives up or continues without encryption.
const REQUESTS_MAX: usize = 3;

/// Certificate of a server and its key.
#[derive(Debug, Clone)]
pub struct Encryption {
    port: TlsPort,
}

impl Encryption {
    /// Reads the PEM files of the certificate chain and of the key (PKCS#8), which must belong together.
    pub fn from_files(env: &Env, certificate_file: &str, key_file: &str) -> Result<Encryption, SqlError> {
        let key = KeyFile { path: key_file.to_string(), password: None };
        let port = TlsPort::from_files(env, TlsSettings::default(), certificate_file, &key)?;
        Ok(Encryption { port })
    }

    /// Returns the port of a server whose clients speak HTTP/2.
    pub(super) fn http2(&self) -> TlsPort {
        self.port.with_application_protocols(&["h2"])
    }
}

/// A connection of the Postgres protocol before its startup message.
pub(super) struct OpenedConnection {
    pub(super) stream: Stream,
    /// Bytes of the startup message that were read.
    pub(super) first: Vec<u8>,
    /// True if the client may go on: the connection is encrypted or need not be.
    pub(super) is_acceptable: bool,
    pub(super) is_encrypted: bool,
}

/// Answers requests for encryption. Order: nothing beyond a request is read before its answer, so that bytes without
/// encryption are never taken for encrypted ones.
pub(super) async fn negotiate(
    mut stream: Stream,
    encryption: Option<&Encryption>,
    is_plaintext_allowed: bool,
) -> io::Result<OpenedConnection> {
    let mut header = [0; HEADER_BYTES];
    for _ in 0..REQUESTS_MAX {
        stream.read_exact(&mut header).await?;
        match (code_of(&header), encryption) {
            (Some(TLS_REQUEST), Some(encryption)) => {
                stream.write_all(b"S").await?;
                stream.flush().await?;
                let stream =
                    encryption.port.wrap(stream).ok_or_else(|| io::Error::other("no TLS session"))?;
                let first = Vec::new();
                return Ok(OpenedConnection { stream, first, is_acceptable: true, is_encrypted: true });
            }
            (Some(TLS_REQUEST | GSSAPI_REQUEST), _) => {
                stream.write_all(b"N").await?;
                stream.flush().await?;
            }
            (code, _) => {
                let is_acceptable =
                    encryption.is_none() || is_plaintext_allowed || code == Some(CANCEL_REQUEST);
                let first = header.to_vec();
                return Ok(OpenedConnection { stream, first, is_acceptable, is_encrypted: false });
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "too many requests for encryption"))
}

/// Returns the code of a request; `None` for the header of another message.
fn code_of(header: &[u8; HEADER_BYTES]) -> Option<u32> {
    let [a, b, c, d, code @ ..] = *header;
    let (len, code) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes(code));
    let is_request = len as usize == HEADER_BYTES || code == CANCEL_REQUEST;
    is_request.then_some(code)
}
