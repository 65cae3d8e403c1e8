//! TLS of a port whose connections begin with the handshake, as HTTPS does.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use engine::error::Result;
use rustls::ServerConfig;

use super::config::TlsConfigs;
use super::files::read_own;
use super::key_file::KeyFile;
use super::session::TlsSession;
use super::settings::TlsSettings;
use super::stream::TlsStream;
use crate::env::{Env, Stream};

/// Certificate and settings of such a port. Clients prove nothing by TLS.
#[derive(Clone)]
pub struct TlsPort {
    config: Arc<ServerConfig>,
}

impl fmt::Debug for TlsPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsPort")
    }
}

impl TlsPort {
    /// Reads certificate and key, which must belong together.
    pub fn from_files(
        env: &Env,
        settings: TlsSettings,
        certificate_file: &str,
        key_file: &KeyFile,
    ) -> Result<TlsPort> {
        let own = read_own(env, certificate_file, key_file)?;
        let configs = TlsConfigs::new(env, settings);
        configs.check(&own).map_err(|error| error.context(certificate_file))?;
        Ok(TlsPort { config: configs.server(&own, None)? })
    }

    /// Sets the application protocols (ALPN). A client that names others only is refused.
    pub fn with_application_protocols(&self, names: &[&str]) -> TlsPort {
        let mut config = (*self.config).clone();
        config.alpn_protocols = names.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsPort { config: Arc::new(config) }
    }

    /// Wraps an accepted connection. The handshake runs with the first read. `None`: the settings allow no session.
    pub fn wrap(&self, socket: Stream) -> Option<Stream> {
        let session = TlsSession::server(self.config.clone(), None)?;
        Some(Box::new(TlsStream::new(socket, session, Bytes::new())))
    }
}
