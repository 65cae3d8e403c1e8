//! Servers tell all that a lost catalog is rebuilt from: each replica's superblock has the traits that the server lists
//! beside it, its view of the group is the one that it reports to operators, and the cluster is the one that masters
//! tell.

use std::collections::BTreeMap;

use super::Violation;
use super::group_reports::{GroupReport, GroupReports};
use super::table_settings::Settings;
use super::tablet_traits::{ReplicaPair, TraitLists, TraitTexts};

/// Name of this oracle.
pub const NAME: &str = "rebuild sources";

/// A replica as its server describes it for a rebuild.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebuildSource {
    /// Traits in the superblock, or the reason for which they are unknown.
    pub traits: Result<TraitTexts, String>,
    /// Settings in the superblock.
    pub settings: Settings,
    /// The group as the replica sees it, without health.
    pub group: Option<GroupReport>,
}

/// Replicas as their servers describe them.
pub type RebuildSources = BTreeMap<ReplicaPair, RebuildSource>;

/// Reports replicas that are described in another way than their servers list and report them. `voters`: replicas that
/// masters list as voters and that run. A replica without a group report, as in a secured cluster, is compared with the
/// list alone.
pub fn check(
    sources: &RebuildSources,
    lists: &TraitLists,
    groups: &GroupReports,
    voters: &[ReplicaPair],
) -> Vec<Violation> {
    let each = voters.iter().flat_map(|pair| {
        let (host, tablet) = pair;
        let what = faults(sources, lists, groups, pair).into_iter();
        what.map(move |what| Violation::new(NAME, format!("{host} describes tablet {tablet} with {what}")))
    });
    each.collect()
}

fn faults(
    sources: &RebuildSources,
    lists: &TraitLists,
    groups: &GroupReports,
    pair: &ReplicaPair,
) -> Vec<String> {
    let (Some(source), Some(listed)) = (sources.get(pair), lists.get(pair)) else { return Vec::new() };
    let mut faults = Vec::new();
    match &source.traits {
        Ok(traits) if *traits == listed.traits => {}
        told => faults.push(format!("the superblock {told:?}, and lists it with {:?}", listed.traits)),
    }
    let reported = groups.get(&pair.0).and_then(|tablets| tablets.get(&pair.1));
    match (&source.group, reported) {
        (Some(own), Some(reported)) if *own != without_health(reported) => {
            faults.push(format!("the group {own:?}, and reports {reported:?}"));
        }
        (None, _) => faults.push("no group".to_string()),
        _ => {}
    }
    faults
}

/// Returns a report as a replica makes it that is not asked for the health of members.
fn without_health(report: &GroupReport) -> GroupReport {
    let mut report = report.clone();
    report.members.values_mut().for_each(|member| member.is_healthy = false);
    report
}

/// Reports servers that tell another cluster than masters do, or none. `told`: by host.
pub fn check_clusters(told: &BTreeMap<String, Option<String>>, masters: &str) -> Vec<Violation> {
    let differs = told.iter().filter(|(_, cluster)| cluster.as_deref() != Some(masters));
    let what = differs.map(|(host, cluster)| {
        let message = format!("{host} tells the cluster {cluster:?}, and masters tell {masters}");
        Violation::new(NAME, message)
    });
    what.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::group_reports::MemberState;
    use crate::oracle::tablet_traits::ListedTraits;

    fn group(is_healthy: bool) -> GroupReport {
        let member = MemberState { is_voter: true, address: "t0:1".to_string(), leaves: false, is_healthy };
        GroupReport {
            term: 3,
            leader: "x".to_string(),
            config_index: Some(7),
            is_change_pending: false,
            members: BTreeMap::from([("x".to_string(), member)]),
        }
    }

    fn found(change: impl FnOnce(&mut RebuildSource, &mut GroupReports)) -> usize {
        let pair = ("t0".to_string(), "a".to_string());
        let traits = TraitTexts::from([("schema version", "3".to_string())]);
        let listed = ListedTraits { traits: traits.clone(), ..ListedTraits::default() };
        let reports = BTreeMap::from([("a".to_string(), group(true))]);
        let mut groups = GroupReports::from([("t0".to_string(), reports)]);
        let mut source =
            RebuildSource { traits: Ok(traits), settings: Settings::new(), group: Some(group(false)) };
        change(&mut source, &mut groups);
        let lists = TraitLists::from([(pair.clone(), listed)]);
        let voters = [pair.clone(), ("t1".to_string(), "a".to_string())];
        check(&RebuildSources::from([(pair, source)]), &lists, &groups, &voters).len()
    }

    #[test]
    fn replicas_are_described_as_they_are_listed() {
        assert_eq!(found(|_, _| {}), 0);
        assert_eq!(found(|source, _| source.traits = Err("not a superblock".to_string())), 1);
        assert_eq!(found(|source, _| source.traits = Ok(TraitTexts::new())), 1);
        assert_eq!(found(|source, _| source.group = None), 1);
        let older = |source: &mut RebuildSource, _: &mut GroupReports| {
            source.group = Some(GroupReport { term: 2, ..group(false) });
        };
        assert_eq!(found(older), 1);
        let unknown = |source: &mut RebuildSource, groups: &mut GroupReports| {
            groups.clear();
            older(source, groups);
        };
        assert_eq!(found(unknown), 0, "no server reports groups");
    }

    #[test]
    fn servers_tell_the_cluster_of_their_masters() {
        let found = |cluster: Option<&str>| {
            let told = BTreeMap::from([("t0".to_string(), cluster.map(str::to_string))]);
            check_clusters(&told, "c").len()
        };
        assert_eq!((found(Some("c")), found(Some("d")), found(None)), (0, 1, 1));
    }
}
