//! Telling the masters that this server lives, and what became of its tablets.
//!
//! ```text
//! one loop per master:  every interval, or when something changed:
//!     registration (until accepted) + tablets changed since this master's last acknowledgement ──▶ TSHeartbeat
//!     ◀── who it is, whether it leads, whether it wants a registration or a full report
//! ```
//!
//! Only the leader takes in reports, so only its reply counts as an acknowledgement, and only the master that led when
//! it answered last is sent any. A master that is elected says so in its next reply, and is sent what it lacks at once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::error::{Error, Result};

use super::consensus;
use super::entry::TabletEntry;
use super::host;
use super::reports::Pending;
use super::server::Server;
use crate::proto::kudu::master::{
    MasterFeatures, ReportedTabletPb, TabletReportPb, TsHeartbeatRequestPb, TsHeartbeatResponsePb,
    TsToMasterCommonPb,
};
use crate::proto::kudu::tablet::ReportedTabletStatsPb;
use crate::rpc::client::{CallOptions, Proxy};
use crate::wire::convert;
use crate::wire::status::status_from_error;

/// The name this server calls masters by.
const USER: &str = "nyala";

/// Speaks to one master, for as long as the server runs.
pub struct Heartbeater {
    server: Arc<Server>,
    master: Proxy,
    registered: bool,
    /// Whether the master leads, as it said last; a new one may.
    leads: bool,
    /// Up to where the leader knows this server's tablets; `None`: it wants a full report.
    acknowledged: Option<u64>,
    sequence_number: i32,
    /// Whether the last try worked; failures are logged once.
    well: bool,
}

impl Heartbeater {
    pub fn new(server: Arc<Server>, master: &str) -> Heartbeater {
        let master = Proxy::new(server.env.clone(), master, USER);
        Heartbeater {
            server,
            master,
            registered: false,
            leads: true,
            acknowledged: None,
            sequence_number: 0,
            well: true,
        }
    }

    pub async fn run(mut self) {
        loop {
            let interval = Duration::from_millis(self.server.config.heartbeat_interval_ms);
            let server = self.server.clone();
            match self.beat().await {
                Ok(true) => {}
                Ok(false) => drop(server.env.timeout(interval, self.news()).await),
                // News would make it call a master that is away again and again.
                Err(error) => {
                    self.failed(&error);
                    server.env.sleep(interval).await;
                }
            }
        }
    }

    fn failed(&mut self, error: &Error) {
        self.server.env.watch.mark("heartbeat: failed");
        if std::mem::replace(&mut self.well, false) {
            tracing::warn!(master = %self.master.target(), %error, "a heartbeat failed; trying on");
        }
    }

    /// Ready when there is something new to tell a master that takes in reports.
    async fn news(&self) {
        if !self.leads {
            std::future::pending::<()>().await;
        }
        let hint = self.server.tablets.hint().notified();
        let waiting = |pending: Pending| pending.updated.is_empty() && pending.removed.is_empty();
        // A change between the last report and now rang nobody.
        if self.acknowledged.is_none() || waiting(self.server.tablets.news_since(self.acknowledged)) {
            hint.await;
        }
    }

