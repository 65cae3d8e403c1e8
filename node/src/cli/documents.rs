//! `nyala completions`, `nyala man`, `nyala reference`: files for shells, for `man` and for the site, made from
//! the definition of the commands.

use std::path::Path;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command, ValueHint};
use clap_complete::Shell;
use engine::error::Error;

use super::exit::ExitError;
use super::output::print;
use super::reference;

/// A file to make.
pub enum Document {
    Completions(Shell),
    ManPages(String),
    Reference(String),
}

/// Returns the commands.
pub(super) fn commands() -> [Command; 3] {
    let shells = ["bash", "zsh", "fish", "elvish", "powershell"];
    let shell = Arg::new("shell").required(true).value_parser(PossibleValuesParser::new(shells));
    let dir = Arg::new("dir").value_name("DIR").required(true).value_hint(ValueHint::DirPath);
    [
        Command::new("completions").about("Print the completion script of a shell").arg(shell),
        Command::new("man")
            .about("Write the manual pages of all commands into a directory")
            .arg(dir.clone().help("Directory of the pages; created if missing")),
        Command::new("reference")
            .about("Write the reference of settings, metrics and commands as Markdown")
            .arg(dir.help("Directory of the pages; created if missing")),
    ]
}

/// Reads the arguments of one of [`commands`].
pub(super) fn parse(name: &str, matches: &ArgMatches) -> Document {
    let text = |id: &str| matches.get_one::<String>(id).expect("it is required").clone();
    match name {
        "completions" => Document::Completions(text("shell").parse().expect("clap checks the name")),
        "man" => Document::ManPages(text("dir")),
        _ => Document::Reference(text("dir")),
    }
}

impl Document {
    /// Writes the document from the definition of the program.
    pub fn write(&self, mut program: Command) -> Result<(), ExitError> {
        match self {
            Document::Completions(shell) => {
                // To memory first: a failed write would be a panic.
                let mut script = Vec::new();
                clap_complete::generate(*shell, &mut program, "nyala", &mut script);
                print(&String::from_utf8_lossy(&script));
                Ok(())
            }
            Document::ManPages(dir) => {
                let pages = || -> std::io::Result<()> {
                    create_dir(Path::new(dir))?;
                    clap_mangen::generate_to(program, dir)
                };
                pages().map_err(|error| Error::io(format!("write the manual pages to {dir}"), &error).into())
            }
            Document::Reference(dir) => {
                let written = write_pages(Path::new(dir), &reference::pages(program));
                written.map_err(|error| Error::io(format!("write the reference to {dir}"), &error).into())
            }
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a command's output, not a server's data")]
fn write_pages(dir: &Path, pages: &[(&str, String)]) -> std::io::Result<()> {
    create_dir(dir)?;
    pages.iter().try_for_each(|(file, text)| std::fs::write(dir.join(file), text))
}

#[allow(clippy::disallowed_methods, reason = "a command's output, not a server's data")]
fn create_dir(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)
}
