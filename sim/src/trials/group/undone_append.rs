//! A leader of a settled group whose log undoes an append for want of space and begins another segment with the next
//! one. The segment before is finished then: nothing else syncs it, and a power cut must not bring back what was
//! undone.

use super::GroupTrial;

/// Most bytes that are left for the log: fewer than the header of a batch or of a segment has.
const LEFT_MAX: u64 = 8;
/// Rounds with requests in which the waiting batch grows, so that it does not fit into the segment any more.
const ROUNDS: u32 = 60;

impl GroupTrial {
    /// Lets the leader's device run full right after a sync, requests wait for space, and the leader lose its power
    /// after it has written them. A log that cannot be opened then is reported as any other failure of a start.
    pub(super) fn undo_append(&mut self) {
        let Some((leader, _)) = self.leader_of_three() else { return };
        // Without a sync the next segment would begin with one, whatever was undone.
        self.act(leader, |trial| trial.sync_log(leader).map(drop));
        let left = self.random.between(1, LEFT_MAX);
        self.leave_space(leader, left);
        for _ in 0..ROUNDS {
            if self.found.is_some() {
                return;
            }
            if self.open.is_empty() {
                self.begin_request();
            }
            self.round();
        }
        let has_waited = self.servers[leader].has_waited;
        self.free_log(leader);
        self.round();
        self.note(format!("{leader} loses its power after writes of its log have waited: {has_waited}"));
        self.crash(leader, true);
        self.act(leader, |trial| trial.restart(leader));
    }
}
