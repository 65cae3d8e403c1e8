//! Replicas that no master lists are gone. Once the cluster is quiet, a server has rows of a tablet only as a member of
//! it: former members were told to drop theirs and keep a tombstone at most, and so did all members of dropped tables,
//! also those whose replica had failed (KUDU-1607).

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;

/// Name of this oracle.
pub const NAME: &str = "unlisted replicas";

/// Servers of the replicas of each tablet, as masters list them.
pub type ListedReplicas = BTreeMap<String, BTreeSet<String>>;

/// Reports replicas with data, by server and tablet, that are not listed.
pub fn check(listed: &ListedReplicas, with_data: &[(String, String)]) -> Vec<Violation> {
    let unlisted = with_data
        .iter()
        .filter(|(server, tablet)| listed.get(tablet).is_none_or(|servers| !servers.contains(server)));
    unlisted
        .map(|(server, tablet)| {
            let members = listed.get(tablet).map_or("was dropped".to_string(), |servers| {
                format!("has its replicas on {}", Vec::from_iter(servers.iter().cloned()).join(", "))
            });
            let message = format!("{server} keeps its replica of tablet {tablet}, which {members}");
            Violation::new(NAME, message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_is_not_listed_is_reported() {
        let servers = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        let listed = ListedReplicas::from([("a".to_string(), servers(&["t0", "t1"]))]);
        let found = |server: &str, tablet: &str| check(&listed, &[(server.to_string(), tablet.to_string())]);
        assert!(found("t0", "a").is_empty());
        assert!(found("t2", "a")[0].message.ends_with("which has its replicas on t0, t1"));
        assert!(found("t0", "b")[0].message.ends_with("tablet b, which was dropped"));
    }
}
