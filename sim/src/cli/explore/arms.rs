//! Learnt weights: choices that brought more new features for their CPU time are made more often.
//!
//! Thompson sampling: each arm's rate of success is drawn from what is known of it, and the greatest draw wins. A third
//! of the choices are by hand-set weights, so that no arm ever falls below a third of its own.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sim_plan::RandomStream;

/// Successes from which on old ones fade: what was new once is not any more.
const SCORE_MAX: u32 = 64;

/// The successes and the cost of an arm so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Doublings of new features, added up.
    score: u32,
    cpu_s: f64,
}

struct Arm<T> {
    value: T,
    weight: u32,
    record: Record,
}

/// The arms of one choice.
pub(super) struct Arms<T> {
    arms: Vec<Arm<T>>,
    name: fn(T) -> String,
}

impl<T: Copy + PartialEq> Arms<T> {
    /// Creates arms of these values with hand-set weights. `known`: what earlier campaigns learnt, by name.
    pub(super) fn new(
        values: impl IntoIterator<Item = (T, u32)>,
        name: fn(T) -> String,
        known: &BTreeMap<String, Record>,
    ) -> Arms<T> {
        let record = |value| known.get(&name(value)).copied().unwrap_or_default();
        let arm = |(value, weight)| Arm { value, weight, record: record(value) };
        Arms { arms: values.into_iter().map(arm).collect(), name }
    }

    /// Draws one by hand-set weights.
    pub(super) fn by_weight(&self, random: &mut RandomStream) -> T {
        let weights: Vec<(T, u32)> = self.arms.iter().map(|arm| (arm.value, arm.weight)).collect();
        random.weighted(&weights)
    }

    /// Draws one by what was learnt, or by hand-set weights in a third of the draws.
    pub(super) fn choose(&self, random: &mut RandomStream) -> T {
        if random.below(3) == 0 {
            return self.by_weight(random);
        }
        let drawn = self.arms.iter().map(|arm| (arm.record.draw_rate(random), arm.value));
        let best = drawn.max_by(|one, other| one.0.total_cmp(&other.0));
        best.map_or_else(|| self.by_weight(random), |(_, value)| value)
    }

    /// Records what a run with this arm brought.
    pub(super) fn learn(&mut self, value: T, new_features: usize, cpu_s: f64) {
        let Some(arm) = self.arms.iter_mut().find(|arm| arm.value == value) else { return };
        arm.record.score += (new_features as u64 + 1).ilog2();
        arm.record.cpu_s += cpu_s;
        if arm.record.score > SCORE_MAX {
            arm.record.score /= 2;
            arm.record.cpu_s /= 2.0;
        }
    }

    /// Returns what is known, by name.
    pub(super) fn records(&self) -> impl Iterator<Item = (String, Record)> + '_ {
        self.arms.iter().map(|arm| ((self.name)(arm.value), arm.record))
    }
}

impl Record {
    /// Draws a rate from the gamma distribution of `score + 1` successes in the CPU time: a sum of exponential draws.
    /// An arm without a run counts as one success in a second.
    fn draw_rate(&self, random: &mut RandomStream) -> f64 {
        let sum: f64 = (0..=self.score).map(|_| -fraction(random).ln()).sum();
        sum / (1.0 + self.cpu_s)
    }
}

/// Draws a number above 0 and at most 1.
pub(super) fn fraction(random: &mut RandomStream) -> f64 {
    ((random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arms() -> Arms<char> {
        Arms::new([('a', 1), ('b', 1), ('c', 4)], |arm| arm.to_string(), &BTreeMap::new())
    }

    fn share(arms: &Arms<char>, of: char) -> usize {
        let mut random = RandomStream::new(1, "arms");
        (0..3_000).filter(|_| arms.choose(&mut random) == of).count()
    }

    #[test]
    fn what_brings_more_is_chosen_more_and_nothing_dies_out() {
        let mut arms = arms();
        for _ in 0..200 {
            arms.learn('a', 300, 0.2);
            arms.learn('b', 0, 0.2);
            arms.learn('c', 0, 0.2);
        }
        assert!(share(&arms, 'a') > 1_900, "{}", share(&arms, 'a'));
        // A third of their shares of one and four sixths, less what chance takes.
        assert!(share(&arms, 'b') > 3_000 / 18 * 4 / 5, "{}", share(&arms, 'b'));
        assert!(share(&arms, 'c') > 3_000 * 4 / 18 * 4 / 5, "{}", share(&arms, 'c'));
    }

    #[test]
    fn equal_seeds_draw_equal_arms_and_records_stay() {
        let mut first = arms();
        first.learn('b', 7, 0.5);
        let records = first.records().collect();
        let again = Arms::new([('a', 1), ('b', 1), ('c', 4)], |arm: char| arm.to_string(), &records);
        assert_eq!(share(&again, 'b'), share(&first, 'b'));
        assert_eq!(records["b"], Record { score: 3, cpu_s: 0.5 });
    }
}
