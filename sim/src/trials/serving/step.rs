//! The steps of a serving trial.

use std::time::Duration;

use sim_plan::RandomStream;

use super::masters::{Condition, MASTERS};
use super::{SERVERS, ServingTrial};
use crate::world::World;

/// Most time that passes in a step, in milliseconds.
const PASS_MILLIS: u64 = 1_500;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Pass,
    Create,
    CreateAgain,
    Drop,
    Write,
    /// Writes at the same time, of which some may be too many.
    WriteMany,
    CommitWait,
    CopySlowly,
    ScanSlowly,
    Alter,
    Transfer,
    /// A directory of a server runs full, or has space again.
    Space,
    /// The leader of a tablet runs short of space, leads again, and runs short once more.
    SpaceTwice,
    Kill,
    PowerCut,
    Restart,
    Isolate,
    Repair,
    /// Another master leads.
    Elect,
    /// A master fares better or worse.
    Condition,
    /// A master restarts and forgets.
    Forget,
    /// The clock of a leader is read between two writes.
    Clock,
    /// Flags of a server are set.
    Flags,
    /// Orders that a server must refuse, or has carried out before.
    KnownOrders,
    /// A scanner is kept alive without reading.
    KeepScanner,
}

pub(super) fn draw(random: &mut RandomStream) -> Step {
    random.weighted(&[
        (Step::Pass, 12),
        (Step::Create, 14),
        (Step::CreateAgain, 8),
        (Step::Drop, 6),
        (Step::Write, 12),
        (Step::WriteMany, 4),
        (Step::CommitWait, 8),
        (Step::CopySlowly, 3),
        (Step::ScanSlowly, 4),
        (Step::Alter, 5),
        (Step::Transfer, 6),
        (Step::Space, 8),
        (Step::SpaceTwice, 2),
        (Step::Kill, 2),
        (Step::PowerCut, 2),
        (Step::Restart, 8),
        (Step::Isolate, 2),
        (Step::Repair, 6),
        (Step::Elect, 5),
        (Step::Condition, 10),
        (Step::Forget, 3),
        (Step::Clock, 3),
        (Step::Flags, 3),
        (Step::KnownOrders, 3),
        (Step::KeepScanner, 3),
    ])
}

impl ServingTrial {
    pub(super) fn take_step(&mut self) {
        let step = draw(&mut self.random);
        let server = self.random.below(SERVERS as u64) as usize;
        let now = self.fleet.world.now();
        self.fleet.steps.push(format!("{step:?} at {server}, {now:?}"));
        match step {
            Step::Pass => {
                let millis = self.random.below(PASS_MILLIS);
                self.pass(Duration::from_millis(millis));
            }
            Step::Create => self.create_tablet(),
            Step::CreateAgain => self.create_again(),
            Step::Drop => self.drop_tablet(),
            Step::Write => self.write(),
            Step::WriteMany => self.write_many(),
            Step::CommitWait => self.write_with_commit_wait(),
            Step::CopySlowly => self.copy_slowly(),
            Step::ScanSlowly => self.scan_slowly(),
            Step::Alter => self.alter(),
            Step::Transfer => self.transfer(),
            Step::Space => self.change_space(server),
            Step::SpaceTwice => self.run_short_twice(),
            Step::Kill => self.fleet.kill(server),
            Step::PowerCut => self.fleet.cut_power(server),
            Step::Restart => self.fleet.restart(server),
            Step::Isolate => self.fleet.cut_links(server, None),
            Step::Repair => self.fleet.repair_links(),
            Step::Clock => self.read_clock(),
            Step::Flags => self.change_flags(server),
            Step::KnownOrders => self.give_known_orders(server),
            Step::KeepScanner => self.keep_scanner(),
            Step::Elect | Step::Condition | Step::Forget => self.change_masters(step),
        }
    }

    fn change_masters(&mut self, step: Step) {
        use Condition::*;
        let master = self.random.below(MASTERS as u64) as usize;
        let condition = self.random.pick(&[Fine, Fine, Busy, Silent, Deaf, Slow]);
        let mut masters = self.masters.lock();
        match step {
            Step::Elect => masters.elect(master),
            Step::Forget => masters.restart(master),
            _ => masters.conditions[master] = condition,
        }
        drop(masters);
        self.fleet.note(format!("master {master}, {condition:?}"));
    }
}
