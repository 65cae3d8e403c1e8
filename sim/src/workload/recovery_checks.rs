//! Recovery checks: after the faults the cluster must be healthy within a stated time, and everything is read again.
//!
//! - Every table can be written: its tablets have leaders that make progress (O9).
//! - Every row is read at a snapshot that includes all that any client has seen (O6), twice (repeatable).
//! - Every tablet has its full number of replicas (O9), and at one timestamp all have the same checksum (O5), which is
//!   that of the rows that a scan returns.

use std::time::Duration;

use engine::error::Error;
use engine::ids::TabletId;
use engine::time::{Instant, Timestamp};
use nyala_client::location_cache::TabletLocation;
use nyala_client::{Client, FlushMode, SessionConfig, Table};
use nyala_common::env::Env;

use super::client_actor::answer_of;
use super::scans::spec;
use super::{Workload, nanos, row_encoding, tables, until};
use crate::history::{CallOutcome, ClientRequest, HybridStamp, RowOpKind, TableNo};
use crate::oracle::Violation;
use crate::oracle::bank::BANK;
use crate::oracle::lists::LISTS;
use crate::oracle::replica_checksums::{self, ReplicaChecksum};

/// The client number of this phase.
pub(super) const RECOVERY_CLIENT: u32 = 63;
/// Oracle of operations that did not succeed in time after the faults.
const LIVENESS: &str = "liveness";

impl Workload {
    /// Checks the cluster after the faults; violations go to [`Workload::report`].
    pub async fn check_recovery(&self, env: &Env) {
        let quiet = self.plan().quiet;
        let deadline = env.now().mono.after(quiet);
        let client = self.connect(env).await;
        client.observe_timestamp(self.newest());
        let mut numbers: Vec<TableNo> = (0..self.plan().cluster.tables).map(TableNo::from).collect();
        numbers.push(BANK);
        numbers.extend(self.plan().has_lists().then_some(LISTS));
        self.end_quiescing(env, deadline).await;
        if let Err(error) = self.restore_masters(env, deadline).await {
            let what = format!("{quiet:?} after the faults ended, the masters: {error}");
            self.report_violation(Violation::new(LIVENESS, what));
        }
        if let Err(error) = self.check_connections(env, deadline).await {
            let what = format!("{quiet:?} after the faults ended, connections: {error}");
            self.report_violation(Violation::new(LIVENESS, what));
        }
        for number in numbers {
            if let Err(error) = self.recover_table(env, &client, number, deadline).await {
                let what = format!("{quiet:?} after the faults ended, table {number}: {error}");
                self.report_violation(Violation::new(LIVENESS, what));
            }
        }
        self.recover_model_tables(env, quiet).await;
        if let Err(error) = self.recover_auto_increment(env, &client, deadline).await {
            let what = format!("{quiet:?} after the faults ended, auto-increment rows: {error}");
            self.report_violation(Violation::new(LIVENESS, what));
        }
        let deadline = env.now().mono.after(quiet);
        if let Err(error) = self.check_rebalance(env, &client, deadline).await {
            let what = format!("{quiet:?} for a rebalance after the faults: {error}");
            self.report_violation(Violation::new(LIVENESS, what));
        }
        let deadline = env.now().mono.after(quiet);
        if let Err(error) = self.check_quiescing(env, &client, deadline).await {
            self.report_violation(Violation::new(
                LIVENESS,
                format!("{quiet:?} after the faults ended: {error}"),
            ));
        }
        self.end_quiescing(env, deadline).await;
    }

