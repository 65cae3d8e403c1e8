//! A change that is asked for of a certain configuration is refused by a tablet that has another.

use super::Finding;

const NAME: &str = "membership";

/// Above the index of any configuration.
pub const NO_CONFIG: i64 = 1 << 40;

/// A tablet was asked to change the configuration of index `asked`; `refused`: whether it said no.
pub fn check_refused(tablet: &str, asked: i64, refused: bool) -> Option<Finding> {
    (asked >= NO_CONFIG && !refused)
        .then(|| Finding::new(NAME, format!("tablet {tablet} changed a configuration that it has not")))
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
