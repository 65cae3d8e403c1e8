//! A tablet against a map of versions: writes, jobs with writes between their steps, power cuts, restarts.

use arbitrary::{Result, Unstructured};
use engine::schema::row_ops::RowOpKind;

use engine_testkit::model::{Change, Step, follow};

/// Limit of steps: more take long and find no more.
const STEPS_MAX: usize = 24;
/// Few keys, so that operations meet.
const KEYS: u8 = 12;

fn change(input: &mut Unstructured<'_>) -> Result<Change> {
    let kind = RowOpKind::from_number(*input.choose(&[1, 2, 3, 5, 10, 11, 12, 13])?).expect("a write");
    let n: Option<Option<i8>> = input.arbitrary()?;
    Ok(Change {
        kind,
        key: input.int_in_range(0..=KEYS - 1)?,
        v: input.arbitrary()?,
        n: n.map(|n| n.map(i32::from)),
    })
}

fn changes(input: &mut Unstructured<'_>, most: usize) -> Result<Vec<Change>> {
    (0..input.int_in_range(0..=most)?).map(|_| change(input)).collect()
}

fn step(input: &mut Unstructured<'_>) -> Result<Step> {
    // Rowset of a job.
    let which = |input: &mut Unstructured<'_>| input.int_in_range(0..=15usize);
    Ok(match input.int_in_range(0..=19u8)? {
        0..=3 => Step::Write(changes(input, 8)?),
        4..=5 => Step::FlushRows(changes(input, 4)?),
        6..=7 => Step::FlushDeltas(which(input)?, changes(input, 4)?),
        8..=9 => Step::Compact(which(input)?, input.int_in_range(1..=3)?, changes(input, 4)?),
        10..=11 => Step::MajorDeltaCompaction(which(input)?, changes(input, 4)?),
        12 => Step::Checkpoint,
        13 => Step::Gc,
        14 => Step::CompactDue,
        15 => Step::Forget(input.int_in_range(0..=99)?),
        16 => Step::Restart,
        17 => Step::Crash,
        18 => Step::MinorDeltaCompaction(which(input)?, changes(input, 4)?),
        _ if input.arbitrary()? => Step::AddColumn,
        _ => Step::DropColumn,
    })
}

/// Applies the steps to the tablet and to the map.
pub(super) fn tablet(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let mut steps = Vec::new();
    while !input.is_empty() && steps.len() < STEPS_MAX {
        let Ok(step) = step(&mut input) else { return };
        steps.push(step);
    }
    follow(data.len() as u64, &steps);
}
