//! Rights on tables: the masters' answers to who may do what, from a policy file.
//!
//! ```text
//!   authz_policy_file ── read at start, then when it changes ──▶ AccessPolicy
//!   call: user, table, question ──▶ Authorizer ──▶ allowed, or NOT_AUTHORIZED
//!   GetTableSchema ──▶ rights of the user ──▶ authorization token ──▶ `tserver::table_access` checks it
//! ```
//!
//! - Without a policy file every user may do everything with every table.
//! - A file that cannot be used ends the start. Later, the policy that was read last stays in force, and health warns.
//! - A table that is asked for by name is authorized before it is looked up: strangers learn of no name that exists.
//! - Superusers are not exempt, only the users of `trusted_user_acl`. Superusers and servers may see all tables.
//!
//! *Not here:* the calls that ask (`authz_calls.rs`).

mod policy;
mod policy_file;
mod watch;

use engine::catalog::{Catalog, CatalogError, TableEntry, TableRef};
use std::sync::Arc;

use nyala_common::security::acl::AccessList;
use nyala_proto::kudu::security::{ColumnPrivilegePb, TablePrivilegePb};

pub(crate) use self::policy::AccessPolicy;
pub(super) use self::policy::{PolicyAction, Requester};
pub(crate) use self::watch::PolicyFile;

/// Configuration of a master's authorization.
#[derive(Clone)]
pub struct AuthzConfig {
    /// Policy as read at the start; `None`: every user may do everything.
    pub(crate) policy: Option<Arc<PolicyFile>>,
    /// Users to whom the policy does not apply (`trusted_user_acl`).
    pub(crate) trusted: AccessList,
    /// True if clients get authorization tokens (`master_support_authz_tokens`).
    pub(crate) tokens: bool,
}

impl Default for AuthzConfig {
    fn default() -> AuthzConfig {
        AuthzConfig { policy: None, trusted: AccessList::Users(Default::default()), tokens: true }
    }
}

/// Question about one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableQuestion<'a> {
    /// To see schema, tablets and progress.
    Metadata,
    /// To read sizes and row counts.
    Statistics,
    Drop,
    Alter {
        new_name: Option<&'a str>,
        new_owner: bool,
    },
}

impl TableQuestion<'_> {
    /// Returns true for a change of the table.
    pub(super) fn changes(self) -> bool {
        matches!(self, TableQuestion::Drop | TableQuestion::Alter { .. })
    }
}

/// A table that a request names.
#[derive(Debug)]
pub(super) struct NamedTable {
    pub(super) name: String,
    /// Empty if there is no such table.
    pub(super) owner: String,
}

/// Answers questions by the policy in force.
pub(super) struct Authorizer {
    config: AuthzConfig,
}

impl Authorizer {
    pub(super) fn new(config: AuthzConfig) -> Authorizer {
        Authorizer { config }
    }

    /// Returns the policy that applies to a user; `None` if the user may do everything.
    pub(super) fn policy(&self, user: &str) -> Option<Arc<AccessPolicy>> {
        if self.config.trusted.has(user) {
            return None;
        }
        self.config.policy.as_ref().map(|file| file.current())
    }

    /// Returns true if clients get authorization tokens.
    pub(super) fn gives_tokens(&self) -> bool {
        self.config.tokens
    }

    pub(super) fn policy_file(&self) -> Option<&Arc<PolicyFile>> {
        self.config.policy.as_ref()
    }

    /// Returns true if the user may see the table in a list.
    pub(super) fn lists(&self, user: &str, table: &TableEntry<'_>) -> bool {
        self.allows(user, table, TableQuestion::Metadata)
    }

    /// Returns true if the user may do this with the table.
    pub(super) fn allows(&self, user: &str, table: &TableEntry<'_>, question: TableQuestion<'_>) -> bool {
        self.policy(user).is_none_or(|policy| {
            let requester = Requester { user, is_owner: table.record.owner == user };
            allows(&policy, requester, &table.record.name, question)
        })
    }

    /// Returns the privileges for an authorization token.
    pub(super) fn privilege(&self, user: &str, table: &TableEntry<'_>) -> TablePrivilegePb {
        let table_id = Some(table.id.to_string());
        let Some(policy) = self.policy(user) else {
            let all = Some(true);
            return TablePrivilegePb {
                table_id,
                scan_privilege: all,
                insert_privilege: all,
                update_privilege: all,
                delete_privilege: all,
                ..TablePrivilegePb::default()
            };
        };
        let requester = Requester { user, is_owner: table.record.owner == user };
        let columns = table.schema().columns();
        let names = columns.iter().map(|column| column.name.as_str());
        let rights = policy.rights(requester, &table.record.name, names);
        let readable = columns.iter().filter(|column| rights.columns.contains(&column.name));
        let granted = ColumnPrivilegePb { scan_privilege: Some(true) };
        TablePrivilegePb {
            table_id,
            scan_privilege: Some(rights.select),
            insert_privilege: Some(rights.insert),
            update_privilege: Some(rights.update),
            delete_privilege: Some(rights.delete),
            column_privileges: readable.map(|column| (column.id.0 as i32, granted)).collect(),
        }
    }
}

pub(super) fn allows(
    policy: &AccessPolicy,
    requester: Requester<'_>,
    table: &str,
    question: TableQuestion<'_>,
) -> bool {
    let may = |action, delegate| policy.allows_table(requester, table, action, delegate);
    match question {
        TableQuestion::Metadata => may(PolicyAction::Metadata, false),
        TableQuestion::Statistics => may(PolicyAction::Select, false),
        TableQuestion::Drop => may(PolicyAction::Drop, false),
        TableQuestion::Alter { new_name, new_owner } => {
            let renames = |name| {
                may(PolicyAction::All, false)
                    && policy.allows_database(requester, name, PolicyAction::Create, false)
            };
            let changes =
                if new_owner { may(PolicyAction::All, true) } else { may(PolicyAction::Alter, false) };
            changes && new_name.is_none_or(renames)
        }
    }
}

/// Returns the tables that a request names, and the one that it means.
pub(super) fn named_tables(
    catalog: &Catalog,
    table: &TableRef,
) -> (Vec<NamedTable>, Result<TableRef, CatalogError>) {
    let of = |entry: TableEntry<'_>| NamedTable {
        name: entry.record.name.clone(),
        owner: entry.record.owner.clone(),
    };
    let by_name = table.name.as_ref().map(|name| {
        let found = catalog.table(&TableRef::by_name(name)).map(of);
        found.unwrap_or_else(|_| NamedTable { name: name.clone(), owner: String::new() })
    });
    let by_id = table.id.and_then(|id| catalog.table(&TableRef::by_id(id)).ok()).map(of);
    let meant = catalog.table(table).map(|entry| TableRef {
        id: Some(entry.id),
        // The command that follows fails if the table was renamed meanwhile: other rights may apply to the new name.
        name: Some(entry.record.name.clone()),
    });
    (by_name.into_iter().chain(by_id).collect(), meant)
}

#[cfg(test)]
mod tests;
