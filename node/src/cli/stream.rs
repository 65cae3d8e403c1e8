//! Byte streams that commands read and write: files, standard input and output, gzip and zstd; and patterns of names.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::error::{Error, ErrorKind, Result};
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;

use nyala_backup::files::{InputFile, OutputFile, list_dir};
use nyala_common::env::Env;

/// Name of standard input and standard output on the command line.
pub(super) const STANDARD: &str = "-";

/// Format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileFormat {
    Csv,
    JsonLines,
    Parquet,
}

/// Compression of a whole file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileCompression {
    None,
    Gzip,
    Zstd,
}

impl FileFormat {
    /// Returns the given format, or the one of the name's extension, which a compression's extension may follow.
    pub(super) fn of(asked: Option<&str>, path: &str) -> Result<FileFormat> {
        let bare = FileCompression::strip(path).0;
        let ending = bare.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
        match asked.or(ending.as_deref()) {
            Some("csv") => Ok(FileFormat::Csv),
            Some("jsonl" | "ndjson") => Ok(FileFormat::JsonLines),
            Some("parquet" | "pq") => Ok(FileFormat::Parquet),
            _ => Err(Error::invalid(format!(
                "{path}: unknown format (the name ends in none of .csv, .jsonl, .parquet); give --format"
            ))),
        }
    }
}

impl FileCompression {
    /// Splits a compression's extension from a name.
    pub(super) fn strip(path: &str) -> (&str, FileCompression) {
        let endings = [(".gz", FileCompression::Gzip), (".zst", FileCompression::Zstd)];
        let found = endings.into_iter().find_map(|(ending, found)| Some((path.strip_suffix(ending)?, found)));
        found.unwrap_or((path, FileCompression::None))
    }

    /// Recognises compressed bytes by their first four.
    fn of_magic(head: &[u8]) -> FileCompression {
        match head {
            [0x1f, 0x8b, ..] => FileCompression::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd] => FileCompression::Zstd,
            _ => FileCompression::None,
        }
    }
}

/// Reader that counts the bytes read.
struct Counted<R> {
    inner: R,
    bytes: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(out)?;
        self.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// A stream to read, decompressed.
pub(super) struct InputStream {
    reader: Box<dyn Read + Send>,
    bytes: Arc<AtomicU64>,
}

impl InputStream {
    /// Opens a file or standard input. Compression is recognised by the first bytes, whatever the name.
    pub(super) fn open(env: &Env, path: &str) -> Result<InputStream> {
        let raw: Box<dyn Read + Send> = match path {
            STANDARD => Box::new(io::stdin()),
            _ => Box::new(open_file(env, path)?),
        };
        InputStream::decompress(raw).map_err(|error| Error::io(format_args!("read {path}"), &error))
    }

    fn decompress(raw: Box<dyn Read + Send>) -> io::Result<InputStream> {
        let bytes = Arc::new(AtomicU64::new(0));
        let mut counted = Counted { inner: raw, bytes: bytes.clone() };
        let mut head = Vec::new();
        counted.by_ref().take(4).read_to_end(&mut head)?;
        let compression = FileCompression::of_magic(&head);
        let whole = io::Cursor::new(head).chain(counted);
        let reader: Box<dyn Read + Send> = match compression {
            FileCompression::None => Box::new(whole),
            FileCompression::Gzip => Box::new(MultiGzDecoder::new(whole)),
            FileCompression::Zstd => Box::new(zstd::stream::read::Decoder::new(whole)?),
        };
        Ok(InputStream { reader, bytes })
    }

    /// Returns the counter of bytes read from the file, before decompression.
    pub(super) fn progress(&self) -> Arc<AtomicU64> {
        self.bytes.clone()
    }
}

impl Read for InputStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.reader.read(out)
    }
}

/// Opens a file, which may be standard input instead.
pub(super) fn open_file(env: &Env, path: &str) -> Result<InputFile> {
    InputFile::open(env, path).map_err(|error| or_standard(error, "standard input"))
}

/// Creates a file, which may be standard output instead.
fn create_file(env: &Env, path: &str, replace: bool) -> Result<OutputFile> {
    OutputFile::create(env, path, replace).map_err(|error| or_standard(error, "standard output"))
}

/// Adds `-` to the error of what is no regular file: a pipe or device may be given as a standard stream.
fn or_standard(error: Error, stream: &str) -> Error {
    match error.kind {
        ErrorKind::Invalid => {
            Error { message: format!("{}, or {STANDARD} for {stream}", error.message), ..error }
        }
        _ => error,
    }
}

/// A file to write, or standard output.
pub(super) enum RawOutput {
    File(OutputFile),
    Standard { written: u64 },
}

impl RawOutput {
    fn finish(self) -> Result<u64> {
        match self {
            RawOutput::File(file) => file.finish(),
            RawOutput::Standard { written } => {
                io::stdout().flush().map_err(|error| Error::io("write standard output", &error))?;
                Ok(written)
            }
        }
    }
}

impl Write for RawOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            RawOutput::File(file) => file.write(bytes),
            RawOutput::Standard { written } => {
                io::stdout().write_all(bytes)?;
                *written += bytes.len() as u64;
                Ok(bytes.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            RawOutput::File(file) => file.flush(),
            RawOutput::Standard { .. } => io::stdout().flush(),
        }
    }
}

