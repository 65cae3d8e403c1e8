//! Spec mutants: `spec/mutants.txt` names guards to switch off and the property that must be violated.

use anyhow::{Context, Result, bail, ensure};

use super::model::Model;

/// One line of `spec/mutants.txt`: model, guard, property, and constants that differ from the model's.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SpecMutant {
    pub model: String,
    /// One guard, or several with `+` between them, all switched off.
    pub guard: String,
    pub property: String,
    pub constants: Vec<(String, String)>,
    /// Description of the guard: the comment at the end of the line.
    pub about: String,
}

impl SpecMutant {
    pub(super) fn parse_all(text: &str) -> Result<Vec<SpecMutant>> {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        lines.map(SpecMutant::parse).collect()
    }

    fn parse(line: &str) -> Result<SpecMutant> {
        let (head, about) = line.split_once('#').unwrap_or((line, ""));
        let mut words = head.split_whitespace().map(str::to_owned);
        let (Some(model), Some(guard), Some(property)) = (words.next(), words.next(), words.next()) else {
            bail!(
                "spec/mutants.txt: {line:?} is not `model guard[+guard] property [NAME=VALUE ...] # words`"
            );
        };
        let mut constants = Vec::new();
        for word in words {
            let (name, value) = word
                .split_once('=')
                .with_context(|| format!("spec/mutants.txt: {word:?} of {guard} is not NAME=VALUE"))?;
            constants.push((name.to_owned(), value.to_owned()));
        }
        Ok(SpecMutant { model, guard, property, constants, about: about.trim().to_owned() })
    }

    /// Returns true if its model, guard or property contains this text.
    pub(super) fn is_about(&self, text: &str) -> bool {
        [&self.model, &self.guard, &self.property].iter().any(|name| name.contains(text))
    }

    /// Returns the model's configuration without the guard, for the named property alone.
    pub(super) fn config(&self, models: &[Model]) -> Result<(String, String)> {
        let model = models.iter().find(|model| model.name == self.model);
        let model = model.with_context(|| format!("spec/mutants.txt: there is no {}.cfg", self.model))?;
        Ok((model.module.clone(), model.with(&self.constants_without_guard(), &self.property)?))
    }

    /// Returns the constants that differ from the model's, including the guards that are off.
    pub(super) fn constants_without_guard(&self) -> Vec<(String, String)> {
        let mut constants = self.constants.clone();
        let guards: Vec<String> = self.guard.split('+').map(|guard| format!("\"{guard}\"")).collect();
        constants.push(("Mut".to_owned(), format!("{{{}}}", guards.join(", "))));
        constants
    }
}

/// Fails if no mutant violates a property that some model checks: such a property may be vacuous.
pub(super) fn every_property_bites(models: &[Model], mutants: &[SpecMutant]) -> Result<()> {
    for model in models {
        for property in model.properties() {
            // Type invariants only keep the other properties readable.
            let proven = property == "TypeOK" || mutants.iter().any(|m| m.property == property);
            ensure!(proven, "{} checks {property}, which no line of spec/mutants.txt violates", model.name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_model_guard_property_constants_and_description() {
        let text = "# model guard property\n\nMCRaft  vote  OneVotePerTerm MaxLen=1 # votes twice\n";
        let mutants = SpecMutant::parse_all(text).expect("well formed");
        let vote = &mutants[0];
        assert_eq!((mutants.len(), vote.guard.as_str(), vote.about.as_str()), (1, "vote", "votes twice"));
        assert_eq!(vote.constants, [("MaxLen".to_owned(), "1".to_owned())]);
        assert!(SpecMutant::parse_all("MCRaft vote\n").is_err());
        assert!(SpecMutant::parse_all("MCRaft vote OneVotePerTerm MaxLen\n").is_err());
        assert!(vote.config(&[]).expect_err("no models").to_string().contains("no MCRaft.cfg"));
    }
}
