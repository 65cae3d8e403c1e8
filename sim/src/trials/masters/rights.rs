//! A drawn policy, as a file and as a model: who may do what by the documents.
//!
//! Rules only give. A rule with tables gives nothing on their database: neither to create tables there, nor to rename
//! tables into it. A rule with columns gives the right to see their tables, and to read the columns, which only tokens
//! state.

use std::fmt::Write;

use sim_plan::RandomStream;

use super::settings::COLUMN;

/// Users of requests. Others are only those of rules for all.
pub(super) const USERS: [&str; 3] = ["ann", "bob", "eve"];
/// Databases, of which the last has no name in those of tables.
pub(super) const DATABASES: [&str; 3] = ["sales", "hr", "default"];
/// First letters of tables' names within their database.
pub(super) const LETTERS: [&str; 2] = ["a", "b"];
/// Databases of rules: one of them, or all.
const RULED: [&str; 4] = ["*", "sales", "hr", "default"];
/// Percentage of rules with columns, and a pattern that matches no column.
const WITH_COLUMNS: u64 = 15;
const NO_COLUMN: &str = "no*";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    Metadata,
    Select,
    Insert,
    Update,
    Delete,
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
    /// Pattern of the columns that it is about; `None`: the whole table.
    columns: Option<&'static str>,
    rights: Vec<Right>,
    delegates: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Policy(Vec<Rule>);

