//! A trial of tokens: keys that are rotated, masters that lead in turn, servers that start, and clients with tokens.
//!
//! ```text
//!   leading master: keys, due changes ──► tokens ──► clients ──► any server: valid until it expires, then refused
//!      │ fails; another one loads the keys                         ▲
//!      └── public keys, with each heartbeat that is not lost ──────┘ restarts, and has none
//! ```
//!
//! The code of signers and keyrings is the real one, without calls: hours of rotation take milliseconds.
//! Clocks of masters and servers err.
//!
//! *Not here:* how keys are stored, and connections on which tokens are presented.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::time::WallTime;
use nyala_common::security::token::{TokenConfig, TokenFault, TokenKey, TokenKeyring, TokenSigner};
use nyala_proto::kudu::security::{SignedTokenPb, TablePrivilegePb, TokenPb};
use prost::Message;
use sim_plan::RandomStream;

use crate::oracle::Violation;

/// Name of this oracle.
const NAME: &str = "tokens trial";

/// Lines that a violation's story ends with.
const STORY: usize = 30;
const SERVERS: usize = 2;
/// Seconds of a trial, and the time since 1970 at which it begins.
const SECONDS: i64 = 260;
const BEGINNING: i64 = 1_000_000;
/// Largest error of a clock in seconds.
const SKEW: u64 = 2;
/// Seconds between two looks of a master at what is due, and between two heartbeats.
const CHECK: i64 = 5;
const BEAT: i64 = 2;
/// Percentages: of heartbeats that are lost, and of seconds in which the leader fails, a server restarts, a client gets
/// a token, and one is presented.
const LOST: u64 = 30;
const FAIL: u64 = 3;
const RESTART: u64 = 2;
const ISSUE: u64 = 25;
const PRESENT: u64 = 60;
/// User of all tokens, and their table.
const USER: &str = "tina";

struct Server {
    keyring: TokenKeyring,
    error: i64,
    /// Time of its last heartbeat with a reply in this life.
    reached: Option<i64>,
}

/// A token of a client.
struct Issued {
    token: SignedTokenPb,
    expires: i64,
    issued: i64,
    is_authn: bool,
}

struct TokensTrial {
    random: RandomStream,
    config: TokenConfig,
    now: i64,
    /// The stored keys, as the leader has loaded them.
    keys: Vec<TokenKey>,
    /// Times at which the keys of all numbers were created.
    created: BTreeMap<i64, i64>,
    /// The error of the leader's clock, and the time of its next look.
    error: i64,
    next_check: i64,
    servers: Vec<Server>,
    tokens: Vec<Issued>,
    story: Vec<String>,
}

/// Runs the trial of a seed; returns what it finds.
pub(super) fn run(seed: u64) -> Option<Violation> {
    let mut trial = TokensTrial::create(seed);
    let what = trial.play().err()?;
    let message = format!("seed {seed}, {} s: {what}", trial.now - BEGINNING);
    Some(Violation::new(NAME, message).with_end_of(trial.story, STORY))
}

fn wall(seconds: i64) -> WallTime {
    WallTime { micros: seconds.unsigned_abs() * 1_000_000, error_micros: 0 }
}

impl TokensTrial {
    fn create(seed: u64) -> TokensTrial {
        let mut random = RandomStream::new(seed, "tokens trial");
        let config = TokenConfig {
            authn_validity: Duration::from_secs(random.between(5, 60)),
            authz_validity: Duration::from_secs(random.between(5, 20)),
            rotation: Duration::from_secs(random.between(20, 40)),
        };
        let server = |random: &mut RandomStream| Server {
            keyring: TokenKeyring::default(),
            error: random.within(SKEW),
            reached: None,
        };
        TokensTrial {
            config,
            now: BEGINNING,
            keys: Vec::new(),
            created: BTreeMap::new(),
            error: random.within(SKEW),
            next_check: BEGINNING,
            servers: (0..SERVERS).map(|_| server(&mut random)).collect(),
            tokens: Vec::new(),
            story: Vec::new(),
            random,
        }
    }

    fn play(&mut self) -> Result<(), String> {
        while self.now < BEGINNING + SECONDS {
            if self.random.percent(FAIL) {
                self.error = self.random.within(SKEW);
                self.next_check = self.now;
                self.note("another master leads".to_string());
            }
            self.change_keys()?;
            self.beat()?;
            self.issue()?;
            self.present()?;
            self.now += 1;
        }
        Ok(())
    }

    fn note(&mut self, what: String) {
        self.story.push(format!("{} s: {what}", self.now - BEGINNING));
    }

    fn is_stored(&self, key: i64) -> bool {
        self.keys.iter().any(|stored| stored.number == key)
    }

    fn signer(&self) -> TokenSigner {
        TokenSigner::new(self.config.clone(), self.keys.iter().cloned())
    }

    /// Lets the leader create and remove the keys that are due.
    fn change_keys(&mut self) -> Result<(), String> {
        if self.now < self.next_check {
            return Ok(());
        }
        self.next_check = self.now + CHECK;
        let clock = self.now + self.error;
        let due = self.signer().plan(clock);
        if let Some(number) = due.create {
            let seed = [number as u8 + 1; 32];
            self.keys.push(TokenKey::from_seed(number, &seed, self.config.lifetime(clock)));
            if self.created.insert(number, self.now).is_some() {
                return Err(format!("number {number} is that of an earlier key"));
            }
            self.note(format!("key {number} is created"));
        }
        for number in due.remove {
            self.keys.retain(|key| key.number != number);
            self.note(format!("key {number} is removed"));
        }
        // One is to sign, one is new, the others verify tokens that still live.
        let validity = self.config.authn_validity.max(self.config.authz_validity);
        let most = 4 + validity.as_secs() / self.config.rotation.as_secs();
        match self.keys.len() as u64 > most {
            true => Err(format!("{} keys are kept, {most} are needed", self.keys.len())),
            false => Ok(()),
        }
    }

