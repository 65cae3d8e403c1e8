use proptest::prelude::*;

use super::*;
use crate::ids::Uuid;

fn id(letter: char) -> PeerId {
    Uuid([letter as u8; 16])
}

/// Parses a peer: `a` is a voter, `a~` a learner; `+` is to be promoted, `-` to be replaced.
fn peer(text: &str) -> Peer {
    let letter = text.chars().next().expect("a letter");
    Peer {
        member: if text.contains('~') { MemberKind::NonVoter } else { MemberKind::Voter },
        promote: text.contains('+'),
        replace: text.contains('-'),
        ..Peer::voter(id(letter), letter, 7050)
    }
}

fn config(text: &str) -> RaftConfig {
    RaftConfig { opid_index: Some(9), peers: text.split(' ').map(peer).collect() }
}

fn short(text: &str) -> String {
    ('a'..='z')
        .fold(text.to_string(), |text, letter| text.replace(&id(letter).to_string(), &letter.to_string()))
}

fn modify(
    letter: char,
    member: Option<MemberKind>,
    promote: Option<bool>,
    replace: Option<bool>,
) -> ConfigChangePart {
    ConfigChangePart::Modify { id: id(letter), member, promote, replace }
}

/// Applies a change to `a b c~`, led by `a`.
fn changed(parts: Vec<ConfigChangePart>) -> String {
    let change = ConfigChange { parts, cas_opid_index: Some(9) };
    match config("a b c~").changed(&change, id('a')) {
        Ok(config) => short(&config.to_string()),
        Err(error) => short(&error.message),
    }
}

