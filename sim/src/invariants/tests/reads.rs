//! Safe times and READ_LATEST scans.

use super::*;

/// a leads in term 1 and b has its two entries; c, which has them too, has the safe time 20.
fn cluster_with_safe_time() -> Cluster {
    let mut cluster = Cluster::usual();
    cluster.follow('c', 'a', "0.0", "1.2").note('c', RaftAction::SafeTimeAdvance { safe: Timestamp(20) });
    cluster
}

#[test]
fn safe_time_that_passed_an_operation_is_rejected() {
    let mut cluster = cluster_with_safe_time();
    cluster.append('a', 3, 15);
    assert_eq!(cluster.violated(), ["SafeTimeBinds"], "c may never get it: {}", describe(&cluster));
    cluster.follow('c', 'a', "1.2", "1.3");
    assert_eq!(cluster.violated(), ["SafeTimeBinds", "SafeTimeMonotone"]);
}

#[test]
fn safe_time_that_goes_back_is_rejected() {
    let mut cluster = cluster_with_safe_time();
    cluster.note('c', RaftAction::SafeTimeAdvance { safe: Timestamp(19) });
    assert_eq!(cluster.violated(), ["SafeTimeMonotone"]);
}

#[test]
fn the_next_leader_is_bound_by_safe_times_it_did_not_receive() {
    let begins_at = |at| {
        let mut cluster = cluster_with_safe_time();
        cluster.elect('b', 2, &['c']).append('b', 3, at);
        // A leader of an earlier term is not bound by later safe times: what it appends will not be committed.
        cluster.note('b', RaftAction::SafeTimeAdvance { safe: Timestamp(50) }).append('a', 3, 30);
        cluster.violated()
    };
    assert!(begins_at(21).is_empty());
    assert_eq!(begins_at(20), ["SafeTimeBinds"]);
}

#[test]
fn safe_times_of_wrong_clocks_bind_less() {
    let begins_at = |micros| {
        let mut cluster = Cluster::usual();
        let wrong = Duration::from_micros(100);
        cluster.checker.tablets.values_mut().for_each(|tablet| tablet.model.excess_clock_error = wrong);
        cluster.follow('c', 'a', "0.0", "1.2");
        cluster.note('c', RaftAction::SafeTimeAdvance { safe: Timestamp::from_micros(1_000) });
        cluster.elect('b', 2, &['c']).append('b', 3, Timestamp::from_micros(micros).0);
        cluster.follow('c', 'b', "1.2", "2.3").violated()
    };
    assert!(begins_at(901).is_empty());
    assert_eq!(begins_at(900), ["SafeTimeBinds", "SafeTimeMonotone"]);
}

#[test]
fn a_leader_without_earlier_commits_serves_no_latest_reads() {
    let served = |applied, term| {
        let mut cluster = Cluster::usual();
        cluster.elect('b', 2, &['c']).append('b', 3, 12).follow('c', 'b', "0.0", "2.3").commit('b', 3);
        cluster.checker.served_latest(peer('b'), TABLET, term, Timestamp(applied));
        cluster.violated()
    };
    assert!(served(11, 2).is_empty(), "own commits are returned once applied");
    assert_eq!(served(10, 2), ["LatestReads"]);
    assert!(served(10, 1).is_empty(), "there was no leader before");
    assert_eq!(served(11, 3), ["LatestReads"]);
}
