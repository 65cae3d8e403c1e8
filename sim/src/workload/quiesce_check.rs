//! Quiescing after the faults: one server transfers its leaderships and begins no scan until quiescing ends. The
//! numbers that it tells are compared with what its replicas and the masters tell.

use std::time::Duration;

use bytes::Bytes;
use engine::error::{Error, ErrorKind};
use engine::time::Instant;
use nyala_client::location_cache::TabletLocation;
use nyala_client::{Client, Table};
use nyala_common::env::Env;
use nyala_common::rpc::client::{CallOptions, RpcResponse};
use nyala_common::wire::schema;
use nyala_proto::kudu::consensus::{GetConsensusStateRequestPb, GetConsensusStateResponsePb};
use nyala_proto::kudu::tserver::{
    NewScanRequestPb, QuiesceTabletServerRequestPb, QuiesceTabletServerResponsePb, ScanRequestPb,
    ScanResponsePb,
};

use super::admin::refused;
use super::scans::spec;
use super::{PAUSE, TSERVER_PORT, Workload, tables, until};
use crate::oracle::quiescing::{self, LeaderView, LeaderViews, QuiescingStats};
use crate::wire::client::{ADMIN, CONSENSUS, CallFailure, PlainClient, TSERVER};
use sim_plan::ClientOp;

/// Pause between two looks while leaderships move, and the number of such looks: a transfer takes a few milliseconds.
const LOOK: Duration = Duration::from_millis(1);
const LOOKS: u32 = 100;

impl Workload {
    /// Makes the first server that the plan quiesced quiesce once more. Others can take over, as all faults have
    /// ended.
    pub(super) async fn check_quiescing(
        &self,
        env: &Env,
        client: &Client,
        deadline: Instant,
    ) -> Result<(), Error> {
        let mut ops = self.plan().clients.iter().flat_map(|client| &client.ops);
        let quiesced = ops.find_map(|op| match op {
            ClientOp::Quiesce { server, .. } => Some(*server),
            _ => None,
        });
        let (Some(server), true) = (quiesced, self.plan().cluster.replicas > 1) else { return Ok(()) };
        let address = format!("t{server}:{TSERVER_PORT}");
        let left = || deadline.since(env.now().mono);
        let table = until(env, left(), async || client.open_table(&tables::name(0)).await).await?;
        let tokens = until(env, left(), async || table.scan_tokens(&spec()).await).await?;
        let tablets: Vec<TabletLocation> = tokens.iter().map(|token| token.tablet().clone()).collect();
        let mut quiesce = QuiesceCheck::new(self, env, &address, &tablets);
        quiesce.count_until(&table, &tablets, deadline).await?;
        quiesce.wait_for_transfers(deadline).await?;
        until(env, left(), async || self.check_masters(env, &table, &address).await).await?;
        self.begin_scans(env, &table, &tablets, &address).await
    }

    /// Returns an error while masters name a server as the leader of a tablet.
    async fn check_masters(&self, env: &Env, table: &Table, address: &str) -> Result<(), Error> {
        let tablets = self.look_up(env, table).await?;
        let leads = |tablet: &TabletLocation| {
            tablet.replicas.iter().any(|replica| replica.leader && replica.address == address)
        };
        match tablets.iter().find(|(_, tablet)| leads(tablet)) {
            Some((_, tablet)) => {
                let what = format!("{address} quiesces, and masters name it as the leader of {}", tablet.id);
                Err(Error::not_ready(what))
            }
            None => Ok(()),
        }
    }

    /// Asks a quiescing server for checksums of its tablets, which it must reject.
    async fn begin_scans(
        &self,
        env: &Env,
        table: &Table,
        tablets: &[TabletLocation],
        address: &str,
    ) -> Result<(), Error> {
        let at = self.final_reads(env, table.client());
        for tablet in tablets {
            if !tablet.replicas.iter().any(|replica| replica.address == address) {
                continue;
            }
            let began = self.checksum(env, table, &tablet.id, address, at).await.is_ok();
            quiescing::check_scan(address, &tablet.id, began)
                .into_iter()
                .for_each(|found| self.report_violation(found));
        }
        Ok(())
    }
}

