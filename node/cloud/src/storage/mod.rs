//! Files of backups as objects.
//!
//! - A file of one chunk is put at once, and only if its name is free. A larger one is uploaded in parts; its name is
//!   free, because a run claims its directory by an object that it creates so.
//! - An upload that is not finished is aborted.
//! - Calls block the thread; requests run on a runtime of their own.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use engine::error::{Error, Result};
use futures_util::TryStreamExt;
use nyala_backup::files::{InputFile, ReadAt};
use nyala_backup::storage::{CLAIM, NewFile, RunState, Storage};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutPayload, WriteMultipart};
use tokio::runtime::Handle;

/// Bytes of a part of an upload. A store takes 10,000 parts: 160 GB a file.
const CHUNK_BYTES: usize = 16 << 20;
/// Parts of one file that are uploaded at the same time.
const UPLOADS_MAX: usize = 2;
/// Bytes that are read at a time.
const BLOCK_BYTES: u64 = 4 << 20;
/// Blocks of a file that are kept: a reader has a place in each column of a row group.
const BLOCKS_MAX: usize = 16;
/// Time since an object was written after which its run is taken to have ended.
const RUN_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Objects below a prefix of a store.
#[derive(Clone)]
pub struct ObjectStorage {
    store: Arc<dyn ObjectStore>,
    prefix: String,
    runtime: Handle,
    chunk_bytes: usize,
}

/// Returns the text of an error without queries of addresses: they may have signatures.
pub fn redacted(error: &object_store::Error) -> String {
    let text = error.to_string();
    let without_query = |word: &str| match (word.find("://"), word.find('?')) {
        (Some(scheme), Some(query)) if scheme < query => {
            let end = word[query..].find([')', '"', '\'', '<']).map_or(word.len(), |end| query + end);
            format!("{}{}", &word[..query], &word[end..])
        }
        _ => word.to_string(),
    };
    text.split(' ').map(without_query).collect::<Vec<_>>().join(" ")
}

fn to_io(error: object_store::Error) -> io::Error {
    use object_store::Error;
    let kind = match &error {
        Error::NotFound { .. } => io::ErrorKind::NotFound,
        Error::AlreadyExists { .. } | Error::Precondition { .. } => io::ErrorKind::AlreadyExists,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, redacted(&error))
}

impl ObjectStorage {
    /// Returns the objects below a prefix. `runtime` has threads of its own.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str, runtime: Handle) -> io::Result<ObjectStorage> {
        let prefix = prefix.trim_matches('/').to_string();
        let storage = ObjectStorage { store, prefix, runtime, chunk_bytes: CHUNK_BYTES };
        storage.path("")?;
        Ok(storage)
    }

    /// Returns an object's path. Names are escaped already, so that they are taken as they are.
    fn path(&self, path: &str) -> io::Result<Path> {
        let full = format!("{}/{path}", self.prefix);
        Path::parse(full.trim_matches('/')).map_err(|error| to_io(error.into()))
    }

    /// Runs requests on the runtime and waits for their end.
    fn wait<T: Send + 'static>(&self, requests: impl Future<Output = T> + Send + 'static) -> io::Result<T> {
        let (done, result) = mpsc::channel();
        self.runtime.spawn(async move {
            // If the receiver has gone, the caller's thread is ending.
            let _ = done.send(requests.await);
        });
        result.recv().map_err(|_| io::Error::other("the runtime of requests has ended"))
    }

    fn request<T: Send + 'static>(
        &self,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        self.wait(request)?.map_err(to_io)
    }

    fn put_new(&self, path: Path, bytes: Vec<u8>) -> io::Result<()> {
        let store = self.store.clone();
        let put = async move { store.put_opts(&path, PutPayload::from(bytes), PutMode::Create.into()).await };
        self.request(put).map(|_| ())
    }
}

