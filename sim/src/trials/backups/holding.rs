//! Backups of a trial that take longer than servers keep history: their hold must keep it, though rows change, the
//! master forgets the hold in an outage, and renewals fail meanwhile.
//!
//! ```text
//! snapshot ─ 1 s ─ hold ├── writes, outage of the master ── more than the history ──┤ scans at the snapshot ─ release
//! ```

use std::time::Duration;

use engine::error::Result;
use nyala_backup::hold::HistoryHold;
use nyala_client::Table;
use sim_plan::spec::DeviceSpec;
use sim_plan::{Host, Plan, RandomStream};

use super::keeper::{Keeper, TABLE};

/// Percentage of trials with little history, of those with a near network.
const SHORT_PERCENT: u64 = 50;
/// History in such a trial: longer than the time from a snapshot until servers know of its hold.
const HISTORY: Duration = Duration::from_secs(2);
/// Interval of the tablet server's heartbeats. A hold lasts for two of them: longer than a client that soon gives up
/// needs to find a master that has restarted.
const HEARTBEAT: Duration = Duration::from_millis(900);
/// Longest way of a segment in such a trial.
const WAY_MAX: Duration = Duration::from_millis(10);
/// Fast devices: backups without a hold must be done before the history of their snapshot is dropped.
const DEVICES: DeviceSpec = DeviceSpec {
    op: Duration::from_micros(10),
    kib: Duration::from_nanos(300),
    sync: Duration::from_micros(60),
};
/// Percentage of backups that are slow, and of these that meet an outage of the master.
const SLOW_PERCENT: u64 = 40;
const OUTAGE_PERCENT: u64 = 50;
/// Shortest and longest outage: some are longer than the patience of the client that holds.
const OUTAGE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// Shortest and longest time from the hold to the scans, besides an outage: servers know the hold, have had
/// another list of holds, and have dropped what no hold keeps.
const SLOW: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(7));

/// Gives some plans little history; true for those.
pub(super) fn shorten_history(plan: &mut Plan) -> bool {
    let is_near = plan.network.latency + plan.network.jitter <= WAY_MAX;
    let is_short = RandomStream::new(plan.seed, "short history").percent(SHORT_PERCENT) && is_near;
    if is_short {
        (plan.data.history, plan.devices) = (HISTORY, DEVICES);
        // A segment that is sent again may come too late for a renewal.
        (plan.cluster.heartbeat, plan.network.loss_per_mille) = (HEARTBEAT, 0);
    }
    is_short
}

impl Keeper {
    /// Holds what some backups are to read, and lets more time pass than history is kept.
    pub(super) async fn outlive_history(&mut self, wanted: &[(Table, u64)]) -> Result<Option<HistoryHold>> {
        let Some(random) = self.slowness.as_mut().filter(|_| !wanted.is_empty()) else { return Ok(None) };
        if !random.percent(SLOW_PERCENT) {
            return Ok(None);
        }
        let (meets_outage, span) = (random.percent(OUTAGE_PERCENT), random.span(OUTAGE.0, OUTAGE.1));
        let slow = random.span(SLOW.0, SLOW.1);
        // A renewal of a client that soon gives up may fail.
        let table = self.hasty.open_table(TABLE).await?;
        let wanted = wanted.iter().map(|(_, at)| (table.clone(), *at)).collect();
        let (hold, errors) = HistoryHold::acquire(&self.env, wanted).await;
        if let Some(error) = errors.into_iter().next() {
            return Err(error);
        }
        self.write().await?;
        if meets_outage {
            // Servers learn of the hold before the master forgets it.
            self.env.sleep(HEARTBEAT * 2).await;
            self.note(format!("the master is down for {span:?}"));
            self.outage.order(&self.env, Host::Master(0), span).await;
            self.outage.wait_until_over(&self.env).await;
        }
        self.env.sleep(slow).await;
        self.write().await?;
        self.note("history is outlived");
        Ok(Some(hold))
    }
}
