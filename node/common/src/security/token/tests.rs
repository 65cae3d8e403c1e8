//! Transcripts of signers, servers and clocks.
//!
//! ```text
//! config authn=10 authz=2 rotation=5      validities and interval in seconds
//! time 100                                the masters' clock
//! rotate                                  what is due: creates and removes keys, as a leader does
//! sync ts1                                the server gets the public keys that it lacks
//! sign t1 alice                           an authentication token; authz=TABLE an authorization token
//! check t1 ts1 at=103                     a server's verdict, by its own clock
//! forge t2 from=t1 KIND                   a changed copy of a token
//! failover                                another leader, from what is stored; clock=N moves its clock
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use datadriven::TestCase;
use ed25519_dalek::pkcs8::EncodePublicKey;
use prost::Message;

use super::*;
use nyala_proto::kudu::security::token_pb::Token;
use nyala_proto::kudu::security::{AuthnTokenPb, SignedTokenPb, TablePrivilegePb, TokenPb};

#[derive(Default)]
struct Cluster {
    config: TokenConfig,
    now_s: i64,
    stored: BTreeMap<i64, TokenKey>,
    servers: BTreeMap<String, TokenVerifier>,
    tokens: BTreeMap<String, SignedTokenPb>,
}

#[test]
fn transcripts() {
    datadriven::walk("src/security/token/transcripts", |file| {
        let mut cluster = Cluster::default();
        file.run(|case| cluster.run(case));
    });
}

fn number(case: &TestCase, name: &str, default: i64) -> i64 {
    case.args.get(name).map_or(default, |value| value[0].parse().expect("a number"))
}

/// Returns the arguments without a value, in order.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().filter(|word| !word.contains('=')).collect()
}

impl Cluster {
    /// Runs each line of the input as a command.
    fn run(&mut self, case: &TestCase) -> String {
        let mut out = String::new();
        match case.directive.as_str() {
            "config" => {
                let duration = |name| Duration::from_secs(number(case, name, 1) as u64);
                self.config = TokenConfig {
                    authn_validity: duration("authn"),
                    authz_validity: duration("authz"),
                    rotation: duration("rotation"),
                };
            }
            "run" => case.input.lines().for_each(|line| self.line(line, &mut out)),
            other => panic!("unknown directive {other}"),
        }
        out
    }

    fn line(&mut self, line: &str, out: &mut String) {
        let arg = |name: &str| {
            let found = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            found.map(str::to_string)
        };
        let words = words(line);
        let said = match words[0] {
            "time" => {
                self.now_s = words[1].parse().expect("a time");
                return;
            }
            "rotate" => self.rotate(),
            "sync" => self.sync(words[1]),
            "sign" => self.sign(words[1], words[2], arg("authz")),
            "check" => self.check(words[1], words[2], arg("at")),
            "forge" => self.forge(words[1], &arg("from").expect("from=TOKEN"), words[2]),
            other => panic!("unknown command {other}"),
        };
        writeln!(out, "{line}: {said}").expect("a string");
    }

    fn signer(&self) -> TokenSigner {
        TokenSigner::new(self.config.clone(), self.stored.values().cloned())
    }

    fn rotate(&mut self) -> String {
        let plan = self.signer().plan(self.now_s);
        for number in &plan.remove {
            self.stored.remove(number);
        }
        if let Some(number) = plan.create {
            let key = TokenKey::from_seed(number, &[number as u8; 32], self.config.lifetime(self.now_s));
            self.stored.insert(number, key);
        }
        let keys = self.stored.values();
        let keys = keys.map(|key| format!("{} until {}", key.number, key.lifetime.expires_s));
        keys.collect::<Vec<_>>().join(", ")
    }

    fn sync(&mut self, server: &str) -> String {
        let keys = self.signer();
        let verifier = self.servers.entry(server.to_string()).or_default();
        let rejected = verifier.import(&keys.public_keys(verifier.latest()), self.now_s);
        assert_eq!(rejected, [], "keys of the masters");
        format!("latest key {}", verifier.latest())
    }

    fn sign(&mut self, name: &str, user: &str, table: Option<String>) -> String {
        let signer = self.signer();
        let token = match table {
            Some(table) => {
                let privilege = TablePrivilegePb { table_id: Some(table), ..Default::default() };
                signer.authz(user, privilege, self.now_s)
            }
            None => signer.authn(user, self.now_s),
        };
        let Some(token) = token else { return "no key".to_string() };
        let number = token.signing_key_seq_num();
        self.tokens.insert(name.to_string(), token);
        format!("by key {number}")
    }

    fn check(&self, token: &str, server: &str, at: Option<String>) -> String {
        let now_s = at.map_or(self.now_s, |at| at.parse().expect("a time"));
        match self.servers[server].verify_authn(&self.tokens[token], now_s) {
            Ok(user) => format!("user {user}"),
            Err(fault) => format!("{:?}, {}", fault.kind(), fault.text()),
        }
    }

