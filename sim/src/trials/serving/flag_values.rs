//! Values that the operator has given to flags of servers, as far as they are known, and the checks of what a server
//! shows of a flag.

use std::collections::BTreeMap;

use nyala_proto::kudu::server::get_flags_response_pb::Flag;

/// A flag that servers follow while they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LiveFlag {
    pub name: &'static str,
    /// Value of the flag at each start of a server.
    pub default: u64,
}

/// Delay of each batch of a scan, in milliseconds.
pub(super) const BATCH_DELAY: LiveFlag =
    LiveFlag { name: "scanner_inject_latency_on_each_batch_ms", default: 0 };
/// Most bytes of a batch.
pub(super) const BATCH_BYTES: LiveFlag = LiveFlag { name: "scanner_max_batch_size_bytes", default: 8 << 20 };

/// Flags of one server, whose process has the values since it was started.
#[derive(Debug, Clone, Default)]
pub(super) struct FlagValues {
    /// Number of restarts before the process began.
    restarts: u64,
    /// Values that were set, by name; `None` if it is unknown which value the flag has.
    set: BTreeMap<&'static str, Option<u64>>,
}

impl FlagValues {
    /// Returns the value of a flag after this number of restarts, if it is known.
    pub(super) fn value(&self, flag: LiveFlag, restarts: u64) -> Option<u64> {
        match self.set.get(flag.name) {
            Some(value) if self.restarts == restarts => *value,
            _ => Some(flag.default),
        }
    }

    /// Records the value that a flag was set to, or `None` if the reply is missing. Then the value is unknown until the
    /// next restart: the request may still arrive, after later ones.
    pub(super) fn record(&mut self, flag: LiveFlag, restarts: u64, value: Option<u64>) {
        if self.restarts != restarts {
            *self = FlagValues { restarts, set: BTreeMap::new() };
        }
        let known = self.set.entry(flag.name).or_insert(value);
        *known = known.and(value);
    }
}

/// Returns what is wrong in a server's replies to a question for a flag of this value, and for the flags that have
/// other values than their defaults.
pub(super) fn fault_shown(flag: LiveFlag, value: u64, named: &[Flag], changed: &[Flag]) -> Option<String> {
    let is_default = value == flag.default;
    let is_right = |shown: &Flag| {
        shown.name() == flag.name
            && shown.value() == value.to_string()
            && shown.is_default_value == Some(is_default)
            && shown.tags.iter().any(|tag| tag == "runtime")
    };
    if !matches!(named, [shown] if is_right(shown)) {
        return Some(format!("{} is {value} and shown as {named:?}", flag.name));
    }
    let is_listed = changed.iter().any(|shown| shown.name() == flag.name);
    let are_changed = changed.iter().all(|shown| shown.is_default_value == Some(false));
    if is_listed != is_default && are_changed {
        return None;
    }
    Some(format!("{} is {value}, and the changed flags are {changed:?}", flag.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 2;

    #[test]
    fn a_value_is_known_until_a_reply_is_missing_and_again_after_a_restart() {
        let mut values = FlagValues::default();
        let of = |values: &FlagValues, restarts| values.value(BATCH_DELAY, restarts);
        assert_eq!(of(&values, START), Some(0));
        values.record(BATCH_DELAY, START, Some(7));
        assert_eq!((of(&values, START), of(&values, START + 1)), (Some(7), Some(0)));
        assert_eq!(values.value(BATCH_BYTES, START), Some(8 << 20));
        values.record(BATCH_DELAY, START, None);
        values.record(BATCH_DELAY, START, Some(9));
        assert_eq!(of(&values, START), None, "the lost request may come after the one with the reply");
        values.record(BATCH_BYTES, START + 1, Some(1));
        assert_eq!(of(&values, START + 1), Some(0));
    }

    fn shown(flag: LiveFlag, value: u64) -> Flag {
        Flag {
            name: Some(flag.name.to_string()),
            value: Some(value.to_string()),
            tags: vec!["unsafe".to_string(), "runtime".to_string()],
            is_default_value: Some(value == flag.default),
        }
    }

    fn fault(value: u64, named: &[&Flag], changed: &[&Flag]) -> Option<String> {
        let owned = |flags: &[&Flag]| flags.iter().copied().cloned().collect::<Vec<_>>();
        fault_shown(BATCH_DELAY, value, &owned(named), &owned(changed))
    }

    #[test]
    fn a_flag_that_is_not_shown_as_it_is_is_found() {
        let (seven, zero, other) = (shown(BATCH_DELAY, 7), shown(BATCH_DELAY, 0), shown(BATCH_BYTES, 1));
        assert_eq!(fault(7, &[&seven], &[&other, &seven]), None);
        assert_eq!(fault(0, &[&zero], &[&other]), None);
        let as_default = Flag { is_default_value: Some(true), ..seven.clone() };
        let fixed = Flag { tags: vec!["unsafe".to_string()], ..seven.clone() };
        for named in [vec![&zero], vec![], vec![&seven, &other], vec![&as_default], vec![&fixed]] {
            assert!(fault(7, &named, &[&seven]).is_some(), "{named:?}");
        }
        assert!(fault(7, &[&seven], &[]).is_some(), "a changed flag must be listed");
        assert!(fault(0, &[&zero], &[&zero]).is_some(), "a flag at its default must not");
    }
}
