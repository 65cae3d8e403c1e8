//! JSON Web Tokens: a key set from a file, and the checks of a token in the order that clients know from Kudu.
//!
//! - Invariant: the key decides on the algorithm, never the token. So `none`, and an HMAC with a public key as its
//!   secret, are refused.
//! - An entry of a set that is no key of signatures, or of an unknown kind, is not used. It spoils no other (RFC 7517
//!   §5): an issuer may add one at any time, and a set that is refused keeps revoked keys in force.
//! - A token that names extensions (`crit`, RFC 7515 §4.1.11) is refused: none is known here.
//! - Issuer and audience are not checked, as in Kudu: a key set must hold only keys of issuers that sign for this
//!   cluster.

use std::str::FromStr;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use engine::error::{Error, Result};
use engine::time::WallTime;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::Deserialize;
use serde_json::Value;

use super::JwtTokenVerifier;
use super::token::seconds;

/// Longest token that is looked at, in bytes.
const TOKEN_BYTES_MAX: usize = 64 << 10;

/// A key with its only algorithm.
struct VerificationKey {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

/// Verifier with a set of keys.
pub struct JwtKeySet {
    keys: Vec<VerificationKey>,
    /// Reasons that entries of the set are not used.
    unused: Vec<String>,
}

/// JSON Web Key Set, whose entries are parsed one by one.
#[derive(Deserialize)]
struct KeySetJson {
    keys: Vec<Value>,
}

/// Claims that are checked.
#[derive(Deserialize)]
struct Claims {
    sub: Option<String>,
    exp: Option<f64>,
    nbf: Option<f64>,
    iat: Option<f64>,
}

impl JwtKeySet {
    /// Parses a JSON Web Key Set. `subject` names its source in errors. At least one key must be usable.
    pub fn parse(json: &[u8], subject: &str) -> Result<JwtKeySet> {
        let set: KeySetJson = serde_json::from_slice(json)
            .map_err(|error| Error::invalid(format!("{subject}: not a JSON Web Key Set ({error})")))?;
        let mut parsed = JwtKeySet { keys: Vec::new(), unused: Vec::new() };
        for entry in &set.keys {
            match key(entry) {
                Ok(key) => parsed.keys.push(key),
                Err(why) => parsed.unused.push(why),
            }
        }
        match (parsed.keys.is_empty(), parsed.unused.first()) {
            (false, _) => Ok(parsed),
            (true, Some(why)) => Err(Error::invalid(format!("{subject}: no usable key: {why}"))),
            (true, None) => {
                Err(Error::invalid(format!("{subject}: the key set is empty; give at least one key")))
            }
        }
    }

    /// Returns the reasons that entries of the set are not used.
    pub fn unused(&self) -> &[String] {
        &self.unused
    }

    /// Returns true if a reader of the set could sign tokens: it has a symmetric key.
    pub fn has_secrets(&self) -> bool {
        self.keys.iter().any(|key| is_hmac(key.algorithm))
    }

    /// Returns the keys that may have signed a token with this header. The error is the text for the client.
    fn candidates(&self, id: Option<&str>, algorithm: Algorithm) -> Result<Vec<&VerificationKey>, String> {
        let unknown = || "Invalid JWK ID in the JWT token".to_string();
        let Some(id) = id else {
            let same = |key: &&VerificationKey| key.algorithm == algorithm;
            let keys: Vec<_> = self.keys.iter().filter(same).collect();
            return if keys.is_empty() { Err(unknown()) } else { Ok(keys) };
        };
        let named = self.keys.iter().find(|key| key.id.as_deref() == Some(id)).ok_or_else(unknown)?;
        if is_hmac(named.algorithm) != is_hmac(algorithm) {
            return Err(unknown());
        }
        if named.algorithm != algorithm {
            let name = |algorithm: Algorithm| format!("{algorithm:?}").to_lowercase();
            let (found, expected) = (name(algorithm), name(named.algorithm));
            return Err(format!("JWT algorithm '{found}' is not matching with JWK algorithm '{expected}'"));
        }
        Ok(vec![named])
    }
}

fn is_hmac(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512)
}

