//! O10: deletion leaves no orphans. A directory of rows or of a log, and consensus metadata, belong to a tablet that
//! has a superblock, which is in one directory of its server alone. A tombstone has neither rows nor a log.

use std::collections::BTreeSet;

use super::Violation;

const NAME: &str = "orphans";

/// The contents of one server's disks, or of one of its directories, by the names of tablets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskContents {
    pub server: String,
    pub superblocks: BTreeSet<String>,
    pub data: BTreeSet<String>,
    pub logs: BTreeSet<String>,
    pub consensus: BTreeSet<String>,
    /// Tablets that have superblocks in several directories.
    pub twice: BTreeSet<String>,
    /// Files of existing tablets that their superblocks do not name.
    pub unnamed: BTreeSet<String>,
}

/// Files of a tablet that its server calls a tombstone, and whose superblock does so too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TombstoneFiles {
    pub server: String,
    pub tablet: String,
    pub has_log: bool,
    pub has_rows: bool,
}

/// Reports orphans.
pub fn check(servers: &[DiskContents]) -> Vec<Violation> {
    servers.iter().flat_map(orphans).map(|message| Violation::new(NAME, message)).collect()
}

fn orphans(of: &DiskContents) -> Vec<String> {
    let name = &of.server;
    let mut found = Vec::new();
    for (what, tablets) in [("rows", &of.data), ("the log", &of.logs), ("consensus metadata", &of.consensus)]
    {
        let without = tablets.difference(&of.superblocks);
        found.extend(
            without.map(|tablet| format!("{name} keeps {what} of tablet {tablet}, which has no superblock")),
        );
    }
    let twice = of.twice.iter();
    found.extend(twice.map(|tablet| format!("{name} has tablet {tablet} in several directories")));
    let unnamed = of.unnamed.iter();
    found.extend(
        unnamed.map(|file| format!("{name} keeps {file}, which the tablet's superblock does not name")),
    );
    found
}

/// Reports tombstones with data. The next start would remove it.
pub fn check_tombstones(tombstones: &[TombstoneFiles]) -> Vec<Violation> {
    let with_data = tombstones.iter().filter(|tombstone| tombstone.has_log || tombstone.has_rows);
    with_data
        .map(|tombstone| {
            let TombstoneFiles { server, tablet, has_log, has_rows } = tombstone;
            let message = format!(
                "{server} keeps data of tablet {tablet}, which is a tombstone: log {has_log}, rows {has_rows}"
            );
            Violation::new(NAME, message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn data_without_a_superblock_is_an_orphan() {
        let with = |data: &[&str], logs: &[&str]| DiskContents {
            server: "t0".to_string(),
            superblocks: set(&["a", "b"]),
            data: set(data),
            logs: set(logs),
            consensus: set(&["a"]),
            ..DiskContents::default()
        };
        assert!(check(&[with(&["a"], &["a", "b"])]).is_empty());
        assert_eq!(check(&[with(&["a", "c"], &["b"])]).len(), 1);
        assert_eq!(check(&[with(&["a"], &["c", "d"])]).len(), 2);
        let leaky = DiskContents { unnamed: set(&["data/a/00000001.rows"]), ..with(&["a"], &["a"]) };
        assert_eq!(check(&[leaky]).len(), 1);
        let voted = DiskContents { consensus: set(&["a", "c"]), ..with(&["a"], &["a"]) };
        assert_eq!(check(&[voted]).len(), 1);
        let twice = DiskContents { twice: set(&["a"]), ..with(&["a"], &["a"]) };
        assert_eq!(check(&[twice]).len(), 1);
    }

    #[test]
    fn a_tombstone_has_no_data() {
        let tombstone = TombstoneFiles::default();
        assert!(check_tombstones(std::slice::from_ref(&tombstone)).is_empty());
        let with_log = TombstoneFiles { has_log: true, ..tombstone.clone() };
        let with_rows = TombstoneFiles { has_rows: true, ..tombstone };
        assert_eq!(check_tombstones(&[with_log, with_rows]).len(), 2);
    }
}
