//! Files of lines, for audit events and spans: one is appended to, older ones are kept up to a number.

use std::io;
use std::sync::Arc;

use engine::disk::{Disk, DiskFile};
use nyala_common::env::Env;

/// Sizes of the files, and their durability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LineFilesConfig {
    /// Size in bytes at which the next file begins.
    pub bytes_max: u64,
    /// Files that are kept.
    pub files_max: usize,
    /// True if lines are synced before they count as written.
    pub sync: bool,
}

/// The files of one program. Several programs may share the directory.
pub(super) struct LineFiles {
    disk: Arc<dyn Disk>,
    /// First part of the files' names: the server.
    owner: String,
    config: LineFilesConfig,
    /// Number of the file that is appended to.
    number: u64,
    /// `None` after a failure: it is opened again.
    file: Option<Arc<dyn DiskFile>>,
    /// Bytes of whole lines in the file.
    len: u64,
}

impl LineFiles {
    /// Opens the directory; continues the last file of this owner.
    pub(super) fn open(
        env: &Env,
        dir: &str,
        owner: String,
        config: LineFilesConfig,
    ) -> io::Result<LineFiles> {
        let disk = env.disks.open(dir)?;
        let mut files = LineFiles { disk, owner, config, number: 1, file: None, len: 0 };
        files.number = files.numbers()?.last().copied().unwrap_or(1);
        files.reopen()?;
        Ok(files)
    }

    /// Appends whole lines, durably if so configured. After an error nothing of them counts as written.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.file.is_some() && self.len > 0 && self.len + lines.len() as u64 > self.config.bytes_max {
            self.rotate()?;
        }
        let file = match &self.file {
            Some(file) => file.clone(),
            None => self.reopen()?,
        };
        let written = file.append(lines).and_then(|()| if self.config.sync { file.sync() } else { Ok(()) });
        if let Err(error) = written {
            // A part of a line may be in the file. If it cannot be removed, the file is opened again.
            if file.truncate(self.len).is_err() {
                self.file = None;
            }
            return Err(error);
        }
        self.len += lines.len() as u64;
        Ok(())
    }

    /// Begins the next file and removes the oldest ones.
    fn rotate(&mut self) -> io::Result<()> {
        let name = self.name(self.number + 1);
        let file = match self.disk.create(&name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.disk.open(&name)?,
            created => created?,
        };
        self.disk.sync_dir("")?;
        (self.number, self.len) = (self.number + 1, file.len()?);
        self.file = Some(file);
        let numbers = self.numbers()?;
        for old in numbers.iter().take(numbers.len().saturating_sub(self.config.files_max)) {
            self.disk.remove(&self.name(*old))?;
        }
        Ok(())
    }

    /// Opens the current file, or creates it. Ends a line that a crash or a full disk left torn.
    fn reopen(&mut self) -> io::Result<Arc<dyn DiskFile>> {
        let name = self.name(self.number);
        let file = match self.disk.open(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = self.disk.create(&name)?;
                self.disk.sync_dir("")?;
                file
            }
            opened => opened?,
        };
        let len = file.len()?;
        if len > 0 {
            let mut last = [0];
            file.read_at(len - 1, &mut last)?;
            if last != *b"\n" {
                file.append(b"\n")?;
            }
        }
        self.len = file.len()?;
        self.file = Some(file.clone());
        Ok(file)
    }

    fn name(&self, number: u64) -> String {
        format!("{}.{number:08}.jsonl", self.owner)
    }

    /// Returns the numbers of this owner's files, in order.
    fn numbers(&self) -> io::Result<Vec<u64>> {
        let (prefix, suffix) = (format!("{}.", self.owner), ".jsonl");
        let number = |name: &String| name.strip_prefix(&prefix)?.strip_suffix(suffix)?.parse().ok();
        let mut numbers: Vec<u64> = self.disk.list("")?.iter().filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }
}
