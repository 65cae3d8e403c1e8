//! Backups in a storage: `<root>/<table id>-<name>/<T in ms>/`.
//!
//! Invariant: nothing is overwritten. A run claims its directory before it writes to it. `.kudu-metadata.json` is
//! created last and removed first; the claim is created first and removed last.
//!
//! Invariant: a directory without claim and `.kudu-metadata.json` is of another program, and is left alone.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::sync::Arc;

#[cfg(test)]
use engine::disk::Disk;
use engine::error::{Error, ErrorKind, Result};
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::files::{InputFile, list_dir};
use super::kudu_backup;
use super::kudu_metadata::KUDU_METADATA;
use super::manifest::{MANIFEST, Manifest, PartEntry};
use super::part_reader::{parquet_error, unreadable};
use super::storage::{
    CLAIM, DiskStorage, NewFile, OpenStorage, RunState, Storage, read_file, refuse_password,
};
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

/// A complete backup that cannot be read: its manifest is damaged or missing (`Corrupt`), of a newer version
/// (`Unsupported`), or its disk fails or refuses (`Io`).
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

/// All backups of a location.
#[derive(Clone)]
pub struct BackupStore {
    root: String,
    storage: Arc<dyn Storage>,
}

/// Writer that counts and sums up the bytes of a new file.
pub struct PartFile {
    out: Box<dyn NewFile>,
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

/// State of a directory that a run of nyala or Kudu's job created.
enum DirState {
    Complete(Box<Manifest>),
    /// Being written, or what is left of a run or a removal that was interrupted.
    Claimed,
}

/// Returns true if a file is not there; a file in the place of its directory has none.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Directory of a backup being written, which no other run may write to or remove.
pub struct ClaimedDir {
    pub dir: String,
    _claim: Box<dyn Send + Sync>,
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
            "a location of kind {scheme}:// is no directory (a path or file://PATH); the program nyala-backup reads \
             and writes s3://, gs:// and az://"
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
        Ok(BackupStore { root: root.to_string(), storage: Arc::new(DiskStorage(disk)) })
    }

