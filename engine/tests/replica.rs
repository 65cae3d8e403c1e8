//! Transcripts of a replica over a disk in memory: `tests/replica/*.txt`.
//!
//! A `write` is one operation, its lines are rows. `scan` may name a snapshot by the number of the operation after it,
//! an order, bounds. `restart` closes and opens, with other limits of cells and keys if it names them; `crash` cuts the
//! power first.

use std::collections::BTreeMap;
use std::fmt::Write;

use engine::config::TabletConfig;
use engine::disk::Disk;
use engine::disk::mem::MemDisk;
use engine::error::Result;
use engine::note::Note;
use engine::replica::{JobKind, Op, OpResult, ReplicaEffects, RequestId, tombstone};
use engine::schema::key::{decode_key, encode_cell};
use engine::schema::row_block::ProjectedColumn;
use engine::schema::row_ops::RowOpKind;
use engine::schema::{ColumnSchema, DataType, PhysicalType, Schema, format_cell};
use engine::tablet::scan::{ScanSpec, SnapshotChoice};
use engine_testkit::world::{self, Value, World, plain_schema};

#[test]
fn transcripts() {
    datadriven::walk("tests/replica", |file| {
        let mut world = World::new(1, TabletConfig::tiny());
        file.run(|case| {
            let result = run(&mut world, case);
            let mut text = String::new();
            let notes = world.notes.drain(..).filter(|note| !matches!(note, Note::Raft(_)));
            for note in notes {
                writeln!(text, "note {note}").unwrap();
            }
            match result {
                Ok(result) => text += &result,
                Err(error) => writeln!(text, "{:?}: {error}", error.kind).unwrap(),
            }
            if text.is_empty() { "ok\n".to_string() } else { text }
        });
        assert_eq!(world::misplaced_files(&world.disk), Vec::<String>::new());
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
                world.write(&rows).expect("writes continue during a flush");
            })?;
            return Ok(if did { String::new() } else { "nothing\n".to_string() });
        }
        "flush-deltas" | "major-delta-compaction" | "minor-delta-compaction" | "compact" | "checkpoint" => {
            return job(world, case);
        }
        "split" => return split(world, number("target").unwrap()),
        "tombstone" => {
            let last = world.replica().last_op();
            world.open = None;
            tombstone::tombstone(&world.disk, &world.disk, world::TABLET, Some(last))?;
        }
        "delete" => {
            world.open = None;
            tombstone::delete(&world.disk, &world.disk, world::TABLET)?;
        }
        "files" => return files(&world.disk),
        "gc" => {
            let (replica, wal) = world.open.as_mut().expect("open");
            wal.gc(replica.log_keep_from())?;
            return Ok(format!("keep from {}\n", replica.log_keep_from()));
        }
        "alter" => return alter(world, &case.input),
        "restart" => restart(world, number("cell"), number("key"))?,
        "crash" => {
            world.open = None;
            world.disk.crash();
            world.reopen()?;
        }
        "forget" => {
            let mark = world.timestamp_of(number("before").unwrap());
            world.replica().tablet().raise_history_mark(mark);
            let due =
                world.replica().tablet().choose_compaction().map_or(Vec::new(), |choice| choice.rowsets);
            return Ok(format!("due {due:?}\n"));
        }
        "rowsets" => return Ok(rowsets(world)),
        "choose" => return Ok(choice(world)),
        "stats" => {
            let stats = world.replica().tablet().stats();
            return Ok(format!("live={} disk_rowsets={}\n", stats.live_rows, stats.disk_rowsets));
        }
        other => panic!("unknown directive {other}"),
    }
    Ok(String::new())
}

/// Closes and opens the replica, with other limits of the bytes of cells and keys if they are given.
fn restart(world: &mut World, cell_bytes: Option<u64>, key_bytes: Option<u64>) -> Result<()> {
    let config = &mut world.config;
    config.cell_bytes_max = cell_bytes.map_or(config.cell_bytes_max, |bytes| bytes as usize);
    config.key_bytes_max = key_bytes.map_or(config.key_bytes_max, |bytes| bytes as usize);
    world.reopen()
}

