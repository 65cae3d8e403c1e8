//! Certificate of this process, and its key.

use std::fmt;
use std::sync::Arc;

use engine::error::Result;
use zeroize::Zeroizing;

use crate::env::Env;
use crate::security::pki::{self, EcdsaKey};

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
    /// A CA of the operator, from files.
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

impl OwnCertificate {
    /// Makes a key and a certificate for `user` on `host`, signed by that key.
    pub fn self_signed(env: &Env, user: &str, host: &str) -> Result<OwnCertificate> {
        OwnCertificate::self_signed_by(&draw_key(env), env, user, host)
    }

    /// As [`OwnCertificate::self_signed`], with a given key.
    pub fn self_signed_by(key: &EcdsaKey, env: &Env, user: &str, host: &str) -> Result<OwnCertificate> {
        let now_s = i64::try_from(env.now().wall.micros / 1_000_000).unwrap_or(i64::MAX);
        let certificate = pki::self_signed(key, user, Some(host), draw_serial(env), now_s)?;
        Ok(OwnCertificate {
            key: PrivateKey::from_pkcs8_der(key.pkcs8_der()?.to_vec()),
            chain: vec![certificate],
            origin: CertificateOrigin::SelfSigned,
        })
    }
}

/// Draws a private key.
pub fn draw_key(env: &Env) -> EcdsaKey {
    loop {
        let mut secret = Zeroizing::new([0; 32]);
        env.rng.fill_secret(&mut *secret);
        // One in 2³² numbers is no key.
        if let Some(key) = EcdsaKey::from_secret(&secret) {
            return key;
        }
    }
}

/// Draws the serial number of a certificate.
pub fn draw_serial(env: &Env) -> u64 {
    let mut serial = [0; 8];
    env.rng.fill_secret(&mut serial);
    u64::from_be_bytes(serial)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::mem_net;

    #[tokio::test]
    async fn a_server_finds_its_own_name_in_its_certificate() {
        let env = mem_net::env();
        let own = OwnCertificate::self_signed(&env, "kudu", "host.example").expect("a certificate");
        assert_eq!(pki::certificate_user(&own.chain[0]).as_deref(), Some("kudu"));
        assert_eq!(format!("{:?}", own.key), "PrivateKey(redacted)");
        let other = OwnCertificate::self_signed(&env, "kudu", "host.example").expect("a certificate");
        assert_ne!(own.chain, other.chain, "each process draws its own key");
    }
}
