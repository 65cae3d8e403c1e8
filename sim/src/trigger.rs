//! Triggers: a fault fires when its server reports a certain event, such as a vote or a flush.
//!
//! A crash at a random time rarely falls between a vote and its being stored. The server's own notes say when that is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use engine::disk::mem::MemDisk;
use engine::ids::TabletId;
use engine::note::Note;
use engine::note::raft::{RaftAction, RaftNote};
use engine::sync::{Mutex, MutexGuard};

use sim_plan::faults::Trigger;

/// The operating system's number of an input/output error.
pub const EIO: i32 = 5;

/// Marks at the beginning of a step, before its disk work, and their triggers.
const STEPS: [(&str, Trigger); 3] = [
    ("create: begins", Trigger::Create),
    ("delete: begins", Trigger::Remove),
    ("tablet copy: given up", Trigger::GiveUp),
];

/// A trigger with its countdown and its action.
pub struct ArmedTrigger {
    pub trigger: Trigger,
    /// Remaining triggers until it fires; 1 fires at the next.
    pub nth: u32,
    pub action: TriggerAction,
}

/// The action of a trigger.
pub enum TriggerAction {
    /// The power is cut this many operations of the disk later.
    PowerCut(MemDisk, u32),
    /// The operation of the disk this many later fails.
    FailOp(MemDisk, u32),
    /// The plan's fault of this number is applied.
    ApplyFault(usize),
}

/// The armed triggers of one machine. Clones share them.
#[derive(Clone, Default)]
pub struct Triggers {
    state: Arc<Mutex<TriggerState>>,
    fired: Arc<Mutex<Vec<usize>>>,
    /// True if triggers may have fired since the last call of [`Triggers::take_fired`].
    has_fired: Arc<AtomicBool>,
    /// True if power may be cut within some operation of a disk.
    cut_due: Arc<AtomicBool>,
    /// Time of the server's last commit as a leader; zero if there was none.
    last_commit_nanos: Arc<AtomicU64>,
}

#[derive(Default)]
struct TriggerState {
    triggers: Vec<ArmedTrigger>,
    /// Tablets that the server began to lead since the first trigger was armed, without a commit yet.
    unsettled: BTreeSet<TabletId>,
    /// Index of the newest configuration change that it has yet to commit as a leader.
    changing: BTreeMap<TabletId, u64>,
}

impl Triggers {
    pub fn arm(&self, armed: ArmedTrigger) {
        self.lock().triggers.push(armed);
    }

    /// Disarms all triggers.
    pub fn clear(&self) {
        *self.lock() = TriggerState::default();
        self.take_fired();
    }

    /// Returns the plan's faults whose triggers fired since the last call.
    pub fn take_fired(&self) -> Vec<usize> {
        // This is called after each step of a task.
        if !self.has_fired.swap(false, Ordering::Relaxed) {
            return Vec::new();
        }
        std::mem::take(&mut *self.fired.lock())
    }

    /// Announces a power cut within some operation of a disk.
    pub fn expect_cut(&self) {
        self.cut_due.store(true, Ordering::Relaxed);
    }

    /// Returns true if power was cut and this is the first call since; `gone` is called where it may have been.
    pub fn take_power_cut(&self, is_off: impl FnOnce() -> bool) -> bool {
        // This is called after each step of a task.
        self.cut_due.load(Ordering::Relaxed) && is_off() && self.cut_due.swap(false, Ordering::Relaxed)
    }

