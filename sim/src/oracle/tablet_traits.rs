//! Tablets of a quiet cluster are as their table: each replica has its name, its schema and the version of it, and the
//! tablet's partition, and lists the directory that has its data.

use std::collections::BTreeMap;

use super::Violation;

/// Name of this oracle.
pub const NAME: &str = "tablet traits";

/// Traits of a tablet as text, by name.
pub type TraitTexts = BTreeMap<&'static str, String>;

/// Host and tablet of a replica.
pub type ReplicaPair = (String, String);

/// A replica as its server lists it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedTraits {
    pub traits: TraitTexts,
    pub dirs: Vec<String>,
    /// True for the state of data that is whole.
    pub is_ready: bool,
    /// True for a role of voters: leader or follower.
    pub votes: bool,
    /// Error of a replica that does not run.
    pub error: String,
}

/// Replicas as servers list them.
pub type TraitLists = BTreeMap<ReplicaPair, ListedTraits>;

/// Reports replicas with other traits than their tablets are to have. `voters`: replicas that masters list as voters
/// and that run; a replica that its server does not list is reported elsewhere.
pub fn check(
    wanted: &BTreeMap<String, TraitTexts>,
    lists: &TraitLists,
    voters: &[ReplicaPair],
) -> Vec<Violation> {
    voters.iter().flat_map(|pair| violations(wanted, lists, pair)).collect()
}

fn violations(
    wanted: &BTreeMap<String, TraitTexts>,
    lists: &TraitLists,
    pair: &ReplicaPair,
) -> Vec<Violation> {
    let (host, tablet) = pair;
    let (Some(wanted), Some(listed)) = (wanted.get(tablet), lists.get(pair)) else { return Vec::new() };
    let violation = |what: String| {
        Violation::new(NAME, format!("{host} lists its replica of tablet {tablet} with {what}"))
    };
    faults(wanted, listed).into_iter().map(violation).collect()
}

fn faults(wanted: &TraitTexts, listed: &ListedTraits) -> Vec<String> {
    let differs = |(name, text): (&&'static str, &String)| {
        let told = listed.traits.get(*name);
        (told != Some(text)).then(|| format!("{name} {told:?}, not {text}"))
    };
    let mut faults: Vec<String> = wanted.iter().filter_map(differs).collect();
    if !(listed.is_ready && listed.votes && listed.error.is_empty()) {
        faults.push(format!("another state than that of a voter that runs: {listed:?}"));
    }
    faults
}

/// Reports replicas whose servers list another directory than those that have their superblocks. `stored`: directories
/// by replica; others are not known.
pub fn check_dirs(
    lists: &TraitLists,
    voters: &[ReplicaPair],
    stored: &BTreeMap<ReplicaPair, Vec<String>>,
) -> Vec<Violation> {
    let fault = |pair: &ReplicaPair| {
        let (listed, dirs) = (lists.get(pair)?, stored.get(pair)?);
        let (host, tablet) = pair;
        let what = || {
            let told = &listed.dirs;
            format!("{host} lists tablet {tablet} in {told:?}, and its superblock is in {dirs:?}")
        };
        (listed.dirs != *dirs).then(|| Violation::new(NAME, what()))
    };
    voters.iter().filter_map(fault).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: &str = "schema version";

    fn pair(host: &str) -> ReplicaPair {
        (host.to_string(), "a".to_string())
    }

    fn lists(change: impl FnOnce(&mut ListedTraits)) -> TraitLists {
        let mut listed = ListedTraits {
            traits: TraitTexts::from([(VERSION, "3".to_string()), ("of servers only", "x".to_string())]),
            dirs: vec!["data".to_string()],
            is_ready: true,
            votes: true,
            error: String::new(),
        };
        change(&mut listed);
        TraitLists::from([(pair("t0"), listed)])
    }

    fn found(change: impl FnOnce(&mut ListedTraits)) -> usize {
        let wanted = BTreeMap::from([("a".to_string(), TraitTexts::from([(VERSION, "3".to_string())]))]);
        check(&wanted, &lists(change), &[pair("t0"), pair("t1")]).len()
    }

    #[test]
    fn other_traits_than_those_of_the_tablet_are_reported() {
        assert_eq!(found(|_| {}), 0);
        assert_eq!(found(|listed| drop(listed.traits.insert(VERSION, "2".to_string()))), 1);
        assert_eq!(found(|listed| drop(listed.traits.remove(VERSION))), 1);
        assert_eq!(found(|listed| drop(listed.traits.remove("of servers only"))), 0);
        assert_eq!(found(|listed| listed.is_ready = false), 1);
        assert_eq!(found(|listed| listed.votes = false), 1);
        assert_eq!(found(|listed| listed.error = "corrupt".to_string()), 1);
    }

    #[test]
    fn another_directory_than_that_of_the_superblock_is_reported() {
        let stored = BTreeMap::from([(pair("t0"), vec!["data".to_string()])]);
        let found = |change: fn(&mut ListedTraits)| check_dirs(&lists(change), &[pair("t0")], &stored).len();
        assert_eq!(found(|_| {}), 0);
        assert_eq!(found(|listed| listed.dirs[0] = "data-2".to_string()), 1);
        assert_eq!(found(|listed| listed.dirs.clear()), 1);
        assert_eq!(check_dirs(&lists(|_| {}), &[], &stored), []);
    }
}