    /// One heartbeat; whether the next should follow at once.
    async fn beat(&mut self) -> Result<bool> {
        let server = self.server.clone();
        let pending = server.tablets.news_since(self.acknowledged);
        let (up_to, full) = (pending.up_to, !pending.incremental);
        let registering = !self.registered;
        let reporting = self.leads;
        let request = self.request(pending);
        let timeout = Duration::from_millis(server.config.heartbeat_timeout_ms);
        let deadline = server.env.now().mono.after(timeout);
        let features = if registering { vec![MasterFeatures::ReplicaManagement as u32] } else { Vec::new() };
        let options = CallOptions { features, request_id: None };
        let service = "kudu.master.MasterService";
        let response = self.master.call(service, "TSHeartbeat", &request, deadline, options).await;
        let response = response.map_err(|error| Error::not_ready(error.to_string()))?;
        let reply: TsHeartbeatResponsePb = response.message;
        if let Some(error) = &reply.error {
            let message = error.status.message.clone().unwrap_or_default();
            return Err(Error::not_ready(format!("the master refuses it: {message}")));
        }
        if !std::mem::replace(&mut self.well, true) || registering {
            tracing::info!(master = %self.master.target(), "a master hears this server");
        }
        let watch = &server.env.watch;
        watch.mark_if(registering, "heartbeat: the server registers");
        watch.mark_if(
            reply.needs_reregister() && !registering,
            "heartbeat: the master has forgotten the server",
        );
        watch.mark_if(reply.needs_full_tablet_report(), "heartbeat: the master wants a full report");
        watch.mark_if(self.leads && !reply.leader_master(), "heartbeat: the master leads no longer");
        watch.mark_if(reporting && full, "heartbeat: a full report");
        watch.mark_if(reporting && !full, "heartbeat: a report of what changed");
        self.registered = !reply.needs_reregister();
        self.leads = reply.leader_master();
        if self.leads && reporting {
            self.acknowledged = Some(up_to);
        }
        if reply.needs_full_tablet_report() {
            self.acknowledged = None;
        }
        let wants_report = self.leads && !reporting || reply.needs_full_tablet_report() && !full;
        Ok(reply.needs_reregister() && !registering || wants_report)
    }

    fn request(&mut self, pending: Pending) -> TsHeartbeatRequestPb {
        let server = &self.server;
        let status = &server.common.status;
        let entries = pending.updated.iter().filter_map(|id| server.tablets.get(*id));
        let report = || TabletReportPb {
            is_incremental: pending.incremental,
            updated_tablets: entries.map(|entry| reported(server, &entry)).collect(),
            removed_tablet_ids: pending.removed.iter().map(convert::id_bytes).collect(),
            sequence_number: self.sequence_number,
        };
        let tablet_report = self.leads.then(report);
        self.sequence_number = self.sequence_number.wrapping_add(1);
        let live = server.tablets.all().iter().filter(|entry| entry.tablet().is_some()).count();
        TsHeartbeatRequestPb {
            common: TsToMasterCommonPb { ts_instance: status.node_instance() },
            registration: (!self.registered).then(|| status.registration()),
            tablet_report,
            num_live_tablets: Some(live as i32),
            replica_management_info: (!self.registered).then(consensus::replica_management),
            ..Default::default()
        }
    }
}

/// A tablet as masters hear of it.
fn reported(server: &Server, entry: &TabletEntry) -> ReportedTabletPb {
    let stats = entry.tablet().map(|tablet| tablet.stats());
    ReportedTabletPb {
        tablet_id: Bytes::from(entry.id.to_string()),
        state: Some(entry.state_pb() as i32),
        tablet_data_state: Some(entry.data_state_pb() as i32),
        consensus_state: Some(host::state(server.uuid(), entry, true)),
        error: entry.failure().map(|error| status_from_error(&error)),
        schema_version: Some(entry.schema_version()),
        stats: stats.map(|stats| ReportedTabletStatsPb {
            on_disk_size: Some(stats.disk_bytes),
            live_row_count: Some(stats.live_rows),
        }),
    }
}

/// Looks every now and then whether a tablet's size or row count changed, so that masters hear of it.
pub async fn watch_stats(server: Arc<Server>) {
    let mut known = std::collections::BTreeMap::new();
    loop {
        server.env.sleep(Duration::from_millis(server.config.tablet_stats_interval_ms)).await;
        let mut seen = std::collections::BTreeMap::new();
        for entry in server.tablets.all() {
            let Some(tablet) = entry.tablet() else { continue };
            let stats = tablet.stats();
            seen.insert(entry.id, (stats.disk_bytes, stats.live_rows));
        }
        for (id, stats) in &seen {
            if known.get(id) != Some(stats) {
                server.tablets.mark_changed_quietly(*id);
            }
        }
        known = seen;
    }
}
