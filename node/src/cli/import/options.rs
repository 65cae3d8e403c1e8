//! Options of an import, and the tags of its rows.

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
        Ok(ImportOptions {
            files,
            delimiter: delimiter(matches)?,
            null: text(matches, "null").unwrap_or_default().as_bytes().to_vec(),
            skip: text(matches, "skip").map(definitions::names).unwrap_or_default(),
            truncate: matches.get_flag("truncate"),
            rejects,
        })
    }
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
