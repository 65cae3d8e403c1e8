//! The steps of a hosting trial.

use std::time::Duration;

use sim_plan::RandomStream;

use super::{HostingTrial, SERVERS};
use crate::world::World;

/// Most time that passes in a step, in milliseconds.
const PASS_MILLIS: u64 = 1_500;

/// A step of a hosting trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Pass,
    Write,
    /// A member is evicted, and the order to delete its replica given, or kept for later.
    Evict,
    Add,
    /// An order to delete a replica arrives late.
    LateDelete,
    /// An order to copy a replica from where no server is.
    CopyFromNowhere,
    /// The source of a copy dies, or the disk fails within it.
    BreakCopy,
    /// A copy over a failed replica breaks off, and what it leaves is asked for its vote.
    BreakCopyOverFailed,
    /// Much is written and the log is cut while a slow server copies.
    CopyLong,
    /// A learner of a quiet group is marked for promotion.
    MarkLearner,
    /// Operations reach one follower alone, and the next leader truncates them.
    TruncateEntries,
    /// An operation for which a follower's memory has no space.
    LittleMemory,
    /// Heartbeats of several tablets reach a replica that is slow, and others.
    Heartbeats,
    /// A server is killed, or loses its power, and restarts on full devices.
    RestartFull,
    Kill,
    PowerCut,
    Restart,
    /// A server with a tombstone or a failed replica starts again, and its disk fails meanwhile.
    RestartUnread,
    /// Some of the next disk operations fail.
    DiskErrors,
    Isolate,
    Repair,
    Rot,
    /// Another candidate than the leader asks for a vote in the leader's term.
    StrayVote,
}

pub(super) fn draw(random: &mut RandomStream) -> Step {
    random.weighted(&[
        (Step::Pass, 16),
        (Step::Write, 10),
        (Step::Evict, 10),
        (Step::Add, 14),
        (Step::LateDelete, 10),
        (Step::CopyFromNowhere, 8),
        (Step::BreakCopy, 10),
        (Step::BreakCopyOverFailed, 5),
        (Step::CopyLong, 6),
        (Step::MarkLearner, 3),
        (Step::TruncateEntries, 4),
        (Step::LittleMemory, 4),
        (Step::Heartbeats, 3),
        (Step::RestartFull, 5),
        (Step::Kill, 2),
        (Step::PowerCut, 2),
        (Step::Restart, 10),
        (Step::RestartUnread, 4),
        (Step::DiskErrors, 5),
        (Step::Isolate, 3),
        (Step::Repair, 6),
        (Step::Rot, 6),
        (Step::StrayVote, 6),
    ])
}

impl HostingTrial {
    pub(super) fn take_step(&mut self) {
        let step = draw(&mut self.random);
        let server = self.random.below(SERVERS as u64) as usize;
        self.fleet.steps.push(format!("{step:?} at {server}, {:?}", self.fleet.world.now()));
        match step {
            Step::Pass => {
                let millis = self.random.below(PASS_MILLIS);
                self.fleet.pass(Duration::from_millis(millis));
            }
            Step::Write => self.write(),
            Step::Evict => self.evict(),
            Step::Add => self.add(),
            Step::LateDelete => self.delete_late(),
            Step::CopyFromNowhere => self.copy_from_nowhere(),
            Step::BreakCopy => self.break_copy(),
            Step::BreakCopyOverFailed => self.break_copy_over_failed(),
            Step::CopyLong => self.copy_long(),
            Step::MarkLearner => self.mark_quiet_learner(),
            Step::TruncateEntries => self.truncate_entries(),
            Step::LittleMemory => self.write_with_little_memory(),
            Step::Heartbeats => self.send_heartbeats(),
            Step::RestartFull => self.restart_full(server),
            Step::Kill => self.fleet.kill(server),
            Step::PowerCut => self.fleet.cut_power(server),
            Step::Restart => self.fleet.restart(server),
            Step::RestartUnread => self.restart_unread(),
            Step::DiskErrors => self.fail_disk(server),
            Step::Isolate => self.fleet.cut_links(server, None),
            Step::Repair => self.fleet.repair_links(),
            Step::Rot => self.rot(),
            Step::StrayVote => self.send_stray_vote(server),
        }
    }
}
