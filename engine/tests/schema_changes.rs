//! Alterations of a table's columns, compared with a list of names: an alteration is atomic, and a column's id is never
//! reused.

use std::collections::BTreeSet;

use engine::catalog::{
    AlterStep, AlterTable, Catalog, CatalogCommand, CatalogConfig, CreateTable, RequestedColumn, TableRef,
};
use engine::ids::ColumnId;
use engine::schema::{ColumnSchema, DataType};
use engine_testkit::single_server_catalog::OneServer;
use proptest::prelude::*;

const COLUMNS_MAX: usize = 5;

/// A step of an alteration, with columns by number; column 0 is the key.
#[derive(Debug, Clone)]
enum Step {
    Add { name: u8, nullable: bool, default: bool },
    Drop(u8),
    Rename(u8, u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..7u8, any::<bool>(), any::<bool>())
            .prop_map(|(name, nullable, default)| Step::Add { name, nullable, default }),
        2 => (0..7u8).prop_map(Step::Drop),
        2 => (0..7u8, 0..7u8).prop_map(|(from, to)| Step::Rename(from, to)),
    ]
}

fn name(number: u8) -> String {
    if number == 0 { "k".to_string() } else { format!("c{number}") }
}

fn requested(name: &str, nullable: bool, default: bool, is_key: bool) -> RequestedColumn {
    let mut column = ColumnSchema::new(0, name, DataType::Int32);
    column.nullable = nullable;
    column.read_default = default.then(|| 7i32.to_le_bytes().to_vec());
    RequestedColumn { column, is_key, has_id: false }
}

impl Step {
    fn request(&self) -> AlterStep {
        match self {
            Step::Add { name: number, nullable, default } => {
                AlterStep::AddColumn(requested(&name(*number), *nullable, *default, false))
            }
            Step::Drop(number) => AlterStep::DropColumn(name(*number)),
            Step::Rename(from, to) => AlterStep::RenameColumn { from: name(*from), to: name(*to) },
        }
    }
}

/// Names and ids, in order; the first is the key.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Model {
    columns: Vec<(String, ColumnId)>,
    next_id: u32,
}

impl Model {
    /// Applies a step; `None` if it must be rejected.
    fn step(&mut self, step: &Step) -> Option<()> {
        let at = |columns: &[(String, ColumnId)], number: u8| {
            columns.iter().position(|(known, _)| *known == name(number))
        };
        match step {
            Step::Add { name: number, nullable, default } => {
                let free = at(&self.columns, *number).is_none();
                if !free || !(*nullable || *default) || self.columns.len() == COLUMNS_MAX {
                    return None;
                }
                self.columns.push((name(*number), ColumnId(self.next_id)));
                self.next_id += 1;
            }
            Step::Drop(number) => {
                let at = at(&self.columns, *number).filter(|at| *at > 0)?;
                self.columns.remove(at);
            }
            Step::Rename(from, to) => {
                let at_from = at(&self.columns, *from)?;
                if from != to {
                    at(&self.columns, *to).is_none().then_some(())?;
                    self.columns[at_from].0 = name(*to);
                }
            }
        }
        Some(())
    }
}

/// Creates a catalog with the table `t`, which has the key and one more column.
fn world() -> OneServer {
    let mut world = OneServer::new(CatalogConfig { columns_max: COLUMNS_MAX, ..CatalogConfig::default() });
    let columns = vec![requested("k", false, false, true), requested("c1", true, false, false)];
    let create = CreateTable { name: "t".to_string(), columns, ..CreateTable::default() };
    world.command(CatalogCommand::Create(Box::new(create))).expect("a legal table");
    world
}

fn columns(catalog: &Catalog) -> Vec<(String, ColumnId)> {
    let table = catalog.table(&TableRef::by_name("t")).expect("it is there");
    let schema = &table.record.schema;
    assert_eq!(schema.num_key_columns(), 1);
    schema.columns().iter().map(|column| (column.name.clone(), column.id)).collect()
}

fn version(catalog: &Catalog) -> u32 {
    catalog.table(&TableRef::by_name("t")).expect("it is there").record.version
}

proptest! {
    #[test]
    fn alterations_are_atomic(
        alterations in prop::collection::vec(prop::collection::vec(step(), 1..4), 1..8),
    ) {
        let mut world = world();
        let mut model = Model { columns: columns(&world.catalog), next_id: 2 };
        let mut ids: BTreeSet<ColumnId> = model.columns.iter().map(|(_, id)| *id).collect();
        for steps in &alterations {
            let mut after = model.clone();
            let is_legal = steps.iter().try_for_each(|step| after.step(step)).is_some();
            let request = AlterTable {
                table: TableRef::by_name("t"),
                steps: steps.iter().map(Step::request).collect(),
                ..AlterTable::default()
            };
            let old_version = version(&world.catalog);
            let reply = world.command(CatalogCommand::Alter(Box::new(request)));
            prop_assert_eq!(reply.is_ok(), is_legal, "{:?}: {:?}", steps, reply);
            if is_legal {
                if after.columns == model.columns {
                    // The alteration failed and nothing was stored: no client saw the ids that it assigned.
                    after.next_id = model.next_id;
                }
                // No id is ever assigned to another column, not even one of a dropped column.
                let fresh = after.columns.iter().filter(|(_, id)| !model.columns.iter().any(|(_, old)| old == id));
                for (_, id) in fresh {
                    prop_assert!(ids.insert(*id), "column id {} is given twice", id.0);
                }
                let new_version = version(&world.catalog);
                prop_assert!(new_version > old_version || model.columns == after.columns, "{steps:?}");
                model = after;
            }
            prop_assert_eq!(&columns(&world.catalog), &model.columns);
        }
    }
}
