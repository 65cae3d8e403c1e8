//! Directory of backups: `<root>/<table id>-<name>/<T in ms>/`.
//!
//! Invariant: nothing is overwritten. A run claims its directory by creating `CLAIM` and holds that file's lock while
//! it writes. `.kudu-metadata.json` is created last and removed first.

use std::io::{self, Read, Write};
use std::sync::Arc;

use engine::disk::{Disk, create_dir_durably, read_file};
use engine::error::{Error, ErrorKind, Result};

use super::files::{InputFile, OutputFile, list_dir};
use super::kudu_metadata::KUDU_METADATA;
use super::manifest::{MANIFEST, Manifest, PartEntry};
use nyala_common::env::Env;

/// Bytes read at a time to compute a checksum.
const READ_BYTES: usize = 1 << 20;

/// A complete backup.
#[derive(Debug, Clone)]
pub struct StoredBackup {
    /// Path below the root.
    pub dir: String,
    pub manifest: Manifest,
}

/// A complete backup that cannot be read: its manifest is damaged, or missing because Kudu wrote the backup.
#[derive(Debug, Clone)]
pub struct UnreadableBackup {
    pub dir: String,
    pub table_id: String,
    /// Name of the table, escaped as in the directory's name.
    pub escaped_name: String,
    pub to_ms: u64,
    pub error: Error,
}

/// All contents of a store.
#[derive(Debug, Clone, Default)]
pub struct StoreListing {
    /// Complete backups, by table and time.
    pub backups: Vec<StoredBackup>,
    /// Directories of interrupted runs, with their times in milliseconds.
    pub unfinished: Vec<(String, u64)>,
    pub unreadable: Vec<UnreadableBackup>,
}

/// File that the run which writes a backup creates and locks.
const CLAIM: &str = ".nyala-run";

/// A directory of backups.
#[derive(Clone)]
pub struct BackupStore {
    root: String,
    disk: Arc<dyn Disk>,
}

/// Writer that counts and sums up the bytes of a new file.
pub struct PartFile {
    out: OutputFile,
    bytes: u64,
    crc32c: u32,
}