/// Parses an entry of a set, or returns the reason that it is not used.
fn key(entry: &Value) -> Result<VerificationKey, String> {
    let text = |name: &str| entry.get(name).and_then(Value::as_str);
    let shown = text("kid").unwrap_or("without kid");
    if let Some(purpose) = text("use").filter(|purpose| *purpose != "sig") {
        return Err(format!("key {shown:?} is not for signatures (use {purpose:?})"));
    }
    // The library's parser refuses entries with a name of an algorithm that it does not know.
    let algorithm = text("alg")
        .and_then(|name| Algorithm::from_str(name).ok())
        .ok_or_else(|| format!("key {shown:?} names no known algorithm; give its alg, such as RS256"))?;
    if is_hmac(algorithm) && text("k").is_none_or(str::is_empty) {
        return Err(format!("key {shown:?} has no secret, so that everybody could sign with it"));
    }
    let unusable = |why: String| format!("key {shown:?} is not usable ({why})");
    let jwk = Jwk::deserialize(entry).map_err(|error| unusable(error.to_string()))?;
    let key = DecodingKey::from_jwk(&jwk).map_err(|error| unusable(error.to_string()))?;
    Ok(VerificationKey { id: jwk.common.key_id, algorithm, key })
}

impl JwtTokenVerifier for JwtKeySet {
    fn verify(&self, jwt: &[u8], now: WallTime) -> Result<String, String> {
        let malformed = |why: &str| format!("token is not in correct format: {why}");
        let text = std::str::from_utf8(jwt).map_err(|_| malformed("not text"))?;
        if text.len() > TOKEN_BYTES_MAX || text.split('.').count() != 3 {
            return Err(malformed("three parts expected"));
        }
        if text.ends_with('.') {
            return Err("Unsecured JWT".to_string());
        }
        let header = jsonwebtoken::decode_header(text).map_err(|error| malformed(&error.to_string()))?;
        if names_extensions(text) {
            return Err(malformed("extensions of the header (crit) are not known"));
        }
        let keys = self.candidates(header.kid.as_deref(), header.alg)?;
        let mut last = "failed to verify signature".to_string();
        for key in keys {
            match jsonwebtoken::decode::<Claims>(text, &key.key, &validation(key.algorithm)) {
                Ok(token) => return subject(token.claims, now),
                Err(error) => last = reason(error.kind()),
            }
        }
        Err(last)
    }
}

/// Returns true if the header of a token names extensions that a verifier must know.
fn names_extensions(token: &str) -> bool {
    let header = token.split('.').next().unwrap_or_default();
    let json = BASE64_URL_SAFE_NO_PAD.decode(header).unwrap_or_default();
    let header: serde_json::Result<Value> = serde_json::from_slice(&json);
    !header.is_ok_and(|header| header.get("crit").is_none())
}

/// Returns rules that check the signature only: the clock is the environment's, and Kudu checks no audience.
fn validation(algorithm: Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.set_required_spec_claims::<&str>(&[]);
    validation.leeway = 0;
    validation.validate_exp = false;
    validation.validate_nbf = false;
    validation.validate_aud = false;
    validation
}

fn reason(kind: &ErrorKind) -> String {
    match kind {
        ErrorKind::InvalidSignature | ErrorKind::InvalidAlgorithm => "failed to verify signature".to_string(),
        other => format!("token is not in correct format: {other:?}"),
    }
}

