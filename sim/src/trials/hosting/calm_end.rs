//! One of the scenarios that need a calm group, at the end of many trials. Between the other steps the group is rarely
//! whole and undisturbed, so that these scenarios seldom come to anything there.

use super::HostingTrial;
use crate::world::World;

/// Percentage of trials that end with a scenario.
const SCENARIO_PERCENT: u64 = 70;

/// A scenario that needs a calm group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CalmScenario {
    LittleMemory,
    Heartbeats,
    CopyLong,
    TruncateEntries,
    /// Much is written, flushed and collected after a session of a copy has begun.
    HoldLog,
    /// Members leave and come back, while their former replicas are deleted.
    ReturnMembers,
}

impl HostingTrial {
    /// Puts the group, which is whole, into a situation, or does nothing.
    pub(super) fn act_in_calm_group(&mut self) {
        if !self.random.percent(SCENARIO_PERCENT) {
            return;
        }
        let scenario = self.random.weighted(&[
            (CalmScenario::LittleMemory, 3),
            (CalmScenario::Heartbeats, 3),
            (CalmScenario::CopyLong, 1),
            (CalmScenario::TruncateEntries, 1),
            (CalmScenario::HoldLog, 4),
            (CalmScenario::ReturnMembers, 2),
        ]);
        self.fleet.steps.push(format!("{scenario:?} in the whole group, {:?}", self.fleet.world.now()));
        match scenario {
            CalmScenario::LittleMemory => self.write_with_little_memory(),
            CalmScenario::Heartbeats => self.send_heartbeats(),
            CalmScenario::CopyLong => self.copy_long(),
            CalmScenario::TruncateEntries => self.truncate_entries(),
            CalmScenario::HoldLog => self.hold_log(),
            CalmScenario::ReturnMembers => self.return_members(),
        }
    }
}
