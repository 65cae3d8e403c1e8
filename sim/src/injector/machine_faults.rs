//! Faults of a machine besides its disks and its network: clock, memory, processor.

use super::{FaultInjector, ScheduledAction};
use crate::world::World;
use sim_plan::{Fault, Host};

impl FaultInjector {
    /// Applies a fault of a clock, the memory or the processor; false if it does not apply.
    pub(super) fn apply_machine_fault(&mut self, world: &mut dyn World, target: Host, kind: &Fault) -> bool {
        let (now, true_micros) = (world.now(), world.true_micros());
        let machine = world.machine(&target.name());
        let usual = self.plan.clocks.iter().find(|clock| clock.host == target);
        let (drift, error) = usual.map_or((0, 1_000), |clock| (clock.drift_ppm, clock.error_us));
        match kind {
            Fault::ClockJump { micros } => machine.jump_clock(*micros),
            Fault::ClockDrift { ppm, span } => {
                machine.drift_clock(*ppm, true_micros);
                self.at(now + *span, ScheduledAction::ClockDrift(target, drift));
            }
            Fault::ClockError { micros, behind, span } => {
                // The larger error has a cause: code that trusts the clock without its error must fail.
                let wrong_us = (micros / 2) as i64;
                let ahead_us = if *behind { -wrong_us } else { wrong_us };
                if std::mem::replace(&mut self.state(target).clock_error_raised, true) {
                    return false;
                }
                machine.set_clock_error(*micros, now);
                machine.jump_clock(ahead_us);
                self.at(now + *span, ScheduledAction::ClockSure { host: target, error_us: error, ahead_us });
            }
            Fault::ClockStep { seconds, told, span } => {
                if std::mem::replace(&mut self.state(target).clock_error_raised, true) {
                    return false;
                }
                let ahead_us = seconds * 1_000_000;
                if *told {
                    machine.set_clock_error(ahead_us.unsigned_abs() * 2, now);
                }
                machine.jump_clock(ahead_us);
                self.at(now + *span, ScheduledAction::ClockSure { host: target, error_us: error, ahead_us });
            }
            Fault::Memory { bytes, span } => {
                machine.set_memory_bytes(*bytes);
                self.at(now + *span, ScheduledAction::Memory(target));
            }
            Fault::SlowCpu { factor, span } => {
                machine.slow_cpu(u64::from(*factor));
                self.at(now + *span, ScheduledAction::Cpu(target));
            }
            other => unreachable!("{} is no fault of a machine", other.word()),
        }
        true
    }
}
