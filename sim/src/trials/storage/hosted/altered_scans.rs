//! Scans that wait for their snapshot while an alteration and a later write are in the log: the server binds the
//! columns again, and the rows are still those of the snapshot.
//!
//! ```text
//!   log of the server:  stalled ─────────────────────────► written
//!   client:  write ── alteration ── scan, of a snapshot ── write      all are answered once the log is written
//!                                   that the server chooses
//! ```

use std::time::Duration;

use futures_util::future::join;
use nyala_common::env::Env;
use nyala_common::rpc::RequestIdPb;
use nyala_common::rpc::client::CallOptions;
use nyala_proto::kudu::tserver::{
    AlterSchemaRequestPb, AlterSchemaResponsePb, WriteRequestPb, WriteResponsePb,
};

use super::unread_pages::read;
use super::{HostedTrial, SERVER, view};
use crate::cluster::WAL_DIR;
use crate::history::HybridStamp;
use crate::model::RowWrite;
use crate::trials::fleet::{OneCall, host};
use crate::wire::client::{ADMIN, TSERVER};
use crate::wire::scan::{ScanRow, ScanTime, TabletScan};
use crate::world::World;

/// Time between two calls: more than a message takes. The log is stalled until all have arrived.
const GAP: Duration = Duration::from_millis(8);
const STALLED: Duration = Duration::from_millis(40);

/// A write and the id of its request.
type SentWrite = (OneCall<WriteRequestPb>, RequestIdPb);

/// Replies of the calls that succeeded.
#[derive(Default)]
struct Replies {
    writes: [Option<WriteResponsePb>; 2],
    altered_at: Option<HybridStamp>,
    /// The rows, and the snapshot that they are of.
    scanned: Option<(Vec<ScanRow>, HybridStamp)>,
}

impl HostedTrial {
    /// Scans while an alteration is in the log, which gives the same columns another version. The rows are compared
    /// with those of the snapshot that the reply names, once both writes are answered. A scan that fails is not
    /// checked.
    pub(super) fn alter_beneath_scan(&mut self) {
        self.recover();
        self.view = self.table.shape.clone();
        let Some(drawn) = self.drawn_scan() else { return };
        let scan = TabletScan { time: ScanTime::Chosen, ..drawn };
        let rows = [self.draw_rows(), self.draw_rows()];
        let ids = [self.next_request(), self.next_request()];
        self.version += 1;
        self.stall_log();
        let replies = self.call_together(&rows, &ids, &scan);
        let Replies { writes, altered_at, scanned } = replies;
        if !self.apply_writes(rows, ids, writes) {
            return;
        }
        let table = self.table.clone();
        // An alteration without a reply may not have arrived.
        if altered_at.is_none() && !self.alter_until_done(&table, None) {
            return;
        }
        self.last = self.last.max(altered_at.unwrap_or_default());
        let columns = view::meaning(&self.view, &self.table.shape);
        let Some(((rows, at), columns)) = scanned.zip(columns) else { return };
        self.fleet.note(format!("an alteration while a scan waits: {} rows at {at}", rows.len()));
        self.compare(&TabletScan { time: ScanTime::Named(at), ..scan }, &columns, &rows);
    }

    /// Stalls the device of the server's log.
    fn stall_log(&mut self) {
        let Some(running) = self.fleet.running(SERVER) else { return };
        let until = running.env.now().mono.after(STALLED);
        self.fleet.world.machine(&host(SERVER).name()).stall(WAL_DIR, until);
    }

    /// Makes the calls, each some time after the one before.
    fn call_together(
        &mut self,
        rows: &[Vec<RowWrite>; 2],
        ids: &[RequestIdPb; 2],
        scan: &TabletScan,
    ) -> Replies {
        let write = |at: usize| {
            let request = self.write_request(&rows[at]);
            (OneCall { server: SERVER, service: TSERVER, method: "Write", request }, ids[at].clone())
        };
        let (first, last, scan) = (write(0), write(1), scan.clone());
        let request = self.alteration(&self.table, None);
        let altering = OneCall { server: SERVER, service: ADMIN, method: "AlterSchema", request };
        let replies = self.fleet.run_client(move |env| {
            make_calls(env, (first.clone(), last.clone()), altering.clone(), scan.clone())
        });
        replies.unwrap_or_default()
    }

    /// Applies both writes to the model in the order of their timestamps. One without a reply is sent again with its
    /// id, so that it takes effect once. Returns false if it has none then.
    fn apply_writes(
        &mut self,
        rows: [Vec<RowWrite>; 2],
        ids: [RequestIdPb; 2],
        replies: [Option<WriteResponsePb>; 2],
    ) -> bool {
        let mut done = Vec::new();
        for ((rows, id), reply) in rows.into_iter().zip(ids).zip(replies) {
            let request = self.write_request(&rows);
            let Some(reply) = reply.or_else(|| self.write_until_answered(&request, &id)) else {
                return false;
            };
            done.push((rows, reply));
        }
        done.sort_by_key(|(_, reply)| reply.timestamp);
        for (rows, reply) in done.iter().filter(|(_, reply)| reply.error.is_none()) {
            self.apply(rows, reply);
        }
        true
    }
}

async fn make_calls(
    env: Env,
    (first, last): (SentWrite, SentWrite),
    altering: OneCall<AlterSchemaRequestPb>,
    scan: TabletScan,
) -> Replies {
    let altered = async {
        env.sleep(GAP).await;
        altering.make::<AlterSchemaResponsePb>(env.clone(), CallOptions::default()).await
    };
    let scanned = async {
        env.sleep(GAP * 2).await;
        read(env.clone(), scan, None).await
    };
    let written = async {
        env.sleep(GAP * 3).await;
        write(env.clone(), last).await
    };
    let begun = join(write(env.clone(), first), altered);
    let ((first, altered), (scanned, last)) = join(begun, join(scanned, written)).await;
    let altered = altered.ok().filter(|reply| reply.error.is_none());
    Replies {
        writes: [first, last],
        altered_at: altered.and_then(|reply| reply.timestamp),
        scanned: scanned.ok().and_then(|(rows, at)| Some((rows, at?))),
    }
}

/// Makes a write; returns its reply if it succeeded.
async fn write(env: Env, (call, id): SentWrite) -> Option<WriteResponsePb> {
    let options = CallOptions { request_id: Some(id), ..CallOptions::default() };
    let reply: WriteResponsePb = call.make(env, options).await.ok()?;
    Some(reply).filter(|reply| reply.error.is_none())
}
