//! Syntax of the catalog's transcripts: parsing of commands, formatting of replies.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use datadriven::TestCase;
use engine::catalog::{
    AlterStep, CatalogError, ColumnChange, ColumnRef, CommandReply, CreateTable, HostPort, PeerRecord,
    RangeOps, ReportedHealth, RequestedColumn, RequestedHash, RequestedRange, TabletLifecycle, TserverCall,
};
use engine::ids::Uuid;
use engine::schema::{ColumnSchema, DataType, Encoding, TypeAttributes};
use engine::time::{ClockReading, Instant, WallTime};

pub fn server(name: &str) -> Uuid {
    Uuid([name.as_bytes()[0]; 16])
}

/// Returns the time some seconds after the start of a script.
pub fn reading(seconds: u64) -> ClockReading {
    let micros = 1_600_000_000_000_000 + seconds * 1_000_000;
    ClockReading { mono: Instant(seconds * 1_000_000_000), wall: WallTime { micros, error_micros: 0 } }
}

pub fn address(name: &str) -> HostPort {
    HostPort { host: name.to_string(), port: 7050 }
}

pub fn peer(name: &str) -> PeerRecord {
    PeerRecord { server: server(name), voter: true, address: address(name), promote: false, replace: false }
}

/// Parses members such as `a,b!,c?,d~+`: a voter unless `~`, healthy unless `!` (failed), `!!` (unrecoverable) or `?`
/// (unknown), `+` to be promoted, `-` to be replaced.
pub fn members(text: &str) -> (Vec<PeerRecord>, BTreeMap<Uuid, ReportedHealth>) {
    let (mut peers, mut health) = (Vec::new(), BTreeMap::new());
    for word in text.split(',') {
        let marks = &word[1..];
        let promote = marks.contains('+');
        let replace = marks.contains('-');
        peers.push(PeerRecord { voter: !marks.contains('~'), promote, replace, ..peer(&word[..1]) });
        let state = match marks {
            marks if marks.contains("!!") => ReportedHealth::FailedUnrecoverable,
            marks if marks.contains('!') => ReportedHealth::Failed,
            marks if marks.contains('?') => ReportedHealth::Unknown,
            _ => ReportedHealth::Healthy,
        };
        health.insert(server(&word[..1]), state);
    }
    (peers, health)
}

/// Returns the value of `key=…` among words.
pub fn option(words: &[&str], key: &str) -> Option<String> {
    let found = words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    found.map(str::to_string)
}

pub fn column(words: &[&str], id: u32) -> RequestedColumn {
    let [name, ty, ..] = words else { panic!("a column needs a name and a type: {words:?}") };
    let upper = ty.to_uppercase();
    let ty = DataType::ALL.into_iter().find(|known| known.name() == upper).expect("a type's name");
    let name = if *name == "''" { "" } else { name };
    let mut column = ColumnSchema::new(id, name, ty);
    column.nullable = words.contains(&"null");
    column.immutable = words.contains(&"immutable");
    column.auto_incrementing = words.contains(&"auto");
    if matches!(upper.as_str(), "DECIMAL32" | "DECIMAL64" | "DECIMAL128") {
        let digits = |key, usual| option(words, key).map_or(usual, |text| text.parse().expect("a number"));
        let (precision, scale) = (digits("precision", 5), digits("scale", 2));
        column.attributes = TypeAttributes { precision, scale, length: 0 };
    }
    column.read_default = option(words, "default").map(|text| cell(ty, &text));
    column.write_default = option(words, "write-default").map(|text| cell(ty, &text));
    column.comment = option(words, "comment").unwrap_or_default();
    column.encoding = match option(words, "encoding").as_deref() {
        None => Encoding::Auto,
        Some("rle") => Encoding::Rle,
        Some("dict") => Encoding::Dict,
        Some("bitshuffle") => Encoding::BitShuffle,
        Some(other) => panic!("encoding {other}"),
    };
    RequestedColumn { column, is_key: words.contains(&"key"), has_id: words.contains(&"id") }
}

pub fn cell(ty: DataType, text: &str) -> Vec<u8> {
    match ty.width() {
        Some(width) => text.parse::<i128>().expect("a number").to_le_bytes()[..width].to_vec(),
        None => text.as_bytes().to_vec(),
    }
}

