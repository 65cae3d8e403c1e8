//! Effects of steps, and the operations that store their writes.
//!
//! ```text
//! writes   a a a │ b │ c c │ d          units: ends of the changes that belong together
//! stored  └─ op 1 ─┘└─ op 2 ─┘└ op 3 ┘   whole units, as many as one operation should hold
//! ```
//!
//! The change of one table by a command is one unit. A report, a sweep and the removal of a server change tablets and
//! tables that have nothing to do with each other: they have a unit for each, because all of them together may be more
//! than one operation of the system tablet holds.

use super::record::SystemRowWrite;
use super::{CatalogNote, EventReply, TserverRequest};

/// Effects of steps. Order: all `writes` are stored first, in their order; see the catalog's rules.
#[derive(Debug, Default)]
pub struct CatalogEffects {
    pub writes: Vec<SystemRowWrite>,
    /// Ends of the units in `writes`. The rows of a unit are stored all together.
    units: Vec<usize>,
    pub requests: Vec<TserverRequest>,
    pub replies: Vec<EventReply>,
    pub notes: Vec<CatalogNote>,
}

impl CatalogEffects {
    /// Adds writes that are stored all together. Returns their bytes.
    pub(super) fn add_unit(&mut self, unit: Vec<SystemRowWrite>) -> usize {
        let bytes = stored_bytes(&unit);
        if !unit.is_empty() {
            self.writes.extend(unit);
            self.units.push(self.writes.len());
        }
        bytes
    }

    /// Returns the bytes that all writes take in operations of the system tablet.
    pub fn write_bytes(&self) -> usize {
        stored_bytes(&self.writes)
    }

    /// Takes the writes, divided into operations to be stored in this order: each has at most `bytes_max` bytes, or a
    /// single unit.
    pub fn take_operations(&mut self, bytes_max: usize) -> Vec<Vec<SystemRowWrite>> {
        let ends = std::mem::take(&mut self.units);
        let mut writes = std::mem::take(&mut self.writes).into_iter();
        let mut operations: Vec<Vec<SystemRowWrite>> = Vec::new();
        let (mut start, mut bytes) = (0, 0);
        for end in ends {
            let unit: Vec<SystemRowWrite> = writes.by_ref().take(end - start).collect();
            start = end;
            let more = stored_bytes(&unit);
            match operations.last_mut() {
                Some(last) if bytes + more <= bytes_max => {
                    last.extend(unit);
                    bytes += more;
                }
                _ => {
                    operations.push(unit);
                    bytes = more;
                }
            }
        }
        operations
    }
}

/// Bytes that a row takes in an operation besides its metadata: its kind, its key, and where its cells are.
const ROW_BYTES: usize = 72;

fn stored_bytes(writes: &[SystemRowWrite]) -> usize {
    let metadata = |write: &SystemRowWrite| write.metadata.as_ref().map_or(0, Vec::len);
    writes.iter().map(|write| ROW_BYTES + metadata(write)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::SystemRowKey;

    fn put(number: i64, bytes: usize) -> SystemRowWrite {
        let metadata = Some(vec![0; bytes - ROW_BYTES]);
        SystemRowWrite { key: SystemRowKey::TokenKey(number), metadata }
    }

    /// Returns the sizes of the rows of each operation.
    fn operations(effects: &mut CatalogEffects, bytes_max: usize) -> Vec<Vec<usize>> {
        let size = |write: &SystemRowWrite| stored_bytes(std::slice::from_ref(write));
        let operations = effects.take_operations(bytes_max);
        operations.iter().map(|writes| writes.iter().map(size).collect()).collect()
    }

    #[test]
    fn units_are_stored_whole_and_in_order() {
        let mut effects = CatalogEffects::default();
        assert_eq!(effects.add_unit(vec![put(1, 400), put(2, 200)]), 600);
        assert_eq!(effects.add_unit(Vec::new()), 0);
        effects.add_unit(vec![put(3, 400)]);
        effects.add_unit(vec![put(4, 900), put(5, 900)]);
        effects.add_unit(vec![put(6, 300)]);
        effects.add_unit(vec![SystemRowWrite { key: SystemRowKey::Cluster, metadata: None }]);
        assert_eq!(effects.write_bytes(), 3_172);
        let stored = operations(&mut effects, 1_000);
        assert_eq!(stored, [vec![400, 200, 400], vec![900, 900], vec![300, 72]]);
        assert_eq!((effects.write_bytes(), operations(&mut effects, 1_000).len()), (0, 0));
    }
}
