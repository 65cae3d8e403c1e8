//! The call HoldHistory, the list of holds in heartbeat replies, and their page.

use std::time::Duration;

use engine::catalog::Catalog;
use engine::error::Error;
use engine::time::{ClockReading, Timestamp};

use super::authz::TableQuestion;
use super::history_holds::{HistoryHold, HoldLimits};
use super::service::{MasterErrorReply, MasterService, master_error};
use crate::server::pages::page::{PageBlock, PageCell, PageTable, Severity, WebPage, fact};
use nyala_common::rpc::Call;
use nyala_proto::kudu::master::master_error_pb::Code;
use nyala_proto::kudu::master::{HoldHistoryRequestPb, HoldHistoryResponsePb, NyalaHistoryHoldsPb};

/// Maximum length of a holder's name in bytes. Each hold stores it, and the name of its user.
const HOLDER_BYTES_MAX: usize = 128;
/// Maximum length in bytes of the name of a user who holds history.
const USER_BYTES_MAX: usize = 256;

impl MasterService {
    /// Holds the history of a table, or releases it, for a caller who may read the table.
    pub(super) async fn hold_history(
        &self,
        call: &Call,
        request: HoldHistoryRequestPb,
    ) -> Result<HoldHistoryResponsePb, MasterErrorReply> {
        check_length("the holder", &request.holder, HOLDER_BYTES_MAX)?;
        check_length("the user", &call.user, USER_BYTES_MAX)?;
        let table = self.table(call, &request.table, TableQuestion::Statistics).await?;
        let table = self.read(move |catalog, _| catalog.table(&table).map(|found| found.id)).await?;
        // Another user's hold has another name.
        let holder = format!("{}: {}", call.user, request.holder);
        if request.release() {
            self.history_holds.release(table, &holder);
            return Ok(HoldHistoryResponsePb::default());
        }
        let held = self.history_holds.hold(self.env.now(), table, &holder, Timestamp(request.timestamp));
        held.map_err(|error| master_error(Code::UnknownError, &error))?;
        let lease_ms = self.history_holds.limits().lease.as_millis();
        Ok(HoldHistoryResponsePb { error: None, lease_ms: u32::try_from(lease_ms).ok() })
    }

    /// Returns the list of holds for a tablet server.
    pub(super) fn held_history(&self) -> Option<NyalaHistoryHoldsPb> {
        let leads = self.opened.get().is_some_and(|replica| replica.status().is_quorum_active);
        self.history_holds.list(self.env.now(), leads)
    }
}

fn check_length(whose: &str, name: &str, bytes_max: usize) -> Result<(), MasterErrorReply> {
    let bytes = name.len();
    if bytes <= bytes_max {
        return Ok(());
    }
    let message =
        format!("a hold on history: the name of {whose} is too long ({bytes} bytes, limit {bytes_max})");
    Err(master_error(Code::UnknownError, &Error::invalid(message)))
}

/// Returns the page of all holds.
pub(super) fn page(
    catalog: &Catalog,
    now: ClockReading,
    holds: &[HistoryHold],
    limits: HoldLimits,
) -> WebPage {
    let columns = [
        ("table", "Table"),
        ("table_id", "Table id"),
        ("holder", "Holder"),
        ("snapshot", "Oldest snapshot"),
        ("expires", "Ends, unless renewed, in"),
    ];
    let mut rows = PageTable::new(&columns);
    for hold in holds {
        let name = catalog.tables().find(|table| table.id == hold.table);
        rows.row(vec![
            name.map(|table| table.record.name.clone()).into(),
            hold.table.to_string().into(),
            hold.holder.clone().into(),
            PageCell::WallTime(hold.timestamp.micros()),
            Duration::from_nanos(hold.expires.0.saturating_sub(now.mono.0)).into(),
        ]);
    }
    let verdict = match holds.len() {
        0 => "tablet servers drop history by its age alone".to_owned(),
        held => format!("{held} readers hold history of tables"),
    };
    let facts = vec![
        fact("lease", "a hold ends after", limits.lease),
        fact("max_age", "oldest snapshot that can be held", limits.max_age),
    ];
    WebPage::new("History holds")
        .verdict(Severity::Neutral, verdict)
        .with(PageBlock::facts("limits", "Limits", facts))
        .with(PageBlock::table("holds", "Holds", rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_of_a_holder_is_refused() {
        assert_eq!(check_length("the holder", "backup 0123456789abcdef", HOLDER_BYTES_MAX), Ok(()));
        assert_eq!(check_length("the holder", &"x".repeat(128), HOLDER_BYTES_MAX), Ok(()));
        let refused = check_length("the holder", &"x".repeat(129), HOLDER_BYTES_MAX).expect_err("too long");
        assert_eq!(
            refused.status.message(),
            "a hold on history: the name of the holder is too long (129 bytes, limit 128)"
        );
    }
}
