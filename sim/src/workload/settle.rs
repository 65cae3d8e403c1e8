//! After the faults: the cluster must be whole again within a stated time, and everything is read once more.
//!
//! - Every table can be written: its tablets have leaders that make progress (O9).
//! - Every row is read at a snapshot that includes all that any client has seen (O6), twice (repeatable).
//! - Every tablet has as many replicas as it should (O9), and at one timestamp all have the same checksum (O5).

use std::time::Duration;

use bytes::Bytes;
use engine::error::Error;
use engine::ids::TabletId;
use engine::time::{Instant, Timestamp};
use node::client::locations::TabletLocation;
use node::client::{Client, FlushMode, SessionConfig, Table};
use node::env::Env;
use node::proto::kudu::tserver::{
    ChecksumRequestPb, ChecksumResponsePb, ContinueChecksumRequestPb, NewScanRequestPb,
};
use node::proto::kudu::{OrderMode, ReadMode as ReadModePb};
use node::wire::convert;

use super::actor::answer_of;
use super::admin::call;
use super::scans::spec;
use super::{Workload, nanos, rows, tables, until};
use crate::history::{Outcome, Request, RowOpKind, Stamp, TableNo};
use crate::oracle::Finding;
use crate::oracle::bank::BANK;
use crate::oracle::lists::LISTS;
use crate::oracle::replicas::{self, Checksum};

const TSERVER: &str = "kudu.tserver.TabletServerService";
/// The client whose number stands for this phase.
pub(super) const SETTLER: u32 = 63;
/// What opening a tablet of a plan's size asks of its disk, when nothing of it is in memory.
const OPENING_OPS: u32 = 2_000;
/// The time within which a healed cluster must do everything asked of it here.
const LIVENESS: &str = "liveness";

impl Workload {
    /// Judges the healed cluster; what is wrong is found in [`Workload::report`].
    pub async fn settle(&self, env: &Env) {
        let quiet = self.plan().quiet;
        let deadline = env.now().mono.after(quiet);
        let client = self.connect(env).await;
        client.observe_timestamp(self.newest());
        let mut numbers: Vec<TableNo> = (0..self.plan().cluster.tables).map(TableNo::from).collect();
        numbers.push(BANK);
        numbers.extend(self.plan().has_lists().then_some(LISTS));
        self.wake_everyone(env, deadline).await;
        if let Err(error) = self.all_masters(env, deadline).await {
            let what = format!("{quiet:?} after all faults healed, the masters: {error}");
            self.object(Finding::new(LIVENESS, what));
        }
        for number in numbers {
            if let Err(error) = self.settle_table(env, &client, number, deadline).await {
                let what = format!("{quiet:?} after all faults healed, table {number}: {error}");
                self.object(Finding::new(LIVENESS, what));
            }
        }
        if let Err(error) = self.settle_numbered(env, &client, deadline).await {
            let what = format!("{quiet:?} after all faults healed, numbered rows: {error}");
            self.object(Finding::new(LIVENESS, what));
        }
        let deadline = env.now().mono.after(quiet);
        if let Err(error) = self.spread_evenly(env, &client, deadline).await {
            let what = format!("{quiet:?} for a healed cluster to spread its replicas: {error}");
            self.object(Finding::new(LIVENESS, what));
        }
        let deadline = env.now().mono.after(quiet);
        if let Err(error) = self.spare_one(env, &client, deadline).await {
            self.object(Finding::new(LIVENESS, format!("{quiet:?} after all faults healed: {error}")));
        }
        self.wake_everyone(env, deadline).await;
    }

    async fn settle_table(
        &self,
        env: &Env,
        client: &Client,
        number: TableNo,
        deadline: Instant,
    ) -> Result<(), Error> {
        let left = || deadline.since(env.now().mono);
        let name = tables::name(number);
        let table = until(env, left(), async || client.open_table(&name).await).await?;
        if ![BANK, LISTS].contains(&number) {
            // A column may be on its way out: the table is opened anew until nothing changes it any more.
            until(env, left(), async || {
                let table = client.open_table(&name).await?;
                self.write_everywhere(env, &table, number, left() / 4).await
            })
            .await?;
        }
        until(env, left(), async || {
            let at = self.after_everything(env, client);
            self.read_then(env, &table, number, None, at, false).await?;
            self.read_then(env, &table, number, None, at, false).await?;
            let fresh = client.open_table(&name).await?;
            self.check_owned(&fresh, number, at).await
        })
        .await?;
        self.look_back(env, &table, number, left()).await?;
        self.compare_replicas(env, &table, number, deadline).await
    }

    /// A snapshot that has all that any client has seen; taken anew for each attempt, as tablets may forget soon.
    pub(super) fn after_everything(&self, env: &Env, client: &Client) -> Stamp {
        let now = Timestamp::from_micros(env.now().wall.micros).0;
        now.max(self.newest()).max(client.observed_timestamp().unwrap_or_default()) + 1
    }

