//! Requests that are sent again after their reply: the server must still have it, also after a restart.

use nyala_proto::kudu::tserver::WriteResponsePb;

use super::{HostedTrial, SERVER};

/// Most writes of other clients between a request and its repetition: fewer than there are clients, of which
/// each declares its older requests complete.
const OTHERS: u64 = 2;

impl HostedTrial {
    /// Writes rows, lets the server restart or not, and sends the same request again.
    pub(super) fn write_again(&mut self) {
        let (rows, id) = (self.draw_rows(), self.next_request());
        let request = self.write_request(&rows);
        let Some(first) = self.write_rows(&rows, &id) else { return };
        let what = self.random.pick(&["nothing", "kill", "kill", "power cut"]);
        match what {
            "kill" => self.fleet.kill(SERVER),
            "power cut" => self.fleet.cut_power(SERVER),
            _ => {}
        }
        self.fleet.restart(SERVER);
        for _ in 0..self.random.below(OTHERS + 1) {
            self.write();
        }
        if self.random.percent(20) {
            self.alter();
        }
        let Some(again) = self.write_until_answered(&request, &id) else { return };
        self.fleet.note(format!("the same request after {what}"));
        if !is_same(&first, &again) {
            let what = format!("a request that is sent again after {what} has another reply");
            self.fleet.report(format!("{what}: {first:?}, then {again:?}"));
        }
    }
}

/// Returns true if two replies are those of one execution. The counts of rows are in the log, too.
fn is_same(first: &WriteResponsePb, again: &WriteResponsePb) -> bool {
    (first.timestamp, &first.per_row_errors, first.resource_metrics, &again.error)
        == (again.timestamp, &again.per_row_errors, again.resource_metrics, &None)
}

#[cfg(test)]
mod tests {
    use nyala_proto::kudu::tserver::ResourceMetricsPb;

    use super::*;

    #[test]
    fn a_reply_of_another_execution_is_another_one() {
        let reply = |at, inserts| WriteResponsePb {
            timestamp: Some(at),
            resource_metrics: Some(ResourceMetricsPb { successful_inserts: inserts, ..Default::default() }),
            ..Default::default()
        };
        assert!(is_same(&reply(7, Some(2)), &reply(7, Some(2))));
        assert!(!is_same(&reply(7, Some(2)), &reply(8, Some(2))));
        assert!(!is_same(&reply(7, Some(2)), &reply(7, None)), "the counts are lost");
    }
}
