//! Secrets of the cluster: its certification authority (CA) and the token signing keys. Made elsewhere, stored here.
//!
//! Rules:
//!
//! - The CA is created once and never replaced.
//! - Token key numbers begin at 0 and grow by one. Invariant: a number is never used twice, so the newest key stays
//!   stored even if it has expired.
//! - Key material is part of the command: the same commands give the same catalog.

use super::Catalog;
use super::commands::{CommandReply, SecretsChange};
use super::error::{CatalogError, CatalogResult};
use super::record::{ClusterSecrets, SystemRowKey};

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
