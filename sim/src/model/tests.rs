//! The model's rules by example, and its keys against the engine's, which were written apart.

use std::sync::Arc;

use sim_plan::RandomStream;
use sim_plan::client_ops::{TableStep, WriteKind};
use sim_plan::line_format::LineRecord;
use sim_plan::tables::{ColumnKind, ColumnSpec, ModelTable, TypeWord, Value, draw};

use super::rows::{apply, cell};
use super::*;

/// `number kind nullable immutable default`, the first column is the key.
pub(crate) fn column(number: u8, kind: &str, nullable: bool, immutable: bool, default: &str) -> ColumnSpec {
    let line = format!(
        "column table=0 number={number} name=c{number} kind={kind} nullable={nullable} immutable={immutable} \
         read={default} write={default} encoding=auto compression=default"
    );
    ColumnSpec::parse_line(&line).expect("a column")
}

fn columns() -> Vec<ColumnSpec> {
    vec![
        column(0, "int32", false, false, "-"),
        column(1, "int32", false, false, "i7"),
        column(2, "string", true, true, "-"),
        column(3, "int32", false, false, "-"),
    ]
}

fn write(kind: WriteKind, cells: &[(u8, Value)]) -> RowWrite {
    RowWrite { kind, cells: cells.iter().cloned().collect() }
}

fn row(cells: &[(u8, Value)]) -> ModelRow {
    Some(Arc::new(cells.iter().cloned().collect()))
}

fn whole() -> ModelRow {
    row(&[(0, Value::Int(1)), (1, Value::Int(7)), (2, Value::Null), (3, Value::Int(3))])
}

#[test]
fn an_insert_takes_write_defaults_and_null() {
    let insert = write(WriteKind::Insert, &[(0, Value::Int(1)), (3, Value::Int(3))]);
    let effect = apply(&columns(), 1, &insert, &None);
    assert_eq!((effect.answers, effect.after), (vec![RowAnswer::Done], whole()));
    let effect = apply(&columns(), 1, &insert, &whole());
    assert_eq!((effect.answers, effect.changed), (vec![RowAnswer::AlreadyPresent], false));
    let without = write(WriteKind::Upsert, &[(0, Value::Int(1))]);
    assert_eq!(apply(&columns(), 1, &without, &None).answers, [RowAnswer::Refused]);
}

#[test]
fn an_upsert_leaves_what_it_does_not_set() {
    let upsert = write(WriteKind::Upsert, &[(0, Value::Int(1)), (3, Value::Int(9))]);
    let want = row(&[(0, Value::Int(1)), (1, Value::Int(7)), (2, Value::Null), (3, Value::Int(9))]);
    assert_eq!(apply(&columns(), 1, &upsert, &whole()).after, want);
}

#[test]
fn an_immutable_column_is_set_once() {
    let cells = [(0, Value::Int(1)), (2, Value::bytes(b"x")), (3, Value::Int(9))];
    let effect = |kind, state: &ModelRow| apply(&columns(), 1, &write(kind, &cells), state);
    assert_eq!(effect(WriteKind::Update, &whole()).answers, [RowAnswer::Immutable]);
    assert_eq!(effect(WriteKind::Upsert, &whole()).after, whole());
    let ignoring = effect(WriteKind::UpsertIgnore, &whole()).after.expect("a row");
    assert_eq!((&ignoring[&2], &ignoring[&3]), (&Value::Null, &Value::Int(9)));
    let inserted = effect(WriteKind::Upsert, &None).after.expect("a row");
    assert_eq!(inserted[&2], Value::bytes(b"x"));
}

#[test]
fn updates_and_deletes_need_a_row_unless_they_ignore() {
    let keys = [(0, Value::Int(1))];
    let set = [(0, Value::Int(1)), (3, Value::Int(9))];
    let answers = |kind, cells: &[(u8, Value)], state: &ModelRow| {
        apply(&columns(), 1, &write(kind, cells), state).answers
    };
    assert_eq!(answers(WriteKind::Update, &set, &None), [RowAnswer::NotFound]);
    assert_eq!(answers(WriteKind::UpdateIgnore, &set, &None), [RowAnswer::Ignored]);
    assert_eq!(answers(WriteKind::Delete, &keys, &None), [RowAnswer::NotFound]);
    assert_eq!(answers(WriteKind::DeleteIgnore, &keys, &None), [RowAnswer::Ignored]);
    assert_eq!(apply(&columns(), 1, &write(WriteKind::Delete, &keys), &whole()).after, None);
}

