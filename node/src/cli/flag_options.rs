//! The table of flags as options of a command.

use std::io;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command};
use engine::error::{Error, Result};

use crate::config;
use crate::dirs::ServerKind;
use crate::server::flags::{FlagKind, FlagSpec, Flags, TABLE, spec};

/// Function that reads a file named on the command line.
pub type ReadFile<'a> = &'a dyn Fn(&str) -> io::Result<Vec<u8>>;

const CONFIG: &str = "config";

/// Adds `--config` and an option for each flag that `wanted` selects.
pub(super) fn add(command: Command, wanted: impl Fn(&FlagSpec) -> bool) -> Command {
    let config = Arg::new(CONFIG)
        .long(CONFIG)
        .value_name("FILE")
        .help("TOML file of flags, named like the options below; options override it");
    let options = TABLE.iter().filter(|spec| wanted(spec)).map(option);
    command.arg(config).next_help_heading("Flags").args(options)
}

fn option(spec: &'static FlagSpec) -> Arg {
    let mut help = spec.help.to_string();
    if !spec.default.is_empty() {
        help.push_str(&format!(" [default: {}]", spec.default));
    }
    let arg = Arg::new(spec.name)
        .long(spec.name.replace('_', "-"))
        .help(help)
        .hide(!spec.has_effect() || spec.tags.contains(&"hidden"))
        // The last occurrence counts, as is usual for long command lines.
        .overrides_with(spec.name)
        .action(ArgAction::Set);
    match spec.kind {
        FlagKind::Bool => {
            arg.num_args(0..=1).require_equals(true).default_missing_value("true").value_name("BOOL")
        }
        FlagKind::Number { .. } | FlagKind::Fraction { .. } => arg.value_name("N"),
        FlagKind::NumberOrNever => arg.value_name("N").allow_negative_numbers(true),
        FlagKind::Choice(choices) => {
            arg.value_parser(PossibleValuesParser::new(choices)).value_name("CHOICE")
        }
        FlagKind::Text => arg.value_name("TEXT"),
        FlagKind::List => arg.value_name("LIST"),
    }
}

/// Returns the flags: defaults, overridden by the file, then by the command line. `kind` is that of the server which
/// takes them; `None` for a command that runs, or reads the directories of, either kind.
pub(super) fn read(matches: &ArgMatches, kind: Option<ServerKind>, read_file: ReadFile<'_>) -> Result<Flags> {
    let flags = Flags::new();
    if let Some(path) = matches.get_one::<String>(CONFIG) {
        let bytes = read_file(path)
            .map_err(|error| Error::io(format_args!("read the settings in {path}"), &error))?;
        let text = String::from_utf8(bytes).map_err(|_| Error::invalid(format!("{path}: not UTF-8 text")))?;
        config::apply_file(&flags, kind, path, &text)?;
    }
    for spec in TABLE {
        if let Ok(Some(value)) = matches.try_get_one::<String>(spec.name) {
            flags.set(spec.name, value)?;
        }
    }
    Ok(flags)
}

/// Converts a flag in any of Kudu's spellings to clap's; `None` for any other argument.
pub(super) fn normalise(arg: &str) -> Option<String> {
    let body = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-'))?;
    let (name, value) = match body.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (body, None),
    };
    if let Some(spec) = spec(name) {
        let value = value.map_or(String::new(), |value| format!("={value}"));
        return Some(format!("--{}{value}", spec.name.replace('_', "-")));
    }
    let negated = name.strip_prefix("no").and_then(spec).filter(|spec| spec.kind == FlagKind::Bool)?;
    value.is_none().then(|| format!("--{}=false", negated.name.replace('_', "-")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kudus_spellings_are_accepted() {
        let cases = [
            ("--fs_wal_dir=/x", Some("--fs-wal-dir=/x")),
            ("-fs_wal_dir", Some("--fs-wal-dir")),
            ("--log-sync", Some("--log-sync")),
            ("--nolog_sync", Some("--log-sync=false")),
            ("--nofs_wal_dir", None),
            ("--help", None),
            ("fs_wal_dir", None),
            ("-h", None),
        ];
        for (given, wanted) in cases {
            assert_eq!(normalise(given).as_deref(), wanted, "{given}");
        }
    }
}