/// Returns the user of a token with a valid signature.
fn subject(claims: Claims, now: WallTime) -> Result<String, String> {
    let now = seconds(now) as f64;
    let expired = claims.exp.is_some_and(|expires| expires <= now);
    let early = [claims.nbf, claims.iat].into_iter().flatten().any(|begins| begins > now);
    if expired || early {
        return Err("token expired".to_string());
    }
    claims
        .sub
        .filter(|subject| !subject.is_empty())
        .ok_or_else(|| "token does not include subject".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use jsonwebtoken::{EncodingKey, Header};
    use serde_json::json;

    const SECRET: &[u8] = b"a secret of the issuer";
    const NOW: i64 = 1_700_000_000;
    /// Modulus of the example key of RFC 7517.
    const MODULUS: &str = "sXchDaQebHnPiGvyDOAT4saGEUetSyo9MKLOoWFsueri23bOdgWp4Dy1WlUzewbgBHod5pcM9H95GQRV3JDXboIRRO\
        SBigeC5yjU1hGzHHyXss8UDprecbAYxknTcQkhslANGRUZmdTOQ5qTRsLAt6BTYuyvVRdhS8exSZEy_c4gs_7svlJJ\
        Q4H9_NxsiIoLwAEk7-Q3UXERGYw_75IDrGA84-lA_-Ct4eTlXHBIY2EaV7t7LjJaynVJCpkv4LKjTTAumiGUIuQhrN\
        hZLuF_RJLqHpM2kgWFLU7-VTdL1VbC2tejvcI2BlMkEpk1BzBZI0KQB0GaDWFLN-aEAw3vRw";

    /// Returns a set with an HMAC key and an RSA key, whose private part is not here.
    fn keys() -> JwtKeySet {
        let set = json!({ "keys": [
            { "kty": "oct", "kid": "1", "alg": "HS256", "k": "YSBzZWNyZXQgb2YgdGhlIGlzc3Vlcg" },
            { "kty": "RSA", "kid": "2", "alg": "RS256", "e": "AQAB", "n": MODULUS },
        ] });
        JwtKeySet::parse(set.to_string().as_bytes(), "keys.json").expect("a key set")
    }

    fn signed(header: &Header, claims: &Value) -> String {
        jsonwebtoken::encode(header, claims, &EncodingKey::from_secret(SECRET)).expect("it signs")
    }

    fn header(kid: Option<&str>) -> Header {
        Header { kid: kid.map(str::to_string), ..Header::new(Algorithm::HS256) }
    }

    fn verify(token: &str) -> Result<String, String> {
        let now = WallTime { micros: NOW as u64 * 1_000_000, error_micros: 0 };
        keys().verify(token.as_bytes(), now)
    }

    fn refused(token: &str) -> String {
        verify(token).expect_err("a bad token")
    }

    #[test]
    fn a_token_proves_its_subject_until_it_expires() {
        let claims = |exp: i64| json!({ "sub": "ann", "exp": exp, "iat": NOW, "nbf": NOW, "aud": "others" });
        assert_eq!(verify(&signed(&header(Some("1")), &claims(NOW + 1))).as_deref(), Ok("ann"));
        assert_eq!(verify(&signed(&header(None), &json!({ "sub": "ann" }))).as_deref(), Ok("ann"));
        assert_eq!(refused(&signed(&header(Some("1")), &claims(NOW))), "token expired");
        let later = json!({ "sub": "ann", "nbf": NOW + 1 });
        assert_eq!(refused(&signed(&header(Some("1")), &later)), "token expired");
        assert_eq!(refused(&signed(&header(Some("1")), &json!({}))), "token does not include subject");
        assert_eq!(
            refused(&signed(&header(Some("1")), &json!({ "sub": "" }))),
            "token does not include subject"
        );
    }

    #[test]
    fn forged_tokens_are_refused() {
        let claims = json!({ "sub": "root" });
        let good = signed(&header(Some("1")), &claims);
        let (rest, signature) = good.rsplit_once('.').expect("three parts");
        assert_eq!(refused(&format!("{rest}.")), "Unsecured JWT");
        assert_eq!(refused(rest), "token is not in correct format: three parts expected");
        let flipped: String = signature.chars().rev().collect();
        assert_eq!(refused(&format!("{rest}.{flipped}")), "failed to verify signature");
        // Another user with the same signature.
        let (head, _) = rest.split_once('.').expect("two parts");
        let other = signed(&header(Some("1")), &json!({ "sub": "kudu" }));
        let payload = other.split('.').nth(1).expect("three parts");
        assert_eq!(refused(&format!("{head}.{payload}.{signature}")), "failed to verify signature");
        // An HMAC under the id of an RSA key, whose public part would be the secret.
        assert_eq!(refused(&signed(&header(Some("2")), &claims)), "Invalid JWK ID in the JWT token");
        assert_eq!(refused(&signed(&header(Some("3")), &claims)), "Invalid JWK ID in the JWT token");
        let longer = Header { kid: Some("1".to_string()), ..Header::new(Algorithm::HS512) };
        assert_eq!(
            refused(&signed(&longer, &claims)),
            "JWT algorithm 'hs512' is not matching with JWK algorithm 'hs256'"
        );
        // {"alg":"none"}
        assert!(
            refused(&format!("eyJhbGciOiJub25lIn0.{payload}.{signature}")).contains("not in correct format")
        );
        assert!(refused("a.b.c").starts_with("token is not in correct format"));
    }

    #[test]
    fn extensions_that_are_not_known_are_refused() {
        let sign = |head: &Value| {
            let part = |json: &Value| BASE64_URL_SAFE_NO_PAD.encode(json.to_string());
            let message = format!("{}.{}", part(head), part(&json!({ "sub": "ann" })));
            let secret = EncodingKey::from_secret(SECRET);
            let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &secret, Algorithm::HS256);
            format!("{message}.{}", signature.expect("it signs"))
        };
        let token = sign(&json!({ "alg": "HS256", "kid": "1" }));
        assert_eq!(verify(&token).as_deref(), Ok("ann"));
        for crit in [json!(["exp"]), json!([]), json!(null)] {
            let token = sign(&json!({ "alg": "HS256", "kid": "1", "crit": crit }));
            assert!(refused(&token).contains("(crit) are not known"), "{crit}");
        }
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        let good = signed(&header(Some("1")), &json!({ "sub": "ann" })).into_bytes();
        let now = WallTime { micros: NOW as u64 * 1_000_000, error_micros: 0 };
        for at in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[at / 8] ^= 1 << (at % 8);
            let verified = keys().verify(&bytes, now);
            // Base64 of 32 bytes has two bits that mean nothing; the comparison is of the text, so they count, too.
            assert!(verified.is_err(), "bit {at}: {verified:?}");
        }
    }

    #[test]
    fn a_key_without_an_algorithm_or_a_secret_is_refused() {
        let parse =
            |text: &str| JwtKeySet::parse(text.as_bytes(), "keys.json").err().map(|error| error.message);
        assert_eq!(
            parse(r#"{"keys":[{"kty":"oct","kid":"1","k":"YQ"}]}"#).as_deref(),
            Some(
                r#"keys.json: no usable key: key "1" names no known algorithm; give its alg, such as RS256"#
            )
        );
        for secret in [r#","k":"""#, ""] {
            let set = format!(r#"{{"keys":[{{"kty":"oct","kid":"1","alg":"HS256"{secret}}}]}}"#);
            assert!(parse(&set).is_some_and(|message| message.contains("has no secret")), "{set}");
        }
        assert!(parse(r#"{"keys":[]}"#).is_some_and(|message| message.contains("empty")));
        assert!(parse("{").is_some_and(|message| message.contains("not a JSON Web Key Set")));
    }

    fn rsa(kid: &str, alg: &str, purpose: &str) -> Value {
        json!({ "kty": "RSA", "kid": kid, "alg": alg, "use": purpose, "e": "AQAB", "n": MODULUS })
    }

    #[test]
    fn keys_that_are_not_usable_spoil_no_other() {
        let set = json!({ "keys": [
            rsa("encrypts", "RSA-OAEP", "enc"),
            rsa("no use", "RSA-OAEP-384", "sig"),
            rsa("signs", "RS256", "sig"),
            { "kty": "of next year", "kid": "new", "alg": "ES256" },
            { "kty": "oct", "kid": "1", "alg": "HS256", "use": "sig", "k": "YSBzZWNyZXQgb2YgdGhlIGlzc3Vlcg" },
            7,
        ] });
        let keys = JwtKeySet::parse(set.to_string().as_bytes(), "keys.json").expect("a key set");
        let names: Vec<_> = keys.keys.iter().map(|key| key.id.as_deref()).collect();
        assert_eq!(names, [Some("signs"), Some("1")]);
        let now = WallTime { micros: NOW as u64 * 1_000_000, error_micros: 0 };
        let token = signed(&header(Some("1")), &json!({ "sub": "ann" }));
        assert_eq!(keys.verify(token.as_bytes(), now).as_deref(), Ok("ann"));
        let unused: Vec<&str> =
            keys.unused().iter().map(|why| why.split(" (").next().expect("a part")).collect();
        assert_eq!(
            unused,
            [
                r#"key "encrypts" is not for signatures"#,
                r#"key "no use" names no known algorithm; give its alg, such as RS256"#,
                r#"key "new" is not usable"#,
                r#"key "without kid" names no known algorithm; give its alg, such as RS256"#,
            ]
        );
        assert!(keys.has_secrets());
        let public = json!({ "keys": [rsa("signs", "RS256", "sig"), rsa("encrypts", "RSA-OAEP", "enc")] });
        let public = JwtKeySet::parse(public.to_string().as_bytes(), "keys.json").expect("a key set");
        assert!(!public.has_secrets() && public.keys.len() == 1);
    }
}
