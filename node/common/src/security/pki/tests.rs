use std::time::Duration;

use p256::ecdsa::signature::Verifier;
use p256::ecdsa::{DerSignature, VerifyingKey};
use rcgen::PublicKeyData;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::*;

const NOW: i64 = 1_750_000_000;
const TEN_YEARS: CertValidity = CertValidity { now_s: NOW, lasts: Duration::from_secs(315_360_000) };

fn key(byte: u8) -> EcdsaKey {
    EcdsaKey::from_secret(&[byte; 32]).expect("a small number")
}

fn authority() -> CertAuthority {
    CertAuthority::create(key(1), 0x1234_5678_9abc_def0, TEN_YEARS).expect("a CA")
}

/// Returns true if `issuer` signed the certificate.
fn signed_by(der: &[u8], issuer: &EcdsaKey) -> bool {
    let (_, certificate) = X509Certificate::from_der(der).expect("a certificate");
    let key = VerifyingKey::from_sec1_bytes(issuer.der_bytes()).expect("a point");
    let signature = DerSignature::from_bytes(certificate.signature_value.as_ref()).expect("a signature");
    key.verify(certificate.tbs_certificate.as_ref(), &signature).is_ok()
}

#[test]
fn a_request_is_checked_and_signed() {
    let ca = authority();
    let csr = key(2).request("kudu", Some("ts-1.example")).expect("a request");
    let request = CertRequest::parse(&csr).expect("well formed");
    assert_eq!((request.user.as_str(), request.host.as_deref()), ("kudu", Some("ts-1.example")));
    request.check_user("kudu").expect("the connection's user");
    let der = ca.sign(&request, 7, TEN_YEARS).expect("a certificate");
    assert!(signed_by(&der, &key(1)) && !signed_by(&der, &key(2)));
    assert_eq!(certificate_user(&der).as_deref(), Some("kudu"));
    let (_, certificate) = X509Certificate::from_der(&der).expect("a certificate");
    let (_, issuer) = X509Certificate::from_der(ca.certificate_der()).expect("a certificate");
    assert_eq!(certificate.issuer(), issuer.subject());
    assert!(issuer.is_ca() && !certificate.is_ca());
    assert_eq!(issuer.subject().to_string(), "CN=kudu-ipki-ca");
    assert_eq!(certificate.public_key().subject_public_key.as_ref(), key(2).der_bytes());
    assert_eq!(certificate.validity().not_after.timestamp(), NOW + 315_360_000);
    assert!(certificate.validity().not_before.timestamp() < NOW, "servers' clocks differ");
}

#[test]
fn equal_inputs_give_equal_certificates() {
    assert_eq!(authority().certificate_der(), authority().certificate_der());
    let other = CertAuthority::create(key(1), 5, TEN_YEARS).expect("a CA");
    assert_ne!(authority().certificate_der(), other.certificate_der(), "another serial number");
}

#[test]
fn a_stored_authority_signs_as_before() {
    let ca = authority();
    let secret: [u8; 32] = ca.secret().as_slice().try_into().expect("32 bytes");
    let again = CertAuthority::from_parts(
        EcdsaKey::from_secret(&secret).expect("a key"),
        ca.certificate_der().to_vec(),
    );
    let request = CertRequest::parse(&key(2).request("kudu", None).expect("a request")).expect("well formed");
    assert_eq!(
        ca.sign(&request, 1, TEN_YEARS).expect("signed"),
        again.sign(&request, 1, TEN_YEARS).expect("signed")
    );
}

#[test]
fn a_request_of_another_user_is_refused() {
    let request =
        CertRequest::parse(&key(2).request("mallory", None).expect("a request")).expect("well formed");
    let error = request.check_user("kudu").expect_err("another user").to_string();
    assert!(error.contains("invalid CSR: CSR did not contain expected username"), "{error}");
}

#[test]
fn every_changed_bit_of_a_request_is_noticed() {
    let csr = key(2).request("kudu", Some("host")).expect("a request");
    let checked = CertRequest::parse(&csr).expect("well formed");
    for bit in 0..csr.len() * 8 {
        let mut forged = csr.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        // Some bits of the encoding carry nothing. What such a request says is unchanged.
        if let Ok(request) = CertRequest::parse(&forged) {
            assert_eq!(request, checked, "bit {bit}");
        }
    }
    for end in 0..csr.len() {
        assert!(CertRequest::parse(&csr[..end]).is_err(), "cut at {end}");
    }
    assert!(CertRequest::parse(&[csr.as_slice(), &[0]].concat()).is_err(), "a byte too many");
}

#[test]
fn a_request_cannot_become_a_certificate_of_a_ca() {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa};
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CustomDnType(vec![0, 9, 2342, 19_200_300, 100, 1, 1]), "kudu");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let csr = params.serialize_request(&key(3)).expect("a request").der().to_vec();
    let request = CertRequest::parse(&csr).expect("its extensions are not looked at");
    let der = authority().sign(&request, 1, TEN_YEARS).expect("a certificate");
    assert!(!X509Certificate::from_der(&der).expect("a certificate").1.is_ca());
}

#[test]
fn a_server_signs_its_first_certificate_itself() {
    let der = self_signed(&key(4), "kudu", Some("host"), 9, NOW).expect("a certificate");
    assert!(signed_by(&der, &key(4)));
    let (_, certificate) = X509Certificate::from_der(&der).expect("a certificate");
    assert_eq!(certificate.validity().not_after.timestamp(), NOW + 24 * 3600);
    assert_eq!(certificate_user(&der).as_deref(), Some("kudu"));
    assert_eq!(certificate_user(b"no certificate"), None);
}

#[test]
fn zero_is_no_key_and_keys_are_not_shown() {
    assert!(EcdsaKey::from_secret(&[0; 32]).is_none() && EcdsaKey::from_secret(&[0xff; 32]).is_none());
    assert_eq!(format!("{:?} {:?}", key(7), authority().clone()).matches("redacted").count(), 2);
    assert!(!key(7).pkcs8_der().expect("a key").is_empty());
}
