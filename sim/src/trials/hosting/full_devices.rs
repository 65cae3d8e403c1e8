//! Servers that restart on full devices, some after a power cut. Nothing is lost by that, a deletion works, and the
//! replica works again once there is space.

use std::time::Duration;

use node::hosting::tablet_entry::EntryState;
use nyala_proto::kudu::tserver::{NewScanRequestPb, ScanRequestPb, ScanResponsePb};

use super::calls::tablet_id;
use super::{HostingTrial, SERVERS};
use crate::cluster::{DATA_DIR, WAL_DIR};
use crate::trials::fleet::host;
use crate::wire::client::{TSERVER, text_of};
use crate::wire::schema;
use crate::world::World;

/// Sets of directories that run full.
const FULL: [&[&str]; 3] = [&[WAL_DIR], &[DATA_DIR], &[WAL_DIR, DATA_DIR]];
/// Most bytes that are left on a full device.
const LEFT_MAX: u64 = 600;
const PLENTY: u64 = 1 << 40;
/// Percentage of servers that delete their last replica on full devices.
const DELETED_FULL_PERCENT: u64 = 30;
/// Time on the full device, and the longest time until a replica is open once there is space.
const ON_FULL: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(250);
const LOOKS: u32 = 60;

impl HostingTrial {
    /// Restarts a server whose devices are full, reads from its replica, and frees the devices again.
    pub(super) fn restart_full(&mut self, server: usize) {
        // A file that is damaged, or a disk that fails, is another reason to lose a replica.
        if self.rotten.is_some() {
            return;
        }
        self.end_disk_faults(server);
        let had_replica = self.replica(server).is_some();
        let dirs = self.random.pick(&FULL);
        let left = if self.random.percent(50) { 0 } else { self.random.below(LEFT_MAX) };
        self.set_free(server, dirs, left);
        if self.random.percent(50) {
            self.write();
        }
        match self.random.percent(50) {
            true => self.fleet.cut_power(server),
            false => self.fleet.kill(server),
        }
        self.fleet.restart(server);
        self.fleet.pass(ON_FULL);
        let opened = self.replica(server).is_some();
        self.fleet
            .note(format!("{server} restarts with {left} bytes in {dirs:?}: {had_replica}, then {opened}"));
        if opened {
            self.check_readable(server);
        } else if had_replica && matches!(self.state(server), Some(EntryState::Failed(_))) {
            let what = self.show(server);
            self.fleet
                .report(format!("a full device keeps server {server} from opening its replica: {what}"));
        }
        self.set_free(server, dirs, PLENTY);
        self.await_replica(server, had_replica);
    }

    fn set_free(&mut self, server: usize, dirs: &[&str], bytes: u64) {
        let machine = self.fleet.world.machine(&host(server).name());
        dirs.iter().for_each(|dir| machine.disk(dir).set_free(bytes));
    }

    /// Reads all rows of a replica, which needs no space.
    fn check_readable(&mut self, server: usize) {
        let new = NewScanRequestPb {
            tablet_id: tablet_id(),
            projected_columns: schema::columns(&self.table.columns, self.table.key_columns().len()).columns,
            ..Default::default()
        };
        let request =
            ScanRequestPb { new_scan_request: Some(new), call_seq_id: Some(0), ..Default::default() };
        let reply: Result<ScanResponsePb, _> = self.fleet.call(server, (TSERVER, "Scan"), request);
        let refused = reply.map(|reply| reply.error.map(|error| text_of(&error.status)));
        // Its links may be cut, and its replica may be deleted meanwhile.
        if matches!(refused, Ok(Some(_))) && self.replica(server).is_some() {
            self.fleet.report(format!("a full device keeps server {server} from reading: {refused:?}"));
        }
    }

    /// Fills devices of some servers, of which some restart then, before their replicas are deleted: a deletion needs
    /// no space.
    pub(super) fn fill_some(&mut self) {
        for server in 0..SERVERS {
            if !self.random.percent(DELETED_FULL_PERCENT) {
                continue;
            }
            let dirs = self.random.pick(&FULL);
            self.set_free(server, dirs, 0);
            self.fleet.note(format!("{dirs:?} of {server} are full at the end"));
            if self.random.percent(50) {
                self.fleet.kill(server);
                self.fleet.restart(server);
            }
        }
    }

    /// Waits until a replica is open again after its devices were full.
    fn await_replica(&mut self, server: usize, had_replica: bool) {
        for _ in 0..LOOKS {
            self.fleet.pass(LOOK);
            let state = self.state(server);
            let is_gone = matches!(state, None | Some(EntryState::Tombstoned(_) | EntryState::Copying));
            if !had_replica || is_gone || self.replica(server).is_some() || !self.fleet.up[server] {
                return;
            }
        }
        let states = self.show_all();
        self.fleet.report(format!(
            "server {server} does not open its replica although there is space again: {states}"
        ));
    }
}
