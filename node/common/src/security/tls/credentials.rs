//! Own certificate and trusted CA certificates of a process, replaceable while connections are accepted.

use engine::sync::{Mutex, MutexGuard};
use std::fmt;
use std::sync::Arc;

use engine::error::{Error, Result};
use rustls::{ClientConfig, ServerConfig};

use super::config::{TlsConfigs, root_store};
use super::identity::{CertificateOrigin, OwnCertificate};
use super::session::TlsSession;
use super::settings::TlsSettings;
use crate::env::Env;
use crate::security::pki::certificate_user;

/// Holder of a process's TLS credentials. Negotiations read it at each connection, so a replacement needs no restart.
pub struct TlsCredentials {
    configs: TlsConfigs,
    state: Mutex<State>,
}

/// Credentials and the library's configurations made from them, so that a connection makes none.
struct State {
    own: Option<Arc<OwnCertificate>>,
    /// DER certificates of trusted CAs, in the order of their arrival.
    trusted: Arc<Vec<Vec<u8>>>,
    server: Option<Arc<ServerConfig>>,
    /// Server side that demands a client's certificate.
    mutual: Option<Arc<ServerConfig>>,
    /// Client side that accepts every certificate.
    unverified: Arc<ClientConfig>,
    /// Client side that verifies the server's certificate, if a CA is trusted.
    verified: Option<Arc<ClientConfig>>,
}

impl State {
    fn new(
        configs: &TlsConfigs,
        own: Option<Arc<OwnCertificate>>,
        trusted: Arc<Vec<Vec<u8>>>,
    ) -> Result<State> {
        let roots = if trusted.is_empty() { None } else { Some(root_store(&trusted)?) };
        let (mut server, mut mutual) = (None, None);
        if let Some(own) = &own {
            server = Some(configs.server(own, None)?);
            mutual = roots.as_ref().map(|roots| configs.server(own, Some(roots))).transpose()?;
        }
        // A self-signed certificate would prove nothing to a server.
        let shown = own.as_deref().filter(|own| own.origin != CertificateOrigin::SelfSigned);
        let unverified = configs.client(shown, None)?;
        let verified = roots.as_ref().map(|roots| configs.client(shown, Some(roots))).transpose()?;
        Ok(State { own, trusted, server, mutual, unverified, verified })
    }
}

impl TlsCredentials {
    /// Creates a holder without a certificate and without a trusted CA.
    pub fn new(env: &Env, settings: TlsSettings) -> Result<Arc<TlsCredentials>> {
        let configs = TlsConfigs::new(env, settings);
        let state = State::new(&configs, None, Arc::default())?;
        Ok(Arc::new(TlsCredentials { configs, state: Mutex::new(state) }))
    }

    /// Replaces the own certificate for connections that begin from now on. Fails, and changes nothing, if the key does
    /// not belong to the certificate.
    pub fn set_own(&self, own: OwnCertificate) -> Result<()> {
        if own.chain.is_empty() {
            return Err(Error::invalid("own certificate: no certificate in the chain; give at least one"));
        }
        self.configs.check(&own)?;
        let mut state = self.state();
        *state = State::new(&self.configs, Some(Arc::new(own)), state.trusted.clone())?;
        Ok(())
    }

    pub fn own(&self) -> Option<Arc<OwnCertificate>> {
        self.state().own.clone()
    }

    /// Returns true if the own certificate is signed by a CA, so that clients can verify this server.
    pub fn is_ca_signed(&self) -> bool {
        self.state().own.as_ref().is_some_and(|own| own.origin != CertificateOrigin::SelfSigned)
    }

    /// Returns true if the own certificate is signed by a CA and names a user, so that it proves to servers who this
    /// process is.
    pub fn proves_user(&self) -> bool {
        let own = self.own().filter(|own| own.origin != CertificateOrigin::SelfSigned);
        own.is_some_and(|own| certificate_user(&own.chain[0]).is_some())
    }

    /// Trusts the CA certificate `der` (and those trusted before) from now on. Fails, and changes nothing, if it is no
    /// certificate.
    pub fn trust(&self, der: Vec<u8>) -> Result<()> {
        let mut state = self.state();
        if state.trusted.contains(&der) {
            return Ok(());
        }
        let trusted: Vec<Vec<u8>> = state.trusted.iter().cloned().chain([der]).collect();
        *state = State::new(&self.configs, state.own.clone(), Arc::new(trusted))?;
        Ok(())
    }

    /// Returns the DER certificates of all trusted CAs.
    pub fn trusted(&self) -> Arc<Vec<Vec<u8>>> {
        self.state().trusted.clone()
    }

    /// Returns true if at least one CA is trusted, so that peers can be verified.
    pub fn can_verify(&self) -> bool {
        self.state().verified.is_some()
    }

    /// Starts the server side of a handshake, with a client's certificate if `mutual`. `None` without credentials for
    /// it.
    pub fn server_session(&self, mutual: bool) -> Option<TlsSession> {
        let (config, own) = {
            let state = self.state();
            (if mutual { state.mutual.clone() } else { state.server.clone() }, state.own.clone())
        };
        TlsSession::server(config?, own)
    }

    /// Starts the client side of a handshake, with the server's chain verified if `verified`. `None` if no CA is
    /// trusted then.
    pub fn client_session(&self, verified: bool) -> Option<TlsSession> {
        let config = {
            let state = self.state();
            if verified { state.verified.clone()? } else { state.unverified.clone() }
        };
        TlsSession::client(config)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl fmt::Debug for TlsCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        let origin = state.own.as_ref().map(|own| own.origin);
        f.debug_struct("TlsCredentials").field("own", &origin).field("trusted", &state.trusted.len()).finish()
    }
}
