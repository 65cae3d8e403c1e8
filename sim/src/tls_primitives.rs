//! Primitives of TLS whose secrets come from a machine's seed: X25519, and ECDSA with nonces derived from the message.
//!
//! ```text
//!   production   keys of key exchanges, nonces ◀── operating system
//!   simulated    keys of key exchanges ◀── Machine::next_u64    nonces ◀── key and message (RFC 6979)
//! ```
//!
//! The protocol, the suites and the verification stay the library's. Equal seeds give equal bytes on every connection.

use std::fmt;
use std::sync::Arc;

use curve25519_dalek::MontgomeryPoint;
use nyala_common::env::{Rng as _, TlsPrimitives};
use p256::ecdsa::DerSignature;
use p256::ecdsa::signature::Signer as _;
use p256::pkcs8::DecodePrivateKey;
use rustls::crypto::{ActiveKeyExchange, KeyProvider, SharedSecret, SupportedKxGroup};
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, NamedGroup, PeerMisbehaved, SignatureAlgorithm, SignatureScheme};

use crate::machine::Machine;

/// Returns the primitives of a machine. The library keeps them for the lifetime of the process, which is one run.
pub(crate) fn tls_primitives(machine: &Arc<Machine>) -> TlsPrimitives {
    let group: &'static SeededX25519 = Box::leak(Box::new(SeededX25519(machine.clone())));
    TlsPrimitives { kx_groups: vec![group], key_provider: &P256Keys }
}

/// X25519 with secrets of a machine.
struct SeededX25519(Arc<Machine>);

impl fmt::Debug for SeededX25519 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SeededX25519")
    }
}

impl SupportedKxGroup for SeededX25519 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let mut secret = [0; 32];
        secret.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&self.0.next_u64().to_le_bytes()));
        let public = MontgomeryPoint::mul_base_clamped(secret).to_bytes();
        Ok(Box::new(X25519Exchange { secret, public }))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

struct X25519Exchange {
    secret: [u8; 32],
    public: [u8; 32],
}

impl ActiveKeyExchange for X25519Exchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        let peer: [u8; 32] = peer.try_into().map_err(|_| PeerMisbehaved::InvalidKeyShare)?;
        let shared = MontgomeryPoint(peer).mul_clamped(self.secret).to_bytes();
        if shared == [0; 32] {
            return Err(PeerMisbehaved::InvalidKeyShare.into());
        }
        Ok(SharedSecret::from(&shared[..]))
    }

    fn pub_key(&self) -> &[u8] {
        &self.public
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

/// Loader of P-256 keys, the only ones that nyala makes.
#[derive(Debug)]
struct P256Keys;

impl KeyProvider for P256Keys {
    fn load_private_key(&self, der: PrivateKeyDer<'static>) -> Result<Arc<dyn SigningKey>, Error> {
        let key = p256::ecdsa::SigningKey::from_pkcs8_der(der.secret_der());
        let key = key.map_err(|error| Error::General(format!("private key: not of P-256 ({error})")))?;
        Ok(Arc::new(P256Key(key)))
    }
}

/// A private key of P-256 whose signatures need no random number.
#[derive(Debug, Clone)]
struct P256Key(p256::ecdsa::SigningKey);

impl SigningKey for P256Key {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let can = offered.contains(&SignatureScheme::ECDSA_NISTP256_SHA256);
        can.then(|| Box::new(self.clone()) as Box<dyn Signer>)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }
}

impl Signer for P256Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let signature: DerSignature = self.0.sign(message);
        Ok(signature.as_bytes().to_vec())
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ECDSA_NISTP256_SHA256
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_log::EventLog;

    fn machine(seed: u64) -> Arc<Machine> {
        Arc::new(Machine::new("m0", seed, EventLog::new(false)))
    }

    fn start(machine: &Arc<Machine>) -> Box<dyn ActiveKeyExchange> {
        tls_primitives(machine).kx_groups[0].start().expect("it draws a key")
    }

    #[test]
    fn equal_seeds_give_equal_keys() {
        assert_eq!(start(&machine(1)).pub_key(), start(&machine(1)).pub_key());
        assert_ne!(start(&machine(1)).pub_key(), start(&machine(2)).pub_key());
        let again = machine(1);
        assert_ne!(start(&again).pub_key(), start(&again).pub_key(), "each exchange has a key of its own");
    }

    #[test]
    fn the_library_agrees_on_the_secret() {
        let (seeded, library) = (start(&machine(1)), rustls::crypto::ring::kx_group::X25519.start().unwrap());
        let (ours, theirs) = (seeded.pub_key().to_vec(), library.pub_key().to_vec());
        let secrets = [seeded.complete(&theirs).unwrap(), library.complete(&ours).unwrap()];
        assert_eq!(secrets[0].secret_bytes(), secrets[1].secret_bytes());
        assert!(start(&machine(1)).complete(&[0; 32]).is_err(), "a point of small order");
        assert!(start(&machine(1)).complete(&[9; 31]).is_err());
    }
}
