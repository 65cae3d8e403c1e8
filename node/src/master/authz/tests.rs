//! The policy: its file, its rules against a simple model, its replacement.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use engine::disk::Disk;
use engine::sync::Mutex;
use expect_test::expect;
use proptest::prelude::*;

use super::policy::{NamePattern, PolicyRule, RuleUsers, TableRights};
use super::*;
use crate::server::health::CheckResult;
use nyala_common::env::{Disks, Env, mem_net};

const USERS: [&str; 3] = ["ann", "bob", "eve"];
const TABLES: [&str; 4] = ["sales.orders", "sales.log", "hr.people", "plain"];
const COLUMNS: [&str; 3] = ["id", "amount", "secret"];

fn parse(text: &str) -> AccessPolicy {
    AccessPolicy::parse(text.as_bytes(), "policy.toml").expect("a valid policy")
}

fn user(name: &str) -> Requester<'_> {
    Requester { user: name, is_owner: false }
}

fn rights(policy: &AccessPolicy, requester: Requester<'_>, table: &str) -> String {
    let TableRights { select, insert, update, delete, columns } =
        policy.rights(requester, table, COLUMNS.into_iter());
    let given = [("select", select), ("insert", insert), ("update", update), ("delete", delete)];
    let given = given.into_iter().filter(|(_, given)| *given).map(|(name, _)| name.to_string());
    given.chain(columns.iter().map(|column| format!("select({column})"))).collect::<Vec<_>>().join(" ")
}

#[test]
fn rules_add_up_and_columns_are_only_read() {
    let policy = parse(
        r#"
        [groups]
        analysts = ["ann", "b*"]

        [[rule]]
        users = ["@analysts"]
        databases = ["sales"]
        tables = ["orders"]
        columns = ["id", "am*"]
        allow = ["select"]

        [[rule]]
        users = ["ann"]
        databases = ["sales"]
        allow = ["insert", "create"]

        [[rule]]
        users = ["{owner}"]
        databases = ["*"]
        allow = ["all"]
        delegate_admin = true
        "#,
    );
    assert_eq!(rights(&policy, user("ann"), "sales.orders"), "insert select(amount) select(id)");
    assert_eq!(rights(&policy, user("bob"), "sales.orders"), "select(amount) select(id)");
    assert_eq!(rights(&policy, user("ann"), "sales.log"), "insert");
    assert_eq!(rights(&policy, user("eve"), "sales.orders"), "");
    let owner = Requester { user: "eve", is_owner: true };
    assert_eq!(rights(&policy, owner, "sales.orders"), "select insert update delete");
    let sees = |name, table| policy.allows_table(user(name), table, PolicyAction::Metadata, false);
    assert!(sees("bob", "sales.orders") && !sees("bob", "sales.log") && !sees("eve", "sales.orders"));
    let creates = |name, table| policy.allows_database(user(name), table, PolicyAction::Create, false);
    assert!(creates("ann", "sales.new") && !creates("bob", "sales.new") && !creates("ann", "new"));
    let asks = |requester, question| allows(&policy, requester, "sales.orders", question);
    let renames = |name| TableQuestion::Alter { new_name: Some(name), new_owner: false };
    assert!(asks(owner, TableQuestion::Drop) && !asks(user("ann"), TableQuestion::Drop));
    assert!(asks(owner, TableQuestion::Alter { new_name: None, new_owner: true }));
    assert!(!asks(user("ann"), renames("sales.x")), "ann may create there, but has not all rights here");
}

#[test]
fn all_rights_on_tables_are_none_on_their_database() {
    let policy = parse(
        r#"
        [[rule]]
        users = ["ann"]
        databases = ["sales"]
        tables = ["*"]
        allow = ["all"]

        [[rule]]
        users = ["bob"]
        databases = ["sales"]
        allow = ["all"]
        "#,
    );
    let creates = |name| policy.allows_database(user(name), "sales.new", PolicyAction::Create, false);
    assert!(!creates("ann") && creates("bob"));
    assert_eq!(rights(&policy, user("ann"), "sales.new"), "select insert update delete");
}

