//! Logs that copies need: what is written after a session has begun stays in the log of its source, and what is written
//! after a session has ended well stays until its learner had time to ask for it.
//!
//! ```text
//!   session begins ──► ends, or stays open ──► writes, flushes, log GC ──► the segment of its last operation is there
//! ```
//!
//! The sink is made up, so that nothing but its session asks for the log: the group has all of it, and restarts need
//! little of it. A log keeps its last operations anyway, so more than these are written.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use engine::disk::Disk;
use engine::ids::{Term, Uuid};
use engine::replica::wal_dir;
use engine::tablet::{LogAnchors, Tablet};
use engine::wal::segment_name;
use nyala_common::wire::schema::id_bytes;
use nyala_proto::kudu::tserver::{
    BeginTabletCopySessionRequestPb, BeginTabletCopySessionResponsePb, EndTabletCopySessionRequestPb,
    EndTabletCopySessionResponsePb,
};
use sim_plan::EngineLimits;

use super::bulk_writes::WriteOrder;
use super::calls::tablet_id;
use super::{HostingTrial, TABLET};
use crate::wire::client::COPY;
use crate::world::World;

/// The sink, which is no server.
const SINK: Uuid = Uuid([0xee; 16]);
/// Requests that are written, and rows of each; operations that a log keeps though nothing needs them.
const REQUESTS: usize = 100;
const ROWS: u64 = 4;
const RETAINED_OPS: usize = 64;
const PAUSE: Duration = Duration::from_millis(1);
/// Interval between looks at the client, and their number until it is to end.
const LOOK: Duration = Duration::from_millis(50);
const LOOKS: u32 = 160;
/// Time after which the last rows are flushed, and the log is collected.
const FLUSHED: Duration = Duration::from_secs(4);
/// Percentage of sessions that end before the writes.
const ENDED_PERCENT: u64 = 50;

/// A session of a copy, and the replica that serves it.
struct HeldLog {
    source: usize,
    /// The term in which the source leads.
    term: Term,
    session: Bytes,
    tablet: Weak<Tablet>,
    /// The last segment at the beginning: it, or the one before, has the last operation of the copy.
    segment: String,
    /// Time for which the log is kept without the session being used.
    idle: Duration,
}

impl HostingTrial {
    /// Begins a copy and writes more than a log keeps, while the session is open, or after it has ended well.
    pub(super) fn hold_log(&mut self) {
        // With large limits no log is cut here.
        if self.fleet.plan.cluster.limits != EngineLimits::Tiny {
            return;
        }
        let Some((leader, status)) = self.calm_group() else { return };
        let ends = self.random.percent(ENDED_PERCENT);
        let mut used = self.fleet.world.now();
        let Some(held) = self.begin_copy(leader, status.term) else { return };
        if ends {
            used = self.fleet.world.now();
            if !self.end_copy(&held, true) {
                return;
            }
        }
        let written = self.write_much(leader);
        self.fleet.pass(FLUSHED);
        self.check_held_log(&held, used, (ends, written));
        if !ends {
            self.end_copy(&held, false);
        }
    }

    fn begin_copy(&mut self, source: usize, term: Term) -> Option<HeldLog> {
        let tablet = Arc::downgrade(self.replica(source)?.tablet());
        let begin = BeginTabletCopySessionRequestPb {
            requestor_uuid: id_bytes(&SINK),
            tablet_id: tablet_id(),
            auto_download_superblock_in_batch: None,
        };
        let begun: Result<BeginTabletCopySessionResponsePb, _> =
            self.fleet.call(source, (COPY, "BeginTabletCopySession"), begin);
        let begun = begun.ok()?;
        let segment = segment_name(begun.wal_segment_seqnos.iter().copied().max()?);
        let idle = Duration::from_millis(begun.session_idle_timeout_millis);
        Some(HeldLog { source, term, session: begun.session_id, tablet, segment, idle })
    }

    /// Ends a session; returns false if that is not known.
    fn end_copy(&mut self, held: &HeldLog, is_success: bool) -> bool {
        let request = EndTabletCopySessionRequestPb {
            session_id: held.session.clone(),
            is_success,
            ..Default::default()
        };
        let ended: Result<EndTabletCopySessionResponsePb, _> =
            self.fleet.call(held.source, (COPY, "EndTabletCopySession"), request);
        ended.is_ok()
    }

    /// Writes many operations; returns their number.
    fn write_much(&mut self, leader: usize) -> usize {
        let writes = self.start_writes(leader, (REQUESTS, ROWS), WriteOrder::Paced(PAUSE));
        for _ in 0..LOOKS {
            self.fleet.pass(LOOK);
            if writes.have_ended() {
                break;
            }
        }
        self.end_writes(&writes)
    }

    /// Reports a log that lacks what a copy needs. `used`: a time before the last use of the session.
    ///
    /// The replica must be the same as when the session began, as anchors are in memory, and it must have led all the
    /// time: others truncate operations. No device is full meanwhile, which would end anchors.
    fn check_held_log(&mut self, held: &HeldLog, used: Duration, (ends, written): (bool, usize)) {
        let replica = self.replica(held.source).filter(|_| self.leader() == Some(held.source));
        let Some(replica) = replica.filter(|replica| replica.status().term == held.term) else { return };
        let tablet = replica.tablet().clone();
        let is_same = held.tablet.ptr_eq(&Arc::downgrade(&tablet));
        if !is_same || self.fleet.world.now() - used >= held.idle {
            return;
        }
        // Then nothing but the copy needs the first of these operations.
        let is_flushed = tablet.log_anchors() == LogAnchors::default();
        let is_needed = is_flushed && written > RETAINED_OPS;
        let copy = if ends { "a copy that has ended well" } else { "a copy in progress" };
        let source = held.source;
        self.fleet
            .note(format!("{written} operations after {copy} from {source}, it needs them: {is_needed}"));
        let [wal, _] = self.disks(source);
        let segments = wal.image().list(&wal_dir(TABLET)).unwrap_or_default();
        if !segments.contains(&held.segment) {
            let segment = &held.segment;
            self.fleet
                .report(format!("the log at {source} lacks {segment}, which {copy} needs: {segments:?}"));
        }
    }
}
