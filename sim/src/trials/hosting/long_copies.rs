//! Copies that last long, while much is written at their source and its log is cut. The learner must find what it lacks
//! in the log of its source: it is copied once.

use std::sync::Arc;
use std::time::Duration;

use engine::disk::Disk;
use engine::raft::{PeerHealth, RaftStatus};
use engine::replica::wal_dir;
use node::hosting::tablet_entry::EntryState;
use nyala_proto::kudu::consensus::ChangeConfigType;
use sim_plan::EngineLimits;

use super::bulk_writes::WriteOrder;
use super::{HostingTrial, MEMBERS, SERVERS, TABLET};

/// Requests that are written meanwhile, and rows of each: more than a log keeps for a member that lacks them.
const REQUESTS: usize = 130;
const ROWS: u64 = 14;
/// Factors by which the devices of the sink are slower, and pauses of the client in milliseconds.
const SLOWNESS: [u32; 3] = [20, 80, 80];
const PAUSES: [u64; 3] = [1, 8, 20];
/// Interval between looks, and the number of those for which the sink is slow: less than a source keeps its log.
const LOOK: Duration = Duration::from_millis(10);
const SLOW_LOOKS: u32 = 1_200;
/// Looks in a row at which the leader calls the learner lost, until it is: the leader may not know of its copy yet.
const LOST_LOOKS: u32 = 1_000;
/// Looks until the learner must be a voter.
const LOOKS: u32 = 8_000;

/// End of a long copy.
#[derive(Debug, PartialEq, Eq)]
enum CopyEnd {
    /// The learner is a voter with all operations.
    Voter,
    /// Its source does not lead any more, or a server has ended: then it may be copied again. Or its replica has
    /// failed: the one that the copy was to replace had been damaged.
    Disturbed,
    /// It is no voter, and the log of its source begins after what it lacks.
    LogGone,
    /// It is no voter after the last look.
    Late,
}

impl HostingTrial {
    /// Adds a slow server as a learner, while a client writes more than a log keeps for it.
    pub(super) fn copy_long(&mut self) {
        // With large limits no log is cut here.
        if self.fleet.plan.cluster.limits != EngineLimits::Tiny {
            return;
        }
        let Some((leader, sink)) = self.calm_copy() else { return };
        let (factor, pause) = (self.random.pick(&SLOWNESS), Duration::from_millis(self.random.pick(&PAUSES)));
        self.fleet.slow_disks(sink, factor);
        let learner = self.marked_learner(sink);
        if self.change(leader, ChangeConfigType::AddPeer, learner) {
            let before = self.first_segment(leader);
            let writes = self.start_writes(leader, (REQUESTS, ROWS), WriteOrder::Paced(pause));
            let (copies, end) = self.watch_copy(leader, sink);
            let written = self.end_writes(&writes);
            let cut = self.first_segment(leader) > before;
            self.fleet.note(format!(
                "long copy to {sink} from {leader}: {end:?} after {copies} copies, {written} requests, log cut {cut}"
            ));
            self.check_long_copy(copies, end);
        }
        self.fleet.slow_disks(sink, 1);
    }

    fn check_long_copy(&mut self, copies: u32, end: CopyEnd) {
        let wrong = match end {
            CopyEnd::Disturbed => None,
            CopyEnd::Voter if copies > 1 => {
                Some(format!("a learner was copied {copies} times, although nothing happened to its source"))
            }
            CopyEnd::Voter => None,
            CopyEnd::LogGone => {
                Some(format!("the log that a learner lacks is gone at its source after {copies} copies"))
            }
            CopyEnd::Late => {
                let waited = LOOK * LOOKS;
                Some(format!("a learner is no voter {waited:?} after it was added, copied {copies} times"))
            }
        };
        wrong.into_iter().for_each(|wrong| self.fleet.report(wrong));
    }

    /// Returns a leader whose group is whole and undisturbed, and a server to which it can be copied.
    pub(super) fn calm_copy(&mut self) -> Option<(usize, usize)> {
        let (leader, _) = self.calm_group()?;
        let config = self.status(leader)?.committed_config.clone();
        let is_free = |at: &usize| {
            let has_none = matches!(self.state(*at), None | Some(EntryState::Tombstoned(_)));
            has_none && config.peer(self.fleet.ids[*at]).is_none()
        };
        Some((leader, (0..SERVERS).find(is_free)?))
    }

    /// Returns the leader and the status of a group that is whole and undisturbed, now that no disk is to fail.
    pub(super) fn calm_group(&mut self) -> Option<(usize, Arc<RaftStatus>)> {
        if !self.fleet.is_connected() || self.rotten.is_some() {
            return None;
        }
        (0..SERVERS).for_each(|server| self.end_disk_faults(server));
        let (leader, status) = self.leader_at_rest()?;
        let config = &status.committed_config;
        let is_whole = config.peers.len() == MEMBERS && config.voter_count() == MEMBERS;
        let is_sound = status.peers.iter().all(|peer| self.is_sound(peer));
        (is_whole && is_sound).then_some((leader, status))
    }

    /// Returns the name of the first segment of a server's log.
    fn first_segment(&mut self, server: usize) -> Option<String> {
        let [wal, _] = self.disks(server);
        wal.image().list(&wal_dir(TABLET)).unwrap_or_default().into_iter().min()
    }

    /// Waits until the learner is a voter with all operations; returns how often it was copied.
    fn watch_copy(&mut self, leader: usize, sink: usize) -> (u32, CopyEnd) {
        let term = self.status(leader).map(|status| status.term);
        let (mut copies, mut was_copying, mut lost_looks) = (0, false, 0);
        for look in 0..LOOKS {
            if look == SLOW_LOOKS {
                self.fleet.slow_disks(sink, 1);
            }
            self.fleet.pass(LOOK);
            let is_copying = matches!(self.state(sink), Some(EntryState::Copying));
            copies += u32::from(is_copying && !was_copying);
            was_copying = is_copying;
            let status = self.status(leader).filter(|status| Some(status.term) == term);
            let Some(status) = status.filter(|_| self.leader() == Some(leader) && self.fleet.is_connected())
            else {
                return (copies, CopyEnd::Disturbed);
            };
            let learner = status.peers.iter().find(|peer| peer.id == self.fleet.ids[sink]);
            let is_lost = learner.is_some_and(|peer| peer.health == PeerHealth::FailedUnrecoverable);
            lost_looks = if is_lost && !is_copying { lost_looks + 1 } else { 0 };
            if lost_looks == LOST_LOOKS {
                let has_failed = matches!(self.state(sink), Some(EntryState::Failed(_)));
                return (copies, if has_failed { CopyEnd::Disturbed } else { CopyEnd::LogGone });
            }
            let is_voter = status.committed_config.is_voter(self.fleet.ids[sink]);
            if is_voter && self.applied(sink).is_some_and(|applied| Some(applied) == self.applied(leader)) {
                return (copies, CopyEnd::Voter);
            }
        }
        (copies, CopyEnd::Late)
    }
}
