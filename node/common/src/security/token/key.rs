//! Token signing keys: Ed25519, numbered, with a lifetime.

use std::fmt;

use bytes::Bytes;
use ed25519_dalek::pkcs8::{DecodePublicKey, EncodePublicKey};
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use zeroize::Zeroizing;

use super::rotation::KeyLifetime;
use nyala_proto::kudu::security::TokenSigningPublicKeyPb;

/// A private key that signs tokens. The secret is wiped when the key is dropped.
#[derive(Clone)]
pub struct TokenKey {
    pub number: i64,
    pub lifetime: KeyLifetime,
    secret: SigningKey,
}

/// The reason that a public key is not usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKeyError {
    /// Number, key or expiry is missing.
    Incomplete,
    /// The bytes are no Ed25519 public key.
    NotEd25519,
    /// Another key has this number.
    NumberTaken,
}

impl fmt::Display for TokenKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TokenKeyError::Incomplete => "number, key or expiry is missing",
            TokenKeyError::NotEd25519 => "the bytes are no Ed25519 public key",
            TokenKeyError::NumberTaken => "another key has this number",
        })
    }
}

impl TokenKey {
    /// Creates the key of this seed, which must be 32 secret random bytes.
    pub fn from_seed(number: i64, seed: &[u8; 32], lifetime: KeyLifetime) -> TokenKey {
        TokenKey { number, lifetime, secret: SigningKey::from_bytes(seed) }
    }

    /// Returns the seed, for storage.
    pub fn seed(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(self.secret.to_bytes())
    }

    /// Returns the public part as it is sent to servers.
    pub fn public(&self) -> TokenSigningPublicKeyPb {
        let der = self.secret.verifying_key().to_public_key_der().expect("a public key has a DER form");
        TokenSigningPublicKeyPb {
            key_seq_num: Some(self.number),
            rsa_key_der: Some(Bytes::copy_from_slice(der.as_bytes())),
            expire_unix_epoch_seconds: Some(self.lifetime.expires_s),
        }
    }

    pub(super) fn sign(&self, data: &[u8]) -> Vec<u8> {
        self.secret.sign(data).to_bytes().to_vec()
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenKey {{ number: {}, lifetime: {:?}, secret: <redacted> }}", self.number, self.lifetime)
    }
}

/// A public key that checks tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenPublicKey {
    pub(super) expires_s: i64,
    key: VerifyingKey,
}

impl TokenPublicKey {
    pub(super) fn from_pb(pb: &TokenSigningPublicKeyPb) -> Result<(i64, TokenPublicKey), TokenKeyError> {
        let (Some(number), Some(der), Some(expires_s)) =
            (pb.key_seq_num, &pb.rsa_key_der, pb.expire_unix_epoch_seconds)
        else {
            return Err(TokenKeyError::Incomplete);
        };
        let key = VerifyingKey::from_public_key_der(der).map_err(|_| TokenKeyError::NotEd25519)?;
        Ok((number, TokenPublicKey { expires_s, key }))
    }

    /// Returns true if this key's private part made the signature. Weak keys and non-canonical signatures fail.
    pub(super) fn verifies(&self, data: &[u8], signature: &[u8]) -> bool {
        let Ok(signature) = Signature::from_slice(signature) else { return false };
        self.key.verify_strict(data, &signature).is_ok()
    }
}