pub fn hash(words: &[&str]) -> RequestedHash {
    let columns = words.iter().filter(|word| !word.contains('='));
    RequestedHash {
        columns: columns.map(|name| ColumnRef::Name(name.to_string())).collect(),
        buckets: option(words, "buckets").map_or(2, |text| text.parse().expect("a number")),
        seed: option(words, "seed").map_or(0, |text| text.parse().expect("a number")),
    }
}

const SPLIT: u8 = 4;
const LOWER: u8 = 6;
const UPPER: u8 = 7;
const LOWER_EXCLUSIVE: u8 = 8;
const UPPER_INCLUSIVE: u8 = 9;

/// Adds one operation that sets column `at` to `text` ("-": sets nothing).
pub fn range_op(ops: &mut RangeOps, kind: u8, columns: &[RequestedColumn], at: usize, text: &str) {
    let bitmap = columns.len().div_ceil(8);
    let mut set = vec![0; bitmap];
    if text != "-" {
        set[at / 8] |= 1 << (at % 8);
    }
    ops.rows.push(kind);
    ops.rows.extend(&set);
    if columns.iter().any(|column| column.column.nullable) {
        ops.rows.extend(vec![0; bitmap]);
    }
    if text == "-" {
        return;
    }
    let ty = columns[at].column.ty;
    let bytes = cell(ty, text);
    if ty.width().is_some() {
        ops.rows.extend(bytes);
    } else {
        ops.rows.extend((ops.indirect.len() as u64).to_le_bytes());
        ops.rows.extend((bytes.len() as u64).to_le_bytes());
        ops.indirect.extend(bytes);
    }
}

/// Adds the bounds `LOWER UPPER`, `(LOWER` for exclusive, `UPPER]` for inclusive.
pub fn bounds(ops: &mut RangeOps, columns: &[RequestedColumn], at: usize, lower: &str, upper: &str) {
    match lower.strip_prefix('(') {
        Some(lower) => range_op(ops, LOWER_EXCLUSIVE, columns, at, lower),
        None => range_op(ops, LOWER, columns, at, lower),
    }
    match upper.strip_suffix(']') {
        Some(upper) => range_op(ops, UPPER_INCLUSIVE, columns, at, upper),
        None => range_op(ops, UPPER, columns, at, upper),
    }
}

pub fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

pub fn create(case: &TestCase) -> (String, CreateTable) {
    let arg = |key: &str| case.args.get(key).map(|values| values.first().cloned().unwrap_or_default());
    let mut request = CreateTable {
        name: arg("name").unwrap_or_default(),
        replicas: arg("replicas").map(|text| text.parse().expect("a number")),
        owner: arg("owner"),
        comment: arg("comment").unwrap_or_default(),
        dimension_label: arg("label"),
        ..CreateTable::default()
    };
    let mut later = Vec::new();
    for line in case.input.lines() {
        let words = words(line);
        match words[0] {
            "col" => request.columns.push(column(&words[1..], 0)),
            "hash" => request.partitioning.hash.push(hash(&words[1..])),
            "range" => {
                let names = words[1..].iter().map(|name| ColumnRef::Name(name.to_string()));
                request.partitioning.range = Some(names.collect());
            }
            "config" => {
                let (key, value) = words[1].split_once('=').expect("key=value");
                request.extra_configs.insert(key.to_string(), value.to_string());
            }
            "empty" => request.partitioning.allow_empty = true,
            _ => later.push(words),
        }
    }
    for words in later {
        let part = &mut request.partitioning;
        let name = match part.range.as_deref() {
            Some([ColumnRef::Name(name), ..]) => name.as_str(),
            _ => request.columns[0].column.name.as_str(),
        };
        let at = request.columns.iter().position(|column| column.column.name == name).expect("range column");
        match words.as_slice() {
            ["split", value] => range_op(&mut part.splits_and_bounds, SPLIT, &request.columns, at, value),
            ["bound", lower, upper] => {
                bounds(&mut part.splits_and_bounds, &request.columns, at, lower, upper);
            }
            ["bound", lower, upper, "hash", rest @ ..] => {
                let mut ops = RangeOps::default();
                bounds(&mut ops, &request.columns, at, lower, upper);
                let hash = rest.split(|word| *word == "hash").filter(|words| !words.is_empty()).map(hash);
                part.custom.push(RequestedRange { bounds: ops, hash: hash.collect() });
            }
            _ => panic!("{words:?}"),
        }
    }
    (arg("user").unwrap_or_else(|| "root".to_string()), request)
}

