//! Files named on the command line, accessed through [`Env::disks`].

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use bytes::Bytes;
use engine::disk::{Disk, DiskFile, EntryKind, parent};
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
    /// Opens a regular file. `Invalid` for a pipe or device: its length is not known, and it is read only once.
    pub fn open(env: &Env, path: &str) -> Result<InputFile> {
        let open = || {
            let (disk, rest) = locate(env, path)?;
            InputFile::open_on(&*disk, &rest)
        };
        open().map_err(|error: io::Error| match error.kind() {
            io::ErrorKind::NotSeekable => {
                Error::invalid(format!("read {path}: a pipe or device, which is read only once; name a file"))
            }
            _ => Error::io(format_args!("read {path}"), &error),
        })
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

/// A file being written. It has a name of its own that ends in `.partial` until [`OutputFile::finish`] renames it.
pub struct OutputFile {
    disk: Arc<dyn Disk>,
    path: String,
    /// Path in messages.
    shown: String,
    partial: String,
    /// True if the file may replace one that exists.
    replace: bool,
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

/// Fails if a new file may not have this name. `shown` is the path in messages.
///
/// Only a regular file is replaced: a rename would put a file in the place of a link or a device.
fn check_name(disk: &dyn Disk, path: &str, shown: &str, replace: bool) -> Result<()> {
    let kind = disk.entry_kind(path).map_err(|error| Error::io(format_args!("write {shown}"), &error))?;
    let fault = match kind {
        None => return Ok(()),
        Some(EntryKind::File) if replace => return Ok(()),
        Some(EntryKind::File) => {
            return Err(Error::already_present(format!("{shown} exists; give --force to replace it")));
        }
        Some(EntryKind::Dir) => "a directory",
        Some(EntryKind::Link) => "a symbolic link, which would be replaced",
        Some(EntryKind::Special) => "a pipe or device, which would be replaced",
    };
    Err(Error::invalid(format!("write {shown}: {fault}; name a file")))
}

impl OutputFile {
    /// Creates the file. `AlreadyPresent` if it exists, unless it may be replaced; `Invalid` if the name is taken by a
    /// directory, a link, a pipe or a device.
    pub fn create(env: &Env, path: &str, replace: bool) -> Result<OutputFile> {
        let failed = |error: io::Error| Error::io(format_args!("write {path}"), &error);
        let (disk, rest) = locate(env, path).map_err(failed)?;
        check_name(&*disk, &rest, path, replace)?;
        // Random: of two runs that write one file, none writes to the other's or removes it.
        let partial = format!("{rest}.{:08x}.partial", env.rng.next_u64() >> 32);
        let mut file = OutputFile::create_on(disk, &rest, partial, replace).map_err(failed)?;
        file.shown = path.to_string();
        Ok(file)
    }

    /// Creates the file on a disk, under the free name `partial`. The caller has checked the name `path`.
    pub(crate) fn create_on(
        disk: Arc<dyn Disk>,
        path: &str,
        partial: String,
        replace: bool,
    ) -> io::Result<OutputFile> {
        let file = disk.create(&partial)?;
        let (path, shown) = (path.to_string(), path.to_string());
        let (buffer, written, named) = (Vec::new(), 0, false);
        Ok(OutputFile { disk, path, shown, partial, replace, file, buffer, written, named })
    }

    /// Returns the path in messages.
    pub fn shown_path(&self) -> &str {
        &self.shown
    }

    /// Makes the file durable and renames it; returns its size in bytes.
    pub fn finish(mut self) -> Result<u64> {
        let shown = self.shown.clone();
        let failed = |error: io::Error| Error::io(format_args!("write {shown}"), &error);
        self.flush().and_then(|()| self.file.sync()).map_err(failed)?;
        if !self.replace {
            // The name may have been taken since. A file that gets it between this check and the rename is replaced,
            // because a rename always replaces.
            check_name(&*self.disk, &self.path, &shown, false)?;
        }
        self.disk.rename(&self.partial, &self.path).map_err(failed)?;
        self.named = true;
        self.disk.sync_dir(parent(&self.path)).map_err(failed)?;
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
    use engine::disk::mem::MemDisk;
    use engine::disk::read_file;
    use engine::error::ErrorKind;

    use super::*;

    #[test]
    fn only_a_regular_file_is_replaced_and_only_on_request() {
        let disk = MemDisk::new(1);
        disk.create("file").expect("an empty disk");
        disk.create_dir("dir").expect("an empty disk");
        let names = [("new", false), ("none/new", false), ("file", true), ("file", false), ("dir", true)];
        let check = |(path, replace)| match check_name(&disk, path, path, replace) {
            Ok(()) => format!("{path}: written"),
            Err(error) => error.message,
        };
        insta::assert_snapshot!(names.map(check).join("\n"), @r"
        new: written
        none/new: written
        file: written
        file exists; give --force to replace it
        write dir: a directory; name a file
        ");
    }

    #[test]
    fn two_runs_that_write_one_file_leave_each_other_alone() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new(1));
        let create = |run: &str| {
            let partial = format!("file.{run}.partial");
            let mut file = OutputFile::create_on(disk.clone(), "file", partial, false).expect("a new name");
            file.write_all(run.as_bytes()).expect("space");
            file
        };
        let [first, second, dropped] = ["first", "second", "dropped"].map(create);
        drop(dropped);
        assert_eq!(first.finish(), Ok(5));
        let taken = second.finish().expect_err("the first run has written the file");
        assert_eq!(taken.kind, ErrorKind::AlreadyPresent, "{taken}");
        assert_eq!(read_file(&*disk, "file").expect("a file"), b"first");
        assert_eq!(disk.list("").expect("a directory"), ["file"], "nothing else is left");
    }

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
