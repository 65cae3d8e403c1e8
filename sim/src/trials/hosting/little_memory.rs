//! A follower whose memory has no space for an operation that its leader has. While the follower uses little memory,
//! it must take the operation nevertheless: the group would wait for it otherwise.

use std::time::Duration;

use engine::replica::Op;
use engine::tablet::GrowthEstimate;
use nyala_proto::kudu::tserver::{WriteRequestPb, WriteResponsePb};

use super::HostingTrial;
use crate::model::RowWrite;
use crate::trials::fleet::host;
use crate::trials::rows::TrialRows;
use crate::trials::{draw, shape};
use crate::wire::client::{TSERVER, text_of};
use crate::world::World;

/// Rows of the operation.
const ROWS: u64 = 300;
/// Percentage of its memory that a server uses before it refuses what leaders send.
const SOFT_PERCENT: u64 = 80;
/// Bytes that other messages and pages take meanwhile.
const SLACK: u64 = 48 << 10;
/// Interval and number of looks until the follower has the operation.
const LOOK: Duration = Duration::from_millis(200);
const LOOKS: u32 = 100;
const PLENTY: u64 = 1 << 30;

impl HostingTrial {
    /// Writes an operation for which a follower's limit has no space, although it uses little.
    pub(super) fn write_with_little_memory(&mut self) {
        let Some((leader, status)) = self.calm_group() else { return };
        let follower = self.random.pick(&self.followers(leader, &status));
        // What it lacks for another reason would be missed for that one.
        if self.applied(follower) != self.applied(leader) {
            return;
        }
        let rows = draw::rows(&mut self.random, &self.table, &TrialRows::default(), ROWS);
        let Some(limit) = self.little_memory(follower, &rows) else { return };
        let machine = self.fleet.world.machine(&host(follower).name());
        machine.set_memory_bytes(limit);
        let request = WriteRequestPb {
            row_operations: Some(shape::encoded(&self.table, &rows)),
            ..self.write_request(1)
        };
        let written: Result<WriteResponsePb, _> = self.fleet.call(leader, (TSERVER, "Write"), request);
        let refused = written.map(|reply| reply.error.map(|error| text_of(&error.status)));
        self.fleet
            .note(format!("a large write at {leader}, {limit} bytes of memory at {follower}: {refused:?}"));
        self.await_operation(leader, follower);
        machine.set_memory_bytes(PLENTY);
    }

    /// Returns a limit that a server is far below, with the call that brings an operation of these rows, and that has
    /// no space for the operation itself.
    fn little_memory(&self, server: usize, rows: &[RowWrite]) -> Option<u64> {
        let replica = self.replica(server)?;
        let Op::Write(write) = shape::write_op(&self.table, &self.schema, rows) else { return None };
        let body = (write.rows.len() + write.indirect.len()) as u64;
        let tablet = replica.tablet();
        let growth = tablet.growth_max(&write.columns, &write.rows, &write.indirect, GrowthEstimate::Exact);
        let memory = &self.fleet.running(server)?.common.memory;
        let limit = (memory.bytes() + 2 * body + SLACK) * 100 / SOFT_PERCENT;
        (limit < memory.reserved_bytes() + growth).then_some(limit)
    }

    /// Waits until a follower has applied what its leader has.
    fn await_operation(&mut self, leader: usize, follower: usize) {
        let applied = self.applied(leader);
        for _ in 0..LOOKS {
            self.fleet.pass(LOOK);
            let is_disturbed = self.leader() != Some(leader) || !self.fleet.is_connected();
            if is_disturbed || self.applied(follower) >= applied {
                return;
            }
        }
        let (has, refused) =
            (self.applied(follower), self.fleet.running(follower).map(|it| it.memory.refused()));
        self.fleet.report(format!(
            "server {follower} uses little memory and does not get an operation that is larger than its limit: it has \
             applied {has:?} of {applied:?} and refused {refused:?} times"
        ));
    }
}
