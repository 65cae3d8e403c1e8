//! Readers of a stream's pages, which go through the page cache.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use super::cache::{CachePriority, PageCache};
use super::cached_reads;
use super::decoded_page::{DecodedPage, Dictionary};
use super::encoding::{decode, decode_dictionary};
use super::page_file::{PageFile, PageRef, index_of, stream};
use super::page_first_keys::PageFirstKeys;
use super::page_index::{PageEntry, PageIndex};
use super::writer::StreamMeta;
use crate::error::{Error, Result};
use crate::memory::{MemTracker, TrackedBytes};

/// Bytes of pages as stored, by where a reader got them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageBytes {
    /// Bytes of pages found in the page cache.
    pub cached: u64,
    /// Bytes read from files.
    pub read: u64,
}

thread_local! {
    /// Pages got by this thread so far. A read never changes threads, so the difference before and after is its own.
    static PAGE_BYTES: Cell<PageBytes> = const { Cell::new(PageBytes { cached: 0, read: 0 }) };
}

impl PageBytes {
    /// Runs `read` and returns the pages that it got.
    pub fn count<T>(read: impl FnOnce() -> T) -> (T, PageBytes) {
        let before = PAGE_BYTES.get();
        let value = read();
        let after = PAGE_BYTES.get();
        let got = PageBytes { cached: after.cached - before.cached, read: after.read - before.read };
        (value, got)
    }

    pub fn add(&mut self, other: PageBytes) {
        self.cached += other.cached;
        self.read += other.read;
    }
}

fn note_page(bytes: PageBytes) {
    let mut all = PAGE_BYTES.get();
    all.add(bytes);
    PAGE_BYTES.set(all);
}

/// An open file and its number in the page cache. Its pages leave the cache when the file is closed.
pub struct CachedFile {
    pub file: PageFile,
    cache: Arc<PageCache>,
    name: u64,
    /// Memory that stays allocated while the file is open.
    held: TrackedBytes,
}

impl CachedFile {
    pub fn new(file: PageFile, cache: Arc<PageCache>) -> Arc<CachedFile> {
        CachedFile::counted(file, cache, None)
    }

    /// Like [`CachedFile::new`]; `memory` tracks what stays allocated while the file is open.
    pub fn counted(
        file: PageFile,
        cache: Arc<PageCache>,
        memory: Option<&Arc<MemTracker>>,
    ) -> Arc<CachedFile> {
        let (name, held) = (cache.name_file(), memory.map_or_else(TrackedBytes::default, TrackedBytes::new));
        let file = CachedFile { file, cache, name, held };
        file.holds(size_of::<CachedFile>() + file.file.path().len());
        Arc::new(file)
    }

    /// Adds `bytes` to the memory that stays allocated with the file. Its readers call this.
    pub fn holds(&self, bytes: usize) {
        self.held.add(bytes as u64);
    }

    /// Returns the decoded page, from the cache or else from the file. `decode` returns the page and its size in bytes.
    pub fn page<T: Send + Sync + 'static>(
        &self,
        stream: u32,
        ordinal: u32,
        at: PageRef,
        worth: CachePriority,
        decode: impl FnOnce(&[u8]) -> Result<(T, usize)>,
    ) -> Result<Arc<T>> {
        if let Some(page) = self.cache.get(self.name, at.offset) {
            note_page(PageBytes { cached: at.len.into(), read: 0 });
            return Ok(page);
        }
        cached_reads::refuse()?;
        let body = self.file.read(stream, ordinal, at)?;
        note_page(PageBytes { cached: 0, read: at.len.into() });
        let (page, bytes) = decode(&body).map_err(|e| self.file.in_page(stream, ordinal, at, e))?;
        let page = Arc::new(page);
        self.cache.put(self.name, at.offset, page.clone(), bytes, worth);
        Ok(page)
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        self.cache.forget_file(self.name);
    }
}