/// A stream to write, compressed.
pub(super) enum OutputStream {
    Plain(RawOutput),
    Gzip(GzEncoder<RawOutput>),
    Zstd(zstd::stream::write::Encoder<'static, RawOutput>),
}

impl OutputStream {
    /// Creates a file, or opens standard output. `AlreadyPresent` if the file exists, unless it may be replaced.
    pub(super) fn create(
        env: &Env,
        path: &str,
        replace: bool,
        compression: FileCompression,
    ) -> Result<OutputStream> {
        let raw = match path {
            STANDARD => RawOutput::Standard { written: 0 },
            _ => RawOutput::File(create_file(env, path, replace)?),
        };
        let failed = |error: io::Error| Error::io(format_args!("write {path}"), &error);
        Ok(match compression {
            FileCompression::None => OutputStream::Plain(raw),
            FileCompression::Gzip => OutputStream::Gzip(GzEncoder::new(raw, flate2::Compression::default())),
            FileCompression::Zstd => {
                OutputStream::Zstd(zstd::stream::write::Encoder::new(raw, 0).map_err(failed)?)
            }
        })
    }

    /// Ends the stream, makes a file durable and gives it its name. Returns the bytes written, compressed.
    pub(super) fn finish(self) -> Result<u64> {
        let failed = |error: io::Error| Error::io("write the end of the file", &error);
        match self {
            OutputStream::Plain(raw) => raw.finish(),
            OutputStream::Gzip(encoder) => encoder.finish().map_err(failed)?.finish(),
            OutputStream::Zstd(encoder) => encoder.finish().map_err(failed)?.finish(),
        }
    }
}

impl Write for OutputStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            OutputStream::Plain(raw) => raw.write(bytes),
            OutputStream::Gzip(encoder) => encoder.write(bytes),
            OutputStream::Zstd(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            OutputStream::Plain(raw) => raw.flush(),
            OutputStream::Gzip(encoder) => encoder.flush(),
            OutputStream::Zstd(encoder) => encoder.flush(),
        }
    }
}

/// Returns the named files; a last component with `*` or `?` stands for all matching names, in order.
pub(super) fn expand<'a>(env: &Env, names: impl Iterator<Item = &'a str>) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    for name in names {
        if !name.contains(['*', '?']) {
            paths.push(name.to_string());
            continue;
        }
        let (dir, pattern) = name.rsplit_once('/').map_or(("", name), |(dir, last)| (dir, last));
        if dir.contains(['*', '?']) {
            let message =
                format!("{name}: a pattern is possible in the last component only; name the directory");
            return Err(Error::invalid(message));
        }
        let prefix = &name[..name.len() - pattern.len()];
        let mut found: Vec<String> = list_dir(env, prefix)?;
        found.retain(|entry| matches_pattern(pattern, entry) && !entry.ends_with(".partial"));
        if found.is_empty() {
            return Err(Error::not_found(format!("{name}: no file matches")));
        }
        paths.extend(found.iter().map(|entry| format!("{prefix}{entry}")));
    }
    Ok(paths)
}

/// Returns true if `*` (any characters) and `?` (any one) of the pattern can stand for the name.
pub(super) fn matches_pattern(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.chars();
    match parts.next() {
        None => name.is_empty(),
        Some('*') => {
            let rest = parts.as_str();
            let ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
            ends.into_iter().any(|at| matches_pattern(rest, &name[at..]))
        }
        Some(wanted) => {
            let mut letters = name.chars();
            letters.next().is_some_and(|letter| wanted == '?' || wanted == letter)
                && matches_pattern(parts.as_str(), letters.as_str())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_and_compressions_follow_names() {
        let of = |path| FileFormat::of(None, path).map_err(|error| error.message);
        assert_eq!(of("a.csv.gz"), Ok(FileFormat::Csv));
        assert_eq!(of("a.b.JSONL.zst"), Ok(FileFormat::JsonLines));
        assert_eq!(of("a.pq"), Ok(FileFormat::Parquet));
        assert_eq!(FileFormat::of(Some("csv"), "-"), Ok(FileFormat::Csv));
        insta::assert_snapshot!(
            of("a.txt").expect_err("no known extension"),
            @"a.txt: unknown format (the name ends in none of .csv, .jsonl, .parquet); give --format"
        );
        assert_eq!(FileCompression::strip("x.zst"), ("x", FileCompression::Zstd));
    }

    #[test]
    fn patterns_match_whole_names() {
        let cases = [("*.csv", "a.csv"), ("part-?.csv", "part-1.csv"), ("*", ""), ("a*b*c", "axxbyyc")];
        assert!(cases.iter().all(|(pattern, name)| matches_pattern(pattern, name)));
        let cases = [("*.csv", "a.csv.gz"), ("?", ""), ("a", "ab"), ("a*b", "a")];
        assert!(!cases.iter().any(|(pattern, name)| matches_pattern(pattern, name)));
    }

    #[test]
    fn compressed_bytes_are_recognised_and_truncated_ones_fail() {
        let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(b"some rows").expect("memory");
        let gzip = gzip.finish().expect("memory");
        let zstd = zstd::encode_all(&b"some rows"[..], 0).expect("memory");
        let read = |bytes: Vec<u8>| {
            let mut text = String::new();
            let mut stream = InputStream::decompress(Box::new(io::Cursor::new(bytes)))?;
            stream.read_to_string(&mut text).map(|_| text)
        };
        for whole in [b"some rows".to_vec(), gzip.clone(), zstd.clone()] {
            assert_eq!(read(whole).expect("whole"), "some rows");
        }
        for cut in [gzip[..gzip.len() - 3].to_vec(), zstd[..zstd.len() - 3].to_vec()] {
            assert_eq!(read(cut).expect_err("cut off").kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
