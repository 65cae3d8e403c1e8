//! Transcripts of a replica over a disk in memory: `tests/replica/*.txt`.
//!
//! A `write` is one operation, its lines are rows; timestamps count up from 1. `scan` may name a moment, an order,
//! bounds; `restart` closes and opens, `crash` takes the power away first.

mod support;

use std::fmt::Write;

use engine::config::TabletConfig;
use engine::error::{Error, Result};
use engine::replica::{JobKind, Op, OpResult};
use engine::schema::block::ProjectedColumn;
use engine::schema::key::{decode_key, encode_cell};
use engine::schema::ops::RowOpKind;
use engine::schema::{ColumnSchema, DataType, Physical, Schema, format_cell};
use engine::tablet::apply::WriteCounts;
use engine::tablet::scan::{ScanSpec, SnapshotAt};
use engine::time::Timestamp;
use support::{Value, World, plain_schema};

#[test]
fn transcripts() {
    datadriven::walk("tests/replica", |file| {
        let mut world = World::new(1, TabletConfig::tiny());
        file.run(|case| {
            let result = run(&mut world, case);
            let mut text = String::new();
            for note in world.notes.drain(..) {
                writeln!(text, "note {note}").unwrap();
            }
            match result {
                Ok(result) => text += &result,
                Err(error) => writeln!(text, "{:?}: {error}", error.kind).unwrap(),
            }
            if text.is_empty() { "ok\n".to_string() } else { text }
        });
    });
}

fn run(world: &mut World, case: &datadriven::TestCase) -> Result<String> {
    let number = |name: &str| case.args.get(name).map(|values| values[0].parse::<u64>().unwrap());
    match case.directive.as_str() {
        "create" => world.create(schema_of(&case.input)?)?,
        "write" => {
            let schema = world.replica().tablet().schema();
            let rows: Vec<_> = case.input.lines().map(|line| row(&schema, line)).collect();
            return world.write(&rows).map(|result| show_result(&result));
        }
        "scan" => return scan(world, case),
        "flush" => {
            let during: Vec<String> = case.input.lines().map(str::to_string).collect();
            let mut during = Some(during).filter(|lines| !lines.is_empty());
            let did = world.job(JobKind::FlushRows, &mut |world| {
                let Some(lines) = during.take() else { return };
                let schema = world.replica().tablet().schema();
                let rows: Vec<_> = lines.iter().map(|line| row(&schema, line)).collect();
                world.write(&rows).expect("writes go on during a flush");
            })?;
            return Ok(if did { String::new() } else { "nothing\n".to_string() });
        }
        "flush-deltas" => {
            let kind = JobKind::FlushDeltas(number("rowset").unwrap());
            return Ok(if world.job(kind, &mut |_| {})? { String::new() } else { "nothing\n".to_string() });
        }
        "checkpoint" => {
            world.job(JobKind::Checkpoint, &mut |_| {})?;
        }
        "gc" => {
            let (replica, wal) = world.open.as_mut().expect("open");
            wal.gc(replica.log_keep_from())?;
            return Ok(format!("keep from {}\n", replica.log_keep_from()));
        }
        "alter" => return alter(world, &case.input),
        "restart" => world.reopen()?,
        "crash" => {
            world.open = None;
            world.disk.crash();
            world.reopen()?;
        }
        "rowsets" => return Ok(rowsets(world)),
        "stats" => {
            let stats = world.replica().tablet().stats();
            return Ok(format!("live={} disk_rowsets={}\n", stats.live_rows, stats.disk_rowsets));
        }
        other => panic!("unknown directive {other}"),
    }
    Ok(String::new())
}

/// Lines `name TYPE [nullable] [immutable] [key] [auto] [default=..]`; none for the plain schema.
fn schema_of(input: &str) -> Result<Schema> {
    if input.is_empty() {
        return Ok(plain_schema());
    }
    let (mut columns, mut keys) = (Vec::new(), 0);
    for (id, line) in input.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let column = column_of(id as u32, &words);
        keys += usize::from(words.contains(&"key"));
        columns.push(column);
    }
    Schema::new(columns, keys)
}

