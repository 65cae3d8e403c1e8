//! A quiescing server begins no scans, and leads no tablets once others have taken over. Operators restart servers on
//! the numbers that it tells: both must be there, and be right.

use std::collections::BTreeMap;

use super::Violation;

const NAME: &str = "quiescing";

/// Numbers that a server reports about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuiescingStats {
    pub leaders: i32,
    pub scanners: i32,
}

/// A replica's knowledge of the leader of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaderView {
    pub term: i64,
    pub leads: bool,
    /// True if it knows of another leader.
    pub follows: bool,
}

/// Views of a server's replicas, by tablet.
pub type LeaderViews = BTreeMap<String, LeaderView>;

/// Returns the numbers of a reply. `wanted`: what the server was asked to do, if anything.
pub fn stats(
    server: &str,
    wanted: Option<bool>,
    (quiescing, leaders, scanners): (Option<bool>, Option<i32>, Option<i32>),
) -> Result<QuiescingStats, Violation> {
    match (quiescing, leaders, scanners) {
        (Some(is), Some(leaders), Some(scanners)) if wanted.is_none_or(|wanted| wanted == is) => {
            Ok(QuiescingStats { leaders, scanners })
        }
        told => {
            let what = format!("{server} was asked for {wanted:?} and its numbers, and tells {told:?}");
            Err(Violation::new(NAME, what))
        }
    }
}

/// Checks the number of leaders that a server tells by the views of its replicas before and after. One that leads in
/// the same term before and after has led meanwhile, and one that follows in the same term has not.
pub fn check_leaders(
    server: &str,
    told: i32,
    before: &LeaderViews,
    after: &LeaderViews,
) -> Option<Violation> {
    let same = before.iter().filter_map(|(tablet, view)| {
        let later = after.get(tablet).filter(|later| later.term == view.term)?;
        Some((view.leads && later.leads, view.follows && later.follows))
    });
    let same: Vec<(bool, bool)> = same.collect();
    let tablets = before.len() + after.keys().filter(|tablet| !before.contains_key(*tablet)).count();
    let least = same.iter().filter(|(leads, _)| *leads).count();
    let most = tablets - same.iter().filter(|(_, follows)| *follows).count();
    let is_right = usize::try_from(told).is_ok_and(|told| (least..=most).contains(&told));
    (!is_right).then(|| {
        let what = format!("{server} tells {told} leaders and has {least} to {most}: {before:?}, {after:?}");
        Violation::new(NAME, what)
    })
}

/// Checks the numbers of scanners that a server tells before a client opens one, then, and after the client has
/// closed it. Scanners that others have left open may end meanwhile.
pub fn check_scanners(server: &str, [before, open, closed]: [i32; 3]) -> Option<Violation> {
    let is_right = open >= 1 && open <= before + 1 && closed < open && closed >= 0;
    (!is_right).then(|| {
        let what =
            format!("{server} tells {before} scanners, then {open} beside one more, and {closed} without");
        Violation::new(NAME, what)
    })
}

/// Checks a scan of a tablet requested from a quiescing server; `began`: true if it was started.
pub fn check_scan(server: &str, tablet: &str, began: bool) -> Option<Violation> {
    began.then(|| Violation::new(NAME, format!("{server} quiesces and began a scan of tablet {tablet}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_at_a_quiescing_server_is_reported() {
        assert_eq!(check_scan("t1", "a", false), None);
        let found = check_scan("t1", "a", true).expect("a finding");
        assert_eq!(found.to_string(), "quiescing: t1 quiesces and began a scan of tablet a");
    }

    #[test]
    fn a_reply_has_all_numbers_and_what_was_asked() {
        let told = (Some(true), Some(0), Some(2));
        let of = |wanted, told| stats("t1", wanted, told).ok();
        assert_eq!(of(Some(true), told), Some(QuiescingStats { leaders: 0, scanners: 2 }));
        assert!(of(None, (Some(false), Some(0), Some(2))).is_some());
        assert!(of(Some(true), (Some(false), Some(0), Some(2))).is_none());
        assert!(of(None, (Some(true), None, Some(2))).is_none());
        assert!(of(None, (Some(true), Some(0), None)).is_none());
    }

    const LEADS: LeaderView = LeaderView { term: 2, leads: true, follows: false };
    const FOLLOWS: LeaderView = LeaderView { term: 2, leads: false, follows: true };

    fn found(told: i32, before: &[LeaderView], after: &[LeaderView]) -> bool {
        let views =
            |of: &[LeaderView]| of.iter().zip(0..).map(|(view, at)| (format!("{at}"), *view)).collect();
        check_leaders("t1", told, &views(before), &views(after)).is_some()
    }

    #[test]
    fn leaders_before_and_after_are_counted() {
        assert!(!found(1, &[LEADS, FOLLOWS], &[LEADS, FOLLOWS]));
        assert!(found(0, &[LEADS, FOLLOWS], &[LEADS, FOLLOWS]));
        assert!(found(2, &[LEADS, FOLLOWS], &[LEADS, FOLLOWS]));
        assert!(found(-1, &[FOLLOWS], &[FOLLOWS]));
        let later = LeaderView { term: 3, ..FOLLOWS };
        assert!(!found(0, &[LEADS], &[later]) && !found(1, &[LEADS], &[later]), "it may have led until then");
        assert!(found(2, &[LEADS], &[later]));
        assert!(!found(1, &[], &[LEADS]), "a replica that is new");
    }

    #[test]
    fn an_open_scanner_is_counted() {
        assert_eq!(check_scanners("t1", [0, 1, 0]), None);
        assert_eq!(check_scanners("t1", [3, 4, 3]), None);
        assert_eq!(check_scanners("t1", [3, 2, 1]), None, "others ended");
        for wrong in [[0, 0, 0], [0, 2, 1], [0, 1, 1], [2, 0, 0]] {
            assert!(check_scanners("t1", wrong).is_some(), "{wrong:?}");
        }
    }
}
