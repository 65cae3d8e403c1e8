//! Credentials that a client presents before it has proved anything: tokens, JSON Web Tokens, and keys behind them.

use std::sync::LazyLock;

use engine::time::WallTime;
use nyala_common::security::token::{TokenConfig, TokenKey, TokenSigner, TokenVerifier};
use nyala_common::security::{JwtKeySet, JwtTokenVerifier};
use nyala_proto::kudu::security::{SignedTokenPb, TablePrivilegePb, TokenSigningPublicKeyPb};
use prost::Message;

/// User of every token that [`signer`] and [`jwt_secret`] sign for the seeds.
pub const USER: &str = "ann";
/// Table of the authorization token among the seeds.
pub const TABLE: &str = "0123";
/// Time of signing, in seconds since 1970.
pub const NOW_S: i64 = 1_700_000_000;

/// Returns the signer that the verifier of the targets trusts.
pub fn signer() -> TokenSigner {
    let config = TokenConfig::default();
    let key = TokenKey::from_seed(0, &[1; 32], config.lifetime(NOW_S));
    TokenSigner::new(config, [key])
}

/// Returns the privileges in the authorization token among the seeds.
pub fn privilege() -> TablePrivilegePb {
    TablePrivilegePb {
        table_id: Some(TABLE.to_string()),
        scan_privilege: Some(true),
        ..TablePrivilegePb::default()
    }
}

/// Returns the secret behind the key of the target `jwt`.
pub fn jwt_secret() -> &'static [u8] {
    b"a secret of the issuer"
}

/// Key set of [`jwt_secret`] and of an RSA key whose private part is not here.
pub const JWKS: &str = concat!(
    r#"{"keys":[{"kty":"oct","kid":"1","alg":"HS256","k":"YSBzZWNyZXQgb2YgdGhlIGlzc3Vlcg"},"#,
    r#"{"kty":"RSA","kid":"2","alg":"RS256","e":"AQAB","n":""#,
    "sXchDaQebHnPiGvyDOAT4saGEUetSyo9MKLOoWFsueri23bOdgWp4Dy1WlUzewbgBHod5pcM9H95GQRV3JDXboIRROSBigeC5yjU",
    "1hGzHHyXss8UDprecbAYxknTcQkhslANGRUZmdTOQ5qTRsLAt6BTYuyvVRdhS8exSZEy_c4gs_7svlJJQ4H9_NxsiIoLwAEk7-Q3",
    "UXERGYw_75IDrGA84-lA_-Ct4eTlXHBIY2EaV7t7LjJaynVJCpkv4LKjTTAumiGUIuQhrNhZLuF_RJLqHpM2kgWFLU7-VTdL1VbC",
    "2tejvcI2BlMkEpk1BzBZI0KQB0GaDWFLN-aEAw3vRw",
    r#""}]}"#,
);

static VERIFIER: LazyLock<TokenVerifier> = LazyLock::new(|| {
    let mut verifier = TokenVerifier::default();
    assert_eq!(verifier.import(&signer().public_keys(-1), NOW_S), [], "the signer's own key");
    verifier
});

static JWT_KEYS: LazyLock<JwtKeySet> =
    LazyLock::new(|| JwtKeySet::parse(JWKS.as_bytes(), "keys.json").expect("a key set"));

/// Checks a token: only content that the signer signed passes, and a token that has expired stays refused.
pub(super) fn signed_token(data: &[u8]) {
    let Ok(token) = SignedTokenPb::decode(data) else { return };
    let authn = VERIFIER.verify_authn(&token, NOW_S);
    let authz = VERIFIER.verify_authz(&token, NOW_S);
    if let Ok(user) = &authn {
        assert_eq!(user, USER, "a forged user");
        assert_eq!(authz, Ok(None), "an authentication token is no authorization token");
    }
    if let Ok(Some(content)) = &authz {
        assert_eq!(content.username.as_deref(), Some(USER), "a forged user");
        assert_eq!(content.table_privilege, Some(privilege()), "a forged privilege");
        assert!(authn.is_err(), "an authorization token does not authenticate");
    }
    if VERIFIER.verify(&token, NOW_S).is_err() {
        assert!(VERIFIER.verify(&token, NOW_S + 1).is_err(), "a token became valid by age");
    }
    assert!(VERIFIER.verify(&token, i64::MAX).is_err(), "a token without an end");
}

/// Checks a public key of a master: no key takes the number of another, so tokens signed before stay valid.
pub(super) fn token_key(data: &[u8]) {
    let Ok(key) = TokenSigningPublicKeyPb::decode(data) else { return };
    let mut verifier = VERIFIER.clone();
    let rejected = verifier.import(std::slice::from_ref(&key), NOW_S);
    assert!(rejected.is_empty() || verifier.latest() == 0, "a rejected key is not kept");
    let token = signer().authn(USER, NOW_S).expect("a key");
    let user = verifier.verify_authn(&token, NOW_S);
    assert_eq!(user.as_deref(), Ok(USER), "another key took the number 0");
}

fn now() -> WallTime {
    WallTime { micros: NOW_S as u64 * 1_000_000, error_micros: 0 }
}

/// Checks a JSON Web Token: without the secret it proves no other user than that of the seeds.
pub(super) fn jwt(data: &[u8]) {
    match JWT_KEYS.verify(data, now()) {
        Ok(user) => assert_eq!(user, USER, "a forged user"),
        Err(why) => assert!(!why.is_empty(), "a refusal without a reason"),
    }
}

/// Checks a key set: none of its keys accepts a token without a signature.
pub(super) fn jwks(data: &[u8]) {
    /// Headers with the algorithms `none`, `HS256` and `RS256`; the claims are `{"sub":"root"}`.
    const UNSIGNED: [&str; 4] = [
        "eyJhbGciOiJub25lIn0.eyJzdWIiOiJyb290In0.",
        "eyJhbGciOiJub25lIn0.eyJzdWIiOiJyb290In0.AA",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJyb290In0.AA",
        "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJyb290In0.AA",
    ];
    match JwtKeySet::parse(data, "keys.json") {
        Ok(keys) => {
            for token in UNSIGNED {
                assert!(keys.verify(token.as_bytes(), now()).is_err(), "an unsigned token is accepted");
            }
        }
        Err(error) => assert!(error.message.starts_with("keys.json: "), "{}", error.message),
    }
}
