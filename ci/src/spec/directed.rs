//! `cargo ci spec --directed`: behaviours of the models as scripts that drive the code through the same steps.
//!
//! - Walks are random behaviours of the models: the code must be in the spec's state after every step.
//! - Counterexamples are the shortest behaviours in which a spec without one of its guards violates a property. The
//!   complete spec follows them up to a step that it forbids; so must the code.
//!
//! `engine/tests/support/group/script.rs` follows scripts and documents their format; every `cargo test` follows those
//! in `engine/tests/scripts`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::command::CommandLine;

use super::model::Model;
use super::options::example;
use super::report::{self, DirectedRow};
use super::spec_mutants::SpecMutant;
use super::tla::TlaValue;
use super::tlc::{RandomWalk, Tlc, TlcVerdict};

/// Guards whose first property does not show in replicas' states, with a property that does.
const SHOWN_BY: [(&str, &str); 2] = [("votedurable", "OneLeaderPerTerm"), ("readylast", "AcknowledgedStays")];

/// Models of the walks, with constants that are larger there than in the model.
const WALKS: [(&str, &[(&str, &str)]); 7] = [
    ("MCRaft", &[("MaxTerm", "4"), ("MaxLen", "6")]),
    ("MCLazy", &[("MaxTerm", "3"), ("MaxLen", "4")]),
    ("MCPreVote", &[("MaxTerm", "3"), ("MaxLen", "3")]),
    ("MCOperator", &[("MaxTerm", "3"), ("MaxLen", "5")]),
    ("MCGuided", &[("MaxTerm", "2"), ("MaxLen", "6"), ("MaxCfg", "3")]),
    ("MCStale", &[("MaxTerm", "4"), ("MaxLen", "6"), ("MaxCfg", "1"), ("MaxCopies", "3")]),
    ("MCFails", &[("MaxTerm", "4"), ("MaxLen", "6"), ("MaxCopies", "3")]),
];
const WALK_DEPTH: u32 = 60;
/// Time for all walks of one model; they take seconds.
const WALK_TIME: Duration = Duration::from_secs(600);

/// Walks of each model that are kept with the counterexamples.
const WALKS_KEPT: usize = 2;
const KEPT: &str = "engine/tests/scripts";

/// A behaviour that drives a group.
#[derive(Debug, Clone)]
struct Script {
    name: String,
    /// Models and properties, as text.
    origin: String,
    setup: String,
    steps: Vec<TlaValue>,
    /// Number of steps that the complete spec allows.
    allowed: usize,
}

/// Creates scripts, with `walks` random ones of each model, and drives the code through them.
pub(super) fn run(
    root: &Path,
    tlc: &Tlc,
    seed: u64,
    walks: u64,
    only: Option<&str>,
    write: bool,
) -> Result<()> {
    ensure!(only.is_none() || !write, "--only leaves scripts out, which --write would delete");
    let wanted = |text: &str| only.is_none_or(|only| text.contains(only));
    let spec = root.join("spec");
    let models = Model::all(&spec)?;
    let mutants = SpecMutant::parse_all(&fs::read_to_string(spec.join("mutants.txt"))?)?;
    let mut scripts = Vec::new();
    let mut seen = Vec::new();
    for mutant in &mutants {
        let model = find(&models, &mutant.model)?;
        let raft = matches!(model.module.as_str(), "Nyala" | "Seeds");
        let shown = SHOWN_BY.iter().find(|(guard, _)| *guard == mutant.guard);
        let hidden = shown.is_some_and(|(_, property)| *property != mutant.property);
        if !raft || hidden || seen.contains(&mutant.guard) || !wanted(&mutant.guard) {
            continue;
        }
        seen.push(mutant.guard.clone());
        scripts.push(counterexample(&spec, tlc, model, mutant)?);
    }
    for (name, constants) in WALKS.into_iter().filter(|(name, _)| wanted(name)) {
        let found = walk(&spec, tlc, find(&models, name)?, constants, seed, walks)?;
        scripts.extend(found);
    }
    let rows = drive(root, &scripts)?;
    let wrong: Vec<&DirectedRow> = rows.iter().filter(|row| !row.right).collect();
    for row in rows.iter().filter(|row| row.refused != "nothing" || !row.right) {
        println!("{}: {}, {} steps, refused: {}", row.name, row.origin, row.steps, row.refused);
    }
    let walked: usize = rows.iter().filter(|row| row.refused == "nothing").map(|row| row.steps).sum();
    println!("{} scripts; {walked} steps of walks agree with the specification", rows.len());
    ensure!(wrong.is_empty(), "{} of {} scripts went another way", wrong.len(), rows.len());
    if write {
        keep(root, &scripts)?;
        report::write(root, "directed", &report::directed(&rows))?;
    }
    Ok(())
}

