//! What readers are told: safe times, and the latest.

use super::*;

/// a leads in term 1 and b has its two entries; c, who has them too, was told that everything up to 20 is past.
fn promised() -> Cluster {
    let mut cluster = Cluster::usual();
    cluster.follow('c', 'a', "0.0", "1.2").note('c', Action::SafeTimeAdvance { safe: Timestamp(20) });
    cluster
}

#[test]
fn safe_time_that_passed_an_operation_is_rejected() {
    let mut cluster = promised();
    cluster.append('a', 3, 15);
    assert_eq!(cluster.objections(), ["PromisesBind"], "c may never get it: {}", said(&cluster));
    cluster.follow('c', 'a', "1.2", "1.3");
    assert_eq!(cluster.objections(), ["PromisesBind", "SafeTimeMonotone"]);
}

#[test]
fn safe_time_that_goes_back_is_rejected() {
    let mut cluster = promised();
    cluster.note('c', Action::SafeTimeAdvance { safe: Timestamp(19) });
    assert_eq!(cluster.objections(), ["SafeTimeMonotone"]);
}

#[test]
fn the_next_leader_is_bound_by_what_it_was_not_told() {
    let begins_at = |at| {
        let mut cluster = promised();
        cluster.elect('b', 2, &['c']).append('b', 3, at);
        // Whoever still leads an earlier term is bound by no later promise: what it appends will not be committed.
        cluster.note('b', Action::SafeTimeAdvance { safe: Timestamp(50) }).append('a', 3, 30);
        cluster.objections()
    };
    assert!(begins_at(21).is_empty());
    assert_eq!(begins_at(20), ["PromisesBind"]);
}

#[test]
fn clocks_that_lie_make_promises_that_bind_less() {
    let begins_at = |micros| {
        let mut cluster = Cluster::usual();
        let wrong = Duration::from_micros(100);
        cluster.dog.tablets.values_mut().for_each(|tablet| tablet.model.clocks_wrong = wrong);
        cluster.follow('c', 'a', "0.0", "1.2");
        cluster.note('c', Action::SafeTimeAdvance { safe: Timestamp::from_micros(1_000) });
        cluster.elect('b', 2, &['c']).append('b', 3, Timestamp::from_micros(micros).0);
        cluster.follow('c', 'b', "1.2", "2.3").objections()
    };
    assert!(begins_at(901).is_empty());
    assert_eq!(begins_at(900), ["PromisesBind", "SafeTimeMonotone"]);
}

#[test]
fn a_leader_without_what_was_committed_before_serves_no_latest() {
    let served = |applied, term| {
        let mut cluster = Cluster::usual();
        cluster.elect('b', 2, &['c']).append('b', 3, 12).follow('c', 'b', "0.0", "2.3").commit('b', 3);
        cluster.dog.served_latest(peer('b'), TABLET, term, Timestamp(applied));
        cluster.objections()
    };
    assert!(served(11, 2).is_empty(), "what it has committed itself is answered once it is applied");
    assert_eq!(served(10, 2), ["LatestReads"]);
    assert!(served(10, 1).is_empty(), "nobody led before");
    assert_eq!(served(11, 3), ["LatestReads"]);
}
