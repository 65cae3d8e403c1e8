//! Faults that wait for a trigger, and faults of the current leader.

use std::time::Duration;

use super::FaultInjector;
use crate::trigger::{ArmedTrigger, TriggerAction};
use crate::world::World;
use sim_plan::faults::TriggeredFault;
use sim_plan::{Fault, Host, LinkDirection};

impl FaultInjector {
    /// Arms the trigger of a fault that waits for one on its target. The fault is counted when it fires.
    pub(super) fn arm_trigger(&mut self, world: &mut dyn World, target: Host, kind: &Fault, number: usize) {
        if let Fault::StrikeAfter { moment, nth, .. } = kind
            && !self.state(target).down
        {
            let trigger =
                ArmedTrigger { trigger: *moment, nth: *nth, action: TriggerAction::ApplyFault(number) };
            world.machine(&target.name()).triggers().arm(trigger);
        }
    }

    /// Applies the plan's fault of this number, whose trigger fired.
    pub fn fire(&mut self, world: &mut dyn World, number: usize) {
        let fault = self.plan.faults[number].clone();
        let Fault::StrikeAfter { blow, span, .. } = fault.kind else { return };
        if !self.faults_ended {
            self.apply_to_host(world, fault.target, blow, span, fault.kind.word());
        }
    }

    /// Returns the server of the target's role that committed an entry last, as a leader.
    pub(super) fn likely_leader(&self, world: &mut dyn World, target: Host) -> Host {
        let likes = self
            .plan
            .servers()
            .into_iter()
            .filter(|host| matches!(host, Host::Master(_)) == matches!(target, Host::Master(_)));
        likes.max_by_key(|host| world.machine(&host.name()).triggers().last_commit_nanos()).unwrap_or(target)
    }

    /// Returns the other servers of the host's role, in order, from the next one on.
    pub(super) fn role_after(&self, host: Host) -> Vec<Host> {
        let is_master = |host: &Host| matches!(host, Host::Master(_));
        let servers = self.servers().map(|(other, _)| *other);
        let role: Vec<Host> = servers.filter(|other| is_master(other) == is_master(&host)).collect();
        let later = role.iter().filter(|other| **other > host);
        later.chain(role.iter().filter(|other| **other < host)).copied().collect()
    }

    pub(super) fn apply_to_host(
        &mut self,
        world: &mut dyn World,
        target: Host,
        blow: TriggeredFault,
        span: Duration,
        word: &str,
    ) {
        let kind = match blow {
            TriggeredFault::Kill => Fault::Kill { down: span },
            TriggeredFault::Pause => Fault::Pause { span },
            TriggeredFault::Isolate => Fault::Isolate { way: LinkDirection::Both, span },
            TriggeredFault::CutPeers => Fault::CutPeers { way: LinkDirection::Both, span },
            TriggeredFault::Deaf => Fault::CutPeers { way: LinkDirection::In, span },
        };
        let (now, text) = (world.now(), sim_plan::line_format::LineRecord::line(&kind));
        world.log().record_timeline(now.as_nanos() as u64, &target.name(), "fault", &text);
        if self.apply(world, target, &kind) {
            self.count(word);
        }
    }
}