#[test]
fn a_row_has_the_read_default_of_a_column_that_came_later() {
    let later = column(4, "int32", false, false, "i5");
    let cells = whole().expect("a row");
    assert_eq!(cell(&cells, &later), Value::Int(5));
    assert_eq!(cell(&cells, &column(5, "int32", true, false, "-")), Value::Null);
}

#[test]
fn comparisons_never_keep_null() {
    let kind = ColumnKind::plain(TypeWord::Int32);
    let (five, seven) = (Value::Int(5), Value::Int(7));
    let range = Condition::Range(Some(five.clone()), Some(seven.clone()));
    assert_eq!(range.keeps(kind, &five), Truth::Yes);
    assert_eq!(range.keeps(kind, &seven), Truth::No);
    for condition in
        [range, Condition::Equal(five.clone()), Condition::In(vec![five.clone()]), Condition::NotNull]
    {
        assert_eq!(condition.keeps(kind, &Value::Null), Truth::No, "{condition:?}");
    }
    assert_eq!(Condition::Null.keeps(kind, &Value::Null), Truth::Yes);
    let double = ColumnKind::plain(TypeWord::Double);
    let nan = Value::Bits(f64::NAN.to_bits());
    assert_eq!(Condition::Equal(nan.clone()).keeps(double, &nan), Truth::Open);
}

pub(crate) fn incarnation() -> Incarnation {
    let spec =
        sim_plan::tables::TableSpec::parse_line("table number=0 keys=1 hash=- range=-").expect("a table");
    let table = ModelTable { spec, columns: columns(), ranges: Vec::new() };
    Incarnation::new(table, "id".to_string(), "t".to_string(), 0, 10)
}

#[test]
fn an_alteration_is_a_window() {
    let mut table = incarnation();
    let mut shape = table.versions[0].table.clone();
    shape.columns.retain(|column| column.number != 3);
    let number = table.begin("t".to_string(), shape, 100);
    let columns = |table: &Incarnation, from, to| -> Vec<usize> {
        table.possible(from..=to).map(|version| version.table.columns.len()).collect()
    };
    assert_eq!(columns(&table, 20, 99), [4]);
    assert_eq!(columns(&table, 20, 100), [4, 3]);
    assert_eq!(columns(&table, 500, 600), [4, 3], "its outcome is unknown");
    table.versions[number].known = Some(200);
    assert_eq!(columns(&table, 150, 250), [4, 3]);
    assert_eq!(columns(&table, 201, 250), [3]);
    table.versions[number].void = true;
    assert_eq!(columns(&table, 201, 250), [4]);
}

#[test]
fn a_write_behind_an_alteration_keeps_the_columns_that_its_names_meant() {
    let mut table = incarnation();
    let mut renamed = table.versions[0].table.clone();
    renamed.columns[3].name = "other".to_string();
    let number = table.begin("t".to_string(), renamed, 100);
    table.versions[number].known = Some(200);
    let write = write(WriteKind::Upsert, &[(0, Value::Int(1)), (3, Value::Int(2))]);
    let behind = |since| table.translate(&table.versions[number], since, &columns(), &write);
    assert_eq!(behind(150), Some(write.clone()), "the names may have been resolved before the alteration");
    assert_eq!(behind(201), None, "the first version had ended when the write was called");
}

#[test]
fn a_column_is_found_by_its_name_and_type() {
    let table = incarnation();
    let version = &table.versions[0];
    let mut renamed = columns();
    renamed[3].name = "other".to_string();
    assert_eq!(version.resolve(&columns()).map(|found| found.len()), Some(4));
    assert_eq!(version.resolve(&renamed), None);
    let mut nullable = columns();
    nullable[3].nullable = true;
    assert_eq!(version.resolve(&nullable), None);
    assert!(
        version.has_other(&nullable[3])
            && !version.has_other(&renamed[3])
            && !version.has_other(&columns()[3])
    );
}

