//! Private keys of the CA and of servers: ECDSA P-256.

use std::fmt;

use p256::ecdsa::signature::Signer;
use p256::ecdsa::{DerSignature, SigningKey};
use p256::pkcs8::EncodePrivateKey;
use rcgen::{PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm};
use zeroize::Zeroizing;

use super::parse::pki_error;
use engine::error::Result;

/// A private key. The secret is wiped when the key is dropped.
#[derive(Clone)]
pub struct EcdsaKey {
    key: SigningKey,
    /// The public point, uncompressed.
    public: Vec<u8>,
}

impl EcdsaKey {
    /// Creates the key of this secret number, which must be 32 secret random bytes.
    ///
    /// Returns `None` for the one in 2³² numbers that are no key; the caller draws again.
    pub fn from_secret(secret: &[u8; 32]) -> Option<EcdsaKey> {
        let key = SigningKey::from_slice(secret).ok()?;
        let public = key.verifying_key().to_sec1_point(false).as_bytes().to_vec();
        Some(EcdsaKey { key, public })
    }

    /// Returns the secret number, for storage.
    pub fn secret(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(self.key.to_bytes().to_vec())
    }

    /// Returns the key in PKCS#8 form, for TLS.
    pub fn pkcs8_der(&self) -> Result<Zeroizing<Vec<u8>>> {
        let der = self.key.to_pkcs8_der().map_err(|error| pki_error("private key", error))?;
        Ok(Zeroizing::new(der.as_bytes().to_vec()))
    }
}

impl fmt::Debug for EcdsaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EcdsaKey(<redacted>)")
    }
}

impl PublicKeyData for EcdsaKey {
    fn der_bytes(&self) -> &[u8] {
        &self.public
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl rcgen::SigningKey for EcdsaKey {
    fn sign(&self, message: &[u8]) -> std::result::Result<Vec<u8>, rcgen::Error> {
        let signature: DerSignature = self.key.sign(message);
        Ok(signature.as_bytes().to_vec())
    }
}
