//! Faults of disks: slow or full devices, operations that fail, bytes that are lost or rot.

use engine::disk::mem::{DiskOpKind, WriteDamage};

use super::{FaultInjector, OPERATOR_PAUSE, ScheduledAction};
use crate::cluster::WAL_DIR;
use crate::trigger::{ArmedTrigger, EIO, TriggerAction};
use crate::world::World;
use sim_plan::faults::{HostDir, MetadataKind};
use sim_plan::{Fault, Host};

impl FaultInjector {
    /// Applies a fault of a disk; false if it does not apply.
    pub(super) fn apply_disk_fault(&mut self, world: &mut dyn World, target: Host, kind: &Fault) -> bool {
        let (now, mono) = (world.now(), world.mono());
        let machine = world.machine(&target.name());
        let data = self.directory(target, HostDir::Data);
        let name = |dir: HostDir| if dir == HostDir::Wal { WAL_DIR } else { data };
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
                return machine.disk(data).flip_bits(u64::from(*bits)) > 0;
            }
            Fault::LostWrite { write } => {
                machine.disk(data).damage_append(u64::from(*write), WriteDamage::Lost);
                self.state(target).damaged = true;
            }
            Fault::MetadataRot { files, bits } => {
                self.state(target).damaged = true;
                let disk = machine.disk(if *files == MetadataKind::Log { WAL_DIR } else { data });
                return self.rot_metadata(&disk, *files, *bits) > 0;
            }
            Fault::UnreadablePages { pages } => {
                self.state(target).damaged = true;
                return machine.disk(data).lose_pages(u64::from(*pages)) > 0;
            }
            Fault::MisdirectedWrite { write } => {
                machine.disk(data).damage_append(u64::from(*write), WriteDamage::Misdirected);
                self.state(target).damaged = true;
            }
            other => unreachable!("{} is no fault of a disk", other.word()),
        }
        true
    }
}