/// A request about one table.
#[derive(Debug, Clone)]
pub(super) enum Wish<'a> {
    Create {
        owner: Option<&'a str>,
    },
    See,
    /// To read sizes and row counts.
    Count,
    Drop,
    Alter {
        new_name: Option<&'a str>,
        new_owner: bool,
    },
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
        all.extend([Right::Insert, Right::Update, Right::Delete]);
        if tables.is_none() {
            all.push(Right::Create);
        }
        let mut rights: Vec<Right> = all.into_iter().filter(|_| random.percent(40)).collect();
        if rights.is_empty() || random.percent(40) {
            rights.push(Right::All);
        }
        let columns = random.percent(WITH_COLUMNS).then(|| random.pick(&[COLUMN, NO_COLUMN]));
        if columns.is_some() {
            // Columns can only be read.
            rights = vec![random.pick(&[Right::Select, Right::Select, Right::Metadata])];
        }
        let delegates = rights.contains(&Right::All) && random.percent(40);
        let database = random.pick(&RULED);
        Rule { user, database, tables, columns, rights, delegates }
    }

    /// Draws a rule by which a user may create tables.
    fn draw_creator(random: &mut RandomStream) -> Rule {
        let (user, database) = (Some(random.pick(&["ann", "bob"])), random.pick(&RULED));
        let others = [Right::Select, Right::Insert, Right::Update, Right::Delete, Right::Alter, Right::Drop];
        let others = others.into_iter().filter(|_| random.percent(40));
        let rights = [Right::Create].into_iter().chain(others).collect();
        Rule { user, database, tables: None, columns: None, rights, delegates: false }
    }

    fn text(&self) -> String {
        let user = self.user.unwrap_or("{owner}");
        let mut text = format!("[[rule]]\nusers = [\"{user}\"]\ndatabases = [\"{}\"]\n", self.database);
        if let Some(letter) = self.tables {
            let star = if letter == "*" { "" } else { "*" };
            writeln!(text, "tables = [\"{letter}{star}\"]").expect("a text takes all");
        }
        if let Some(columns) = self.columns {
            writeln!(text, "columns = [\"{columns}\"]").expect("a text takes all");
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

    /// Returns true if it is about the table, or a column of it.
    fn covers(&self, name: &str) -> bool {
        let table = parts(name).1;
        self.is_about(name) && self.tables.is_none_or(|letter| letter == "*" || table.starts_with(letter))
    }
}

impl Policy {
    pub(super) fn draw(random: &mut RandomStream) -> Policy {
        // Without tables there is nothing that a policy could hide.
        let mut rules = vec![Rule::draw_creator(random)];
        let count = random.between(1, 5);
        rules.extend((0..count).map(|_| Rule::draw(random)));
        Policy(rules)
    }

    /// Returns the policy's file.
    pub(super) fn text(&self) -> String {
        self.0.iter().map(Rule::text).collect()
    }

    fn on_table(&self, user: &str, owns: bool, name: &str, right: Right, delegates: bool) -> bool {
        self.0.iter().any(|rule| {
            let is_given = rule.columns.is_none() || right == Right::Metadata;
            is_given && rule.is_for(user, owns) && rule.covers(name) && rule.gives(right, delegates)
        })
    }

    fn on_database(&self, user: &str, owns: bool, name: &str, right: Right, delegates: bool) -> bool {
        let whole = self.0.iter().filter(|rule| rule.tables.is_none() && rule.columns.is_none());
        let mut own = whole.filter(|rule| rule.is_for(user, owns) && rule.is_about(name));
        own.any(|rule| rule.gives(right, delegates))
    }

    /// Returns the rights of a user to read, insert, update and delete rows of a table.
    pub(super) fn data_rights(&self, user: &str, name: &str, owner: &str) -> [bool; 4] {
        let all = [Right::Select, Right::Insert, Right::Update, Right::Delete];
        all.map(|right| self.on_table(user, user == owner, name, right, false))
    }

    /// Returns true if a user may read the table's column, and not the whole table.
    pub(super) fn reads_column(&self, user: &str, name: &str, owner: &str) -> bool {
        let owns = user == owner;
        let gives = |rule: &Rule| {
            rule.columns == Some(COLUMN)
                && rule.is_for(user, owns)
                && rule.covers(name)
                && rule.gives(Right::Select, false)
        };
        !self.on_table(user, owns, name, Right::Select, false) && self.0.iter().any(gives)
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
            Wish::Count => may(Right::Select, false),
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
        Rule { user, database: "sales", tables, columns: None, rights: vec![right], delegates: false }
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
    fn a_drawn_policy_lets_some_user_create_tables() {
        for seed in 0..20 {
            let policy = Policy::draw(&mut RandomStream::new(seed, "policy"));
            let creates = |user: &str, database: &str| {
                policy.allows(user, &name(database, "a1"), "", &Wish::Create { owner: None })
            };
            let any = USERS.iter().any(|user| DATABASES.iter().any(|database| creates(user, database)));
            assert!(any, "{policy:?}");
        }
    }

    #[test]
    fn owners_have_their_rules() {
        let policy = Policy(vec![rule(None, Some("*"), Right::Drop)]);
        assert!(policy.allows("eve", "sales.a1", "eve", &Wish::Drop));
        assert!(!policy.allows("bob", "sales.a1", "eve", &Wish::Drop));
        let text = policy.text();
        assert!(
            !text.contains("columns") && text.contains("{owner}") && text.contains("allow = [\"drop\"]"),
            "{text}"
        );
    }

    #[test]
    fn rights_on_rows_are_those_of_all_rules() {
        let of = |right| rule(Some("ann"), Some("a"), right);
        let policy = Policy(vec![of(Right::Insert), of(Right::Delete), rule(None, None, Right::All)]);
        let rights = |user, name| policy.data_rights(user, name, "eve");
        assert_eq!(rights("ann", "sales.a1"), [false, true, false, true]);
        assert_eq!((rights("eve", "sales.a1"), rights("ann", "sales.b1")), ([true; 4], [false; 4]));
        assert!(policy.allows("ann", "sales.a1", "eve", &Wish::See), "each right includes that");
        let counts = |user| policy.allows(user, "sales.a1", "eve", &Wish::Count);
        assert!(counts("eve") && !counts("ann"));
    }

    #[test]
    fn a_rule_with_columns_gives_the_right_to_read_them_and_nothing_else() {
        let of_columns = |columns| Rule { columns: Some(columns), ..rule(Some("ann"), None, Right::Select) };
        let policy = Policy(vec![of_columns(COLUMN)]);
        assert!(
            policy.reads_column("ann", "sales.a1", "eve") && !policy.reads_column("bob", "sales.a1", "eve")
        );
        assert_eq!(policy.data_rights("ann", "sales.a1", "eve"), [false; 4]);
        let allows = |wish: Wish<'_>| policy.allows("ann", "sales.a1", "eve", &wish);
        assert!(allows(Wish::See) && !allows(Wish::Count) && !allows(Wish::Create { owner: None }));
        assert!(policy.text().contains("columns = [\"k\"]"), "{}", policy.text());
        let policy = Policy(vec![of_columns(NO_COLUMN)]);
        assert!(policy.allows("ann", "sales.a1", "eve", &Wish::See));
        assert!(!policy.reads_column("ann", "sales.a1", "eve"));
        let policy = Policy(vec![of_columns(COLUMN), rule(Some("*"), None, Right::Select)]);
        assert!(!policy.reads_column("ann", "sales.a1", "eve"), "the whole table is readable");
    }
}
