//! Reads the pages of a stream, through the cache.

use std::sync::{Arc, OnceLock};

use super::cache::{PageCache, Worth};
use super::encoding::{decode, decode_dictionary};
use super::frame::{PageFile, PageRef, index_of, stream};
use super::index::PageIndex;
use super::page::{Dictionary, Page};
use super::writer::StreamMeta;
use crate::error::{Error, Result};

/// An open file and its place in the cache, which it leaves when it is closed.
pub struct CachedFile {
    pub file: PageFile,
    cache: Arc<PageCache>,
    name: u64,
}

impl CachedFile {
    pub fn new(file: PageFile, cache: Arc<PageCache>) -> Arc<CachedFile> {
        let name = cache.name_file();
        Arc::new(CachedFile { file, cache, name })
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

/// One stream of an open file.
pub struct StreamReader {
    file: Arc<CachedFile>,
    meta: StreamMeta,
    /// Kept for good once read by lookups, which cannot afford to look for it; scans go through the cache.
    resident_index: OnceLock<Arc<PageIndex>>,
}

impl StreamReader {
    pub fn new(file: Arc<CachedFile>, meta: StreamMeta) -> StreamReader {
        StreamReader { file, meta, resident_index: OnceLock::new() }
    }

    pub fn meta(&self) -> &StreamMeta {
        &self.meta
    }

    pub fn file(&self) -> &CachedFile {
        &self.file
    }

    /// The stream's page index.
    pub fn index(&self) -> Result<Arc<PageIndex>> {
        if let Some(index) = self.resident_index.get() {
            return Ok(index.clone());
        }
        let (rows, width) = (self.meta.rows, self.meta.physical.width());
        self.file.page(index_of(self.meta.stream), 0, self.meta.index, Worth::Lookup, |body| {
            let index = PageIndex::decode(body, rows, width)?;
            let bytes = index.byte_size();
            Ok((index, bytes))
        })
    }

    /// The stream's page index, which from now on stays in memory as long as the file is open.
    pub fn resident_index(&self) -> Result<&PageIndex> {
        if self.resident_index.get().is_none() {
            let index = self.index()?;
            // Another thread may have been first; then its copy, which is equal, stays.
            let _ = self.resident_index.set(index);
        }
        Ok(self.resident_index.get().expect("it has just been set"))
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
