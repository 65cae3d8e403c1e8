//! Sessions of tablet copies: one lives as long as its sink asks for something within the idle time, and no longer.

use bytes::Bytes;
use engine::ids::Uuid;
use nyala_common::wire::schema::id_bytes;
use nyala_proto::kudu::tserver::data_id_pb::IdType;
use nyala_proto::kudu::tserver::{
    BeginTabletCopySessionRequestPb, BeginTabletCopySessionResponsePb, CheckTabletCopySessionActiveRequestPb,
    CheckTabletCopySessionActiveResponsePb, DataIdPb, FetchDataRequestPb, FetchDataResponsePb,
};

use super::ServingTrial;
use super::limits::COPY_IDLE;
use crate::wire::client::{COPY, CallFailure};
use crate::world::World;

/// The sink, which is no server.
const SINK: Uuid = Uuid([0xee; 16]);
/// Pauses of a sink that continues, and of one that is gone, in percent of the idle time.
const PAUSES: (u64, u64) = (40, 80);
const GONE: u32 = 150;
/// Most calls of a sink.
const CALLS_MAX: u64 = 5;

impl ServingTrial {
    /// Begins a session as a sink does, uses it now and then, and at last leaves it alone.
    pub(super) fn copy_slowly(&mut self) {
        let Some((at, leader)) = self.led_tablet() else { return };
        let begin = BeginTabletCopySessionRequestPb {
            requestor_uuid: id_bytes(&SINK),
            tablet_id: id_bytes(&self.tablets[at].id),
            auto_download_superblock_in_batch: None,
        };
        let begun: Result<BeginTabletCopySessionResponsePb, _> =
            self.fleet.call(leader, (COPY, "BeginTabletCopySession"), begin);
        let Ok(session) = begun.map(|begun| begun.session_id) else { return };
        self.fleet.note(format!("tablet {at} is copied from {leader}"));
        let mut used = self.fleet.world.now();
        for _ in 0..self.random.between(2, CALLS_MAX) {
            let percent = self.random.between(PAUSES.0, PAUSES.1) as u32;
            self.pass(COPY_IDLE * percent / 100);
            let (asked, told) = (self.fleet.world.now(), self.use_session(leader, &session));
            // A call may have been long under way.
            if self.fleet.world.now() - used > COPY_IDLE {
                return;
            }
            used = asked;
            match told {
                Ok(()) => {}
                Err(CallFailure::Refused { message, .. }) => {
                    let what = format!("a session of a copy that was used within its idle time: {message}");
                    return self.fleet.report(what);
                }
                Err(CallFailure::NotNow(_) | CallFailure::Unknown(_)) => return,
            }
        }
        self.pass(COPY_IDLE * GONE / 100);
        if self.is_active(leader, &session, false).is_ok_and(|active| active) {
            let what =
                "a session of a copy lives although its sink has been gone for longer than the idle time";
            self.fleet.report(what.to_string());
        }
    }

    /// Fetches the superblock, or asks to keep the session.
    fn use_session(&mut self, server: usize, session: &Bytes) -> Result<(), CallFailure> {
        if self.random.percent(50) {
            return match self.is_active(server, session, true)? {
                true => Ok(()),
                false => Err(CallFailure::Refused { code: 0, status: 0, message: "it is gone".to_string() }),
            };
        }
        let data_id = DataIdPb { r#type: IdType::SuperBlock as i32, ..Default::default() };
        let fetch = FetchDataRequestPb { session_id: session.clone(), data_id, ..Default::default() };
        let fetched: Result<FetchDataResponsePb, _> = self.fleet.call(server, (COPY, "FetchData"), fetch);
        fetched.map(|_| ())
    }

    fn is_active(&mut self, server: usize, session: &Bytes, keep: bool) -> Result<bool, CallFailure> {
        let (session_id, keepalive) = (session.clone(), Some(keep));
        let check = CheckTabletCopySessionActiveRequestPb { session_id, keepalive };
        let checked: Result<CheckTabletCopySessionActiveResponsePb, _> =
            self.fleet.call(server, (COPY, "CheckSessionActive"), check);
        checked.map(|reply| reply.session_is_active)
    }
}
