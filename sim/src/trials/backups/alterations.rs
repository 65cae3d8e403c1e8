//! Alterations of the table's value columns: they are added, dropped and renamed, and get other defaults or
//! lose theirs.

use engine::error::Result;
use nyala_client::tables::AlterStep;
use sim_plan::RandomStream;

use super::columns::ValueColumn;
use super::keeper::Keeper;

/// Most columns of the table.
const COLUMNS_MAX: usize = 5;
/// Most steps of an alteration.
const STEPS_MAX: u64 = 3;

impl Keeper {
    /// Alters the columns.
    pub(super) async fn alter(&mut self) -> Result<()> {
        let (mut columns, mut steps) = (self.columns.clone(), Vec::new());
        for _ in 0..self.random.between(1, STEPS_MAX) {
            steps.extend(draw_step(&mut self.random, &mut columns, &mut self.next_column));
        }
        if steps.is_empty() {
            return Ok(());
        }
        self.table = self.client.alter_table(&self.table, &steps, None).await?;
        self.columns = columns;
        let kinds: Vec<&str> = steps.iter().map(word).collect();
        self.note(format!("the columns are altered: {}", kinds.join(", ")));
        Ok(())
    }
}

fn word(step: &AlterStep) -> &'static str {
    match step {
        AlterStep::AddColumn(_) => "added",
        AlterStep::DropColumn(_) => "dropped",
        AlterStep::RenameColumn { .. } => "renamed",
        AlterStep::SetDefault { default: Some(_), .. } => "default",
        AlterStep::SetDefault { default: None, .. } => "default removed",
        AlterStep::AddRange(_) | AlterStep::DropRange(_) => "range",
    }
}

/// Draws a step and makes it in the model; none if nothing of its kind is possible.
fn draw_step(random: &mut RandomStream, columns: &mut Vec<ValueColumn>, next: &mut u32) -> Option<AlterStep> {
    let kind = random.weighted(&[("add", 35), ("default", 40), ("rename", 15), ("drop", 10)]);
    // The first column stays.
    let at = (columns.len() > 1).then(|| 1 + random.below(columns.len() as u64 - 1) as usize);
    let at = at.filter(|_| kind != "add");
    match (kind, at) {
        ("add", _) if columns.len() < COLUMNS_MAX => Some(add(random, columns, next)),
        ("drop", Some(at)) => Some(AlterStep::DropColumn(columns.remove(at).name)),
        ("rename", Some(at)) => {
            *next += 1;
            let to = format!("r{next}");
            let from = std::mem::replace(&mut columns[at].name, to.clone());
            Some(AlterStep::RenameColumn { from, to })
        }
        ("default", Some(at)) => {
            let column = &mut columns[at];
            let removes = column.default.is_some() && random.percent(60);
            column.default = (!removes).then(|| random.below(1 << 20) as i64);
            let default = column.default.map(|cell| cell.to_le_bytes().to_vec());
            Some(AlterStep::SetDefault { column: column.name.clone(), default })
        }
        _ => None,
    }
}

/// Adds a column, some of them with a name that one had before.
fn add(random: &mut RandomStream, columns: &mut Vec<ValueColumn>, next: &mut u32) -> AlterStep {
    *next += 1;
    let former = format!("c{}", random.between(2, u64::from(*next)));
    let is_free = columns.iter().all(|column| column.name != former);
    let name = if is_free && random.percent(60) { former } else { format!("c{next}") };
    let nullable = random.percent(60);
    let first = (!nullable || random.percent(60)).then(|| random.below(1 << 20) as i64);
    let column = ValueColumn { number: *next, name, nullable, first, default: first };
    let schema = column.schema(random);
    columns.push(column);
    AlterStep::AddColumn(schema)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn steps_of_every_kind_are_drawn_and_names_are_unique() {
        let random = &mut RandomStream::new(1, "test");
        let (mut columns, mut next, mut seen) = (vec![ValueColumn::initial()], 1, BTreeSet::new());
        for _ in 0..500 {
            seen.extend(draw_step(random, &mut columns, &mut next).as_ref().map(word));
            let names: BTreeSet<&str> = columns.iter().map(|column| column.name.as_str()).collect();
            assert_eq!(names.len(), columns.len(), "{columns:?}");
            assert!(columns.iter().all(|column| column.nullable || column.first.is_some()));
            assert_eq!(columns[0], ValueColumn::initial());
        }
        assert_eq!(seen.len(), 5, "{seen:?}");
    }
}