fn find<'a>(models: &'a [Model], name: &str) -> Result<&'a Model> {
    models.iter().find(|model| model.name == name).with_context(|| format!("there is no {name}.cfg"))
}

/// Returns the configuration of the module Directed that has the behaviours of `model`.
fn directed(model: &Model, constants: &[(String, String)], property: &str, search: bool) -> Result<String> {
    let text = model.with(constants, property)?;
    let mut lines = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("SPECIFICATION Spec") {
            ensure!(!name.is_empty(), "{}: Spec has no part of its own in spec/Directed.tla", model.name);
            lines.push(format!("SPECIFICATION Directed{name}"));
        } else if !line.starts_with("SYMMETRY") || search {
            lines.push(line.to_owned());
        }
        if line.starts_with("CONSTANTS") && model.module != "Seeds" {
            // Servers of the scripts in Seeds, which are unused here.
            lines.extend(["a", "b", "c", "d"].map(|name| format!("    {name} = Nil")));
        }
    }
    if search {
        lines.push("VIEW DirectedView".to_owned());
    }
    Ok(lines.join("\n") + "\n")
}

/// Returns the names of servers in a configuration's line `    KEY = {s1, s2}`.
fn servers(config: &str, key: &str) -> Vec<String> {
    let prefix = format!("    {key} = ");
    let line = config.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap_or_default();
    let names = line.trim_matches(['{', '}']).split(',').map(|name| name.trim().to_owned());
    names.filter(|name| !name.is_empty()).collect()
}

fn setup(config: &str) -> String {
    let list = |key: &str| match servers(config, key) {
        names if names.is_empty() => "none".to_owned(),
        names => names.join(","),
    };
    let eager = config.contains("Eager = TRUE");
    let (all, voters, learners) = (list("Server"), list("InitVoters"), list("InitLearners"));
    format!("servers={all} voters={voters} learners={learners} eager={eager}")
}

fn counterexample(spec: &Path, tlc: &Tlc, model: &Model, mutant: &SpecMutant) -> Result<Script> {
    let name = mutant.guard.replace('+', "-");
    let property = mutant.property.as_str();
    let config = directed(model, &mutant.constants_without_guard(), property, true)?;
    let run = tlc.folder(spec, &format!("directed-{name}"))?;
    let outcome = tlc.check(&run, "Directed", &config)?;
    let violated = TlcVerdict::Violated(property.to_owned());
    ensure!(outcome.verdict == violated, "{} without {name}: {:?}", model.name, outcome.verdict);
    let steps = steps(&outcome.output)?;
    let allowed = followed(&run, tlc, model, &mutant.constants, &steps)?;
    ensure!(
        allowed < steps.len(),
        "{} without {name} violates {property} by steps that all are allowed with the guard, too",
        model.name
    );
    let origin = format!("{} without {name} violates {property}", model.name);
    let setup = setup(&config);
    Ok(Script { name: format!("without-{name}"), origin, setup, steps, allowed })
}

/// Returns the number of steps that the complete spec takes.
fn followed(
    run: &Path,
    tlc: &Tlc,
    model: &Model,
    constants: &[(String, String)],
    steps: &[TlaValue],
) -> Result<usize> {
    let mut config = directed(model, constants, "Reached", false)?;
    let from = config.find("SPECIFICATION").context("no SPECIFICATION")?;
    let to = from + config[from..].find('\n').context("no end of SPECIFICATION")?;
    config.replace_range(from..to, "SPECIFICATION FollowSpec");
    let names = servers(&config, "Server");
    let script: Vec<String> = steps.iter().map(|step| step.tla(&names)).collect();
    let declared = names.iter().filter(|name| config.contains(&format!("    {name} = {name}\n")));
    let module = format!(
        "---- MODULE DirectedScript ----\nEXTENDS Directed\nCONSTANTS {}\nScript == <<\n{}\n>>\n\
         Follows == at <= Len(Script) /\\ DAny /\\ did' = Script[at] /\\ at' = at + 1\n\
         FollowSpec == DInit /\\ [][Follows]_dvars\nReached == PrintT(<<\"reached\", at>>)\n====\n",
        declared.cloned().collect::<Vec<_>>().join(", "),
        script.join(",\n")
    );
    fs::write(run.join("DirectedScript.tla"), module)?;
    let outcome = tlc.check(run, "DirectedScript", &config)?;
    ensure!(outcome.verdict == TlcVerdict::Holds, "{}: {:?}", run.display(), outcome.verdict);
    let reached = outcome.output.lines().filter_map(|line| line.strip_prefix("<<\"reached\", "));
    let reached = reached.filter_map(|rest| rest.strip_suffix(">>")?.parse::<usize>().ok()).max();
    Ok(reached.context("TLC did not begin the script")?.saturating_sub(1))
}

