//! SCRAM-SHA-256 (RFC 5802, RFC 7677) without channel binding: passwords never cross the network.
//!
//! ```text
//! client ── n,,n=,r=NONCE ───────────► server
//!        ◄── r=NONCE+MORE,s=SALT,i=N ──
//!        ── c=…,r=NONCE+MORE,p=PROOF ─►   SHA-256(PROOF xor HMAC(stored key, messages)) is the stored key
//!        ◄── v=SIGNATURE ──────────────
//! ```

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use nyala_common::env::Env;
use pgwire::api::auth::mechanism::{AuthMechanism, AuthState};
use pgwire::api::{ClientInfo, METADATA_USER};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::startup::{Authentication, PasswordMessageFamily};
use ring::{digest, hmac, pbkdf2};
use subtle::ConstantTimeEq;

/// Name of the mechanism, in the protocol and before a verifier.
const MECHANISM: &str = "SCRAM-SHA-256";
/// Iterations for passwords that the file has in plain text.
const ITERATIONS: u32 = 4096;
const SALT_BYTES: usize = 16;
const NONCE_BYTES: usize = 18;
const KEY_BYTES: usize = digest::SHA256_OUTPUT_LEN;

/// Users and what verifies their passwords.
pub struct Passwords {
    users: BTreeMap<String, Verifier>,
    /// Key of the salts that unknown users get: they cannot be told from known ones.
    mock_key: Vec<u8>,
}

impl std::fmt::Debug for Passwords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Passwords of {} users", self.users.len())
    }
}

/// Keys that verify a password and do not reveal it.
#[derive(Clone, PartialEq, Eq)]
struct Verifier {
    iterations: u32,
    salt: Vec<u8>,
    stored_key: Vec<u8>,
    server_key: Vec<u8>,
}

impl Passwords {
    /// Parses a file of lines `user:password`. Instead of the password a line may have its verifier as Postgres stores
    /// it: `SCRAM-SHA-256$iterations:salt$stored key:server key`. Errors name the line.
    pub fn parse(env: &Env, text: &str) -> Result<Passwords, String> {
        let mut users = BTreeMap::new();
        let is_entry = |line: &&str| !line.trim().is_empty() && !line.starts_with('#');
        for (number, line) in text.lines().enumerate().filter(|(_, line)| is_entry(line)) {
            let bad = |what: &str| format!("line {}: {what}", number + 1);
            let (user, secret) = line.split_once(':').ok_or_else(|| bad("expected user:password"))?;
            let verifier = match secret.strip_prefix(MECHANISM) {
                Some(rest) => Verifier::parse(rest).ok_or_else(|| bad("not a SCRAM-SHA-256 verifier"))?,
                None => Verifier::of_password(env, secret).map_err(bad)?,
            };
            if users.insert(user.to_string(), verifier).is_some() {
                return Err(bad(&format!("user {user} has a password already")));
            }
        }
        if users.is_empty() {
            return Err("no users; add lines user:password".to_string());
        }
        Ok(Passwords { users, mock_key: random(env, KEY_BYTES) })
    }

    /// Returns true if the password is the user's. Takes milliseconds of computation, also for unknown users.
    pub(super) fn verify(&self, user: &str, password: &str) -> bool {
        let (verifier, is_known) = self.verifier(user);
        let given = Verifier::derive(password, verifier.salt, verifier.iterations);
        let is_right: bool = given.stored_key.ct_eq(&verifier.stored_key).into();
        is_right && is_known
    }

    /// Returns the verifier of a user, or one that no password satisfies.
    fn verifier(&self, user: &str) -> (Verifier, bool) {
        if let Some(known) = self.users.get(user) {
            return (known.clone(), true);
        }
        let mut salt = sign(&self.mock_key, user.as_bytes());
        salt.truncate(SALT_BYTES);
        let key = vec![0; KEY_BYTES];
        (Verifier { iterations: ITERATIONS, salt, stored_key: key.clone(), server_key: key }, false)
    }
}

