//! Hash of a server's certificate that binds another authentication to the TLS connection (RFC 5929,
//! tls-server-end-point).

use ring::digest::{Algorithm, SHA256, SHA384, SHA512, digest};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Signature algorithms by object identifier, and the hash of their certificates: their own, but SHA-256 instead of MD5
/// and SHA-1.
const HASHES: [(&str, &Algorithm); 9] = [
    ("1.2.840.113549.1.1.4", &SHA256),
    ("1.2.840.113549.1.1.5", &SHA256),
    ("1.2.840.113549.1.1.11", &SHA256),
    ("1.2.840.113549.1.1.12", &SHA384),
    ("1.2.840.113549.1.1.13", &SHA512),
    ("1.2.840.10045.4.1", &SHA256),
    ("1.2.840.10045.4.3.2", &SHA256),
    ("1.2.840.10045.4.3.3", &SHA384),
    ("1.2.840.10045.4.3.4", &SHA512),
];

/// Returns the hash of a DER certificate. Fails if its signature has no single hash, as that of Ed25519.
pub fn server_end_point(der: &[u8]) -> Result<Vec<u8>, String> {
    let (_, certificate) =
        X509Certificate::from_der(der).map_err(|error| format!("the certificate is damaged ({error})"))?;
    let algorithm = certificate.signature_algorithm.algorithm.to_id_string();
    match HASHES.iter().find(|(id, _)| *id == algorithm) {
        Some((_, hash)) => Ok(digest(hash, der).as_ref().to_vec()),
        None => Err(format!("signature algorithm {algorithm} has no hash for channel bindings")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(algorithm: &'static rcgen::SignatureAlgorithm) -> Vec<u8> {
        let key = rcgen::KeyPair::generate_for(algorithm).expect("a key");
        rcgen::CertificateParams::default().self_signed(&key).expect("a certificate").der().to_vec()
    }

    #[test]
    fn the_hash_is_that_of_the_certificates_signature() {
        let der = certificate(&rcgen::PKCS_ECDSA_P256_SHA256);
        assert_eq!(server_end_point(&der).expect("a hash"), digest(&SHA256, &der).as_ref());
        let der = certificate(&rcgen::PKCS_ECDSA_P384_SHA384);
        assert_eq!(server_end_point(&der).expect("a hash"), digest(&SHA384, &der).as_ref());
        let fault = server_end_point(&certificate(&rcgen::PKCS_ED25519)).expect_err("no single hash");
        assert!(fault.contains("1.3.101.112"), "{fault}");
        assert!(server_end_point(b"no certificate").is_err());
    }
}
