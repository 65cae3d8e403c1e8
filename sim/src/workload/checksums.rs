//! Checksums of tablets, each in several calls, and their comparison with the rows that a scan returns: replicas may
//! agree on a wrong sum, and a tablet may have only one.

use std::time::Duration;

use bytes::Bytes;
use engine::error::Error;
use nyala_client::Table;
use nyala_common::env::Env;
use nyala_common::wire::schema;
use nyala_proto::kudu::tserver::{
    ChecksumRequestPb, ChecksumResponsePb, ContinueChecksumRequestPb, NewScanRequestPb,
};
use nyala_proto::kudu::{OrderMode, ReadMode as ReadModePb};

use super::admin::call;
use super::model_client::read_tablet;
use super::scans::LARGE_BATCH_BYTES;
use super::{Workload, until};
use crate::history::HybridStamp;
use crate::model_oracle::ReadOutcome;
use crate::model_oracle::answers::INVALID_SNAPSHOT;
use crate::oracle::replica_checksums::{self, ReplicaChecksum};
use crate::wire::checksum;
use crate::wire::client::TSERVER;
use crate::wire::rows::Slot;
use crate::wire::schema::slot;

/// Disk operations for opening a tablet of a plan's size that is not in memory.
const OPENING_OPS: u32 = 2_000;
/// Bytes of rows that end a call: those of a few, so that most checksums need another one.
const BATCH_BYTES: u32 = 400;

impl Workload {
    /// Returns the checksum of a replica's rows, and their number.
    pub(super) async fn checksum(
        &self,
        env: &Env,
        table: &Table,
        tablet: &str,
        address: &str,
        at: HybridStamp,
    ) -> Result<(u64, u64), Error> {
        let batch_size_bytes = Some(if self.is_far() { LARGE_BATCH_BYTES } else { BATCH_BYTES });
        let new_request = Some(new_request(table, tablet, at));
        let mut request =
            ChecksumRequestPb { new_request, call_seq_id: Some(0), batch_size_bytes, ..Default::default() };
        // The first call opens every file of the tablet before it has a row.
        let opening = self.plan().devices.op * OPENING_OPS;
        let within = table.client().config().operation_timeout + opening;
        let (mut seq, mut rows, mut scanner) = (0, 0, None);
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
            // Only the reply that opens the scanner names it.
            scanner = scanner.or_else(|| response.scanner_id.clone());
            let (scanner_id, previous_checksum) = (scanner.clone().unwrap_or_default(), response.checksum());
            let continue_request = Some(ContinueChecksumRequestPb { scanner_id, previous_checksum });
            let call_seq_id = Some(seq);
            request =
                ChecksumRequestPb { continue_request, call_seq_id, batch_size_bytes, ..Default::default() };
        }
    }

    /// Compares the sums of a tablet with the rows that a scan returns at their snapshot. `table`: as it was when they
    /// were read.
    pub(super) async fn compare_with_rows(
        &self,
        env: &Env,
        table: &Table,
        sums: &[ReplicaChecksum],
        within: Duration,
    ) -> Result<(), Error> {
        let Some(sum) = sums.first() else { return Ok(()) };
        let read = until(env, within, async || self.sum_of_rows(env, table, sum, within).await).await?;
        let wrong = read.and_then(|expected| replica_checksums::check_rows(sum, expected));
        wrong.into_iter().for_each(|violation| self.report_violation(violation));
        Ok(())
    }

    /// Returns the checksum of the rows that a scan returns at the snapshot of `sum`, and their number; `None` if the
    /// snapshot is out of the history by now, or an alteration whose reply was lost has ended meanwhile.
    async fn sum_of_rows(
        &self,
        env: &Env,
        table: &Table,
        sum: &ReplicaChecksum,
        within: Duration,
    ) -> Result<Option<(u64, u64)>, Error> {
        let deadline = env.now().mono.after(within);
        let (id, _, shape, places) = read_tablet::find(self, env, table.name(), deadline).await?;
        let summed = table.schema().columns().iter().map(|column| &column.name);
        if !summed.eq(shape.columns.iter().map(|column| &column.name)) {
            return Ok(None);
        }
        let place = places.iter().find(|place| place.id == sum.tablet);
        let place = place.ok_or_else(|| Error::not_ready(format!("tablet {}: no locations", sum.tablet)))?;
        match read_tablet::read(self, env, (&id, &shape), place, sum.at, deadline).await {
            ReadOutcome::Rows { rows, count, .. } => {
                let columns: Vec<Slot> = shape.columns.iter().map(slot).collect();
                let values: Vec<_> = rows.into_iter().map(|row| row.values).collect();
                Ok(Some((checksum::sum(&columns, &values), count)))
            }
            // The checksums of all replicas were read since the snapshot was chosen.
            ReadOutcome::Refused { code: INVALID_SNAPSHOT, .. } if !self.plan().data.history.is_zero() => {
                Ok(None)
            }
            failed => Err(Error::not_ready(format!("tablet {}: {failed:?}", sum.tablet))),
        }
    }
}

fn new_request(table: &Table, tablet: &str, at: HybridStamp) -> NewScanRequestPb {
    // All columns, those that were added later too.
    let columns = table.schema();
    let pb = |(i, column)| {
        let mut pb = schema::column_to_pb(column, i < columns.num_key_columns());
        pb.id = None;
        pb
    };
    NewScanRequestPb {
        tablet_id: Bytes::copy_from_slice(tablet.as_bytes()),
        projected_columns: columns.columns().iter().enumerate().map(pb).collect(),
        read_mode: Some(ReadModePb::ReadAtSnapshot as i32),
        snap_timestamp: Some(at),
        order_mode: Some(OrderMode::Unordered as i32),
        ..Default::default()
    }
}
