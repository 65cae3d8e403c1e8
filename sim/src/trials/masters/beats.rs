//! Heartbeats of a made-up tablet server to one master, as Kudu's servers send them.
//!
//! A master that has accepted a server must not forget it, and is sent reports while it leads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::ids::Uuid;
use engine::sync::Mutex;
use engine::time::Instant;
use node::server::security::ServerIdentity;
use nyala_common::env::Env;
use nyala_common::rpc::client::{CallOptions, Proxy};
use nyala_common::security::token::seconds;
use nyala_common::wire::schema::id_bytes;
use nyala_proto::kudu::NodeInstancePb;
use nyala_proto::kudu::master::master_error_pb::Code;
use nyala_proto::kudu::master::{
    ReportedTabletPb, TabletReportPb, TsHeartbeatRequestPb, TsHeartbeatResponsePb, TsToMasterCommonPb,
};
use nyala_proto::kudu::tablet::{TabletDataState, TabletStatePb};

use super::keys;
use super::known_master::Contact;
use super::server::registration;
use super::settings::{CALL, SETTLED, master_address};
use super::state::State;
use crate::security::SERVICE;
use crate::wire::client::MASTER;

/// Interval at which a server looks for changes to report.
const LOOK: Duration = Duration::from_millis(100);
/// Replies of a leader that lack a key, one after another, which no change of leadership explains.
const SHORT_MAX: u32 = 3;
/// Keys in one reply that the story has: the server has just started.
const MANY_KEYS: usize = 3;

pub(super) struct Beats {
    env: Env,
    state: Arc<Mutex<State>>,
    server: usize,
    life: i64,
    id: Uuid,
    master: usize,
    proxy: Proxy,
    identity: Arc<ServerIdentity>,
    /// True if the master knows this life of the server, and true if it may lead.
    registered: bool,
    leads: bool,
    /// Last change that a leading master has acknowledged.
    acknowledged: Option<u64>,
    sequence: i32,
    /// Replies in a row that lacked a token key.
    short: u32,
}

/// A heartbeat that was sent.
struct SentBeat {
    at: Instant,
    /// Life of the master at that time.
    to_life: u64,
    registering: bool,
    /// Last change in its report, if it has one, and tablets that this server led then.
    report: Option<u64>,
    led: Vec<Uuid>,
    /// Newest token key that the server has, unless it asks for none, and one that a leader must have.
    known_key: Option<i64>,
    wanted_key: Option<i64>,
    /// Second of its sending, by the clock of all.
    second: i64,
}

impl Beats {
    pub(super) fn new(
        env: Env,
        state: Arc<Mutex<State>>,
        (server, life): (usize, i64),
        number: usize,
        identity: Arc<ServerIdentity>,
    ) -> Beats {
        let proxy = Proxy::new(env.clone(), master_address(number), identity.caller(SERVICE));
        let id = state.lock().servers[server].id();
        Beats {
            env,
            state,
            server,
            life,
            id,
            master: number,
            proxy,
            identity,
            registered: false,
            leads: true,
            acknowledged: None,
            sequence: 0,
            short: 0,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            self.beat().await;
            self.wait().await;
        }
    }

    /// Waits for the next heartbeat, or for a change to report to the leading master.
    async fn wait(&self) {
        let began = self.env.now().mono;
        loop {
            self.env.sleep(LOOK).await;
            let state = self.state.lock();
            let (server, now) = (&state.servers[self.server], self.env.now().mono);
            let has_news = self.leads && self.acknowledged.is_none_or(|known| known < server.last_change);
            if now >= server.late_until && (has_news || now.since(began) >= server.interval) {
                return;
            }
        }
    }

    async fn beat(&mut self) {
        let (request, sent) = self.prepare();
        let deadline = sent.at.after(CALL);
        let options = CallOptions::default();
        let reply = self.proxy.call(MASTER, "TSHeartbeat", &request, deadline, options).await;
        match reply {
            Ok(reply) => self.take(&sent, &reply.message),
            Err(error) => {
                self.leads = true;
                let what =
                    format!("a heartbeat of server {} to master {}: {error}", self.server, self.master);
                self.state.lock().note(what);
            }
        }
    }

    fn prepare(&mut self) -> (TsHeartbeatRequestPb, SentBeat) {
        let mut state = self.state.lock();
        let (now, to_life) = (self.env.now(), state.masters[self.master].life);
        let at = now.mono;
        let contacts = &mut state.masters[self.master].contacts;
        contacts.entry(self.id).or_insert(Contact { sent: at, accepted: None }).sent = at;
        let server = &state.servers[self.server];
        let registering = !self.registered;
        let report = self.leads.then(|| self.report(&state));
        self.sequence += 1;
        let led =
            |tablet: &&Uuid| state.groups.get(tablet).is_some_and(|group| group.leader == Some(self.id));
        let secure = self.identity.settings().is_some();
        let known_key = secure.then(|| self.identity.keyring.latest());
        let sent = SentBeat {
            at,
            to_life,
            registering,
            report: report.as_ref().map(|_| server.last_change),
            led: server.replicas.keys().filter(led).copied().collect(),
            known_key,
            wanted_key: state.newest_key.known(at),
            second: seconds(now.wall),
        };
        let ts_instance = NodeInstancePb { permanent_uuid: id_bytes(&self.id), instance_seqno: self.life };
        let request = TsHeartbeatRequestPb {
            common: TsToMasterCommonPb { ts_instance },
            registration: registering.then(|| registration(self.server, self.life)),
            tablet_report: report,
            num_live_tablets: Some(server.replicas.len() as i32),
            csr_der: self.identity.request().map(Into::into),
            latest_tsk_seq_num: known_key,
            ..Default::default()
        };
        (request, sent)
    }

