//! Randomized and directed tests of groups of Raft cores.

use engine_testkit::group::Group;

fn run(seed: u64, steps: u64) -> Group {
    let mut group = Group::from_seed(seed);
    for _ in 0..steps {
        group.advance();
    }
    group.heal();
    group
}

#[test]
fn invariants_hold_in_random_runs() {
    let (mut elections, mut truncations, mut changes, mut committed, mut behind) = (0, 0, 0, 0, 0);
    let mut deferrable = [0; 2];
    for seed in 0..400 {
        let result = std::panic::catch_unwind(|| run(seed, 3_000));
        let Ok(group) = result else { panic!("seed {seed}: see above") };
        elections += group.checks.elections;
        truncations += group.checks.truncations;
        changes += group.checks.changes;
        committed += group.checks.committed.len();
        behind += group.checks.disk_behind;
        deferrable.iter_mut().zip(group.deferrable_events()).for_each(|(sum, more)| *sum += more);
    }
    // A run without these events proves nothing.
    let seen = format!(
        "{elections} elections, {truncations} truncations, {changes} changes, {committed} committed, {behind} behind, {deferrable:?} deferrable events"
    );
    assert!(
        elections > 300
            && truncations > 50
            && changes > 50
            && committed > 5_000
            && behind > 10
            && deferrable.iter().all(|times| *times > 500),
        "{seen}"
    );
}

/// Directed tests: random walks through the specification's models, and the counterexamples of the specification
/// without one of its guards (`cargo ci spec --directed`).
#[test]
fn the_code_follows_behaviours_of_the_models() {
    let scripts = scripts();
    let (mut steps, mut refused) = (0, 0);
    for (name, text) in &scripts {
        refused += usize::from(text.contains("\nrefused "));
        steps += engine_testkit::group::script::follow(text).unwrap_or_else(|why| panic!("{name}: {why}"));
    }
    assert!(refused >= 15 && steps > 300, "{} scripts, {steps} steps, {refused} refused", scripts.len());
}

/// An invalid line of a script is reported, not skipped.
#[test]
fn an_invalid_script_is_rejected() {
    let head = "nyala-script 1\norigin by hand\nservers=s1,s2,s3 voters=s1,s2,s3 learners=none eager=true\n";
    let elected = "1 s1 StartElection asked=true | term=1 vote=s1 role=candidate commit=0\n";
    assert_eq!(engine_testkit::group::script::follow(&format!("{head}{elected}")), Ok(1));
    for (line, why) in [
        ("1 s1 StartElection asked=true | term=2 vote=s1", "the specification has term=2 where the code is"),
        ("refused 1 s1 StartElection asked=true | term=1", "the code does what the specification forbids"),
        ("1 s1 StartElection | term=1", "asked=... is missing"),
        ("1 s1 BecomeKing | term=1", "unknown action"),
        ("1 s2 GrantVote candidate=s1 term=1 | term=1", "s1 did not ask for this vote"),
        ("1 s1 StartElection asked=true", "is not `NUMBER SERVER ACTION ... | STATE`"),
    ] {
        let message = engine_testkit::group::script::follow(&format!("{head}{line}\n")).expect_err(line);
        assert!(message.contains(why), "{message}");
    }
    assert!(engine_testkit::group::script::follow(head).expect_err("no steps").contains("without steps"));
    assert!(
        engine_testkit::group::script::follow("nyala-script 2\n")
            .expect_err("another version")
            .contains("nyala-script 1")
    );
}

/// Returns the scripts with their names, in order.
#[allow(clippy::disallowed_methods)] // a test reads its files as a program does
fn scripts() -> Vec<(String, String)> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripts");
    let mut paths: Vec<_> = std::fs::read_dir(dir)
        .expect("the directory of scripts")
        .map(|e| e.expect("an entry").path())
        .collect();
    paths.sort();
    let read = |path: &std::path::PathBuf| std::fs::read_to_string(path).expect("a script");
    paths.iter().map(|path| (path.display().to_string(), read(path))).collect()
}
