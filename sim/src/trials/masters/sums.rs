//! Sums of tables: masters add up the bytes and rows that the leaders of a table's tablets report.
//!
//! They are compared once all tables are whole. Until the newest leaders' reports have come, others may be counted.

use std::collections::BTreeMap;

use engine::ids::Uuid;
use nyala_proto::kudu::master::{
    GetTableStatisticsRequestPb, GetTableStatisticsResponsePb, ListTablesRequestPb, ListTablesResponsePb,
};

use super::ddl::text;
use super::script::{Answer, Script, by_id};
use super::settings::TRUSTED;
use super::state::State;

/// Bytes and rows of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct TableSum {
    bytes: u64,
    rows: u64,
}

impl Script {
    /// Compares what masters count with what the leaders of these tables' tablets report; returns what does not agree
    /// yet.
    pub(super) async fn compare_sums(&mut self, tables: &BTreeMap<String, Vec<Uuid>>) -> Result<(), String> {
        for (id, tablets) in tables {
            let request = GetTableStatisticsRequestPb { table: by_id(id) };
            let answer: Answer<GetTableStatisticsResponsePb> =
                self.ask(TRUSTED, "GetTableStatistics", &request).await;
            let wanted = sum(&self.state.lock(), tablets);
            check_statistics(wanted, answer).map_err(|what| format!("statistics of table {id}: {what}"))?;
        }
        let request = ListTablesRequestPb::default();
        let answer: Answer<ListTablesResponsePb> = self.ask(TRUSTED, "ListTables", &request).await;
        let Answer::Done { reply, .. } = answer else { return Err("the tables are not listed".to_string()) };
        let state = self.state.lock();
        for table in &reply.tables {
            let Some(tablets) = tables.get(&text(&table.id)) else { continue };
            let wanted = sum(&state, tablets);
            if table.live_row_count != Some(wanted.rows) {
                return Err(format!("{table:?} is listed, though its rows are {wanted:?}"));
            }
        }
        Ok(())
    }
}

fn sum(state: &State, tablets: &[Uuid]) -> TableSum {
    let reported = tablets.iter().filter_map(|id| Some(state.groups.get(id)?.statistics(id)));
    reported.fold(TableSum::default(), |sum, of| TableSum {
        bytes: sum.bytes + of.on_disk_size(),
        rows: sum.rows + of.live_row_count(),
    })
}

fn check_statistics(wanted: TableSum, answer: Answer<GetTableStatisticsResponsePb>) -> Result<(), String> {
    let reply = match answer {
        Answer::Done { reply, .. } => reply,
        other => return Err(format!("there is no reply: {other:?}")),
    };
    let (bytes, rows) = (Some(wanted.bytes as i64), Some(wanted.rows as i64));
    let limits = reply.disk_size_limit.is_some() || reply.row_count_limit.is_some();
    match (reply.on_disk_size, reply.live_row_count, limits) == (bytes, rows, false) {
        true => Ok(()),
        false => Err(format!("{reply:?}, not {wanted:?} without limits")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_rows_and_limits_are_rejected() {
        let wanted = TableSum { bytes: 90, rows: 10 };
        let check = |bytes, rows, row_count_limit| {
            let reply = GetTableStatisticsResponsePb {
                on_disk_size: Some(bytes),
                live_row_count: rows,
                row_count_limit,
                ..GetTableStatisticsResponsePb::default()
            };
            check_statistics(wanted, Answer::Done { master: 0, reply }).is_ok()
        };
        assert!(check(90, Some(10), None));
        assert!(!check(91, Some(10), None) && !check(90, Some(11), None) && !check(90, None, None));
        assert!(!check(90, Some(10), Some(5)));
        assert!(check_statistics(wanted, Answer::NotNow).is_err());
    }
}
