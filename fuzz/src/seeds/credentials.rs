//! Tokens and keys, signed by the signers that the targets trust.

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use prost::Message;

use super::seed::Seed;
use crate::targets::credentials::{JWKS, NOW_S, USER, jwt_secret, privilege, signer};

pub(super) fn seeds() -> Vec<Seed> {
    let signer = signer();
    let authn = signer.authn(USER, NOW_S).expect("a key");
    let authz = signer.authz(USER, privilege(), NOW_S).expect("a key");
    let keys = signer.public_keys(-1);
    vec![
        seed("signed_token", "authentication", authn.encode_to_vec()),
        seed("signed_token", "authorization", authz.encode_to_vec()),
        seed("token_key", "own", keys[0].encode_to_vec()),
        seed("jwt", "user", json_web_token().into_bytes()),
        seed("jwks", "hmac-and-rsa", JWKS.as_bytes().to_vec()),
    ]
}

fn seed(target: &'static str, name: &str, bytes: Vec<u8>) -> Seed {
    (target, name.to_string(), bytes)
}

/// Returns a valid JSON Web Token of [`USER`].
fn json_web_token() -> String {
    let header = Header { kid: Some("1".to_string()), ..Header::new(Algorithm::HS256) };
    let claims = std::collections::BTreeMap::from([("sub", USER)]);
    jsonwebtoken::encode(&header, &claims, &EncodingKey::from_secret(jwt_secret())).expect("it signs")
}