/// A value that is read once and stays in memory while its file is open, if the memory limit allows it.
pub struct LazyResident<T>(OnceLock<T>);

/// The value that [`LazyResident::get`] returns.
pub enum ResidentRef<'a, T> {
    Staying(&'a T),
    /// A value that is not retained, because no memory could be reserved for it.
    Passing(T),
}

impl<T> Default for LazyResident<T> {
    fn default() -> LazyResident<T> {
        LazyResident(OnceLock::new())
    }
}

impl<T> LazyResident<T> {
    /// Returns the resident value, or the one that `read` returns together with its size in bytes.
    pub fn get(
        &self,
        file: &CachedFile,
        read: impl FnOnce() -> Result<(T, usize)>,
    ) -> Result<ResidentRef<'_, T>> {
        if let Some(value) = self.0.get() {
            return Ok(ResidentRef::Staying(value));
        }
        let (value, bytes) = read()?;
        if !file.held.try_hold(bytes as u64) {
            return Ok(ResidentRef::Passing(value));
        }
        if self.0.set(value).is_err() {
            // Another thread was first. Its value is equal and stays.
            file.held.sub(bytes as u64);
        }
        Ok(ResidentRef::Staying(self.0.get().expect("it has just been set")))
    }
}

impl<T> Deref for ResidentRef<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            ResidentRef::Staying(value) => value,
            ResidentRef::Passing(read) => read,
        }
    }
}

/// The page index and the first key of each page: all that a key lookup needs.
pub struct KeyLookup {
    pub index: Arc<PageIndex>,
    pub separators: PageFirstKeys,
}

/// One stream of an open file.
pub struct StreamReader {
    file: Arc<CachedFile>,
    meta: StreamMeta,
    /// Resident, because key lookups cannot afford a search in the cache. Scans can.
    lookup: LazyResident<KeyLookup>,
}

impl StreamReader {
    pub fn new(file: Arc<CachedFile>, meta: StreamMeta) -> StreamReader {
        file.holds(size_of::<StreamReader>() + 2 * size_of::<usize>());
        StreamReader { file, meta, lookup: LazyResident::default() }
    }

    pub fn meta(&self) -> &StreamMeta {
        &self.meta
    }

    pub fn file(&self) -> &CachedFile {
        &self.file
    }

    /// The stream's page index.
    pub fn index(&self) -> Result<Arc<PageIndex>> {
        if let Some(lookup) = self.lookup.0.get() {
            return Ok(lookup.index.clone());
        }
        let (rows, width) = (self.meta.rows, self.meta.physical.width());
        self.file.page(index_of(self.meta.stream), 0, self.meta.index, CachePriority::Lookup, |body| {
            let index = PageIndex::decode(body, rows, width)?;
            let bytes = index.byte_size();
            Ok((index, bytes))
        })
    }

