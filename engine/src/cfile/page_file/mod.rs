//! Files of checksummed pages: the header of each page, and the end of the file.
//!
//! ```text
//! file      page | page | ... | footer page | trailer
//!
//! page       0  u32  CRC32C of the rest of the page
//!            4  u32  length of the body, as stored
//!            8  16   tablet
//!           24  u64  rowset
//!           32  u32  stream: a column's id, or one of the names below
//!           36  u32  ordinal: the page's number in its stream
//!           40  u32  length of the body before compression
//!           44  u8   compression: Kudu's numbers, 1 = none, 100 = zstd
//!           45  u8   kind of file        46  u16  zero
//!           48  ...  body
//!
//! trailer    0  u64  offset of the footer page     8  u32  its length
//!           12  u8   kind of file   13 u8 zero    14  u16  format version
//!           16  4    "NYPF"                       20  u32  CRC32C of the 20 bytes before
//! ```
//!
//! The page header names the owner of the page, so that three kinds of damage are distinguished. A checksum that
//! does not match is *bit rot*. An intact page of another tablet or rowset is a *misplaced file*. An intact page of
//! another stream or ordinal is a *misdirected write*. A file without its trailer was never finished; it is an
//! orphan file.

mod verify;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::compress::{PAGE_BYTES_MAX, compress, decompress};
use crate::codec::ByteReader;
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, Result};
use crate::format_level::StoredFormat;
use crate::ids::TabletId;
use crate::schema::Compression;

pub use verify::PageFileCheck;

const HEADER: usize = 48;
const TRAILER: usize = 24;
const MAGIC: [u8; 4] = *b"NYPF";
/// The newest format that this build writes and reads.
const VERSION: u16 = StoredFormat::PageFile.only_version();
const NO_COMPRESSION: u8 = 1;
/// Target size of an append, in bytes; pages are collected up to it.
const APPEND_BYTES: usize = 1 << 20;

/// Streams that are not columns. Column ids are below them.
pub mod stream {
    pub const KEYS: u32 = 0xffff_ff00;
    pub const BLOOM: u32 = 0xffff_ff01;
    pub const UNDO: u32 = 0xffff_ff02;
    pub const REDO: u32 = 0xffff_ff03;
    pub const FOOTER: u32 = 0xffff_ff04;
    /// Bit added to a column's id for the page index of that column.
    pub const INDEX_OF: u32 = 0x4000_0000;
    pub const DICTIONARY_OF: u32 = 0x2000_0000;
}

/// Content of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FileKind {
    RowSet = 1,
    Delta = 2,
    Columns = 3,
}

/// Tablet and rowset to which pages belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageOwner {
    pub tablet: TabletId,
    pub rowset: u64,
}

impl fmt::Display for PageOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rowset {} of tablet {}", self.rowset, self.tablet)
    }
}

/// Location of a page in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageRef {
    pub offset: u64,
    pub len: u32,
}

/// Returns the directory of a path.
pub fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

/// Writer of a new file. A crash before [`PageWriter::finish`] returns leaves an orphan file.
pub struct PageWriter {
    disk: Arc<dyn Disk>,
    file: Arc<dyn DiskFile>,
    path: String,
    kind: FileKind,
    identity: PageOwner,
    buffer: Vec<u8>,
    flushed: u64,
}

impl PageWriter {
    pub fn create(
        disk: Arc<dyn Disk>,
        path: &str,
        kind: FileKind,
        identity: PageOwner,
    ) -> Result<PageWriter> {
        let file = disk.create(path).map_err(|e| Error::io(format_args!("create {path}"), &e))?;
        let buffer = Vec::new();
        Ok(PageWriter { disk, file, path: path.to_string(), kind, identity, buffer, flushed: 0 })
    }

