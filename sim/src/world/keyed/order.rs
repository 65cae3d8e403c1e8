//! Orders in which ready tasks run. A seed has one of three kinds.

use crate::draws::{Purpose, keyed};

/// Order of the ready tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskOrder {
    /// Each wake of a task draws a priority.
    Uniform,
    /// A task keeps its priority for this many wakes, so that some tasks are always late (as PCT's priorities, which
    /// change at a few points of a run).
    Held { wakes: u64 },
    /// In the order of wakes.
    RoundRobin,
}

/// Shares of the kinds, in percent; the rest is round robin.
const UNIFORM_PERCENT: u64 = 60;
const HELD_PERCENT: u64 = 30;
/// Binary logarithms of the wakes for which a priority is held. A task that yields until another has run must not wait
/// for long.
const HELD_LOG2_MIN: u64 = 3;
const HELD_LOG2_MAX: u64 = 9;

impl TaskOrder {
    /// Returns the order of a seed.
    pub(super) fn of(seed: u64) -> TaskOrder {
        let percent = keyed(seed, Purpose::Order, [0; 3]) % 100;
        let log2 =
            HELD_LOG2_MIN + keyed(seed, Purpose::Order, [1, 0, 0]) % (HELD_LOG2_MAX - HELD_LOG2_MIN + 1);
        match percent {
            0..UNIFORM_PERCENT => TaskOrder::Uniform,
            percent if percent < UNIFORM_PERCENT + HELD_PERCENT => TaskOrder::Held { wakes: 1 << log2 },
            _ => TaskOrder::RoundRobin,
        }
    }

    /// Returns the priority of a task at its `nth` wake; the lowest runs first. `wakes`: those of all tasks before.
    pub(super) fn priority(self, seed: u64, task: u64, nth: u64, wakes: u64) -> u64 {
        match self {
            TaskOrder::Uniform => keyed(seed, Purpose::Priority, [task, nth, 0]),
            // Each task has change points of its own: the first stretch is shorter.
            TaskOrder::Held { wakes } => {
                keyed(seed, Purpose::Priority, [task, (nth + task % wakes) / wakes, 0])
            }
            TaskOrder::RoundRobin => wakes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_have_orders_by_their_shares() {
        let orders: Vec<TaskOrder> = (0..2_000).map(TaskOrder::of).collect();
        let share = |is: fn(&TaskOrder) -> bool| orders.iter().filter(|order| is(order)).count() / 20;
        assert!((55..65).contains(&share(|order| *order == TaskOrder::Uniform)));
        assert!((25..35).contains(&share(|order| matches!(order, TaskOrder::Held { .. }))));
        assert!((7..14).contains(&share(|order| *order == TaskOrder::RoundRobin)));
    }

    #[test]
    fn a_held_priority_changes_at_points_of_its_task() {
        let order = TaskOrder::Held { wakes: 8 };
        for task in [8, 11] {
            let priorities: Vec<u64> = (0..80).map(|nth| order.priority(1, task, nth, 0)).collect();
            let changes: Vec<usize> = (1..80).filter(|at| priorities[*at] != priorities[at - 1]).collect();
            let first = 8 - task as usize % 8;
            assert_eq!(changes, (0..).map(|n| first + 8 * n).take_while(|at| *at < 80).collect::<Vec<_>>());
        }
    }
}
