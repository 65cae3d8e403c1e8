//! Commit waits: no reply, not to a repeated request either, leaves before its timestamp is past on every clock. A
//! request is repeated at the same server, or at another voter, to which leadership is transferred meanwhile: that one
//! has the reply of a write it has not led.

use std::time::Duration;

use futures_util::future::join;
use nyala_common::env::Env;
use nyala_common::rpc::RequestIdPb;
use nyala_common::rpc::client::CallOptions;
use nyala_proto::kudu::ExternalConsistencyMode;
use nyala_proto::kudu::consensus::{LeaderStepDownRequestPb, LeaderStepDownResponsePb};
use nyala_proto::kudu::tserver::{WriteRequestPb, WriteResponsePb};

use super::ServingTrial;
use super::limits::LOGICAL_BITS;
use crate::trials::fleet::OneCall;
use crate::wire::client::{CONSENSUS, CallFailure, PAUSE, TSERVER};

/// Longest time after which a request is sent again.
const AGAIN_MILLIS: u64 = 600;

/// Times that a request is sent to a voter which is to lead.
const TRIES: usize = 12;

/// A reply, and the true time at which it arrived.
type Timed = (Result<WriteResponsePb, CallFailure>, u64);

impl ServingTrial {
    /// Writes rows with a commit wait, and sends the request a second time meanwhile, there or to a new leader.
    pub(super) fn write_with_commit_wait(&mut self) {
        let Some((at, leader)) = self.led_tablet() else { return };
        let case = self.tablets[at].clone();
        let mode = Some(ExternalConsistencyMode::CommitWait as i32);
        let request = WriteRequestPb { external_consistency_mode: mode, ..self.rows(&case) };
        self.request += 1;
        let number = self.request;
        let delay = Duration::from_millis(self.random.below(AGAIN_MILLIS));
        let others: Vec<usize> = case.members.iter().copied().filter(|member| *member != leader).collect();
        let to = if others.is_empty() { leader } else { self.random.pick(&others) };
        let call = OneCall { server: leader, service: TSERVER, method: "Write", request };
        let transfer = OneCall {
            server: leader,
            service: CONSENSUS,
            method: "LeaderStepDown",
            request: self.transfer_request(&case, leader, to),
        };
        self.fleet.note(format!("commit wait at {leader}, after {delay:?} again at {to}"));
        let replies = self.fleet.run_client(move |env| {
            let first = send(env.clone(), call.clone(), request_id(number, 1), Duration::ZERO);
            let second = OneCall { server: to, ..call.clone() };
            let transfer = (to != leader).then(|| transfer.clone());
            join(first, send_again(env, transfer, second, request_id(number, 2), delay))
        });
        let Some((first, second)) = replies else { return };
        let both = [&first.0, &second.0].into_iter().flatten();
        self.record_timestamps(at, both.filter_map(|reply| reply.timestamp));
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

/// Has leadership transferred, and sends a request to the new leader until it leads.
async fn send_again(
    env: Env,
    transfer: Option<OneCall<LeaderStepDownRequestPb>>,
    call: OneCall<WriteRequestPb>,
    id: RequestIdPb,
    after: Duration,
) -> Timed {
    let Some(transfer) = transfer else { return send(env, call, id, after).await };
    env.sleep(after).await;
    let asked: Result<LeaderStepDownResponsePb, _> = transfer.make(env.clone(), CallOptions::default()).await;
    let mut timed = (Err(CallFailure::NotNow(format!("{asked:?}"))), env.now().wall.micros);
    for _ in 0..TRIES {
        timed = send(env.clone(), call.clone(), id.clone(), PAUSE).await;
        let is_done = timed.0.as_ref().is_ok_and(|reply| reply.error.is_none());
        if is_done {
            break;
        }
    }
    timed
}

async fn send(env: Env, call: OneCall<WriteRequestPb>, id: RequestIdPb, after: Duration) -> Timed {
    env.sleep(after).await;
    let options = CallOptions { request_id: Some(id), ..CallOptions::default() };
    let reply = call.make(env.clone(), options).await;
    (reply, env.now().wall.micros)
}
