//! Tasks of the client: each writes ([`super::sessions`]) and scans, one operation after the other; one changes
//! ranges as well.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use engine::schema::partition_range::PartitionRange;
use engine::sync::Mutex;
use nyala_client::predicate::{Comparison, SimplifiedPredicate};
use nyala_client::tables::AlterStep;
use nyala_client::{Client, ReadMode, ScanSpec, Table};
use nyala_common::env::Env;
use sim_plan::RandomStream;

use super::cluster::Cluster;
use super::limits::{END, FIRST_BATCH, WORKERS};
use super::reading;
use super::tablets::{KEYS, OPEN};
use super::verdicts::{ScanReport, ScanRequest};
use crate::wire::keys;

/// Longest pause between two operations.
const PAUSE_US: u64 = 400_000;

pub(super) struct Worker {
    pub number: u64,
    pub env: Env,
    pub client: Client,
    pub table: Table,
    pub cluster: Arc<Mutex<Cluster>>,
    pub random: RandomStream,
    /// Keys of writes without a result, which may still take effect.
    pub doubted: BTreeSet<i64>,
    /// Snapshots of earlier scans.
    pub snapshots: Vec<u64>,
    /// Number of rows written so far.
    pub written: i64,
}

impl Worker {
    /// Runs operations until the end of the trial, then reads all rows once more.
    pub(super) async fn run(mut self) {
        while self.now() < END.as_nanos() as u64 + crate::world::BOOTED.as_nanos() as u64 {
            let pause = self.random.below(PAUSE_US);
            self.env.sleep(Duration::from_micros(pause)).await;
            match self.random.weighted(&[("write", 45), ("drop rows", 4), ("scan", 41), ("change", 10)]) {
                "write" => self.write().await,
                "drop rows" => self.drop_rows().await,
                "change" if self.number == 0 => self.change().await,
                _ => self.scan().await,
            }
        }
    }

    pub(super) fn now(&self) -> u64 {
        self.env.now().mono.0
    }

    pub(super) fn begin(&self) -> usize {
        let observed = self.client.observed_timestamp().unwrap_or_default();
        self.cluster.lock().begin_op(self.now(), observed)
    }

    async fn change(&mut self) {
        let op = self.begin();
        let change = {
            let mut cluster = self.cluster.lock();
            let Cluster { random, tablets, .. } = &mut *cluster;
            let change = tablets.draw_change(random);
            cluster.ops[op].change = change;
            change.map(|change| (change, cluster.tablets.all[change.drop].partition_keys()))
        };
        let Some((change, (lower, upper))) = change else {
            return self.cluster.lock().end_op(op, self.now());
        };
        let mut steps = vec![AlterStep::DropRange(PartitionRange { lower, upper })];
        let added = change.add.map(|(lower, upper)| {
            let bound = |key, open| if key == open { Vec::new() } else { keys::int64_key(key) };
            PartitionRange { lower: bound(lower, OPEN.0), upper: bound(upper, OPEN.1) }
        });
        steps.extend(added.map(AlterStep::AddRange));
        let changed = self.client.alter_table(&self.table, &steps, None).await.map(|_| ());
        self.cluster.lock().conclude_change(op, &changed, self.now());
    }

    /// Draws a scan, as the client is told to make it and as the double knows it.
    fn draw_scan(&mut self, op: usize) -> (ScanSpec, ScanRequest) {
        let random = &mut self.random;
        let mut spec = ScanSpec { batch_bytes: FIRST_BATCH + op as u32, ..ScanSpec::default() };
        spec.fault_tolerant = random.percent(50);
        spec.any_replica = random.percent(30);
        spec.read_mode = match random.below(4) {
            0 => ReadMode::Latest,
            1 => ReadMode::YourWrites,
            2 if !self.snapshots.is_empty() => ReadMode::AtSnapshot(Some(random.pick(&self.snapshots))),
            _ => ReadMode::AtSnapshot(None),
        };
        let is_snapshot = spec.fault_tolerant || spec.read_mode != ReadMode::Latest;
        let (one, other) = (random.below(KEYS as u64) as i64, random.below(KEYS as u64) as i64);
        let bounds = if random.percent(50) { (one.min(other), one.max(other) + 1) } else { OPEN };
        let least = random.percent(40).then(|| random.below(self.written as u64 + 1) as i64 * WORKERS as i64);
        let limit = random.percent(20).then(|| random.between(1, 60));
        let counts_only = random.percent(10);
        self.bound(&mut spec, bounds, least);
        spec.limit = limit;
        spec.columns = counts_only.then(Vec::new);
        let request = ScanRequest {
            op,
            lower: bounds.0,
            upper: bounds.1,
            least,
            limit,
            is_snapshot,
            is_fault_tolerant: spec.fault_tolerant,
            counts_only,
        };
        (spec, request)
    }

    /// Sets the conditions of a scan: bounds of keys as such or as predicates.
    fn bound(&mut self, spec: &mut ScanSpec, (lower, upper): (i64, i64), least: Option<i64>) {
        let mut add = |column, comparison, value: i64| {
            let predicate = self.table.compare(column, comparison, &value.to_string());
            if let Ok(SimplifiedPredicate::Predicate(predicate)) = predicate {
                spec.predicates.push(predicate);
            }
        };
        least.into_iter().for_each(|least| add("v", Comparison::GreaterEqual, least));
        if (lower, upper) == OPEN {
            return;
        }
        if self.random.percent(50) {
            add("k", Comparison::GreaterEqual, lower);
            add("k", Comparison::Less, upper);
        } else {
            let (lower, upper) = (keys::int64_key(lower), keys::int64_key(upper));
            spec.keys = PartitionRange { lower, upper };
        }
    }

    async fn scan(&mut self) {
        let op = self.begin();
        let (spec, request) = self.draw_scan(op);
        let mut report = ScanReport::default();
        match self.table.scan(spec) {
            Ok(mut scanner) => {
                let patience = if self.random.percent(10) { self.random.below(4) } else { u64::MAX };
                reading::read(&self.env, &mut self.random, &mut scanner, &mut report, patience).await;
                report.snapshot = scanner.snapshot();
                self.snapshots.extend(report.snapshot);
            }
            Err(error) => report.end = Some(Err(error)),
        }
        self.cluster.lock().conclude_scan(&request, &report, self.now());
    }
}
