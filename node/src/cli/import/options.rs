//! Options of an import, and the tags of its rows.

use std::os::unix::fs::MetadataExt;

use clap::ArgMatches;
use engine::error::{Error, Result};
use nyala_client::definitions;
use nyala_common::env::Env;

use crate::cli::options::{text, texts};
use crate::cli::stream::{FileFormat, STANDARD, expand};

/// Bits of a row's tag that hold its line; the bits above hold the number of its file.
pub(super) const LINE_BITS: u32 = 44;

/// Options of an import.
pub(super) struct ImportOptions {
    pub(super) files: Vec<(String, FileFormat)>,
    pub(super) delimiter: u8,
    pub(super) null: Vec<u8>,
    pub(super) skip: Vec<String>,
    pub(super) truncate: bool,
    pub(super) rejects: Option<String>,
    /// True if the file of rejects may replace one that exists.
    pub(super) replace_rejects: bool,
}

impl ImportOptions {
    pub(super) fn of(env: &Env, matches: &ArgMatches) -> Result<ImportOptions> {
        let format = text(matches, "format");
        let files = expand(env, texts(matches, "file"))?;
        let files = files.into_iter().map(|path| Ok((path.clone(), FileFormat::of(format, &path)?)));
        let files = files.collect::<Result<Vec<_>>>()?;
        let rejects = text(matches, "rejects").map(str::to_string);
        if rejects.is_some() && files.iter().any(|(path, _)| path == STANDARD) {
            let message = "--rejects: standard input cannot be read twice (-); give the name of a file";
            return Err(Error::invalid(message));
        }
        if let Some(rejects) = &rejects {
            check_rejects(rejects, files.iter().map(|(path, _)| path.as_str()))?;
        }
        Ok(ImportOptions {
            files,
            delimiter: delimiter(matches)?,
            null: text(matches, "null").unwrap_or_default().as_bytes().to_vec(),
            skip: text(matches, "skip").map(definitions::names).unwrap_or_default(),
            truncate: matches.get_flag("truncate"),
            rejects,
            replace_rejects: matches.get_flag("force"),
        })
    }
}

/// Fails if the file of rejects would replace a file to read, under whatever name.
fn check_rejects<'a>(rejects: &str, mut files: impl Iterator<Item = &'a str>) -> Result<()> {
    match files.find(|read| is_same_file(read, rejects)) {
        None => Ok(()),
        Some(read) => Err(Error::invalid(format!(
            "--rejects: {rejects} would replace the file {read}, which is imported; give another name"
        ))),
    }
}

/// Returns true if both paths name one file, also through links.
fn is_same_file(one: &str, other: &str) -> bool {
    // Not by `Env::disks`, which do not tell one file from another.
    let identity = |path: &str| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    one == other || identity(one).is_some_and(|file| identity(other) == Some(file))
}

/// Returns the tag of a row of a file.
pub(super) fn tag(file: usize, line: u64) -> u64 {
    (file as u64) << LINE_BITS | line
}

/// Returns what the rows of a file are counted in.
pub(super) fn unit(format: FileFormat) -> &'static str {
    if format == FileFormat::Parquet { "row" } else { "line" }
}

fn delimiter(matches: &ArgMatches) -> Result<u8> {
    match text(matches, "delimiter").unwrap_or(",").as_bytes() {
        [one] => Ok(*one),
        b"\\t" => Ok(b'\t'),
        _ => Err(Error::invalid("--delimiter is one ASCII character, or \\t")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_rejects_may_not_be_one_that_is_read() {
        let check = |rejects| check_rejects(rejects, ["README.md", "src/lib.rs"].into_iter());
        for rejects in ["README.md", "src/../README.md", "./src/lib.rs"] {
            let error = check(rejects).expect_err("it is read");
            assert!(error.message.contains(rejects), "{error}");
        }
        assert_eq!(check("Cargo.toml"), Ok(()), "it exists, and is not read");
        assert_eq!(check("rejects.csv"), Ok(()));
    }
}
