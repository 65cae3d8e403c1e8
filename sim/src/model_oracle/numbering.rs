//! Numbers of rows whose key has an auto-increment column: reads tell which number each insert got.
//!
//! An insert is recognised by its value of the column [`ORIGIN`](sim_plan::tables::spec::ORIGIN), which no other one
//! writes and which every read returns. So its key is known as soon as a read has its row, and the row of an
//! acknowledged insert that no read has is a row that is missing.
//!
//! ```text
//! insert (k, -, origin 7) ──┐
//! read   (k, 3, origin 7) ──┴─► insert (k, 3, origin 7)     acknowledged inserts of a tablet: numbers rise with time
//! ```

use std::borrow::Cow;
use std::collections::BTreeMap;

use sim_plan::client_ops::WriteKind;
use sim_plan::tables::Value;

use super::history::{ReadCall, ReadOutcome, TableCall, TableEvent, WriteOutcome};
use super::{NAME, of_call};
use crate::model::{ColNo, Incarnation, ModelRow, RowAnswer, RowCells};
use crate::oracle::{OracleReport, Violation};

/// Numbers of the columns of a table whose rows are numbered.
#[derive(Debug, Clone, Copy)]
struct NumberedColumns {
    auto: ColNo,
    origin: ColNo,
}

/// Numbers by tablet and origin.
type Numbers<'a> = BTreeMap<(&'a str, i128), i128>;

/// Returns the history with the numbers of all inserted rows; an insert without a row has a number that no row has.
pub(super) fn resolve<'a>(
    tables: &[Incarnation],
    events: &'a [TableEvent],
    report: &mut OracleReport,
) -> Cow<'a, [TableEvent]> {
    let columns: Vec<Option<NumberedColumns>> = tables.iter().map(columns_of).collect();
    if columns.iter().all(Option::is_none) {
        return Cow::Borrowed(events);
    }
    let of = |event: &TableEvent| columns.get(event.table).copied().flatten();
    let mut numbers = Numbers::new();
    for (at, event) in events.iter().enumerate() {
        if let Some(columns) = of(event) {
            learn(at, event, columns, &mut numbers).into_iter().for_each(|violation| report.add(violation));
        }
    }
    let mut resolved = events.to_vec();
    for event in &mut resolved {
        if let Some(columns) = of(event) {
            number_inserts(event, columns, &numbers);
        }
    }
    check_order(&resolved, &columns).into_iter().for_each(|violation| report.add(violation));
    Cow::Owned(resolved)
}

/// Returns true if a scan may lack a row because of its number, which is not known: no read has returned the row.
pub(super) fn hides(table: &Incarnation, call: &ReadCall, row: &ModelRow) -> bool {
    let (Some(columns), Some(row)) = (columns_of(table), row) else { return false };
    let by_key = call.limit.is_some() || call.lower.is_some() || call.upper.is_some();
    is_unnumbered(table, row) && (by_key || call.conditions.iter().any(|(column, _)| *column == columns.auto))
}

/// Returns true if the number of a row is not known.
pub(super) fn is_unnumbered(table: &Incarnation, cells: &RowCells) -> bool {
    let number = columns_of(table).and_then(|columns| cells.get(&columns.auto)).and_then(Value::number);
    number.is_some_and(|number| number < 0)
}

fn columns_of(table: &Incarnation) -> Option<NumberedColumns> {
    let first = &table.versions[0].table;
    Some(NumberedColumns { auto: first.auto_increment()?, origin: first.origin()? })
}

/// Learns numbers from the rows of a read; returns what is wrong.
fn learn<'a>(
    at: usize,
    event: &'a TableEvent,
    columns: NumberedColumns,
    numbers: &mut Numbers<'a>,
) -> Option<Violation> {
    let TableCall::Read { call, outcome: ReadOutcome::Rows { rows, .. } } = &event.call else { return None };
    let place = |number: ColNo| call.columns.iter().position(|column| *column == number);
    let (auto, origin) = place(columns.auto).zip(place(columns.origin))?;
    for row in rows.iter().filter(|row| !row.deleted) {
        let (Value::Int(auto), Value::Int(origin)) = (&row.values[auto], &row.values[origin]) else {
            continue;
        };
        let known = *numbers.entry((&event.tablet, *origin)).or_insert(*auto);
        if known != *auto {
            return Some(of_call(at, event, &format!("one insert has the rows {known} and {auto}")));
        }
    }
    None
}

fn is_insert(kind: WriteKind) -> bool {
    matches!(kind, WriteKind::Insert | WriteKind::InsertIgnore)
}

fn number_inserts(event: &mut TableEvent, columns: NumberedColumns, numbers: &Numbers) {
    let tablet = event.tablet.clone();
    let TableCall::Write { rows, .. } = &mut event.call else { return };
    for row in rows.iter_mut().filter(|row| is_insert(row.kind)) {
        let origin = origin_of(&row.cells, columns);
        let number = numbers.get(&(tablet.as_str(), origin)).copied().unwrap_or(-1 - origin);
        row.cells.insert(columns.auto, Value::Int(number));
    }
}