fn column_of(id: u32, words: &[&str]) -> ColumnSchema {
    let ty = DataType::ALL.into_iter().find(|ty| ty.name() == words[1]).expect("a type");
    let mut column = ColumnSchema::new(id, words[0], ty);
    column.nullable = words.contains(&"nullable");
    column.immutable = words.contains(&"immutable");
    column.auto_incrementing = words.contains(&"auto");
    if let Some(default) = words.iter().find_map(|word| word.strip_prefix("default=")) {
        let Value::Bytes(cell) = value(ty, default) else { panic!("a default is a value") };
        column.read_default = Some(cell.clone());
        column.write_default = Some(cell);
    }
    column
}

/// `add <column line>` or `drop <name>`.
fn alter(world: &mut World, input: &str) -> Result<String> {
    let tablet = world.replica().tablet().clone();
    let (schema, version) = (tablet.schema(), tablet.schema_version());
    let mut columns = schema.columns().to_vec();
    for line in input.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[0] {
            "add" => {
                let id = 1 + columns.iter().map(|column| column.id.0).max().unwrap().max(9);
                columns.push(column_of(id, &words[1..]));
            }
            "drop" => columns.retain(|column| column.name != words[1]),
            other => panic!("unknown change {other}"),
        }
    }
    let schema = Box::new(Schema::new(columns, schema.num_key_columns())?);
    let (table_name, extra) = ("t".to_string(), Default::default());
    let op = Op::AlterSchema { schema, version: version + 1, table_name, extra };
    world.run(op).result.map(|result| show_result(&result))
}

/// `kind value value ...`; `-` is not set.
fn row(schema: &Schema, line: &str) -> (RowOpKind, Vec<Value>) {
    let mut words = line.split_whitespace();
    let word = words.next().expect("a kind of operation");
    let kinds = [1, 2, 3, 5, 10, 11, 12, 13].map(|n| RowOpKind::from_number(n).unwrap());
    let kind = kinds.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(word)).expect("a kind");
    let columns = schema.columns().iter().filter(|column| !column.auto_incrementing);
    let cells = columns.map(|column| value(column.ty, words.next().unwrap_or("-"))).collect();
    (kind, cells)
}

fn value(ty: DataType, word: &str) -> Value {
    match (word, ty.physical()) {
        ("-", _) => Value::Unset,
        ("NULL", _) => Value::Null,
        (word, Physical::Binary) => match word.strip_prefix("x*") {
            Some(count) => Value::text(&"x".repeat(count.parse().unwrap())),
            None => Value::text(word.trim_matches('"')),
        },
        (word, physical) => {
            let number: i64 = word.parse().expect("a number");
            Value::Bytes(number.to_le_bytes()[..physical.width().unwrap()].to_vec())
        }
    }
}

fn show_result(result: &OpResult) -> String {
    let OpResult::Write { errors, counts } = result else { return format!("{result:?}\n") };
    let mut text = String::new();
    for (index, error) in errors {
        writeln!(text, "row {index}: {:?}: {}", error.code, error.message).unwrap();
    }
    let names = [
        "inserts",
        "updates",
        "upserts",
        "deletes",
        "insert_ignored",
        "update_ignored",
        "upsert_ignored",
        "delete_ignored",
    ];
    let WriteCounts { .. } = counts;
    for (name, count) in names.iter().zip(counts.to_array()).filter(|(_, count)| *count > 0) {
        writeln!(text, "{name} {count}").unwrap();
    }
    text
}

