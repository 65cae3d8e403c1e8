//! Parsers of arguments. A wrong or empty argument is an error that names the valid ones: a command that runs nothing
//! must not look like one that found nothing.

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};

use sim_plan::line_format::LineField;

/// Error of an argument that parses and is wrong: a file that does not exist, a name that nothing has. The command ends
/// with the exit code of an argument that does not parse.
#[derive(Debug)]
pub(crate) struct WrongArgument(String);

impl fmt::Display for WrongArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongArgument {}

/// Returns the error of a wrong argument.
pub(crate) fn wrong(message: impl Into<String>) -> anyhow::Error {
    WrongArgument(message.into()).into()
}

/// Returns the exit code of a command that ended with an error: 2 for wrong arguments, 3 for the environment.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    if error.chain().any(|cause| cause.is::<WrongArgument>()) { 2 } else { 3 }
}

/// Returns the parser of a type with a fixed set of words. Its error names them.
pub(crate) fn one_of<T: LineField + Clone + Send + Sync + 'static>() -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(T::WORDS)
        .try_map(|word| T::parse(&word).ok_or_else(|| format!("{word:?}: unknown value")))
}

/// Returns the parser of a text that is not empty.
pub(crate) fn some_text() -> NonEmptyStringValueParser {
    NonEmptyStringValueParser::new()
}

/// Parses `FROM..TO`, the end not included. There is at least one number.
pub(crate) fn range(text: &str) -> Result<Range<u64>, String> {
    let wrong = |what: &str| format!("{what}; give FROM..TO with FROM below TO, as 1..101");
    let (from, to) = text.split_once("..").ok_or_else(|| wrong("no `..` in it"))?;
    let number = |text: &str| text.parse::<u64>().map_err(|error| wrong(&format!("{text:?}: {error}")));
    let range = number(from)?..number(to)?;
    if range.is_empty() { Err(wrong("no number is in it")) } else { Ok(range) }
}

/// Parses `I/N`: the I-th of N parts, from 0.
pub(crate) fn shard(text: &str) -> Result<(u64, u64), String> {
    let parts = text.split_once('/').and_then(|(index, of)| Some((index.parse().ok()?, of.parse().ok()?)));
    parts.filter(|(index, of)| index < of).ok_or_else(|| "not I/N with I below N, as 0/4".to_string())
}

/// Parses a duration in minutes, which is longer than none.
pub(crate) fn minutes(text: &str) -> Result<Duration, String> {
    let minutes: f64 = text.parse().map_err(|error| format!("{error}"))?;
    let span = Duration::try_from_secs_f64(minutes * 60.0).map_err(|error| error.to_string())?;
    if span.is_zero() { Err("no time; give minutes above 0".to_string()) } else { Ok(span) }
}

/// Parses a number of things, at least one.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    text.parse::<NonZeroUsize>().map(NonZeroUsize::get).map_err(|error| error.to_string())
}

/// Parses the path of a file to write. Its folder exists, so that a long command does not fail at its end.
pub(crate) fn new_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match path.file_name() {
        None => Err("no name of a file; give one".to_string()),
        Some(_) if !folder.is_dir() => Err(format!("no folder {}; create it", folder.display())),
        Some(_) => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn a_range_has_a_number() {
        assert_eq!(range("1..3"), Ok(1..3));
        for text in ["", "..", "1", "1..", "..3", "3..3", "10..5", "-1..5", "1..x"] {
            let error = range(text).expect_err(text);
            assert!(error.contains("FROM below TO"), "{text}: {error}");
        }
    }

    #[test]
    fn shards_minutes_and_counts_are_not_empty() {
        assert_eq!((shard("3/4"), count("2")), (Ok((3, 4)), Ok(2)));
        assert_eq!(minutes("0.5"), Ok(Duration::from_secs(30)));
        assert!(["4/4", "0/0", "1", "a/b", ""].iter().all(|text| shard(text).is_err()));
        assert!(["0", "-1", "NaN", "inf", ""].iter().all(|text| minutes(text).is_err()));
        assert!(["0", "-1", "", "1.5"].iter().all(|text| count(text).is_err()));
    }

    /// Returns clap's answer to a command line that it must not accept.
    fn refused(line: &str) -> (i32, String) {
        let parsed = Cli::try_parse_from(line.split(' ').map(|word| word.trim_matches('"')));
        let error = parsed.err().unwrap_or_else(|| panic!("{line}: accepted"));
        (error.exit_code(), error.to_string())
    }

    #[test]
    fn wrong_words_are_refused_with_the_valid_ones() {
        let (code, text) = refused("sim run --profile nope");
        assert!(code == 2 && text.contains("swarm") && text.contains("calm"), "{text}");
        let (_, text) = refused("sim plans --world moon");
        assert!(text.contains("madsim") && text.contains("turmoil"), "{text}");
        assert!(refused("sim mutants --size smoke,huge").1.contains("bench"));
    }

    #[test]
    fn every_option_with_a_set_of_words_names_them() {
        for (line, words) in [
            ("sim run --size nope", ["smoke", "full", "bench"]),
            ("sim replay 1 --profile nope", ["swarm", "disk", "tables"]),
            ("sim mutants --kind nope", ["kill", "bit-rot", "slow-cpu"]),
            ("sim mutants --profile swarm,nope", ["swarm", "calm", "tables"]),
        ] {
            let (code, text) = refused(line);
            assert!(code == 2 && words.iter().all(|word| text.contains(word)), "{line}: {text}");
        }
    }

    #[test]
    fn a_file_to_write_has_a_folder() {
        assert_eq!(new_file("all.db"), Ok(PathBuf::from("all.db")));
        for text in ["", "/", "..", "none/such/all.db"] {
            assert!(new_file(text).is_err(), "{text:?}");
        }
        assert_eq!(refused("sim run --db none/such/all.db").0, 2);
        assert_eq!(refused("sim run --junit none/such/all.xml").0, 2);
    }

    #[test]
    fn wrong_arguments_have_an_exit_code_of_their_own() {
        let error = wrong("no such plan");
        assert_eq!((exit_code(&error), exit_code(&error.context("reading"))), (2, 2));
        assert_eq!(exit_code(&anyhow::anyhow!("no such program")), 3);
    }

    #[test]
    fn empty_arguments_are_refused() {
        for line in [
            "sim run --seeds 10..5",
            "sim run --seeds \"\"",
            "sim run --jobs 0",
            "sim run --minutes 0",
            "sim run --shard 2/2",
            "sim twice --seeds 3..3",
            "sim replay \"\"",
            "sim replay 1 --events 9..3",
            "sim shrink 1 --minutes -1",
            "sim mutants --only \"\"",
            "sim mutants --minutes 0",
            "sim explore --minutes 0 --corpus x",
            "sim explore --minutes 1",
            "sim cost --seeds 5..5",
            "sim without 1 --fault 0",
            "sim fated \"\"",
            "sim merge all.db",
            "sim run --every-fault-from \"\"",
            "sim study scale --points 0",
        ] {
            assert_eq!(refused(line).0, 2, "{line}");
        }
    }
}
