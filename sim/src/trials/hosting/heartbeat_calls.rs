//! Calls with the heartbeats of several tablets. Each update gets its response, in their order, also while a replica is
//! slow: a leader takes a call with fewer responses for a failure of the server with all of its tablets.

use std::time::Duration;

use engine::ids::{OpId, TabletId, Uuid};
use engine::raft::interface::UpdateRequest;
use nyala_common::wire::consensus::{op_id_from_pb, update_to_pb};
use nyala_common::wire::schema::id_bytes;
use nyala_proto::kudu::consensus::{
    ConsensusResponsePb, GetLastOpIdRequestPb, GetLastOpIdResponsePb, HeartbeatsRequestPb,
    HeartbeatsResponsePb,
};
use nyala_proto::kudu::tserver::tablet_server_error_pb::Code;

use super::calls::tablet_id;
use super::{HostingTrial, TABLET};
use crate::cluster::{self, WAL_DIR};
use crate::trials::fleet::host;
use crate::wire::client::CONSENSUS;
use crate::world::World;

/// Time for which the device of the follower's log stalls: longer than a call waits.
const STALLED: Duration = Duration::from_secs(4);
/// Most updates of a call besides that of the slow replica.
const OTHERS_MAX: u64 = 5;

/// An update of a call, by the response that it must get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beat {
    /// Of a tablet that the server does not know.
    Unknown(u8),
    /// Of a leader of long ago.
    Stale,
    /// Of the leader, to a replica that waits for its log.
    Slow,
}

impl HostingTrial {
    /// Sends heartbeats of several tablets to a follower whose log is slow, as its leader might.
    pub(super) fn send_heartbeats(&mut self) {
        let Some((leader, status)) = self.calm_group() else { return };
        let follower = self.random.pick(&self.followers(leader, &status));
        let machine = self.fleet.world.machine(&host(follower).name());
        let Some(running) = self.fleet.running(follower) else { return };
        machine.stall(WAL_DIR, running.env.now().mono.after(STALLED));
        self.write();
        if let Some(last) = self.last_op(leader) {
            let beats = self.draw_beats();
            let update = |beat: &Beat| self.update(*beat, (leader, follower), (status.term, last));
            let updates = beats.iter().map(update).map(|update| update_to_pb(update).0).collect();
            let request =
                HeartbeatsRequestPb { dest_uuid: Some(id_bytes(&self.fleet.ids[follower])), updates };
            let reply: Result<HeartbeatsResponsePb, _> =
                self.fleet.call(follower, (CONSENSUS, "Heartbeats"), request);
            let shown = reply.as_ref().map(|reply| reply.responses.len());
            self.fleet.note(format!("{beats:?} to {follower}, whose log is slow: {shown:?} responses"));
            let wrong = match reply {
                Ok(reply) => wrong_response(&beats, &reply.responses),
                Err(_) if !cluster::replies_promptly(&self.fleet.plan) => None,
                Err(failure) => Some(format!("no reply to the heartbeats {beats:?}: {failure}")),
            };
            wrong.into_iter().for_each(|wrong| self.fleet.report(wrong));
        }
        self.fleet.pass(STALLED);
    }

    fn draw_beats(&mut self) -> Vec<Beat> {
        let others = self.random.between(1, OTHERS_MAX);
        let mut beats: Vec<Beat> = (0..others)
            .map(|number| if self.random.percent(70) { Beat::Unknown(number as u8) } else { Beat::Stale })
            .collect();
        let at = self.random.below(others + 1) as usize;
        beats.insert(at, Beat::Slow);
        beats
    }

    fn update(
        &self,
        beat: Beat,
        (leader, follower): (usize, usize),
        (term, last): (u64, OpId),
    ) -> UpdateRequest {
        let (tablet, term): (TabletId, u64) = match beat {
            Beat::Unknown(number) => (Uuid([0xa0 + number; 16]), term),
            Beat::Stale => (TABLET, 0),
            Beat::Slow => (TABLET, term),
        };
        UpdateRequest {
            tablet,
            caller: self.fleet.ids[leader],
            dest: self.fleet.ids[follower],
            term,
            sent: 0,
            preceding: last,
            entries: Vec::new(),
            committed: 0,
            all_replicated: 0,
            safe_time: None,
        }
    }

    /// Returns the last operation of a server's log.
    fn last_op(&mut self, server: usize) -> Option<OpId> {
        let request = GetLastOpIdRequestPb {
            dest_uuid: Some(id_bytes(&self.fleet.ids[server])),
            tablet_id: tablet_id(),
            opid_type: None,
        };
        let reply: Result<GetLastOpIdResponsePb, _> =
            self.fleet.call(server, (CONSENSUS, "GetLastOpId"), request);
        op_id_from_pb(reply.ok()?.opid.as_ref()?).ok()
    }
}

/// Returns what is wrong with the responses to updates.
fn wrong_response(beats: &[Beat], responses: &[ConsensusResponsePb]) -> Option<String> {
    if responses.len() != beats.len() {
        return Some(format!("{} responses to the heartbeats {beats:?}", responses.len()));
    }
    let is_unknown = |response: &ConsensusResponsePb| {
        response.error.as_ref().is_some_and(|error| error.code == Code::TabletNotFound as i32)
    };
    let mut all = beats.iter().zip(responses);
    let wrong = all.find(|(beat, response)| is_unknown(response) != matches!(beat, Beat::Unknown(_)));
    wrong.map(|(beat, response)| format!("{response:?} is the response to {beat:?} of {beats:?}"))
}

#[cfg(test)]
mod tests {
    use nyala_proto::kudu::tserver::TabletServerErrorPb;

    use super::*;

    #[test]
    fn responses_that_are_too_few_or_not_in_order_are_wrong() {
        let error = TabletServerErrorPb { code: Code::TabletNotFound as i32, ..Default::default() };
        let unknown = ConsensusResponsePb { error: Some(error), ..Default::default() };
        let known = ConsensusResponsePb::default();
        let beats = [Beat::Slow, Beat::Unknown(1)];
        assert_eq!(wrong_response(&beats, &[known.clone(), unknown.clone()]), None);
        assert!(wrong_response(&beats, &[unknown, known.clone()]).is_some());
        assert!(wrong_response(&beats, &[known]).is_some());
    }
}
