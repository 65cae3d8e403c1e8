//! Handshakes between two holders of credentials, without a network.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};

use super::*;
use crate::env::{Env, mem_net};
use crate::security::pki::certificate_user;
use std::sync::Arc;

/// A certificate authority of a test.
pub(crate) struct TestCa {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) der: Vec<u8>,
}

impl TestCa {
    pub(crate) fn new() -> TestCa {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        let mut name = DistinguishedName::new();
        name.push(DnType::CommonName, "kudu-ipki-ca");
        params.distinguished_name = name;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let der = params.self_signed(&key).expect("a certificate").der().to_vec();
        TestCa { issuer: Issuer::new(params, key), der }
    }

    /// Returns a key and a certificate for `user`, signed by this CA. An empty user is not named.
    pub(crate) fn sign(&self, user: &str) -> OwnCertificate {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["host".to_string()]).expect("parameters");
        let mut name = DistinguishedName::new();
        if !user.is_empty() {
            name.push(DnType::from_oid(&[0, 9, 2342, 19_200_300, 100, 1, 1]), user);
        }
        params.distinguished_name = name;
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let der = params.signed_by(&key, &self.issuer).expect("a certificate").der().to_vec();
        let key = PrivateKey::from_pkcs8_der(key.serialize_der());
        OwnCertificate { key, chain: vec![der], origin: CertificateOrigin::ClusterCa }
    }
}

/// Returns credentials of a server of `user` whose certificate `ca` signed.
pub(crate) fn signed_server(env: &Env, ca: &TestCa, user: &str) -> Arc<TlsCredentials> {
    let credentials = TlsCredentials::new(env, TlsSettings::default()).expect("credentials");
    credentials.trust(ca.der.clone()).expect("a CA");
    credentials.set_own(ca.sign(user)).expect("a certificate");
    credentials
}

fn credentials(env: &Env, settings: TlsSettings) -> Arc<TlsCredentials> {
    TlsCredentials::new(env, settings).expect("credentials")
}

/// Runs a handshake. Returns its number of flights, or the first error.
fn handshake(client: &mut TlsSession, server: &mut TlsSession) -> Result<usize, String> {
    let mut flights = 1;
    let mut to_server = client.first_flight();
    loop {
        let to_client = match server.on_flight(&to_server)? {
            TlsFlight::Continue(bytes) => bytes,
            TlsFlight::Done(bytes) if bytes.is_empty() => return Ok(flights),
            TlsFlight::Done(bytes) => bytes,
        };
        flights += 1;
        to_server = match client.on_flight(&to_client)? {
            TlsFlight::Done(bytes) if bytes.is_empty() => return Ok(flights),
            TlsFlight::Continue(bytes) | TlsFlight::Done(bytes) => bytes,
        };
        flights += 1;
    }
}

fn only(version: &str) -> TlsSettings {
    let other = if version == "TLSv1.2" { "TLSv1.3" } else { "TLSv1.2" };
    TlsSettings::parse("rpc", "", &[other.to_string()], "", "").expect("settings")
}

