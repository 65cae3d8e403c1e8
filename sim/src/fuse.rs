//! Crashes at moments that matter: a server's power is cut a few disk operations after it told of such a moment.
//!
//! A crash at a random time rarely meets the instant between a vote and its being stored. The server's own notes say
//! when that is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use engine::disk::mem::MemDisk;
use engine::ids::TabletId;
use engine::note::Note;
use engine::note::raft::{Action, RaftNote};

use crate::plan::faults::Moment;

/// Something that is to come at a moment.
pub struct Fuse {
    pub moment: Moment,
    /// Such moments until it burns; the next is 1.
    pub nth: u32,
    pub charge: Charge,
}

/// What comes.
pub enum Charge {
    /// The power is cut so many operations of the disk later.
    PowerCut(MemDisk, u32),
    /// The plan's fault of this number strikes.
    Strike(usize),
}

/// The fuses of one machine. Clones share them.
#[derive(Clone, Default)]
pub struct Fuses {
    laid: Arc<Mutex<Laid>>,
    struck: Arc<Mutex<Vec<usize>>>,
    /// Whether some may have struck since somebody asked.
    news: Arc<AtomicBool>,
    /// Whether the power may go within some operation of a disk.
    cut_due: Arc<AtomicBool>,
    /// When the server last decided that something is committed; zero if it never did.
    decided: Arc<AtomicU64>,
}

#[derive(Default)]
struct Laid {
    fuses: Vec<Fuse>,
    /// Where the server began to lead since the first of them was laid, and has committed nothing yet.
    unsettled: BTreeSet<TabletId>,
    /// The index of the newest change of members that it has yet to commit as a leader.
    changing: BTreeMap<TabletId, u64>,
}

impl Fuses {
    pub fn lay(&self, fuse: Fuse) {
        self.lock().fuses.push(fuse);
    }

    /// None of them burns any more.
    pub fn clear(&self) {
        *self.lock() = Laid::default();
        self.struck();
    }

    /// Faults of the plan whose moment has come since somebody asked last.
    pub fn struck(&self) -> Vec<usize> {
        // It is asked after each step of a task.
        if !self.news.swap(false, Ordering::Relaxed) {
            return Vec::new();
        }
        std::mem::take(&mut *self.struck.lock().expect("nothing panics while it holds them"))
    }

    /// The power is to go within some operation of a disk.
    pub fn expect_cut(&self) {
        self.cut_due.store(true, Ordering::Relaxed);
    }

    /// Whether the power has gone, and nobody has said so yet; `gone` is asked where it may have.
    pub fn power_went(&self, gone: impl FnOnce() -> bool) -> bool {
        // It is asked after each step of a task.
        self.cut_due.load(Ordering::Relaxed) && gone() && self.cut_due.swap(false, Ordering::Relaxed)
    }

    fn burn(&self, charge: &Charge) {
        match charge {
            Charge::PowerCut(disk, op) => {
                disk.cut_power_at(u64::from(*op));
                self.expect_cut();
            }
            Charge::Strike(fault) => {
                self.struck.lock().expect("nothing panics while it holds them").push(*fault);
                self.news.store(true, Ordering::Relaxed);
            }
        }
    }

    /// When the server last decided, as a leader, that something is committed; zero if it never did.
    pub fn decided(&self) -> u64 {
        self.decided.load(Ordering::Relaxed)
    }

    /// The machine's server told of something at a time.
    pub fn see(&self, tablet: TabletId, note: &Note, nanos: u64) {
        if matches!(note, Note::Raft(RaftNote { action: Action::AdvanceCommit, .. })) {
            self.decided.store(nanos, Ordering::Relaxed);
        }
        let mut laid = self.lock();
        // Nearly always there are none.
        if laid.fuses.is_empty() {
            return;
        }
        let Some(moment) = moment_of(note) else { return };
        let settles = laid.settles(tablet, note).then_some(Moment::Settle);
        let changed = laid.has_changed(tablet, note).then_some(Moment::Changed);
        let moments = [Some(moment), settles, changed];
        laid.fuses.retain_mut(|fuse| {
            if !moments.contains(&Some(fuse.moment)) {
                return true;
            }
            fuse.nth = fuse.nth.saturating_sub(1);
            if fuse.nth == 0 {
                self.burn(&fuse.charge);
            }
            fuse.nth > 0
        });
    }

    fn lock(&self) -> MutexGuard<'_, Laid> {
        self.laid.lock().expect("nothing panics while it holds the fuses")
    }
}

impl Laid {
    /// Whether this is the first commit of a leader.
    fn settles(&mut self, tablet: TabletId, note: &Note) -> bool {
        let Note::Raft(raft) = note else { return false };
        match raft.action {
            Action::BecomeLeader => {
                self.unsettled.insert(tablet);
                false
            }
            Action::AdvanceCommit => self.unsettled.remove(&tablet),
            _ => false,
        }
    }

