//! Heartbeats to the masters, with tablet reports.
//!
//! ```text
//! one loop per master:  every interval, or after a change:
//!     registration (until accepted) + tablets changed since this master's last acknowledgement ──▶ TSHeartbeat
//!     ◀── its identity, whether it leads, whether it wants a registration or a full report
//! ```
//!
//! Only the leader processes reports. So only its reply counts as an acknowledgement, and only the master that led at
//! its last reply is sent reports. A newly elected master says so in its next reply and is sent the missing tablets at
//! once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::format_level::FormatLevel;
use engine::ids::Uuid;
use engine::time::ClockReading;

use super::consensus_host;
use super::server::{TabletServer, USER};
use crate::hosting::consensus_service;
use crate::hosting::tablet_entry::TabletEntry;
use crate::hosting::tablet_reports::PendingReport;
use nyala_common::rpc::client::{CallOptions, Proxy};
use nyala_common::wire::errors::status_from_error;
use nyala_common::wire::schema;
use nyala_proto::kudu::master::{
    MasterFeatures, NyalaServerStatePb, ReportedTabletPb, TabletReportPb, TsHeartbeatRequestPb,
    TsHeartbeatResponsePb, TsToMasterCommonPb,
};
use nyala_proto::kudu::tablet::ReportedTabletStatsPb;

/// Heartbeat loop for one master. It runs as long as the server.
pub(super) struct Heartbeater {
    server: Arc<TabletServer>,
    master: Proxy,
    registered: bool,
    /// True if the master led at its last reply; a new master may lead.
    leads: bool,
    /// Report number up to which the leader knows this server's tablets; `None`: it wants a full report.
    acknowledged: Option<u64>,
    sequence_number: i32,
    /// This server's clock against the master's, by the last reply.
    offset: Option<MeasuredOffset>,
    /// True if the last attempt succeeded; only the first of several failures is logged.
    healthy: bool,
}

/// Difference of two clocks, from one request and its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MeasuredOffset {
    /// This clock minus the other one.
    micros: i64,
    error_micros: u64,
}

impl MeasuredOffset {
    /// Returns the offset from readings of this clock around a reading of the other one. `None` if this clock was set
    /// meanwhile.
    fn of(sent: ClockReading, other_micros: u64, received: ClockReading) -> Option<MeasuredOffset> {
        let round_trip = received.mono.since(sent.mono).as_micros() as u64;
        let wall = received.wall.micros.checked_sub(sent.wall.micros)?;
        let error_micros = round_trip / 2 + 1;
        let middle = sent.wall.micros + wall / 2;
        let micros = (middle as i64).saturating_sub(other_micros as i64);
        (wall.abs_diff(round_trip) <= SET_MICROS).then_some(MeasuredOffset { micros, error_micros })
    }
}

/// Difference between two clocks' round trips above which one of them was set.
const SET_MICROS: u64 = 100_000;

impl Heartbeater {
    pub(super) fn new(server: Arc<TabletServer>, master: &str) -> Heartbeater {
        let master = Proxy::new(server.env.clone(), master, server.identity.caller(USER));
        Heartbeater {
            server,
            master,
            registered: false,
            leads: true,
            acknowledged: None,
            sequence_number: 0,
            offset: None,
            healthy: true,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            let interval = Duration::from_millis(self.server.config.heartbeat_interval_ms);
            let server = self.server.clone();
            match self.send_heartbeat().await {
                Ok(true) => {}
                Ok(false) => drop(server.env.timeout(interval, self.wait_for_report()).await),
                // Waiting for a report instead would retry an unreachable master without pause.
                Err(error) => {
                    self.failed(&error);
                    server.env.sleep(interval).await;
                }
            }
        }
    }

    fn failed(&mut self, error: &Error) {
        self.server.env.observer.mark("heartbeat: failed");
        if std::mem::replace(&mut self.healthy, false) {
            tracing::warn!(master = %self.master.target(), %error, "heartbeat failed; retrying");
        }
    }

