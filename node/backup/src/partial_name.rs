//! Names of tables while they are restored, and the rules for the names that they get.
//!
//! ```text
//!   sales                      ─▶ sales.restoring-1795000000000
//!   a name of 233 to 256 bytes ─▶ its beginning, ~, a hash of it, .restoring-1795000000000
//! ```
//!
//! Invariant: two tables that are restored at the same time have different partial names, also if they have the same
//! beginning and the same T: `--resume` would write to the other table otherwise.

use engine::cfile::stable_hash::hash64;
use engine::error::{Error, Result};

/// Bytes of a table's name that masters accept, unless `max_identifier_length` is changed.
const NAME_BYTES_MAX: usize = 256;
/// Text before T.
const RESTORING: &str = ".restoring-";
/// Digits of T, milliseconds since 1970, until the year 2286.
const TIME_DIGITS: usize = 13;

/// Partial names that restores to one table can have.
pub(crate) struct PartialName<'a> {
    /// Beginning of the table's name with which they begin, too; the whole name, if that leaves enough bytes.
    pub beginning: &'a str,
    /// Text before T.
    stem: String,
}

impl PartialName<'_> {
    /// Returns the partial names of a table. Masters that accepted a longer name accept partial names as long.
    pub(crate) fn of(name: &str) -> PartialName<'_> {
        let stem_bytes_max = NAME_BYTES_MAX.max(name.len()) - TIME_DIGITS;
        if name.len() + RESTORING.len() <= stem_bytes_max {
            return PartialName { beginning: name, stem: format!("{name}{RESTORING}") };
        }
        let ending = format!("~{:016x}{RESTORING}", hash64(name.as_bytes()));
        let beginning = &name[..name.floor_char_boundary(stem_bytes_max - ending.len())];
        PartialName { beginning, stem: format!("{beginning}{ending}") }
    }

    /// Returns the partial name in a restore of the state at T.
    pub(crate) fn at(&self, to_ms: u64) -> String {
        format!("{}{to_ms}", self.stem)
    }

    /// Returns T, if a table has one of these names.
    pub(crate) fn time_of(&self, table: &str) -> Option<u64> {
        table.strip_prefix(&self.stem)?.parse().ok()
    }
}

/// Refuses a name that the masters would refuse once all rows are written.
pub fn check_new_name(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid("--as: the name is empty; give the new table a name"));
    }
    if name.len() > NAME_BYTES_MAX {
        let bytes = name.len();
        return Err(Error::invalid(format!(
            "--as: a name of {bytes} bytes, of at most {NAME_BYTES_MAX}; give a shorter one"
        )));
    }
    if name.contains('\0') {
        return Err(Error::invalid("--as: the name has a NUL character; give one without"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u64 = 1_795_000_000_000;

    #[test]
    fn a_name_that_leaves_enough_bytes_is_kept() {
        assert_eq!(PartialName::of("t").at(T), "t.restoring-1795000000000");
        let longest = "n".repeat(232);
        assert_eq!(PartialName::of(&longest).at(T), format!("{longest}.restoring-1795000000000"));
    }

    #[test]
    fn longer_names_have_partial_names_that_fit_and_differ() {
        for (letter, letters) in [("n", 232..=256), ("é", 116..=127), ("\u{1f9a8}", 58..=63)] {
            for letters in letters {
                let names = ["", "a", "b"].map(|end| format!("{}{end}", letter.repeat(letters)));
                let partial = names.each_ref().map(|name| PartialName::of(name).at(T));
                assert!(partial[0] != partial[1] && partial[1] != partial[2], "{partial:?}");
                for (name, partial) in names.iter().zip(&partial) {
                    assert!(partial.len() <= NAME_BYTES_MAX.max(name.len()), "{partial}");
                    let of = PartialName::of(name);
                    assert!(name.starts_with(of.beginning) && partial.starts_with(of.beginning), "{partial}");
                    assert_eq!(of.time_of(partial), Some(T), "{partial}");
                }
                assert_eq!(PartialName::of(&names[1]).time_of(&partial[2]), None);
            }
        }
    }

    #[test]
    fn names_that_no_table_can_have_are_refused() {
        for name in ["", "a\0b", &"é".repeat(129)] {
            assert!(check_new_name(name).is_err(), "{name:?}");
        }
        for name in ["t", &"é".repeat(128), "a.restoring-1"] {
            assert_eq!(check_new_name(name), Ok(()), "{name:?}");
        }
    }
}
