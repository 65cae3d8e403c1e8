//! Reads the pages of a stream, through the cache.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use super::cache::{PageCache, Worth};
use super::encoding::{decode, decode_dictionary};
use super::frame::{PageFile, PageRef, index_of, stream};
use super::index::{PageEntry, PageIndex};
use super::keys::Separators;
use super::page::{Dictionary, Page};
use super::writer::StreamMeta;
use crate::error::{Error, Result};
use crate::memory::{Held, MemTracker};

/// An open file and its place in the cache, which it leaves when it is closed.
pub struct CachedFile {
    pub file: PageFile,
    cache: Arc<PageCache>,
    name: u64,
    /// What stays in memory as long as the file is open.
    held: Held,
}

impl CachedFile {
    pub fn new(file: PageFile, cache: Arc<PageCache>) -> Arc<CachedFile> {
        CachedFile::counted(file, cache, None)
    }

    /// The same; what stays in memory with it is counted by `memory`.
    pub fn counted(
        file: PageFile,
        cache: Arc<PageCache>,
        memory: Option<&Arc<MemTracker>>,
    ) -> Arc<CachedFile> {
        let (name, held) = (cache.name_file(), memory.map_or_else(Held::default, Held::new));
        let file = CachedFile { file, cache, name, held };
        file.holds(size_of::<CachedFile>() + file.file.path().len());
        Arc::new(file)
    }

    /// Says that so many more bytes stay in memory with the file: those of its readers.
    pub fn holds(&self, bytes: usize) {
        self.held.add(bytes as u64);
    }

    /// The page in its decoded form, from the cache or else from the file. `decode` also says its size.
    pub fn page<T: Send + Sync + 'static>(
        &self,
        stream: u32,
        ordinal: u32,
        at: PageRef,
        worth: Worth,
        decode: impl FnOnce(&[u8]) -> Result<(T, usize)>,
    ) -> Result<Arc<T>> {
        if let Some(page) = self.cache.get(self.name, at.offset) {
            return Ok(page);
        }
        let body = self.file.read(stream, ordinal, at)?;
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

/// What is read once and kept for as long as its file is open, if memory has room for it.
pub struct Resident<T>(OnceLock<T>);

/// What [`Resident::get`] gives.
pub enum Kept<'a, T> {
    Staying(&'a T),
    /// There was no room to keep it.
    Passing(T),
}

impl<T> Default for Resident<T> {
    fn default() -> Resident<T> {
        Resident(OnceLock::new())
    }
}

impl<T> Resident<T> {
    /// What is kept, or what `read` gives; that also says its size in bytes.
    pub fn get(&self, file: &CachedFile, read: impl FnOnce() -> Result<(T, usize)>) -> Result<Kept<'_, T>> {
        if let Some(kept) = self.0.get() {
            return Ok(Kept::Staying(kept));
        }
        let (value, bytes) = read()?;
        if !file.held.try_keep(bytes as u64) {
            return Ok(Kept::Passing(value));
        }
        if self.0.set(value).is_err() {
            // Another thread was first; its copy, which is equal, stays.
            file.held.sub(bytes as u64);
        }
        Ok(Kept::Staying(self.0.get().expect("it has just been set")))
    }
}

impl<T> Deref for Kept<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Kept::Staying(kept) => kept,
            Kept::Passing(read) => read,
        }
    }
}

/// What keys are looked up with: a page index, and the first key of each page.
pub struct Lookup {
    pub index: Arc<PageIndex>,
    pub separators: Separators,
}

/// One stream of an open file.
pub struct StreamReader {
    file: Arc<CachedFile>,
    meta: StreamMeta,
    /// Lookups cannot afford to look for it in the cache; scans can.
    lookup: Resident<Lookup>,
}

impl StreamReader {
    pub fn new(file: Arc<CachedFile>, meta: StreamMeta) -> StreamReader {
        file.holds(size_of::<StreamReader>() + 2 * size_of::<usize>());
        StreamReader { file, meta, lookup: Resident::default() }
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
        self.file.page(index_of(self.meta.stream), 0, self.meta.index, Worth::Lookup, |body| {
            let index = PageIndex::decode(body, rows, width)?;
            let bytes = index.byte_size();
            Ok((index, bytes))
        })
    }

    /// What keys are looked up with, pages being told apart by their `first_key`. Where there is room it stays in
    /// memory as long as the file is open.
    pub fn lookup(&self, first_key: impl Fn(&PageEntry) -> Vec<u8>) -> Result<Kept<'_, Lookup>> {
        self.lookup.get(&self.file, || {
            let index = self.index()?;
            let separators = Separators::new(index.pages.iter().map(first_key));
            // It is counted here from now on.
            self.file.cache.forget_page(self.file.name, self.meta.index.offset);
            let bytes = index.byte_size() + separators.byte_size();
            Ok((Lookup { index, separators }, bytes))
        })
    }

    fn dictionary(&self) -> Result<Option<Arc<Dictionary>>> {
        let Some(at) = self.meta.dictionary else { return Ok(None) };
        let stream = self.meta.stream | stream::DICTIONARY_OF;
        let read = self.file.page(stream, 0, at, Worth::Lookup, |body| {
            let dictionary = decode_dictionary(body)?;
            let bytes = dictionary.bytes.len() + 4 * dictionary.offsets.len();
            Ok((dictionary, bytes))
        });
        read.map(Some)
    }

    /// Page `ordinal` of the index.
    pub fn page(&self, index: &PageIndex, ordinal: usize, worth: Worth) -> Result<Arc<Page>> {
        let entry = &index.pages[ordinal];
        let dictionary = self.dictionary()?;
        self.file.page(self.meta.stream, ordinal as u32, entry.at, worth, |body| {
            if let (Worth::Scan, Some(next)) = (worth, index.pages.get(ordinal + 1)) {
                // A scan wants it next: the device fetches it while this one is decoded.
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
