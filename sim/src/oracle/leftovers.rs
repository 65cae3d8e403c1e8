//! O10: nothing is left of what is gone. A directory of rows or of a log belongs to a tablet that has a superblock.

use std::collections::BTreeSet;

use super::Finding;

const NAME: &str = "leftovers";

/// What lies on the disks of one server, by the names of tablets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lying {
    pub server: String,
    pub superblocks: BTreeSet<String>,
    pub data: BTreeSet<String>,
    pub logs: BTreeSet<String>,
    /// Files of tablets that are there, which their superblocks do not name.
    pub unnamed: BTreeSet<String>,
}

/// What belongs to nobody.
pub fn check(servers: &[Lying]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for server in servers {
        for (what, tablets) in [("rows", &server.data), ("the log", &server.logs)] {
            for tablet in tablets.difference(&server.superblocks) {
                let name = &server.server;
                let message =
                    format!("{name} keeps {what} of tablet {tablet}, which it has no superblock of");
                findings.push(Finding::new(NAME, message));
            }
        }
        for file in &server.unnamed {
            let message =
                format!("{} keeps {file}, which the tablet's superblock does not name", server.server);
            findings.push(Finding::new(NAME, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_superblock_is_left_over() {
        let set = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        let lying = |data: &[&str], logs: &[&str]| Lying {
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
