//! Files of a cluster that believes certificates and JSON Web Tokens only, and such tokens.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nyala_client::security::SecretText;

/// Returns the PEM form of some bytes.
fn pem(label: &str, der: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for (index, chunk) in der.chunks(3).enumerate() {
        let bytes = [chunk[0], *chunk.get(1).unwrap_or(&0), *chunk.get(2).unwrap_or(&0)];
        let bits = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]);
        let digit = |at: usize| char::from(DIGITS[(bits >> (18 - 6 * at)) as usize & 63]);
        text.extend((0..4).map(|at| if at <= chunk.len() { digit(at) } else { '=' }));
        text.push_str(if index % 16 == 15 { "\n" } else { "" });
    }
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

/// A CA that signs certificates.
pub(crate) type Authority = rcgen::Issuer<'static, rcgen::KeyPair>;

/// Writes the certificate of a new CA: `ca.pem`.
pub(crate) fn write_authority(dir: &Path) -> Authority {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut ca = rcgen::CertificateParams::default();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = ca.self_signed(&key).expect("a CA");
    std::fs::write(dir.join("ca.pem"), pem("CERTIFICATE", certificate.der())).expect("a file");
    rcgen::Issuer::new(ca, key)
}

/// Writes a server's certificate that names `user`, if there is one, and its key: `cert.pem`, `key.pem`.
pub(crate) fn write_certificate(dir: &Path, authority: &Authority, user: Option<&str>) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_string()]).expect("a name");
    params.distinguished_name = rcgen::DistinguishedName::new();
    if let Some(user) = user {
        let uid = rcgen::DnType::CustomDnType(vec![0, 9, 2342, 19_200_300, 100, 1, 1]);
        params.distinguished_name.push(uid, user);
    }
    params.extended_key_usages =
        vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&key, authority).expect("a certificate");
    let (certificate, key) =
        (pem("CERTIFICATE", certificate.der()), pem("PRIVATE KEY", &key.serialize_der()));
    std::fs::write(dir.join("cert.pem"), certificate).expect("a file");
    write_secret(&dir.join("key.pem"), &key);
}

/// Writes a file that only its owner can read, as servers demand of secrets.
fn write_secret(path: &Path, text: &str) {
    std::fs::write(path, text).expect("a file");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("the test owns the file");
}

/// Writes a CA, a server's certificate that names the user `kudu`, and a key set with one secret: `ca.pem`, `cert.pem`,
/// `key.pem`, `jwks.json`. Returns the secret.
pub(crate) fn write_files(dir: &Path) -> jsonwebtoken::EncodingKey {
    write_certificate(dir, &write_authority(dir), Some("kudu"));
    let keys = r#"{"keys":[{"kty":"oct","kid":"1","alg":"HS256","k":"YSBzZWNyZXQ"}]}"#;
    write_secret(&dir.join("jwks.json"), keys);
    jsonwebtoken::EncodingKey::from_secret(b"a secret")
}

/// Returns a token for a user.
pub(crate) fn jwt(key: &jsonwebtoken::EncodingKey, subject: &str) -> SecretText {
    let header = jsonwebtoken::Header { kid: Some("1".to_string()), ..jsonwebtoken::Header::default() };
    let claims = serde_json::json!({ "sub": subject });
    SecretText::new(jsonwebtoken::encode(&header, &claims, key).expect("a token"))
}