fn walk(
    spec: &Path,
    tlc: &Tlc,
    model: &Model,
    constants: &[(&str, &str)],
    seed: u64,
    count: u64,
) -> Result<Vec<Script>> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let constants: Vec<(String, String)> = constants.iter().map(owned).collect();
    let config = directed(model, &constants, "LogMatching", false)?;
    let run = tlc.folder(spec, &format!("walk-{}", model.name))?;
    let walk = RandomWalk { depth: WALK_DEPTH, seed, behaviours: count, keep: true, time: WALK_TIME };
    let files = tlc.walks(&run, "Directed", &config, &walk)?;
    let mut scripts = Vec::new();
    for (at, file) in files.iter().enumerate() {
        let steps = steps(&fs::read_to_string(file)?)?;
        let (allowed, setup) = (steps.len(), setup(&config));
        let (name, origin) = (format!("walk-{}-{}", model.name, at + 1), format!("a walk in {}", model.name));
        scripts.push(Script { name, origin, setup, steps, allowed });
    }
    Ok(scripts)
}

/// Returns the values of `did` in the states that TLC prints, without the first one's.
fn steps(output: &str) -> Result<Vec<TlaValue>> {
    let mut steps = Vec::new();
    let mut lines = output.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(first) = line.strip_prefix("/\\ did = ") else { continue };
        let mut text = first.to_owned();
        while let Some(more) = lines.next_if(|line| line.starts_with(' ')) {
            text.push_str(more);
        }
        steps.push(TlaValue::parse(&text)?);
    }
    ensure!(!steps.is_empty(), "TLC showed no behaviour");
    steps.remove(0);
    Ok(steps)
}

/// Returns the names of an action's parameters.
fn params(action: &str) -> Result<&'static [&'static str]> {
    Ok(match action {
        "GrantPreVote" | "GrantVote" => &["candidate", "term"],
        "StartElection" => &["asked"],
        "SeeTerm" => &["term"],
        "Receive" => &["leader", "term", "prev", "upto", "commit"],
        "ConfigAppend" => &["voters", "learners", "cas"],
        "CopyStart" => &["source", "term"],
        "Tombstone" => &["cas"],
        "StartPreElection" | "BecomeLeader" | "ClientAppend" | "AdvanceCommit" | "MetaPersist"
        | "LogPersist" | "Restart" | "CopyFinish" | "CopyAbort" | "Fail" | "FailOpen" => &[],
        other => bail!("spec/Directed.tla has a step {other}, of which no parameters are known here"),
    })
}

fn shown(value: &TlaValue) -> Result<String> {
    Ok(match value {
        TlaValue::Number(number) => number.to_string(),
        TlaValue::Word(word) => match word.as_str() {
            "Nil" => "none".to_owned(),
            "TRUE" => "true".to_owned(),
            "FALSE" => "false".to_owned(),
            word => word.to_owned(),
        },
        TlaValue::Tuple(items) | TlaValue::Set(items) if items.is_empty() => "none".to_owned(),
        TlaValue::Tuple(items) | TlaValue::Set(items) => {
            items.iter().map(shown).collect::<Result<Vec<_>>>()?.join(",")
        }
    })
}

fn step_line(number: usize, step: &TlaValue) -> Result<String> {
    let [action, server, given, state] = step.items()? else { bail!("{step:?} is no step") };
    let mut line = format!("{number} {} {}", server.word()?, action.word()?);
    for (key, value) in params(action.word()?)?.iter().zip(given.items()?) {
        line.push_str(&format!(" {key}={}", shown(value)?));
    }
    line.push_str(" |");
    let [term, vote, role, data, last, commit, log, voters, learners] = state.items()? else {
        bail!("{state:?} is no state");
    };
    let letter = |value: &TlaValue, known: &[(&str, &str)]| -> Result<String> {
        let word = value.word()?;
        let found = known.iter().find(|(letter, _)| *letter == word);
        Ok(found.with_context(|| format!("{word:?} is not known"))?.1.to_owned())
    };
    let role = letter(role, &[("L", "leader"), ("C", "candidate"), ("F", "follower")])?;
    let states = [("R", "ready"), ("Y", "copying"), ("T", "tombstoned"), ("F", "failed"), ("N", "none")];
    let last = last.items()?.iter().map(shown).collect::<Result<Vec<_>>>()?.join(".");
    let pairs = [
        ("term", shown(term)?),
        ("vote", shown(vote)?),
        ("role", role),
        ("data", letter(data, &states)?),
        ("last", last),
        ("commit", shown(commit)?),
        ("log", shown(log)?),
        ("voters", shown(voters)?),
        ("learners", shown(learners)?),
    ];
    for (key, value) in pairs {
        line.push_str(&format!(" {key}={value}"));
    }
    Ok(line)
}