/// `scan [at=T] [from=T] [unordered] [lower=..] [upper=..] [last=..] [limit=..]`; bounds are the first key column's.
fn scan(world: &World, case: &datadriven::TestCase) -> Result<String> {
    let tablet = world.replica().tablet();
    let schema = tablet.schema();
    let number = |name: &str| case.args.get(name).map(|values| values[0].parse::<u64>().unwrap());
    let key = |name: &str| {
        let text = &case.args.get(name)?[0];
        let Value::Bytes(cell) = value(schema.columns()[0].ty, text) else { return None };
        let mut key = Vec::new();
        encode_cell(schema.columns()[0].ty.physical(), &cell, schema.num_key_columns() == 1, &mut key);
        Some(key)
    };
    let mut projection: Vec<ProjectedColumn> = schema.columns().iter().map(Into::into).collect();
    let diff_from = number("from").map(Timestamp);
    if diff_from.is_some() {
        let (ty, name) = (DataType::IsDeleted, "deleted".to_string());
        projection.push(ProjectedColumn { id: None, name, ty, nullable: false, read_default: None });
    }
    let spec = ScanSpec {
        projection,
        predicates: Vec::new(),
        lower_key: key("lower"),
        upper_key: key("upper"),
        last_key: key("last"),
        snapshot: number("at").map_or(SnapshotAt::Latest, |at| SnapshotAt::At(Timestamp(at))),
        diff_from,
        ordered: !case.args.contains_key("unordered"),
        limit: number("limit"),
    };
    let mut scan = tablet.scan(&spec)?;
    let mut text = String::new();
    while let Some(block) = scan.next_block()? {
        for row in 0..block.rows {
            let cells =
                scan.projection().iter().zip(&block.columns).map(|(column, cells)| match cells.cell(row) {
                    Some(cell) => format_cell(column.ty, Default::default(), cell),
                    None => "NULL".to_string(),
                });
            writeln!(text, "{}", cells.collect::<Vec<_>>().join(" ")).unwrap();
        }
    }
    if text.is_empty() {
        text = "no rows\n".to_string();
    }
    Ok(text)
}

fn rowsets(world: &World) -> String {
    let tablet = world.replica().tablet();
    let (state, schema) = (tablet.state(), tablet.schema());
    let mut text = String::new();
    for rowset in &state.disk {
        let meta = rowset.meta();
        let show = |key: &[u8]| {
            let cells = decode_key(schema.key_columns(), key).unwrap();
            let shown = schema.key_columns().iter().zip(&cells);
            shown.map(|(c, cell)| format_cell(c.ty, c.attributes, cell)).collect::<Vec<_>>().join("/")
        };
        let (min, max) = (show(&meta.min_key), show(&meta.max_key));
        let (rows, live, dms) = (meta.rows, rowset.live_rows(), rowset.dms_len());
        let files = meta.delta_files.len();
        writeln!(text, "{} disk keys=[{min},{max}] rows={rows} live={live} redo={files} dms={dms}", meta.id)
            .unwrap();
    }
    for mrs in &state.frozen {
        writeln!(text, "frozen rows={} live={}", mrs.rows(), mrs.live_rows()).unwrap();
    }
    writeln!(text, "memory rows={} live={}", state.active.rows(), state.active.live_rows()).unwrap();
    text
}

#[test]
fn requests_are_remembered_by_the_log() {
    use engine::replica::{Effects, RequestId};
    let mut world = World::new(1, TabletConfig::tiny());
    world.create(plain_schema()).unwrap();
    let columns = support::wire_columns(&plain_schema());
    let mut answers = Vec::new();
    for seq in 0..3 {
        let mut rows = support::Rows::default();
        rows.add(&columns, RowOpKind::Insert, &[Value::int(seq / 2)]);
        let request = RequestId { client: b"c".to_vec(), seq: seq.into(), first_incomplete: 0, attempt: 1 };
        let mut out = Effects::default();
        world.propose(rows.op(&columns), Some(request.clone()), &mut out);
        world.persist(&mut out);
        let done = out.done.pop().unwrap();
        answers.push((request, done.timestamp, done.result));
    }
    world.reopen().unwrap();
    assert_eq!(world.report.completed_requests, answers);
    let error: Error = Error::invalid("unused");
    let _ = error;
}