    fn forge(&mut self, name: &str, from: &str, kind: &str) -> String {
        let mut token = self.tokens[from].clone();
        let mut content = TokenPb::decode(token.token_data().to_vec().as_slice()).expect("a token");
        match kind {
            "user" => content.token = Some(Token::Authn(AuthnTokenPb { username: Some("root".to_string()) })),
            "longer" => *content.expire_unix_epoch_seconds.as_mut().expect("an expiry") += 1_000_000,
            "endless" => content.expire_unix_epoch_seconds = None,
            "feature" => content.incompatible_features = vec![999],
            "future-key" => token.signing_key_seq_num = Some(token.signing_key_seq_num() + 1_000),
            "negative-key" => token.signing_key_seq_num = Some(-1),
            "no-key" => token.signing_key_seq_num = None,
            "no-signature" => token.signature = None,
            "empty-signature" => token.signature = Some(Vec::new().into()),
            "zero-signature" => token.signature = Some(vec![0; 64].into()),
            "no-data" => token.token_data = None,
            "other-key" => {
                let lifetime = self.config.lifetime(self.now_s);
                let key = TokenKey::from_seed(token.signing_key_seq_num(), &[0xee; 32], lifetime);
                token.signature = Some(key.sign(token.token_data()).into());
            }
            other => panic!("unknown forgery {other}"),
        }
        let changed = matches!(kind, "user" | "longer" | "endless" | "feature");
        if changed {
            token.token_data = Some(content.encode_to_vec().into());
        }
        self.tokens.insert(name.to_string(), token);
        "made".to_string()
    }
}

fn signed() -> (TokenVerifier, SignedTokenPb) {
    let config = TokenConfig::default();
    let key = TokenKey::from_seed(0, &[1; 32], config.lifetime(100));
    let signer = TokenSigner::new(config, [key]);
    let mut verifier = TokenVerifier::default();
    assert_eq!(verifier.import(&signer.public_keys(-1), 100), []);
    (verifier, signer.authn("alice", 100).expect("a key"))
}

#[test]
fn every_changed_bit_of_a_token_is_noticed() {
    let (verifier, token) = signed();
    assert_eq!(verifier.verify_authn(&token, 100).as_deref(), Ok("alice"));
    let (data, signature) = (token.token_data().to_vec(), token.signature().to_vec());
    for bit in 0..(data.len() + signature.len()) * 8 {
        let mut bytes = [data.as_slice(), &signature].concat();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let forged = SignedTokenPb {
            token_data: Some(bytes[..data.len()].to_vec().into()),
            signature: Some(bytes[data.len()..].to_vec().into()),
            ..token.clone()
        };
        assert!(verifier.verify(&forged, 100).is_err(), "bit {bit}");
    }
}

#[test]
fn a_long_token_is_not_decoded() {
    let (verifier, token) = signed();
    // Empty fields of an unknown number.
    let padded = |fields: usize| {
        let data = [token.token_data(), &[0x7a, 0].repeat(fields)].concat();
        let padded = SignedTokenPb { token_data: Some(data.into()), ..token.clone() };
        verifier.verify(&padded, 100).expect_err("its signature is not over this")
    };
    assert_eq!(padded(1), TokenFault::BadSignature);
    assert_eq!(padded(1 << 19), TokenFault::Malformed);
}

#[test]
fn an_authorization_token_does_not_authenticate() {
    let config = TokenConfig::default();
    let key = TokenKey::from_seed(0, &[1; 32], config.lifetime(100));
    let signer = TokenSigner::new(config, [key]);
    let (verifier, authn) = signed();
    let privilege = TablePrivilegePb { table_id: Some("t".to_string()), ..Default::default() };
    let authz = signer.authz("alice", privilege.clone(), 100).expect("a key");
    assert_eq!(verifier.verify_authn(&authz, 100), Err(TokenFault::NotAuthn));
    let content = verifier.verify_authz(&authz, 100).expect("valid").expect("an authorization token");
    assert_eq!(content.table_privilege, Some(privilege));
    assert_eq!(verifier.verify_authz(&authn, 100), Ok(None));
    let nameless = signer.authn("", 100).expect("a key");
    assert_eq!(verifier.verify_authn(&nameless, 100), Err(TokenFault::NoUser));
}

