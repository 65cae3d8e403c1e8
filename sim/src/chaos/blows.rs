//! What strikes whoever does something: at a moment that a server tells of, or whoever leads.

use std::time::Duration;

use super::Chaos;
use crate::fuse::{Charge, Fuse};
use crate::plan::faults::Blow;
use crate::plan::{Fault, Host, Way};
use crate::world::World;

impl Chaos {
    /// Lays the fuse of what waits for a moment of its target's. It is counted when it strikes.
    pub(super) fn at_moment(
        &mut self,
        world: &mut dyn World,
        target: Host,
        kind: &Fault,
        number: usize,
    ) -> bool {
        if let Fault::StrikeAfter { moment, nth, .. } = kind
            && !self.state(target).down
        {
            let fuse = Fuse { moment: *moment, nth: *nth, charge: Charge::Strike(number) };
            world.machine(&target.name()).fuses().lay(fuse);
        }
        false
    }

    /// The moment has come that the plan's fault of this number waited for.
    pub fn strike(&mut self, world: &mut dyn World, number: usize) {
        let fault = self.plan.faults[number].clone();
        let Fault::StrikeAfter { blow, span, .. } = fault.kind else { return };
        if !self.healed {
            self.befall(world, fault.target, blow, span, fault.kind.word());
        }
    }

    /// Of the servers of the target's role, who decided last that something is committed.
    pub(super) fn likely_leader(&self, world: &mut dyn World, target: Host) -> Host {
        let likes = self
            .plan
            .servers()
            .into_iter()
            .filter(|host| matches!(host, Host::Master(_)) == matches!(target, Host::Master(_)));
        likes.max_by_key(|host| world.machine(&host.name()).fuses().decided()).unwrap_or(target)
    }

    pub(super) fn befall(
        &mut self,
        world: &mut dyn World,
        target: Host,
        blow: Blow,
        span: Duration,
        word: &str,
    ) {
        let kind = match blow {
            Blow::Kill => Fault::Kill { down: span },
            Blow::Pause => Fault::Pause { span },
            Blow::Isolate => Fault::Isolate { way: Way::Both, span },
            Blow::CutPeers => Fault::CutPeers { way: Way::Both, span },
            Blow::Deaf => Fault::CutPeers { way: Way::In, span },
        };
        let (now, text) = (world.now(), crate::plan::record::Record::line(&kind));
        world.log().moment(now.as_nanos() as u64, &target.name(), "fault", &text);
        if self.process(world, target, &kind) || self.network(world, target, &kind) {
            self.count(word);
        }
    }
}