    /// Opens a location that `others` may know; `None` if it is a directory.
    pub fn open_other(others: &OpenStorage, location: &str) -> Result<Option<BackupStore>> {
        refuse_password(location)?;
        let root = location.trim_end_matches('/').to_string();
        others(location).transpose().map(|storage| Some(BackupStore { root, storage: storage? }))
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
        BackupStore { root: "store".to_string(), storage: Arc::new(DiskStorage(disk)) }
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
        match self.storage.claim(&dir) {
            Ok(claim) => Ok(ClaimedDir { dir, _claim: claim }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(Error::already_present(
                format!("another run writes {}/{dir}; run the backup again", self.root),
            )),
            Err(error) => Err(Error::io(format_args!("create {}/{dir}", self.root), &error)),
        }
    }

    /// Returns the state of the run that claimed a directory.
    pub fn run_state(&self, dir: &str) -> RunState {
        self.storage.run_state(dir)
    }

    /// Creates a file in a claimed directory.
    pub(crate) fn create_part(&self, dir: &str, file: &str) -> Result<PartFile> {
        let path = self.path(dir, file);
        let created = self.storage.create(&format!("{dir}/{file}"));
        let out = created.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Error::already_present(format!("{path} exists")),
            _ => Error::io(format_args!("write {path}"), &error),
        })?;
        Ok(PartFile { out, bytes: 0, crc32c: 0 })
    }

    pub(crate) fn open_part(&self, dir: &str, file: &str) -> Result<InputFile> {
        let opened = self.storage.open(&format!("{dir}/{file}"));
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
        let tables = self.storage.list("");
        for table in tables.map_err(|error| Error::io(format_args!("list {}", self.root), &error))? {
            let Some((id, name)) = table.split_once('-') else { continue };
            let runs = match self.storage.list(&table) {
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => continue,
                runs => {
                    runs.map_err(|error| Error::io(format_args!("list {}/{table}", self.root), &error))?
                }
            };
            for run in &runs {
                let Ok(to_ms) = run.parse::<u64>() else { continue };
                let dir = format!("{table}/{run}");
                match self.read_backup(&dir) {
                    Ok(Some(DirState::Complete(manifest))) => {
                        listing.backups.push(StoredBackup { dir, manifest: *manifest });
                    }
                    Ok(Some(DirState::Claimed)) => listing.unfinished.push((dir, to_ms)),
                    Ok(None) => {}
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

    /// Reads a directory's manifest, or that of Kudu's metadata; `None` for a directory of another program.
    fn read_backup(&self, dir: &str) -> Result<Option<DirState>> {
        let read = |file: &str| match read_file(&*self.storage, &format!("{dir}/{file}")) {
            Err(error) if is_missing(&error) => Ok(None),
            bytes => bytes.map(Some).map_err(|error| Error::io(format_args!("read {file}"), &error)),
        };
        let Some(metadata) = read(KUDU_METADATA)? else {
            // Earlier versions removed the claim of a backup before its manifest.
            let claimed = read(CLAIM)?.is_some() || read(MANIFEST)?.is_some();
            return Ok(claimed.then_some(DirState::Claimed));
        };
        let complete = |manifest: Manifest| Some(DirState::Complete(Box::new(manifest)));
        if let Some(manifest) = read(MANIFEST)? {
            return Manifest::decode(&manifest).map(complete).map_err(|error| error.context(MANIFEST));
        }
        if read(CLAIM)?.is_some() {
            // Only runs of nyala create the claim.
            return Err(Error::corrupt(format!("no {MANIFEST}; the file was lost")));
        }
        self.read_kudus(dir, &metadata).map(complete)
    }

    /// Reads a backup that Kudu wrote: its metadata, and the rows of each file by its footer.
    fn read_kudus(&self, dir: &str, metadata: &[u8]) -> Result<Manifest> {
        let mut manifest = kudu_backup::decode(metadata).map_err(|error| error.context(KUDU_METADATA))?;
        let names = self.storage.list(dir);
        let names = names.map_err(|error| Error::io(format_args!("list {dir}"), &error))?;
        for file in names.into_iter().filter(|name| name.starts_with("part-") && name.ends_with(".parquet")) {
            let input = self.open_part(dir, &file)?;
            let bytes = input.size_bytes();
            let rows = parquet_rows(input).map_err(|error| error.context(&file))?;
            manifest.parts.push(PartEntry { file, tablet: String::new(), bytes, rows, crc32c: 0 });
        }
        Ok(manifest)
    }

    /// Reads all files of a backup and compares their sizes and checksums. The error names the file.
    ///
    /// A backup of Kudu has no checksums: its files were opened when it was listed.
    pub fn verify(&self, backup: &StoredBackup) -> Result<()> {
        if backup.manifest.is_kudus() {
            return Ok(());
        }
        let name = format!("{}/{KUDU_METADATA}", backup.dir);
        let metadata = read_file(&*self.storage, &name);
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

    /// Returns the names of the marks in a directory; none if there is no such directory.
    pub(crate) fn marks(&self, dir: &str) -> Result<BTreeSet<String>> {
        match self.storage.list(dir) {
            Ok(names) => Ok(names.into_iter().filter(|name| name != CLAIM).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
            Err(error) => Err(Error::io(format_args!("list {}/{dir}", self.root), &error)),
        }
    }

    /// Creates an empty file. It may be there even after an error.
    pub(crate) fn add_mark(&self, dir: &str, name: &str) -> Result<()> {
        // The directory has the claim of an earlier mark, or is claimed now.
        let _ = self.storage.claim(dir);
        self.create_part(dir, name)?.finish().map(|_| ())
    }

    /// Removes marks durably. After an error some of them may be there.
    pub(crate) fn remove_marks(&self, dir: &str, names: &BTreeSet<String>) -> Result<()> {
        let remove = || {
            names.iter().try_for_each(|name| self.storage.remove(&format!("{dir}/{name}")))?;
            self.storage.sync_dir(dir)
        };
        match names.is_empty() {
            // The directory may be missing.
            true => Ok(()),
            false => remove()
                .map_err(|error| Error::io(format_args!("remove marks of {}/{dir}", self.root), &error)),
        }
    }

    /// Removes a directory with all its files: first the one that completes the backup, last the claim.
    pub fn remove(&self, dir: &str) -> Result<()> {
        let remove = || {
            let mut files = self.storage.list(dir)?;
            let path = |file: &str| format!("{dir}/{file}");
            let is_backup = take(&mut files, KUDU_METADATA);
            if is_backup {
                self.storage.remove(&path(KUDU_METADATA))?;
                // Order: the backup is gone durably before a part is.
                self.storage.sync_dir(dir)?;
            }
            let has_claim = take(&mut files, CLAIM);
            if is_backup && !has_claim {
                // Kudu's backups have no claim, without which a removal that is interrupted now is not repeated.
                drop(self.storage.claim(dir)?);
            }
            files.iter().try_for_each(|file| self.storage.remove(&path(file)))?;
            if is_backup || has_claim {
                // Order: all parts are gone durably before the claim is.
                self.storage.sync_dir(dir)?;
                self.storage.remove(&path(CLAIM))?;
            }
            self.storage.remove_dir(dir)
        };
        remove().map_err(|error: io::Error| Error::io(format_args!("remove {}/{dir}", self.root), &error))
    }
}

/// Takes a name out of a list; returns true if it was there.
fn take(names: &mut Vec<String>, name: &str) -> bool {
    let found = names.iter().position(|known| known == name);
    found.map(|at| names.remove(at)).is_some()
}

/// Returns the number of rows by a Parquet file's footer.
fn parquet_rows(file: InputFile) -> Result<u64> {
    let reader = SerializedFileReader::new(file).map_err(parquet_error)?;
    u64::try_from(reader.metadata().file_metadata().num_rows()).map_err(unreadable)
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
