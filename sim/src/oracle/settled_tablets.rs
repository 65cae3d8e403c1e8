//! Tablets of a quiet cluster are settled: masters know the leader and the voters that the tablet has, its last
//! operation is committed on all voters, no change of its configuration is pending, and no learner is left.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;

/// Name of this oracle.
pub const NAME: &str = "settled tablets";

/// A tablet as masters list it: ids of servers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedTablet {
    pub leader: Option<String>,
    pub voters: BTreeSet<String>,
}

/// A replica that runs, as its server sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningReplica {
    pub tablet: String,
    /// Id of its server.
    pub server: String,
    pub term: u64,
    pub leads: bool,
    /// Ids of the servers in the committed configuration, and its index.
    pub voters: BTreeSet<String>,
    pub learners: BTreeSet<String>,
    pub config_index: i64,
    pub is_change_pending: bool,
    /// Timestamp of the last operation that it has applied.
    pub applied: u64,
    /// True if events that report nothing new do not wake it.
    pub hibernates: bool,
}

/// Reports tablets that are not settled.
pub fn check(listed: &BTreeMap<String, ListedTablet>, running: &[RunningReplica]) -> Vec<Violation> {
    let mut replicas: BTreeMap<&str, Vec<&RunningReplica>> = BTreeMap::new();
    for replica in running {
        replicas.entry(&replica.tablet).or_default().push(replica);
    }
    let each = listed.iter().flat_map(|(tablet, known)| {
        let own = replicas.get(tablet.as_str()).map_or(&[][..], Vec::as_slice);
        let faults = faults(known, own);
        faults.into_iter().map(move |what| Violation::new(NAME, format!("tablet {tablet}: {what}")))
    });
    each.collect()
}

fn faults(known: &ListedTablet, replicas: &[&RunningReplica]) -> Vec<String> {
    let leaders = replicas.iter().filter(|replica| replica.leads);
    let Some(leader) = leaders.max_by_key(|replica| replica.term) else {
        return vec!["none of its replicas leads".to_string()];
    };
    let mut found = Vec::new();
    if known.leader.as_ref() != Some(&leader.server) {
        let taken = known.leader.as_deref().unwrap_or("none");
        found.push(format!("masters take {taken} for its leader, which is {}", leader.server));
    }
    if known.voters != leader.voters {
        found.push(format!("masters know its voters {:?}, which are {:?}", known.voters, leader.voters));
    }
    if leader.is_change_pending {
        found.push("a change of its configuration is pending".to_string());
    }
    if !leader.learners.is_empty() {
        found.push(format!("{:?} are learners still", leader.learners));
    }
    for voter in replicas.iter().filter(|replica| leader.voters.contains(&replica.server)) {
        if voter.applied != leader.applied {
            let (own, leading) = (voter.applied, leader.applied);
            found.push(format!(
                "{} has applied operations up to {own}, its leader up to {leading}",
                voter.server
            ));
        }
        if voter.config_index != leader.config_index {
            let (own, leading) = (voter.config_index, leader.config_index);
            found.push(format!(
                "{} has the configuration of index {own}, its leader of {leading}",
                voter.server
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    fn replica(server: &str) -> RunningReplica {
        RunningReplica {
            tablet: "a".to_string(),
            server: server.to_string(),
            term: 3,
            leads: server == "t0",
            voters: ids(&["t0", "t1"]),
            learners: BTreeSet::new(),
            config_index: 5,
            is_change_pending: false,
            applied: 9,
            hibernates: true,
        }
    }

    fn found(change: impl FnOnce(&mut ListedTablet, &mut RunningReplica, &mut RunningReplica)) -> usize {
        let mut known = ListedTablet { leader: Some("t0".to_string()), voters: ids(&["t0", "t1"]) };
        let (mut leader, mut follower) = (replica("t0"), replica("t1"));
        change(&mut known, &mut leader, &mut follower);
        check(&BTreeMap::from([("a".to_string(), known)]), &[leader, follower]).len()
    }

    #[test]
    fn a_settled_tablet_passes() {
        assert_eq!(found(|_, _, _| {}), 0);
        assert_eq!(found(|_, _, follower| follower.server = "t7".to_string()), 0, "it is no voter");
    }

    #[test]
    fn what_is_not_settled_is_reported() {
        assert_eq!(found(|known, _, _| known.leader = Some("t1".to_string())), 1);
        assert_eq!(found(|known, _, _| known.leader = None), 1);
        assert_eq!(found(|known, _, _| known.voters = ids(&["t0"])), 1);
        assert_eq!(found(|_, leader, _| leader.leads = false), 1);
        assert_eq!(found(|_, leader, _| leader.is_change_pending = true), 1);
        assert_eq!(found(|_, leader, _| leader.learners = ids(&["t2"])), 1);
        assert_eq!(found(|_, _, follower| follower.applied = 8), 1);
        assert_eq!(found(|_, _, follower| follower.config_index = 4), 1);
    }

    #[test]
    fn the_leader_of_the_highest_term_counts() {
        let deposed = |_: &mut ListedTablet, _: &mut RunningReplica, follower: &mut RunningReplica| {
            (follower.leads, follower.term) = (true, 2);
        };
        assert_eq!(found(deposed), 0);
    }
}
