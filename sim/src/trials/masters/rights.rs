//! A drawn policy, as a file and as a model: who may do what by the documents.
//!
//! Rules only give. A rule with tables gives nothing on their database: neither to create tables there, nor to rename
//! tables into it.

use std::fmt::Write;

use sim_plan::RandomStream;

/// Users of requests. Others are only those of rules for all.
pub(super) const USERS: [&str; 3] = ["ann", "bob", "eve"];
/// Databases, of which the last has no name in those of tables.
pub(super) const DATABASES: [&str; 3] = ["sales", "hr", "default"];
/// First letters of tables' names within their database.
pub(super) const LETTERS: [&str; 2] = ["a", "b"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    Metadata,
    Select,
    Alter,
    Drop,
    Create,
    All,
}

#[derive(Debug, Clone)]
struct Rule {
    /// `None`: the owner of a table.
    user: Option<&'static str>,
    database: &'static str,
    /// First letter of tables, `*` for any; `None`: the database with all its tables.
    tables: Option<&'static str>,
    rights: Vec<Right>,
    delegates: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Policy(Vec<Rule>);

/// A request about one table.
#[derive(Debug, Clone)]
pub(super) enum Wish<'a> {
    Create { owner: Option<&'a str> },
    See,
    Drop,
    Alter { new_name: Option<&'a str>, new_owner: bool },
}

/// Returns the name of a table.
pub(super) fn name(database: &str, table: &str) -> String {
    if database == "default" { table.to_string() } else { format!("{database}.{table}") }
}

fn parts(name: &str) -> (&str, &str) {
    name.split_once('.').unwrap_or(("default", name))
}

impl Rule {
    fn draw(random: &mut RandomStream) -> Rule {
        let user = random.weighted(&[(None, 2), (Some("*"), 1), (Some("ann"), 3), (Some("bob"), 3)]);
        let tables = random.weighted(&[(None, 4), (Some("*"), 2), (Some("a"), 2), (Some("b"), 1)]);
        let mut all = vec![Right::Metadata, Right::Select, Right::Alter, Right::Drop];
        if tables.is_none() {
            all.push(Right::Create);
        }
        let mut rights: Vec<Right> = all.into_iter().filter(|_| random.percent(40)).collect();
        if rights.is_empty() || random.percent(40) {
            rights.push(Right::All);
        }
        let delegates = rights.contains(&Right::All) && random.percent(40);
        let database = random.pick(&["*", "sales", "hr", "default"]);
        Rule { user, database, tables, rights, delegates }
    }

    fn text(&self) -> String {
        let user = self.user.unwrap_or("{owner}");
        let mut text = format!("[[rule]]\nusers = [\"{user}\"]\ndatabases = [\"{}\"]\n", self.database);
        if let Some(letter) = self.tables {
            let star = if letter == "*" { "" } else { "*" };
            writeln!(text, "tables = [\"{letter}{star}\"]").expect("a text takes all");
        }
        let rights: Vec<String> =
            self.rights.iter().map(|right| format!("{right:?}").to_lowercase()).collect();
        writeln!(text, "allow = {rights:?}\ndelegate_admin = {}", self.delegates).expect("a text takes all");
        text
    }

    fn is_for(&self, user: &str, owns: bool) -> bool {
        self.user.map_or(owns, |named| named == "*" || named == user)
    }

    fn gives(&self, right: Right, delegates: bool) -> bool {
        let given = self.rights.contains(&right) || self.rights.contains(&Right::All);
        (given || right == Right::Metadata) && (self.delegates || !delegates)
    }

    fn is_about(&self, name: &str) -> bool {
        self.database == "*" || self.database == parts(name).0
    }
}

impl Policy {
    pub(super) fn draw(random: &mut RandomStream) -> Policy {
        let count = random.between(2, 6);
        Policy((0..count).map(|_| Rule::draw(random)).collect())
    }

    /// Returns the policy's file.
    pub(super) fn text(&self) -> String {
        self.0.iter().map(Rule::text).collect()
    }

    fn on_table(&self, user: &str, owns: bool, name: &str, right: Right, delegates: bool) -> bool {
        let covers =
            |rule: &Rule| rule.tables.is_none_or(|letter| letter == "*" || parts(name).1.starts_with(letter));
        self.0.iter().any(|rule| {
            rule.is_for(user, owns) && rule.is_about(name) && covers(rule) && rule.gives(right, delegates)
        })
    }

    fn on_database(&self, user: &str, owns: bool, name: &str, right: Right, delegates: bool) -> bool {
        let whole = self.0.iter().filter(|rule| rule.tables.is_none());
        let mut own = whole.filter(|rule| rule.is_for(user, owns) && rule.is_about(name));
        own.any(|rule| rule.gives(right, delegates))
    }

    /// Returns true if a user may do this with the table of this name and owner.
    pub(super) fn allows(&self, user: &str, name: &str, owner: &str, wish: &Wish<'_>) -> bool {
        let owns = user == owner;
        let may = |right, delegates| self.on_table(user, owns, name, right, delegates);
        match wish {
            Wish::Create { owner: Some(other) } if *other != user => {
                self.on_database(user, false, name, Right::All, true)
            }
            Wish::Create { .. } => self.on_database(user, false, name, Right::Create, false),
            Wish::See => may(Right::Metadata, false),
            Wish::Drop => may(Right::Drop, false),
            Wish::Alter { new_name, new_owner } => {
                let changes = if *new_owner { may(Right::All, true) } else { may(Right::Alter, false) };
                let moves = |to: &str| {
                    may(Right::All, false) && self.on_database(user, owns, to, Right::Create, false)
                };
                changes && new_name.is_none_or(moves)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(user: Option<&'static str>, tables: Option<&'static str>, right: Right) -> Rule {
        Rule { user, database: "sales", tables, rights: vec![right], delegates: false }
    }

    #[test]
    fn a_rule_for_tables_gives_nothing_on_their_database() {
        let policy = Policy(vec![rule(Some("ann"), Some("a"), Right::All)]);
        let allows = |user, name, wish: Wish<'_>| policy.allows(user, name, "eve", &wish);
        assert!(allows("ann", "sales.a1", Wish::Drop) && !allows("ann", "sales.b1", Wish::Drop));
        assert!(!allows("ann", "sales.a2", Wish::Create { owner: None }), "a right on databases");
        let renames = |to| Wish::Alter { new_name: Some(to), new_owner: false };
        assert!(!allows("ann", "sales.a1", renames("sales.a2")) && !allows("bob", "sales.a1", Wish::See));
        let policy = Policy(vec![rule(Some("ann"), None, Right::All)]);
        assert!(policy.allows("ann", "sales.a1", "eve", &renames("sales.b2")));
        assert!(!policy.allows("ann", "sales.a1", "eve", &renames("b2")), "another database");
    }

    #[test]
    fn owners_have_their_rules() {
        let policy = Policy(vec![rule(None, Some("*"), Right::Drop)]);
        assert!(policy.allows("eve", "sales.a1", "eve", &Wish::Drop));
        assert!(!policy.allows("bob", "sales.a1", "eve", &Wish::Drop));
        let text = policy.text();
        assert!(text.contains("{owner}") && text.contains("allow = [\"drop\"]"), "{text}");
    }
}