    /// Waits until there is a report for a master that processes reports.
    async fn wait_for_report(&self) {
        if !self.leads {
            std::future::pending::<()>().await;
        }
        let hint = self.server.tablets.hint().notified();
        let nothing_to_report =
            |pending: PendingReport| pending.updated.is_empty() && pending.removed.is_empty();
        // A change between the last report and now has notified no waiter.
        if self.acknowledged.is_none()
            || nothing_to_report(self.server.tablets.changes_since(self.acknowledged))
        {
            hint.await;
        }
    }

    /// Sends one heartbeat. Returns true if the next one should follow at once.
    async fn send_heartbeat(&mut self) -> Result<bool> {
        let server = self.server.clone();
        let pending = server.tablets.changes_since(self.acknowledged);
        let (up_to, full) = (pending.up_to, !pending.incremental);
        let registering = !self.registered;
        let reporting = self.leads;
        let request = self.request(pending);
        let timeout = Duration::from_millis(server.config.heartbeat_timeout_ms);
        let deadline = server.env.now().mono.after(timeout);
        let features = if registering { vec![MasterFeatures::ReplicaManagement as u32] } else { Vec::new() };
        let options = CallOptions { features, ..CallOptions::default() };
        let service = "kudu.master.MasterService";
        let sent = server.env.now();
        let response = self.master.call(service, "TSHeartbeat", &request, deadline, options).await;
        let response = response.map_err(|error| Error::not_ready(error.to_string()))?;
        let reply: TsHeartbeatResponsePb = response.message;
        let other = reply.nyala_wall_micros;
        self.offset = other.and_then(|other| MeasuredOffset::of(sent, other, server.env.now()));
        self.check_cluster(&reply).await?;
        self.check_level(&reply).await?;
        if let Some(error) = &reply.error {
            let message = error.status.message.clone().unwrap_or_default();
            self.registered = false;
            return Err(Error::not_ready(format!("the master rejected the heartbeat: {message}")));
        }
        self.take_credentials(&reply)?;
        server.held_history.take(&reply, server.clock.reading().wall.micros)?;
        if !std::mem::replace(&mut self.healthy, true) || registering {
            tracing::info!(master = %self.master.target(), "heartbeats to a master succeed");
        }
        let observer = &server.env.observer;
        observer.mark_if(registering, "heartbeat: registration");
        observer.mark_if(reply.needs_reregister() && !registering, "heartbeat: server unknown to the master");
        observer.mark_if(reply.needs_full_tablet_report(), "heartbeat: full report requested");
        observer.mark_if(self.leads && !reply.leader_master(), "heartbeat: master stepped down");
        observer.mark_if(reporting && full, "heartbeat: full report");
        observer.mark_if(reporting && !full, "heartbeat: incremental report");
        self.registered = !reply.needs_reregister();
        server.master_contacts.heard(&self.master.target().to_string(), &reply, server.env.now().mono);
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

    /// Takes certificates and token keys, which only the leading master sends.
    fn take_credentials(&self, reply: &TsHeartbeatResponsePb) -> Result<()> {
        let identity = &self.server.identity;
        reply.ca_cert_der.iter().try_for_each(|der| identity.trust(der.to_vec()))?;
        if let Some(certificate) = &reply.signed_cert_der {
            identity.certify(certificate.to_vec())?;
        }
        identity.import_keys(&reply.tsks, self.server.env.now().wall);
        Ok(())
    }

    /// Remembers the cluster at the first reply of its leader. An error for a master of another one: its orders must
    /// not be carried out.
    async fn check_cluster(&mut self, reply: &TsHeartbeatResponsePb) -> Result<()> {
        let Some(id) = &reply.nyala_cluster_id else { return Ok(()) };
        let (cluster, dirs) = (Uuid::parse(id.as_bytes())?, self.server.tablets.dirs());
        if dirs.cluster() == Some(cluster) {
            return Ok(());
        }
        let joined = self.server.env.run(|| dirs.join_cluster(cluster)).await;
        if joined.is_err() {
            self.registered = false;
        }
        joined
    }

    /// Takes the cluster's format level from the reply of its leader. An error if this program does not support it.
    async fn check_level(&mut self, reply: &TsHeartbeatResponsePb) -> Result<()> {
        let Some(level) = reply.nyala_format_level else { return Ok(()) };
        let level =
            u16::try_from(level).map_err(|_| Error::invalid(format!("{level} is no format level")))?;
        let (env, formats) = (&self.server.env, &self.server.common.status.formats);
        formats.take_level(env, self.server.tablets.dirs(), FormatLevel(level)).await
    }

    fn request(&mut self, pending: PendingReport) -> TsHeartbeatRequestPb {
        let server = &self.server;
        let status = &server.common.status;
        let entries = pending.updated.iter().filter_map(|id| server.tablets.get(*id));
        let report = || TabletReportPb {
            is_incremental: pending.incremental,
            updated_tablets: entries.map(|entry| reported(server, &entry)).collect(),
            removed_tablet_ids: pending.removed.iter().map(schema::id_bytes).collect(),
            sequence_number: self.sequence_number,
        };
        let tablet_report = self.leads.then(report);
        self.sequence_number = self.sequence_number.wrapping_add(1);
        let live = server.tablets.all().iter().filter(|entry| entry.tablet().is_some()).count();
        let secure = server.identity.settings().is_some();
        TsHeartbeatRequestPb {
            csr_der: server.identity.request().map(Bytes::from),
            latest_tsk_seq_num: secure.then(|| server.identity.keyring.latest()),
            common: TsToMasterCommonPb { ts_instance: status.node_instance() },
            registration: (!self.registered).then(|| status.registration()),
            tablet_report,
            num_live_tablets: Some(live as i32),
            replica_management_info: (!self.registered).then(consensus_service::replica_management),
            nyala_state: Some(self.state()),
            ..Default::default()
        }
    }
}

impl Heartbeater {
    fn state(&self) -> NyalaServerStatePb {
        let (server, offset) = (&self.server, self.offset);
        NyalaServerStatePb {
            cluster_id: server.tablets.dirs().cluster().map(|cluster| cluster.to_string()),
            short_of_space: Some(server.tablets.space().refuse_replicas().is_some()),
            wall_micros: Some(server.env.now().wall.micros),
            offset_micros: offset.map(|offset| offset.micros),
            offset_error_micros: offset.map(|offset| offset.error_micros),
        }
    }
}

/// Returns a tablet as it is reported to masters.
fn reported(server: &TabletServer, entry: &TabletEntry) -> ReportedTabletPb {
    ReportedTabletPb {
        tablet_id: Bytes::from(entry.id.to_string()),
        state: Some(entry.state_pb() as i32),
        tablet_data_state: Some(entry.data_state_pb() as i32),
        consensus_state: Some(consensus_host::state(server.uuid(), entry, true)),
        error: entry.failure().map(|error| status_from_error(&error)),
        schema_version: Some(entry.schema_version()),
        stats: server.tablets.sizes_to_report(entry).map(|sizes| ReportedTabletStatsPb {
            on_disk_size: Some(sizes.disk_bytes),
            live_row_count: Some(sizes.live_rows),
        }),
    }
}

/// Checks at intervals if a tablet's size or row count is not the reported one, and queues such tablets for the next
/// report.
pub(super) async fn watch_stats(server: Arc<TabletServer>) {
    loop {
        server.env.sleep(Duration::from_millis(server.config.tablet_stats_interval_ms)).await;
        server.tablets.all().iter().for_each(|entry| server.tablets.mark_if_resized(entry));
    }
}

#[cfg(test)]
mod tests {
    use engine::time::{Instant, WallTime};

    use super::*;

    #[test]
    fn an_offset_is_exact_to_half_a_round_trip() {
        let at = |mono_ms: u64, wall_ms: u64| ClockReading {
            mono: Instant(mono_ms * 1_000_000),
            wall: WallTime { micros: wall_ms * 1_000, error_micros: 0 },
        };
        let measured = MeasuredOffset::of(at(10, 5_000), 1_001_000, at(14, 5_004));
        assert_eq!(measured, Some(MeasuredOffset { micros: 4_001_000, error_micros: 2_001 }));
        assert_eq!(MeasuredOffset::of(at(10, 5_000), 1_001_000, at(14, 9_000)), None, "set forward");
        assert_eq!(MeasuredOffset::of(at(10, 5_000), 1_001_000, at(14, 4_000)), None, "set back");
    }
}
