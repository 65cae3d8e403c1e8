//! The client's calls, and the server's recovery from what a trial does to it.

use std::time::Duration;

use bytes::Bytes;
use engine::disk::mem::MemDisk;
use nyala_common::rpc::RequestIdPb;
use nyala_common::rpc::client::CallOptions;
use nyala_common::wire::schema::id_bytes;
use nyala_proto::kudu::consensus::raft_peer_pb::MemberType;
use nyala_proto::kudu::tserver::tablet_server_error_pb::Code;
use nyala_proto::kudu::tserver::{CreateTabletResponsePb, WriteRequestPb, WriteResponsePb};

use super::{HostedTrial, SERVER, TABLE, TABLET};
use crate::cluster::{DATA_DIR, WAL_DIR};
use crate::trials::fleet::{OneCall, host};
use crate::trials::requests;
use crate::wire::client::{ADMIN, CallFailure, TSERVER, text_of};
use crate::world::World;

/// Attempts of a request, between which the server recovers.
const ATTEMPTS: usize = 6;
/// Codes of errors about columns, which are final.
const OF_COLUMNS: [Code; 2] = [Code::InvalidSchema, Code::MismatchedSchema];
/// Pause before a call is made again at a server that runs.
const PAUSE: Duration = Duration::from_millis(300);

impl HostedTrial {
    pub(super) fn create_tablet(&mut self) {
        let peers = vec![self.fleet.peer(SERVER, MemberType::Voter)];
        let request =
            requests::create_tablet(self.fleet.ids[SERVER], (TABLE, TABLET), &self.table.schema, peers);
        let created: Result<CreateTabletResponsePb, _> =
            self.fleet.call(SERVER, (ADMIN, "CreateTablet"), request);
        if !created.as_ref().is_ok_and(|reply| reply.error.is_none()) {
            self.fleet.report(format!("the tablet is not created: {created:?}"));
        }
    }

    /// Returns the id of a new request of one of three clients, which know the replies to all requests
    /// before.
    pub(super) fn next_request(&mut self) -> RequestIdPb {
        self.sequence += 1;
        let open = self.random.pick(&[0, 0, 1]);
        RequestIdPb {
            client_id: format!("{:032x}", 0x570a_0000 + self.sequence % 3),
            seq_no: self.sequence,
            first_incomplete_seq_no: self.sequence - open,
            attempt_no: 0,
        }
    }

    /// Sends a write again and again until it is executed, or refused for its columns.
    pub(super) fn write_until_answered(
        &mut self,
        request: &WriteRequestPb,
        id: &RequestIdPb,
    ) -> Option<WriteResponsePb> {
        for attempt in 0..ATTEMPTS {
            let id = RequestIdPb { attempt_no: id.attempt_no + attempt as i64, ..id.clone() };
            match self.send_write(request.clone(), id) {
                Ok(reply) => match &reply.error {
                    Some(error) if !OF_COLUMNS.contains(&error.code()) => {
                        self.fleet.note(format!("a write waits: {}", text_of(&error.status)));
                    }
                    _ => return Some(reply),
                },
                Err(failure) => self.fleet.note(format!("a write waits: {failure}")),
            }
            self.recover();
        }
        self.fleet.report(format!("a write has no reply after {ATTEMPTS} attempts"));
        None
    }

    fn send_write(
        &mut self,
        request: WriteRequestPb,
        id: RequestIdPb,
    ) -> Result<WriteResponsePb, CallFailure> {
        let call = OneCall { server: SERVER, service: TSERVER, method: "Write", request };
        let options = CallOptions { request_id: Some(id), ..CallOptions::default() };
        let reply = self.fleet.run_client(move |env| call.clone().make(env, options.clone()));
        reply.unwrap_or_else(|| Err(CallFailure::Unknown("no reply".to_string())))
    }

    /// Ends faults, and restarts the server if it or its replica has failed, as an operator does.
    pub(super) fn recover(&mut self) {
        self.disks().iter().for_each(MemDisk::end_faults);
        if self.fleet.up[SERVER] && self.fleet.replica(SERVER, TABLET).is_none() {
            self.fleet.note("the replica has failed");
            self.fleet.kill(SERVER);
        }
        match self.fleet.up[SERVER] {
            true => self.fleet.pass(PAUSE),
            false => self.fleet.restart(SERVER),
        }
    }

    /// Returns the disks of the log and of rows.
    pub(super) fn disks(&mut self) -> [MemDisk; 2] {
        let machine = self.fleet.world.machine(&host(SERVER).name());
        [machine.disk(WAL_DIR), machine.disk(DATA_DIR)]
    }
}

/// Returns the tablet's id in a request.
pub(super) fn tablet_id() -> Bytes {
    id_bytes(&TABLET)
}
