//! Faults of the network: links that are cut, slow or lossy, connections that are reset or refused.

use std::time::Duration;

use super::{FaultInjector, ScheduledAction};
use crate::net::rules::LinkEffect;
use crate::world::{LinkRule, World};
use sim_plan::{Fault, Host, LinkDirection};

impl FaultInjector {
    /// Returns the server or client of this name.
    fn any_host(&self, name: &str) -> Option<Host> {
        self.plan.hosts().into_iter().find(|host| host.name() == name)
    }

    pub(super) fn rule(&mut self, world: &mut dyn World, rule: LinkRule, until: Duration) {
        let hosts = [&rule.from, &rule.to].into_iter().flatten().filter_map(|name| self.any_host(name));
        let hosts = hosts.collect();
        self.disturbances.span(hosts, "link", world.now(), until);
        let id = world.add_rule(rule.clone());
        self.links.add(id, rule, world.now());
        self.at(until, ScheduledAction::RemoveRule(id));
    }

    /// Adds rules for messages between a host and one other, or any other.
    fn rules_between(
        &mut self,
        world: &mut dyn World,
        target: Host,
        peer: Option<Host>,
        way: LinkDirection,
        effect: LinkEffect,
        span: Duration,
    ) {
        let (target, peer) = (Some(target.name()), peer.map(Host::name));
        let until = world.now() + span;
        if way != LinkDirection::In {
            self.rule(world, LinkRule { from: target.clone(), to: peer.clone(), effect }, until);
        }
        if way != LinkDirection::Out {
            self.rule(world, LinkRule { from: peer, to: target, effect }, until);
        }
    }

    pub(super) fn apply_network_fault(&mut self, world: &mut dyn World, target: Host, kind: &Fault) -> bool {
        match kind {
            Fault::Isolate { way, span } => {
                self.rules_between(world, target, None, *way, LinkEffect::Block, *span);
            }
            Fault::CutLink { peer, way, span } => {
                self.rules_between(world, target, Some(*peer), *way, LinkEffect::Block, *span);
            }
            Fault::CutPeers { way, span } => {
                for peer in self.plan.servers().into_iter().filter(|peer| *peer != target) {
                    self.rules_between(world, target, Some(peer), *way, LinkEffect::Block, *span);
                }
            }
            Fault::SlowLink { peer, latency, span } => {
                let effect = LinkEffect::Delay(latency.as_nanos() as u64);
                self.rules_between(world, target, Some(*peer), LinkDirection::Both, effect, *span);
            }
            Fault::Loss { percent, span } => {
                self.rules_between(
                    world,
                    target,
                    None,
                    LinkDirection::Both,
                    LinkEffect::Lose(*percent),
                    *span,
                );
            }
            Fault::NoConnect { hang, span } => {
                let effect = if *hang { LinkEffect::Ignore } else { LinkEffect::Refuse };
                self.rules_between(world, target, None, LinkDirection::In, effect, *span);
            }
            Fault::Swizzle { span } => self.swizzle(world, target, *span),
            Fault::CutCall { peer, part, nth, span } => {
                let until = world.now() + *span;
                self.disturbances.span(vec![target, *peer], kind.word(), world.now(), until);
                let id = world.arm_call_cut(&peer.name(), &target.name(), *part, *nth);
                self.at(until, ScheduledAction::DisarmCallCut(id));
            }
            Fault::Reset { peer } => {
                self.disturbances.span(vec![target, *peer], kind.word(), world.now(), world.now());
                return world.reset_between(&target.name(), &peer.name()) > 0;
            }
            other => unreachable!("{} is no fault of a network", other.word()),
        }
        true
    }

    /// Blocks the links one after the other, and unblocks them in another order.
    fn swizzle(&mut self, world: &mut dyn World, target: Host, span: Duration) {
        let (now, half) = (world.now(), span.as_micros() as u64 / 2);
        for peer in self.plan.hosts().into_iter().filter(|peer| *peer != target) {
            let begin = now + Duration::from_micros(self.draw.below(half + 1));
            let end = now + Duration::from_micros(half + self.draw.below(half + 1));
            for (from, to) in [(target, peer), (peer, target)] {
                let (from, to) = (Some(from.name()), Some(to.name()));
                self.at(
                    begin,
                    ScheduledAction::AddRule(LinkRule { from, to, effect: LinkEffect::Block }, end),
                );
            }
        }
    }
}
