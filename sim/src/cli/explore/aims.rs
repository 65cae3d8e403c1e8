//! Aims: triggers that faults of children wait for, the rarer the likelier.

use std::collections::BTreeMap;

use sim_plan::faults::Trigger;

/// Weight of a trigger that no run has reached.
const WEIGHT_MAX: u64 = 1_000;

/// Number of runs that reached each trigger.
#[derive(Debug, Default)]
pub(super) struct Aims {
    runs: u64,
    reached: BTreeMap<Trigger, u64>,
}

impl Aims {
    /// Adds a run's marks.
    pub(super) fn add(&mut self, marks: &BTreeMap<String, u64>) {
        self.runs += 1;
        for trigger in Trigger::ALL {
            if marks_of(*trigger).iter().any(|mark| marks.contains_key(*mark)) {
                *self.reached.entry(*trigger).or_default() += 1;
            }
        }
    }

    /// Returns the triggers with their weights: what half as many runs reach has twice the weight.
    pub(super) fn weights(&self) -> Vec<(Trigger, u32)> {
        let share = |trigger| (self.reached.get(trigger).copied().unwrap_or(0) + 1, self.runs + 1);
        let weight = |trigger| {
            let (reached, runs) = share(trigger);
            (10 * runs / reached).clamp(1, WEIGHT_MAX) as u32
        };
        Trigger::ALL.iter().map(|trigger| (*trigger, weight(trigger))).collect()
    }
}

/// Returns the marks of the notes that fire a trigger.
fn marks_of(trigger: Trigger) -> &'static [&'static str] {
    match trigger {
        Trigger::Vote => &["raft: GrantVote"],
        Trigger::Lead | Trigger::Settle => &["raft: BecomeLeader"],
        Trigger::Commit => &["raft: AdvanceCommit", "raft: FollowerCommit"],
        Trigger::Members | Trigger::Changed => &["raft: ConfigAppend"],
        Trigger::Abort => &["raft: AbortPending"],
        Trigger::Copy => &["raft: CopyStart", "raft: CopyFinish"],
        Trigger::Flush => &["note: flushed"],
        Trigger::Merge => &["note: compacted"],
        Trigger::Alter => &["note: altered"],
        Trigger::Replay => &["note: replayed"],
        Trigger::Source => &["raft: CopyOpen"],
        Trigger::GiveUp => &["tablet copy: given up"],
        Trigger::Create => &["create: begins"],
        Trigger::Remove => &["delete: begins"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::marks::MARKS;

    #[test]
    fn rare_triggers_weigh_most() {
        let mut aims = Aims::default();
        for run in 0..100 {
            let mut marks = BTreeMap::from([("raft: GrantVote".to_string(), 3)]);
            marks.extend((run < 10).then(|| ("raft: AbortPending".to_string(), 1)));
            aims.add(&marks);
        }
        let weights: BTreeMap<Trigger, u32> = aims.weights().into_iter().collect();
        assert_eq!((weights[&Trigger::Vote], weights[&Trigger::Abort]), (10, 91));
        assert_eq!(weights[&Trigger::Alter], 1_000);
    }

    #[test]
    fn every_trigger_has_marks_of_the_list() {
        let marks = Trigger::ALL.iter().flat_map(|trigger| marks_of(*trigger));
        assert!(marks.into_iter().all(|mark| MARKS.contains(mark)));
    }
}