impl Script {
    /// Returns the script's text: all allowed steps and the first forbidden one.
    fn text(&self) -> Result<String> {
        let mut text = format!("nyala-script 1\norigin {}\n{}\n", self.origin, self.setup);
        for (at, step) in self.steps.iter().enumerate().take(self.allowed + 1) {
            let refused = if at == self.allowed { "refused " } else { "" };
            text.push_str(&format!("{refused}{}\n", step_line(at + 1, step)?));
        }
        Ok(text)
    }

    fn refused(&self) -> &str {
        let step = self.steps.get(self.allowed).and_then(|step| step.items().ok()?.first()?.word().ok());
        step.unwrap_or("nothing")
    }
}

/// Drives the code through each script.
fn drive(root: &Path, scripts: &[Script]) -> Result<Vec<DirectedRow>> {
    CommandLine::cargo(root)
        .args(["build", "--quiet", "--package", "engine", "--example", "raft_script"])
        .run()?;
    let dir = root.join("target/spec/scripts");
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(&dir)?;
    let mut files: Vec<PathBuf> = Vec::new();
    for script in scripts {
        let path = dir.join(format!("{}.script", script.name));
        fs::write(&path, script.text()?)?;
        files.push(path);
    }
    let example = example("raft_script")?;
    let said = CommandLine::new(&example).args(files).output()?;
    let told: Vec<&str> = said.stdout.lines().collect();
    ensure!(told.len() == scripts.len(), "raft_script broke off: {}{}", said.stdout, said.stderr);
    let mut rows = Vec::new();
    for (script, line) in scripts.iter().zip(told) {
        let right = line.ends_with(" steps");
        if !right {
            println!("{line}");
        }
        rows.push(DirectedRow {
            name: script.name.clone(),
            origin: script.origin.clone(),
            steps: script.allowed,
            refused: script.refused().to_owned(),
            right,
        });
    }
    Ok(rows)
}

/// Writes the counterexamples and some walks to the folder from which `cargo test` reads them.
fn keep(root: &Path, scripts: &[Script]) -> Result<()> {
    let dir = root.join(KEPT);
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(&dir)?;
    for script in scripts {
        let number = script.name.strip_prefix("walk-").and_then(|name| name.rsplit_once('-'));
        let late = number.and_then(|(_, n)| n.parse::<usize>().ok()).is_some_and(|n| n > WALKS_KEPT);
        if !late {
            fs::write(dir.join(format!("{}.script", script.name)), script.text()?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: &str = "<<1, s1, \"C\", \"R\", <<0, 0>>, 0, << >>, {s1, s2}, {}>>";

    #[test]
    fn a_behaviour_becomes_a_script() {
        let output = format!(
            "State 1: <Initial>\n/\\ did = <<\"Init\", Nil, <<>>, <<>>>>\n/\\ at = 1\n\nState 2: <x>\n\
             /\\ at = 1\n/\\ did = << \"StartElection\",\n   s1,\n   <<TRUE>>,\n   {STATE} >>\n/\\ log = 1\n\n\
             State 3:\n/\\ did = <<\"GrantVote\", s2, <<s1, 1>>, {STATE}>>\n"
        );
        let steps = steps(&output).expect("a behaviour");
        let setup =
            setup("    Server = {s1, s2}\n    InitVoters = {s1}\n    InitLearners = {}\n    Eager = TRUE\n");
        let script = Script { name: "x".into(), origin: "a test".into(), setup, steps, allowed: 1 };
        let state =
            "term=1 vote=s1 role=candidate data=ready last=0.0 commit=0 log=none voters=s1,s2 learners=none";
        let expected = format!(
            "nyala-script 1\norigin a test\nservers=s1,s2 voters=s1 learners=none eager=true\n\
             1 s1 StartElection asked=true | {state}\nrefused 2 s2 GrantVote candidate=s1 term=1 | {state}\n"
        );
        assert_eq!(script.text().expect("known steps"), expected);
        assert_eq!(script.refused(), "GrantVote");
        assert!(super::steps("nothing").is_err());
    }
}
