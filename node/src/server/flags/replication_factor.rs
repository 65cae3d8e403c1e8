//! Replication factors that the flags of a master allow: the catalog refuses a table with any other.

use engine::error::{Error, Result};

use super::Flags;

/// Flag of the replication factor of tables that name none.
pub(super) const DEFAULT_NUM_REPLICAS: &str = "default_num_replicas";

/// Returns `Invalid` for flags with which no table can be created, or none with the factor of `default_num_replicas`. If
/// that is not given, tables may be created that name a factor.
pub fn check_replication_factors(flags: &Flags) -> Result<()> {
    let (min, max) = (flags.number("min_num_replicas"), flags.number("max_num_replicas"));
    if min > max {
        return Err(Error::invalid(format!(
            "min_num_replicas: {min} is above max_num_replicas ({max}), so that no table could be created; lower it"
        )));
    }
    if !flags.is_given(DEFAULT_NUM_REPLICAS) {
        return Ok(());
    }
    let checked = check_default(flags, flags.number(DEFAULT_NUM_REPLICAS));
    checked.map_err(|why| Error::invalid(format!("{DEFAULT_NUM_REPLICAS}: {why}")))
}

/// Returns the fault of a default.
pub(super) fn check_default(flags: &Flags, replicas: u64) -> Result<(), String> {
    let (min, max) = (flags.number("min_num_replicas"), flags.number("max_num_replicas"));
    if !(min..=max).contains(&replicas) {
        return Err(format!(
            "{replicas} is not between min_num_replicas ({min}) and max_num_replicas ({max}); give a number between them"
        ));
    }
    if replicas.is_multiple_of(2) && !flags.bool("allow_unsafe_replication_factor") {
        return Err(format!(
            "{replicas} is even, which survives no more failures than one replica fewer; give an odd number"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::flags::FlagError;

    /// Returns the flags of a master that have these values.
    fn flags(values: &[(&str, &str)]) -> Flags {
        let flags = Flags::new();
        values.iter().for_each(|(name, value)| flags.set(name, value).expect(name));
        flags
    }

    #[test]
    fn factors_with_which_no_table_can_be_created_are_refused_at_the_start() {
        let refused = |values: &[(&str, &str)]| {
            check_replication_factors(&flags(values)).expect_err("no table").message
        };
        let lines = [
            refused(&[("min_num_replicas", "5"), ("max_num_replicas", "3")]),
            refused(&[("min_num_replicas", "5"), ("default_num_replicas", "3")]),
            refused(&[("max_num_replicas", "1"), ("default_num_replicas", "3")]),
            refused(&[("default_num_replicas", "4")]),
        ];
        expect_test::expect![[r#"
            min_num_replicas: 5 is above max_num_replicas (3), so that no table could be created; lower it
            default_num_replicas: 3 is not between min_num_replicas (5) and max_num_replicas (7); give a number between them
            default_num_replicas: 3 is not between min_num_replicas (1) and max_num_replicas (1); give a number between them
            default_num_replicas: 4 is even, which survives no more failures than one replica fewer; give an odd number"#]]
        .assert_eq(&lines.join("\n"));
        for allowed in [
            &[("min_num_replicas", "5"), ("default_num_replicas", "5")][..],
            &[],
            &[("min_num_replicas", "5")],
            &[("default_num_replicas", "4"), ("allow_unsafe_replication_factor", "true")],
        ] {
            assert_eq!(check_replication_factors(&flags(allowed)), Ok(()), "{allowed:?}");
        }
    }

    #[test]
    fn a_default_that_no_table_can_have_is_refused_at_run_time() {
        let flags = flags(&[("max_num_replicas", "5")]);
        let change = |value: &str| flags.change(DEFAULT_NUM_REPLICAS, value, true);
        for refused in ["2", "7", "0"] {
            assert!(matches!(change(refused), Err(FlagError::BadValue(_))), "{refused}");
        }
        assert_eq!(change("5"), Ok("3".to_string()));
        assert_eq!(change("1"), Ok("5".to_string()));
    }
}
