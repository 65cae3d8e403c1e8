//! State of a server that survives a crash.

use engine::error::{Error, Result};
use engine::ids::OpId;
use engine::raft::{ConsensusMeta, LogChange};
use engine::wal::ReplicateEntry;

/// State that survives a crash.
#[derive(Default)]
pub struct Disk {
    /// Metadata of a replica or a tombstone.
    pub meta: Option<ConsensusMeta>,
    /// Entries from index 1 on.
    pub log: Vec<ReplicateEntry>,
    /// Commit index of the last commit record.
    pub committed: u64,
    /// Last operation recorded by a tombstone, or by a copy in progress.
    pub tombstone: Option<OpId>,
    /// Index below which entries can no longer be read for peers.
    pub gc_before: u64,
}

impl Disk {
    pub fn with(meta: ConsensusMeta) -> Disk {
        Disk { meta: Some(meta), ..Disk::default() }
    }

    pub fn read(&self, from: u64, max_bytes: usize) -> Result<Vec<ReplicateEntry>> {
        if from < self.gc_before || from == 0 {
            return Err(Error::not_found("the log no longer has it"));
        }
        let (mut bytes, mut entries) = (0, Vec::new());
        for entry in self.log.iter().skip(from as usize - 1) {
            bytes += entry.payload.len();
            if bytes > max_bytes && !entries.is_empty() {
                break;
            }
            entries.push(entry.clone());
        }
        Ok(entries)
    }

    pub(super) fn change(&mut self, change: LogChange) {
        match change {
            LogChange::Append { entry, .. } => {
                assert_eq!(entry.op.index, self.log.len() as u64 + 1, "the log is written in order");
                self.log.push(entry);
            }
            LogChange::Truncate { after } => self.log.truncate(after as usize),
        }
    }
}
