//! Own certificate and trusted CA certificates of a process, replaceable while connections are accepted.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use engine::error::{Error, Result};
use zeroize::Zeroizing;

/// Private key as PKCS#8 DER. Wiped when dropped, never printed.
#[derive(Clone)]
pub struct PrivateKey(Arc<Zeroizing<Vec<u8>>>);

impl PrivateKey {
    pub fn from_pkcs8_der(der: Vec<u8>) -> PrivateKey {
        PrivateKey(Arc::new(Zeroizing::new(der)))
    }

    pub fn pkcs8_der(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(redacted)")
    }
}

/// Issuer of the own certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateOrigin {
    /// The process itself, until the cluster's CA has signed a certificate. Only SASL authentication is possible.
    SelfSigned,
    /// The cluster's CA. Clients that trust it may present tokens.
    ClusterCa,
    /// A CA of the operator, from files. Servers do not authenticate each other by it.
    External,
}

/// Certificate that this process presents, with its key.
#[derive(Debug, Clone)]
pub struct OwnCertificate {
    pub key: PrivateKey,
    /// DER certificates, the own one first, then intermediates.
    pub chain: Vec<Vec<u8>>,
    pub origin: CertificateOrigin,
}

/// Holder of a process's TLS credentials. Negotiations read it at each connection, so a replacement needs no restart.
#[derive(Default)]
pub struct TlsCredentials {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    own: Option<Arc<OwnCertificate>>,
    /// DER certificates of trusted CAs, in the order of their arrival.
    trusted: Arc<Vec<Vec<u8>>>,
}

impl TlsCredentials {
    /// Creates a holder without a certificate and without a trusted CA.
    pub fn new() -> Arc<TlsCredentials> {
        Arc::default()
    }

    /// Replaces the own certificate for connections that begin from now on.
    pub fn set_own(&self, own: OwnCertificate) -> Result<()> {
        if own.chain.is_empty() {
            return Err(Error::invalid("own certificate: no certificate in the chain; give at least one"));
        }
        self.state().own = Some(Arc::new(own));
        Ok(())
    }

    pub fn own(&self) -> Option<Arc<OwnCertificate>> {
        self.state().own.clone()
    }

    /// Returns true if the own certificate is signed by a CA, so that clients can verify this server.
    pub fn is_ca_signed(&self) -> bool {
        self.state().own.as_ref().is_some_and(|own| own.origin != CertificateOrigin::SelfSigned)
    }

    /// Trusts the CA certificate `der` (and those trusted before) from now on.
    pub fn trust(&self, der: Vec<u8>) -> Result<()> {
        let mut state = self.state();
        if !state.trusted.contains(&der) {
            Arc::make_mut(&mut state.trusted).push(der);
        }
        Ok(())
    }

    /// Returns the DER certificates of all trusted CAs.
    pub fn trusted(&self) -> Arc<Vec<Vec<u8>>> {
        self.state().trusted.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds this lock")
    }
}

impl fmt::Debug for TlsCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        let origin = state.own.as_ref().map(|own| own.origin);
        f.debug_struct("TlsCredentials").field("own", &origin).field("trusted", &state.trusted.len()).finish()
    }
}
