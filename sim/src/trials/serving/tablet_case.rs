//! A tablet of the operator.

use engine::ids::TabletId;

/// A tablet and its members.
#[derive(Debug, Clone)]
pub(super) struct TabletCase {
    pub id: TabletId,
    pub members: Vec<usize>,
    /// Version of the schema, of which the operator gives the next.
    pub version: u32,
    /// True once it is to be deleted everywhere.
    pub is_dropped: bool,
    /// The newest timestamp of an operation that servers have replied to.
    pub newest: u64,
}

impl TabletCase {
    /// Creates a tablet without operations.
    pub(super) fn new(id: TabletId, members: Vec<usize>) -> TabletCase {
        TabletCase { id, members, version: 0, is_dropped: false, newest: 0 }
    }

    /// Records the timestamps of operations that began after every earlier reply; returns one that is not newer than
    /// those, whichever server led the tablet.
    pub(super) fn record(&mut self, timestamps: &[u64]) -> Option<u64> {
        let old = timestamps.iter().copied().find(|timestamp| *timestamp <= self.newest);
        self.newest = timestamps.iter().copied().fold(self.newest, u64::max);
        old
    }
}

#[cfg(test)]
mod tests {
    use engine::ids::Uuid;

    use super::*;

    #[test]
    fn an_operation_that_is_not_newer_than_earlier_replies_is_found() {
        let mut case = TabletCase::new(Uuid([1; 16]), vec![0]);
        assert_eq!(case.record(&[7, 5]), None, "operations at the same time have any order");
        assert_eq!(case.record(&[]), None);
        assert_eq!(case.record(&[9, 9]), None, "a repeated request has one timestamp");
        assert_eq!(case.record(&[12, 9]), Some(9));
        assert_eq!(case.record(&[11]), Some(11));
        assert_eq!(case.record(&[13]), None);
    }
}
