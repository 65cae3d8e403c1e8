//! Results as lines on the screen and as tables in `spec/README.md`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::model::Model;
use super::spec_mutants::SpecMutant;
use super::tlc::{TlcOutcome, children_cpu};

#[derive(Clone)]
pub(super) struct ModelRow {
    pub model: Model,
    pub outcome: TlcOutcome,
}

pub(super) struct MutantRow {
    pub mutant: SpecMutant,
    pub outcome: TlcOutcome,
    pub rejected: bool,
}

impl ModelRow {
    pub(super) fn line(&self) -> String {
        let TlcOutcome { distinct, depth, seconds, .. } = &self.outcome;
        format!("{}: holds, {distinct} distinct states, depth {depth}, {seconds:.0} s", self.model.name)
    }
}

impl MutantRow {
    pub(super) fn line(&self) -> String {
        let SpecMutant { model, guard, property, .. } = &self.mutant;
        let TlcOutcome { distinct, seconds, .. } = &self.outcome;
        let verdict = if self.rejected { "rejected by" } else { "NOT REJECTED by" };
        format!("{model} without {guard}: {verdict} {property}, {distinct} distinct states, {seconds:.0} s")
    }
}

pub(super) fn models(rows: &[ModelRow]) -> String {
    let mut text = "| spec | model | what | distinct states | depth | CPU s | properties |\n".to_owned();
    text.push_str("|---|---|---|---|---|---|---|\n");
    for ModelRow { model, outcome } in rows {
        text.push_str(&format!(
            "| {} | {} | {:?}: {} | {} | {} | {} | {} |\n",
            model.module,
            model.name,
            model.size,
            model.about,
            outcome.distinct,
            outcome.depth,
            cpu(outcome),
            model.properties().join(" ")
        ));
    }
    text
}

pub(super) fn mutants(rows: &[MutantRow]) -> String {
    let mut text = "| guard off | guard | killed by | in model | distinct states | CPU s |\n".to_owned();
    text.push_str("|---|---|---|---|---|---|\n");
    for MutantRow { mutant, outcome, .. } in rows {
        text.push_str(&format!(
            "| {} | {} | {} | {} | {} | {} |\n",
            mutant.guard,
            mutant.about,
            mutant.property,
            mutant.model,
            outcome.distinct,
            cpu(outcome)
        ));
    }
    text
}

fn cpu(outcome: &TlcOutcome) -> String {
    whole_seconds(outcome.cpu)
}

/// Returns the CPU seconds of children since `before`, a value of [`children_cpu`].
pub(super) fn cpu_since(before: Option<f64>) -> String {
    whole_seconds(children_cpu().zip(before).map(|(after, before)| after - before))
}

fn whole_seconds(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "?".to_owned(), |seconds| format!("{seconds:.0}"))
}

/// Returns the table of directed tests, with the walks of one model in one row.
pub(super) fn directed(rows: &[DirectedRow]) -> String {
    let mut text = "| behaviour | agreeing steps | rejected action |\n|---|---|---|\n".to_owned();
    for row in rows.iter().filter(|row| row.refused != "nothing") {
        text.push_str(&format!("| {} | {} | {} |\n", row.origin, row.steps, row.refused));
    }
    let walks: Vec<&DirectedRow> = rows.iter().filter(|row| row.refused == "nothing").collect();
    let mut models: Vec<&str> = walks.iter().map(|row| row.origin.as_str()).collect();
    models.dedup();
    for model in models {
        let (mut count, mut steps) = (0, 0);
        for row in walks.iter().filter(|row| row.origin == model) {
            (count, steps) = (count + 1, steps + row.steps);
        }
        text.push_str(&format!("| {count} times {model} | {steps} | |\n"));
    }
    text
}

pub(super) fn planted_line(row: &CodeMutantRow) -> String {
    match row.action {
        Some(action) => format!("{}: run {}, {action} rejected", row.name, row.groups),
        None => format!("{}: SURVIVED {} runs", row.name, row.groups),
    }
}

pub(super) fn planted(rows: &[CodeMutantRow]) -> String {
    let mut text = "| mutant | defect | killed by run | rejected action |\n|---|---|---|---|\n".to_owned();
    for row in rows {
        let (runs, action) = match row.action {
            Some(action) => (row.groups.to_string(), action),
            None => ("none".to_owned(), ""),
        };
        text.push_str(&format!("| {} | {} | {runs} | {action} |\n", row.name, row.about));
    }
    text
}

/// Returns the count of each action, as text.
pub(super) fn counts_line(counts: &[(&str, usize)]) -> String {
    let all: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let unseen = unseen(counts);
    let unseen = if unseen.is_empty() { "none".to_owned() } else { unseen.join(" ") };
    format!("{}\nactions in no trace: {unseen}", all.join(", "))
}

/// Returns the actions that no trace has.
pub(super) fn unseen<'a>(counts: &[(&'a str, usize)]) -> Vec<&'a str> {
    counts.iter().filter(|(_, count)| *count == 0).map(|(name, _)| *name).collect()
}

/// Returns the number of checked traces and events, and the time.
pub(super) fn traces_line(traces: usize, events: usize, refused: usize, time: Duration, cpu: &str) -> String {
    let seconds = time.as_secs();
    format!("{traces} traces of {events} events, {refused} refused, checked in {seconds} s ({cpu} CPU s)")
}

pub(super) fn counts(counts: &[(&str, usize)], about: &str) -> String {
    let mut text = format!("{about}.\n\n| action | times |\n|---|---|\n");
    for (name, count) in counts {
        text.push_str(&format!("| {name} | {count} |\n"));
    }
    text
}

/// Returns the progress of random walks, from TLC's last progress line.
pub(super) fn walked(outcome: &TlcOutcome) -> String {
    let progress = outcome.output.lines().rfind(|line| line.contains("states checked"));
    let progress =
        progress.or_else(|| outcome.output.lines().rfind(|line| line.contains("states generated")));
    format!("{}, {:.0} s", progress.unwrap_or("no progress told").trim(), outcome.seconds)
}

/// Replaces the text between `<!-- NAME -->` and `<!-- end of NAME -->` in spec/README.md.
pub(super) fn write(root: &Path, name: &str, table: &str) -> Result<()> {
    let path = root.join("spec/README.md");
    let text = fs::read_to_string(&path)?;
    fs::write(&path, replace(&text, name, table)?)?;
    Ok(())
}

fn replace(text: &str, name: &str, table: &str) -> Result<String> {
    let (from, to) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let missing = || format!("spec/README.md has no `<!-- {name} -->` with its end");
    let (before, rest) = text.split_once(&from).with_context(missing)?;
    let (_, after) = rest.split_once(&to).with_context(missing)?;
    Ok(format!("{before}{from}{table}{to}{after}"))
}

pub(super) struct CodeMutantRow {
    pub name: String,
    pub about: String,
    /// Randomized tests until the mutant was killed, or all.
    pub groups: usize,
    /// The action that the spec rejected.
    pub action: Option<&'static str>,
}

pub(super) struct DirectedRow {
    pub name: String,
    pub origin: String,
    pub steps: usize,
    pub refused: String,
    pub right: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_replaced_in_its_place() {
        let text = "a\n<!-- models -->\nold\n<!-- end of models -->\nb\n";
        let new = replace(text, "models", "new\n").expect("both marks are there");
        assert_eq!(new, "a\n<!-- models -->\nnew\n<!-- end of models -->\nb\n");
        assert!(replace("a\n", "models", "new\n").is_err());
    }
}