#[tokio::test]
async fn each_version_takes_the_flights_that_clients_expect() {
    let (env, ca) = (mem_net::env(), TestCa::new());
    for (version, flights, description) in [
        ("TLSv1.2", 4, "TLSv1_2 TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
        ("TLSv1.3", 3, "TLSv1_3 TLS13_AES_128_GCM_SHA256"),
    ] {
        let server = signed_server(&env, &ca, "kudu");
        let client = credentials(&env, only(version));
        client.trust(ca.der.clone()).expect("a CA");
        let mut server = server.server_session(false).expect("a session");
        let mut client = client.client_session(true).expect("a session");
        assert_eq!(handshake(&mut client, &mut server), Ok(flights), "{version}");
        assert_eq!(client.description(), description);
        assert_eq!(server.description(), description);
    }
}

#[tokio::test]
async fn versions_without_overlap_fail() {
    let env = mem_net::env();
    let server = credentials(&env, only("TLSv1.3"));
    server
        .set_own(OwnCertificate::self_signed(&env, "kudu", "host").expect("a certificate"))
        .expect("it fits");
    let mut server = server.server_session(false).expect("a session");
    let mut client = credentials(&env, only("TLSv1.2")).client_session(false).expect("a session");
    assert!(handshake(&mut client, &mut server).is_err());
}

#[tokio::test]
async fn a_client_accepts_its_own_ca_only() {
    let (env, ca, other) = (mem_net::env(), TestCa::new(), TestCa::new());
    let client = credentials(&env, TlsSettings::default());
    assert!(client.client_session(true).is_none(), "nothing is trusted yet");
    client.trust(other.der.clone()).expect("a CA");
    let server = signed_server(&env, &ca, "kudu");
    let attempt = |verified| {
        let mut server = server.server_session(false).expect("a session");
        handshake(&mut client.client_session(verified).expect("a session"), &mut server)
    };
    assert!(attempt(true).expect_err("another CA").starts_with("invalid peer certificate"));
    assert!(attempt(false).is_ok(), "SASL clients do not look at the chain");
    client.trust(ca.der.clone()).expect("a CA");
    assert!(attempt(true).is_ok(), "trust is added, not replaced");
}

#[tokio::test]
async fn a_server_accepts_clients_of_its_ca_only() {
    let (env, ca, other) = (mem_net::env(), TestCa::new(), TestCa::new());
    let server = signed_server(&env, &ca, "kudu");
    let attempt = |client: &TlsCredentials| {
        let mut server = server.server_session(true).expect("a session");
        handshake(&mut client.client_session(true).expect("a session"), &mut server)?;
        Ok::<_, String>(certificate_user(&server.peer_certificate().expect("a certificate")).expect("a user"))
    };
    assert_eq!(attempt(&signed_server(&env, &ca, "tserver")).as_deref(), Ok("tserver"));
    let stranger = signed_server(&env, &other, "kudu");
    stranger.trust(ca.der.clone()).expect("a CA");
    assert!(attempt(&stranger).is_err());
    let unsigned = credentials(&env, TlsSettings::default());
    unsigned.trust(ca.der.clone()).expect("a CA");
    assert!(attempt(&unsigned).is_err(), "a client without a certificate");
    unsigned
        .set_own(OwnCertificate::self_signed(&env, "kudu", "host").expect("a certificate"))
        .expect("it fits");
    assert!(attempt(&unsigned).is_err(), "a certificate of its own making");
}

#[tokio::test]
async fn every_truncation_of_a_flight_is_an_error() {
    let (env, ca) = (mem_net::env(), TestCa::new());
    let server = signed_server(&env, &ca, "kudu");
    let client = credentials(&env, TlsSettings::default());
    let hello = client.client_session(false).expect("a session").first_flight();
    for end in 1..hello.len() {
        let mut server = server.server_session(false).expect("a session");
        assert!(server.on_flight(&hello[..end]).is_err(), "{end} of {} bytes", hello.len());
    }
    let mut garbled = server.server_session(false).expect("a session");
    assert!(garbled.on_flight(&[0; 512]).is_err());
    let mut doubled = server.server_session(false).expect("a session");
    assert!(doubled.on_flight(&[hello.clone(), hello].concat()).is_err());
}

#[tokio::test]
async fn a_key_must_belong_to_its_certificate() {
    let (env, ca) = (mem_net::env(), TestCa::new());
    let credentials = credentials(&env, TlsSettings::default());
    let (one, two) = (ca.sign("kudu"), ca.sign("kudu"));
    assert!(credentials.set_own(OwnCertificate { key: two.key, ..one.clone() }).is_err());
    assert!(credentials.own().is_none(), "nothing changed");
    assert!(credentials.set_own(OwnCertificate { chain: Vec::new(), ..one.clone() }).is_err());
    assert!(credentials.trust(b"no certificate".to_vec()).is_err());
    credentials.set_own(one).expect("a certificate");
    assert!(credentials.is_ca_signed());
}

#[test]
fn settings_name_versions_and_suites() {
    let parse = |min: &str, excluded: &[&str], ciphers: &str, suites: &str| {
        let excluded: Vec<String> = excluded.iter().map(|text| text.to_string()).collect();
        TlsSettings::parse("rpc", min, &excluded, ciphers, suites).map_err(|error| error.message)
    };
    assert_eq!(parse("", &[], "", ""), Ok(TlsSettings::default()));
    assert_eq!(parse("tlsv1", &["TLSv1"], "", ""), Ok(TlsSettings::default()), "1.2 is the lowest there is");
    let newest = parse("TLSv1.3", &[], "", "TLS_AES_256_GCM_SHA384").expect("settings");
    assert_eq!((newest.versions.len(), newest.suites.len()), (1, 1));
    let older = parse("", &["TLSv1.3"], "ECDHE-RSA-AES128-SHA256:ECDHE-RSA-AES128-GCM-SHA256", "");
    assert_eq!(
        older.expect("settings").suites.len(),
        1,
        "a suite without authenticated encryption is skipped"
    );
    let error = |min, excluded: &[&str], ciphers, suites| {
        parse(min, excluded, ciphers, suites).expect_err("an error")
    };
    assert!(error("SSLv3", &[], "", "").starts_with("rpc_tls_min_protocol: unknown version"));
    assert!(error("", &["TLSv1.2", "TLSv1.3"], "", "").starts_with("rpc_tls_excluded_protocols: no version"));
    assert!(
        error("", &[], "HIGH:!aNULL", "").starts_with("rpc_tls_ciphers: unknown cipher suite (\"HIGH\")")
    );
    assert!(error("", &[], "ECDHE-RSA-AES128-SHA256", "").contains("no usable cipher suite"));
    assert!(error("", &[], "", "TLS_AES_128_CCM_SHA256").starts_with("rpc_tls_ciphersuites: unknown"));
}
