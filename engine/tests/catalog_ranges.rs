//! Alterations with as many range steps as a request may have.

use engine::catalog::{
    AlterStep, AlterTable, CatalogCommand, CatalogConfig, CatalogResult, ColumnRef, CommandReply,
    CreateTable, RangeOps, RequestedColumn, RequestedPartitioning, TableRef,
};
use engine_testkit::catalog_script::{bounds, column, words};
use engine_testkit::single_server_catalog::OneServer;

/// Returns a catalog with a table `t`: `k INT32 KEY`, no range yet.
fn world() -> OneServer {
    let mut world = OneServer::new(CatalogConfig::default());
    let partitioning = RequestedPartitioning {
        range: Some(vec![ColumnRef::Name("k".to_string())]),
        allow_empty: true,
        ..RequestedPartitioning::default()
    };
    let (name, columns) = ("t".to_string(), vec![key()]);
    let request = CreateTable { name, columns, partitioning, ..CreateTable::default() };
    world.command(CatalogCommand::Create(Box::new(request))).expect("a legal table");
    world
}

fn key() -> RequestedColumn {
    column(&words("k int32 key"), 0)
}

fn range(columns: &[RequestedColumn], lower: i32, upper: i32) -> RangeOps {
    let mut ops = RangeOps::default();
    bounds(&mut ops, columns, 0, &lower.to_string(), &upper.to_string());
    ops
}

fn add(columns: &[RequestedColumn], lower: i32, upper: i32) -> AlterStep {
    AlterStep::AddRange { bounds: range(columns, lower, upper), hash: None, dimension_label: None }
}

fn alter(world: &mut OneServer, steps: Vec<AlterStep>) -> CatalogResult<CommandReply> {
    let request = AlterTable { table: TableRef::by_name("t"), steps, ..AlterTable::default() };
    world.command(CatalogCommand::Alter(Box::new(request)))
}

fn tablets(world: &OneServer) -> usize {
    let table = world.catalog.table(&TableRef::by_name("t")).expect("it exists").id;
    world.catalog.tablets(table).count()
}

#[test]
fn thousands_of_range_steps_take_effect_together_or_not_at_all() {
    let mut world = world();
    let columns = [key()];
    // From the outer ends inwards, so that each new range has neighbours.
    let mut steps: Vec<AlterStep> =
        (0..3_000).flat_map(|n| [n, 6_000 - n]).map(|n| add(&columns, 10 * n, 10 * n + 10)).collect();
    let drops = (0..2_999).map(|n| AlterStep::DropRange { bounds: range(&columns, 10 * n, 10 * n + 10) });
    steps.extend(drops);
    let conflicting = steps.iter().cloned().chain([add(&columns, 45_001, 45_005)]).collect();
    let error = alter(&mut world, conflicting).expect_err("the last range is inside another").to_string();
    assert!(error.contains("conflicts with existing one: 45001 <= VALUES < 45005"), "{error}");
    assert_eq!(tablets(&world), 0);
    alter(&mut world, steps).expect("legal steps");
    assert_eq!(tablets(&world), 3_001);
}

#[test]
fn bounds_are_encoded_with_the_columns_of_their_step() {
    let mut world = world();
    let mut columns = vec![key()];
    let mut steps = vec![add(&columns, 0, 10)];
    let added = column(&words("v int32 null"), 1);
    columns.push(added.clone());
    steps.extend([AlterStep::AddColumn(added), add(&columns, 10, 20)]);
    columns.pop();
    steps.extend([AlterStep::DropColumn("v".to_string()), add(&columns, 20, 30)]);
    alter(&mut world, steps).expect("legal steps");
    assert_eq!(tablets(&world), 3);
}
