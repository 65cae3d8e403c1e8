//! Authorization tokens of open tables: bearers of the user's rights, which tablet servers demand.
//!
//! ```text
//!   open a table ──▶ token ──▶ Scan, Write ──▶ rejected (17: expired, key gone) ──▶ one GetTableSchema ──▶ repeat
//! ```
//!
//! A token is cached by table, not by open table: sessions hold tables for long, and tokens expire in minutes.

use std::collections::BTreeMap;

use engine::sync::Mutex;

use nyala_proto::kudu::security::SignedTokenPb;

/// Last token of each table, by the table's id.
#[derive(Default)]
pub(super) struct AuthzTokens {
    tokens: Mutex<BTreeMap<String, SignedTokenPb>>,
    /// Held while a token is fetched, so that many rejected calls fetch one token.
    pub(super) fetching: tokio::sync::Mutex<()>,
}

impl AuthzTokens {
    pub(super) fn get(&self, table_id: &str) -> Option<SignedTokenPb> {
        self.tokens.lock().get(table_id).cloned()
    }

    /// Sets the token of a table; `None` leaves the one it has.
    pub(super) fn set(&self, table_id: &str, token: Option<SignedTokenPb>) {
        if let Some(token) = token {
            self.tokens.lock().insert(table_id.to_string(), token);
        }
    }
}