    async fn recover_table(
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
            // A column may be in deletion: the table is opened again until nothing changes it any more.
            until(env, left(), async || {
                let table = client.open_table(&name).await?;
                self.write_everywhere(env, &table, number, left() / 4).await
            })
            .await?;
        }
        until(env, left(), async || {
            let at = self.final_reads(env, client);
            self.read_then(env, &table, number, None, at, false).await?;
            self.read_then(env, &table, number, None, at, false).await
        })
        .await?;
        until(env, left(), async || {
            let fresh = client.open_table(&name).await?;
            self.check_owned(&fresh, number, self.final_reads(env, client)).await
        })
        .await?;
        self.read_past(env, &table, number, left()).await?;
        self.compare_replicas(env, &table, number, deadline).await
    }

    /// Returns a snapshot that has all that any client has seen; recomputed for each attempt, as history GC may be
    /// close.
    pub(super) fn final_reads(&self, env: &Env, client: &Client) -> HybridStamp {
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
            // Extra rows, beyond those of the plan.
            let op = row_encoding::op(RowOpKind::Upsert, tables::KEYS_END - 1 - key, key, 4, false);
            let encoded = row_encoding::EncodedCells::new(&op);
            until(env, within, async || {
                let after = table.client().observed_timestamp().unwrap_or_default();
                let request = ClientRequest::Write { table: number, rows: vec![op.clone()] };
                let call = self.history().invoke(RECOVERY_CLIENT, nanos(env), after, request);
                let cells = encoded.cells_of(table.schema());
                let applied = session.apply(table, op.kind, &cells, 0).await;
                let outcome = match session.take_receipts().first() {
                    Some(receipt) => CallOutcome::Written(vec![answer_of(receipt)]),
                    None => CallOutcome::Unknown(applied.clone().err().into()),
                };
                self.history().answer(call, nanos(env), outcome);
                applied
            })
            .await?;
        }
        Ok(())
    }

    /// Waits until each tablet has all its replicas, and compares their checksums with each other and with its rows.
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
            // Bit rot is found only when it is read here. From then on the tablet needs time for another replica and
            // its locations are looked up again; tablets compared before are not compared again (a second each).
            let within = left().max(self.plan().quiet / 2);
            let mut known = Some(tablet.clone());
            let of_tablet = until(env, within, async || {
                let looked_up = match known.take() {
                    Some(tablet) => tablet,
                    None => self.look_up_again(env, table, &tablet.1.id).await?,
                };
                let sums = self.sums_of(env, &looked_up, number).await?;
                Ok((looked_up.0, sums))
            });
            let (looked_up, of_tablet) = of_tablet.await?;
            self.compare_with_rows(env, &looked_up, &of_tablet, within).await?;
            sums.extend(of_tablet);
        }
        replica_checksums::check(&sums).into_iter().for_each(|violation| self.report_violation(violation));
        Ok(())
    }

    /// Returns the tablets of a table, looked up by a client with an empty location cache.
    pub(super) async fn look_up(
        &self,
        env: &Env,
        table: &Table,
    ) -> Result<Vec<(Table, TabletLocation)>, Error> {
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
        found.ok_or_else(|| Error::not_ready(format!("tablet {tablet}: not among the locations")))
    }

    /// Returns the checksums of all replicas of a tablet at one timestamp.
    async fn sums_of(
        &self,
        env: &Env,
        (table, tablet): &(Table, TabletLocation),
        number: TableNo,
    ) -> Result<Vec<ReplicaChecksum>, Error> {
        // One timestamp per tablet, as history GC may be close. Followers learn from heartbeats that it is past.
        let at = self.final_reads(env, table.client());
        env.sleep(self.plan().cluster.raft_heartbeat * 2).await;
        let (have, want) = (tablet.replicas.len(), usize::from(self.plan().cluster.replicas));
        if have < want {
            return Err(Error::not_ready(format!("tablet {} has {have} of {want} replicas", tablet.id)));
        }
        self.state().live_tablets.extend(tablet.id.parse::<TabletId>());
        let mut sums = Vec::new();
        for replica in &tablet.replicas {
            let (checksum, rows) = self.checksum(env, table, &tablet.id, &replica.address, at).await?;
            let (tablet, server) = (tablet.id.clone(), replica.server_id.clone());
            sums.push(ReplicaChecksum { table: number, tablet, server, at, checksum, rows });
        }
        Ok(sums)
    }
}