impl Verifier {
    fn of_password(env: &Env, password: &str) -> Result<Verifier, &'static str> {
        if password.is_empty() {
            return Err("the password is empty");
        }
        if !password.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err("the password has characters beyond ASCII; give its SCRAM-SHA-256 verifier instead");
        }
        Ok(Verifier::derive(password, random(env, SALT_BYTES), ITERATIONS))
    }

    fn derive(password: &str, salt: Vec<u8>, iterations: u32) -> Verifier {
        let mut salted = vec![0; KEY_BYTES];
        let rounds = NonZeroU32::new(iterations).unwrap_or(NonZeroU32::MIN);
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, rounds, &salt, password.as_bytes(), &mut salted);
        let stored_key = hash(&sign(&salted, b"Client Key"));
        Verifier { iterations, salt, stored_key, server_key: sign(&salted, b"Server Key") }
    }

    /// Parses `$iterations:salt$stored key:server key`.
    fn parse(text: &str) -> Option<Verifier> {
        let (how, keys) = text.strip_prefix('$')?.split_once('$')?;
        let ((iterations, salt), (stored, server)) = (how.split_once(':')?, keys.split_once(':')?);
        let iterations = iterations.parse().ok().filter(|iterations| *iterations > 0)?;
        let salt = BASE64.decode(salt).ok()?;
        let key = |text: &str| BASE64.decode(text.trim_end()).ok().filter(|key| key.len() == KEY_BYTES);
        Some(Verifier { iterations, salt, stored_key: key(stored)?, server_key: key(server)? })
    }

    /// Returns the server's signature if the proof is right.
    fn verify(&self, messages: &[u8], proof: &[u8]) -> Option<Vec<u8>> {
        let signature = sign(&self.stored_key, messages);
        if proof.len() != signature.len() {
            return None;
        }
        let client_key: Vec<u8> = proof.iter().zip(&signature).map(|(proof, byte)| proof ^ byte).collect();
        let is_right: bool = hash(&client_key).ct_eq(&self.stored_key).into();
        is_right.then(|| sign(&self.server_key, messages))
    }
}

fn sign(key: &[u8], message: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message).as_ref().to_vec()
}

fn hash(bytes: &[u8]) -> Vec<u8> {
    digest::digest(&digest::SHA256, bytes).as_ref().to_vec()
}

fn random(env: &Env, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    env.rng.fill_secret(&mut bytes);
    bytes
}

/// Exchange of one connection.
pub(super) struct ScramExchange {
    passwords: Arc<Passwords>,
    /// The server's part of the nonce.
    nonce: String,
    first: Option<FirstMessages>,
}

/// Messages before the proof.
struct FirstMessages {
    /// Header of the client's first message, which the proof's message repeats.
    header: String,
    client_first: String,
    server_first: String,
    /// Nonce of both sides.
    nonce: String,
    verifier: Verifier,
    is_known: bool,
}

impl ScramExchange {
    pub(super) fn new(env: &Env, passwords: Arc<Passwords>) -> ScramExchange {
        ScramExchange { passwords, nonce: BASE64.encode(random(env, NONCE_BYTES)), first: None }
    }

    /// Answers the client's first message.
    fn challenge(&self, user: &str, message: &str) -> Option<FirstMessages> {
        // "n" or "y": without channel binding. The user is that of the startup message.
        let is_plain = message.starts_with("n,") || message.starts_with("y,");
        let header_end = message.match_indices(',').nth(1).filter(|_| is_plain)?.0 + 1;
        let (header, client_first) = message.split_at(header_end);
        let client_nonce = client_first.split(',').find_map(|part| part.strip_prefix("r="))?;
        let (verifier, is_known) = self.passwords.verifier(user);
        let nonce = format!("{client_nonce}{}", self.nonce);
        let salt = BASE64.encode(&verifier.salt);
        let server_first = format!("r={nonce},s={salt},i={}", verifier.iterations);
        let (header, client_first) = (header.to_string(), client_first.to_string());
        Some(FirstMessages { header, client_first, server_first, nonce, verifier, is_known })
    }
}

impl FirstMessages {
    /// Checks the client's proof. Returns the server's last message.
    fn verify(&self, message: &str) -> Option<String> {
        let (unproven, proof) = message.rsplit_once(",p=")?;
        let mut parts = unproven.split(',');
        let binding = parts.next()?.strip_prefix("c=")?;
        let nonce = parts.next()?.strip_prefix("r=")?;
        if BASE64.decode(binding).ok()? != self.header.as_bytes() || nonce != self.nonce {
            return None;
        }
        let messages = format!("{},{},{unproven}", self.client_first, self.server_first);
        let signature = self.verifier.verify(messages.as_bytes(), &BASE64.decode(proof).ok()?)?;
        self.is_known.then(|| format!("v={}", BASE64.encode(signature)))
    }
}

