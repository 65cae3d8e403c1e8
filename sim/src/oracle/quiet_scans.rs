//! Scans of a tablet in a quiet cluster: a scanner ends with its last reply, replies have at most the rows of one block
//! beyond the size that was asked for, and each reports the cost of its call: no more time than the client waited.

use super::Violation;

/// Name of this oracle.
pub const NAME: &str = "quiet scans";

/// Most rows of a block where small replies are asked for: one block is a reply of a byte.
const BLOCK_ROWS_MAX: i64 = 128;

/// Time by which the clocks of a client and of a server may differ over a call: one world moves the time of its hosts
/// one after the other.
const CLOCKS_DIFFER_NANOS: i64 = 5_000_000;

/// Cost of a call, as its reply reports it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplyCost {
    /// Bytes of pages: from the cache, from files, and all together.
    pub cached: i64,
    pub from_files: i64,
    pub bytes: i64,
    pub queued_nanos: i64,
    pub total_nanos: i64,
    /// Time from the call to its reply, by the client's clock.
    pub waited_nanos: i64,
}

/// Replies to the calls of one scan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScanReplies {
    /// True if each reply was to have one block.
    pub is_small: bool,
    /// Rows and cost of each reply; `None` for a reply without cost.
    pub replies: Vec<(i64, Option<ReplyCost>)>,
    /// True if the scan was read to its end.
    pub is_whole: bool,
}

impl ScanReplies {
    fn rows(&self) -> i64 {
        self.replies.iter().map(|(rows, _)| rows).sum()
    }
}

/// Scans of one tablet, one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuietScan {
    pub server: String,
    pub tablet: String,
    /// Open scanners of the server before and after the scans. Others that were left open may expire meanwhile.
    pub scanners: (i32, i32),
    pub scans: Vec<ScanReplies>,
}

/// Reports what is wrong with scans of a tablet.
pub fn check(quiet: &QuietScan) -> Vec<Violation> {
    let QuietScan { server, tablet, scanners, scans } = quiet;
    let mut faults: Vec<String> = scans.iter().flat_map(reply_faults).collect();
    if scanners.1 > scanners.0 {
        faults.push(format!("{} scanners were open before, and {} are after them", scanners.0, scanners.1));
    }
    let rows: Vec<i64> = scans.iter().filter(|scan| scan.is_whole).map(ScanReplies::rows).collect();
    if rows.windows(2).any(|pair| pair[0] != pair[1]) {
        faults.push(format!("they have {rows:?} rows"));
    }
    let violation = |what: String| {
        Violation::new(NAME, format!("scans of tablet {tablet} at {server} in a quiet cluster: {what}"))
    };
    faults.into_iter().map(violation).collect()
}

fn reply_faults(scan: &ScanReplies) -> Vec<String> {
    let mut faults = Vec::new();
    for (rows, cost) in &scan.replies {
        if *rows < 0 || scan.is_small && *rows > BLOCK_ROWS_MAX {
            faults.push(format!("a reply of at most {BLOCK_ROWS_MAX} rows has {rows}"));
        }
        if !cost.as_ref().is_some_and(is_plausible) {
            faults.push(format!("a reply tells the cost {cost:?}"));
        }
    }
    faults
}

fn is_plausible(cost: &ReplyCost) -> bool {
    let ReplyCost { cached, from_files, bytes, queued_nanos, total_nanos, waited_nanos } = *cost;
    let least = [cached, from_files, bytes, queued_nanos, total_nanos].into_iter().min();
    let most = waited_nanos.saturating_add(CLOCKS_DIFFER_NANOS);
    let is_in_time = queued_nanos.checked_add(total_nanos).is_some_and(|served| served <= most);
    least >= Some(0) && cached.checked_add(from_files) == Some(bytes) && is_in_time
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(change: impl FnOnce(&mut QuietScan)) -> usize {
        let (queued_nanos, total_nanos, waited_nanos) = (0, 9, 10);
        let cost = ReplyCost { cached: 5, from_files: 7, bytes: 12, queued_nanos, total_nanos, waited_nanos };
        let whole = ScanReplies {
            is_small: false,
            replies: vec![(0, Some(cost)), (200, Some(cost))],
            is_whole: true,
        };
        let small = ScanReplies {
            is_small: true,
            replies: vec![(128, Some(ReplyCost::default())), (72, Some(cost))],
            is_whole: true,
        };
        let (server, tablet) = ("t0".to_string(), "a".to_string());
        let mut quiet = QuietScan { server, tablet, scanners: (1, 1), scans: vec![whole, small] };
        change(&mut quiet);
        check(&quiet).len()
    }

    #[test]
    fn a_scanner_that_outlives_its_last_reply_is_reported() {
        assert_eq!(found(|_| {}), 0);
        assert_eq!(found(|quiet| quiet.scanners = (1, 2)), 1);
        assert_eq!(found(|quiet| quiet.scanners = (1, 0)), 0, "another one has expired");
    }

    #[test]
    fn replies_with_too_many_rows_are_reported() {
        assert_eq!(found(|quiet| quiet.scans[1].replies = vec![(200, Some(ReplyCost::default()))]), 1);
        assert_eq!(found(|quiet| quiet.scans[1].replies.truncate(1)), 1, "rows are missing");
        let given_up = |quiet: &mut QuietScan| {
            quiet.scans[1].replies.truncate(1);
            quiet.scans[1].is_whole = false;
        };
        assert_eq!(found(given_up), 0);
    }

    #[test]
    fn implausible_costs_are_reported() {
        let with = |change: fn(&mut ReplyCost)| {
            found(|quiet| quiet.scans[0].replies[1].1.as_mut().into_iter().for_each(change))
        };
        assert_eq!(with(|cost| cost.bytes = 11), 1);
        assert_eq!(with(|cost| cost.cached = 6), 1);
        assert_eq!(with(|cost| (cost.cached, cost.bytes) = (-1, 6)), 1);
        assert_eq!(with(|cost| cost.queued_nanos = -1), 1);
        assert_eq!(with(|cost| cost.total_nanos = -1), 1);
        let later = |cost: &mut ReplyCost| cost.total_nanos = cost.waited_nanos + CLOCKS_DIFFER_NANOS;
        assert_eq!(with(later), 0);
        let too_late = |cost: &mut ReplyCost| {
            (cost.queued_nanos, cost.total_nanos) = (2, cost.waited_nanos + CLOCKS_DIFFER_NANOS - 1);
        };
        assert_eq!(with(too_late), 1);
        assert_eq!(found(|quiet| quiet.scans[0].replies[1].1 = None), 1);
    }
}