#[test]
fn a_number_keeps_its_key() {
    let (mut verifier, token) = signed();
    let lifetime = TokenConfig::default().lifetime(100);
    let other = TokenKey::from_seed(0, &[2; 32], lifetime).public();
    assert_eq!(verifier.import(std::slice::from_ref(&other), 100), [TokenKeyError::NumberTaken]);
    assert!(verifier.verify_authn(&token, 100).is_ok());
    let rsa = TokenSigningPublicKeyPbOf { der: b"0\x0d06".to_vec() }.pb();
    assert_eq!(
        verifier.import(&[rsa, Default::default()], 100),
        [TokenKeyError::NotEd25519, TokenKeyError::Incomplete]
    );
}

/// Returns the public parts of keys with these numbers, which expire at `expires_s`.
fn public_keys(
    numbers: impl IntoIterator<Item = i64>,
    expires_s: i64,
) -> Vec<nyala_proto::kudu::security::TokenSigningPublicKeyPb> {
    let mut public = TokenKey::from_seed(0, &[3; 32], TokenConfig::default().lifetime(0)).public();
    public.expire_unix_epoch_seconds = Some(expires_s);
    let numbered = |number| {
        let key_seq_num = Some(number);
        nyala_proto::kudu::security::TokenSigningPublicKeyPb { key_seq_num, ..public.clone() }
    };
    numbers.into_iter().map(numbered).collect()
}

#[test]
fn only_expired_keys_make_way_for_others() {
    let (mut verifier, token) = signed();
    assert_eq!(verifier.import(&public_keys(1..=200, 1_000_000), 100), []);
    assert!(verifier.verify_authn(&token, 100).is_ok(), "200 rotations do not end a valid token");
    let expires_s = TokenConfig::default().lifetime(100).expires_s;
    assert_eq!(verifier.import(&public_keys([201], i64::MAX), expires_s), []);
    assert_eq!(verifier.verify_authn(&token, 100).as_deref(), Ok("alice"), "the last second of its key");
    verifier.import(&[], expires_s + 1);
    assert_eq!(verifier.verify_authn(&token, 100), Err(TokenFault::UnknownKey));
    // The clock was wrong by centuries: the newest key stays.
    verifier.import(&[], i64::MAX);
    assert_eq!(verifier.latest(), 201);
}

#[test]
fn a_master_cannot_fill_the_memory_with_keys() {
    let (mut verifier, token) = signed();
    let last = TOKEN_KEYS_MAX as i64;
    verifier.import(&public_keys(1..last, i64::MAX), 100);
    assert!(verifier.verify_authn(&token, 100).is_ok(), "there is room for all");
    verifier.import(&public_keys([last], i64::MAX), 100);
    assert_eq!(verifier.verify_authn(&token, 100), Err(TokenFault::UnknownKey), "the oldest makes way");
    assert_eq!(verifier.latest(), last);
}

#[test]
fn settings_tell_how_many_keys_they_need() {
    let keys = |validity, rotation| {
        let authn_validity = Duration::from_secs(validity);
        let config =
            TokenConfig { authn_validity, rotation: Duration::from_secs(rotation), ..Default::default() };
        config.keys_max()
    };
    assert_eq!(keys(604_800, 86_400), 11);
    assert_eq!(keys(604_800, 3_600), 172);
    assert_eq!(keys(1, 100), 7, "the longest token is an authorization token of 300 seconds");
}

/// A public key message with arbitrary bytes.
struct TokenSigningPublicKeyPbOf {
    der: Vec<u8>,
}

impl TokenSigningPublicKeyPbOf {
    fn pb(self) -> nyala_proto::kudu::security::TokenSigningPublicKeyPb {
        nyala_proto::kudu::security::TokenSigningPublicKeyPb {
            key_seq_num: Some(9),
            rsa_key_der: Some(self.der.into()),
            expire_unix_epoch_seconds: Some(1),
        }
    }
}

#[test]
fn a_weak_public_key_verifies_nothing() {
    // The neutral element: some signature fits every message under the cofactored equation.
    let mut point = [0; 32];
    point[0] = 1;
    let weak = ed25519_dalek::VerifyingKey::from_bytes(&point).expect("a point");
    let der = weak.to_public_key_der().expect("a DER form");
    let mut pb = TokenSigningPublicKeyPbOf { der: der.as_bytes().to_vec() }.pb();
    pb.expire_unix_epoch_seconds = Some(i64::MAX);
    let mut verifier = TokenVerifier::default();
    assert_eq!(verifier.import(&[pb], 100), []);
    let (_, mut token) = signed();
    token.signing_key_seq_num = Some(9);
    let mut signature = vec![0; 64];
    signature[0] = 1;
    token.signature = Some(signature.into());
    assert_eq!(verifier.verify(&token, 100), Err(TokenFault::BadSignature));
}

#[test]
fn a_key_is_not_shown() {
    let key = TokenKey::from_seed(3, &[7; 32], TokenConfig::default().lifetime(0));
    assert!(format!("{key:?}").contains("redacted"));
    assert_eq!(*key.seed(), [7; 32]);
}
