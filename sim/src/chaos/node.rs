//! What is wrong with a machine beside its disks and its network: its clock, its memory, its processor.

use super::{Action, Chaos};
use crate::plan::{Fault, Host};
use crate::world::World;

impl Chaos {
    /// Begins a fault of this kind; false if it is of another kind, or finds nothing to do.
    pub(super) fn node(&mut self, world: &mut dyn World, target: Host, kind: &Fault) -> bool {
        let (now, true_micros) = (world.now(), world.true_micros());
        let machine = world.machine(&target.name());
        let usual = self.plan.clocks.iter().find(|clock| clock.host == target);
        let (drift, error) = usual.map_or((0, 1_000), |clock| (clock.drift_ppm, clock.error_us));
        match kind {
            Fault::ClockJump { micros } => machine.jump_clock(*micros),
            Fault::ClockDrift { ppm, span } => {
                machine.drift_clock(*ppm, true_micros);
                self.at(now + *span, Action::ClockDrift(target, drift));
            }
            Fault::ClockError { micros, behind, span } => {
                // It says so for a reason: who believes the clock without its error is wrong.
                let wrong_us = (micros / 2) as i64;
                let ahead_us = if *behind { -wrong_us } else { wrong_us };
                if std::mem::replace(&mut self.state(target).unsure, true) {
                    return false;
                }
                machine.set_clock_error(*micros);
                machine.jump_clock(ahead_us);
                self.at(now + *span, Action::ClockSure { host: target, error_us: error, ahead_us });
            }
            Fault::Memory { bytes, span } => {
                machine.set_memory_bytes(*bytes);
                self.at(now + *span, Action::Memory(target));
            }
            Fault::SlowCpu { factor, span } => {
                machine.slow_cpu(u64::from(*factor));
                self.at(now + *span, Action::Cpu(target));
            }
            _ => return false,
        }
        true
    }
}
