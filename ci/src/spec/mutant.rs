//! Specs broken on purpose: `spec/mutants.txt` names guards to switch off and the property that must notice.

use anyhow::{Context, Result, bail, ensure};

use super::model::Model;

/// One line of `spec/mutants.txt`: model, guard, property, and constants that differ from the model's.
#[derive(Debug, PartialEq, Eq)]
pub struct Mutant {
    pub model: String,
    /// One or several with `+` between them, all off.
    pub guard: String,
    pub property: String,
    pub constants: Vec<(String, String)>,
    /// What the guard is, in words: the comment at the line's end.
    pub about: String,
}

impl Mutant {
    pub fn parse_all(text: &str) -> Result<Vec<Mutant>> {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        lines.map(Mutant::parse).collect()
    }

    fn parse(line: &str) -> Result<Mutant> {
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
        Ok(Mutant { model, guard, property, constants, about: about.trim().to_owned() })
    }

    /// Whether its model, guard or property has this in its name.
    pub fn is_about(&self, text: &str) -> bool {
        [&self.model, &self.guard, &self.property].iter().any(|name| name.contains(text))
    }

    /// The model's configuration without the guard, for the named property alone.
    pub fn config(&self, models: &[Model]) -> Result<(String, String)> {
        let model = models.iter().find(|model| model.name == self.model);
        let model = model.with_context(|| format!("spec/mutants.txt: there is no {}.cfg", self.model))?;
        Ok((model.module.clone(), model.with(&self.constants_without_guard(), &self.property)?))
    }

    /// The constants that differ from the model's, the guards that are off among them.
    pub fn constants_without_guard(&self) -> Vec<(String, String)> {
        let mut constants = self.constants.clone();
        let guards: Vec<String> = self.guard.split('+').map(|guard| format!("\"{guard}\"")).collect();
        constants.push(("Mut".to_owned(), format!("{{{}}}", guards.join(", "))));
        constants
    }
}

/// Fails if a property that some model checks is one that no mutant violates: it may say nothing at all.
pub fn every_property_bites(models: &[Model], mutants: &[Mutant]) -> Result<()> {
    for model in models {
        for property in model.properties() {
            // Types only keep the other properties readable.
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
    fn a_line_is_model_guard_property_constants_and_words() {
        let text = "# model guard property\n\nMCRaft  vote  OneVotePerTerm MaxLen=1 # votes twice\n";
        let mutants = Mutant::parse_all(text).expect("well formed");
        let vote = &mutants[0];
        assert_eq!((mutants.len(), vote.guard.as_str(), vote.about.as_str()), (1, "vote", "votes twice"));
        assert_eq!(vote.constants, [("MaxLen".to_owned(), "1".to_owned())]);
        assert!(Mutant::parse_all("MCRaft vote\n").is_err());
        assert!(Mutant::parse_all("MCRaft vote OneVotePerTerm MaxLen\n").is_err());
        assert!(vote.config(&[]).expect_err("no models").to_string().contains("no MCRaft.cfg"));
    }
}