#[test]
fn a_file_with_one_mistake_is_rejected() {
    let faults = [
        "[[rule]]\nusers = [\"ann\"]\ndatabases = [\"d\"]\nallow = [\"read\"]",
        "[[rule]]\nusers = [\"ann\"]\ndatabases = [\"d\"]\nallow = [\"select\"]\ndeny = true",
        "[[rule]]\nusers = [\"ann\"]\nallow = [\"select\"]",
        "[[rule]]\nusers = [\"@x\"]\ndatabases = [\"d\"]\nallow = [\"select\"]",
        "[[rule]]\nusers = [\"{admin}\"]\ndatabases = [\"d\"]\nallow = [\"select\"]",
        "[[rule]]\nusers = []\ndatabases = [\"d\"]\nallow = [\"select\"]",
        "[[rule]]\nusers = [\"\"]\ndatabases = [\"d\"]\nallow = [\"select\"]",
        "[[rule]]\nusers = [\"a\"]\ndatabases = []\nallow = [\"select\"]",
        "[[rule]]\nusers = [\"a\"]\ndatabases = [\"d\"]\nallow = []",
        "[[rule]]\nusers = [\"a\"]\ndatabases = [\"d\"]\ntables = [\"t\"]\nallow = [\"create\"]",
        "[[rule]]\nusers = [\"a\"]\ndatabases = [\"d\"]\ncolumns = [\"c\"]\nallow = [\"insert\"]",
        "[[rule]]\nusers = [\"a\"]\ndatabases = [\"d\"]\nallow = [\"alter\"]\ndelegate_admin = true",
        "[[rules]]\nusers = [\"a\"]\ndatabases = [\"d\"]\nallow = [\"select\"]",
    ];
    let told = |text: &&str| {
        let error = AccessPolicy::parse(text.as_bytes(), "p").expect_err(text);
        let mut lines: Vec<&str> = error.message.lines().collect();
        // Between them is a picture of the place.
        lines.drain(1..lines.len() - usize::from(lines.len() > 1));
        format!("{}\n", lines.join(" … ").chars().take(100).collect::<String>())
    };
    expect![[r#"
        p: TOML parse error at line 4, column 10 … unknown variant `read`, expected one of `metadata`, `sele
        p: TOML parse error at line 5, column 1 … unknown field `deny`, expected one of `users`, `databases`
        p: TOML parse error at line 1, column 1 … missing field `databases`
        p, rule 1: users: there is no group "x"; add it to [groups]
        p, rule 1: users: "{admin}" begins with a reserved character
        p, rule 1: users: none are named; write "*" for all
        p, rule 1: users: an empty name or list; write "*" for all
        p, rule 1: databases: an empty name or list; write "*" for all
        p, rule 1: allow: nothing is given; name rights, or remove the rule
        p, rule 1: allow: create is a right on databases; leave tables out
        p, rule 1: allow: columns can only be read; allow select, or leave columns out
        p, rule 1: delegate_admin: of no use without the right all; allow it
        p: TOML parse error at line 1, column 3 … unknown field `rules`, expected `groups` or `rule`
    "#]]
    .assert_eq(&faults.iter().map(told).collect::<String>());
    assert!(AccessPolicy::parse(b"\xff", "p").is_err());
    assert_eq!(AccessPolicy::parse(b"", "p").expect("no rules"), AccessPolicy::default());
}

/// Matches by trying every split, as the definition of a pattern says.
fn matches_slowly(pattern: &[u8], name: &[u8]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some((b'*', rest)) => (0..=name.len()).any(|at| matches_slowly(rest, &name[at..])),
        Some((byte, rest)) => name.first() == Some(byte) && matches_slowly(rest, &name[1..]),
    }
}

/// A rule of the model: one user, exact names, `None` for all.
#[derive(Debug, Clone)]
struct ModelRule {
    user: Option<usize>,
    table: Option<usize>,
    columns: Option<BTreeSet<usize>>,
    action: PolicyAction,
}

fn model_rule() -> impl Strategy<Value = ModelRule> {
    use PolicyAction::{All, Delete, Insert, Metadata, Select, Update};
    let subset = proptest::collection::btree_set(0..COLUMNS.len(), 1..=2);
    let action = proptest::sample::select(vec![Select, Insert, Update, Delete, All, Metadata]);
    let rule = (
        proptest::option::of(0..USERS.len()),
        proptest::option::of(0..TABLES.len()),
        proptest::option::of(subset),
        action,
    );
    rule.prop_map(|(user, table, columns, action)| {
        let action = if columns.is_some() { Select } else { action };
        ModelRule { user, table, columns, action }
    })
}

fn pattern(name: Option<&str>) -> Vec<NamePattern> {
    vec![NamePattern::new(name.unwrap_or("*"))]
}

fn policy_rule(rule: &ModelRule) -> PolicyRule {
    let table = rule.table.map(|at| TABLES[at].split_once('.').unwrap_or(("default", TABLES[at])));
    PolicyRule {
        users: RuleUsers { names: pattern(rule.user.map(|at| USERS[at])), owner: false },
        databases: pattern(table.map(|(database, _)| database)),
        tables: table.map(|(_, table)| pattern(Some(table))),
        columns: rule
            .columns
            .as_ref()
            .map(|columns| columns.iter().map(|at| NamePattern::new(COLUMNS[*at])).collect()),
        actions: BTreeSet::from([rule.action]),
        delegate_admin: false,
    }
}

/// Returns true if a rule of the model gives the right on one cell of the table.
fn model_allows(rules: &[ModelRule], user: usize, table: usize, column: usize, action: PolicyAction) -> bool {
    rules.iter().any(|rule| {
        rule.user.is_none_or(|of| of == user)
            && rule.table.is_none_or(|of| of == table)
            && rule.columns.as_ref().is_none_or(|of| of.contains(&column))
            && (rule.action == action || rule.action == PolicyAction::All)
    })
}

proptest! {
    #[test]
    fn a_pattern_matches_as_defined(pattern in "[ab*]{0,6}", name in "[ab]{0,8}") {
        let slowly = matches_slowly(pattern.as_bytes(), name.as_bytes());
        prop_assert_eq!(NamePattern::new(&pattern).matches(&name), slowly);
    }

    /// Each cell is readable, and each kind of row writable, exactly if the model says so.
    #[test]
    fn rights_are_those_of_the_model(rules in proptest::collection::vec(model_rule(), 0..6)) {
        let policy = AccessPolicy { rules: rules.iter().map(policy_rule).collect() };
        for (u, t) in (0..USERS.len()).flat_map(|u| (0..TABLES.len()).map(move |t| (u, t))) {
            let rights = policy.rights(user(USERS[u]), TABLES[t], COLUMNS.into_iter());
            for (c, name) in COLUMNS.iter().enumerate() {
                let reads = rights.select || rights.columns.contains(*name);
                prop_assert_eq!(reads, model_allows(&rules, u, t, c, PolicyAction::Select));
            }
            // Rules with columns give no right to write, and the model's have no action but Select.
            let writes = |action| model_allows(&rules, u, t, 0, action);
            prop_assert_eq!(rights.insert, writes(PolicyAction::Insert));
            prop_assert_eq!(rights.update, writes(PolicyAction::Update));
            prop_assert_eq!(rights.delete, writes(PolicyAction::Delete));
            let about = |rule: &ModelRule| {
                rule.user.is_none_or(|of| of == u) && rule.table.is_none_or(|of| of == t)
            };
            let sees = policy.allows_table(user(USERS[u]), TABLES[t], PolicyAction::Metadata, false);
            prop_assert_eq!(sees, rules.iter().any(about));
        }
    }
}

/// Disks on which one file can be read.
struct OneFile(Mutex<Option<String>>);

impl Disks for OneFile {
    fn open(&self, _: &str) -> io::Result<Arc<dyn Disk>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn read_file(&self, _: &str) -> io::Result<Vec<u8>> {
        self.0.lock().clone().map(String::into_bytes).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_file_is_in_force_and_a_bad_one_is_not() {
    let rule = |user| format!("[[rule]]\nusers = [\"{user}\"]\ndatabases = [\"*\"]\nallow = [\"all\"]");
    let file = Arc::new(OneFile(Mutex::new(Some("[[rule]]".to_string()))));
    let env = Env { disks: file.clone(), ..mem_net::env() };
    let put = |text: Option<String>| *file.0.lock() = text;
    let interval = Duration::from_secs(10);
    assert!(PolicyFile::open(&env, "p", interval).is_err(), "a server with a bad policy does not start");
    put(None);
    assert!(PolicyFile::open(&env, "p", interval).is_err());
    put(Some(rule("ann")));
    let policy = PolicyFile::open(&env, "p", interval).expect("a valid file");
    let watching = env.spawn("policy", policy.clone().watch(env.clone()));
    let may = |name| policy.current().allows_table(user(name), "t", PolicyAction::Drop, false);
    let warns = || matches!(policy.check().result, CheckResult::Warning(_));
    assert!(may("ann") && !may("bob") && !warns());
    put(Some(rule("bob")));
    env.sleep(interval * 2).await;
    assert!(!may("ann") && may("bob") && !warns());
    for bad in [Some("[[rule]]".to_string()), None] {
        put(bad);
        env.sleep(interval * 2).await;
        assert!(may("bob") && warns(), "the policy before stays in force");
        assert!(policy.reload(&env).await.is_err());
    }
    put(Some(rule("ann")));
    assert_eq!(policy.reload(&env).await, Ok(()));
    assert!(may("ann") && !may("bob") && !warns());
    watching.abort();
}
