//! O15: maintenance changes no row. Flushes and compactions of a tablet, and restarts between them, keep what it
//! contains at every snapshot whose history it has, its count of live rows, and its schema.

use std::fmt::Write as _;

use engine::time::Timestamp;

use super::Violation;

/// Name of this oracle.
pub const NAME: &str = "maintenance";

/// Cells of a row; `None` is NULL.
pub type RowBytes = Vec<Option<Vec<u8>>>;

/// Contents of a tablet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TabletContents {
    /// Rows by snapshot, sorted.
    pub snapshots: Vec<(Timestamp, Vec<RowBytes>)>,
    /// Rows that changed between the first snapshot and the second, sorted, and then those up to the third. A row that
    /// is deleted at the later snapshot has its last values, also if it was inserted again since.
    pub changed: Vec<RowBytes>,
    /// The count that the tablet keeps.
    pub live_rows: u64,
    pub schema: String,
}

/// Contents of a replica before maintenance, and after some of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaintainedReplica {
    pub server: String,
    pub tablet: String,
    /// Steps of the maintenance.
    pub steps: Vec<String>,
    pub before: TabletContents,
    /// Contents after these steps, or the error of the last one.
    pub after: Result<TabletContents, String>,
}

/// Reports a replica whose contents were changed by maintenance.
pub fn check(replica: &MaintainedReplica) -> Option<Violation> {
    let what = match &replica.after {
        Err(error) => error.clone(),
        Ok(after) => difference(&replica.before, after)?,
    };
    let MaintainedReplica { server, tablet, steps, .. } = replica;
    let message = format!("tablet {tablet} of {server}, after {}: {what}", steps.join(", "));
    Some(Violation::new(NAME, message))
}

fn difference(before: &TabletContents, after: &TabletContents) -> Option<String> {
    if before.schema != after.schema {
        return Some(format!("its schema is {} instead of {}", after.schema, before.schema));
    }
    let snapshots = before.snapshots.iter().zip(&after.snapshots);
    for ((at, rows), (_, found)) in snapshots {
        if let Some(row) = first_difference(rows, found) {
            return Some(format!("{} rows at snapshot {at} instead of {}, {row}", found.len(), rows.len()));
        }
    }
    if let Some(row) = first_difference(&before.changed, &after.changed) {
        let (found, rows) = (after.changed.len(), before.changed.len());
        return Some(format!("diff scans between snapshots have {found} rows instead of {rows}, {row}"));
    }
    let (counted, rows) = (after.live_rows, before.live_rows);
    (counted != rows).then(|| format!("{counted} live rows are counted instead of {rows}"))
}

/// Returns the first row that only one of two sorted lists has.
fn first_difference(before: &[RowBytes], after: &[RowBytes]) -> Option<String> {
    let at = before.iter().zip(after).position(|(one, other)| one != other);
    let at = at.or((before.len() != after.len()).then(|| before.len().min(after.len())))?;
    let text = |rows: &[RowBytes]| rows.get(at).map_or("no row".to_string(), row_text);
    Some(format!("the first of them {} instead of {}", text(after), text(before)))
}

fn row_text(row: &RowBytes) -> String {
    let cells = row.iter().map(|cell| match cell {
        None => "NULL".to_string(),
        Some(bytes) => bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }),
    });
    format!("({})", cells.collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: u8, cell: Option<u8>) -> RowBytes {
        vec![Some(vec![key]), cell.map(|byte| vec![byte])]
    }

    fn contents() -> TabletContents {
        TabletContents {
            snapshots: vec![
                (Timestamp(10), vec![row(1, Some(1))]),
                (Timestamp(20), vec![row(1, Some(2)), row(2, None)]),
            ],
            changed: vec![row(1, Some(2)), row(2, None)],
            live_rows: 2,
            schema: "version 1".to_string(),
        }
    }

    fn replica(change: fn(&mut TabletContents)) -> MaintainedReplica {
        let mut after = contents();
        change(&mut after);
        MaintainedReplica {
            server: "t1".to_string(),
            tablet: "a".to_string(),
            steps: vec!["FlushRows".to_string()],
            before: contents(),
            after: Ok(after),
        }
    }

    #[test]
    fn equal_contents_pass() {
        assert_eq!(check(&replica(|_| {})), None);
    }

    #[test]
    fn each_change_is_reported() {
        let changes: [fn(&mut TabletContents); 7] = [
            |after| after.snapshots[0].1.clear(),
            |after| after.snapshots[1].1[1] = row(2, Some(0)),
            |after| after.snapshots[1].1.push(row(3, None)),
            |after| drop(after.changed.pop()),
            |after| after.changed[0] = row(1, Some(3)),
            |after| after.live_rows = 3,
            |after| after.schema = "version 0".to_string(),
        ];
        for change in changes {
            let replica = replica(change);
            assert!(check(&replica).is_some(), "{replica:?}");
        }
        let failed = MaintainedReplica { after: Err("corrupt".to_string()), ..replica(|_| {}) };
        let message = check(&failed).map(|violation| violation.message);
        assert_eq!(message.as_deref(), Some("tablet a of t1, after FlushRows: corrupt"));
    }
}