fn choice(world: &World) -> String {
    let choice = world.replica().tablet().choose_compaction();
    choice.map_or("nothing\n".to_string(), |choice| format!("{:?} {:?}\n", choice.kind, choice.rowsets))
}

/// Parses lines `name TYPE [nullable] [immutable] [key] [auto] [default=..]`; none for the plain schema.
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

/// Applies `add <column line>`, `drop <name>` or `config <name>=<value>`.
fn alter(world: &mut World, input: &str) -> Result<String> {
    let tablet = world.replica().tablet().clone();
    let (schema, version) = (tablet.schema(), tablet.schema_version());
    let mut columns = schema.columns().to_vec();
    let mut extra = BTreeMap::new();
    for line in input.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[0] {
            "add" => {
                let id = 1 + columns.iter().map(|column| column.id.0).max().unwrap().max(9);
                columns.push(column_of(id, &words[1..]));
            }
            "drop" => columns.retain(|column| column.name != words[1]),
            "config" => {
                let (name, value) = words[1].split_once('=').expect("a name and a value");
                extra.insert(name.to_string(), value.to_string());
            }
            other => panic!("unknown change {other}"),
        }
    }
    let schema = Box::new(Schema::new(columns, schema.num_key_columns())?);
    let op = Op::AlterSchema { schema, version: version + 1, table_name: "t".to_string(), extra };
    world.run(op).result.map(|result| show_result(&result))
}

/// Parses `kind value value ...`; `-` is not set.
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
        (word, PhysicalType::Binary) => match word.strip_prefix("x*") {
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
    for (name, count) in names.iter().zip(counts.to_array()).filter(|(_, count)| *count > 0) {
        writeln!(text, "{name} {count}").unwrap();
    }
    text
}

