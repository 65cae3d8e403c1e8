//! Draws of alterations that fit a version of a table.

use sim_plan::RandomStream;
use sim_plan::client_ops::TableStep;
use sim_plan::tables::spec::{CompressionWord, EncodingWord};
use sim_plan::tables::{ColumnSpec, ModelTable, RangeSpec, Value, draw};

use super::{ColNo, range_draws};

/// Percentage of added ranges of which one side alone is added.
const CUT_PERCENT: u64 = 30;
/// Percentage of added columns with the name that an earlier step of the request has taken from another column.
const RETAKEN_PERCENT: u64 = 60;
/// Most steps of one request, if it has several, and the kinds of those after the first.
const SEVERAL_MAX: u64 = 5;
const SEVERAL: [TableStep; 8] = [
    TableStep::AddColumn,
    TableStep::DropColumn,
    TableStep::RenameColumn,
    TableStep::ChangeDefault,
    TableStep::ChangeLayout,
    TableStep::RenameTable,
    TableStep::AddRange,
    TableStep::DropRange,
];

/// A step of an alteration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AlterStep {
    Add(ColumnSpec),
    Drop(String),
    Rename(String, String),
    /// Sets or removes a write default.
    Default(ColumnSpec, Option<Value>),
    Layout(String, EncodingWord, CompressionWord),
    AddRange(RangeSpec),
    DropRange(RangeSpec),
    NameTable(String),
}

/// Steps, and the table after them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alteration {
    pub steps: Vec<AlterStep>,
    pub name: String,
    pub table: ModelTable,
}

impl Alteration {
    /// Returns the ranges that it drops, also those that it adds again.
    pub fn dropped_ranges(&self) -> Vec<RangeSpec> {
        let dropped = |step: &AlterStep| match step {
            AlterStep::DropRange(range) => Some(range.clone()),
            _ => None,
        };
        self.steps.iter().filter_map(dropped).collect()
    }
}

/// Draws an alteration of a table with this name. `next` is the first unused number of a column, `gone` has ranges that
/// the table had. `None` if nothing of the kind is possible.
pub fn alteration(
    random: &mut RandomStream,
    step: TableStep,
    (name, table): (&str, &ModelTable),
    next: ColNo,
    gone: &[RangeSpec],
) -> Option<Alteration> {
    let steps = match step {
        TableStep::Several => several(random, (name, table), next, gone),
        step => steps_of(random, step, table, next, gone)?,
    };
    let (name, table) = after(name, table, &steps);
    Some(Alteration { steps, name, table })
}

/// Draws steps of one request. They are made one after the other: each fits the table that those before it leave.
fn several(
    random: &mut RandomStream,
    (name, table): (&str, &ModelTable),
    next: ColNo,
    gone: &[RangeSpec],
) -> Vec<AlterStep> {
    let mut steps = vec![added(random, table, next)];
    for next in next + 1..next + random.between(2, SEVERAL_MAX) as ColNo {
        let step = random.pick(&SEVERAL);
        let (_, current) = after(name, table, &steps);
        let mut more = steps_of(random, step, &current, next, gone).unwrap_or_default();
        if let ([AlterStep::Add(column)], Some(free)) = (&mut more[..], given_up(&steps, &current))
            && random.percent(RETAKEN_PERCENT)
        {
            column.name = free;
        }
        steps.extend(more);
    }
    steps
}

/// Returns the last name that a column had before these steps, and none has now.
fn given_up(steps: &[AlterStep], now: &ModelTable) -> Option<String> {
    let name = steps.iter().rev().find_map(|step| match step {
        AlterStep::Drop(name) | AlterStep::Rename(name, _) => Some(name.clone()),
        _ => None,
    })?;
    now.columns.iter().all(|column| column.name != name).then_some(name)
}

/// Draws the steps of a kind; `None` if nothing of it is possible.
fn steps_of(
    random: &mut RandomStream,
    step: TableStep,
    table: &ModelTable,
    next: ColNo,
    gone: &[RangeSpec],
) -> Option<Vec<AlterStep>> {
    Some(match step {
        TableStep::AddColumn => vec![added(random, table, next)],
        TableStep::DropColumn
        | TableStep::RenameColumn
        | TableStep::ChangeDefault
        | TableStep::ChangeLayout => vec![changed(random, step, table)?],
        TableStep::RenameTable => {
            let number = table.spec.number;
            vec![AlterStep::NameTable(format!("model{number}-{}", random.below(1_000)))]
        }
        TableStep::AddRange => {
            let apart = |range: &&RangeSpec| table.ranges.iter().all(|other| disjoint(table, range, other));
            let free: Vec<&RangeSpec> = gone.iter().filter(apart).collect();
            let range = free.get(random.below(free.len() as u64) as usize)?;
            vec![AlterStep::AddRange(cut(random, table, range))]
        }
        TableStep::DropRange if table.ranges.len() > 1 => {
            let at = random.below(table.ranges.len() as u64) as usize;
            vec![AlterStep::DropRange(table.ranges[at].clone())]
        }
        TableStep::AddRanges => {
            let added = range_draws::added(random, table, gone)?;
            added.into_iter().map(AlterStep::AddRange).collect()
        }
        TableStep::ReplaceRanges => {
            let (dropped, added) = range_draws::replaced(random, table, gone)?;
            let dropped = dropped.into_iter().map(AlterStep::DropRange);
            dropped.chain(added.into_iter().map(AlterStep::AddRange)).collect()
        }
        TableStep::Several
        | TableStep::DropRange
        | TableStep::Refused
        | TableStep::HideAndRecall
        | TableStep::Recreate => return None,
    })
}

