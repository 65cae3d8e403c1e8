//! Replicas of an idle cluster hibernate: heartbeats wake neither followers nor their leader. A server with thousands
//! of idle tablets could do nothing else.
//!
//! A group that is not quiet may be awake: one of its members is missing or behind, or its members change. Other
//! oracles report it.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::settled_tablets::RunningReplica;

const NAME: &str = "hibernation";

/// Returns the members of groups of several voters that are quiet.
pub fn quiet_members(replicas: &[RunningReplica]) -> Vec<&RunningReplica> {
    let mut groups: BTreeMap<&str, Vec<&RunningReplica>> = BTreeMap::new();
    for replica in replicas {
        groups.entry(&replica.tablet).or_default().push(replica);
    }
    groups.values().filter_map(|group| quiet_voters(group)).flatten().collect()
}

fn quiet_voters<'a>(group: &[&'a RunningReplica]) -> Option<Vec<&'a RunningReplica>> {
    let leaders = group.iter().filter(|replica| replica.leads);
    let leader = leaders.max_by_key(|replica| replica.term)?;
    let voters: Vec<&RunningReplica> =
        group.iter().copied().filter(|replica| leader.voters.contains(&replica.server)).collect();
    let agrees = |replica: &&RunningReplica| {
        (replica.term, replica.config_index, replica.applied)
            == (leader.term, leader.config_index, leader.applied)
    };
    let servers: BTreeSet<&String> = voters.iter().map(|replica| &replica.server).collect();
    let is_whole = servers.len() == leader.voters.len() && leader.learners.is_empty();
    let is_quiet = is_whole && !leader.is_change_pending && voters.iter().all(agrees);
    (is_quiet && voters.len() > 1).then_some(voters)
}

/// Reports members of quiet groups that do not hibernate. One may be met awake: callers look again. `is_far`: true
/// if a leader may have sent all that may be in flight before the first response: then it waits for it.
pub fn check(replicas: &[RunningReplica], is_far: bool) -> Vec<Violation> {
    let must_hibernate = |replica: &&RunningReplica| !(replica.leads && is_far);
    let awake =
        quiet_members(replicas).into_iter().filter(must_hibernate).filter(|replica| !replica.hibernates);
    awake
        .map(|replica| {
            let RunningReplica { tablet, server, leads, .. } = replica;
            let role = if *leads { "leader" } else { "follower" };
            Violation::new(
                NAME,
                format!("the {role} of tablet {tablet} at {server} is awake in an idle cluster"),
            )
        })
        .collect()
}

/// Checks the number of heartbeats that hibernating followers answered. `beats`: heartbeats that each follower got.
pub fn check_answers(answers: u64, followers: u64, beats: u64) -> Option<Violation> {
    // The first one may find a follower awake, and others may be on their way.
    let least = followers * (beats.saturating_sub(1) / 2);
    (answers < least).then(|| {
        let message = format!(
            "{answers} heartbeats were answered in hibernation, and {followers} followers of an idle cluster got \
             {beats} each"
        );
        Violation::new(NAME, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(server: &str) -> RunningReplica {
        RunningReplica {
            tablet: "a".to_string(),
            server: server.to_string(),
            term: 3,
            leads: server == "t0",
            voters: ["t0", "t1"].map(str::to_string).into(),
            learners: BTreeSet::new(),
            config_index: 5,
            is_change_pending: false,
            applied: 9,
            hibernates: true,
        }
    }

    fn found(change: impl FnOnce(&mut RunningReplica, &mut RunningReplica)) -> usize {
        let (mut leader, mut follower) = (replica("t0"), replica("t1"));
        change(&mut leader, &mut follower);
        check(&[leader, follower], false).len()
    }

    #[test]
    fn a_member_that_is_awake_is_reported() {
        assert_eq!(found(|_, _| {}), 0);
        assert_eq!(found(|leader, _| leader.hibernates = false), 1);
        assert_eq!(found(|_, follower| follower.hibernates = false), 1);
    }

    #[test]
    fn a_group_that_is_not_quiet_may_be_awake() {
        let behind = |_: &mut RunningReplica, follower: &mut RunningReplica| {
            (follower.hibernates, follower.applied) = (false, 8);
        };
        assert_eq!(found(behind), 0);
        let changes = |leader: &mut RunningReplica, _: &mut RunningReplica| {
            (leader.hibernates, leader.is_change_pending) = (false, true);
        };
        assert_eq!(found(changes), 0);
        let awake = RunningReplica { hibernates: false, ..replica("t0") };
        assert_eq!(check(std::slice::from_ref(&awake), false), [], "the other voter is down");
        assert_eq!(check(&[awake.clone(), replica("t1")], true), [], "it waits for responses");
        let alone = RunningReplica { voters: ["t0".to_string()].into(), ..awake };
        assert_eq!(check(&[alone], false), []);
    }

    #[test]
    fn followers_that_are_woken_by_each_heartbeat_are_reported() {
        assert_eq!(check_answers(38, 10, 4), None);
        assert_eq!(check_answers(10, 10, 4), None);
        assert!(check_answers(9, 10, 4).is_some());
        assert_eq!(check_answers(0, 0, 4), None);
    }
}
