//! Parsers of requests and certificates, which come from other servers.

use std::fmt;

use engine::error::{Error, Result};
use p256::ecdsa::signature::Verifier;
use p256::ecdsa::{DerSignature, VerifyingKey};
use rcgen::{PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm};
use x509_parser::asn1_rs::{Oid, oid};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::{SubjectPublicKeyInfo, X509Name};

/// UID attribute of a subject: the user that a server acts as.
const UID: Oid<'static> = oid!(0.9.2342.19200300.100.1.1);
const EC_PUBLIC_KEY: Oid<'static> = oid!(1.2.840.10045.2.1);
const P256: Oid<'static> = oid!(1.2.840.10045.3.1.7);
const ECDSA_SHA256: Oid<'static> = oid!(1.2.840.10045.4.3.2);
/// Bytes of an uncompressed point.
const POINT_BYTES: usize = 65;

pub(super) fn pki_error(what: &str, why: impl fmt::Display) -> Error {
    Error::invalid(format!("{what}: {why}"))
}

/// A checked request of a server for a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertRequest {
    /// User that the server acts as, from the subject.
    pub user: String,
    /// Host name of the server, if it named one.
    pub host: Option<String>,
    pub(super) public: RequestedKey,
}

/// Public key in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestedKey(Vec<u8>);

impl PublicKeyData for RequestedKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl CertRequest {
    /// Parses a request (PKCS#10) and checks that its sender has the private key.
    pub fn parse(der: &[u8]) -> Result<CertRequest> {
        let (rest, request) = X509CertificationRequest::from_der(der)
            .map_err(|error| pki_error("invalid CSR: the request cannot be decoded", error))?;
        if !rest.is_empty() {
            return Err(pki_error("invalid CSR", "bytes follow the request"));
        }
        let info = &request.certification_request_info;
        let public = p256_point(&info.subject_pki)?;
        let key = VerifyingKey::from_sec1_bytes(&public)
            .map_err(|error| pki_error("invalid CSR: the public key is not on the curve", error))?;
        let signature = DerSignature::from_bytes(request.signature_value.as_ref())
            .map_err(|error| pki_error("invalid CSR: the signature cannot be decoded", error))?;
        if request.signature_algorithm.algorithm != ECDSA_SHA256 || key.verify(info.raw, &signature).is_err()
        {
            return Err(pki_error("invalid CSR", "its own key did not sign the request"));
        }
        let user = subject_user(&info.subject)
            .ok_or_else(|| pki_error("invalid CSR", "CSR did not contain a username"))?;
        Ok(CertRequest { user, host: requested_host(&request), public: RequestedKey(public) })
    }

    /// Fails unless the request names the user of the connection that it came by.
    pub fn check_user(&self, user: &str) -> Result<()> {
        if self.user == user {
            return Ok(());
        }
        let found =
            format!("CSR did not contain expected username: expected '{user}', found {:?}", self.user);
        Err(pki_error("invalid CSR", found))
    }
}

fn p256_point(key: &SubjectPublicKeyInfo<'_>) -> Result<Vec<u8>> {
    let parameters = key.algorithm.parameters.as_ref().and_then(|any| any.as_oid().ok());
    let point = key.subject_public_key.as_ref();
    if key.algorithm.algorithm != EC_PUBLIC_KEY || parameters != Some(P256) || point.len() != POINT_BYTES {
        return Err(pki_error("invalid CSR", "the public key is not of the curve P-256"));
    }
    Ok(point.to_vec())
}

fn requested_host(request: &X509CertificationRequest<'_>) -> Option<String> {
    request.requested_extensions()?.find_map(|extension| match extension {
        ParsedExtension::SubjectAlternativeName(names) => names.general_names.iter().find_map(dns_name),
        _ => None,
    })
}

fn dns_name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_string()),
        _ => None,
    }
}

/// Returns the only UID of a subject.
fn subject_user(subject: &X509Name<'_>) -> Option<String> {
    let mut users = subject.iter_by_oid(&UID);
    let user = users.next()?.as_str().ok()?.to_string();
    (users.next().is_none() && !user.is_empty()).then_some(user)
}

/// Returns the user that a server with this certificate acts as, `None` if it names none.
///
/// The caller has verified that the certificate chains to a trusted CA.
pub fn certificate_user(der: &[u8]) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    subject_user(certificate.subject())
}
