//! Tablet copies of a group trial: ordered by a leader, then a few bytes at a time, and ended at any of them.

use engine::error::{Error, Result};
use engine::ids::{OpId, Term};
use engine::raft::ConsensusMeta;
use engine::replica::copy::{
    CopyLeader, CopyManifest, CopyPart, CopySink, CopySnapshot, CopySource, LocalData, RejectedSource,
    is_vote_unknown,
};
use engine::tablet::superblock::Superblock;
use engine::time::ClockReading;

use super::GroupTrial;
use super::copy_state::CopyState;
use super::ids::{TABLET, id_of};
use super::server::TrialServer;

/// Largest number of bytes in a chunk.
const CHUNK_BYTES: [usize; 3] = [16, 300, 1 << 14];
/// Percentage of copies between whose two parts the source's log is shortened.
const OUTDATED_PERCENT: u64 = 20;
/// Percentage of chunks after which a copy is given up.
const ABORT_PERCENT: u64 = 2;

impl TrialServer {
    /// Accepts a leader's order to copy its replica.
    pub(super) fn order_copy(&mut self, source: usize, term: Term) -> Result<()> {
        if self.copy.is_some() {
            return Err(Error::not_ready("the tablet is being copied"));
        }
        self.local()?.admit_term(term)?;
        self.copy = Some(CopyState::Ordered { source, term });
        Ok(())
    }

    /// Returns the replica's part of a copy, and the index up to which it knows operations as committed.
    fn copy_view(&self, now: ClockReading) -> Result<(CopySnapshot, u64)> {
        let (replica, _) = self.open.as_ref().ok_or_else(not_running)?;
        let status = replica.status(now);
        let meta = ConsensusMeta { term: status.term, ..ConsensusMeta::new(TABLET, status.committed_config) };
        Ok((replica.copy_view(meta)?, status.committed.index))
    }

    /// Adds the log's part of a copy to the replica's.
    fn copy_source(&mut self, (view, committed): (CopySnapshot, u64)) -> Result<CopySource> {
        let (_, wal) = self.open.as_mut().ok_or_else(not_running)?;
        CopySource::new(view, wal.snapshot()?, committed)
    }

    /// Replaces what is here by the beginning of a copy.
    fn begin_copy(&mut self, source: usize, term: Term, from: &CopySource) -> Result<CopySink> {
        let local = self.local()?;
        self.close();
        let manifest = CopyManifest::decode(&from.read(CopyPart::Manifest, 0, usize::MAX)?.data)?;
        let leader = Some(CopyLeader { id: id_of(source), term });
        let rejected = RejectedSource::of(leader, &manifest);
        let (wal, data) = self.disks();
        match CopySink::begin(wal, data, &local, leader, manifest) {
            Ok(sink) => {
                (self.rejected, self.acknowledged, self.failed) = (None, 0, false);
                if local.has == LocalData::Nothing {
                    self.known_last = Some(OpId::MIN);
                }
                Ok(sink)
            }
            Err(error) => {
                let unknown_vote = is_vote_unknown(&self.wal_disk, &self.data_disk, &local);
                if unknown_vote {
                    self.rejected = rejected.or(self.rejected);
                }
                // Not a tombstone, which its leader would copy again: it must be evicted and added again.
                self.failed = unknown_vote || local.has == LocalData::Failed;
                Err(error)
            }
        }
    }
}

fn not_running() -> Error {
    Error::not_ready("the source does not run")
}

impl GroupTrial {
    /// Takes the next step of the copy to a server, if there is one.
    pub(super) fn step_copy(&mut self, server: usize) -> Result<()> {
        // A sink without space waits for some.
        if self.servers[server].is_full {
            return Ok(());
        }
        match self.servers[server].copy.take() {
            None => Ok(()),
            Some(CopyState::Ordered { source, term }) => self.open_copy(server, source, term),
            Some(CopyState::Fetching { source, life, from, sink }) => {
                self.fetch(server, (source, life), from, sink)
            }
        }
    }

    fn open_copy(&mut self, server: usize, source: usize, term: Term) -> Result<()> {
        let now = self.reading(source);
        if !self.reaches(server, source) || self.servers[source].stalled {
            return Ok(());
        }
        self.write_effects(source)?;
        if self.servers[source].waits_for_space() {
            return Ok(());
        }
        // A source that has failed, its state, or an unknown vote here ends it.
        let Ok(view) = self.servers[source].copy_view(now) else { return Ok(()) };
        if self.faults && self.random.percent(OUTDATED_PERCENT) {
            self.servers[server].copy = Some(CopyState::Ordered { source, term });
            self.shorten_log(source)?;
            // Meanwhile the server may have ended.
            if self.servers[server].copy.take().is_none() {
                return Ok(());
            }
        }
        if self.servers[source].waits_for_space() {
            return Ok(());
        }
        let Ok(from) = self.servers[source].copy_source(view) else { return Ok(()) };
        let Ok(sink) = self.servers[server].begin_copy(source, term, &from) else { return Ok(()) };
        self.note(format!("{server} copies from {source} up to {}", from.last_op()));
        let (life, from, sink) = (self.servers[source].life, Box::new(from), Box::new(sink));
        self.servers[server].copy = Some(CopyState::Fetching { source, life, from, sink });
        Ok(())
    }

    fn fetch(
        &mut self,
        server: usize,
        (source, life): (usize, u64),
        from: Box<CopySource>,
        mut sink: Box<CopySink>,
    ) -> Result<()> {
        let lives = self.servers[source].life == life && self.reaches(server, source);
        if !lives || self.faults && self.random.percent(ABORT_PERCENT) {
            return self.abort(server, *sink);
        }
        let Some(wanted) = sink.wanted() else { return self.finish(server, &sink) };
        let bytes = self.random.pick(&CHUNK_BYTES);
        let put =
            from.read(wanted.part, wanted.offset, bytes).and_then(|chunk| sink.put(wanted.part, &chunk));
        match put {
            Err(error) if self.servers[source].rotten => {
                self.failed(source, &error.to_string());
                return self.abort(server, *sink);
            }
            put => put?,
        }
        self.servers[server].copy = Some(CopyState::Fetching { source, life, from, sink });
        Ok(())
    }

    fn finish(&mut self, server: usize, sink: &CopySink) -> Result<()> {
        let now = self.reading(server);
        sink.finish()?;
        self.servers[server].rotten = false;
        self.copied += 1;
        self.note(format!("the copy to {server} is complete"));
        self.servers[server].open_files(now)?;
        self.settle(server);
        Ok(())
    }

    fn abort(&mut self, server: usize, sink: CopySink) -> Result<()> {
        sink.abort()?;
        let own = &mut self.servers[server];
        own.known_last = Superblock::load(&own.data_disk, TABLET)?.tombstone_last_op;
        Ok(())
    }
}
