//! Agreement of several time servers: the interval that holds the true time if a majority of them is right.

/// True time minus the local monotonic clock, as one server has it, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TimeInterval {
    pub low: i128,
    pub high: i128,
}

/// Returns the smallest interval that holds every point within the intervals of a majority of `servers`; `None` if
/// there is no such point. If at most a minority is wrong, the true time is within the intervals of all others, which
/// are a majority, so it is in the result.
///
/// Source: Marzullo, "Maintaining the Time in a Distributed System", 1984.
pub(super) fn agree(intervals: &[TimeInterval], servers: usize) -> Option<TimeInterval> {
    let majority = servers / 2 + 1;
    let is_agreed = |point: i128| {
        intervals.iter().filter(|interval| (interval.low..=interval.high).contains(&point)).count()
            >= majority
    };
    // The covered points change at ends of intervals only.
    let low = intervals.iter().map(|interval| interval.low).filter(|low| is_agreed(*low)).min()?;
    let high = intervals.iter().map(|interval| interval.high).filter(|high| is_agreed(*high)).max()?;
    Some(TimeInterval { low, high })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn interval(low: i128, high: i128) -> TimeInterval {
        TimeInterval { low, high }
    }

    #[test]
    fn one_of_three_may_lie() {
        let (a, b, liar) = (interval(-5, 10), interval(0, 20), interval(3_600_000_000, 3_600_000_010));
        assert_eq!(agree(&[a, liar, b], 3), Some(interval(0, 10)));
        assert_eq!(agree(&[a, liar], 3), None, "the third is silent");
        assert_eq!(agree(&[a, b], 3), Some(interval(0, 10)));
        assert_eq!(agree(&[a], 2), None, "one of two is no majority");
        assert_eq!(agree(&[a], 1), Some(a));
        assert_eq!(agree(&[], 0), None);
    }

    proptest! {
        #[test]
        fn the_truth_is_within_if_a_majority_is_right(
            good in prop::collection::vec((0..1000i128, 0..1000i128), 1..6),
            bad in prop::collection::vec((-5000..5000i128, 0..1000i128), 0..5),
        ) {
            let bad = &bad[..bad.len().min(good.len() - 1)];
            let right = good.iter().map(|(before, after)| interval(-before, *after));
            let wrong = bad.iter().map(|(low, width)| interval(*low, low + width));
            let all: Vec<_> = right.chain(wrong).collect();
            let found = agree(&all, all.len()).expect("the right ones agree");
            prop_assert!((found.low..=found.high).contains(&0), "{found:?}");
        }
    }
}
