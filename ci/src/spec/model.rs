//! The models: `spec/MC*.cfg`, each a configuration of TLC whose first line names its module and its size.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// Size of a model, by the time that it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Size {
    /// Seconds: checked with every pull request.
    Smoke,
    /// Minutes: checked by `cargo ci spec`.
    Full,
    /// Random walks within a time budget: `cargo ci spec --deep`.
    Deep,
    /// Checked only with guards switched off.
    Mutants,
}

/// One `spec/MC*.cfg`.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub name: String,
    pub module: String,
    pub size: Size,
    /// Description in a few words.
    pub about: String,
    config: String,
}

const SECTIONS: [&str; 4] = ["INVARIANTS", "INVARIANT", "PROPERTIES", "PROPERTY"];

impl Model {
    /// Returns all models of the folder, the small ones first.
    pub(super) fn all(spec: &Path) -> Result<Vec<Model>> {
        let mut models = Vec::new();
        for entry in fs::read_dir(spec)? {
            let path = entry?.path();
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if let Some(name) = file.strip_suffix(".cfg").filter(|name| name.starts_with("MC")) {
                models.push(Model::parse(name, &fs::read_to_string(&path)?)?);
            }
        }
        ensure!(!models.is_empty(), "no MC*.cfg in {}", spec.display());
        models.sort_by(|a, b| (a.size, &a.name).cmp(&(b.size, &b.name)));
        Ok(models)
    }

    fn parse(name: &str, config: &str) -> Result<Model> {
        let first = config.lines().next().unwrap_or_default();
        let wanted = || format!("{name}.cfg begins with {first:?}, not `\\* Module size: words`");
        let (head, about) =
            first.strip_prefix("\\* ").and_then(|l| l.split_once(": ")).with_context(wanted)?;
        let (module, size) = head.split_once(' ').with_context(wanted)?;
        let size = match size {
            "smoke" => Size::Smoke,
            "full" => Size::Full,
            "deep" => Size::Deep,
            "mutants" => Size::Mutants,
            other => bail!("{name}.cfg: size {other:?} is none of smoke, full, deep, mutants"),
        };
        ensure!(config.contains("Mut = {}"), "{name}.cfg has no line `Mut = {{}}`");
        let (about, config) = (about.to_owned(), config.to_owned());
        Ok(Model { name: name.to_owned(), module: module.to_owned(), size, about, config })
    }

    pub(super) fn config(&self) -> &str {
        &self.config
    }

    /// Returns the names under INVARIANTS and PROPERTIES.
    pub(super) fn properties(&self) -> Vec<String> {
        let mut names = Vec::new();
        for (section, words) in sections(&self.config) {
            if SECTIONS.contains(&section) {
                names.extend(words.iter().map(|word| (*word).to_owned()));
            }
        }
        names
    }

    /// Returns the same model with these constants and this property alone.
    pub(super) fn with(&self, constants: &[(String, String)], property: &str) -> Result<String> {
        let temporal = sections(&self.config)
            .iter()
            .any(|(section, words)| section.starts_with("PROPERT") && words.contains(&property));
        let mut missing: Vec<&str> = constants.iter().map(|(key, _)| key.as_str()).collect();
        let mut lines = Vec::new();
        let mut skip = false;
        for line in self.config.lines() {
            if let Some(section) = keyword(line) {
                skip = SECTIONS.contains(&section);
            }
            let key = line.split_once(" = ").map(|(key, _)| key.trim());
            match constants.iter().find(|(name, _)| Some(name.as_str()) == key) {
                Some((name, value)) => {
                    missing.retain(|key| key != name);
                    lines.push(format!("    {name} = {value}"));
                }
                None if !skip => lines.push(line.to_owned()),
                None => {}
            }
        }
        ensure!(missing.is_empty(), "{}.cfg has no constant {}", self.name, missing.join(", "));
        let section = if temporal { "PROPERTY" } else { "INVARIANT" };
        Ok(lines.join("\n") + &format!("\n{section} {property}\n"))
    }
}

/// Returns the keyword if the line begins a section: TLC's keywords are capitals at the start of a line.
fn keyword(line: &str) -> Option<&str> {
    let word = line.split_whitespace().next()?;
    let capitals = word.len() > 3 && word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    (capitals && line.starts_with(word)).then_some(word)
}

/// Returns each section with its words, in order.
fn sections(config: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in config.lines().filter(|line| !line.starts_with("\\*")) {
        match (keyword(line), found.last_mut()) {
            (Some(word), _) => found.push((word, line.split_whitespace().skip(1).collect())),
            (None, Some((_, words))) => words.extend(line.split_whitespace()),
            (None, None) => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\\* Nyala smoke: three servers\nSPECIFICATION Spec\nCONSTANTS\n    MaxTerm = 2\n    \
                        Mut = {}\nINVARIANTS LogMatching\n    OneVotePerTerm\nPROPERTY Elects\n\
                        CHECK_DEADLOCK FALSE\n";

    #[test]
    fn a_model_has_a_description_and_properties() {
        let model = Model::parse("MCRaft", TEXT).expect("well formed");
        assert_eq!(
            (model.module.as_str(), model.size, model.about.as_str()),
            ("Nyala", Size::Smoke, "three servers")
        );
        assert_eq!(model.properties(), ["LogMatching", "OneVotePerTerm", "Elects"]);
        assert!(Model::parse("MCRaft", "SPECIFICATION Spec\n").is_err());
    }

    #[test]
    fn a_mutant_has_one_property_and_its_constants() {
        let model = Model::parse("MCRaft", TEXT).expect("well formed");
        let constants = [("Mut".to_owned(), "{\"vote\"}".to_owned()), ("MaxTerm".to_owned(), "3".to_owned())];
        let config = model.with(&constants, "OneVotePerTerm").expect("both constants are there");
        assert!(config.contains("    MaxTerm = 3\n    Mut = {\"vote\"}\n"));
        assert!(config.ends_with("CHECK_DEADLOCK FALSE\nINVARIANT OneVotePerTerm\n"));
        assert!(!config.contains("LogMatching") && !config.contains("Elects"));
        assert!(model.with(&[], "Elects").expect("no constants").ends_with("PROPERTY Elects\n"));
        let unknown = [("MaxLen".to_owned(), "3".to_owned())];
        assert!(model.with(&unknown, "Elects").is_err());
    }
}