    /// Bytes of memory allocated.
    pub fn allocated(&self) -> usize {
        self.buffer.capacity()
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn identity(&self) -> PageOwner {
        self.identity
    }

    /// Bytes appended so far.
    pub fn len(&self) -> u64 {
        self.flushed + self.buffer.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a page.
    pub fn append(
        &mut self,
        stream: u32,
        ordinal: u32,
        compression: Compression,
        body: &[u8],
    ) -> Result<PageRef> {
        if body.len() > PAGE_BYTES_MAX {
            let len = body.len();
            return Err(Error::invalid(format!("a page of {len} bytes is more than {PAGE_BYTES_MAX}")));
        }
        let packed = compress(compression, body);
        let (number, stored) = match &packed {
            Some((number, stored)) => (*number, &stored[..]),
            None => (NO_COMPRESSION, body),
        };
        if !self.buffer.is_empty() && self.buffer.len() + HEADER + stored.len() > APPEND_BYTES {
            self.flush()?;
        }
        let at = PageRef { offset: self.len(), len: (HEADER + stored.len()) as u32 };
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&[0; 4]);
        self.buffer.extend_from_slice(&(stored.len() as u32).to_le_bytes());
        self.buffer.extend_from_slice(&self.identity.tablet.0);
        self.buffer.extend_from_slice(&self.identity.rowset.to_le_bytes());
        self.buffer.extend_from_slice(&stream.to_le_bytes());
        self.buffer.extend_from_slice(&ordinal.to_le_bytes());
        self.buffer.extend_from_slice(&(body.len() as u32).to_le_bytes());
        self.buffer.extend_from_slice(&[number, self.kind as u8, 0, 0]);
        self.buffer.extend_from_slice(stored);
        let crc = crc32c::crc32c(&self.buffer[start + 4..]);
        self.buffer[start..start + 4].copy_from_slice(&crc.to_le_bytes());
        Ok(at)
    }

    fn flush(&mut self) -> Result<()> {
        let appended = self.file.append(&self.buffer);
        appended.map_err(|e| Error::io(format_args!("append to {}", self.path), &e))?;
        // Writeback proceeds while the next pages are encoded, so that the final sync has little left to do.
        self.file.begin_writing(self.flushed, self.buffer.len() as u64);
        self.flushed += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Writes the footer and the trailer and makes file and name durable. Returns the file's length in bytes.
    pub fn finish(self, footer: &[u8]) -> Result<u64> {
        let sealed = self.seal(footer)?;
        let len = sealed.len;
        sync_all(&[sealed])?;
        Ok(len)
    }

    /// Writes the footer and the trailer. The file is complete, and [`sync_all`] makes it durable.
    pub fn seal(mut self, footer: &[u8]) -> Result<SealedFile> {
        let at = self.append(stream::FOOTER, 0, Compression::None, footer)?;
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&at.offset.to_le_bytes());
        self.buffer.extend_from_slice(&at.len.to_le_bytes());
        self.buffer.extend_from_slice(&[self.kind as u8, 0]);
        self.buffer.extend_from_slice(&VERSION.to_le_bytes());
        self.buffer.extend_from_slice(&MAGIC);
        let crc = crc32c::crc32c(&self.buffer[start..]);
        self.buffer.extend_from_slice(&crc.to_le_bytes());
        self.flush()?;
        Ok(SealedFile { disk: self.disk, file: self.file, path: self.path, len: self.flushed })
    }
}

/// A file that is complete and possibly not yet durable.
pub struct SealedFile {
    disk: Arc<dyn Disk>,
    file: Arc<dyn DiskFile>,
    path: String,
    len: u64,
}

impl SealedFile {
    /// Length of the file in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Makes files and their names durable: each file, then each directory once.
///
/// After an error the caller uses none of them. A failed sync may have lost bytes, and is not retried.
pub fn sync_all(files: &[SealedFile]) -> Result<()> {
    for SealedFile { file, path, .. } in files {
        file.sync().map_err(|e| Error::io(format_args!("sync {path}"), &e))?;
    }
    let mut synced: Vec<&str> = Vec::new();
    for SealedFile { disk, path, .. } in files {
        let dir = parent(path);
        if !synced.contains(&dir) {
            disk.sync_dir(dir).map_err(|e| Error::io(format_args!("sync directory {dir:?}"), &e))?;
            synced.push(dir);
        }
    }
    Ok(())
}

/// A page's body.
#[derive(Debug)]
pub struct PageBody {
    bytes: Vec<u8>,
    start: usize,
}

impl std::ops::Deref for PageBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

/// A finished file, opened for reading.
#[derive(Clone)]
pub struct PageFile {
    file: Arc<dyn DiskFile>,
    path: String,
    kind: FileKind,
    identity: PageOwner,
    footer: PageRef,
}

impl PageFile {
    /// Opens a file and reads its footer. Returns `Corrupt` if it is not a complete file of this kind and owner.
    pub fn open(
        disk: &dyn Disk,
        path: &str,
        kind: FileKind,
        identity: PageOwner,
    ) -> Result<(PageFile, PageBody)> {
        let file = disk.open(path).map_err(|e| Error::io(format_args!("open {path}"), &e))?;
        let len = file.len().map_err(|e| Error::io(format_args!("size of {path}"), &e))?;
        if len < TRAILER as u64 {
            return Err(Error::corrupt(format!("{path}: {len} bytes are too few for a column file")));
        }
        let mut trailer = [0; TRAILER];
        let read = file.read_at(len - TRAILER as u64, &mut trailer);
        read.map_err(|e| Error::io(format_args!("read the end of {path}"), &e))?;
        let footer = parse_trailer(&trailer, kind, len).map_err(|e| e.context(path))?;
        let file = PageFile { file, path: path.to_string(), kind, identity, footer };
        let footer = file.read(stream::FOOTER, 0, file.footer)?;
        Ok((file, footer))
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the open file itself, to be read as bytes.
    pub fn handle(&self) -> Arc<dyn DiskFile> {
        self.file.clone()
    }

    /// Tells the device that a page will be read soon.
    pub fn will_read(&self, at: PageRef) {
        self.file.will_read(at.offset, at.len.into());
    }

    /// Reads a page, checks that it is intact and the one wanted, and decompresses its body.
    pub fn read(&self, stream: u32, ordinal: u32, at: PageRef) -> Result<PageBody> {
        let len = at.len as usize;
        if !(HEADER..=HEADER + PAGE_BYTES_MAX).contains(&len) {
            return Err(self.corrupt_error(stream, ordinal, at, &format!("a page cannot have {len} bytes")));
        }
        if !self.holds(at.offset, len as u64) {
            return Err(self.corrupt_error(stream, ordinal, at, "its location is beyond the footer"));
        }
        let mut bytes = vec![0; len];
        let read = self.file.read_at(at.offset, &mut bytes);
        read.map_err(|e| {
            Error::io(format_args!("read {} bytes at {} of {}", len, at.offset, self.path), &e)
        })?;
        let header = self.check_page(stream, ordinal, at, &bytes)?;
        if header.compression == NO_COMPRESSION {
            return Ok(PageBody { bytes, start: HEADER });
        }
        match decompress(header.compression, &bytes[HEADER..], header.raw_len) {
            Ok(bytes) => Ok(PageBody { bytes, start: 0 }),
            Err(error) => Err(self.in_page(stream, ordinal, at, error)),
        }
    }

    /// Returns the header of the page with these bytes, if it is intact and the one wanted.
    fn check_page(&self, stream: u32, ordinal: u32, at: PageRef, bytes: &[u8]) -> Result<Header> {
        let header = Header::parse(bytes);
        if header.body_len != bytes.len() - HEADER || crc32c::crc32c(&bytes[4..]) != header.crc {
            return Err(self.diagnose(stream, ordinal, at, &header, bytes));
        }
        self.check_identity(stream, ordinal, at, &header)?;
        Ok(header)
    }

    /// Returns true if `len` bytes from `offset` on end before the footer does.
    fn holds(&self, offset: u64, len: u64) -> bool {
        let end = self.footer.offset + u64::from(self.footer.len);
        offset.checked_add(len).is_some_and(|page_end| page_end <= end)
    }

    fn check_identity(&self, stream: u32, ordinal: u32, at: PageRef, found: &Header) -> Result<()> {
        if found.identity != self.identity || found.kind != self.kind as u8 {
            let message = format!(
                "misplaced file: this is a sound page of {} (file kind {}), not of {} (kind {})",
                found.identity, found.kind, self.identity, self.kind as u8
            );
            return Err(self.corrupt_error(stream, ordinal, at, &message));
        }
        if (found.stream, found.ordinal) != (stream, ordinal) {
            let other = StreamName(found.stream);
            let message = format!("misdirected write: this is sound page {} of {other}", found.ordinal);
            return Err(self.corrupt_error(stream, ordinal, at, &message));
        }
        Ok(())
    }

    /// Finds the reason of a failed checksum: another page that was written over this one is still intact at its own
    /// length.
    #[cold]
    fn diagnose(&self, stream: u32, ordinal: u32, at: PageRef, header: &Header, bytes: &[u8]) -> Error {
        let whole = HEADER + header.body_len;
        let mut longer = Vec::new();
        let page = match bytes.get(..whole) {
            Some(page) => Some(page),
            // A damaged length is not used: the other page would have to end before the footer does.
            None if self.holds(at.offset, whole as u64) => {
                longer.resize(whole, 0);
                self.file.read_at(at.offset, &mut longer).ok().map(|()| &longer[..])
            }
            None => None,
        };
        if page.is_some_and(|page| crc32c::crc32c(&page[4..]) == header.crc)
            && let Err(error) = self.check_identity(stream, ordinal, at, header)
        {
            return error;
        }
        self.corrupt_error(stream, ordinal, at, "bit rot: its checksum does not match its bytes")
    }

    fn describe_location(&self, stream: u32, ordinal: u32, at: PageRef) -> String {
        let (path, offset) = (&self.path, at.offset);
        format!("{path}: page {ordinal} of {} at offset {offset}", StreamName(stream))
    }

    fn corrupt_error(&self, stream: u32, ordinal: u32, at: PageRef, message: &str) -> Error {
        let place = self.describe_location(stream, ordinal, at);
        Error::corrupt(format!("{place}: {message}; repair the tablet from another replica"))
    }

    /// Adds the location of a page to an error about its content.
    pub fn in_page(&self, stream: u32, ordinal: u32, at: PageRef, error: Error) -> Error {
        error.context(self.describe_location(stream, ordinal, at))
    }
}

/// Fields of a page header, unchecked.
struct Header {
    crc: u32,
    body_len: usize,
    identity: PageOwner,
    stream: u32,
    ordinal: u32,
    raw_len: usize,
    compression: u8,
    kind: u8,
}

impl Header {
    /// Parses a header. `bytes` are at least a header's.
    fn parse(bytes: &[u8]) -> Header {
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let tablet = crate::ids::Uuid(bytes[8..24].try_into().expect("sixteen bytes"));
        let rowset = u64::from_le_bytes(bytes[24..32].try_into().expect("eight bytes"));
        Header {
            crc: u32_at(0),
            body_len: u32_at(4) as usize,
            identity: PageOwner { tablet, rowset },
            stream: u32_at(32),
            ordinal: u32_at(36),
            raw_len: u32_at(40) as usize,
            compression: bytes[44],
            kind: bytes[45],
        }
    }
}

struct StreamName(u32);

impl fmt::Display for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            stream::KEYS => f.write_str("the key index"),
            stream::BLOOM => f.write_str("the Bloom filter"),
            stream::UNDO => f.write_str("the UNDO deltas"),
            stream::REDO => f.write_str("the REDO deltas"),
            stream::FOOTER => f.write_str("the footer"),
            index if is_index(index) => write!(f, "the page index of {}", StreamName(index_of(index))),
            other if (stream::DICTIONARY_OF..stream::INDEX_OF).contains(&other) => {
                write!(f, "the dictionary of column {}", other - stream::DICTIONARY_OF)
            }
            column => write!(f, "column {column}"),
        }
    }
}

