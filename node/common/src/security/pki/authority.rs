//! The certification authority, and the certificates it signs.

use std::fmt;
use std::time::Duration;

use engine::error::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyIdMethod, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber,
};
use time::OffsetDateTime;

use super::ecdsa_key::EcdsaKey;
use super::parse::{CertRequest, pki_error};

/// Common name of the CA, as in Kudu.
const CA_NAME: &str = "kudu-ipki-ca";
/// UID attribute of a subject.
const UID: [u64; 7] = [0, 9, 2342, 19_200_300, 100, 1, 1];
/// Time before now from which a certificate is valid: clocks of servers differ.
const CLOCK_ALLOWANCE: Duration = Duration::from_secs(24 * 3600);
/// Validity of the certificate that a server makes itself at its start.
const SELF_SIGNED_VALIDITY: Duration = Duration::from_secs(24 * 3600);
/// Bytes of a serial number; Kudu's are of this size.
const SERIAL_BYTES: usize = 8;

/// Time at which a certificate is made, and its validity from then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CertValidity {
    /// Seconds since 1970.
    pub now_s: i64,
    pub lasts: Duration,
}

/// The cluster's CA.
#[derive(Clone)]
pub struct CertAuthority {
    key: EcdsaKey,
    der: Vec<u8>,
}

impl fmt::Debug for CertAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CertAuthority {{ certificate: {} bytes, key: <redacted> }}", self.der.len())
    }
}

impl CertAuthority {
    /// Creates a CA with a self-signed certificate.
    pub fn create(key: EcdsaKey, serial: u64, validity: CertValidity) -> Result<CertAuthority> {
        let params = authority_params(&key, serial, validity)?;
        let certificate = params.self_signed(&key).map_err(|error| pki_error("CA certificate", error))?;
        let der = certificate.der().to_vec();
        Ok(CertAuthority { key, der })
    }

    /// Returns the stored CA with this key and certificate.
    pub fn from_parts(key: EcdsaKey, der: Vec<u8>) -> CertAuthority {
        CertAuthority { key, der }
    }

    pub fn certificate_der(&self) -> &[u8] {
        &self.der
    }

    /// Returns the private key's secret number, for storage.
    pub fn secret(&self) -> zeroize::Zeroizing<Vec<u8>> {
        self.key.secret()
    }

    /// Signs a request. Only the user and the host name come from it: a server chooses neither usages nor validity.
    pub fn sign(&self, request: &CertRequest, serial: u64, validity: CertValidity) -> Result<Vec<u8>> {
        let mut params = server_params(&request.user, request.host.as_deref())?;
        params.is_ca = IsCa::ExplicitNoCa;
        set_validity(&mut params, serial, validity)?;
        let issuer_params = authority_params(&self.key, serial, validity)?;
        let issuer = Issuer::from_params(&issuer_params, &self.key);
        let certificate = params.signed_by(&request.public, &issuer);
        Ok(certificate.map_err(|error| pki_error("server certificate", error))?.der().to_vec())
    }
}

impl EcdsaKey {
    /// Returns a request (PKCS#10) for a certificate of a server that acts as `user` on `host`.
    pub fn request(&self, user: &str, host: Option<&str>) -> Result<Vec<u8>> {
        let request = server_params(user, host)?.serialize_request(self);
        Ok(request.map_err(|error| pki_error("certificate request", error))?.der().to_vec())
    }
}

/// Returns a server's certificate signed by its own key. It serves until the CA has signed one.
pub fn self_signed(
    key: &EcdsaKey,
    user: &str,
    host: Option<&str>,
    serial: u64,
    now_s: i64,
) -> Result<Vec<u8>> {
    let mut params = server_params(user, host)?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages.push(KeyUsagePurpose::KeyCertSign);
    set_validity(&mut params, serial, CertValidity { now_s, lasts: SELF_SIGNED_VALIDITY })?;
    let certificate = params.self_signed(key).map_err(|error| pki_error("server certificate", error))?;
    Ok(certificate.der().to_vec())
}

fn authority_params(key: &EcdsaKey, serial: u64, validity: CertValidity) -> Result<CertificateParams> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, CA_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    // The last bytes of the public point: any bytes that differ between keys may be the id.
    let point = key.der_bytes();
    params.key_identifier_method = KeyIdMethod::PreSpecified(point[point.len() - 20..].to_vec());
    set_validity(&mut params, serial, validity)?;
    Ok(params)
}

fn server_params(user: &str, host: Option<&str>) -> Result<CertificateParams> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CustomDnType(UID.to_vec()), user);
    if let Some(host) = host {
        let name = host.to_string().try_into().map_err(|error| pki_error("host name", error))?;
        params.subject_alt_names = vec![SanType::DnsName(name)];
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    Ok(params)
}

fn set_validity(params: &mut CertificateParams, serial: u64, validity: CertValidity) -> Result<()> {
    let time = |seconds: i64| {
        OffsetDateTime::from_unix_timestamp(seconds).map_err(|error| pki_error("certificate", error))
    };
    let lasts = i64::try_from(validity.lasts.as_secs()).unwrap_or(i64::MAX);
    params.not_before = time(validity.now_s.saturating_sub(CLOCK_ALLOWANCE.as_secs() as i64))?;
    params.not_after = time(validity.now_s.saturating_add(lasts))?;
    // A serial number is positive: the highest bit is clear.
    let bytes = (serial >> 1).max(1).to_be_bytes();
    params.serial_number = Some(SerialNumber::from_slice(&bytes[..SERIAL_BYTES]));
    Ok(())
}
