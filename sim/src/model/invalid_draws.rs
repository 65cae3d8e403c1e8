//! Draws of alterations that masters must refuse, and what they must tell.

use sim_plan::RandomStream;
use sim_plan::client_ops::TableStep;
use sim_plan::tables::{ColumnSpec, ModelTable, RangeSpec};

use super::alter_draws::{AlterStep, added, after, changed};
use super::{ColNo, range_draws};

/// Percentage of refused alterations that begin with valid steps, which must not be taken either.
const VALID_FIRST_PERCENT: u64 = 50;

/// Codes of masters.
const UNKNOWN_ERROR: i32 = 1;
const INVALID_SCHEMA: i32 = 2;
const TABLE_ALREADY_PRESENT: i32 = 4;
/// Statuses.
const NOT_FOUND: i32 = 1;
const INVALID_ARGUMENT: i32 = 4;
const ALREADY_PRESENT: i32 = 6;

/// Mistake of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    AddsPresentColumn,
    AddsColumnWithoutDefault,
    DropsMissingColumn,
    DropsKeyColumn,
    ChangesMissingColumn,
    RenamesMissingColumn,
    RenamesToPresentName,
    RenamesTableToPresentName,
    AddsPresentRange,
    AddsOverlappingRange,
    AddsEmptyRange,
    DropsMissingRange,
}

/// Steps of which the last is invalid, and the code and the status of the refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidAlteration {
    pub steps: Vec<AlterStep>,
    pub code: i32,
    pub status: i32,
}

/// Draws an invalid alteration; `None` if the table has nothing that the drawn mistake needs. `ever` has ranges that
/// the table had, `taken` is the name of another table.
pub fn alteration(
    random: &mut RandomStream,
    table: &ModelTable,
    next: ColNo,
    ever: &[RangeSpec],
    taken: &str,
) -> Option<InvalidAlteration> {
    use Mistake::*;
    let of_ranges = if table.spec.range.is_empty() { 0 } else { 1 };
    let mistake = random.weighted(&[
        (AddsPresentColumn, 2),
        (AddsColumnWithoutDefault, 1),
        (DropsMissingColumn, 1),
        (DropsKeyColumn, 1),
        (ChangesMissingColumn, 1),
        (RenamesMissingColumn, 1),
        (RenamesToPresentName, 1),
        (RenamesTableToPresentName, 1),
        (AddsPresentRange, of_ranges),
        (AddsOverlappingRange, 4 * of_ranges),
        (AddsEmptyRange, of_ranges),
        (DropsMissingRange, 8 * of_ranges),
    ]);
    let mut steps = match random.percent(VALID_FIRST_PERCENT) {
        true => valid(random, table, next, ever),
        false => Vec::new(),
    };
    // Steps are made one after the other: the last one is wrong in the table that the others make.
    let (_, altered) = after("", table, &steps);
    steps.push(step(random, mistake, &altered, next + 1, ever, taken)?);
    let (code, status) = refusal(mistake);
    Some(InvalidAlteration { steps, code, status })
}

/// Returns the code and the status that masters tell.
fn refusal(mistake: Mistake) -> (i32, i32) {
    match mistake {
        Mistake::AddsPresentColumn | Mistake::RenamesToPresentName => (INVALID_SCHEMA, ALREADY_PRESENT),
        Mistake::AddsColumnWithoutDefault | Mistake::DropsKeyColumn => (INVALID_SCHEMA, INVALID_ARGUMENT),
        Mistake::DropsMissingColumn | Mistake::ChangesMissingColumn | Mistake::RenamesMissingColumn => {
            (INVALID_SCHEMA, NOT_FOUND)
        }
        Mistake::RenamesTableToPresentName => (TABLE_ALREADY_PRESENT, ALREADY_PRESENT),
        Mistake::AddsPresentRange => (UNKNOWN_ERROR, ALREADY_PRESENT),
        Mistake::AddsOverlappingRange | Mistake::AddsEmptyRange | Mistake::DropsMissingRange => {
            (UNKNOWN_ERROR, INVALID_ARGUMENT)
        }
    }
}

