//! The immutable part of a DiskRowSet: its columns, key index and Bloom filter.

use std::sync::Arc;

use super::diskrowset_writer::RowSetFooter;
use crate::cfile::cache::CachePriority;
use crate::cfile::key_bloom::BloomChunk;
use crate::cfile::key_index::{KeyForm, KeyIndex};
use crate::cfile::page_file::stream;
use crate::cfile::page_index::PageEntry;
use crate::cfile::reader::{CachedFile, StreamReader};
use crate::cfile::stable_hash::hash64;
use crate::cfile::writer::StreamMeta;
use crate::error::{Error, Result};
use crate::ids::{ColumnId, RowId};
use crate::schema::PhysicalType;

/// The immutable part of a rowset.
#[derive(Clone)]
pub(super) struct BaseData {
    pub rows: u32,
    /// By stream, which is the column's id.
    pub columns: Vec<Arc<StreamReader>>,
    pub key_columns: usize,
    pub keys: Arc<KeyIndex>,
    /// The Bloom filter, in chunks by key range.
    pub bloom: Arc<StreamReader>,
}

impl BaseData {
    /// Returns the index in `columns` of a column, if the rowset has it.
    pub(super) fn column(&self, id: ColumnId) -> Option<usize> {
        self.columns.iter().position(|column| column.meta().stream == id.0)
    }

    pub(super) fn in_key(&self, id: ColumnId) -> bool {
        self.column(id).is_some_and(|at| at < self.key_columns)
    }

    pub(super) fn open(file: &Arc<CachedFile>, footer: RowSetFooter) -> Result<BaseData> {
        let bad = |fault: &str| Error::corrupt(format!("{}: the footer {fault}", file.file.path()));
        let key_columns = footer.key.len();
        if key_columns == 0 || key_columns > footer.columns.len() || footer.rows == 0 {
            return Err(bad("has no key or no rows"));
        }
        let streams = footer.columns.iter().chain(&footer.keys).chain([&footer.bloom]);
        if streams.into_iter().any(|stream| stream.rows != footer.rows) {
            return Err(bad("has streams of different lengths"));
        }
        let key = match footer.keys {
            Some(keys) => keys,
            None if key_columns == 1 => footer.columns[0].clone(),
            None => return Err(bad("lacks the key index")),
        };
        let form = KeyForm::of(&footer.key);
        let fits = match form {
            KeyForm::Encoded => key.physical == PhysicalType::Binary,
            KeyForm::Integer(physical) => key.physical == physical,
        };
        if !fits || key.nullable {
            return Err(bad("has a key index of another type"));
        }
        let reader = |meta| StreamReader::new(file.clone(), meta);
        Ok(BaseData {
            rows: footer.rows,
            columns: footer.columns.into_iter().map(reader).map(Arc::new).collect(),
            key_columns,
            keys: Arc::new(KeyIndex::new(reader(key), form)),
            bloom: Arc::new(reader(footer.bloom)),
        })
    }

    /// Returns the base with some columns replaced by those of `file`. Fails with `Corrupt` if they are not non-key
    /// columns of the base.
    pub(super) fn with_columns(&self, file: &Arc<CachedFile>, columns: Vec<StreamMeta>) -> Result<BaseData> {
        let mut base = self.clone();
        for meta in columns {
            let existing = base.column(ColumnId(meta.stream)).filter(|at| *at >= base.key_columns);
            let Some(at) = existing.filter(|at| base.columns[*at].meta().physical == meta.physical) else {
                let (path, column) = (file.file.path(), meta.stream);
                return Err(Error::corrupt(format!(
                    "{path}: column {column} is not a non-key column of the rowset"
                )));
            };
            base.columns[at] = Arc::new(StreamReader::new(file.clone(), meta));
        }
        Ok(base)
    }

    /// Returns the row with this encoded key, live or deleted.
    pub(super) fn find(&self, key: &[u8]) -> Result<Option<RowId>> {
        if self.may_contain(key)? { self.keys.find(key) } else { Ok(None) }
    }

    /// Returns false if the Bloom filter excludes the key.
    pub(super) fn may_contain(&self, key: &[u8]) -> Result<bool> {
        let first_key = |page: &PageEntry| page.bounds.clone().map_or(Vec::new(), |(first, _)| first);
        let bloom = &self.bloom;
        let lookup = bloom.lookup(first_key)?;
        let Some(ordinal) = lookup.separators.page_of(key) else { return Ok(false) };
        let entry = &lookup.index.pages[ordinal];
        if entry.bounds.as_ref().is_none_or(|(_, last)| key > &last[..]) {
            return Ok(false);
        }
        let file = bloom.file();
        let chunk = file.page(stream::BLOOM, ordinal as u32, entry.at, CachePriority::Lookup, |body| {
            let chunk = BloomChunk::decode(body)?;
            let bytes = chunk.byte_size();
            Ok((chunk, bytes))
        })?;
        Ok(chunk.may_contain(hash64(key)))
    }
}
