//! A client that writes much while other things happen.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use engine::sync::Mutex;
use futures_util::future::join_all;
use nyala_common::env::Env;
use nyala_common::rpc::client::CallOptions;
use nyala_proto::kudu::tserver::{WriteRequestPb, WriteResponsePb};

use super::HostingTrial;
use crate::trials::fleet::{CALL, OneCall};
use crate::wire::client::{CallFailure, TSERVER};

/// Interval between looks at the client.
const LOOK: Duration = Duration::from_millis(20);

/// A client that writes.
pub(super) struct BulkWrites {
    /// True once the client is to end.
    stops: Arc<AtomicBool>,
    /// Number of requests that were executed, once the client has ended.
    written: Arc<Mutex<Option<usize>>>,
}

/// Order in which requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteOrder {
    /// One after the other, with a pause after each.
    Paced(Duration),
    AtOnce,
}

impl BulkWrites {
    /// Returns true if the client has ended.
    pub(super) fn have_ended(&self) -> bool {
        self.written.lock().is_some()
    }
}

impl HostingTrial {
    /// Starts a client that sends requests of some rows to a server.
    pub(super) fn start_writes(
        &mut self,
        server: usize,
        (requests, rows): (usize, u64),
        order: WriteOrder,
    ) -> BulkWrites {
        let requests = (0..requests).map(|_| self.write_request(rows));
        let call = |request| OneCall { server, service: TSERVER, method: "Write", request };
        let calls: Arc<Vec<OneCall<WriteRequestPb>>> = Arc::new(requests.map(call).collect());
        let stops = Arc::new(AtomicBool::new(false));
        let told = stops.clone();
        let written = self.fleet.start_client(move |env| {
            let (calls, stops) = (calls.clone(), told.clone());
            async move {
                match order {
                    WriteOrder::AtOnce => {
                        let all = calls.iter().map(|call| write(env.clone(), call.clone()));
                        join_all(all).await.into_iter().sum()
                    }
                    WriteOrder::Paced(pause) => write_paced(env, &calls, &stops, pause).await,
                }
            }
        });
        BulkWrites { stops, written }
    }

    /// Ends the client after its next reply; returns the number of requests that were executed.
    pub(super) fn end_writes(&mut self, writes: &BulkWrites) -> usize {
        writes.stops.store(true, Ordering::Relaxed);
        let mut waited = Duration::ZERO;
        while !writes.have_ended() && waited < CALL * 2 {
            self.fleet.pass(LOOK);
            waited += LOOK;
        }
        writes.written.lock().unwrap_or_default()
    }
}

/// Sends requests one after the other, until the client is to end.
async fn write_paced(
    env: Env,
    calls: &[OneCall<WriteRequestPb>],
    stops: &AtomicBool,
    pause: Duration,
) -> usize {
    let mut written = 0;
    for call in calls {
        if stops.load(Ordering::Relaxed) {
            break;
        }
        written += write(env.clone(), call.clone()).await;
        env.sleep(pause).await;
    }
    written
}

/// Sends a request; returns 1 if it is executed.
async fn write(env: Env, call: OneCall<WriteRequestPb>) -> usize {
    let reply: Result<WriteResponsePb, CallFailure> = call.make(env, CallOptions::default()).await;
    usize::from(reply.is_ok_and(|reply| reply.error.is_none()))
}
