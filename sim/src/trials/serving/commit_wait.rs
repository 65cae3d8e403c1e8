//! Commit waits: no reply, not to a repeated request either, leaves before its timestamp is past on every clock.

use std::time::Duration;

use futures_util::future::join;
use nyala_common::env::Env;
use nyala_common::rpc::RequestIdPb;
use nyala_common::rpc::client::CallOptions;
use nyala_proto::kudu::ExternalConsistencyMode;
use nyala_proto::kudu::tserver::{WriteRequestPb, WriteResponsePb};

use super::ServingTrial;
use crate::trials::fleet::OneCall;
use crate::wire::client::{CallFailure, TSERVER};

/// Longest time after which a request is sent again.
const AGAIN_MILLIS: u64 = 600;

/// Logical bits of a timestamp, below its microseconds.
const LOGICAL_BITS: u32 = 12;

/// A reply, and the true time at which it arrived.
type Timed = (Result<WriteResponsePb, CallFailure>, u64);

impl ServingTrial {
    /// Writes rows with a commit wait, and sends the request a second time meanwhile.
    pub(super) fn write_with_commit_wait(&mut self) {
        let Some((at, leader)) = self.led_tablet() else { return };
        let case = self.tablets[at].clone();
        let mode = Some(ExternalConsistencyMode::CommitWait as i32);
        let request = WriteRequestPb { external_consistency_mode: mode, ..self.rows(&case) };
        self.request += 1;
        let number = self.request;
        let delay = Duration::from_millis(self.random.below(AGAIN_MILLIS));
        let call = OneCall { server: leader, service: TSERVER, method: "Write", request };
        let replies = self.fleet.run_client(move |env| {
            let first = send(env.clone(), call.clone(), request_id(number, 1), Duration::ZERO);
            join(first, send(env, call.clone(), request_id(number, 2), delay))
        });
        let Some((first, second)) = replies else { return };
        for (which, (reply, at)) in [("first", first), ("second", second)] {
            self.check_wait(which, reply, at);
        }
    }

    fn check_wait(&mut self, which: &str, reply: Result<WriteResponsePb, CallFailure>, at: u64) {
        let written =
            reply.as_ref().ok().filter(|reply| reply.error.is_none()).and_then(|reply| reply.timestamp);
        let ahead = written.map(|stamp| (stamp >> LOGICAL_BITS).saturating_sub(at));
        self.fleet.note(format!("commit wait, {which} reply: {:?}, ahead {ahead:?}", reply.map(|_| ())));
        if ahead.is_some_and(|ahead| ahead > 0) {
            let what = format!("the {which} reply of a commit wait came {ahead:?} us before its timestamp");
            self.fleet.report(what);
        }
    }
}

fn request_id(number: i64, attempt: i64) -> RequestIdPb {
    RequestIdPb {
        client_id: "0000000000000000000000005e4f1ce0".to_string(),
        seq_no: number,
        first_incomplete_seq_no: number,
        attempt_no: attempt,
    }
}

async fn send(env: Env, call: OneCall<WriteRequestPb>, id: RequestIdPb, after: Duration) -> Timed {
    env.sleep(after).await;
    let options = CallOptions { request_id: Some(id), ..CallOptions::default() };
    let reply = call.make(env.clone(), options).await;
    (reply, env.now().wall.micros)
}
