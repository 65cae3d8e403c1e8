//! Faults of disks: slow or full devices, operations that fail, bytes that are lost or rot.

use engine::disk::mem::{DiskOpKind, WriteDamage};

use super::{FaultInjector, OPERATOR_PAUSE, ScheduledAction, name};
use crate::cluster::DATA_DIR;
use crate::trigger::{ArmedTrigger, EIO, TriggerAction};
use crate::world::World;
use sim_plan::{Fault, Host};

impl FaultInjector {
    /// Applies a fault of a disk; false if it does not apply.
    pub(super) fn apply_disk_fault(&mut self, world: &mut dyn World, target: Host, kind: &Fault) -> bool {
        let (now, mono) = (world.now(), world.mono());
        let machine = world.machine(&target.name());
        match kind {
            Fault::DiskStall { dir, span } => machine.stall(name(*dir), mono.after(*span)),
            Fault::DiskSlow { dir, factor, span } => {
                machine.slow_disk(name(*dir), *factor);
                self.at(now + *span, ScheduledAction::DiskSpeed(target, *dir));
            }
            Fault::DiskError { dir, op } => {
                machine.disk(name(*dir)).fail_op(u64::from(*op), EIO);
                self.schedule_health_check(target, now + OPERATOR_PAUSE);
            }
            Fault::DiskErrorAfter { moment, nth, dir, op } => {
                let action = TriggerAction::FailOp(machine.disk(name(*dir)), *op);
                machine.triggers().arm(ArmedTrigger { trigger: *moment, nth: *nth, action });
            }
            Fault::DiskFull { dir, free, span } => {
                machine.disk(name(*dir)).set_free(*free);
                self.at(now + *span, ScheduledAction::DiskSpace(target, *dir));
                self.schedule_health_check(target, now + *span);
            }
            Fault::SyncError { dir, sync } => {
                machine.disk(name(*dir)).fail_nth(DiskOpKind::Sync, u64::from(*sync), EIO);
                self.schedule_health_check(target, now + OPERATOR_PAUSE);
            }
            Fault::ReadErrors { dir, per_mille, span } => {
                machine.disk(name(*dir)).fail_some(DiskOpKind::Read, *per_mille, EIO);
                self.at(now + *span, ScheduledAction::ReadErrors(target, *dir));
                self.schedule_health_check(target, now + *span);
            }
            Fault::BitRot { bits } => {
                self.state(target).damaged = true;
                return machine.disk(DATA_DIR).flip_bits(u64::from(*bits)) > 0;
            }
            Fault::LostWrite { write } => {
                machine.disk(DATA_DIR).damage_append(u64::from(*write), WriteDamage::Lost);
                self.state(target).damaged = true;
            }
            Fault::MetadataRot { files, bits } => {
                self.state(target).damaged = true;
                return self.rot_metadata(&machine, *files, *bits) > 0;
            }
            Fault::UnreadablePages { pages } => {
                self.state(target).damaged = true;
                return machine.disk(DATA_DIR).lose_pages(u64::from(*pages)) > 0;
            }
            Fault::MisdirectedWrite { write } => {
                machine.disk(DATA_DIR).damage_append(u64::from(*write), WriteDamage::Misdirected);
                self.state(target).damaged = true;
            }
            other => unreachable!("{} is no fault of a disk", other.word()),
        }
        true
    }
}
