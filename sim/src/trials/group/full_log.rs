//! Full devices of logs: what a replica appends waits in memory until there is space, as a node's log task lets it.
//! Meanwhile nothing else may be done with the log but reads, and those leave out what waiting writes truncate.

use std::io;

use engine::error::{Error, Result};
use engine::ids::OpId;
use engine::raft::interface::LogReadRequest;
use engine::replica::{Job, LogWrite, write_log_from};
use engine::wal::ReplicateEntry;

use super::GroupTrial;
use super::server::TrialServer;

/// Most bytes that are left on a device that runs full: a write may fit in part.
const FREE_MAX: u64 = 3 << 10;
const PLENTY: u64 = 1 << 40;
const ENOSPC: i32 = 28;

impl TrialServer {
    /// Returns true if a scenario that needs a sound server must do without this one.
    pub(super) fn is_hindered(&self) -> bool {
        self.rotten || self.failed || self.stalled || self.is_full
    }

    /// Returns true if its log may not be used but for reads.
    pub(super) fn waits_for_space(&self) -> bool {
        self.is_full && !self.unwritten.is_empty()
    }

    /// Writes what waits for the log and syncs it. Returns the last operation if more of them are durable now; without
    /// space the rest waits.
    pub(super) fn write_and_sync(&mut self) -> Result<Option<OpId>> {
        let Some((_, wal)) = &mut self.open else { return Ok(None) };
        for after in self.unwritten.iter().filter_map(truncation) {
            self.acknowledged = self.acknowledged.min(after);
        }
        let before = wal.last_op();
        let written = write_log_from(wal, &mut self.unwritten);
        self.unsynced |= wal.last_op() != before;
        let synced = written.and_then(|()| if self.unsynced { wal.sync() } else { Ok(()) });
        match synced {
            Ok(()) => Ok(std::mem::take(&mut self.unsynced).then(|| wal.last_op())),
            Err(error) if self.is_full && error.is_no_space() && wal.failure().is_none() => {
                self.has_waited = true;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads operations that a member lacks.
    pub(super) fn read_back(&self, read: &LogReadRequest) -> Result<Vec<ReplicateEntry>> {
        let Some((_, wal)) = &self.open else { return Err(Error::not_ready("the replica has ended")) };
        let mut entries = wal.read(read.from, read.max_bytes)?;
        if let Some(last) = self.unwritten.iter().filter_map(truncation).min() {
            entries.retain(|entry| entry.op.index <= last);
        }
        Ok(entries)
    }
}

/// Returns the index after which a write truncates the log, if it does.
fn truncation(write: &LogWrite) -> Option<u64> {
    match write {
        LogWrite::Truncate(after) => Some(*after),
        LogWrite::Append(_) => None,
    }
}

impl GroupTrial {
    /// Leaves the device of a server's log little space.
    pub(super) fn fill_log(&mut self, server: usize) {
        let bytes = self.random.below(FREE_MAX);
        self.leave_space(server, bytes);
    }

    /// Leaves the device of a server's log some bytes, which the log's next writes may need.
    pub(super) fn leave_space(&mut self, server: usize, bytes: u64) {
        let own = &mut self.servers[server];
        own.is_full = true;
        own.wal_disk.set_free(bytes);
        self.note(format!("{bytes} bytes are left for the log of {server}"));
    }

    pub(super) fn free_log(&mut self, server: usize) {
        let own = &mut self.servers[server];
        if std::mem::take(&mut own.is_full) {
            own.wal_disk.set_free(PLENTY);
            let waited =
                if std::mem::take(&mut own.has_waited) { "writes have waited" } else { "nothing has" };
            self.note(format!("the log of {server} has space again, {waited}"));
        }
    }

    /// Ends a job that needs a durable log, where the device has no space for it.
    pub(super) fn give_up(&mut self, server: usize, job: Job) {
        let own = &mut self.servers[server];
        if let Some((replica, _)) = &mut own.open {
            let full = Error::io("sync the log", &io::Error::from_raw_os_error(ENOSPC));
            replica.end_job(job, Some(full), &mut own.out);
        }
        self.settle(server);
    }
}
