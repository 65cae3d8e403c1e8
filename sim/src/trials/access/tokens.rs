//! Tokens of an access trial: made with a key of the server's masters, or not quite.

use engine::time::WallTime;
use nyala_common::security::token::{KeyLifetime, TokenConfig, TokenKey, TokenKeyring, TokenSigner};
use nyala_proto::kudu::security::token_pb::Token;
use nyala_proto::kudu::security::{SignedTokenPb, TokenPb, TokenSigningPublicKeyPb};
use prost::Message;
use sim_plan::RandomStream;

use super::names::CALLER;
use super::rights::Rights;

/// Age of an expired token: more than the validity of any.
const EXPIRED: i64 = 10_000;
/// Numbers of keys that are not the masters' newest two.
const EXPIRED_KEY: i64 = 2;
const UNKNOWN_KEY: i64 = 9;
/// A table that the server does not have.
const OTHER_TABLE: &str = "00000000000000000000000000000009";

/// The kind of a caller's token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    Valid,
    Missing,
    Expired,
    /// Its privileges were widened after it was signed.
    Forged,
    OfOtherUser,
    OfOtherTable,
    /// Its key is newer than those that the server has.
    OfUnknownKey,
    /// Its key is one that the server does not have any more.
    ExpiredOfUnknownKey,
    /// Its key has expired before it.
    OfExpiredKey,
    /// It proves who the caller is, and gives no rights.
    OfIdentity,
}

impl TokenKind {
    pub(super) fn draw(random: &mut RandomStream) -> TokenKind {
        random.weighted(&[
            (TokenKind::Valid, 60),
            (TokenKind::Missing, 4),
            (TokenKind::Expired, 4),
            (TokenKind::Forged, 4),
            (TokenKind::OfOtherUser, 4),
            (TokenKind::OfOtherTable, 4),
            (TokenKind::OfUnknownKey, 3),
            (TokenKind::ExpiredOfUnknownKey, 3),
            (TokenKind::OfExpiredKey, 3),
            (TokenKind::OfIdentity, 2),
        ])
    }
}

/// The signer of tokens. Its masters have made a second key lately, which servers may not have yet.
pub(super) struct Issuer {
    signer: TokenSigner,
    /// Signs with a key that the server never gets.
    unknown: TokenSigner,
    /// Signs with a key of which the server knows an earlier end.
    expired: TokenSigner,
    now: i64,
    /// True if the server has the second key too.
    gives_all: bool,
}

impl Issuer {
    /// Creates the signer; `micros` is the time since 1970.
    pub(super) fn new(random: &mut RandomStream, micros: u64) -> Issuer {
        let now = (micros / 1_000_000) as i64;
        let config = TokenConfig::default();
        let rotation = config.rotation.as_secs();
        // A key signs once it is as old as the rotation.
        let age = random.below(rotation) as i64;
        let key = |number, age| {
            let lifetime: KeyLifetime = config.lifetime(now - age);
            TokenKey::from_seed(number, &[7 + number as u8; 32], lifetime)
        };
        let signer = |keys: Vec<TokenKey>| TokenSigner::new(config.clone(), keys);
        Issuer {
            signer: signer(vec![key(0, age + rotation as i64), key(1, age)]),
            unknown: signer(vec![key(UNKNOWN_KEY, age + rotation as i64)]),
            expired: signer(vec![key(EXPIRED_KEY, age)]),
            now,
            gives_all: random.percent(50),
        }
    }

    /// Gives a server the public keys that it has by now.
    pub(super) fn teach(&self, keyring: &TokenKeyring) {
        let mut keys = self.signer.public_keys(-1);
        keys.truncate(if self.gives_all { 2 } else { 1 });
        let now = WallTime { micros: self.now as u64 * 1_000_000, error_micros: 0 };
        keyring.import(&keys, now);
        let ended = self
            .expired
            .public_keys(-1)
            .into_iter()
            .map(|key| TokenSigningPublicKeyPb { expire_unix_epoch_seconds: Some(self.now - 1), ..key });
        keyring.import(&ended.collect::<Vec<_>>(), now);
    }

    /// Returns a token of this kind; `None` if there is none to send.
    pub(super) fn token(&self, kind: TokenKind, rights: &Rights, table: &str) -> Option<SignedTokenPb> {
        let own = rights.privilege(table);
        match kind {
            TokenKind::Valid => self.signer.authz(CALLER, own, self.now),
            TokenKind::Missing => None,
            TokenKind::Expired => self.signer.authz(CALLER, own, self.now - EXPIRED),
            TokenKind::Forged => widened(self.signer.authz(CALLER, own, self.now)?, table),
            TokenKind::OfOtherUser => self.signer.authz("other", own, self.now),
            TokenKind::OfOtherTable => self.signer.authz(CALLER, rights.privilege(OTHER_TABLE), self.now),
            TokenKind::OfUnknownKey => self.unknown.authz(CALLER, own, self.now),
            TokenKind::ExpiredOfUnknownKey => self.unknown.authz(CALLER, own, self.now - EXPIRED),
            TokenKind::OfExpiredKey => self.expired.authz(CALLER, own, self.now),
            TokenKind::OfIdentity => self.signer.authn(CALLER, self.now),
        }
    }
}

/// Returns a token with all rights and the signature of another one.
fn widened(mut signed: SignedTokenPb, table: &str) -> Option<SignedTokenPb> {
    let mut token = TokenPb::decode(signed.token_data.clone()?).ok()?;
    if let Some(Token::Authz(statement)) = &mut token.token {
        // Another user's rights differ from the caller's in any case.
        statement.username = Some(CALLER.to_string());
        statement.table_privilege = Some(Rights::all().privilege(table));
    }
    token.expire_unix_epoch_seconds = token.expire_unix_epoch_seconds.map(|at| at + 1);
    signed.token_data = Some(token.encode_to_vec().into());
    Some(signed)
}