/// Returns a range or one side of it: what a client remembers of the whole then overlaps with what there is.
fn cut(random: &mut RandomStream, table: &ModelTable, range: &RangeSpec) -> RangeSpec {
    use crate::wire::keys::range_key;
    let mut range = range.clone();
    let first = table.spec.range.first().and_then(|number| table.column(*number));
    let Some(first) = first.filter(|_| random.percent(CUT_PERCENT)) else { return range };
    let at = vec![draw::value(random, first.kind)];
    let key = range_key(table, &at);
    let above = range.low.is_empty() || range_key(table, &range.low) < key;
    let below = range.high.is_empty() || key < range_key(table, &range.high);
    // The encoded key of the empty text is that of no bound.
    if above && below && at[0] != Value::bytes(b"") {
        let side = if random.percent(50) { &mut range.low } else { &mut range.high };
        *side = at;
    }
    range
}

fn disjoint(table: &ModelTable, one: &RangeSpec, other: &RangeSpec) -> bool {
    use crate::wire::keys::range_key;
    let below = |high: &[Value], low: &[Value]| {
        !high.is_empty() && !low.is_empty() && range_key(table, high) <= range_key(table, low)
    };
    below(&one.high, &other.low) || below(&other.high, &one.low)
}

pub(super) fn added(random: &mut RandomStream, table: &ModelTable, next: ColNo) -> AlterStep {
    // A name that the table had before now and then: its old cells must not come back.
    let reused = format!("c{}", random.below(u64::from(next) + 1));
    let free = table.columns.iter().all(|column| column.name != reused);
    let name = if free && random.percent(60) { reused } else { format!("c{next}n") };
    let mut column = draw::value_column(random, table.spec.number, next, name);
    if !column.nullable && column.read.is_none() {
        let default = draw::value(random, column.kind);
        (column.read, column.write) = (Some(default.clone()), Some(default));
    }
    AlterStep::Add(column)
}

/// Draws a step that changes one of the value columns.
pub(super) fn changed(random: &mut RandomStream, step: TableStep, table: &ModelTable) -> Option<AlterStep> {
    let values = table.columns[usize::from(table.spec.keys)..].iter();
    let values: Vec<&ColumnSpec> = values.filter(|column| Some(column.number) != table.origin()).collect();
    if values.is_empty() {
        return None;
    }
    let column = *values.get(random.below(values.len() as u64) as usize)?;
    let name = column.name.clone();
    match step {
        TableStep::DropColumn => (values.len() > 1).then_some(AlterStep::Drop(name)),
        TableStep::RenameColumn => {
            let new = format!("r{}x{}", column.number, random.below(4));
            let free = table.columns.iter().all(|column| column.name != new);
            free.then_some(AlterStep::Rename(name, new))
        }
        TableStep::ChangeDefault => {
            let default = random.percent(70).then(|| draw::value(random, column.kind));
            Some(AlterStep::Default(column.clone(), default))
        }
        _ => {
            let encoding = draw::encoding(random, column.kind);
            Some(AlterStep::Layout(name, encoding, random.pick(CompressionWord::ALL)))
        }
    }
}

/// Returns a table after steps.
pub(super) fn after(name: &str, table: &ModelTable, steps: &[AlterStep]) -> (String, ModelTable) {
    let (mut name, mut table) = (name.to_string(), table.clone());
    for step in steps {
        let find = |table: &mut ModelTable, name: &str, change: &dyn Fn(&mut ColumnSpec)| {
            table.columns.iter_mut().filter(|column| column.name == name).for_each(change);
        };
        match step {
            AlterStep::Add(column) => table.columns.push(column.clone()),
            AlterStep::Drop(name) => table.columns.retain(|column| column.name != *name),
            AlterStep::Rename(old, new) => find(&mut table, old, &|column| column.name.clone_from(new)),
            AlterStep::Default(of, value) => {
                find(&mut table, &of.name, &|column| column.write.clone_from(value));
            }
            AlterStep::Layout(name, encoding, compression) => find(&mut table, name, &|column| {
                (column.encoding, column.compression) = (*encoding, *compression);
            }),
            AlterStep::AddRange(range) => table.ranges.push(range.clone()),
            AlterStep::DropRange(range) => table.ranges.retain(|other| other != range),
            AlterStep::NameTable(new) => name.clone_from(new),
        }
    }
    (name, table)
}
