//! Sizes of tablets that servers tell are those of their files: rowsets, superblock, consensus metadata, and the larger
//! one of the log and the rows and deltas in memory. Planners place replicas by them.

use std::collections::BTreeMap;

use super::Violation;

const NAME: &str = "disk sizes";

/// Sizes of one replica in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaSizes {
    pub server: String,
    pub tablet: String,
    /// As its server tells it.
    pub told: u64,
    /// Files of rowsets that the superblock names.
    pub rowsets: u64,
    pub superblock: u64,
    pub consensus: u64,
    /// Segments of the log, with the space reserved for the last one.
    pub log: u64,
    /// Rows and deltas in memory, as the tablet counts them.
    pub memory: u64,
}

impl ReplicaSizes {
    fn wanted(&self) -> u64 {
        self.rowsets + self.superblock + self.consensus + self.log.max(self.memory)
    }
}

/// Reports replicas whose size is not that of their files.
pub fn check(replicas: &[ReplicaSizes]) -> Vec<Violation> {
    let differs = replicas.iter().filter(|sizes| sizes.told != sizes.wanted());
    differs
        .map(|sizes| {
            let message =
                format!("a size of {} bytes is told, not {}: {sizes:?}", sizes.told, sizes.wanted());
            Violation::new(NAME, message)
        })
        .collect()
}

/// Reports replicas whose size in a server's list is not that of their files. `listed`: sizes by server and tablet.
pub fn check_listed(listed: &BTreeMap<(String, String), u64>, replicas: Vec<ReplicaSizes>) -> Vec<Violation> {
    let told = |sizes: ReplicaSizes| {
        let told = *listed.get(&(sizes.server.clone(), sizes.tablet.clone()))?;
        Some(ReplicaSizes { told, ..sizes })
    };
    check(&replicas.into_iter().filter_map(told).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listed_size_is_that_of_the_files() {
        let of = |tablet: &str| ("t0".to_string(), tablet.to_string());
        let listed = BTreeMap::from([(of("a"), 5), (of("b"), 6)]);
        let sizes = |tablet: &str| {
            let (server, tablet) = of(tablet);
            ReplicaSizes { server, tablet, told: 0, rowsets: 5, ..ReplicaSizes::default() }
        };
        assert_eq!(check_listed(&listed, vec![sizes("a"), sizes("not listed")]), []);
        assert_eq!(check_listed(&listed, vec![sizes("a"), sizes("b")]).len(), 1);
    }

    #[test]
    fn a_size_that_lacks_a_file_is_reported() {
        let sizes = ReplicaSizes {
            told: 100 + 10 + 20 + 300,
            rowsets: 100,
            superblock: 10,
            consensus: 20,
            log: 300,
            memory: 299,
            ..ReplicaSizes::default()
        };
        assert_eq!(check(std::slice::from_ref(&sizes)), []);
        let in_memory = ReplicaSizes { told: sizes.told + 50, memory: 350, ..sizes.clone() };
        assert_eq!(check(&[in_memory]), []);
        let wrong = [
            ReplicaSizes { rowsets: 99, ..sizes.clone() },
            ReplicaSizes { superblock: 11, ..sizes.clone() },
            ReplicaSizes { consensus: 4, ..sizes.clone() },
            ReplicaSizes { log: 301, ..sizes.clone() },
            ReplicaSizes { told: 0, ..sizes },
        ];
        assert_eq!(check(&wrong).len(), wrong.len());
    }
}
