//! Holds on the history of tables, for readers of old snapshots.

use std::time::Duration;

use engine::error::{Error, Result};

use super::Table;
use nyala_proto::kudu::master::{HoldHistoryRequestPb, HoldHistoryResponsePb, TableIdentifierPb};

impl Table {
    /// Asks the masters to keep the table's history from `timestamp` on. Returns the time after which the hold ends
    /// unless it is asked for again. `holder` names the reader, in at most 128 bytes; its last request on the table
    /// counts.
    ///
    /// Kudu's masters do not know the call: then the error's kind is `Invalid`.
    pub async fn hold_history(&self, holder: &str, timestamp: u64) -> Result<Duration> {
        let reply = self.call_hold(holder, timestamp, false).await?;
        let lease_ms = reply.lease_ms.ok_or_else(|| Error::invalid("the master's response lacks a lease"))?;
        Ok(Duration::from_millis(lease_ms.into()))
    }

    /// Ends a hold.
    pub async fn release_history(&self, holder: &str) -> Result<()> {
        self.call_hold(holder, 0, true).await.map(|_| ())
    }

    async fn call_hold(&self, holder: &str, timestamp: u64, release: bool) -> Result<HoldHistoryResponsePb> {
        let request = HoldHistoryRequestPb {
            table: TableIdentifierPb { table_id: Some(self.id_bytes()), ..Default::default() },
            holder: holder.to_string(),
            timestamp,
            release: release.then_some(true),
        };
        let deadline = self.client.deadline();
        self.client.shared.masters.call("HoldHistory", &request, deadline, &[]).await
    }
}
