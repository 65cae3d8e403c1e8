//! TLS of connections to web servers, whose certificates name their hosts.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use engine::error::{Error, Result};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use super::config::TlsConfigs;
use super::session::TlsSession;
use super::settings::TlsSettings;
use super::stream::TlsStream;
use crate::env::{Env, Stream};

/// Web servers whose certificates are believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebTrust {
    /// Those with a certificate of these CAs, as DER, for the host that was asked for.
    Authorities(Vec<Vec<u8>>),
    /// All.
    Everybody,
}

/// Settings of such connections.
#[derive(Clone)]
pub struct TlsWebClient {
    config: Arc<ClientConfig>,
}

impl fmt::Debug for TlsWebClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsWebClient")
    }
}

impl TlsWebClient {
    pub fn new(env: &Env, trust: &WebTrust) -> Result<TlsWebClient> {
        let configs = TlsConfigs::new(env, TlsSettings::default());
        let config = match trust {
            WebTrust::Authorities(ders) => configs.web_client(ders)?,
            WebTrust::Everybody => configs.client(None, None)?,
        };
        Ok(TlsWebClient { config })
    }

    /// Wraps a connection to `host`. The handshake runs with the first read and write.
    pub fn wrap(&self, socket: Stream, host: &str) -> Result<Stream> {
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_string())
            .map_err(|_| Error::invalid(format!("{host}: not the name of a host")))?;
        let session = TlsSession::web_client(self.config.clone(), name);
        let session = session.ok_or_else(|| Error::invalid(format!("{host}: TLS is not possible")))?;
        Ok(Box::new(TlsStream::new(socket, session, Bytes::new())))
    }
}
