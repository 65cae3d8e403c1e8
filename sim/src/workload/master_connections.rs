//! Masters' answers to clients that connect: asked all along in secured clusters, and once the masters are healthy in
//! all of them.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use engine::error::Error;
use engine::time::Instant;
use futures_util::future::{join_all, select};
use nyala_common::env::Env;

use super::master_changes::address;
use super::recovery_checks::RECOVERY_CLIENT;
use super::{Workload, until};
use crate::history::Nanos;
use crate::oracle::Violation;
use crate::oracle::connections::{self, ConnectionRules};
use crate::server_limits::raft;
use crate::wire::client::PlainClient;
use crate::wire::connections::{LeaderAnswers, MasterAnswer};
use sim_plan::faults::DiskEffect;
use sim_plan::{FaultKind, Host, Plan, TimedFault};

/// Pause between two questions to a master.
const PAUSE: Duration = Duration::from_millis(50);
/// Time within which a leader that nothing disturbs has made the token keys that are due: it looks once a second.
const KEYS_REFRESHED_WITHIN: Duration = Duration::from_secs(5);

impl Workload {
    /// Runs `work` of the plan's first client in a secured cluster while masters are asked for their roles: a new
    /// leader may tell clients too little for a few milliseconds. Other work runs alone.
    pub(super) async fn beside_questions(&self, env: &Env, index: usize, work: impl Future<Output = ()>) {
        if index > 0 || self.plan().security.is_none() {
            return work.await;
        }
        let masters = (0..self.plan().cluster.masters).map(|number| self.ask_always(env, number));
        select(pin!(work), pin!(join_all(masters))).await;
    }

    async fn ask_always(&self, env: &Env, master: u8) {
        let mut client = self.plain_client(env);
        loop {
            // Answers of leaders are logged.
            let _asked = client.ask_role(&address(master)).await;
            env.sleep(PAUSE).await;
        }
    }

    /// Returns a client that knows no masters: its callers name the server of each call.
    pub(super) fn plain_client(&self, env: &Env) -> PlainClient {
        let attempt = self.plan().cluster.rpc_timeout;
        let mut client = PlainClient::new(env.clone(), Vec::new(), RECOVERY_CLIENT, attempt);
        client.connections = self.state().connections.clone();
        client
    }

    /// Waits until a master leads and tells all that clients need.
    pub(super) async fn check_connections(&self, env: &Env, deadline: Instant) -> Result<(), Error> {
        let mut client = self.plain_client(env);
        let is_secure = self.plan().security.is_some();
        until(env, deadline.since(env.now().mono), async || {
            for master in 0..self.plan().cluster.masters {
                let asked = client.ask_role(&address(master)).await;
                let tells = |answer: &MasterAnswer| {
                    answer.leads && answer.cluster.is_some() && (answer.is_complete() || !is_secure)
                };
                if asked.is_ok_and(|answer| tells(&answer)) {
                    return Ok(());
                }
            }
            Err(Error::not_ready("no master leads and tells clients the cluster, a token and the authority"))
        })
        .await
    }

    /// Returns what is wrong with the answers that clients got.
    pub(super) fn connection_faults(&self) -> Vec<Violation> {
        let (plan, answers) = (self.plan(), self.state().connections.all());
        let rules = connection_rules(plan, has_keys(plan));
        connections::check(&rules, &answers, |master| may_lose_catalog(plan, master))
    }

    /// Returns what is wrong with answers at times at which no fault has an effect. `is_calm`: true for such times.
    pub fn calm_connection_faults(&self, is_calm: impl Fn(Nanos, Nanos) -> bool) -> Vec<Violation> {
        let plan = self.plan();
        if !plan.clocks.is_empty() || plan.changes_masters() || plan.faults.iter().any(outlasts_disturbance) {
            return Vec::new();
        }
        let LeaderAnswers { incomplete, .. } = self.state().connections.all();
        let was_calm = |answer: &MasterAnswer, again: Option<&MasterAnswer>| {
            let from = answer.asked.saturating_sub(KEYS_REFRESHED_WITHIN.as_nanos() as Nanos);
            is_calm(from, again.unwrap_or(answer).told)
        };
        let calm = incomplete.into_iter().filter(|(_, answer, again)| was_calm(answer, again.as_ref()));
        let answers = LeaderAnswers { incomplete: calm.collect(), ..LeaderAnswers::default() };
        connections::check(&connection_rules(plan, true), &answers, |_| false)
    }
}

