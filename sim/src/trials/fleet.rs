//! Tablet servers of the keyed world, and an operator that calls them, for trials of whole servers.

use std::sync::Arc;
use std::time::Duration;

use engine::disk::mem::DiskCost;
use engine::ids::{TabletId, Uuid};
use engine::raft::{RaftStatus, Role};
use engine::sync::Mutex;
use futures_util::future::join;
use node::hosting::replica::ReplicaHandle;
use node::hosting::tablet_entry::{EntryState, TabletEntry};
use node::tserver::TserverConfig;
use node::tserver::server::TabletServer;
use nyala_common::env::Env;
use nyala_common::rpc::client::CallOptions;
use nyala_common::wire::schema::id_bytes;
use nyala_proto::kudu::HostPortPb;
use nyala_proto::kudu::consensus::RaftPeerPb;
use nyala_proto::kudu::consensus::raft_peer_pb::MemberType;
use prost::Message;
use sim_plan::{FaultProfile, FinalRestart, Host, Plan, PlanSize};

use crate::cluster;
use crate::event_log::EventLog;
use crate::net::rules::LinkEffect;
use crate::oracle::{Violation, resources};
use crate::run_observer::RunObserver;
use crate::wire::client::{CallFailure, PlainClient};
use crate::workload::TSERVER_PORT;
use crate::world::keyed::KeyedWorld;
use crate::world::{HostProgram, LinkRule, LinkRuleId, StopReason, World};

/// Machine of the operator, where no server is.
pub(super) const OPERATOR: &str = "operator";
/// Timeout of a call.
pub(super) const CALL: Duration = Duration::from_secs(2);
/// Time until a server that is started serves its tablets.
pub(super) const START: Duration = Duration::from_millis(500);
/// Time between two looks at whether calls have ended.
const CALLED: Duration = Duration::from_millis(1);
/// Time between two looks at what a server holds.
const LOOK: Duration = Duration::from_millis(470);

/// Lines that a violation's story ends with.
const STORY: usize = 60;
/// Invariants that need to know which disturbances there are.
const OF_DISTURBANCES: [&str; 3] = ["LeaderUndisturbed", "MajorityElects", "LiveMajority"];

/// A call to a server.
#[derive(Clone)]
pub(super) struct OneCall<Q> {
    pub server: usize,
    pub service: &'static str,
    pub method: &'static str,
    pub request: Q,
}

impl<Q: Message> OneCall<Q> {
    pub(super) async fn make<R: Message + Default>(
        self,
        env: Env,
        options: CallOptions,
    ) -> Result<R, CallFailure> {
        let mut client = PlainClient::new(env, Vec::new(), 0, CALL);
        let address = address(self.server);
        let called = client.call(&address, self.service, self.method, &self.request, options).await;
        called.map(|reply| reply.message)
    }
}

/// Servers and their operator.
pub(super) struct Fleet {
    pub world: KeyedWorld,
    pub plan: Plan,
    pub observer: RunObserver,
    pub ids: Vec<Uuid>,
    pub up: Vec<bool>,
    /// Number of times that each server was started again: what only its process knew is gone since.
    pub restarts: Vec<u64>,
    pub found: Option<String>,
    pub steps: Vec<String>,
    rules: Vec<LinkRuleId>,
    /// True while a server may end by itself, and the error with which it has.
    pub may_end: bool,
    pub ended: Option<String>,
}

/// Returns the plan of a trial: settings of servers, without clients and faults.
pub(super) fn plan_of(seed: u64, masters: usize, tservers: usize, replicas: usize) -> Plan {
    let mut plan = Plan::generate(seed, FaultProfile::Calm, PlanSize::Smoke);
    (plan.clients, plan.faults, plan.clocks, plan.tables) = Default::default();
    (plan.security, plan.ending) = (None, FinalRestart::Stay);
    (plan.cluster.masters, plan.cluster.tservers) = (masters as u8, tservers as u8);
    (plan.cluster.replicas, plan.cluster.log_sync, plan.data_dirs) = (replicas as u8, true, 1);
    plan.cluster.raft_heartbeat = Duration::from_millis(100);
    plan.cluster.rpc_timeout = Duration::from_secs(1);
    plan
}

/// Returns the host of a server.
pub(super) fn host(server: usize) -> Host {
    Host::Tserver(server as u8)
}

fn address(server: usize) -> String {
    format!("{}:{TSERVER_PORT}", host(server))
}

/// Returns the address of a server in messages.
pub(super) fn address_pb(server: usize) -> HostPortPb {
    HostPortPb { host: host(server).name(), port: u32::from(TSERVER_PORT) }
}

impl Fleet {
    pub(super) fn create(seed: u64, plan: Plan) -> Fleet {
        let log = EventLog::keeping(0..0, false);
        let world = KeyedWorld::new(seed, plan.network.clone(), DiskCost::default(), log);
        let observer = RunObserver::new(&plan, None);
        let up = vec![true; usize::from(plan.cluster.tservers)];
        let restarts = vec![0; up.len()];
        Fleet {
            world,
            plan,
            observer,
            ids: Vec::new(),
            up,
            restarts,
            found: None,
            steps: Vec::new(),
            rules: Vec::new(),
            may_end: false,
            ended: None,
        }
    }

