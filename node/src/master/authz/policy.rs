//! Policy: rules that give users rights on databases, tables and columns. Pure.
//!
//! ```text
//!   rule: users × databases × tables × columns ──▶ actions        no rule applies ──▶ no right
//! ```
//!
//! - Rules only give: the rights of a user are the union of all rules for the user. There is no order, and no denial.
//! - A table `sales.orders` is in the database `sales`. A table without a dot is in the database `default`.
//! - Invariant: a rule with columns gives rights to read those columns and to see the table, nothing else.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

/// Database of tables whose name has no dot.
const DEFAULT_DATABASE: &str = "default";

/// Right that a rule gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PolicyAction {
    /// To see a table: its schema, tablets and name. Every other right includes it.
    Metadata,
    Select,
    Insert,
    Update,
    Delete,
    Alter,
    Drop,
    /// To create tables in a database.
    Create,
    /// All others.
    All,
}

/// A name with `*` for any characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamePattern(String);

impl NamePattern {
    pub(super) fn new(pattern: &str) -> NamePattern {
        NamePattern(pattern.to_string())
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else { return false };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        for part in parts {
            let Some(at) = rest.find(part) else { return false };
            rest = &rest[at + part.len()..];
        }
        rest.len() >= last.len() && rest.ends_with(last)
    }
}

/// Users of a rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RuleUsers {
    pub(super) names: Vec<NamePattern>,
    /// True if the rule is for the owner of a table, on it.
    pub(super) owner: bool,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PolicyRule {
    pub(super) users: RuleUsers,
    pub(super) databases: Vec<NamePattern>,
    /// Names within the database; `None`: the database with all its tables.
    pub(super) tables: Option<Vec<NamePattern>>,
    /// `None`: all columns.
    pub(super) columns: Option<Vec<NamePattern>>,
    pub(super) actions: BTreeSet<PolicyAction>,
    /// True if the user may name other owners, and change owners.
    pub(super) delegate_admin: bool,
}

/// All rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AccessPolicy {
    pub(super) rules: Vec<PolicyRule>,
}

/// A user who asks for a right, and relation to the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Requester<'a> {
    pub(crate) user: &'a str,
    pub(crate) is_owner: bool,
}

/// Name of a table in two parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TableName<'a> {
    database: &'a str,
    table: &'a str,
}

impl<'a> TableName<'a> {
    fn of(name: &'a str) -> TableName<'a> {
        match name.split_once('.') {
            Some((database, table)) => TableName { database, table },
            None => TableName { database: DEFAULT_DATABASE, table: name },
        }
    }
}

/// Rights of a user on one table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TableRights {
    pub(crate) select: bool,
    pub(crate) insert: bool,
    pub(crate) update: bool,
    pub(crate) delete: bool,
    /// Readable columns, if not all are; names by column.
    pub(crate) columns: BTreeSet<String>,
}

fn any(patterns: &[NamePattern], name: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(name))
}

impl PolicyRule {
    fn is_for(&self, requester: Requester<'_>) -> bool {
        any(&self.users.names, requester.user) || self.users.owner && requester.is_owner
    }

    /// Returns true if the rule is about this table, or some of its columns.
    fn covers(&self, name: TableName<'_>) -> bool {
        let tables = self.tables.as_ref();
        any(&self.databases, name.database) && tables.is_none_or(|tables| any(tables, name.table))
    }

    /// Returns true if the rule gives a right; `delegate` asks for delegate-admin as well.
    fn gives(&self, action: PolicyAction, delegate: bool) -> bool {
        // Each right includes the right to see the table.
        let given = action == PolicyAction::Metadata
            || self.actions.contains(&action)
            || self.actions.contains(&PolicyAction::All);
        given && (!delegate || self.delegate_admin)
    }
}

impl AccessPolicy {
    fn rules_for<'a>(&'a self, requester: Requester<'a>) -> impl Iterator<Item = &'a PolicyRule> {
        self.rules.iter().filter(move |rule| rule.is_for(requester))
    }

    /// Returns true if the requester may do this with a whole table. `delegate` asks for delegate-admin as well.
    pub(crate) fn allows_table(
        &self,
        requester: Requester<'_>,
        table: &str,
        action: PolicyAction,
        delegate: bool,
    ) -> bool {
        let name = TableName::of(table);
        let sees = action == PolicyAction::Metadata;
        self.rules_for(requester)
            .any(|rule| rule.covers(name) && rule.gives(action, delegate) && (sees || rule.columns.is_none()))
    }

    /// Returns true if the requester may do this in the database of a table with this name.
    pub(crate) fn allows_database(
        &self,
        requester: Requester<'_>,
        table: &str,
        action: PolicyAction,
        delegate: bool,
    ) -> bool {
        let database = TableName::of(table).database;
        self.rules_for(requester).any(|rule| {
            rule.tables.is_none()
                && rule.columns.is_none()
                && any(&rule.databases, database)
                && rule.gives(action, delegate)
        })
    }

    /// Returns the rights to read and write a table with these columns.
    pub(crate) fn rights<'a>(
        &self,
        requester: Requester<'_>,
        table: &str,
        columns: impl Iterator<Item = &'a str>,
    ) -> TableRights {
        let may = |action| self.allows_table(requester, table, action, false);
        let select = may(PolicyAction::Select);
        let name = TableName::of(table);
        let readable = |column: &&str| {
            self.rules_for(requester).any(|rule| {
                rule.covers(name)
                    && rule.gives(PolicyAction::Select, false)
                    && rule.columns.as_ref().is_some_and(|columns| any(columns, column))
            })
        };
        let columns = columns.filter(|_| !select).filter(readable).map(str::to_string).collect();
        TableRights {
            select,
            insert: may(PolicyAction::Insert),
            update: may(PolicyAction::Update),
            delete: may(PolicyAction::Delete),
            columns,
        }
    }
}

/// Groups of users by name.
pub(super) type Groups = BTreeMap<String, Vec<String>>;
