//! Files named on the command line, accessed through [`Env::disks`].

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use bytes::Bytes;
use engine::disk::{Disk, DiskFile};
use engine::error::{Error, Result};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, Length};

use nyala_common::env::Env;

/// Splits a path into the directory to open and the rest; leading `..` belong to the directory.
fn split(path: &str) -> (String, String) {
    if let Some(rest) = path.strip_prefix('/') {
        return ("/".to_string(), rest.trim_start_matches('/').to_string());
    }
    let mut root = String::from(".");
    let mut rest = path;
    while let Some((first, after)) = rest.split_once('/') {
        match first {
            "." | "" => {}
            ".." => root.push_str("/.."),
            _ => break,
        }
        rest = after;
    }
    (root, rest.to_string())
}

fn locate(env: &Env, path: &str) -> io::Result<(Arc<dyn Disk>, String)> {
    let (root, rest) = split(path);
    Ok((env.disks.open(&root)?, rest))
}

/// Returns the names in a directory: `""`, or a path that ends in `/`.
pub fn list_dir(env: &Env, dir: &str) -> Result<Vec<String>> {
    let list = || {
        let (disk, rest) = locate(env, dir)?;
        disk.list(rest.trim_end_matches('/'))
    };
    list().map_err(|error: io::Error| Error::io(format_args!("list {dir}"), &error))
}

/// Source of bytes at any place.
pub trait ReadAt: Send + Sync {
    /// Fills `out` from `offset`; `UnexpectedEof` if the source ends earlier.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
}

struct OnDisk(Arc<dyn DiskFile>);

impl ReadAt for OnDisk {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, out)
    }
}

/// A file opened for random reads.
#[derive(Clone)]
pub struct InputFile {
    file: Arc<dyn ReadAt>,
    len: u64,
    at: u64,
}

impl InputFile {
    pub fn open(env: &Env, path: &str) -> Result<InputFile> {
        let open = || {
            let (disk, rest) = locate(env, path)?;
            InputFile::open_on(&*disk, &rest)
        };
        open().map_err(|error: io::Error| Error::io(format_args!("read {path}"), &error))
    }

    pub(crate) fn open_on(disk: &dyn Disk, path: &str) -> io::Result<InputFile> {
        let file = disk.open_read(path)?;
        Ok(InputFile::new(file.len()?, Arc::new(OnDisk(file))))
    }

    /// Returns a file of `len` bytes.
    pub fn new(len: u64, file: Arc<dyn ReadAt>) -> InputFile {
        InputFile { file, len, at: 0 }
    }

    pub fn size_bytes(&self) -> u64 {
        self.len
    }
}

impl Read for InputFile {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = (out.len() as u64).min(self.len.saturating_sub(self.at)) as usize;
        self.file.read_at(self.at, &mut out[..len])?;
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for InputFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.len.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

impl Length for InputFile {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for InputFile {
    type T = InputFile;

    fn get_read(&self, start: u64) -> ParquetResult<InputFile> {
        Ok(InputFile { at: start, ..self.clone() })
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let end = start.checked_add(length as u64).filter(|end| *end <= self.len);
        if end.is_none() {
            return Err(ParquetError::EOF(format!("{length} bytes at {start} of a file of {}", self.len)));
        }
        let mut bytes = vec![0; length];
        self.file.read_at(start, &mut bytes)?;
        Ok(Bytes::from(bytes))
    }
}

/// Bytes that are buffered before they are appended to the file.
const BUFFER_BYTES: usize = 1 << 20;

/// A file being written. It ends in `.partial` until [`OutputFile::finish`] renames it.
pub struct OutputFile {
    disk: Arc<dyn Disk>,
    path: String,
    partial: String,
    file: Arc<dyn DiskFile>,
    buffer: Vec<u8>,
    written: u64,
    named: bool,
}

/// Removes a file that was not finished.
impl Drop for OutputFile {
    fn drop(&mut self) {
        if !self.named {
            let _ = self.disk.remove(&self.partial);
        }
    }
}

impl OutputFile {
    /// Creates the file. `AlreadyPresent` if it exists, unless it may be replaced.
    pub fn create(env: &Env, path: &str, replace: bool) -> Result<OutputFile> {
        let create = || {
            let (disk, rest) = locate(env, path)?;
            OutputFile::create_on(disk, &rest, replace)
        };
        let taken = || Error::already_present(format!("{path} exists; give --force to replace it"));
        create()
            .map_err(|error: io::Error| Error::io(format_args!("write {path}"), &error))?
            .ok_or_else(taken)
    }

    /// Creates the file on a disk; returns `None` if it exists and may not be replaced.
    pub(crate) fn create_on(
        disk: Arc<dyn Disk>,
        path: &str,
        replace: bool,
    ) -> io::Result<Option<OutputFile>> {
        if !replace && disk.open(path).is_ok() {
            return Ok(None);
        }
        let partial = format!("{path}.partial");
        let _ = disk.remove(&partial);
        let file = disk.create(&partial)?;
        let (path, buffer, written, named) = (path.to_string(), Vec::new(), 0, false);
        Ok(Some(OutputFile { disk, path, partial, file, buffer, written, named }))
    }

    /// Makes the file durable and renames it; returns its size in bytes.
    pub fn finish(mut self) -> Result<u64> {
        let path = self.path.clone();
        let mut finish = || {
            self.flush()?;
            self.file.sync()?;
            self.disk.rename(&self.partial, &self.path)?;
            self.named = true;
            let parent = self.path.rsplit_once('/').map_or("", |(parent, _)| parent);
            self.disk.sync_dir(parent)
        };
        finish().map_err(|error: io::Error| Error::io(format_args!("write {path}"), &error))?;
        Ok(self.written)
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        self.written += bytes.len() as u64;
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.buffer.is_empty() {
            self.file.append(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_split_after_leading_parents() {
        let cases = [
            ("/a/b.csv", ("/", "a/b.csv")),
            ("b.csv", (".", "b.csv")),
            ("./a/b.csv", (".", "a/b.csv")),
            ("../../b.csv", ("./../..", "b.csv")),
        ];
        for (path, (root, rest)) in cases {
            assert_eq!(split(path), (root.to_string(), rest.to_string()), "{path}");
        }
    }
}
