//! The policy file: TOML, checked whole. A file with one mistake is rejected.
//!
//! ```toml
//! [groups]
//! analysts = ["ann", "bob"]
//!
//! [[rule]]
//! users = ["@analysts", "{owner}"]       # names, patterns, groups, the owner of a table
//! databases = ["sales"]
//! tables = ["orders", "log_*"]           # without it: the database and all its tables
//! columns = ["id", "amount"]             # without it: all columns
//! allow = ["select"]
//! ```

use std::collections::BTreeSet;

use engine::error::{Error, Result};
use serde::Deserialize;

use super::policy::{AccessPolicy, Groups, NamePattern, PolicyAction, PolicyRule, RuleUsers};

/// User of a rule: the owner of a table.
const OWNER: &str = "{owner}";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyToml {
    #[serde(default)]
    groups: Groups,
    #[serde(default)]
    rule: Vec<RuleToml>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleToml {
    users: Vec<String>,
    databases: Vec<String>,
    tables: Option<Vec<String>>,
    columns: Option<Vec<String>>,
    allow: BTreeSet<PolicyAction>,
    #[serde(default)]
    delegate_admin: bool,
}

impl AccessPolicy {
    /// Parses a policy file. `Invalid` names the file, the rule by number, and the mistake.
    pub(crate) fn parse(bytes: &[u8], path: &str) -> Result<AccessPolicy> {
        let text = std::str::from_utf8(bytes)
            .map_err(|error| Error::invalid(format!("{path}: not UTF-8 ({error})")))?;
        let file: PolicyToml = toml::from_str(text)
            .map_err(|error| Error::invalid(format!("{path}: {}", error.to_string().trim_end())))?;
        let rule = |(at, rule): (usize, RuleToml)| {
            rule.check(&file.groups).map_err(|error| error.context(format_args!("{path}, rule {}", at + 1)))
        };
        let rules = file.rule.into_iter().enumerate().map(rule).collect::<Result<_>>()?;
        Ok(AccessPolicy { rules })
    }
}

impl RuleToml {
    fn check(self, groups: &Groups) -> Result<PolicyRule> {
        let columns_may = [PolicyAction::Select, PolicyAction::Metadata];
        if self.allow.is_empty() {
            return Err(Error::invalid("allow: nothing is given; name rights, or remove the rule"));
        }
        if self.tables.is_some() && self.allow.contains(&PolicyAction::Create) {
            return Err(Error::invalid("allow: create is a right on databases; leave tables out"));
        }
        if self.columns.is_some() && self.allow.iter().any(|action| !columns_may.contains(action)) {
            return Err(Error::invalid(
                "allow: columns can only be read; allow select, or leave columns out",
            ));
        }
        if self.delegate_admin && !self.allow.contains(&PolicyAction::All) {
            return Err(Error::invalid("delegate_admin: of no use without the right all; allow it"));
        }
        if self.delegate_admin && self.columns.is_some() {
            return Err(Error::invalid("delegate_admin: is a right on tables; leave columns out"));
        }
        Ok(PolicyRule {
            users: users(self.users, groups)?,
            databases: patterns("databases", self.databases)?,
            tables: self.tables.map(|names| patterns("tables", names)).transpose()?,
            columns: self.columns.map(|names| patterns("columns", names)).transpose()?,
            actions: self.allow,
            delegate_admin: self.delegate_admin,
        })
    }
}

fn patterns(field: &str, names: Vec<String>) -> Result<Vec<NamePattern>> {
    if names.is_empty() || names.iter().any(String::is_empty) {
        return Err(Error::invalid(format!("{field}: an empty name or list; write \"*\" for all")));
    }
    Ok(names.iter().map(|name| NamePattern::new(name)).collect())
}

/// Returns the users of a rule, with groups replaced by their members.
fn users(listed: Vec<String>, groups: &Groups) -> Result<RuleUsers> {
    let mut users = RuleUsers::default();
    let mut names = Vec::new();
    for name in listed {
        if name == OWNER {
            users.owner = true;
        } else if let Some(group) = name.strip_prefix('@') {
            let unknown =
                || Error::invalid(format!("users: there is no group {group:?}; add it to [groups]"));
            names.extend(groups.get(group).ok_or_else(unknown)?.iter().cloned());
        } else {
            names.push(name);
        }
    }
    // A reserved character would be a later form of a user: a rule that matches no user would hide a mistake.
    if let Some(name) = names.iter().find(|name| name.starts_with(['@', '{', '!', '%'])) {
        return Err(Error::invalid(format!("users: {name:?} begins with a reserved character")));
    }
    if names.is_empty() && !users.owner {
        return Err(Error::invalid("users: none are named; write \"*\" for all"));
    }
    if !names.is_empty() {
        users.names = patterns("users", names)?;
    }
    Ok(users)
}