    fn report(&self, state: &State) -> TabletReportPb {
        let server = &state.servers[self.server];
        let is_new = |at: &u64| self.acknowledged.is_none_or(|known| *at > known);
        let ids = |of: &BTreeMap<Uuid, u64>| -> Vec<Uuid> {
            of.iter().filter(|(_, at)| is_new(at)).map(|(id, _)| *id).collect()
        };
        let reported = |id: &Uuid| {
            state.groups.get(id).map(|group| ReportedTabletPb {
                tablet_id: id_bytes(id),
                state: Some(TabletStatePb::Running as i32),
                tablet_data_state: Some(TabletDataState::TabletDataReady as i32),
                consensus_state: Some(group.state(self.id)),
                error: None,
                schema_version: Some(group.version),
                stats: (group.leader == Some(self.id)).then(|| group.statistics(id)),
            })
        };
        let incremental = self.acknowledged.is_some();
        let removed = if incremental { ids(&server.removed) } else { Vec::new() };
        TabletReportPb {
            is_incremental: incremental,
            updated_tablets: ids(&server.replicas).iter().filter_map(reported).collect(),
            removed_tablet_ids: removed.iter().map(id_bytes).collect(),
            sequence_number: self.sequence,
        }
    }

    fn take(&mut self, sent: &SentBeat, reply: &TsHeartbeatResponsePb) {
        let state = self.state.clone();
        let mut state = state.lock();
        if let Some(error) = &reply.error {
            self.registered = false;
            // Only a master that has not opened its system tablet, or has just lost its leadership, refuses.
            if error.code() != Code::CatalogManagerNotInitialized {
                state.report(format!("master {} refuses server {}: {error:?}", self.master, self.server));
            }
            return;
        }
        let leads = reply.leader_master();
        state.on_role(self.master, sent.to_life, leads, self.env.now().mono);
        self.take_certificates(&mut state, reply);
        self.take_keys(&mut state, sent, reply);
        self.take_registration(&mut state, sent, reply);
        if leads && sent.report.is_some() && !reply.needs_reregister() {
            self.acknowledged = sent.report;
            self.note_leaders(&mut state, sent);
        }
        if reply.needs_full_tablet_report() {
            self.acknowledged = None;
        }
        self.leads = leads;
    }

    /// Takes certificates, which only the leading master sends.
    fn take_certificates(&self, state: &mut State, reply: &TsHeartbeatResponsePb) {
        let certified = || {
            reply.ca_cert_der.iter().try_for_each(|der| self.identity.trust(der.to_vec()))?;
            reply.signed_cert_der.iter().try_for_each(|der| self.identity.certify(der.to_vec()))
        };
        if let Err(error) = certified() {
            state.report(format!("server {} cannot use its certificate: {error}", self.server));
        }
        let has_any = reply.signed_cert_der.is_some() || !reply.ca_cert_der.is_empty();
        if has_any && !reply.leader_master() {
            state.report(format!("master {} gives certificates, and does not lead", self.master));
        }
    }

    /// Checks the token keys of a reply, and takes them.
    fn take_keys(&mut self, state: &mut State, sent: &SentBeat, reply: &TsHeartbeatResponsePb) {
        let (now, given, leads) = (self.env.now(), &reply.tsks, reply.leader_master());
        let mut checked = keys::check_order(given, sent.known_key, leads);
        let may_lack = state.may_lack_keys(self.master, sent.at);
        let settled = leads && state.is_settled(sent.at) && !may_lack;
        if settled {
            checked = checked.and_then(|()| keys::check_kept(given, sent.second));
        }
        let is_short = settled && keys::is_short(given, sent.known_key, sent.wanted_key);
        self.short = if is_short { self.short + 1 } else { 0 };
        if self.short >= SHORT_MAX {
            let (known, wanted) = (sent.known_key, sent.wanted_key);
            checked = Err(format!("key {wanted:?} is missing after {known:?}: {given:?}"));
        }
        if let Some(fault) = self.identity.keyring.import(given, now.wall).first() {
            checked = Err(format!("{fault}: {given:?}"));
        }
        if let Err(what) = checked {
            state.report(format!("token keys of master {} for server {}: {what}", self.master, self.server));
        }
        if given.len() >= MANY_KEYS {
            state.note(format!("server {} gets {} token keys, settled {settled}", self.server, given.len()));
        }
        state.newest_key.take(given, now.mono);
    }

    /// Records that the master knows this server, or that it does not.
    fn take_registration(&mut self, state: &mut State, sent: &SentBeat, reply: &TsHeartbeatResponsePb) {
        self.registered = !reply.needs_reregister();
        let of = &mut state.masters[self.master];
        if of.life != sent.to_life {
            return;
        }
        let Some(contact) = of.contacts.get_mut(&self.id) else { return };
        let known = contact.accepted.filter(|(life, _, _)| *life == self.life);
        if self.registered {
            let first = known.map_or(sent.at, |(_, first, _)| first);
            contact.accepted = Some((self.life, first, sent.at));
        } else if !sent.registering && known.is_some_and(|(_, first, _)| sent.at.since(first) > SETTLED) {
            let what = format!("master {} has forgotten server {}", self.master, self.server);
            state.report(what);
        }
    }

    /// Records that the leading master knows of the leaders that this server has reported.
    fn note_leaders(&self, state: &mut State, sent: &SentBeat) {
        let now_leads = state.leadership.filter(|of| (of.master, of.life) == (self.master, sent.to_life));
        let Some(leadership) = now_leads else { return };
        for tablet in &sent.led {
            if let Some(group) = state.groups.get_mut(tablet) {
                group.known_in.get_or_insert((leadership.number, self.env.now().mono));
            }
        }
    }
}