    /// Writes enough rows that some of them go to each tablet.
    async fn write_everywhere(
        &self,
        env: &Env,
        table: &Table,
        number: TableNo,
        within: Duration,
    ) -> Result<(), Error> {
        let mut config = SessionConfig::new(FlushMode::AutoSync);
        config.receipts = true;
        config.timeout = self.plan().cluster.op_timeout;
        let session = table.client().session(config);
        for key in 0..8 * i64::from(self.plan().cluster.tablets) {
            // Rows of their own, beyond those of the plan.
            let op = rows::op(RowOpKind::Upsert, tables::KEYS_END - 1 - key, key, 4, false);
            let encoded = rows::Encoded::new(&op);
            until(env, within, async || {
                let after = table.client().observed_timestamp().unwrap_or_default();
                let request = Request::Write { table: number, rows: vec![op.clone()] };
                let call = self.history().invoke(SETTLER, nanos(env), after, request);
                let cells = encoded.cells_of(table.schema());
                let applied = session.apply(table, op.kind, &cells, 0).await;
                let outcome = match session.take_receipts().first() {
                    Some(receipt) => Outcome::Written(vec![answer_of(receipt)]),
                    None => Outcome::Unknown("no answer".to_string()),
                };
                self.history().answer(call, nanos(env), outcome);
                applied
            })
            .await?;
        }
        Ok(())
    }

    /// Waits until each tablet has all its replicas, and compares what they hold.
    pub(super) async fn compare_replicas(
        &self,
        env: &Env,
        table: &Table,
        number: TableNo,
        deadline: Instant,
    ) -> Result<(), Error> {
        let left = || deadline.since(env.now().mono);
        let mut sums = Vec::new();
        for tablet in until(env, left(), async || self.look_up(env, table).await).await? {
            // What has rotted is found only as it is read here: from then on the tablet needs time for another replica,
            // and is looked up again, while those that were compared before are not. A look at one takes a second.
            let within = left().max(self.plan().quiet / 2);
            let mut known = Some(tablet.clone());
            let of_tablet = until(env, within, async || {
                let looked_up = match known.take() {
                    Some(tablet) => tablet,
                    None => self.look_up_again(env, table, &tablet.1.id).await?,
                };
                self.sums_of(env, &looked_up, number).await
            });
            sums.extend(of_tablet.await?);
        }
        replicas::check(&sums).into_iter().for_each(|finding| self.object(finding));
        Ok(())
    }

    /// The tablets of a table, as a client sees them that has not looked them up before.
    async fn look_up(&self, env: &Env, table: &Table) -> Result<Vec<(Table, TabletLocation)>, Error> {
        let fresh = self.connect(env).await;
        let table = fresh.open_table(table.name()).await?;
        let tokens = table.scan_tokens(&spec()).await?;
        Ok(tokens.iter().map(|token| (table.clone(), token.tablet().clone())).collect())
    }

    async fn look_up_again(
        &self,
        env: &Env,
        table: &Table,
        tablet: &str,
    ) -> Result<(Table, TabletLocation), Error> {
        let tablets = self.look_up(env, table).await?;
        let found = tablets.into_iter().find(|(_, found)| found.id == tablet);
        found.ok_or_else(|| Error::not_ready(format!("tablet {tablet} is gone")))
    }

    /// What each replica of a tablet holds, at one timestamp.
    async fn sums_of(
        &self,
        env: &Env,
        (table, tablet): &(Table, TabletLocation),
        number: TableNo,
    ) -> Result<Vec<Checksum>, Error> {
        // Each tablet's own, as it may be forgotten soon; followers learn from heartbeats that it is past.
        let at = self.after_everything(env, table.client());
        env.sleep(self.plan().cluster.raft_heartbeat * 2).await;
        let (have, want) = (tablet.replicas.len(), usize::from(self.plan().cluster.replicas));
        if have < want {
            return Err(Error::not_ready(format!("tablet {} has {have} of {want} replicas", tablet.id)));
        }
        self.state().living.extend(tablet.id.parse::<TabletId>());
        let mut sums = Vec::new();
        for replica in &tablet.replicas {
            let (checksum, rows) = self.checksum(env, table, &tablet.id, &replica.address, at).await?;
            let (tablet, server) = (tablet.id.clone(), replica.server_id.clone());
            sums.push(Checksum { table: number, tablet, server, at, checksum, rows });
        }
        Ok(sums)
    }

    pub(super) async fn checksum(
        &self,
        env: &Env,
        table: &Table,
        tablet: &str,
        address: &str,
        at: Stamp,
    ) -> Result<(u64, u64), Error> {
        // All of them, those that were added later too.
        let columns = table.schema();
        let pb = |(i, column)| {
            let mut pb = convert::column_to_pb(column, i < columns.num_key_columns());
            pb.id = None;
            pb
        };
        let new = NewScanRequestPb {
            tablet_id: Bytes::copy_from_slice(tablet.as_bytes()),
            projected_columns: columns.columns().iter().enumerate().map(pb).collect(),
            read_mode: Some(ReadModePb::ReadAtSnapshot as i32),
            snap_timestamp: Some(at),
            order_mode: Some(OrderMode::Unordered as i32),
            ..Default::default()
        };
        let mut request =
            ChecksumRequestPb { new_request: Some(new), call_seq_id: Some(0), ..Default::default() };
        // The first call opens every file of the tablet before it has a row.
        let opening = self.plan().devices.op * OPENING_OPS;
        let within = table.client().config().operation_timeout + opening;
        let (mut seq, mut rows) = (0, 0);
        loop {
            let response: ChecksumResponsePb =
                call(env, address, TSERVER, "Checksum", &request, within).await?;
            if let Some(error) = response.error {
                return Err(Error::not_ready(error.status.message.unwrap_or_default()));
            }
            rows += response.rows_checksummed().unsigned_abs();
            if !response.has_more_results() {
                return Ok((response.checksum(), rows));
            }
            seq += 1;
            let scanner_id = response.scanner_id.clone().unwrap_or_default();
            let previous_checksum = response.checksum();
            let continue_request = Some(ContinueChecksumRequestPb { scanner_id, previous_checksum });
            request = ChecksumRequestPb { continue_request, call_seq_id: Some(seq), ..Default::default() };
        }
    }
}
