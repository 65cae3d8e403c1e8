//! Replicas of a quiet cluster report their group to operators as it is: its term, its leader and its members, and the
//! leader reports every voter that runs as healthy.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::server_lists::RunningHost;

/// Name of this oracle.
pub const NAME: &str = "group reports";

/// A member of a group, as a replica reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberState {
    pub is_voter: bool,
    pub address: String,
    /// True if it is to be replaced.
    pub leaves: bool,
    /// True if it is reported as healthy. Leaders alone report health.
    pub is_healthy: bool,
}

/// A replica's report of its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupReport {
    pub term: i64,
    /// Id of the leader's server.
    pub leader: String,
    pub config_index: Option<i64>,
    pub is_change_pending: bool,
    /// Members of the committed configuration, by the ids of their servers.
    pub members: BTreeMap<String, MemberState>,
}

/// Reports by host and tablet. A host that did not reply is left out.
pub type GroupReports = BTreeMap<String, BTreeMap<String, GroupReport>>;

/// A voter of a tablet that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunningVoter<'a> {
    pub host: &'a str,
    /// Id of its server.
    pub server: &'a str,
    pub leads: bool,
}

/// Returns the voters of a tablet that run.
pub fn running_voters<'a>(
    tablet: &str,
    voters: &BTreeSet<String>,
    running: &'a [RunningHost],
) -> Vec<RunningVoter<'a>> {
    let of_host = |server: &'a RunningHost| {
        let leads = *server.replicas.get(tablet)?;
        let is_voter = voters.contains(&server.id);
        is_voter.then_some(RunningVoter { host: &server.host, server: &server.id, leads })
    };
    running.iter().filter_map(of_host).collect()
}

/// Returns the report of a tablet's leader: of the highest term, if several believe that they lead.
pub fn leader_report<'a>(
    reports: &'a GroupReports,
    tablet: &str,
    voters: &[RunningVoter<'a>],
) -> Option<(&'a str, &'a GroupReport)> {
    let leaders = voters.iter().filter(|voter| voter.leads);
    let told = leaders.filter_map(|voter| Some((voter.server, reports.get(voter.host)?.get(tablet)?)));
    told.max_by_key(|(_, report)| report.term)
}

