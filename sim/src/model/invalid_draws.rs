//! Draws of alterations that masters must refuse.

use sim_plan::RandomStream;
use sim_plan::tables::{ColumnSpec, ModelTable, RangeSpec};

use super::ColNo;
use super::draws::{AlterStep, added, cut};

/// Percentage of refused alterations that begin with a valid step, which must not be taken either.
const VALID_FIRST_PERCENT: u64 = 40;

/// Mistake of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    AddsPresentColumn,
    AddsColumnWithoutDefault,
    DropsMissingColumn,
    DropsKeyColumn,
    RenamesMissingColumn,
    RenamesToPresentName,
    AddsOverlappingRange,
    DropsMissingRange,
}

/// Draws steps of which the last is invalid; `None` if the table has nothing that the drawn mistake needs.
pub fn steps(random: &mut RandomStream, table: &ModelTable, next: ColNo) -> Option<Vec<AlterStep>> {
    use Mistake::*;
    let mistake = random.weighted(&[
        (AddsPresentColumn, 2),
        (AddsColumnWithoutDefault, 1),
        (DropsMissingColumn, 1),
        (DropsKeyColumn, 1),
        (RenamesMissingColumn, 1),
        (RenamesToPresentName, 1),
        (AddsOverlappingRange, 3),
        (DropsMissingRange, 4),
    ]);
    let last = step(random, mistake, table, next)?;
    let first = random.percent(VALID_FIRST_PERCENT).then(|| added(random, table, next));
    Some(first.into_iter().chain([last]).collect())
}

fn step(random: &mut RandomStream, mistake: Mistake, table: &ModelTable, next: ColNo) -> Option<AlterStep> {
    let any = &table.columns[random.below(table.columns.len() as u64) as usize];
    let new = |random: &mut RandomStream| match added(random, table, next + 1) {
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
        Mistake::DropsKeyColumn => AlterStep::Drop(table.key_columns().first()?.name.clone()),
        Mistake::RenamesMissingColumn => AlterStep::Rename("missing".to_string(), "found".to_string()),
        Mistake::RenamesToPresentName => {
            let value = table.columns.get(usize::from(table.spec.keys))?;
            (value.name != any.name).then(|| AlterStep::Rename(value.name.clone(), any.name.clone()))?
        }
        Mistake::AddsOverlappingRange => {
            let range = range(random, table)?;
            AlterStep::AddRange(cut(random, table, range))
        }
        Mistake::DropsMissingRange => {
            let whole = range(random, table)?;
            let part = cut(random, table, whole);
            let is_missing =
                table.ranges.iter().all(|range| (&range.low, &range.high) != (&part.low, &part.high));
            is_missing.then_some(AlterStep::DropRange(part))?
        }
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
    fn every_mistake_is_drawn_and_leaves_the_ranges_that_there_are() {
        let mut kinds = BTreeSet::new();
        for seed in 0..400 {
            let random = &mut RandomStream::new(seed, "test");
            let table = draw::table(random, 0);
            let Some(steps) = steps(random, &table, 20) else { continue };
            let last = steps.last().expect("the invalid step");
            if let AlterStep::DropRange(range) = last {
                assert!(!table.ranges.contains(range));
            }
            kinds.insert(format!("{:?}", std::mem::discriminant(last)));
        }
        assert_eq!(kinds.len(), 5, "added and dropped columns and ranges, renamed columns: {kinds:?}");
    }
}
