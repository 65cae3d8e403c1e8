//! Reseeds: times from which the run draws from another seed.

use super::FaultInjector;
use crate::world::World;
use sim_plan::RandomStream;

impl FaultInjector {
    /// Gives every machine, the network and the injector other draws from now on.
    pub(super) fn reseed(&mut self, world: &mut dyn World, seed: u64) {
        self.plan.seed = seed;
        self.draw = RandomStream::new(seed, "chaos");
        world.reseed(seed);
        for host in self.plan.hosts() {
            let own = RandomStream::new(seed, &host.name()).next_u64();
            world.machine(&host.name()).reseed(own);
        }
    }
}
