//! Settings of the TLS library: randomness, clock, verification of certificates.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use engine::error::{Error, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, GetRandomFailed, SecureRandom, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};

use super::identity::OwnCertificate;
use super::settings::TlsSettings;
use crate::env::{Clock, Env, Rng, TlsPrimitives};

/// Builder of the library's configurations for one process.
pub(super) struct TlsConfigs {
    provider: Arc<CryptoProvider>,
    clock: Arc<dyn TimeProvider>,
    settings: TlsSettings,
}

impl TlsConfigs {
    pub(super) fn new(env: &Env, settings: TlsSettings) -> TlsConfigs {
        // The library wants a generator of the lifetime of the process. Leaks a few bytes per process or client.
        let secure_random: &'static EnvRandom = Box::leak(Box::new(EnvRandom(env.rng.clone())));
        let TlsPrimitives { kx_groups, key_provider } = env.rng.tls_primitives();
        let provider = CryptoProvider {
            cipher_suites: settings.suites.clone(),
            kx_groups,
            secure_random,
            key_provider,
            ..rustls::crypto::ring::default_provider()
        };
        TlsConfigs { provider: Arc::new(provider), clock: Arc::new(EnvTime(env.clock.clone())), settings }
    }

    /// Returns the configuration of a server: without a client's certificate, or with one signed by `clients`.
    pub(super) fn server(
        &self,
        own: &OwnCertificate,
        clients: Option<&Arc<RootCertStore>>,
    ) -> Result<Arc<ServerConfig>> {
        let builder = ServerConfig::builder_with_details(self.provider.clone(), self.clock.clone());
        let builder = builder.with_protocol_versions(&self.settings.versions).map_err(unusable)?;
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(roots) => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(roots.clone(), self.provider.clone());
                let verifier = verifier.build();
                builder.with_client_cert_verifier(verifier.map_err(|error| {
                    Error::invalid(format!("trusted CA certificates: not usable ({error})"))
                })?)
            }
        };
        let mut config = builder.with_single_cert(chain(own), key(own)?).map_err(unusable)?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    /// Returns the configuration of a client: with the chain of the server's certificate verified against `servers`, or
    /// without verification. A server may ask for the own certificate.
    pub(super) fn client(
        &self,
        own: Option<&OwnCertificate>,
        servers: Option<&Arc<RootCertStore>>,
    ) -> Result<Arc<ClientConfig>> {
        let builder = ClientConfig::builder_with_details(self.provider.clone(), self.clock.clone());
        let builder = builder.with_protocol_versions(&self.settings.versions).map_err(unusable)?;
        let algorithms = self.provider.signature_verification_algorithms;
        let verifier = ChainVerifier { roots: servers.cloned(), algorithms };
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some(own) => builder.with_client_auth_cert(chain(own), key(own)?).map_err(unusable)?,
        };
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        Ok(Arc::new(config))
    }

    /// Returns the configuration of a client of web servers: chain and host name are verified against `authorities`.
    pub(super) fn web_client(&self, authorities: &[Vec<u8>]) -> Result<Arc<ClientConfig>> {
        let mut roots = RootCertStore::empty();
        // A machine's list may have certificates of kinds that the library does not know.
        let (usable, _) =
            roots.add_parsable_certificates(authorities.iter().cloned().map(CertificateDer::from));
        if usable == 0 {
            return Err(Error::invalid("trusted CA certificates: none is usable"));
        }
        let builder = ClientConfig::builder_with_details(self.provider.clone(), self.clock.clone());
        let builder = builder.with_protocol_versions(&self.settings.versions).map_err(unusable)?;
        Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
    }

    /// Checks that key and certificate belong together.
    pub(super) fn check(&self, own: &OwnCertificate) -> Result<()> {
        CertifiedKey::from_der(chain(own), key(own)?, &self.provider).map(drop).map_err(unusable)
    }
}

fn chain(own: &OwnCertificate) -> Vec<CertificateDer<'static>> {
    own.chain.iter().map(|der| CertificateDer::from(der.clone())).collect()
}

fn key(own: &OwnCertificate) -> Result<PrivateKeyDer<'static>> {
    let der = own.key.pkcs8_der().to_vec();
    PrivateKeyDer::try_from(der).map_err(|error| Error::invalid(format!("private key: not usable ({error})")))
}

fn unusable(error: rustls::Error) -> Error {
    Error::invalid(format!("own certificate: not usable ({error})"))
}

/// Returns a store of CA certificates.
pub(super) fn root_store(ders: &[Vec<u8>]) -> Result<Arc<RootCertStore>> {
    let mut store = RootCertStore::empty();
    for der in ders {
        store
            .add(CertificateDer::from(der.as_slice()).into_owned())
            .map_err(|error| Error::invalid(format!("trusted CA certificate: not usable ({error})")))?;
    }
    Ok(Arc::new(store))
}

/// Randomness of the environment.
struct EnvRandom(Arc<dyn Rng>);

impl fmt::Debug for EnvRandom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EnvRandom")
    }
}

impl SecureRandom for EnvRandom {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), GetRandomFailed> {
        self.0.fill_secret(buffer);
        Ok(())
    }
}

/// Clock of the environment, which decides whether a certificate is valid yet or has expired.
struct EnvTime(Arc<dyn Clock>);

impl fmt::Debug for EnvTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EnvTime")
    }
}

impl TimeProvider for EnvTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_micros(self.0.now().wall.micros)))
    }
}

/// Verifier of a server's certificate: its chain, not its host name. Without roots it accepts every certificate, and
/// the server proves only that it has the key.
#[derive(Debug)]
struct ChainVerifier {
    roots: Option<Arc<RootCertStore>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for ChainVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            let algorithms = self.algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, algorithms)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
