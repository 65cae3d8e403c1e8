//! Masters' answers to ConnectToMaster: a master that calls itself the leader tells clients the cluster, and in a
//! secured one a token and the authority that they trust. The addresses of masters are those that the leader lists.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Violation;
use crate::wire::connections::{LeaderAnswers, MasterAnswer};

const NAME: &str = "connections";

/// Rules that depend on the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionRules {
    pub is_secure: bool,
    /// True if a leader always has a key for tokens: only a fault that stops it, or delays its writes, lets all keys
    /// expire.
    pub has_keys: bool,
    /// Least time in which a master that was deposed can lead again.
    pub election: Duration,
}

/// Checks the answers of leaders. `may_lose_catalog`: true for a master that may end its catalog and load it again in
/// one term.
pub fn check(
    rules: &ConnectionRules,
    answers: &LeaderAnswers,
    may_lose_catalog: impl Fn(&str) -> bool,
) -> Vec<Violation> {
    let mut found = Vec::new();
    if answers.clusters.len() > 1 {
        let message = format!("masters tell several ids of the cluster: {:?}", answers.clusters);
        found.push(Violation::new(NAME, message));
    }
    for (address, answer, again) in &answers.incomplete {
        let loses = may_lose_catalog(address);
        let lacks = missing(rules, answer, again.as_ref().filter(|_| !loses));
        found.extend(lacks.map(|what| {
            Violation::new(NAME, format!("{address} calls itself the leader and tells no {what}: {answer:?}"))
        }));
    }
    found
}

/// Returns what an answer of a leader lacks.
///
/// A master that is deposed within the call may lack the id, so only one that leads right after it counts, too: in this
/// time it cannot have been elected again.
fn missing(
    rules: &ConnectionRules,
    answer: &MasterAnswer,
    again: Option<&MasterAnswer>,
) -> Option<&'static str> {
    let span = |again: &MasterAnswer| Duration::from_nanos(again.told.saturating_sub(answer.asked));
    let leads_on = again.is_some_and(|again| again.leads && span(again) < rules.election);
    match answer {
        MasterAnswer { cluster: None, .. } if leads_on => Some("cluster"),
        MasterAnswer { has_authority: false, .. } if rules.is_secure => Some("authority"),
        MasterAnswer { has_token: false, .. } if rules.is_secure && rules.has_keys => Some("token"),
        _ => None,
    }
}

/// Checks the addresses that a leader tells clients. `before` and `after`: the masters that it lists before and after
/// the call. While they change nothing is known, and a single master tells the addresses that it was given.
pub fn check_addresses(
    master: &str,
    told: &BTreeSet<String>,
    before: &BTreeSet<String>,
    after: &BTreeSet<String>,
) -> Option<Violation> {
    let is_known = before == after && before.len() > 1;
    (is_known && told != before).then(|| {
        let message = format!("{master} tells clients the masters {told:?}, and lists {before:?}");
        Violation::new(NAME, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::connections::ConnectionLog;

    const RULES: ConnectionRules =
        ConnectionRules { is_secure: true, has_keys: true, election: Duration::from_nanos(100) };

    fn answer(asked: u64) -> MasterAnswer {
        let cluster = Some("c".to_string());
        MasterAnswer { asked, told: asked + 10, leads: true, cluster, has_token: true, has_authority: true }
    }

    fn found(rules: &ConnectionRules, first: MasterAnswer, again: Option<MasterAnswer>) -> usize {
        let log = ConnectionLog::default();
        log.add("m0", true, &first, again);
        check(rules, &log.all(), |address| address == "m1").len()
    }

    #[test]
    fn a_leader_without_a_cluster_is_reported_if_it_leads_on() {
        let lacking = MasterAnswer { cluster: None, ..answer(0) };
        assert_eq!(found(&RULES, answer(0), None), 0);
        assert_eq!(found(&RULES, lacking.clone(), Some(answer(20))), 1);
        assert_eq!(found(&RULES, lacking.clone(), None), 0);
        let follows = MasterAnswer { leads: false, ..answer(20) };
        assert_eq!(found(&RULES, lacking.clone(), Some(follows)), 0, "it was deposed");
        assert_eq!(found(&RULES, lacking.clone(), Some(answer(200))), 0, "it may lead again");
        let log = ConnectionLog::default();
        log.add("m1", true, &lacking, Some(answer(20)));
        assert!(check(&RULES, &log.all(), |address| address == "m1").is_empty(), "its disk failed");
    }

    #[test]
    fn a_secured_leader_tells_a_token_and_the_authority() {
        let tokenless = MasterAnswer { has_token: false, ..answer(0) };
        assert_eq!(found(&RULES, tokenless.clone(), None), 1);
        let late = ConnectionRules { has_keys: false, ..RULES };
        assert_eq!(found(&late, tokenless.clone(), None), 0);
        let unknown = MasterAnswer { has_authority: false, ..tokenless };
        assert_eq!(found(&late, unknown.clone(), None), 1);
        let plain = ConnectionRules { is_secure: false, ..RULES };
        assert_eq!(found(&plain, unknown, None), 0);
    }

    #[test]
    fn two_clusters_are_reported() {
        let log = ConnectionLog::default();
        log.add("m0", false, &answer(0), None);
        log.add("m1", false, &answer(5), None);
        assert!(check(&RULES, &log.all(), |_| false).is_empty());
        log.add("m1", false, &MasterAnswer { cluster: Some("d".to_string()), ..answer(9) }, None);
        assert_eq!(check(&RULES, &log.all(), |_| false).len(), 1);
    }

    #[test]
    fn clients_are_told_the_masters_that_the_leader_lists() {
        let set = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<BTreeSet<String>>();
        let (all, two) = (set(&["m0", "m1", "m2"]), set(&["m0", "m1"]));
        assert_eq!(check_addresses("m0", &two, &two, &two), None);
        assert!(check_addresses("m0", &all, &two, &two).is_some());
        assert_eq!(check_addresses("m0", &all, &two, &all), None, "they change");
        assert_eq!(check_addresses("m0", &all, &set(&["m0"]), &set(&["m0"])), None, "a single one");
    }
}