    /// Whether this commits a change of members.
    fn has_changed(&mut self, tablet: TabletId, note: &Note) -> bool {
        let Note::Raft(raft) = note else { return false };
        match &raft.action {
            Action::ConfigAppend { op, .. } => {
                self.changing.insert(tablet, op.index);
                false
            }
            Action::AdvanceCommit => {
                let is_done = self.changing.get(&tablet).is_some_and(|index| *index <= raft.post.commit);
                is_done && self.changing.remove(&tablet).is_some()
            }
            _ => false,
        }
    }
}

fn moment_of(note: &Note) -> Option<Moment> {
    Some(match note {
        Note::Raft(raft) => match raft.action {
            Action::GrantVote { .. } => Moment::Vote,
            Action::BecomeLeader => Moment::Lead,
            Action::AdvanceCommit | Action::FollowerCommit => Moment::Commit,
            Action::ConfigAppend { .. } => Moment::Members,
            Action::AbortPending { .. } => Moment::Abort,
            Action::CopyStart { .. } | Action::CopyFinish => Moment::Copy,
            _ => return None,
        },
        Note::Flushed { .. } | Note::FlushedDeltas { .. } => Moment::Flush,
        Note::Compacted { .. } | Note::MergedDeltas { .. } => Moment::Merge,
        Note::Altered { .. } => Moment::Alter,
        Note::Replayed { .. } => Moment::Replay,
        Note::RemovedOrphan { .. } | Note::ServedLatest { .. } => return None,
    })
}

#[cfg(test)]
mod tests {
    use engine::disk::Disk;
    use engine::ids::{OpId, Uuid};
    use engine::note::raft::{DataState, Post, Role};

    use super::*;

    const TABLET: TabletId = Uuid([1; 16]);

    fn raft(action: Action) -> Note {
        let post = Post { term: 1, last: OpId::MIN, commit: 0, role: Role::Leader, data: DataState::Ready };
        Note::Raft(RaftNote { action, post })
    }

    #[test]
    fn a_leader_settles_with_its_first_commit() {
        let fuses = Fuses::default();
        let commit = || fuses.see(TABLET, &raft(Action::AdvanceCommit), 7);
        fuses.see(TABLET, &raft(Action::BecomeLeader), 5);
        for number in [1, 2] {
            fuses.lay(Fuse { moment: Moment::Settle, nth: 1, charge: Charge::Strike(number) });
        }
        commit();
        assert!(fuses.struck().is_empty(), "it led before the fuse was laid");
        fuses.see(TABLET, &raft(Action::BecomeLeader), 5);
        fuses.see(TABLET, &raft(Action::FollowerCommit), 9);
        assert!(fuses.struck().is_empty());
        commit();
        assert_eq!(fuses.struck(), [1, 2]);
        fuses.lay(Fuse { moment: Moment::Settle, nth: 1, charge: Charge::Strike(3) });
        commit();
        assert!(fuses.struck().is_empty(), "it settled before");
        assert_eq!(fuses.decided(), 7);
    }

    #[test]
    fn a_change_of_members_is_made_when_its_entry_is_committed() {
        let fuses = Fuses::default();
        fuses.lay(Fuse { moment: Moment::Changed, nth: 1, charge: Charge::Strike(1) });
        let see = |action, commit| {
            let post = Post { term: 1, last: OpId::MIN, commit, role: Role::Leader, data: DataState::Ready };
            fuses.see(TABLET, &Note::Raft(RaftNote { action, post }), 7);
        };
        let op = OpId { term: 1, index: 5 };
        see(Action::AdvanceCommit, 3);
        see(Action::ConfigAppend { op, voters: Vec::new(), learners: Vec::new(), cas: None }, 3);
        see(Action::AdvanceCommit, 4);
        assert!(fuses.struck().is_empty(), "what was committed came before");
        see(Action::AdvanceCommit, 5);
        assert_eq!(fuses.struck(), [1]);
    }

    #[test]
    fn the_power_goes_some_operations_after_the_nth_moment() {
        let disk = MemDisk::new(1);
        let fuses = Fuses::default();
        let cut = || Charge::PowerCut(disk.clone(), 1);
        fuses.lay(Fuse { moment: Moment::Alter, nth: 2, charge: cut() });
        fuses.lay(Fuse { moment: Moment::Alter, nth: 1, charge: Charge::Strike(7) });
        let work = || disk.create("a");
        fuses.see(TABLET, &Note::Altered { version: 1 }, 0);
        fuses.see(TABLET, &Note::RemovedOrphan { file: "a".to_string() }, 0);
        let _made = work();
        assert!(!disk.lost_power(), "the first is not meant");
        assert_eq!((fuses.struck(), fuses.struck()), (vec![7], vec![]));
        fuses.see(TABLET, &Note::Altered { version: 2 }, 0);
        let _made = work();
        assert!(disk.lost_power());
        fuses.lay(Fuse { moment: Moment::Alter, nth: 1, charge: cut() });
        fuses.clear();
        assert!(fuses.lock().fuses.is_empty());
    }
}
