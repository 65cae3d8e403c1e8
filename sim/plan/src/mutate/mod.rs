//! Mutations: children of a plan, as data. Guided search makes them.
//!
//! ```text
//! plan ──one mutation──► plan that may break a rule of the generator ──repair──► child
//! ```
//!
//! A child is a whole plan: it is printed, parsed, run and shrunk as any other. Repair restores what the generator
//! guarantees: times in order, hosts that exist, acknowledged writes that stay recoverable, limits that suffice.
//! Ops of clients stay as they are, because many belong together; a mutation only adds waits between them.

use std::time::Duration;

use crate::client_ops::ClientOp;
use crate::draws::{MS, rounded};
use crate::faults::{FaultKind, Trigger};
use crate::line_format::words;
use crate::plan::Plan;
use crate::random_stream::RandomStream;
use crate::spec::Reseed;

mod of_faults;
mod repair;
#[cfg(test)]
mod tests;

words! {
    /// Difference of a child from its parent.
    pub enum Mutation {
        /// One fault comes earlier or later.
        Shift = "shift",
        /// One fault takes more or less time.
        Stretch = "stretch",
        /// One fault waits for a trigger, or for another one.
        Aim = "aim",
        /// One fault hits another server.
        Retarget = "retarget",
        /// The faults of another plan replace the own ones from a time on.
        Splice = "splice",
        /// One setting is another plan's.
        Setting = "setting",
        /// A client waits for some seconds between two ops.
        Wait = "wait",
        /// Draws of the run differ from a time on.
        Reseed = "reseed",
        /// There is a further fault.
        FaultIn = "fault-in",
        /// All faults of one kind are gone.
        FaultOut = "fault-out",
    }
}

/// Sources of a mutation besides its random stream.
#[derive(Debug, Clone, Copy)]
pub struct MutationInput<'a> {
    pub mutation: Mutation,
    /// Kind of a fault that is added.
    pub kind: FaultKind,
    /// Plan that faults and settings are taken from.
    pub donor: &'a Plan,
    /// Triggers to aim at, with weights.
    pub triggers: &'a [(Trigger, u32)],
}

/// Latest time of a new fault in a plan whose faults end early.
const FAULTS_UNTIL_MIN: Duration = Duration::from_secs(4);
/// Longest wait that is added.
const WAIT_MAX: Duration = Duration::from_secs(20);

impl Plan {
    /// Returns a child of the plan; `None` if the mutation changes nothing here.
    pub fn mutated(&self, random: &mut RandomStream, input: &MutationInput<'_>) -> Option<Plan> {
        let mut child = self.clone();
        match input.mutation {
            Mutation::Shift => child.shift_fault(random),
            Mutation::Stretch => child.stretch_fault(random),
            Mutation::Aim => child.aim_fault(random, input.triggers),
            Mutation::Retarget => child.retarget_fault(random),
            Mutation::Splice => child.splice_faults(random, input.donor),
            Mutation::Setting => child.take_setting(random, input.donor),
            Mutation::Wait => child.add_wait(random),
            Mutation::Reseed => child.reseed(random),
            Mutation::FaultIn => child.add_fault(random, input.kind),
            Mutation::FaultOut => child.remove_kind(random),
        }
        child.repair(self);
        (child != *self).then_some(child)
    }

    /// Returns the time until which faults are moved or added.
    fn faults_until(&self) -> Duration {
        self.faults.iter().map(|fault| fault.at).max().unwrap_or_default().max(FAULTS_UNTIL_MIN)
    }

    /// Draws a time of a fault.
    fn fault_time(&self, random: &mut RandomStream) -> Duration {
        rounded(Duration::from_micros(random.below(self.faults_until().as_micros() as u64)))
    }

    /// Replaces one setting by the donor's.
    fn take_setting(&mut self, random: &mut RandomStream, donor: &Plan) {
        let (own, other) = (&mut self.cluster, &donor.cluster);
        match random.below(8) {
            0 => own.raft_heartbeat = other.raft_heartbeat,
            1 => own.heartbeat = other.heartbeat,
            2 => own.follower_failed = other.follower_failed,
            3 => own.maintenance = other.maintenance,
            4 => self.devices = donor.devices.clone(),
            5 => self.network = donor.network.clone(),
            6 => self.sending = donor.sending.clone(),
            _ => self.ending = donor.ending,
        }
    }

    fn add_wait(&mut self, random: &mut RandomStream) {
        let clients = self.clients.len() as u64;
        let Some(client) = self.clients.get_mut(random.below(clients) as usize) else { return };
        let at = random.below(client.ops.len() as u64 + 1) as usize;
        let span = rounded(random.span(100 * MS, WAIT_MAX));
        client.ops.insert(at, ClientOp::Wait { span });
    }

    fn reseed(&mut self, random: &mut RandomStream) {
        let (at, seed) = (self.fault_time(random), random.next_u64());
        // An earlier one stays: what it leads to is why the plan is in the corpus.
        self.reseeds.retain(|reseed| reseed.at < at);
        self.reseeds.push(Reseed { at, seed });
    }
}