    /// Lets servers send heartbeats, and restart.
    fn beat(&mut self) -> Result<(), String> {
        for number in 0..SERVERS {
            if self.random.percent(RESTART) {
                let server = &mut self.servers[number];
                (server.keyring, server.reached) = (TokenKeyring::default(), None);
                self.note(format!("server {number} restarts"));
            }
            if self.now % BEAT != 0 || self.random.percent(LOST) {
                continue;
            }
            let signer = self.signer();
            let server = &mut self.servers[number];
            let (missing, clock) = (signer.public_keys(server.keyring.latest()), self.now + server.error);
            let faults = server.keyring.import(&missing, wall(clock));
            server.reached = Some(self.now);
            if !faults.is_empty() {
                return Err(format!("server {number} cannot use keys: {faults:?}"));
            }
        }
        Ok(())
    }

    /// Lets a client get a token of either kind.
    fn issue(&mut self) -> Result<(), String> {
        if !self.random.percent(ISSUE) {
            return Ok(());
        }
        let is_authn = self.random.percent(50);
        let (signer, clock) = (self.signer(), self.now + self.error);
        let token = match is_authn {
            true => signer.authn(USER, clock),
            false => signer.authz(USER, TablePrivilegePb::default(), clock),
        };
        let token = token.ok_or("no key signs")?;
        let data = token.token_data.clone().unwrap_or_default();
        let decoded = TokenPb::decode(data).map_err(|error| error.to_string())?;
        let expires = decoded.expire_unix_epoch_seconds.ok_or("a token without an end")?;
        let validity = if is_authn { self.config.authn_validity } else { self.config.authz_validity };
        if expires != clock + validity.as_secs() as i64 {
            return Err(format!("a token expires at {expires}, not {validity:?} after {clock}"));
        }
        self.tokens.push(Issued { token, expires, issued: self.now, is_authn });
        Ok(())
    }

    /// Lets a client present one of its last tokens to a server.
    fn present(&mut self) -> Result<(), String> {
        let count = self.tokens.len().min(20) as u64;
        if count == 0 || !self.random.percent(PRESENT) {
            return Ok(());
        }
        let of = self.tokens.len() - 1 - self.random.below(count) as usize;
        let at = self.random.below(SERVERS as u64) as usize;
        let (issued, server) = (&self.tokens[of], &self.servers[at]);
        let clock = self.now + server.error;
        let verified = verify(issued, &server.keyring, wall(clock));
        let key = issued.token.signing_key_seq_num.unwrap_or_default();
        // A server has the keys that there were at its last heartbeat.
        let has_key = server.reached.is_some_and(|reached| reached >= self.created[&key]);
        // The clocks of the server and of the master that removes a key may differ by the errors of both.
        let may_be_removed = !self.is_stored(key) && clock + 2 * SKEW as i64 >= issued.expires;
        let is_right = match verified {
            Err(TokenFault::Expired) => clock > issued.expires,
            Err(TokenFault::UnknownKey) => clock <= issued.expires && (!has_key || may_be_removed),
            Ok(()) => clock <= issued.expires,
            Err(_) => false,
        };
        let left = issued.expires - clock;
        let age = self.now - issued.issued;
        let told = format!(
            "server {at} says {verified:?} to a token of key {key}, issued {age} s ago, valid for {left} s"
        );
        self.note(told.clone());
        if is_right { Ok(()) } else { Err(told) }
    }
}

/// Lets a keyring check a token; one of another kind than that of its check is malformed.
fn verify(issued: &Issued, keyring: &TokenKeyring, now: WallTime) -> Result<(), TokenFault> {
    let statement = keyring.verify_authz(&issued.token, now)?;
    match (issued.is_authn, statement.and_then(|statement| statement.username)) {
        (true, None) => Ok(()),
        (false, Some(user)) if user == USER => Ok(()),
        _ => Err(TokenFault::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trials::reached::{self, Situation};

    const SITUATIONS: [Situation; 5] = [
        ("a valid token", &["says Ok"]),
        ("an expired token", &["says Err(Expired)"]),
        ("a server without the key", &["says Err(UnknownKey)"]),
        ("a rotation", &["key 2 is created"]),
        ("a key that is removed", &["is removed"]),
    ];

    #[test]
    fn trials_of_sound_code_find_nothing_and_reach_what_they_are_for() {
        reached::check(20..=80, &SITUATIONS, |seed| {
            let mut trial = TokensTrial::create(seed);
            assert_eq!(trial.play(), Ok(()), "seed {seed}");
            trial.story
        });
    }

    #[test]
    fn a_key_that_is_missing_is_found() {
        let mut trial = TokensTrial::create(1);
        trial.change_keys().expect("a first key");
        while trial.tokens.is_empty() {
            trial.issue().expect("a token");
        }
        trial.servers.iter_mut().for_each(|server| server.reached = Some(trial.now));
        let found = (0..100).find_map(|_| trial.present().err()).expect("no server has the key");
        assert!(found.contains("UnknownKey"), "{found}");
    }
}