/// Draws valid steps of one kind.
fn valid(random: &mut RandomStream, table: &ModelTable, next: ColNo, ever: &[RangeSpec]) -> Vec<AlterStep> {
    match random.below(5) {
        0 => changed(random, TableStep::DropColumn, table).into_iter().collect(),
        1 => changed(random, TableStep::RenameColumn, table).into_iter().collect(),
        2 if table.ranges.len() > 1 => vec![AlterStep::DropRange(table.ranges[0].clone())],
        3 => {
            let added = range_draws::added(random, table, ever).unwrap_or_default();
            added.into_iter().map(AlterStep::AddRange).collect()
        }
        _ => vec![added(random, table, next)],
    }
}

fn step(
    random: &mut RandomStream,
    mistake: Mistake,
    table: &ModelTable,
    next: ColNo,
    ever: &[RangeSpec],
    taken: &str,
) -> Option<AlterStep> {
    let any = &table.columns[random.below(table.columns.len() as u64) as usize];
    let new = |random: &mut RandomStream| match added(random, table, next) {
        AlterStep::Add(column) => Some(column),
        _ => None,
    };
    Some(match mistake {
        Mistake::AddsPresentColumn => AlterStep::Add(ColumnSpec { name: any.name.clone(), ..new(random)? }),
        Mistake::AddsColumnWithoutDefault => {
            let name = "without-default".to_string();
            AlterStep::Add(ColumnSpec { name, nullable: false, read: None, write: None, ..new(random)? })
        }
        Mistake::DropsMissingColumn => AlterStep::Drop("missing".to_string()),
        Mistake::DropsKeyColumn => {
            let keys = table.key_columns();
            AlterStep::Drop(keys.get(random.below(keys.len() as u64) as usize)?.name.clone())
        }
        Mistake::ChangesMissingColumn => {
            AlterStep::Default(ColumnSpec { name: "missing".to_string(), ..any.clone() }, None)
        }
        Mistake::RenamesMissingColumn => AlterStep::Rename("missing".to_string(), "found".to_string()),
        Mistake::RenamesToPresentName => {
            let value = table.columns.get(usize::from(table.spec.keys))?;
            (value.name != any.name).then(|| AlterStep::Rename(value.name.clone(), any.name.clone()))?
        }
        Mistake::RenamesTableToPresentName => AlterStep::NameTable(taken.to_string()),
        Mistake::AddsPresentRange => AlterStep::AddRange(range(random, table)?.clone()),
        Mistake::AddsOverlappingRange => AlterStep::AddRange(range_draws::missing(random, table, ever)?),
        Mistake::AddsEmptyRange => {
            let range = range(random, table).filter(|range| !range.low.is_empty())?;
            AlterStep::AddRange(RangeSpec { high: range.low.clone(), ..range.clone() })
        }
        Mistake::DropsMissingRange => AlterStep::DropRange(range_draws::missing(random, table, ever)?),
    })
}

fn range<'a>(random: &mut RandomStream, table: &'a ModelTable) -> Option<&'a RangeSpec> {
    table.ranges.get(random.below(table.ranges.len().max(1) as u64) as usize)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use sim_plan::tables::draw;

    use super::*;

    #[test]
    fn every_mistake_is_drawn_behind_valid_steps_and_alone() {
        let mut kinds = BTreeSet::new();
        for seed in 0..1_000 {
            let random = &mut RandomStream::new(seed, "test");
            let table = draw::table(random, 0);
            let Some(drawn) = alteration(random, &table, 20, &table.ranges, "t0") else { continue };
            let last = drawn.steps.last().expect("the invalid step");
            if let AlterStep::DropRange(range) = last {
                assert!(!table.ranges.contains(range));
            }
            let kind = format!("{:?}", std::mem::discriminant(last));
            kinds.insert((kind, drawn.code, drawn.status, drawn.steps.len() > 1));
        }
        // Eleven kinds of steps and of what masters tell, each alone and behind others.
        assert_eq!(kinds.len(), 2 * 11, "{kinds:?}");
    }
}