impl Storage for ObjectStorage {
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let (store, prefix) = (self.store.clone(), self.path(dir)?);
        let found = self.request(async move { store.list_with_delimiter(Some(&prefix)).await })?;
        let objects = found.objects.iter().map(|object| &object.location);
        let paths = found.common_prefixes.iter().chain(objects);
        let mut names: Vec<String> = paths.filter_map(|path| path.filename().map(str::to_string)).collect();
        names.sort();
        Ok(names)
    }

    fn open(&self, path: &str) -> io::Result<InputFile> {
        let (store, path) = (self.store.clone(), self.path(path)?);
        let of_head = path.clone();
        let len = self.request(async move { store.head(&of_head).await })?.size;
        let object = Object { storage: self.clone(), path, len, blocks: Mutex::default() };
        Ok(InputFile::new(len, Arc::new(object)))
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn NewFile>> {
        let path = self.path(path)?;
        Ok(Box::new(NewObject { storage: self.clone(), path, buffer: Vec::new(), upload: None }))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let (store, path) = (self.store.clone(), self.path(path)?);
        self.request(async move { store.delete(&path).await })
    }

    fn remove_dir(&self, _dir: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_dir(&self, _dir: &str) -> io::Result<()> {
        Ok(())
    }

    fn claim(&self, dir: &str) -> io::Result<Box<dyn Send + Sync>> {
        self.put_new(self.path(&format!("{dir}/{CLAIM}"))?, Vec::new())?;
        Ok(Box::new(()))
    }

    fn run_state(&self, dir: &str) -> RunState {
        let Ok(prefix) = self.path(dir) else { return RunState::Ended };
        let store = self.store.clone();
        let Ok(objects) =
            self.request(async move { store.list(Some(&prefix)).try_collect::<Vec<_>>().await })
        else {
            return RunState::Unknown;
        };
        let newest = objects.iter().map(|object| SystemTime::from(object.last_modified)).max();
        let is_old = |time: SystemTime| time.elapsed().is_ok_and(|age| age > RUN_MAX);
        match newest {
            Some(time) if !is_old(time) => RunState::Unknown,
            _ => RunState::Ended,
        }
    }
}

/// An object being read in blocks.
struct Object {
    storage: ObjectStorage,
    path: Path,
    len: u64,
    /// Blocks by their number, the one used last at the end.
    blocks: Mutex<Vec<(u64, Bytes)>>,
}

impl Object {
    fn block(&self, number: u64) -> io::Result<Bytes> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let known = blocks.iter().position(|(known, _)| *known == number).map(|place| blocks.remove(place));
        let (_, bytes) = match known {
            Some(block) => block,
            None => (number, self.fetch(number)?),
        };
        if blocks.len() == BLOCKS_MAX {
            blocks.remove(0);
        }
        blocks.push((number, bytes.clone()));
        Ok(bytes)
    }

    fn fetch(&self, number: u64) -> io::Result<Bytes> {
        let (store, path) = (self.storage.store.clone(), self.path.clone());
        let range = number * BLOCK_BYTES..self.len.min((number + 1) * BLOCK_BYTES);
        let want = range.end - range.start;
        let bytes = self.storage.request(async move { store.get_range(&path, range).await })?;
        match bytes.len() as u64 == want {
            true => Ok(bytes),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl ReadAt for Object {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64).filter(|end| *end <= self.len);
        end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let (mut at, mut rest) = (offset, out);
        while !rest.is_empty() {
            let block = self.block(at / BLOCK_BYTES)?;
            let bytes = &block[(at % BLOCK_BYTES) as usize..];
            let (part, after) = rest.split_at_mut(bytes.len().min(rest.len()));
            part.copy_from_slice(&bytes[..part.len()]);
            (at, rest) = (at + part.len() as u64, after);
        }
        Ok(())
    }
}

/// An object being written.
struct NewObject {
    storage: ObjectStorage,
    path: Path,
    buffer: Vec<u8>,
    /// Begun with the second chunk.
    upload: Option<WriteMultipart>,
}

impl NewObject {
    /// Uploads the buffer as a part; waits while too many are being uploaded.
    fn upload_part(&mut self) -> io::Result<()> {
        let mut upload = match self.upload.take() {
            Some(upload) => upload,
            None => {
                let (store, path) = (self.storage.store.clone(), self.path.clone());
                let begun = self.storage.request(async move { store.put_multipart(&path).await })?;
                WriteMultipart::new_with_chunk_size(begun, self.storage.chunk_bytes)
            }
        };
        let part = Bytes::from(std::mem::take(&mut self.buffer));
        let (upload, result) = self.storage.wait(async move {
            let result = upload.wait_for_capacity(UPLOADS_MAX).await;
            if result.is_ok() {
                upload.put(part);
            }
            (upload, result)
        })?;
        self.upload = Some(upload);
        result.map_err(to_io)
    }
}

impl Write for NewObject {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() >= self.storage.chunk_bytes {
            self.upload_part()?;
        }
        let space = self.storage.chunk_bytes - self.buffer.len();
        let taken = &bytes[..bytes.len().min(space)];
        self.buffer.extend_from_slice(taken);
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl NewFile for NewObject {
    fn finish(mut self: Box<Self>) -> Result<()> {
        let path = self.path.to_string();
        let mut finish = || {
            if self.upload.is_none() {
                return self.storage.put_new(self.path.clone(), std::mem::take(&mut self.buffer));
            }
            self.upload_part()?;
            let Some(upload) = self.upload.take() else { return Ok(()) };
            // Aborts the upload if a part fails.
            self.storage.request(upload.finish()).map(|_| ())
        };
        finish().map_err(|error| Error::io(format_args!("write {path}"), &error))
    }
}

impl Drop for NewObject {
    fn drop(&mut self) {
        if let Some(upload) = self.upload.take() {
            // Parts that cannot be removed now are removed by the store's own rule for uploads that were not completed.
            let _ = self.storage.request(upload.abort());
        }
    }
}

#[cfg(test)]
mod tests;