    /// Returns the page index and the first keys for key lookups. `first_key` gives the first key of a page. They stay
    /// in memory while the file is open, if the memory limit allows it.
    pub fn lookup(&self, first_key: impl Fn(&PageEntry) -> Vec<u8>) -> Result<ResidentRef<'_, KeyLookup>> {
        let mut is_new = false;
        let lookup = self.lookup.get(&self.file, || {
            is_new = true;
            let index = self.index()?;
            let separators = PageFirstKeys::new(index.pages.iter().map(first_key));
            let bytes = index.byte_size() + separators.byte_size();
            Ok((KeyLookup { index, separators }, bytes))
        })?;
        if is_new && matches!(lookup, ResidentRef::Staying(_)) {
            // From here on its memory is tracked by the resident value. An index that does not stay is left in the
            // cache, or else each lookup would read it again.
            self.file.cache.forget_page(self.file.name, self.meta.index.offset);
        }
        Ok(lookup)
    }

    fn dictionary(&self) -> Result<Option<Arc<Dictionary>>> {
        let Some(at) = self.meta.dictionary else { return Ok(None) };
        let stream = self.meta.stream | stream::DICTIONARY_OF;
        let read = self.file.page(stream, 0, at, CachePriority::Lookup, |body| {
            let dictionary = decode_dictionary(body)?;
            let bytes = dictionary.bytes.len() + 4 * dictionary.offsets.len();
            Ok((dictionary, bytes))
        });
        read.map(Some)
    }

    /// Returns page `ordinal` of the index.
    pub fn page(&self, index: &PageIndex, ordinal: usize, worth: CachePriority) -> Result<Arc<DecodedPage>> {
        let entry = &index.pages[ordinal];
        let dictionary = self.dictionary()?;
        self.file.page(self.meta.stream, ordinal as u32, entry.at, worth, |body| {
            if let (CachePriority::Scan, Some(next)) = (worth, index.pages.get(ordinal + 1)) {
                // A scan reads the next page next: the device fetches it while this one is decoded.
                self.file.file.will_read(next.at);
            }
            let page = decode(body, self.meta.physical, self.meta.nullable, dictionary.as_ref())?;
            if page.rows != entry.rows as usize {
                let (rows, wanted) = (page.rows, entry.rows);
                return Err(Error::corrupt(format!("it has {rows} rows, its index says {wanted}")));
            }
            let bytes = page.byte_size();
            Ok((page, bytes))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::page_file::{FileKind, PageOwner, PageWriter};
    use super::super::writer::{StreamSpec, StreamWriter};
    use super::*;
    use crate::disk::mem::MemDisk;
    use crate::ids::Uuid;
    use crate::schema::{Compression, Encoding, PhysicalType};

    /// Returns a reader of a stream of several pages, whose indexes stay in memory up to a limit.
    fn reader(memory_limit: u64) -> StreamReader {
        let (disk, owner) = (MemDisk::new(1), PageOwner { tablet: Uuid([1; 16]), rowset: 2 });
        let mut out = PageWriter::create(Arc::new(disk.clone()), "f", FileKind::RowSet, owner).unwrap();
        let mut writer = StreamWriter::new(StreamSpec {
            stream: 3,
            physical: PhysicalType::Int32,
            nullable: false,
            encoding: Encoding::Plain,
            compression: Compression::None,
            page_bytes: 64,
            exact_bounds: true,
        });
        (0..100i32).for_each(|number| writer.push(Some(&number.to_le_bytes()), &mut out).unwrap());
        let meta = writer.finish(&mut out).unwrap();
        out.finish(&[]).unwrap();
        let (file, _) = PageFile::open(&disk, "f", FileKind::RowSet, owner).unwrap();
        let memory = MemTracker::root("server", Some(Arc::new(move || memory_limit)));
        StreamReader::new(CachedFile::counted(file, PageCache::new(1 << 20), Some(&memory)), meta)
    }

    /// Returns the bytes that a lookup of the index reads from the file, and true if the index stays in memory.
    fn look_up(reader: &StreamReader) -> (u64, bool) {
        let first_key = |page: &PageEntry| page.bounds.clone().unwrap().0;
        let (lookup, bytes) = PageBytes::count(|| reader.lookup(first_key).unwrap());
        (bytes.read, matches!(lookup, ResidentRef::Staying(_)))
    }

    #[test]
    fn an_index_is_read_once_whether_or_not_it_stays() {
        for (limit, stays) in [(u64::MAX, true), (0, false)] {
            let reader = reader(limit);
            let len = u64::from(reader.meta().index.len);
            assert_eq!(look_up(&reader), (len, stays));
            assert_eq!(look_up(&reader), (0, stays), "a limit of {limit} bytes");
            let cached = reader.file().cache.get::<PageIndex>(reader.file().name, reader.meta().index.offset);
            assert_eq!(cached.is_some(), !stays, "it is tracked once");
        }
    }
}
