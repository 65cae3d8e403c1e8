//! Sizes of the tablet once writes have settled: gauges, what masters and tools are sent, files, and the model's rows.

use std::time::Duration;

use nyala_common::metrics::table;

use super::tablet_metrics::MetricValues;
use super::{HostedTrial, SERVER};
use crate::history::HybridStamp;
use crate::oracle::disk_sizes::{self, ReplicaSizes};
use crate::server_files::replica_sizes;
use crate::trials::fleet::host;

/// Looks at sizes that differ, and the time before each but the first: a file may be on its way.
const LOOKS: u32 = 3;
const LOOK: Duration = Duration::from_millis(470);

impl HostedTrial {
    /// Reports sizes that differ from the files or from the model at each of several looks.
    pub(super) fn check_sizes(&mut self) {
        let mut found = self.wrong_size();
        for _ in 1..LOOKS {
            if found.is_none() {
                return;
            }
            self.fleet.pass(LOOK);
            found = self.wrong_size();
        }
        found.into_iter().for_each(|what| self.fleet.report(format!("nothing is written, and {what}")));
    }

    /// Returns a size that is wrong now; none if the replica does not run.
    fn wrong_size(&mut self) -> Option<String> {
        let metrics = self.tablet_metrics()?;
        let server = self.fleet.running(SERVER)?;
        let plan = &self.fleet.plan;
        let sizes = replica_sizes(&mut self.fleet.world, plan, (host(SERVER), &*server)).pop()?;
        let live = self.rows.live(HybridStamp::MAX).len() as u64;
        let wrong = wrong_gauge(&metrics.values, &sizes, live);
        wrong.or_else(|| Some(disk_sizes::check(&[sizes]).pop()?.message))
    }
}

/// Returns what is wrong with the gauges of sizes; `live`: the number of rows.
fn wrong_gauge(values: &MetricValues, sizes: &ReplicaSizes, live: u64) -> Option<String> {
    let wanted = [
        (table::LIVE_ROW_COUNT.name, live),
        (table::ON_DISK_SIZE.name, sizes.told),
        (table::ON_DISK_DATA_SIZE.name, sizes.rowsets),
    ];
    wanted.into_iter().find_map(|(name, wanted)| {
        let found = values.get(name);
        let is_right = found.is_some_and(|value| u64::try_from(*value) == Ok(wanted));
        (!is_right).then(|| format!("the gauge {name} is {found:?} instead of {wanted}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_of_other_sizes_are_reported() {
        let sizes = ReplicaSizes { told: 90, rowsets: 40, ..ReplicaSizes::default() };
        let right = [("live_row_count", 3), ("on_disk_size", 90), ("on_disk_data_size", 40)];
        let found = |values: &[(&'static str, i64)]| {
            wrong_gauge(&MetricValues::from_iter(values.iter().copied()), &sizes, 3).is_some()
        };
        assert!(!found(&right));
        assert!(found(&right[..2]), "a gauge is missing");
        for at in 0..right.len() {
            let mut wrong = right;
            wrong[at].1 += 1;
            assert!(found(&wrong), "{wrong:?}");
        }
    }
}