/// Returns true if this is the page index of a column or of a named stream.
fn is_index(stream: u32) -> bool {
    let of = index_of(stream);
    of < stream::DICTIONARY_OF || (of >= stream::KEYS && stream < stream::KEYS)
}

/// Returns the stream of the page index of `stream`. They differ in one bit, so each is computed from the other.
pub fn index_of(stream: u32) -> u32 {
    stream ^ stream::INDEX_OF
}

fn parse_trailer(trailer: &[u8; TRAILER], kind: FileKind, len: u64) -> Result<PageRef> {
    let mut input = ByteReader::new(trailer);
    let at = PageRef { offset: input.u64()?, len: input.u32()? };
    let (found_kind, _zero) = (input.u8()?, input.u8()?);
    let version = input.u16()?;
    if input.take(4)? != MAGIC {
        return Err(Error::corrupt("it does not end like a column file: cut short, or another kind of file"));
    }
    if input.u32()? != crc32c::crc32c(&trailer[..TRAILER - 4]) {
        return Err(Error::corrupt("bit rot: the trailer's checksum does not match its bytes"));
    }
    if version > VERSION {
        return Err(Error::unsupported(format!(
            "column file format {version} is newer than this build reads ({VERSION}); use the build that wrote it"
        )));
    }
    if found_kind != kind as u8 {
        return Err(Error::corrupt(format!("a {kind:?} file is wanted, this one has kind {found_kind}")));
    }
    if at.offset.checked_add(u64::from(at.len)) != Some(len - TRAILER as u64) {
        return Err(Error::corrupt("the trailer does not follow the footer: the file was cut or grew"));
    }
    Ok(at)
}
