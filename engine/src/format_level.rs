//! Format levels: the versions of stored formats that the programs of a cluster may write.
//!
//! ```text
//!   level   since    written from this level on
//!     1     0.1.0    all formats of the first release
//!     2     0.2.0    NYIN v3: level and program in `instance`      NYcc v2: level in the cluster's record
//! ```
//!
//! A cluster has one level. Masters keep it in the catalog, servers in their `instance` files. A program reads all
//! levels of its range and older formats, and writes what the cluster's level has. So a cluster can return to the last
//! release until an operator raises the level.
//!
//! To change a format: a level is added here, and a version to the format's row. A writer that takes its version from
//! [`StoredFormat::only_version`] then does not compile until it writes [`StoredFormat::version_at`] the cluster's
//! level.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Level of the formats that a cluster writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FormatLevel(pub u16);

impl FormatLevel {
    /// Level of the first release, which records no level.
    pub const FIRST: FormatLevel = FormatLevel(1);
}

impl fmt::Display for FormatLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Levels that a program supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LevelRange {
    pub oldest: FormatLevel,
    pub newest: FormatLevel,
}

impl LevelRange {
    /// Levels of this program.
    pub const PROGRAM: LevelRange = LevelRange { oldest: FormatLevel::FIRST, newest: FormatLevel(2) };
    /// Levels of the first release, which does not name them.
    pub const FIRST: LevelRange = LevelRange { oldest: FormatLevel::FIRST, newest: FormatLevel::FIRST };

    /// Returns the range with these ends; `Invalid` if they are not in order, or no levels.
    pub fn new(oldest: u32, newest: u32) -> Result<LevelRange> {
        let level = |number: u32| u16::try_from(number).ok().filter(|level| *level > 0).map(FormatLevel);
        match (level(oldest), level(newest)) {
            (Some(oldest), Some(newest)) if oldest <= newest => Ok(LevelRange { oldest, newest }),
            _ => Err(Error::invalid(format!("{oldest} to {newest} is no range of format levels"))),
        }
    }

    pub fn contains(self, level: FormatLevel) -> bool {
        (self.oldest..=self.newest).contains(&level)
    }

    /// Returns `Unsupported` unless a program of this range may serve at `level`.
    pub fn check(self, level: FormatLevel, program: &str) -> Result<()> {
        let action = match level {
            level if level > self.newest => "use the program that wrote it, or a later one",
            level if level < self.oldest => {
                "upgrade through a release that supports both, and finalize that upgrade first"
            }
            _ => return Ok(()),
        };
        Err(Error::unsupported(format!(
            "format level {level} is not supported by this program ({program} supports {self}); {action}"
        )))
    }
}

impl fmt::Display for LevelRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.oldest == self.newest {
            true => write!(f, "level {}", self.oldest),
            false => write!(f, "levels {} to {}", self.oldest, self.newest),
        }
    }
}

/// A format of stored files or rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredFormat {
    /// `NYIN`: identity of a directory.
    Instance,
    /// `NYTM`: superblock.
    Superblock,
    /// `NYCM`: consensus metadata.
    ConsensusMeta,
    /// `NYWS`: log segment with its batches.
    LogSegment,
    /// `NYWT`: truncations of a log.
    LogTruncations,
    /// `NYPF`: rows, deltas, columns.
    PageFile,
    /// `NYcc`: the cluster's row of the catalog.
    ClusterRecord,
    /// All other rows of the catalog.
    CatalogRecord,
    /// `NYSC`: progress of the scrubber.
    ScrubProgress,
}

