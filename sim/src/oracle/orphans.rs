//! O10: deletion leaves no orphans. A directory of rows or of a log belongs to a tablet that has a superblock.

use std::collections::BTreeSet;

use super::Violation;

const NAME: &str = "orphans";

/// The contents of one server's disks, by the names of tablets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskContents {
    pub server: String,
    pub superblocks: BTreeSet<String>,
    pub data: BTreeSet<String>,
    pub logs: BTreeSet<String>,
    /// Files of existing tablets that their superblocks do not name.
    pub unnamed: BTreeSet<String>,
}

/// Reports orphans.
pub fn check(servers: &[DiskContents]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for server in servers {
        for (what, tablets) in [("rows", &server.data), ("the log", &server.logs)] {
            for tablet in tablets.difference(&server.superblocks) {
                let name = &server.server;
                let message = format!("{name} keeps {what} of tablet {tablet}, which has no superblock");
                violations.push(Violation::new(NAME, message));
            }
        }
        for file in &server.unnamed {
            let message =
                format!("{} keeps {file}, which the tablet's superblock does not name", server.server);
            violations.push(Violation::new(NAME, message));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_without_a_superblock_is_an_orphan() {
        let set = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        let lying = |data: &[&str], logs: &[&str]| DiskContents {
            server: "t0".to_string(),
            superblocks: set(&["a", "b"]),
            data: set(data),
            logs: set(logs),
            unnamed: set(&[]),
        };
        assert!(check(&[lying(&["a"], &["a", "b"])]).is_empty());
        assert_eq!(check(&[lying(&["a", "c"], &["b"])]).len(), 1);
        assert_eq!(check(&[lying(&["a"], &["c", "d"])]).len(), 2);
        let mut leaky = lying(&["a"], &["a"]);
        leaky.unnamed = set(&["data/a/00000001.rows"]);
        assert_eq!(check(&[leaky]).len(), 1);
    }
}
