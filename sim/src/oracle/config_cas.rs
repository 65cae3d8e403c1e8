//! Configuration changes with a compare-and-set: a tablet with another configuration rejects the change.

use super::Violation;

const NAME: &str = "config CAS";

/// Above the index of any configuration.
pub const NO_CONFIG: i64 = 1 << 40;

/// Checks the reply to a change of the configuration of index `asked`; `refused`: true if it was rejected.
pub fn check_refused(tablet: &str, asked: i64, refused: bool) -> Option<Violation> {
    (asked >= NO_CONFIG && !refused).then(|| {
        Violation::new(NAME, format!("tablet {tablet} changed a configuration that it does not have"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_a_configuration_that_is_not_there_is_noticed() {
        assert!(check_refused("a", NO_CONFIG, false).is_some());
        assert_eq!(check_refused("a", NO_CONFIG, true), None);
        assert_eq!(check_refused("a", 7, false), None, "it may have that one");
    }
}