pub fn alter_step(words: &[&str], columns: &[RequestedColumn]) -> AlterStep {
    let range = |lower: &str, upper: &str| {
        let mut ops = RangeOps::default();
        bounds(&mut ops, columns, 0, lower, upper);
        ops
    };
    match words {
        ["add", rest @ ..] => AlterStep::AddColumn(column(rest, 0)),
        ["drop", name] => AlterStep::DropColumn(name.to_string()),
        ["rename", from, to] => AlterStep::RenameColumn { from: from.to_string(), to: to.to_string() },
        ["change", name, rest @ ..] => AlterStep::ChangeColumn(ColumnChange {
            name: name.to_string(),
            // Clients that change a default send 64 bits, for every integer type.
            default: option(rest, "default")
                .map(|text| text.parse::<i64>().expect("a number").to_le_bytes().to_vec()),
            remove_default: rest.contains(&"remove-default"),
            comment: option(rest, "comment"),
            encoding: rest.contains(&"dict").then_some(Encoding::Dict),
            new_name: option(rest, "name"),
            ..ColumnChange::default()
        }),
        ["add-range", lower, upper] => {
            AlterStep::AddRange { bounds: range(lower, upper), hash: None, dimension_label: None }
        }
        ["add-range", lower, upper, "hash", rest @ ..] => AlterStep::AddRange {
            bounds: range(lower, upper),
            hash: Some(vec![hash(rest)]),
            dimension_label: None,
        },
        ["drop-range", lower, upper] => AlterStep::DropRange { bounds: range(lower, upper) },
        _ => panic!("{words:?}"),
    }
}

pub fn show_answer(answer: &CommandReply) -> String {
    match answer {
        CommandReply::Created(id) => format!("created {id}"),
        CommandReply::Altered { table, version } => format!("altered {table} to version {version}"),
        CommandReply::Replaced(id) => format!("replaced by {id}"),
        CommandReply::Done => "done".to_string(),
    }
}

pub fn show_call(call: &TserverCall) -> String {
    match call {
        TserverCall::CreateTablet(call) => format!("({})", call.schema.columns().len()),
        TserverCall::AlterSchema { schema, version, table_name, .. } => {
            format!("({}, version {version}, {table_name:?})", schema.columns().len())
        }
        TserverCall::DeleteTablet { reason, tombstone: false, .. } => format!("({reason})"),
        TserverCall::DeleteTablet { config_index_max, config_term, .. } => {
            let term = config_term.map_or(String::new(), |term| format!(" of term {term}"));
            format!("(tombstone, index at most {}{term})", config_index_max.expect("guarded"))
        }
        TserverCall::ChangeConfig { config_index, change } => {
            format!("({change}, if the index is {config_index})")
        }
    }
}

pub fn show_tablet(id: Uuid, record: &engine::catalog::TabletRecord) -> String {
    let hex = |key: &[u8]| key.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let partition = &record.partition;
    let mut line = format!("{id} {:?} {}..{}", record.state, hex(&partition.start), hex(&partition.end));
    for peer in &record.consensus.peers {
        let leads = if record.consensus.leader == Some(peer.server) { "*" } else { "" };
        let member = if peer.voter { "" } else { "~" };
        let promote = if peer.promote { "+" } else { "" };
        let replace = if peer.replace { "-" } else { "" };
        write!(line, " {}{member}{promote}{replace}{leads}", peer.server).expect("writing to a string");
    }
    if record.state == TabletLifecycle::Preparing {
        line.push_str(" nowhere");
    }
    line.push('\n');
    line
}

pub fn hex(text: Option<String>) -> Vec<u8> {
    let text = text.unwrap_or_default();
    let byte = |i: usize| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hex digits");
    (0..text.len() / 2).map(byte).collect()
}

pub fn show<T: std::fmt::Debug>(result: Result<T, CatalogError>) -> String {
    match result {
        Ok(value) => format!("{value:?}\n"),
        Err(refusal) => format!("refused {refusal}\n"),
    }
}
