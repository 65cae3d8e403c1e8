//! `nyala debug wal cut`: the end of a log is removed, unless it is needed.

use clap::ArgMatches;
use engine::error::{Error, Result};
use engine::ids::{OpId, TabletId};
use engine::replica::{consensus_meta_store, wal_dir};
use engine::tablet::superblock::{DataState, Superblock};
use engine::wal::{LogEntry, Wal, backup_dir, cut_after};

use super::super::stopped::{LOG_CONFIG, named_tablet, view};
use crate::dirs::{Directory, StoppedServer};

/// A replica's log, and the operations that the replica cannot do without.
struct LogExtent {
    tablet: TabletId,
    first: u64,
    last: OpId,
    /// The newest operation known to be committed.
    committed: u64,
    /// The newest operation that the stored rows have.
    stored: u64,
}

/// Cuts the log that the command line names; returns the text for the operator.
pub(super) fn cut(server: &StoppedServer, matches: &ArgMatches) -> Result<String> {
    let (tablet, dir) = named_tablet(server, matches)?;
    let after = *matches.get_one::<u64>("after").expect("it is required");
    let extent = LogExtent::of(server, &dir, tablet)?;
    extent.check(after, matches.get_flag("force"))?;
    let text = extent.describe(after);
    if !matches.get_flag("yes") {
        return Ok(format!("{text}nothing was changed; --yes does it\n"));
    }
    let path = wal_dir(tablet);
    let last = cut_after(&server.wal.disk, &path, LOG_CONFIG, after)?;
    let old = backup_dir(&path);
    Ok(format!("{text}the log ends with operation {last}; the old one is in {}/{old}\n", server.wal.path))
}

impl LogExtent {
    fn of(server: &StoppedServer, dir: &Directory, tablet: TabletId) -> Result<LogExtent> {
        let meta = Superblock::load(&*view(dir), tablet)?;
        if meta.data_state != DataState::Ready {
            return Err(Error::invalid(format!(
                "tablet {tablet}: it is {:?}, and has no log",
                meta.data_state
            )));
        }
        let consensus = consensus_meta_store::load(&*view(dir), tablet)?;
        let mut committed = meta.last_op.index.max(consensus.committed.opid_index.unwrap_or(0));
        let mut note = |entry: LogEntry| {
            if let LogEntry::Commit(commit) = entry {
                committed = committed.max(commit.op.index);
            }
            Ok(())
        };
        let (log, _) = Wal::open(view(&server.wal), &wal_dir(tablet), LOG_CONFIG, &mut note)?;
        let (last, stored) = (log.last_op(), meta.last_op.index);
        // The configuration may name an index that the log does not have yet.
        let committed = committed.min(last.index);
        Ok(LogExtent { tablet, first: log.first_index().unwrap_or(last.index + 1), last, committed, stored })
    }

    fn check(&self, after: u64, force: bool) -> Result<()> {
        let LogExtent { tablet, first, last, committed, stored } = *self;
        let refuse = |why: String| Err(Error::invalid(format!("tablet {tablet}, cut after {after}: {why}")));
        if after >= last.index {
            return refuse(format!("the log ends with operation {last}, so that nothing would be cut"));
        }
        if after + 1 < first {
            return refuse(format!("the log begins with operation {first}"));
        }
        if after < stored {
            return refuse(format!(
                "the stored rows have the operations up to {stored}, which the log must have too; to go back \
                 further, delete the replica (nyala debug replica delete), so that it is copied from another server"
            ));
        }
        if after < committed && !force {
            return refuse(format!(
                "the operations up to {committed} are committed, and may be acknowledged to clients; --force cuts them"
            ));
        }
        Ok(())
    }

    fn describe(&self, after: u64) -> String {
        let LogExtent { tablet, first, last, committed, .. } = self;
        let (cut, lost) = (last.index - after, committed.saturating_sub(after));
        format!(
            "tablet {tablet}: operations {first} to {}, committed up to {committed}\n\
             to be cut: {cut} operations after {after}, {lost} of them committed\n",
            last.index
        )
    }
}
