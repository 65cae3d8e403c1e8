//! The made-up masters: one of them leads, and each answers heartbeats, or fails to, by its condition.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use engine::sync::Mutex;
use nyala_common::env::{BoxFuture, Env};
use nyala_common::rpc::server::RpcServer;
use nyala_common::rpc::{Call, MethodInfo, Reply, RpcConfig, Service};
use nyala_common::security::acl::MethodRole;
use nyala_proto::kudu::master::{TsHeartbeatRequestPb, TsHeartbeatResponsePb};
use sim_plan::RandomStream;

use super::known_server::KnownServer;
use crate::workload::MASTER_PORT;
use crate::world::ProgramResult;

pub(super) const MASTERS: usize = 2;
/// Features of masters, replica management among them.
const FEATURES: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
const METHODS: [MethodInfo; 1] = [MethodInfo {
    name: "TSHeartbeat",
    role: MethodRole::Service,
    audited: false,
    tracked: false,
    required: &[],
}];
/// Percentage of reports after which the leader wants a full one without a reason.
const FULL_PERCENT: u64 = 3;
/// Longest time that a slow master takes.
const SLOW_MILLIS: u64 = 900;

/// The condition of a master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    Fine,
    /// Refuses half of the calls.
    Busy,
    Silent,
    /// Takes calls, and loses half of the replies.
    Deaf,
    /// Replies late.
    Slow,
}

/// Treatment of a call.
enum Treatment {
    Refuse,
    Ignore,
    /// Executed; the reply leaves this much later, or never.
    Serve(Option<Duration>),
}

/// The state of all masters.
pub(super) struct Masters {
    random: RandomStream,
    pub leader: usize,
    pub conditions: [Condition; MASTERS],
    /// Starts of servers that each master has the registration of.
    registered: BTreeSet<(usize, Vec<u8>, i64)>,
    /// Number of the newest report that each master got from a start of a server: an older one comes late.
    newest: BTreeMap<(usize, Vec<u8>, i64), i32>,
    /// The leader's knowledge of each server.
    pub known: BTreeMap<Vec<u8>, KnownServer>,
    /// Heartbeats that each master got from each server.
    pub heartbeats: BTreeMap<(usize, Vec<u8>), u64>,
    pub found: Option<String>,
}

impl Masters {
    pub(super) fn new(seed: u64) -> Masters {
        Masters {
            random: RandomStream::new(seed, "serving trial, masters"),
            leader: 0,
            conditions: [Condition::Fine; MASTERS],
            registered: BTreeSet::new(),
            newest: BTreeMap::new(),
            known: BTreeMap::new(),
            heartbeats: BTreeMap::new(),
            found: None,
        }
    }

    /// Lets another master lead, which knows nothing of tablets yet.
    pub(super) fn elect(&mut self, leader: usize) {
        self.leader = leader;
        self.known.clear();
    }

    /// Lets a master forget all that it was told, as a restart does.
    pub(super) fn restart(&mut self, master: usize) {
        self.registered.retain(|(of, _, _)| *of != master);
        if master == self.leader {
            self.known.clear();
        }
    }

    fn treatment(&mut self, master: usize) -> Treatment {
        let late = Duration::from_millis(self.random.below(SLOW_MILLIS));
        let often = self.random.percent(50);
        match self.conditions[master] {
            Condition::Busy if often => Treatment::Refuse,
            Condition::Silent => Treatment::Ignore,
            Condition::Deaf if often => Treatment::Serve(None),
            Condition::Slow => Treatment::Serve(Some(late)),
            _ => Treatment::Serve(Some(Duration::ZERO)),
        }
    }

    /// Takes a heartbeat; returns the reply.
    fn take(&mut self, master: usize, request: &TsHeartbeatRequestPb) -> TsHeartbeatResponsePb {
        let instance = &request.common.ts_instance;
        let (server, started) = (instance.permanent_uuid.to_vec(), instance.instance_seqno);
        *self.heartbeats.entry((master, server.clone())).or_default() += 1;
        let registration = (master, server.clone(), started);
        if request.registration.is_some() {
            self.registered.insert(registration.clone());
        }
        if let Some(report) = &request.tablet_report {
            let newest = self.newest.entry(registration.clone()).or_default();
            if report.sequence_number < *newest {
                return TsHeartbeatResponsePb::default();
            }
            *newest = report.sequence_number;
        }
        let leads = master == self.leader;
        let mut reply = TsHeartbeatResponsePb { leader_master: Some(leads), ..Default::default() };
        if !self.registered.contains(&registration) {
            (reply.needs_reregister, reply.needs_full_tablet_report) = (Some(true), Some(leads));
        } else if leads {
            reply.needs_full_tablet_report = Some(self.take_report(server, started, request));
        }
        reply
    }

    /// Takes the report of a heartbeat; returns true if a full one is wanted.
    fn take_report(&mut self, server: Vec<u8>, started: i64, request: &TsHeartbeatRequestPb) -> bool {
        let known = self.known.entry(server).or_default();
        if known.started != started {
            *known = KnownServer { started, ..KnownServer::default() };
        }
        known.live = request.num_live_tablets();
        known.short_of_space = request.nyala_state.as_ref().is_some_and(|state| state.short_of_space());
        let taken = request.tablet_report.as_ref().map_or(Ok(()), |report| known.take(report));
        let wants_full = known.tablets.is_none();
        if let Err(wrong) = taken {
            self.found.get_or_insert(wrong);
        }
        wants_full || self.random.percent(FULL_PERCENT)
    }
}

struct MasterDouble {
    env: Env,
    masters: Arc<Mutex<Masters>>,
    number: usize,
}

impl MasterDouble {
    async fn serve(&self, call: Call) -> Reply {
        let treatment = self.masters.lock().treatment(self.number);
        let late = match treatment {
            Treatment::Refuse => return Reply::too_busy("the double is busy"),
            Treatment::Ignore => return pending().await,
            Treatment::Serve(late) => late,
        };
        let request: TsHeartbeatRequestPb = match call.decode() {
            Ok(request) => request,
            Err(reply) => return reply,
        };
        let reply = self.masters.lock().take(self.number, &request);
        match late {
            None => return pending().await,
            Some(late) => self.env.sleep(late).await,
        }
        Reply::message(&reply)
    }
}

impl Service for MasterDouble {
    fn name(&self) -> &'static str {
        "kudu.master.MasterService"
    }

    fn features(&self) -> &'static [u32] {
        &FEATURES
    }

    fn methods(&self) -> &'static [MethodInfo] {
        &METHODS
    }

    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply> {
        call.release_slot();
        Box::pin(async move { self.serve(call).await })
    }
}

/// Serves a master until its host dies.
pub(super) async fn serve(env: Env, masters: Arc<Mutex<Masters>>, number: usize) -> ProgramResult {
    let listener = env.net.listen(([0, 0, 0, 0], MASTER_PORT).into()).await?;
    let service = Arc::new(MasterDouble { env: env.clone(), masters, number });
    let _server = RpcServer::new(env, RpcConfig::default()).add(service).serve(listener);
    pending().await
}