fn origin_of(cells: &RowCells, columns: NumberedColumns) -> i128 {
    match cells.get(&columns.origin) {
        Some(Value::Int(origin)) => *origin,
        _ => 0,
    }
}

/// Checks that acknowledged inserts of a tablet have numbers in the order of their timestamps.
fn check_order(events: &[TableEvent], columns: &[Option<NumberedColumns>]) -> Option<Violation> {
    let mut inserts: BTreeMap<(&str, u64, usize, usize), i128> = BTreeMap::new();
    for (at, event) in events.iter().enumerate() {
        let (Some(columns), TableCall::Write { rows, outcome: WriteOutcome::Applied { at: stamp, answers } }) =
            (columns.get(event.table).copied().flatten(), &event.call)
        else {
            continue;
        };
        for (nth, (row, answer)) in rows.iter().zip(answers).enumerate() {
            let number = row.cells.get(&columns.auto);
            if let Some(Value::Int(number)) = number.filter(|_| is_insert(row.kind))
                && *answer == RowAnswer::Done
                && *number > 0
            {
                inserts.insert((&event.tablet, *stamp, at, nth), *number);
            }
        }
    }
    let pairs = inserts.iter().zip(inserts.iter().skip(1));
    let mut unordered = pairs.filter(|((one, number), (other, next))| one.0 == other.0 && number >= next);
    let (((tablet, at, ..), number), ((_, later, ..), next)) = unordered.next()?;
    let message =
        format!("tablet {tablet}: an insert at {at} has the number {number}, and one at {later} has {next}");
    Some(Violation::new(NAME, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::RowWrite;
    use crate::wire::scan::{ScanRow, ScanTime};
    use sim_plan::RandomStream;
    use sim_plan::tables::draw;

    fn table() -> Incarnation {
        let random = &mut RandomStream::new(1, "test");
        let shape = draw::table(random, 0);
        Incarnation::new(draw::numbered(random, shape), "id".to_string(), "t".to_string(), 0, 1)
    }

    fn event(call: TableCall) -> TableEvent {
        TableEvent {
            client: 0,
            invoked: 1,
            returned: 2,
            after: 0,
            table: 0,
            tablet: "t".into(),
            view: 0,
            call,
        }
    }

    fn insert(table: &Incarnation, origin: i128, at: u64) -> TableEvent {
        let cells =
            RowCells::from([(table.versions[0].table.origin().expect("it has one"), Value::Int(origin))]);
        let rows = vec![RowWrite { kind: WriteKind::Insert, cells }];
        event(TableCall::Write {
            rows,
            outcome: WriteOutcome::Applied { at, answers: vec![RowAnswer::Done] },
        })
    }

    fn read(table: &Incarnation, rows: &[(i128, i128)]) -> TableEvent {
        let columns = columns_of(table).expect("its rows are numbered");
        let call = ReadCall {
            columns: vec![columns.auto, columns.origin],
            conditions: Vec::new(),
            lower: None,
            upper: None,
            time: ScanTime::Latest,
            since: None,
            ordered: false,
            limit: None,
            partial: false,
        };
        let row = |(auto, origin): &(i128, i128)| ScanRow {
            values: vec![Value::Int(*auto), Value::Int(*origin)],
            deleted: false,
        };
        let rows: Vec<ScanRow> = rows.iter().map(row).collect();
        let outcome = ReadOutcome::Rows { at: None, count: rows.len() as u64, rows };
        event(TableCall::Read { call, outcome })
    }

    /// Returns the numbers of inserts, and the number of violations.
    fn resolved(events: &[TableEvent]) -> (Vec<i128>, usize) {
        let table = table();
        let mut report = OracleReport::default();
        let auto = columns_of(&table).expect("its rows are numbered").auto;
        let found = resolve(&[table], events, &mut report);
        let numbers = found.iter().filter_map(|event| match &event.call {
            TableCall::Write { rows, .. } => match rows[0].cells[&auto] {
                Value::Int(number) => Some(number),
                _ => None,
            },
            _ => None,
        });
        (numbers.collect(), report.violations.len())
    }

    #[test]
    fn inserts_get_the_numbers_that_reads_have() {
        let table = table();
        let inserts = [insert(&table, 7, 10), insert(&table, 8, 20), insert(&table, 9, 30)];
        let with = |rows: &[(i128, i128)]| {
            let mut events = inserts.to_vec();
            events.push(read(&table, rows));
            resolved(&events)
        };
        assert_eq!(with(&[(1, 7), (2, 8)]), (vec![1, 2, -10], 0), "the third one has no row");
        assert_eq!(with(&[(2, 7), (1, 8)]).1, 1, "numbers do not rise with time");
        assert_eq!(with(&[(1, 7), (2, 7)]).1, 1, "one insert has two rows");
    }
}