    pub(super) fn servers(&self) -> usize {
        self.up.len()
    }

    /// Boots all servers with these settings, and waits until they serve.
    pub(super) fn boot(&mut self, config: impl Fn(&Plan, Host) -> TserverConfig, beginning: Duration) {
        for server in 0..self.servers() {
            let machine = self.world.machine(&host(server).name());
            machine.set_cost(cluster::device_cost(&self.plan));
            machine.set_observer(self.observer.observer_for(host(server), &machine));
            let config = config(&self.plan, host(server));
            let program = cluster::tablet_server(config, host(server), self.observer.running());
            self.world.boot(&host(server).name(), program);
        }
        self.pass(beginning);
        self.ids =
            (0..self.servers()).filter_map(|at| self.running(at)).map(|running| running.uuid()).collect();
        if self.ids.len() < self.servers() {
            self.report("not all servers have started".to_string());
        }
    }

    /// Lets time pass.
    pub(super) fn pass(&mut self, span: Duration) {
        let until = self.world.now() + span;
        while !self.run_until(until) {}
    }

    /// Lets time pass until then; false if the operator's call ended before.
    fn run_until(&mut self, until: Duration) -> bool {
        loop {
            match self.world.run_until(until) {
                Ok(StopReason::Reached) => return true,
                Ok(StopReason::ClientsEnded) => return false,
                Ok(StopReason::Fired { .. }) => {}
                Ok(StopReason::LostPower { host }) => {
                    self.world.cut_power(&host);
                    self.mark_down(&host);
                }
                Ok(StopReason::Exited { host, error }) => self.exited(&host, error),
                Err(failure) => {
                    self.report(failure.to_string());
                    return true;
                }
            }
        }
    }

    /// Handles the end of a server's process, which only a faulty disk explains.
    fn exited(&mut self, host: &str, error: Option<String>) {
        let sound = self.world.machine(host).disks_are_fault_free();
        self.world.kill(host);
        self.mark_down(host);
        self.note(format!("{host} ends: {error:?}"));
        if self.may_end {
            self.ended = Some(error.unwrap_or_default());
        } else if sound {
            self.report(format!("{host} ends by itself: {error:?}"));
        }
    }

    fn mark_down(&mut self, name: &str) {
        let server = (0..self.servers()).find(|server| host(*server).name() == name);
        server.into_iter().for_each(|server| self.up[server] = false);
    }

    pub(super) fn kill(&mut self, server: usize) {
        if std::mem::replace(&mut self.up[server], false) {
            self.world.kill(&host(server).name());
        }
    }

    pub(super) fn cut_power(&mut self, server: usize) {
        if std::mem::replace(&mut self.up[server], false) {
            self.world.cut_power(&host(server).name());
        }
    }

    /// Starts a server that is down.
    pub(super) fn restart(&mut self, server: usize) {
        if !std::mem::replace(&mut self.up[server], true) {
            self.world.restart(&host(server).name());
            self.restarts[server] += 1;
            self.pass(START);
        }
    }

    /// Cuts the links from and to a server, or only those between two of them.
    pub(super) fn cut_links(&mut self, server: usize, other: Option<usize>) {
        let (one, other) = (Some(host(server).name()), other.map(|other| host(other).name()));
        let to = LinkRule { from: other.clone(), to: one.clone(), effect: LinkEffect::Block };
        let from = LinkRule { from: one, to: other, effect: LinkEffect::Block };
        for rule in [to, from] {
            let id = self.world.add_rule(rule);
            self.rules.push(id);
        }
    }

    pub(super) fn repair_links(&mut self) {
        for rule in std::mem::take(&mut self.rules) {
            self.world.remove_rule(rule);
        }
    }

    /// Returns true if all servers run and reach each other.
    pub(super) fn is_connected(&self) -> bool {
        self.rules.is_empty() && self.up.iter().all(|up| *up)
    }