/// Reports what voters of a tablet do not report as it is. A tablet whose leader did not report is left out.
/// `may_hide`: hosts that may leave out a replica which may fail next.
pub fn check(
    reports: &GroupReports,
    tablet: &str,
    voters: &[RunningVoter<'_>],
    may_hide: &BTreeSet<String>,
) -> Vec<Violation> {
    let Some((leader, of_leader)) = leader_report(reports, tablet, voters) else { return Vec::new() };
    let mut faults: Vec<String> = Vec::new();
    for voter in voters {
        let Some(told) = reports.get(voter.host) else { continue };
        match told.get(tablet) {
            Some(report) => faults.extend(difference(leader, of_leader, voter, report)),
            None if may_hide.contains(voter.host) => {}
            None => faults.push(format!("{} runs it and does not report it", voter.host)),
        }
        let is_ill = of_leader.members.get(voter.server).is_some_and(|member| !member.is_healthy);
        if is_ill {
            faults.push(format!("its leader does not report {} as healthy, which runs it", voter.host));
        }
    }
    faults.into_iter().map(|what| Violation::new(NAME, format!("tablet {tablet}: {what}"))).collect()
}

fn difference(
    leader: &str,
    of_leader: &GroupReport,
    voter: &RunningVoter<'_>,
    report: &GroupReport,
) -> Option<String> {
    let is_right = report.term == of_leader.term
        && report.leader == leader
        && report.config_index == of_leader.config_index
        && !report.is_change_pending
        && members(report).eq(members(of_leader));
    (!is_right).then(|| {
        let host = voter.host;
        format!("{host} reports {report:?}, and its leader {leader} reports {of_leader:?}")
    })
}

/// Returns the members of a report without their health.
fn members(report: &GroupReport) -> impl Iterator<Item = (&String, bool, &String, bool)> {
    report.members.iter().map(|(id, member)| (id, member.is_voter, &member.address, member.leaves))
}

/// Returns true if a report has this number of voters that stay, all of them healthy, and no other member.
pub fn is_complete(report: &GroupReport, voters: usize) -> bool {
    let stays = |member: &MemberState| member.is_voter && member.is_healthy && !member.leaves;
    report.members.len() == voters && report.members.values().all(stays)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> GroupReport {
        let member = |host: &str| MemberState {
            is_voter: true,
            address: format!("{host}:1"),
            leaves: false,
            is_healthy: true,
        };
        GroupReport {
            term: 3,
            leader: "x".to_string(),
            config_index: Some(7),
            is_change_pending: false,
            members: BTreeMap::from([("x".to_string(), member("t0")), ("y".to_string(), member("t1"))]),
        }
    }

    fn running(id: &str, host: &str, leads: bool) -> RunningHost {
        let replicas = BTreeMap::from([("a".to_string(), leads)]);
        RunningHost { host: host.to_string(), id: id.to_string(), replicas }
    }

    fn found(change: impl FnOnce(&mut GroupReport, &mut GroupReport)) -> usize {
        let (mut leader, mut follower) = (report(), report());
        follower.members.values_mut().for_each(|member| member.is_healthy = false);
        change(&mut leader, &mut follower);
        let of = |report| BTreeMap::from([("a".to_string(), report)]);
        let reports = GroupReports::from([("t0".to_string(), of(leader)), ("t1".to_string(), of(follower))]);
        found_in(&reports, &BTreeSet::new())
    }

    fn found_in(reports: &GroupReports, may_hide: &BTreeSet<String>) -> usize {
        let running = [running("x", "t0", true), running("y", "t1", false), running("z", "t2", false)];
        let voters = BTreeSet::from(["x", "y"].map(str::to_string));
        check(reports, "a", &running_voters("a", &voters, &running), may_hide).len()
    }

    #[test]
    fn voters_report_their_group_as_their_leader_does() {
        assert_eq!(found(|_, _| {}), 0);
        assert_eq!(found(|_, follower| follower.term = 2), 1);
        assert_eq!(found(|_, follower| follower.leader = "y".to_string()), 1);
        assert_eq!(found(|_, follower| follower.config_index = None), 1);
        assert_eq!(found(|leader, _| leader.is_change_pending = true), 1);
        assert_eq!(found(|leader, _| leader.leader = "y".to_string()), 1);
        let forget = |_: &mut GroupReport, follower: &mut GroupReport| drop(follower.members.pop_first());
        assert_eq!(found(forget), 1);
        let marked = |_: &mut GroupReport, follower: &mut GroupReport| {
            follower.members.values_mut().for_each(|member| member.leaves = true);
        };
        assert_eq!(found(marked), 1);
    }

    #[test]
    fn a_voter_that_runs_is_healthy_for_its_leader() {
        let ill = |leader: &mut GroupReport, _: &mut GroupReport| {
            leader.members.values_mut().for_each(|member| member.is_healthy = false);
        };
        assert_eq!(found(ill), 2);
        let gone = |leader: &mut GroupReport, follower: &mut GroupReport| {
            for report in [leader, follower] {
                let down = MemberState { is_healthy: false, ..report.members["x"].clone() };
                report.members.insert("down".to_string(), down);
            }
        };
        assert_eq!(found(gone), 0, "it does not run");
    }

    #[test]
    fn a_replica_that_is_not_reported_is_reported_here() {
        let of_leader = BTreeMap::from([("a".to_string(), report())]);
        let none = || GroupReports::from([("t1".to_string(), BTreeMap::new())]);
        let mut reports = none();
        assert_eq!(found_in(&reports, &BTreeSet::new()), 0, "its leader did not reply");
        reports.insert("t0".to_string(), of_leader);
        assert_eq!(found_in(&reports, &BTreeSet::new()), 1);
        assert_eq!(found_in(&reports, &BTreeSet::from(["t1".to_string()])), 0);
        reports.remove("t1");
        assert_eq!(found_in(&reports, &BTreeSet::new()), 0, "it did not reply");
    }

    #[test]
    fn a_complete_group_has_healthy_voters_alone() {
        assert!(is_complete(&report(), 2) && !is_complete(&report(), 3));
        let mut marked = report();
        marked.members.values_mut().for_each(|member| member.leaves = true);
        assert!(!is_complete(&marked, 2));
    }
}
