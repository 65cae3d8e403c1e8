//! Secrets of the cluster: its certification authority (CA) and the token signing keys. Made elsewhere, stored here.
//!
//! Rules:
//!
//! - The CA is created once and never replaced.
//! - Token key numbers begin at 0 and grow by one. Invariant: a number is never used twice, so the newest key stays
//!   stored even if it has expired.
//! - Key material is part of the command: the same commands give the same catalog.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::record::SystemRowKey;
use super::{Catalog, CatalogError, CatalogResult, CommandReply};

/// The CA: its private key and its certificate.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorityRecord {
    /// Secret number of the private key.
    pub secret: Vec<u8>,
    /// The self-signed certificate (X.509, DER).
    pub certificate: Vec<u8>,
}

impl fmt::Debug for AuthorityRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.certificate.len();
        write!(f, "AuthorityRecord {{ secret: <redacted>, certificate: {bytes} bytes }}")
    }
}

/// A token signing key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenKeyRecord {
    /// Secret seed of the key.
    pub seed: [u8; 32],
    /// Seconds since 1970, by the clock of the master that created the key.
    pub created_s: i64,
    /// The last second at which the key's signatures are accepted.
    pub expires_s: i64,
}

impl fmt::Debug for TokenKeyRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TokenKeyRecord { created_s, expires_s, .. } = self;
        write!(f, "TokenKeyRecord {{ seed: <redacted>, created_s: {created_s}, expires_s: {expires_s} }}")
    }
}

/// All secrets of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterSecrets {
    pub authority: Option<AuthorityRecord>,
    /// Token signing keys by number.
    pub token_keys: BTreeMap<i64, TokenKeyRecord>,
}

impl ClusterSecrets {
    /// Number of the next token key.
    pub fn next_token_key(&self) -> i64 {
        self.token_keys.last_key_value().map_or(0, |(number, _)| number + 1)
    }
}

/// A change of the secrets; stored as a whole or rejected as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SecretsChange {
    /// The CA of a cluster that has none.
    pub authority: Option<AuthorityRecord>,
    /// A new token key, with the next number.
    pub new_token_key: Option<(i64, TokenKeyRecord)>,
    /// Token keys to remove.
    pub removed_token_keys: Vec<i64>,
}

impl Catalog {
    pub fn secrets(&self) -> &ClusterSecrets {
        &self.secrets
    }

    pub(super) fn change_secrets(&mut self, change: SecretsChange) -> CatalogResult<CommandReply> {
        self.check_secrets(&change)?;
        if let Some(authority) = change.authority {
            self.secrets.authority = Some(authority);
            self.dirty.insert(SystemRowKey::Authority);
        }
        if let Some((number, key)) = change.new_token_key {
            self.secrets.token_keys.insert(number, key);
            self.dirty.insert(SystemRowKey::TokenKey(number));
        }
        for number in change.removed_token_keys {
            self.secrets.token_keys.remove(&number);
            self.dirty.insert(SystemRowKey::TokenKey(number));
        }
        Ok(CommandReply::Done)
    }

    fn check_secrets(&self, change: &SecretsChange) -> CatalogResult<()> {
        let invalid = |message: String| Err(CatalogError::invalid(message));
        if change.authority.is_some() && self.secrets.authority.is_some() {
            return invalid("certification authority: the cluster has one already".to_string());
        }
        let next = self.secrets.next_token_key();
        if let Some((number, _)) = &change.new_token_key
            && *number != next
        {
            return invalid(format!("token key: the number is not the next one ({number}, {next})"));
        }
        let newest = if change.new_token_key.is_some() { next } else { next - 1 };
        if change.removed_token_keys.contains(&newest) {
            return invalid(format!("token key: the newest one cannot be removed ({newest})"));
        }
        Ok(())
    }
}