    /// Makes one call to a server.
    pub(super) fn call<Q, R>(
        &mut self,
        server: usize,
        (service, method): (&'static str, &'static str),
        request: Q,
    ) -> Result<R, CallFailure>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        self.send(OneCall { server, service, method, request })
    }

    /// Makes a call that was prepared.
    pub(super) fn send<Q, R>(&mut self, call: OneCall<Q>) -> Result<R, CallFailure>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let reply = self.run_client(move |env| call.clone().make(env, CallOptions::default()));
        reply.unwrap_or_else(|| Err(CallFailure::Unknown("no reply".to_string())))
    }

    /// Makes two calls at once, the second one later by `delay`. While they last, `meanwhile` may do something else.
    pub(super) fn call_both<Q, R, P, S>(
        &mut self,
        first: OneCall<Q>,
        delay: Duration,
        second: OneCall<P>,
        meanwhile: impl FnOnce(&mut Fleet),
    ) -> Option<(Result<R, CallFailure>, Result<S, CallFailure>)>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
        P: Message + Clone + 'static,
        S: Message + Default + 'static,
    {
        let result = self.start_client(move |env| {
            let (first, second) = (first.clone(), second.clone());
            async move {
                let later = async {
                    env.sleep(delay).await;
                    second.make(env.clone(), CallOptions::default()).await
                };
                join(first.make(env.clone(), CallOptions::default()), later).await
            }
        });
        meanwhile(self);
        let until = self.world.now() + CALL * 2;
        while result.lock().is_none() && self.world.now() < until {
            self.pass(CALLED);
        }
        result.lock().take()
    }

    /// Runs a program on the operator's machine; returns its result if it ends in time.
    pub(super) fn run_client<T, F>(&mut self, program: impl Fn(Env) -> F + Send + Sync + 'static) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let result = self.start_client(program);
        let until = self.world.now() + CALL * 2;
        self.run_until(until);
        result.lock().take()
    }

    /// Starts a program on the operator's machine in place of the last one, which must have ended. Its result is there
    /// once it has ended.
    pub(super) fn start_client<T, F>(
        &mut self,
        program: impl Fn(Env) -> F + Send + Sync + 'static,
    ) -> Arc<Mutex<Option<T>>>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let result: Arc<Mutex<Option<T>>> = Arc::default();
        let into = result.clone();
        let program: HostProgram = Arc::new(move |env| {
            let (into, running) = (into.clone(), program(env));
            Box::pin(async move {
                let ended = running.await;
                *into.lock() = Some(ended);
                Ok(())
            })
        });
        // Ends the program of the last call.
        self.world.kill(OPERATOR);
        self.world.client(OPERATOR, program);
        result
    }

    /// Returns a server as a member.
    pub(super) fn peer(&self, server: usize, member: MemberType) -> RaftPeerPb {
        RaftPeerPb {
            permanent_uuid: Some(id_bytes(&self.ids[server])),
            member_type: Some(member as i32),
            last_known_addr: Some(address_pb(server)),
            ..Default::default()
        }
    }

    /// Returns a server's process, if it runs.
    pub(super) fn running(&self, server: usize) -> Option<Arc<TabletServer>> {
        let servers = self.observer.running().all();
        let mut own = servers.into_iter().filter(|(of, _)| *of == host(server) && self.up[server]);
        own.next().map(|(_, running)| running)
    }

    pub(super) fn entry(&self, server: usize, tablet: TabletId) -> Option<Arc<TabletEntry>> {
        self.running(server)?.tablets.get(tablet)
    }

    /// Returns a server's replica, if it runs and has not failed.
    pub(super) fn replica(&self, server: usize, tablet: TabletId) -> Option<ReplicaHandle> {
        match self.entry(server, tablet)?.state() {
            EntryState::Running(replica) if !replica.is_stopped() && replica.failure().is_none() => {
                Some(replica)
            }
            _ => None,
        }
    }

    pub(super) fn status(&self, server: usize, tablet: TabletId) -> Option<Arc<RaftStatus>> {
        self.replica(server, tablet).map(|replica| replica.status())
    }

    /// Returns the leader of a tablet's newest term, if there is one.
    pub(super) fn leader(&self, tablet: TabletId) -> Option<usize> {
        let statuses = (0..self.servers()).filter_map(|server| Some((server, self.status(server, tablet)?)));
        let leaders = statuses.filter(|(_, status)| status.role == Role::Leader);
        leaders.max_by_key(|(_, status)| status.term).map(|(server, _)| server)
    }

    /// Returns what a quiet server holds, at two looks; `None` if there is nothing.
    pub(super) fn held_resources(&mut self) -> Option<String> {
        let running = self.observer.running().clone();
        let first = running.usages(&mut self.world);
        if resources::check(&first).is_empty() {
            return None;
        }
        self.pass(LOOK);
        let second = running.usages(&mut self.world);
        let both: Vec<_> = first.iter().zip(&second).map(|(one, other)| one.least(other)).collect();
        resources::check(&both).into_iter().next().map(|violation| violation.message)
    }

    /// Reports what the invariants of replication have found.
    pub(super) fn report_violations(&mut self) {
        let of_group = |violation: &&Violation| !OF_DISTURBANCES.contains(&violation.oracle);
        let (found, uncaused) = (self.observer.violations(), self.observer.uncaused_failures());
        let Some(first) = found.iter().filter(of_group).chain(&uncaused).next() else { return };
        first.story.iter().for_each(|line| self.note(line));
        self.report(format!("{}: {}", first.oracle, first.message));
    }

    /// Ends a trial: what it has found, with the last lines of its story.
    pub(super) fn violation(self, oracle: &'static str, seed: u64) -> Option<Violation> {
        let what = self.found?;
        let message = format!("seed {seed}, after step {}: {what}", self.steps.len());
        Some(Violation::new(oracle, message).with_end_of(self.steps, STORY))
    }

    /// Adds what happens in a step to the story.
    pub(super) fn note(&mut self, what: impl Into<String>) {
        self.steps.push(format!("  {}", what.into()));
    }

    /// Records what is wrong, unless something was before.
    pub(super) fn report(&mut self, what: String) {
        self.found.get_or_insert(what);
    }
}