/// Runs `scan [at=T] [from=T] [unordered] [lower=..] [upper=..] [last=..] [limit=..]`; bounds are the first key
/// column's.
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
    let diff_from = number("from").map(|from| world.timestamp_of(from));
    if diff_from.is_some() {
        let (ty, name) = (DataType::IsDeleted, "deleted".to_string());
        projection.push(ProjectedColumn { id: None, name, ty, nullable: false, read_default: None });
    }
    let spec = ScanSpec {
        lower_key: key("lower"),
        upper_key: key("upper"),
        last_key: key("last"),
        snapshot: number("at")
            .map_or(SnapshotChoice::Latest, |at| SnapshotChoice::At(world.timestamp_of(at))),
        diff_from,
        ordered: !case.args.contains_key("unordered"),
        limit: number("limit"),
        ..ScanSpec::latest(projection)
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

fn split(world: &World, target: u64) -> Result<String> {
    let tablet = world.replica().tablet();
    let keys = tablet.schema();
    let show = |key: &Option<Vec<u8>>| match key {
        Some(key) => {
            let cells = decode_key(keys.key_columns(), key).unwrap();
            format_cell(keys.columns()[0].ty, Default::default(), &cells[0])
        }
        None => String::new(),
    };
    let mut text = String::new();
    for range in tablet.split_key_range(None, None, &[], target)? {
        writeln!(text, "{}..{} bytes={}", show(&range.lower), show(&range.upper), range.bytes).unwrap();
    }
    Ok(text)
}

/// Lists directories and their number of files.
fn files(disk: &MemDisk) -> Result<String> {
    let mut text = String::new();
    for dir in ["data", "tablet-meta", "wals"] {
        for name in disk.list(dir).unwrap() {
            let inside = disk.list(&format!("{dir}/{name}")).map_or(0, |names| names.len());
            writeln!(text, "{dir}/{} {}", &name[..2], if inside > 0 { "with files" } else { "" }).unwrap();
        }
    }
    Ok(text)
}

/// Runs a job from its beginning to its end.
fn job(world: &mut World, case: &datadriven::TestCase) -> Result<String> {
    let rowset = || case.args["rowset"][0].parse().unwrap();
    let kind = match case.directive.as_str() {
        "flush-deltas" => JobKind::FlushDeltas(rowset()),
        "major-delta-compaction" => JobKind::MajorDeltaCompaction(rowset()),
        "minor-delta-compaction" => JobKind::MinorDeltaCompaction(rowset()),
        "compact" => JobKind::Compact(case.args["rowsets"].iter().map(|id| id.parse().unwrap()).collect()),
        _ => JobKind::Checkpoint,
    };
    Ok(if world.job(kind, &mut |_| {})? { String::new() } else { "nothing\n".to_string() })
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
fn results_of_requests_survive_in_the_log() {
    let mut world = World::new(1, TabletConfig::tiny());
    world.create(plain_schema()).unwrap();
    let columns = world::wire_columns(&plain_schema());
    let mut replies = Vec::new();
    for seq in 0..3 {
        let mut rows = world::Rows::default();
        rows.add(&columns, RowOpKind::Insert, &[Value::int(seq / 2)]);
        let request = RequestId { client: b"c".to_vec(), seq: seq.into(), first_incomplete: 0, attempt: 1 };
        let mut out = ReplicaEffects::default();
        world.propose(rows.op(&columns), Some(request.clone()), &mut out);
        world.persist(&mut out);
        let done = out.done.pop().unwrap();
        replies.push((request, done.timestamp, done.result));
    }
    world.reopen().unwrap();
    assert_eq!(world.report.completed_requests, replies);
}

/// A hash partitioned tablet rejects rows of other tablets with the whole write, and continues.
#[test]
fn rows_of_other_tablets_fail_the_write() {
    use engine::schema::partition::{HashDimension, Partition, PartitionSchema};
    let mut world = World::new(1, TabletConfig::tiny());
    let hash = vec![HashDimension { columns: vec![plain_schema().columns()[0].id], buckets: 2, seed: 0 }];
    let how = PartitionSchema { hash, ..PartitionSchema::default() };
    let partition = Partition { hash_buckets: vec![0], start: vec![], end: vec![0, 0, 0, 1] };
    world.create_in(plain_schema(), how, partition).unwrap();
    let insert = |key| (RowOpKind::Insert, vec![Value::int(key)]);
    let mut here = Vec::new();
    for key in 0..20 {
        match world.write(&[insert(key)]) {
            Ok(_) => here.push(key),
            Err(error) => assert!(error.message.contains("Row not in tablet partition"), "{error}"),
        }
    }
    assert!((5..15).contains(&here.len()), "half of the rows or so: {here:?}");
    let elsewhere = (0..20).find(|key| !here.contains(key)).unwrap();
    let both = [insert(100 + here[0]), insert(elsewhere)];
    assert!(world.write(&both).is_err());
    assert_eq!(world.replica().tablet().stats().live_rows, here.len() as u64);
}

/// A memory reservation counts the bytes of the request, so each byte may be in one cell only.
#[test]
fn cells_that_share_bytes_fail_the_write() {
    let mut world = World::new(1, TabletConfig::tiny());
    world.create(plain_schema()).unwrap();
    let columns = world::wire_columns(&plain_schema());
    let mut rows = world::Rows::default();
    rows.add(&columns, RowOpKind::Insert, &[Value::int(1), Value::text("abc")]);
    let one = rows.clone();
    rows.rows.extend_from_slice(&one.rows);
    let error = world.run(rows.op(&columns)).result.unwrap_err();
    assert_eq!(
        error.message,
        "indirect data: the cells of the rows up to row 1 share bytes (6 bytes of cells in 3 bytes); send the bytes \
         of each cell separately"
    );
    assert_eq!(world.replica().tablet().stats().live_rows, 0);
    world.run(one.op(&columns)).result.unwrap();
    assert_eq!(world.replica().tablet().stats().live_rows, 1);
}

/// Updates without values: the text of each error names all key columns, which have long names.
#[test]
fn long_errors_of_many_rows_fit_the_log() {
    let mut world = World::new(1, TabletConfig::tiny());
    let key = |id| ColumnSchema::new(id, &format!("{id}{}", "k".repeat(20_000)), DataType::Int32);
    let mut columns: Vec<_> = (0..8).map(key).collect();
    columns.push(ColumnSchema::new(8, "v", DataType::Int32).nullable());
    world.create(Schema::new(columns, 8).unwrap()).unwrap();
    let row = |kind, n| (kind, vec![Value::int(n); 8]);
    let updates: Vec<_> = (0..100).map(|n| row(RowOpKind::Update, n)).collect();
    let OpResult::Write { errors, .. } = world.write(&updates).unwrap() else { panic!("it was a write") };
    let texts: Vec<&str> = errors.iter().map(|(_, error)| error.message.as_str()).collect();
    assert_eq!(texts.len(), 100);
    assert!(texts[..6].iter().all(|text| text.len() > 160_000 && text.starts_with("No fields updated")));
    assert!(texts[6..].iter().all(|text| *text == "invalid row"), "a mebibyte of texts is kept");
    for n in 0..2 {
        world.reopen().unwrap();
        world.write(&[row(RowOpKind::Insert, n)]).unwrap();
        assert_eq!(world.replica().tablet().stats().live_rows, 1 + n as u64);
    }
}

/// One replica has flushed some of the rows, and so meets them in another order.
#[test]
fn the_same_errors_keep_their_texts_on_all_replicas() {
    let results = [false, true].map(|flushes| {
        let mut world = World::new(1, TabletConfig::tiny());
        let mut column = ColumnSchema::new(1, &"i".repeat(200_000), DataType::Int32).nullable();
        column.immutable = true;
        let columns = vec![ColumnSchema::new(0, "k", DataType::Int32), column];
        world.create(Schema::new(columns, 1).unwrap()).unwrap();
        let rows = |kind, keys: std::ops::Range<i32>| {
            keys.map(|key| (kind, vec![Value::int(key), Value::int(key)])).collect::<Vec<_>>()
        };
        world.write(&rows(RowOpKind::Insert, 5..10)).unwrap();
        if flushes {
            assert!(world.job(JobKind::FlushRows, &mut |_| {}).unwrap());
        }
        world.write(&rows(RowOpKind::Insert, 0..5)).unwrap();
        world.write(&rows(RowOpKind::Update, 0..10)).unwrap()
    });
    assert!(results[0] == results[1], "the outcomes are the same");
    let OpResult::Write { errors, .. } = &results[0] else { panic!("it was a write") };
    let kept: Vec<bool> = errors.iter().map(|(_, error)| error.message.len() > 200_000).collect();
    assert_eq!(kept, [[true; 5], [false; 5]].concat());
    assert_eq!(errors[9].1.message, "immutable column");
}

/// Writes that wait in the log while the schema changes are checked under the schema of their turn.
#[test]
fn a_write_after_an_alter_is_checked_under_the_new_schema() {
    let mut world = World::new(1, TabletConfig::tiny());
    world.create(plain_schema()).unwrap();
    let old = world::wire_columns(&plain_schema());
    let rows = |columns: &[engine::schema::row_ops::ClientColumn], key| {
        let mut rows = world::Rows::default();
        rows.add(columns, RowOpKind::Insert, &[Value::int(key), Value::text("v"), Value::int(1)]);
        rows.op(columns)
    };
    let schema = Box::new(Schema::new(plain_schema().columns()[..2].to_vec(), 1).unwrap());
    let (table_name, extra) = ("t".to_string(), Default::default());
    let alter = Op::AlterSchema { schema, version: 1, table_name, extra };
    let mut out = ReplicaEffects::default();
    world.propose(rows(&old, 1), None, &mut out);
    world.propose(alter, None, &mut out);
    world.propose(rows(&old, 2), None, &mut out);
    world.propose(rows(&old[..2], 3), None, &mut out);
    world.persist(&mut out);
    let ended: Vec<bool> = out.done.iter().map(|done| done.result.is_ok()).collect();
    assert_eq!(ended, [true, true, false, true], "the column is gone when the third one's turn comes");
    for _ in 0..2 {
        assert_eq!(world.replica().tablet().stats().live_rows, 2);
        world.reopen().unwrap();
    }
}

/// Ranges for parallel scans cover every row once.
#[test]
fn key_ranges_cover_the_tablet() {
    let mut world = World::new(1, TabletConfig::tiny());
    world.create(plain_schema()).unwrap();
    for start in [0, 40] {
        let row = |key| {
            (RowOpKind::Insert, vec![Value::int(key * 7 % 97), Value::text("some text"), Value::int(key)])
        };
        world.write(&(start..start + 40).map(row).collect::<Vec<_>>()).unwrap();
        world.job(JobKind::FlushRows, &mut |_| {}).unwrap();
    }
    let tablet = world.replica().tablet();
    let whole = tablet.split_key_range(None, None, &[], u64::MAX).unwrap();
    assert_eq!((whole.len(), &whole[0].lower, &whole[0].upper), (1, &None, &None));
    let ranges = tablet.split_key_range(None, None, &[], whole[0].bytes / 5).unwrap();
    assert!((4..=6).contains(&ranges.len()), "{ranges:?}");
    let mut rows = 0;
    for (i, range) in ranges.iter().enumerate() {
        assert_eq!(range.lower.as_ref(), i.checked_sub(1).and_then(|i| ranges[i].upper.as_ref()));
        let spec = ScanSpec {
            lower_key: range.lower.clone(),
            upper_key: range.upper.clone(),
            ..ScanSpec::latest(Vec::new())
        };
        let mut scan = tablet.scan(&spec).unwrap();
        while let Some(block) = scan.next_block().unwrap() {
            rows += block.rows;
        }
    }
    assert_eq!(rows, 80);
    let columns = [tablet.schema().columns()[0].id];
    let keys_only = tablet.split_key_range(None, None, &columns, u64::MAX).unwrap();
    assert!(keys_only[0].bytes < whole[0].bytes);
    let part = tablet.split_key_range(Some(&[0x80, 0, 0, 40]), Some(&[0x80, 0, 0, 60]), &[], 1).unwrap();
    assert_eq!(part[0].lower.as_deref(), Some(&[0x80, 0, 0, 40][..]));
    assert_eq!(part.last().unwrap().upper.as_deref(), Some(&[0x80, 0, 0, 60][..]));
}

/// Readers take an empty upper bound as none.
#[test]
fn no_key_range_ends_at_the_key_of_an_empty_text() {
    let mut world = World::new(1, TabletConfig::tiny());
    world.create(Schema::new(vec![ColumnSchema::new(0, "k", DataType::String)], 1).unwrap()).unwrap();
    let write = |world: &mut World, kind| world.write(&[(kind, vec![Value::text("")])]).unwrap();
    write(&mut world, RowOpKind::Insert);
    world.job(JobKind::FlushRows, &mut |_| {}).unwrap();
    write(&mut world, RowOpKind::Delete);
    // Its history is over: the row is inserted into another rowset.
    world.replica().tablet().raise_history_mark(world.timestamp_of(3));
    write(&mut world, RowOpKind::Insert);
    world.job(JobKind::FlushRows, &mut |_| {}).unwrap();
    let tablet = world.replica().tablet();
    assert_eq!(tablet.stats().disk_rowsets, 2, "both begin with the key");
    let ranges = tablet.split_key_range(None, None, &[], 1).unwrap();
    let bounds: Vec<_> = ranges.into_iter().map(|range| (range.lower, range.upper)).collect();
    assert_eq!(bounds, [(None, None)]);
}