#[test]
fn a_change_touches_one_voter_and_leaves_the_leader() {
    let voter = Some(MemberKind::Voter);
    let none = Some(MemberKind::NonVoter);
    let add = |text| ConfigChangePart::Add(peer(text));
    let remove = |letter| ConfigChangePart::Remove(id(letter));
    let cases = [
        vec![add("d")],
        vec![add("d~+"), add("e~")],
        vec![add("b")],
        vec![remove('b')],
        vec![remove('a')],
        vec![remove('d')],
        vec![modify('b', none, None, None)],
        vec![modify('a', none, None, None)],
        vec![modify('a', None, None, Some(true))],
        vec![modify('c', None, Some(true), Some(true))],
        vec![modify('c', voter, Some(true), None)],
        vec![modify('b', voter, None, Some(false))],
        vec![add("d"), remove('b')],
        vec![add("d~"), remove('b')],
        vec![modify('b', none, None, None), modify('c', voter, None, None)],
        vec![ConfigChangePart::Add(Peer { port: 0, ..peer("d~") })],
        vec![ConfigChangePart::Add(Peer { host: String::new(), ..peer("d~") })],
    ];
    insta::assert_snapshot!(cases.map(changed).join("\n"), @r"
    [a voter, b voter, c non-voter, d voter] initial
    [a voter, b voter, c non-voter, d non-voter promote, e non-voter] initial
    peer b is already in the configuration
    [a voter, c non-voter] initial
    peer a is the leader and cannot be removed; transfer the leadership first
    peer d is not in the configuration
    [a voter, b non-voter, c non-voter] initial
    peer a is the leader and must stay a voter; transfer the leadership first
    [a voter replace, b voter, c non-voter] initial
    [a voter, b voter, c non-voter promote replace] initial
    [a voter, b voter, c voter] initial
    the change would leave the configuration as it is
    the change touches 2 voters, but at most one may join, leave or change at a time
    [a voter, c non-voter, d non-voter] initial
    the change touches 2 voters, but at most one may join, leave or change at a time
    peer d has no address in the configuration
    peer d has no address in the configuration
    ");
}

#[test]
fn invalid_configurations_are_rejected() {
    let check = |text: &str| config(text).check().map_err(|error| short(&error.message));
    let many = |count: u8| {
        let letters: Vec<String> = (b'a'..b'a' + count).map(|letter| (letter as char).to_string()).collect();
        check(&letters.join(" "))
    };
    assert_eq!(check("a b~ c-"), Ok(()));
    assert_eq!(many(15), Ok(()));
    let rejected = [check("a~ b~"), many(16), check("a b a~")].map(|error| error.expect_err("rejected"));
    insta::assert_snapshot!(rejected.join("\n"), @r"
    a Raft configuration needs at least one voter
    16 voters are more than a group may have (15)
    peer a is named twice in the configuration
    ");
}

#[test]
fn only_voters_count_for_a_majority() {
    let majority = |text: &str| (config(text).voter_count(), config(text).majority());
    assert_eq!(
        ["a", "a b", "a b c~ d~", "a b c", "a b c d"].map(majority),
        [(1, 1), (2, 2), (2, 2), (3, 2), (4, 3)]
    );
    assert!(config("a b~").is_only_voter(id('a')) && !config("a b~").is_only_voter(id('b')));
    assert!(!config("a b").is_only_voter(id('a')) && !config("a").is_only_voter(id('z')));
    assert_eq!((config("a").kudu_index(), RaftConfig::initial(Vec::new()).kudu_index()), (9, -1));
}

fn any_config() -> impl Strategy<Value = RaftConfig> {
    let peer = prop::option::weighted(0.7, (any::<bool>(), any::<bool>(), any::<bool>()));
    (prop::option::of(any::<u64>()), prop::collection::vec(peer, 7)).prop_map(|(opid_index, peers)| {
        let peers = peers.into_iter().zip('a'..).filter_map(|(marks, letter)| {
            let (voter, promote, replace) = marks?;
            let member = if voter { MemberKind::Voter } else { MemberKind::NonVoter };
            Some(Peer { member, promote, replace, ..Peer::voter(id(letter), letter, 7050) })
        });
        RaftConfig { opid_index, peers: peers.collect() }
    })
}

fn any_change() -> impl Strategy<Value = ConfigChange> {
    let part = (0..7u8, 0..4u8, any::<bool>(), any::<bool>()).prop_map(|(letter, change, voter, mark)| {
        let letter = (b'a' + letter) as char;
        let member = if voter { MemberKind::Voter } else { MemberKind::NonVoter };
        match change {
            0 => ConfigChangePart::Add(Peer { member, ..Peer::voter(id(letter), letter, 7050) }),
            1 => ConfigChangePart::Remove(id(letter)),
            2 => modify(letter, Some(member), None, None),
            _ => modify(letter, None, Some(mark), Some(!mark)),
        }
    });
    prop::collection::vec(part, 1..4).prop_map(|parts| ConfigChange { parts, cas_opid_index: None })
}

/// Returns true if every majority of the one meets every majority of the other: all subsets are tried.
fn majorities_meet(one: &RaftConfig, other: &RaftConfig) -> bool {
    let majorities = |config: &RaftConfig| {
        let voters: Vec<u32> = config.voters().map(|peer| u32::from(peer.id.0[0] - b'a')).collect();
        let least = config.majority();
        (0u32..1 << 7).filter(move |set| {
            let all = voters.iter().fold(0, |all, at| all | 1 << at);
            set & !all == 0 && set.count_ones() as usize >= least
        })
    };
    majorities(one).all(|a| majorities(other).all(|b| a & b != 0))
}

proptest! {
    /// The basis of Raft's safety, for each change that is accepted.
    #[test]
    fn majorities_before_and_after_a_change_meet(before in any_config(), change in any_change()) {
        prop_assume!(before.check().is_ok());
        let change = ConfigChange { cas_opid_index: Some(before.kudu_index()), ..change };
        let leader = before.voters().next().expect("it was checked").id;
        if let Ok(after) = before.changed(&change, leader) {
            prop_assert!(after.check().is_ok() && after.is_voter(leader));
            prop_assert!(after.peers != before.peers && after.opid_index.is_none());
            prop_assert!(before.voters_changed(&after) <= 1);
            prop_assert!(majorities_meet(&before, &after));
        }
    }

    #[test]
    fn a_configuration_is_read_as_it_was_written(config in any_config()) {
        prop_assert_eq!(RaftConfig::decode(&config.encode()).expect("just written"), config);
    }
}
