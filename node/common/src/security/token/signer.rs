//! The signer: the leading master's keys, and the tokens made with them.

use std::collections::BTreeMap;
use std::time::Duration;

use prost::Message;

use super::key::TokenKey;
use super::rotation::{self, KeyLifetime, RotationPlan, TokenConfig};
use nyala_proto::kudu::security::token_pb::Token;
use nyala_proto::kudu::security::{
    AuthnTokenPb, AuthzTokenPb, SignedTokenPb, TablePrivilegePb, TokenPb, TokenSigningPublicKeyPb,
};

/// Keys of the leading master. Every key here is stored durably; see [`RotationPlan`].
#[derive(Debug, Clone, Default)]
pub struct TokenSigner {
    config: TokenConfig,
    keys: BTreeMap<i64, TokenKey>,
}

impl TokenSigner {
    /// Creates a signer with these stored keys.
    pub fn new(config: TokenConfig, keys: impl IntoIterator<Item = TokenKey>) -> TokenSigner {
        TokenSigner { config, keys: keys.into_iter().map(|key| (key.number, key)).collect() }
    }

    /// Returns the keys to create and to remove.
    pub fn plan(&self, now_s: i64) -> RotationPlan {
        rotation::plan(&self.lifetimes(), &self.config, now_s)
    }

    /// Returns the public keys with numbers above `above`, for servers that know the others.
    pub fn public_keys(&self, above: i64) -> Vec<TokenSigningPublicKeyPb> {
        self.keys.values().filter(|key| key.number > above).map(TokenKey::public).collect()
    }

    /// Signs that the connection's user is `user`. `None` if no key can sign now.
    pub fn authn(&self, user: &str, now_s: i64) -> Option<SignedTokenPb> {
        let statement = AuthnTokenPb { username: Some(user.to_string()) };
        self.sign(Token::Authn(statement), self.config.authn_validity, now_s)
    }

    /// Signs the privileges of `user` on one table. `None` if no key can sign now.
    pub fn authz(&self, user: &str, privilege: TablePrivilegePb, now_s: i64) -> Option<SignedTokenPb> {
        let statement = AuthzTokenPb { username: Some(user.to_string()), table_privilege: Some(privilege) };
        self.sign(Token::Authz(statement), self.config.authz_validity, now_s)
    }

    fn sign(&self, token: Token, validity: Duration, now_s: i64) -> Option<SignedTokenPb> {
        let number = rotation::signing(&self.lifetimes(), &self.config, now_s)?;
        let expires_s = now_s.saturating_add(rotation::seconds(validity));
        let token = TokenPb {
            expire_unix_epoch_seconds: Some(expires_s),
            incompatible_features: Vec::new(),
            token: Some(token),
        };
        let data = token.encode_to_vec();
        let signature = self.keys[&number].sign(&data);
        Some(SignedTokenPb {
            token_data: Some(data.into()),
            signature: Some(signature.into()),
            signing_key_seq_num: Some(number),
        })
    }

    fn lifetimes(&self) -> Vec<(i64, KeyLifetime)> {
        self.keys.values().map(|key| (key.number, key.lifetime)).collect()
    }
}