fn connection_rules(plan: &Plan, has_keys: bool) -> ConnectionRules {
    let (is_secure, election) = (plan.security.is_some(), raft(plan).election_timeout());
    ConnectionRules { is_secure, has_keys, election }
}

/// Returns true if a fault's effect on masters may last longer than its disturbance: bytes of a master are lost or
/// wrong, or keys were made by a wrong clock.
fn outlasts_disturbance(fault: &TimedFault) -> bool {
    use FaultKind::{ClockDrift, ClockError, ClockJump, ClockStep};
    let kind = fault.kind.kind();
    let is_of_clock = matches!(kind, ClockDrift | ClockError | ClockJump | ClockStep);
    is_of_clock || (matches!(fault.target, Host::Master(_)) && kind.loses_durable_data())
}

/// Returns true if leading masters always have a valid key: their clocks are right, a majority of them is up, and no
/// fault stops a leader for some time or delays its writes. Known to be harmless are restarts, and what other machines'
/// disks lose or refuse.
fn has_keys(plan: &Plan) -> bool {
    let restarts =
        |kind: FaultKind| matches!(kind, FaultKind::Kill | FaultKind::PowerCut | FaultKind::PowerCutPages);
    let is_harmless = |fault: &TimedFault| match (fault.target, fault.kind.kind()) {
        (Host::Tserver(_) | Host::Client(_), kind) => {
            restarts(kind) || kind.disk_effect() != DiskEffect::None
        }
        (Host::Master(_), kind) => restarts(kind),
    };
    let hit = plan.faults.iter().map(|fault| fault.target).filter(|host| matches!(host, Host::Master(_)));
    let (hit, masters) = (hit.collect::<BTreeSet<Host>>().len(), usize::from(plan.cluster.masters));
    let has_majority = masters == 1 || hit * 2 < masters;
    plan.clocks.is_empty() && has_majority && plan.faults.iter().all(is_harmless)
}

/// Returns true if a master's writes may fail while it leads: its disk fails or is full, or leadership is transferred
/// because the master is removed.
fn may_lose_catalog(plan: &Plan, master: &str) -> bool {
    let is_hit = |host: Host| master.split(':').next() == Some(host.name().as_str());
    let fails = |kind: FaultKind| kind.disk_effect() != DiskEffect::None;
    plan.changes_masters() || plan.faults.iter().any(|fault| is_hit(fault.target) && fails(fault.kind.kind()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim_plan::faults::HostDir;
    use sim_plan::{Fault, FaultProfile, PlanSize};

    #[test]
    fn only_a_fault_excuses_what_a_master_does_not_tell() {
        let mut plan = Plan::generate(1, FaultProfile::Calm, PlanSize::Bench);
        (plan.faults, plan.clocks) = Default::default();
        let add = |plan: &mut Plan, kind| {
            let at = Duration::from_secs(1);
            plan.faults.push(TimedFault { at, target: Host::Master(1), kind });
        };
        add(&mut plan, Fault::Kill { down: Duration::from_secs(1) });
        assert!(has_keys(&plan) && !may_lose_catalog(&plan, "m1:7051"));
        let mut without_majority = plan.clone();
        without_majority.faults[0].target = Host::Master(0);
        without_majority.faults.extend(plan.faults.clone());
        assert!(!has_keys(&without_majority));
        add(&mut plan, Fault::Pause { span: Duration::from_secs(9) });
        assert!(!has_keys(&plan) && !may_lose_catalog(&plan, "m1:7051"));
        add(&mut plan, Fault::DiskError { dir: HostDir::Wal, op: 3 });
        assert!(may_lose_catalog(&plan, "m1:7051") && !may_lose_catalog(&plan, "m0:7051"));
        assert!(!plan.faults.iter().any(outlasts_disturbance));
        add(&mut plan, Fault::Wipe { down: Duration::from_secs(1) });
        assert!(plan.faults.iter().any(outlasts_disturbance));
    }
}