#[async_trait]
impl AuthMechanism for ScramExchange {
    async fn begin(&mut self, _: &(dyn ClientInfo + Send + Sync)) -> PgWireResult<AuthState> {
        Ok(AuthState::InProgress(Authentication::SASL(vec![MECHANISM.to_string()])))
    }

    async fn next(
        &mut self,
        client: &(dyn ClientInfo + Send + Sync),
        message: PasswordMessageFamily,
    ) -> PgWireResult<AuthState> {
        let user = client.metadata().get(METADATA_USER).cloned().unwrap_or_default();
        let malformed = || PgWireError::InvalidScramMessage("malformed message".to_string());
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| malformed());
        if let Some(first) = &self.first {
            let message = text(&message.into_sasl_response()?.data)?;
            let last = first.verify(&message).ok_or(PgWireError::InvalidPassword(user))?;
            let final_message = Some(Authentication::SASLFinal(last.into_bytes().into()));
            return Ok(AuthState::Ok { final_message, identity: None });
        }
        let message = message.into_sasl_initial_response()?;
        if message.auth_method != MECHANISM {
            return Err(PgWireError::UnsupportedSASLAuthMethod(message.auth_method));
        }
        let message = text(&message.data.unwrap_or_default())?;
        let first = self.challenge(&user, &message).ok_or_else(malformed)?;
        let challenge = first.server_first.clone();
        self.first = Some(first);
        Ok(AuthState::InProgress(Authentication::SASLContinue(challenge.into_bytes().into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyala_common::env::os::{OsEnv, OsOptions};

    /// The exchange of RFC 7677, section 3.
    #[test]
    fn the_example_of_the_standard_is_accepted() {
        let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").expect("base64");
        let user = ("user".to_string(), Verifier::derive("pencil", salt, 4096));
        let passwords = Passwords { users: [user].into(), mock_key: Vec::new() };
        let nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0".to_string();
        let exchange = ScramExchange { passwords: Arc::new(passwords), nonce, first: None };
        let first = exchange.challenge("user", "n,,n=user,r=rOprNGfwEbeRWgbNEkqO").expect("well-formed");
        assert_eq!(
            first.server_first,
            "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
        );
        let last = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                    p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
        assert_eq!(first.verify(last).as_deref(), Some("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="));
        assert_eq!(first.verify(&last.replace("p=dH", "p=eH")), None);
        assert_eq!(first.verify(&last.replace("c=biws", "c=eSws")), None);
    }

    #[test]
    fn an_unknown_user_gets_the_same_salt_each_time_and_no_way_in() {
        let env = OsEnv::new(&OsOptions::default()).expect("this machine");
        let passwords = Passwords::parse(&env, "# people\n\nann:secret\n").expect("a good file");
        let (ann, mallory) = (passwords.verifier("ann"), passwords.verifier("mallory"));
        assert!(ann.1 && !mallory.1);
        assert_eq!(mallory.0.salt, passwords.verifier("mallory").0.salt);
        assert_ne!(mallory.0.salt, passwords.verifier("eve").0.salt);
        assert!(passwords.verify("ann", "secret"));
        assert!(!passwords.verify("ann", "Secret") && !passwords.verify("mallory", "secret"));
    }

    #[test]
    fn errors_of_the_file_name_the_line() {
        let env = OsEnv::new(&OsOptions::default()).expect("this machine");
        let error = |text: &str| Passwords::parse(&env, text).expect_err("a bad file");
        assert_eq!(error("ann:x\nbob"), "line 2: expected user:password");
        assert_eq!(error("ann:x\nann:y"), "line 2: user ann has a password already");
        assert_eq!(error("ann:SCRAM-SHA-256$0:a$b:c"), "line 1: not a SCRAM-SHA-256 verifier");
        assert_eq!(error("#\n"), "no users; add lines user:password");
        assert!(error("ann:\u{e9}").starts_with("line 1: the password has characters beyond ASCII"));
    }
}