    fn fire(&self, action: &TriggerAction) {
        match action {
            TriggerAction::PowerCut(disk, op) => {
                disk.cut_power_at(u64::from(*op));
                self.expect_cut();
            }
            TriggerAction::FailOp(disk, op) => disk.fail_op(u64::from(*op), EIO),
            TriggerAction::ApplyFault(fault) => {
                self.fired.lock().push(*fault);
                self.has_fired.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Returns the time of the server's last commit as a leader; zero if there was none.
    pub fn last_commit_nanos(&self) -> u64 {
        self.last_commit_nanos.load(Ordering::Relaxed)
    }

    /// Handles a note of the machine's server.
    pub fn on_note(&self, tablet: TabletId, note: &Note, nanos: u64) {
        if matches!(note, Note::Raft(RaftNote { action: RaftAction::AdvanceCommit, .. })) {
            self.last_commit_nanos.store(nanos, Ordering::Relaxed);
        }
        let mut state = self.lock();
        // Nearly always there are none.
        if state.triggers.is_empty() {
            return;
        }
        let Some(trigger) = trigger_of(note) else { return };
        let settles = state.is_first_commit(tablet, note).then_some(Trigger::Settle);
        let changed = state.has_changed(tablet, note).then_some(Trigger::Changed);
        self.reach(&mut state, &[Some(trigger), settles, changed]);
    }

    /// Handles a mark of the machine's server.
    pub fn on_mark(&self, mark: &str) {
        let Some((_, trigger)) = STEPS.iter().find(|(step, _)| *step == mark) else { return };
        self.reach(&mut self.lock(), &[Some(*trigger)]);
    }

    /// Counts down the armed triggers that are reached, and fires those whose countdown ends.
    fn reach(&self, state: &mut TriggerState, reached: &[Option<Trigger>]) {
        state.triggers.retain_mut(|armed| {
            if !reached.contains(&Some(armed.trigger)) {
                return true;
            }
            armed.nth = armed.nth.saturating_sub(1);
            if armed.nth == 0 {
                self.fire(&armed.action);
            }
            armed.nth > 0
        });
    }

    fn lock(&self) -> MutexGuard<'_, TriggerState> {
        self.state.lock()
    }
}

impl TriggerState {
    /// Returns true if this is the first commit of a leader.
    fn is_first_commit(&mut self, tablet: TabletId, note: &Note) -> bool {
        let Note::Raft(raft) = note else { return false };
        match raft.action {
            RaftAction::BecomeLeader => {
                self.unsettled.insert(tablet);
                false
            }
            RaftAction::AdvanceCommit => self.unsettled.remove(&tablet),
            _ => false,
        }
    }

    /// Returns true if this commits a configuration change.
    fn has_changed(&mut self, tablet: TabletId, note: &Note) -> bool {
        let Note::Raft(raft) = note else { return false };
        match &raft.action {
            RaftAction::ConfigAppend { op, .. } => {
                self.changing.insert(tablet, op.index);
                false
            }
            RaftAction::AdvanceCommit => {
                let is_done = self.changing.get(&tablet).is_some_and(|index| *index <= raft.post.commit);
                is_done && self.changing.remove(&tablet).is_some()
            }
            _ => false,
        }
    }
}

fn trigger_of(note: &Note) -> Option<Trigger> {
    Some(match note {
        Note::Raft(raft) => match raft.action {
            RaftAction::GrantVote { .. } => Trigger::Vote,
            RaftAction::BecomeLeader => Trigger::Lead,
            RaftAction::AdvanceCommit | RaftAction::FollowerCommit => Trigger::Commit,
            RaftAction::ConfigAppend { .. } => Trigger::Members,
            RaftAction::AbortPending { .. } => Trigger::Abort,
            RaftAction::CopyStart { .. } | RaftAction::CopyFinish => Trigger::Copy,
            RaftAction::CopyOpen { .. } => Trigger::Source,
            _ => return None,
        },
        Note::Flushed { .. } | Note::FlushedDeltas { .. } => Trigger::Flush,
        Note::Compacted { .. } | Note::FoldedDeltas { .. } | Note::MergedDeltas { .. } => Trigger::Merge,
        Note::Altered { .. } => Trigger::Alter,
        Note::Replayed { .. } => Trigger::Replay,
        Note::RemovedOrphan { .. } | Note::ServedLatest { .. } | Note::CopyRefused { .. } => return None,
    })
}

#[cfg(test)]
mod tests {
    use engine::disk::Disk;
    use engine::ids::{OpId, Uuid};
    use engine::note::raft::{NotedDataState, NotedRole, PostState};

    use super::*;

    const TABLET: TabletId = Uuid([1; 16]);

    fn raft(action: RaftAction) -> Note {
        let post = PostState {
            term: 1,
            last: OpId::MIN,
            commit: 0,
            role: NotedRole::Leader,
            data: NotedDataState::Ready,
        };
        Note::Raft(RaftNote { action, post })
    }

    #[test]
    fn a_leader_settles_with_its_first_commit() {
        let triggers = Triggers::default();
        let commit = || triggers.on_note(TABLET, &raft(RaftAction::AdvanceCommit), 7);
        triggers.on_note(TABLET, &raft(RaftAction::BecomeLeader), 5);
        for number in [1, 2] {
            triggers.arm(ArmedTrigger {
                trigger: Trigger::Settle,
                nth: 1,
                action: TriggerAction::ApplyFault(number),
            });
        }
        commit();
        assert!(triggers.take_fired().is_empty(), "it led before the trigger was armed");
        triggers.on_note(TABLET, &raft(RaftAction::BecomeLeader), 5);
        triggers.on_note(TABLET, &raft(RaftAction::FollowerCommit), 9);
        assert!(triggers.take_fired().is_empty());
        commit();
        assert_eq!(triggers.take_fired(), [1, 2]);
        triggers.arm(ArmedTrigger { trigger: Trigger::Settle, nth: 1, action: TriggerAction::ApplyFault(3) });
        commit();
        assert!(triggers.take_fired().is_empty(), "it settled before");
        assert_eq!(triggers.last_commit_nanos(), 7);
    }

    #[test]
    fn a_configuration_change_fires_when_its_entry_is_committed() {
        let triggers = Triggers::default();
        triggers.arm(ArmedTrigger {
            trigger: Trigger::Changed,
            nth: 1,
            action: TriggerAction::ApplyFault(1),
        });
        let see = |action, commit| {
            let post = PostState {
                term: 1,
                last: OpId::MIN,
                commit,
                role: NotedRole::Leader,
                data: NotedDataState::Ready,
            };
            triggers.on_note(TABLET, &Note::Raft(RaftNote { action, post }), 7);
        };
        let op = OpId { term: 1, index: 5 };
        see(RaftAction::AdvanceCommit, 3);
        see(RaftAction::ConfigAppend { op, voters: Vec::new(), learners: Vec::new(), cas: None }, 3);
        see(RaftAction::AdvanceCommit, 4);
        assert!(triggers.take_fired().is_empty(), "the committed entries come before the change");
        see(RaftAction::AdvanceCommit, 5);
        assert_eq!(triggers.take_fired(), [1]);
    }

    #[test]
    fn an_operation_of_a_step_fails() {
        let (disk, triggers) = (MemDisk::new(1), Triggers::default());
        let action = TriggerAction::FailOp(disk.clone(), 2);
        triggers.arm(ArmedTrigger { trigger: Trigger::Create, nth: 1, action });
        triggers.on_mark("delete: begins");
        assert!(disk.create("a").is_ok() && disk.create("b").is_ok());
        triggers.on_mark("create: begins");
        assert!(disk.create("c").is_ok() && disk.create("d").is_err() && disk.create("e").is_ok());
    }

    #[test]
    fn power_is_cut_some_operations_after_the_nth_trigger() {
        let disk = MemDisk::new(1);
        let triggers = Triggers::default();
        let cut = || TriggerAction::PowerCut(disk.clone(), 1);
        triggers.arm(ArmedTrigger { trigger: Trigger::Alter, nth: 2, action: cut() });
        triggers.arm(ArmedTrigger { trigger: Trigger::Alter, nth: 1, action: TriggerAction::ApplyFault(7) });
        let work = || disk.create("a");
        triggers.on_note(TABLET, &Note::Altered { version: 1 }, 0);
        triggers.on_note(TABLET, &Note::RemovedOrphan { file: "a".to_string() }, 0);
        let _made = work();
        assert!(!disk.lost_power(), "the first does not count");
        assert_eq!((triggers.take_fired(), triggers.take_fired()), (vec![7], vec![]));
        triggers.on_note(TABLET, &Note::Altered { version: 2 }, 0);
        let _made = work();
        assert!(disk.lost_power());
        triggers.arm(ArmedTrigger { trigger: Trigger::Alter, nth: 1, action: cut() });
        triggers.clear();
        assert!(triggers.lock().triggers.is_empty());
    }
}