#[test]
fn alterations_are_drawn_of_every_kind_and_keep_the_key() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let random = &mut RandomStream::new(seed, "test");
        let table = draw::table(random, 0);
        for step in TableStep::ALL {
            let Some(drawn) = alter_draws::alteration(random, *step, ("t", &table), 20, &[]) else {
                continue;
            };
            assert_eq!(drawn.table.key_columns(), table.key_columns());
            assert!(drawn.table.columns.len() >= table.key_columns().len());
            seen.insert(*step);
        }
    }
    let not_drawn = [TableStep::AddRange, TableStep::Refused, TableStep::HideAndRecall, TableStep::Recreate];
    let all = TableStep::ALL.iter().filter(|step| !not_drawn.contains(step));
    assert!(all.clone().all(|step| seen.contains(step)), "{seen:?}");
}

/// A name that one step of a request gives up and a later one takes is where alterations have gone wrong.
#[test]
fn several_steps_build_on_each_other() {
    use alter_draws::AlterStep::{Add, Drop, Rename};
    let (mut readded, mut new_renamed) = (0, 0);
    for seed in 0..2_000 {
        let random = &mut RandomStream::new(seed, "test");
        let table = draw::table(random, 0);
        let next = table.columns.len() as u8;
        let drawn = alter_draws::alteration(random, TableStep::Several, ("t", &table), next, &[]).unwrap();
        for (at, step) in drawn.steps.iter().enumerate() {
            let earlier = &drawn.steps[..at];
            let added = |name: &str| earlier.iter().any(|step| matches!(step, Add(it) if it.name == name));
            let dropped = |name: &str| earlier.contains(&Drop(name.to_string()));
            readded += usize::from(matches!(step, Add(column) if dropped(&column.name)));
            new_renamed += usize::from(matches!(step, Rename(old, _) if added(old)));
        }
        let names: std::collections::BTreeSet<_> = drawn.table.columns.iter().map(|it| &it.name).collect();
        assert_eq!(names.len(), drawn.table.columns.len(), "{:?}", drawn.steps);
    }
    assert!(readded > 10 && new_renamed > 10, "{readded} {new_renamed}");
}

/// The engine's keys and hashes, for tables of any shape. Only tests look at the engine.
mod against_the_engine {
    use engine::schema::DataType;
    use engine::schema::key;

    use super::*;
    use crate::wire::keys;

    fn data_type(word: TypeWord) -> DataType {
        match word {
            TypeWord::Int8 => DataType::Int8,
            TypeWord::Int16 => DataType::Int16,
            TypeWord::Int32 => DataType::Int32,
            TypeWord::Int64 => DataType::Int64,
            TypeWord::String => DataType::String,
            TypeWord::Binary => DataType::Binary,
            TypeWord::Time => DataType::UnixtimeMicros,
            TypeWord::Date => DataType::Date,
            other => panic!("{other:?} is not compared"),
        }
    }

    #[test]
    fn hashes_are_equal() {
        use engine::schema::wire_hash::murmur2_64a;
        for seed in 0..500 {
            let random = &mut RandomStream::new(seed, "test");
            let bytes: Vec<u8> = (0..random.below(40)).map(|_| random.next_u64() as u8).collect();
            let of = random.next_u64();
            assert_eq!(keys::murmur(&bytes, of), murmur2_64a(&bytes, of), "{bytes:?} {of}");
        }
    }

    #[test]
    fn keys_are_equal() {
        use TypeWord::*;
        let words = [Int8, Int16, Int32, Int64, String, Binary, Time, Date];
        for seed in 0..2_000 {
            let random = &mut RandomStream::new(seed, "test");
            let kinds: Vec<ColumnKind> =
                (0..random.between(1, 3)).map(|_| ColumnKind::plain(random.pick(&words))).collect();
            let values: Vec<Value> = kinds.iter().map(|kind| draw::value(random, *kind)).collect();
            let own = keys::encode(&kinds.iter().copied().zip(&values).collect::<Vec<_>>());
            let columns: Vec<engine::schema::ColumnSchema> = (0..)
                .zip(&kinds)
                .map(|(at, kind)| {
                    engine::schema::ColumnSchema::new(at, &format!("c{at}"), data_type(kind.word))
                })
                .collect();
            let cells: Vec<Vec<u8>> =
                kinds.iter().zip(&values).map(|(kind, value)| kind.cell(value).expect("a cell")).collect();
            let cells: Vec<&[u8]> = cells.iter().map(Vec::as_slice).collect();
            let mut other = Vec::new();
            key::encode_key(&columns, |at| cells[at], &mut other);
            assert_eq!(own, other, "{kinds:?} {values:?}");
        }
    }
}