impl Write for PartFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.crc32c = crc32c::crc32c_append(self.crc32c, &bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl PartFile {
    /// Makes the file durable; returns its size and checksum.
    pub fn finish(self) -> Result<(u64, u32)> {
        self.out.finish()?;
        Ok((self.bytes, self.crc32c))
    }
}

/// Directory of a backup being written, which no other run may write to or remove.
pub struct ClaimedDir {
    pub dir: String,
    _lock: Box<dyn Send + Sync>,
}

/// Escapes a table's name as Kudu does, in the form of a submitted web form.
pub(crate) fn escape_name(name: &str) -> String {
    let mut escaped = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'*' | b'_' => escaped.push(byte as char),
            b' ' => escaped.push('+'),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// Returns the path of a store's directory; `file://` may lead it.
fn root_of(location: &str) -> Result<&str> {
    let root = location.strip_prefix("file://").unwrap_or(location);
    // The rest of the location may have a password.
    if let Some((scheme, _)) = root.split_once("://") {
        return Err(Error::unsupported(format!(
            "a store of kind {scheme}:// is not supported; give a directory (a path or file://PATH), for example one \
             where the object store is mounted, or copy a directory of backups to it when a run has ended"
        )));
    }
    let trimmed = root.trim_end_matches('/');
    Ok(if trimmed.is_empty() { root } else { trimmed })
}

impl BackupStore {
    /// Opens a directory, created if missing.
    pub fn create(env: &Env, location: &str) -> Result<BackupStore> {
        let root = root_of(location)?;
        let disk = env.disks.open(root);
        let disk = disk.map_err(|error| Error::io(format_args!("open {root}"), &error))?;
        Ok(BackupStore { root: root.to_string(), disk })
    }

    /// Opens a directory that exists.
    pub fn open(env: &Env, location: &str) -> Result<BackupStore> {
        let root = root_of(location)?;
        // The directory is listed first, because opening a disk creates it.
        list_dir(env, &format!("{}/", root.trim_end_matches('/')))
            .map_err(|error| error.context("directory of backups"))?;
        BackupStore::create(env, location)
    }

    #[cfg(test)]
    pub(crate) fn on_disk(disk: Arc<dyn Disk>) -> BackupStore {
        BackupStore { root: "store".to_string(), disk }
    }

    pub fn location(&self) -> &str {
        &self.root
    }

    fn path(&self, dir: &str, file: &str) -> String {
        format!("{}/{dir}/{file}", self.root)
    }

    /// Creates the directory of a backup. Fails if another run has claimed it.
    pub(crate) fn claim(&self, table_id: &str, table_name: &str, to_ms: u64) -> Result<ClaimedDir> {
        let dir = format!("{table_id}-{}/{to_ms}", escape_name(table_name));
        let claim = format!("{dir}/{CLAIM}");
        let create = || {
            create_dir_durably(&*self.disk, &dir)?;
            self.disk.create(&claim)?;
            let lock = self.disk.lock(&claim)?;
            Ok(ClaimedDir { dir: dir.clone(), _lock: lock })
        };
        create().map_err(|error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => Error::already_present(format!(
                "another run writes {}/{dir}; run the backup again",
                self.root
            )),
            _ => Error::io(format_args!("create {}/{dir}", self.root), &error),
        })
    }

    /// Returns true if a run writes to the directory now.
    pub fn is_claimed(&self, dir: &str) -> bool {
        let claim = format!("{dir}/{CLAIM}");
        // A lock creates its file, which only the run may do.
        let is_held = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        self.disk.open(&claim).is_ok() && self.disk.lock(&claim).is_err_and(is_held)
    }

    /// Creates a file in a claimed directory.
    pub(crate) fn create_part(&self, dir: &str, file: &str) -> Result<PartFile> {
        let path = self.path(dir, file);
        let created = OutputFile::create_on(self.disk.clone(), &format!("{dir}/{file}"), false);
        let created = created.map_err(|error| Error::io(format_args!("write {path}"), &error))?;
        let out = created.ok_or_else(|| Error::already_present(format!("{path} exists")))?;
        Ok(PartFile { out, bytes: 0, crc32c: 0 })
    }

    pub(crate) fn open_part(&self, dir: &str, file: &str) -> Result<InputFile> {
        let opened = InputFile::open_on(&*self.disk, &format!("{dir}/{file}"));
        opened.map_err(|error| Error::io(format_args!("read {}", self.path(dir, file)), &error))
    }

    /// Writes the manifest and then Kudu's metadata, which completes the backup.
    pub(crate) fn complete(&self, dir: &str, manifest: &Manifest, kudu_metadata: &[u8]) -> Result<()> {
        // Order: without Kudu's metadata the backup does not exist, so that file is last.
        self.write_file(dir, MANIFEST, &manifest.encode()?)?;
        self.write_file(dir, KUDU_METADATA, kudu_metadata)
    }

    fn write_file(&self, dir: &str, name: &str, bytes: &[u8]) -> Result<()> {
        let mut file = self.create_part(dir, name)?;
        let written = file.write_all(bytes);
        written.map_err(|error| Error::io(format_args!("write {}", self.path(dir, name)), &error))?;
        file.finish().map(|_| ())
    }

    /// Reads the manifests of all tables.
    pub fn list(&self) -> Result<StoreListing> {
        let mut listing = StoreListing::default();
        let tables = self.disk.list("");
        for table in tables.map_err(|error| Error::io(format_args!("list {}", self.root), &error))? {
            let Some((id, name)) = table.split_once('-') else { continue };
            let runs = match self.disk.list(&table) {
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => continue,
                runs => {
                    runs.map_err(|error| Error::io(format_args!("list {}/{table}", self.root), &error))?
                }
            };
            for run in &runs {
                let Ok(to_ms) = run.parse::<u64>() else { continue };
                let dir = format!("{table}/{run}");
                match self.read_backup(&dir) {
                    Ok(Some(manifest)) => listing.backups.push(StoredBackup { dir, manifest }),
                    Ok(None) => listing.unfinished.push((dir, to_ms)),
                    Err(error) => {
                        let error = error.context(format_args!("{}/{dir}", self.root));
                        let (table_id, escaped_name) = (id.to_string(), name.to_string());
                        let unreadable = UnreadableBackup { dir, table_id, escaped_name, to_ms, error };
                        listing.unreadable.push(unreadable);
                    }
                }
            }
        }
        listing.backups.sort_by_key(|backup| {
            (backup.manifest.table_name.clone(), backup.manifest.to_ms, backup.manifest.from_ms)
        });
        Ok(listing)
    }

    /// Reads the manifest of a directory; `None` if the backup was not completed.
    fn read_backup(&self, dir: &str) -> Result<Option<Manifest>> {
        let read = |file: &str| match read_file(&*self.disk, &format!("{dir}/{file}")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            bytes => bytes.map(Some).map_err(|error| Error::io(format_args!("read {file}"), &error)),
        };
        if read(KUDU_METADATA)?.is_none() {
            return Ok(None);
        }
        let missing =
            || Error::corrupt(format!("no {MANIFEST}; the file was lost, or Kudu wrote the backup"));
        let manifest = read(MANIFEST)?.ok_or_else(missing)?;
        Manifest::decode(&manifest).map(Some).map_err(|error| error.context(MANIFEST))
    }

    /// Reads all files of a backup and compares their sizes and checksums. The error names the file.
    pub fn verify(&self, backup: &StoredBackup) -> Result<()> {
        let name = format!("{}/{KUDU_METADATA}", backup.dir);
        let metadata = read_file(&*self.disk, &name);
        let metadata =
            metadata.map_err(|error| Error::io(format_args!("read {}/{name}", self.root), &error))?;
        check_crc32c(crc32c::crc32c(&metadata), backup.manifest.kudu_metadata_crc32c)
            .map_err(|error| error.context(format_args!("{}/{name}", self.root)))?;
        for part in &backup.manifest.parts {
            let path = self.path(&backup.dir, &part.file);
            let verified = self.open_part(&backup.dir, &part.file).and_then(|file| verify_part(file, part));
            verified.map_err(|error| match error.kind {
                ErrorKind::Corrupt => error.context(path),
                _ => error,
            })?;
        }
        Ok(())
    }

    /// Removes a directory with all its files, the one that completes the backup first.
    pub fn remove(&self, dir: &str) -> Result<()> {
        let remove = || {
            let mut files = self.disk.list(dir)?;
            files.sort_by_key(|file| file != KUDU_METADATA);
            for file in files {
                self.disk.remove(&format!("{dir}/{file}"))?;
                if file == KUDU_METADATA {
                    // Order: the backup is gone durably before a part is.
                    self.disk.sync_dir(dir)?;
                }
            }
            self.disk.remove(dir)
        };
        remove().map_err(|error: io::Error| Error::io(format_args!("remove {}/{dir}", self.root), &error))
    }
}

fn check_crc32c(found: u32, want: u32) -> Result<()> {
    if found != want {
        return Err(Error::corrupt(format!("the checksum is {found:08x} instead of {want:08x}")));
    }
    Ok(())
}

fn verify_part(mut file: InputFile, part: &PartEntry) -> Result<()> {
    if file.size_bytes() != part.bytes {
        let (found, want) = (file.size_bytes(), part.bytes);
        return Err(Error::corrupt(format!("{found} bytes instead of {want}")));
    }
    let mut crc32c = 0;
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let read = file.read(&mut buffer);
        let read = read.map_err(|error| Error::io(format_args!("read {}", part.file), &error))?;
        if read == 0 {
            return check_crc32c(crc32c, part.crc32c);
        }
        crc32c = crc32c::crc32c_append(crc32c, &buffer[..read]);
    }
}

#[cfg(test)]
mod tests;