impl StoredFormat {
    /// Versions written, each from its level on; the first one from level 1 on.
    const fn versions(self) -> &'static [(FormatLevel, u16)] {
        const FIRST: FormatLevel = FormatLevel::FIRST;
        match self {
            StoredFormat::Instance => &[(FIRST, 2), (FormatLevel(2), 3)],
            StoredFormat::Superblock => &[(FIRST, 3)],
            StoredFormat::LogSegment => &[(FIRST, 2)],
            StoredFormat::ClusterRecord => &[(FIRST, 1), (FormatLevel(2), 2)],
            StoredFormat::ConsensusMeta
            | StoredFormat::LogTruncations
            | StoredFormat::PageFile
            | StoredFormat::CatalogRecord
            | StoredFormat::ScrubProgress => &[(FIRST, 1)],
        }
    }

    /// Returns the version that is written at `level`.
    pub const fn version_at(self, level: FormatLevel) -> u16 {
        let versions = self.versions();
        let mut at = versions.len() - 1;
        while at > 0 && versions[at].0.0 > level.0 {
            at -= 1;
        }
        versions[at].1
    }

    /// Returns `Corrupt` for data of a version that is not written at the level that the data records.
    pub fn check_version(self, version: u16, level: FormatLevel) -> Result<()> {
        match level >= FormatLevel::FIRST && self.version_at(level) == version {
            true => Ok(()),
            false => Err(Error::corrupt(format!("format {version} is not written at format level {level}"))),
        }
    }

    /// Returns the newest version that this program reads and writes.
    pub const fn newest_version(self) -> u16 {
        let versions = self.versions();
        versions[versions.len() - 1].1
    }

    /// Returns the version of a format that has the same one at all levels. Otherwise a constant does not compile.
    pub const fn only_version(self) -> u16 {
        let versions = self.versions();
        assert!(
            versions.len() == 1,
            "the version depends on the level: write version_at the cluster's level"
        );
        versions[0].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [StoredFormat; 9] = [
        StoredFormat::Instance,
        StoredFormat::Superblock,
        StoredFormat::ConsensusMeta,
        StoredFormat::LogSegment,
        StoredFormat::LogTruncations,
        StoredFormat::PageFile,
        StoredFormat::ClusterRecord,
        StoredFormat::CatalogRecord,
        StoredFormat::ScrubProgress,
    ];

    /// Levels that were released: a change of one makes programs write what the last release does not read.
    #[test]
    fn released_levels_never_change() {
        let written = |level| ALL.map(|format| format.version_at(FormatLevel(level)));
        assert_eq!(written(1), [2, 3, 1, 2, 1, 1, 1, 1, 1], "0.1.0");
        assert_eq!(written(2), [3, 3, 1, 2, 1, 1, 2, 1, 1], "0.2.0");
        assert_eq!(LevelRange::PROGRAM.newest, FormatLevel(2), "add the new level's row here");
    }

    #[test]
    fn the_newest_level_writes_the_newest_versions() {
        for format in ALL {
            assert_eq!(format.version_at(LevelRange::PROGRAM.newest), format.newest_version(), "{format:?}");
            let levels = format.versions().iter().map(|(level, _)| *level);
            assert!(levels.is_sorted() && format.versions()[0].0 == FormatLevel::FIRST, "{format:?}");
        }
    }

    #[test]
    fn data_of_another_level_than_it_records_is_corrupt() {
        let allowed =
            |version, level| StoredFormat::Instance.check_version(version, FormatLevel(level)).is_ok();
        assert_eq!([allowed(2, 1), allowed(3, 2), allowed(3, 9)], [true; 3]);
        assert_eq!([allowed(3, 0), allowed(3, 1), allowed(2, 2)], [false; 3]);
    }

    #[test]
    fn unsupported_levels_are_refused_with_the_way_out() {
        let range = LevelRange::new(2, 3).expect("in order");
        let refused = |level| range.check(FormatLevel(level), "nyala 0.3.0").err().map(|error| error.message);
        assert_eq!([refused(2), refused(3)], [None, None]);
        expect_test::expect![[r#"
            format level 1 is not supported by this program (nyala 0.3.0 supports levels 2 to 3); upgrade through a release that supports both, and finalize that upgrade first
            format level 4 is not supported by this program (nyala 0.3.0 supports levels 2 to 3); use the program that wrote it, or a later one
        "#]]
        .assert_eq(&format!("{}\n{}\n", refused(1).unwrap(), refused(4).unwrap()));
        for (oldest, newest) in [(0, 1), (3, 2), (1, 65_536)] {
            assert!(LevelRange::new(oldest, newest).is_err());
        }
    }
}
