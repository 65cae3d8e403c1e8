//! The verifier: public keys of a server, and the checks of a token in their fixed order.

use std::collections::BTreeMap;

use prost::Message;

use super::key::{TokenKeyError, TokenPublicKey};
use nyala_proto::kudu::security::token_pb::Token;
use nyala_proto::kudu::security::{AuthzTokenPb, SignedTokenPb, TokenPb, TokenSigningPublicKeyPb};

/// Public keys that a server keeps even if they have expired: a key that is known tells a client more than one that is
/// not.
const EXPIRED_KEYS_MAX: usize = 64;
/// Public keys kept by a server. With one more, the oldest is dropped, even if it has not expired. Servers refuse
/// settings that need more: [`TokenConfig::keys_max`](super::TokenConfig::keys_max).
pub const TOKEN_KEYS_MAX: usize = 1_024;
/// Maximum length of a token's content in bytes. It is decoded before its signature is checked; a privilege on each of
/// many thousand columns is shorter.
const TOKEN_BYTES_MAX: usize = 1 << 20;

/// Public keys that a server got from the masters.
#[derive(Debug, Clone, Default)]
pub struct TokenVerifier {
    keys: BTreeMap<i64, TokenPublicKey>,
}

/// The first check that a token failed. The texts are Kudu's: clients compare them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenFault {
    Malformed,
    Expired,
    IncompatibleFeature,
    UnknownKey,
    KeyExpired,
    BadSignature,
    /// A valid token of another kind.
    NotAuthn,
    /// A valid authentication token without a user.
    NoUser,
}

/// Reaction of a client to a rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenFaultKind {
    /// The client gets a new token.
    Invalid,
    /// The client retries with the same token: this server does not have the key yet.
    Unavailable,
    /// The client gives up.
    Unauthorized,
}

impl TokenFault {
    pub fn kind(self) -> TokenFaultKind {
        match self {
            TokenFault::UnknownKey => TokenFaultKind::Unavailable,
            TokenFault::IncompatibleFeature | TokenFault::NotAuthn => TokenFaultKind::Unauthorized,
            _ => TokenFaultKind::Invalid,
        }
    }

    pub fn text(self) -> &'static str {
        match self {
            TokenFault::Malformed => "invalid token",
            TokenFault::Expired => "token expired",
            TokenFault::IncompatibleFeature => "token uses incompatible feature",
            TokenFault::UnknownKey => "token signed with unknown key",
            TokenFault::KeyExpired => "token signing key expired",
            TokenFault::BadSignature => "invalid token signature",
            TokenFault::NotAuthn => "non-authentication token presented for authentication",
            TokenFault::NoUser => "token does not contain a username",
        }
    }
}

impl TokenVerifier {
    /// Adds public keys from a master and returns the rejected ones. A known number keeps its key. `now_s` is in
    /// seconds since 1970; keys that have expired by then make way for others.
    pub fn import(&mut self, keys: &[TokenSigningPublicKeyPb], now_s: i64) -> Vec<TokenKeyError> {
        let rejected = keys.iter().filter_map(|pb| self.add(pb).err()).collect();
        self.drop_expired(now_s);
        rejected
    }

    /// Drops the oldest of the expired keys, except the newest key: its number tells masters which keys are missing.
    fn drop_expired(&mut self, now_s: i64) {
        let surplus = self.keys.len().saturating_sub(EXPIRED_KEYS_MAX);
        let latest = self.latest();
        let is_expired =
            |(number, key): &(&i64, &TokenPublicKey)| **number != latest && key.expires_s < now_s;
        let expired: Vec<i64> =
            self.keys.iter().filter(is_expired).take(surplus).map(|(number, _)| *number).collect();
        for number in expired {
            self.keys.remove(&number);
        }
    }

    fn add(&mut self, pb: &TokenSigningPublicKeyPb) -> Result<(), TokenKeyError> {
        let (number, key) = TokenPublicKey::from_pb(pb)?;
        if let Some(known) = self.keys.get(&number) {
            return if *known == key { Ok(()) } else { Err(TokenKeyError::NumberTaken) };
        }
        self.keys.insert(number, key);
        if self.keys.len() > TOKEN_KEYS_MAX {
            self.keys.pop_first();
        }
        Ok(())
    }

    /// Returns the highest number of a known key, -1 if none is known.
    pub fn latest(&self) -> i64 {
        self.keys.last_key_value().map_or(-1, |(number, _)| *number)
    }

    /// Checks a token and returns its content. `now_s` is in seconds since 1970.
    pub fn verify(&self, signed: &SignedTokenPb, now_s: i64) -> Result<TokenPb, TokenFault> {
        let (Some(data), Some(signature), Some(number)) =
            (&signed.token_data, &signed.signature, signed.signing_key_seq_num)
        else {
            return Err(TokenFault::Malformed);
        };
        if data.len() > TOKEN_BYTES_MAX {
            return Err(TokenFault::Malformed);
        }
        // The signature is over these bytes: they are decoded, never encoded again.
        let token = TokenPb::decode(data.clone()).map_err(|_| TokenFault::Malformed)?;
        let expires_s = token.expire_unix_epoch_seconds.ok_or(TokenFault::Malformed)?;
        if expires_s < now_s {
            return Err(TokenFault::Expired);
        }
        if !token.incompatible_features.is_empty() {
            return Err(TokenFault::IncompatibleFeature);
        }
        let key = self.keys.get(&number).ok_or(TokenFault::UnknownKey)?;
        if key.expires_s < now_s {
            return Err(TokenFault::KeyExpired);
        }
        if !key.verifies(data, signature) {
            return Err(TokenFault::BadSignature);
        }
        Ok(token)
    }

    /// Checks an authentication token and returns its user.
    pub fn verify_authn(&self, signed: &SignedTokenPb, now_s: i64) -> Result<String, TokenFault> {
        let Some(Token::Authn(authn)) = self.verify(signed, now_s)?.token else {
            return Err(TokenFault::NotAuthn);
        };
        authn.username.filter(|user| !user.is_empty()).ok_or(TokenFault::NoUser)
    }

    /// Checks a token and returns its content if it is an authorization token, `None` if it is a valid one of another
    /// kind.
    pub fn verify_authz(
        &self,
        signed: &SignedTokenPb,
        now_s: i64,
    ) -> Result<Option<AuthzTokenPb>, TokenFault> {
        match self.verify(signed, now_s)?.token {
            Some(Token::Authz(authz)) => Ok(Some(authz)),
            _ => Ok(None),
        }
    }
}
