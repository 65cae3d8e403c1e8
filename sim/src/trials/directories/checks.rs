//! Checks of the server's tablets against the model.

use std::time::Duration;

use engine::disk::Disk;
use engine::ids::{OpId, TabletId};
use engine::replica::wal_dir;
use engine::tablet::flush::data_dir;
use node::hosting::tablet_entry::EntryState;
use nyala_proto::kudu::consensus::VoteResponsePb;

use super::model::TabletModel;
use super::{DIRS, DirectoriesTrial};
use crate::cluster::WAL_DIR;
use crate::trials::fleet::host;
use crate::trials::requests;
use crate::wire::client::CONSENSUS;
use crate::world::World;

/// Time until the tablets of a start are led.
const LED: Duration = Duration::from_millis(2_500);
/// Term and last operation of a candidate that gets every vote which is given.
const NEWEST: OpId = OpId { term: 1_000, index: 1_000_000 };

impl DirectoriesTrial {
    /// Checks all tablets after a start: those that have their directory run with what they had, and take rows; the
    /// others have failed, and give no vote.
    pub(super) fn check_tablets(&mut self, how: &str) {
        self.fleet.pass(LED);
        for at in 0..self.tablets.len() {
            if self.fleet.found.is_some() {
                return;
            }
            let tablet = self.tablets[at];
            let Some(entry) = self.fleet.entry(0, tablet.id) else {
                self.fleet.report(format!("{how}, the server does not know {tablet:?}"));
                return;
            };
            if tablet.is_lost {
                self.check_lost(tablet, &entry.state(), how);
                continue;
            }
            let (path, last) = (entry.data_dir.path.clone(), self.last_index(tablet.id));
            if path != tablet.dir || last < Some(tablet.last) {
                let state = entry.failure();
                self.fleet
                    .report(format!("{how}, {tablet:?} is in {path} with {last:?} operations, {state:?}"));
            }
            self.write(at);
        }
    }

    fn check_lost(&mut self, tablet: TabletModel, state: &EntryState, how: &str) {
        if !matches!(state, EntryState::Failed(_)) {
            let what = format!("{how}, {tablet:?} has not failed, although its directory is lost");
            return self.fleet.report(what);
        }
        let request = requests::vote(self.fleet.ids[0], tablet.id, NEWEST.term, NEWEST);
        let reply: Result<VoteResponsePb, _> =
            self.fleet.call(0, (CONSENSUS, "RequestConsensusVote"), request);
        if reply.is_ok_and(|reply| reply.vote_granted()) {
            self.fleet.report(format!("{how}, {tablet:?} votes, although its vote is lost"));
        }
    }

    /// Checks that nothing of a deleted tablet is left, and removes it from the model.
    pub(super) fn check_deleted(&mut self, at: usize, reply: &str) {
        let tablet = self.tablets.swap_remove(at);
        self.fleet.note(format!("deletion of {tablet:?}: {reply}"));
        let left = self.files_of(tablet.id);
        if self.fleet.entry(0, tablet.id).is_some() || !left.is_empty() {
            self.fleet.report(format!("{tablet:?} is deleted ({reply}), and {left:?} is left of it"));
        }
    }

    /// Returns the files of a tablet on the mounted disks.
    fn files_of(&mut self, tablet: TabletId) -> Vec<String> {
        let machine = self.fleet.world.machine(&host(0).name());
        let list = |dir: &str, path: String| {
            let names = machine.disk(dir).image().list(&path).unwrap_or_default();
            names.into_iter().map(move |name| format!("{path}/{name}")).collect::<Vec<_>>()
        };
        let mut files = list(WAL_DIR, wal_dir(tablet));
        for dir in DIRS {
            files.extend(list(dir, data_dir(tablet)));
            let meta = list(dir, "tablet-meta".to_string()).into_iter();
            files.extend(meta.filter(|path| path.contains(&tablet.to_string())));
        }
        files
    }
}