/// The check of one server.
struct QuiesceCheck<'a> {
    workload: &'a Workload,
    plain: PlainClient,
    address: &'a str,
    /// Id of the server, if it has a replica of the tablets.
    id: Option<String>,
}

impl<'a> QuiesceCheck<'a> {
    fn new(
        workload: &'a Workload,
        env: &Env,
        address: &'a str,
        tablets: &[TabletLocation],
    ) -> QuiesceCheck<'a> {
        let plain = workload.plain_client(env);
        let replicas = tablets.iter().flat_map(|tablet| &tablet.replicas);
        let own = replicas.into_iter().find(|replica| replica.address == address);
        QuiesceCheck { workload, plain, address, id: own.map(|replica| replica.server_id.clone()) }
    }

    async fn call<Q, R>(&mut self, service: &str, method: &str, request: &Q) -> Result<R, Error>
    where
        Q: prost::Message,
        R: prost::Message + Default,
    {
        let called: Result<RpcResponse<R>, CallFailure> =
            self.plain.call(self.address, service, method, request, CallOptions::default()).await;
        called.map(|reply| reply.message).map_err(|failure| match failure {
            CallFailure::Unknown(_) => Error::timed_out(failure.to_string()),
            CallFailure::Refused { .. } | CallFailure::NotNow(_) => Error::not_ready(failure.to_string()),
        })
    }

    /// Returns the numbers that the server tells; `None` if they are not right.
    async fn stats(&mut self, quiesce: Option<bool>) -> Result<Option<QuiescingStats>, Error> {
        let request = QuiesceTabletServerRequestPb { quiesce, return_stats: Some(true) };
        let told: QuiesceTabletServerResponsePb = self.call(ADMIN, "Quiesce", &request).await?;
        refused(told.error.map(|error| error.status))?;
        let numbers = (told.is_quiescing, told.num_leaders, told.num_active_scanners);
        match quiescing::stats(self.address, quiesce, numbers) {
            Ok(stats) => Ok(Some(stats)),
            Err(found) => {
                self.workload.report_violation(found);
                Ok(None)
            }
        }
    }

    /// Counts a scanner, again while the server refuses a call: its replica may have moved.
    async fn count_until(
        &mut self,
        table: &Table,
        tablets: &[TabletLocation],
        deadline: Instant,
    ) -> Result<(), Error> {
        let (env, mut known) = (self.plain.env.clone(), tablets.to_vec());
        loop {
            match self.count_scanners(table, &known).await {
                Ok(()) => return Ok(()),
                Err(error) if self.plain.is_over(deadline) => return Err(error),
                Err(_) => env.sleep(PAUSE).await,
            }
            if let Ok(found) = self.workload.look_up(&env, table).await {
                known = found.into_iter().map(|(_, tablet)| tablet).collect();
            }
        }
    }

    /// Opens a scanner before the server quiesces, and closes it. Returns the error of a call that was not executed. A
    /// call without a reply may be executed at any time: then nothing is compared.
    async fn count_scanners(&mut self, table: &Table, tablets: &[TabletLocation]) -> Result<(), Error> {
        match self.try_count_scanners(table, tablets).await {
            Ok(Some(counts)) => {
                let found = quiescing::check_scanners(self.address, counts);
                found.into_iter().for_each(|found| self.workload.report_violation(found));
                Ok(())
            }
            Err(error) if error.kind != ErrorKind::TimedOut => Err(error),
            Ok(None) | Err(_) => Ok(()),
        }
    }

    /// Returns the numbers of scanners that the server tells before, beside and after one of a client.
    async fn try_count_scanners(
        &mut self,
        table: &Table,
        tablets: &[TabletLocation],
    ) -> Result<Option<[i32; 3]>, Error> {
        let is_here =
            |tablet: &&TabletLocation| tablet.replicas.iter().any(|replica| replica.address == self.address);
        let Some(tablet) = tablets.iter().find(is_here).map(|tablet| tablet.id.clone()) else {
            return Ok(None);
        };
        let Some(before) = self.stats(None).await? else { return Ok(None) };
        let opened: ScanResponsePb = self.call(TSERVER, "Scan", &open_only(table, &tablet)).await?;
        refused(opened.error.map(|error| error.status))?;
        let Some(scanner) = opened.scanner_id else {
            return Err(Error::not_ready(format!("{} opened no scanner of tablet {tablet}", self.address)));
        };
        let open = self.stats(None).await?;
        let close = ScanRequestPb {
            scanner_id: Some(scanner),
            call_seq_id: Some(1),
            batch_size_bytes: Some(0),
            close_scanner: Some(true),
            ..Default::default()
        };
        let _closed: ScanResponsePb = self.call(TSERVER, "Scan", &close).await?;
        let closed = self.stats(None).await?;
        Ok(open.zip(closed).map(|(open, closed)| [before, open, closed].map(|stats| stats.scanners)))
    }

    /// Waits until the server, which is to quiesce, tells that it leads nothing.
    async fn wait_for_transfers(&mut self, deadline: Instant) -> Result<(), Error> {
        let mut looks = 0;
        loop {
            match self.look().await {
                Ok(0) => return Ok(()),
                Err(error) if self.plain.is_over(deadline) => return Err(error),
                Ok(leaders) if self.plain.is_over(deadline) => {
                    let what = format!("{} quiesces and still leads {leaders} tablets", self.address);
                    return Err(Error::not_ready(what));
                }
                Ok(_) | Err(_) => {}
            }
            self.plain.env.sleep(if looks < LOOKS { LOOK } else { PAUSE }).await;
            looks += 1;
        }
    }

    /// Compares the number of leaders with the views of the replicas before and after it was told, and returns it.
    async fn look(&mut self) -> Result<i32, Error> {
        let before = self.views().await?;
        // A wrong reply has been reported: nothing more is to be learned of it.
        let Some(stats) = self.stats(Some(true)).await? else { return Ok(0) };
        let after = self.views().await?;
        if let Some((before, after)) = before.zip(after) {
            let found = quiescing::check_leaders(self.address, stats.leaders, &before, &after);
            found.into_iter().for_each(|found| self.workload.report_violation(found));
        }
        Ok(stats.leaders)
    }

    /// Returns the views of the server's replicas; `None` in a secured cluster, where clients may not ask for them,
    /// and if the server's id is not known.
    async fn views(&mut self) -> Result<Option<LeaderViews>, Error> {
        let id = self.id.clone().filter(|_| self.workload.plan().security.is_none());
        let Some(id) = id else { return Ok(None) };
        let request = GetConsensusStateRequestPb::default();
        let told: GetConsensusStateResponsePb = self.call(CONSENSUS, "GetConsensusState", &request).await?;
        refused(told.error.map(|error| error.status))?;
        let views = told.tablets.into_iter().filter_map(|tablet| {
            let state = tablet.cstate?;
            let leader = state.leader_uuid();
            let (leads, follows) = (leader == id, !leader.is_empty() && leader != id);
            let tablet = String::from_utf8_lossy(&tablet.tablet_id).into_owned();
            Some((tablet, LeaderView { term: state.current_term, leads, follows }))
        });
        Ok(Some(views.collect()))
    }
}

/// Returns a request that opens a scanner and reads nothing.
pub(super) fn open_only(table: &Table, tablet: &str) -> ScanRequestPb {
    let mut column = schema::column_to_pb(&table.schema().columns()[0], true);
    column.id = None;
    let new = NewScanRequestPb {
        tablet_id: Bytes::copy_from_slice(tablet.as_bytes()),
        projected_columns: vec![column],
        ..Default::default()
    };
    ScanRequestPb {
        new_scan_request: Some(new),
        call_seq_id: Some(0),
        batch_size_bytes: Some(0),
        ..Default::default()
    }
}
