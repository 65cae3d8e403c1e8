//! Transcripts of one DiskRowSet over a disk in memory: `tests/rowset/*.txt`.

use std::fmt::Write;
use std::sync::Arc;

use datadriven::TestCase;
use engine::cfile::cache::PageCache;
use engine::cfile::page_file::PageOwner;
use engine::disk::mem::MemDisk;
use engine::disk::{Disk, read_file, replace_file};
use engine::error::{Error, Result};
use engine::ids::Uuid;
use engine::schema::key::encode_key;
use engine::schema::predicate::{Predicate, PredicateKind};
use engine::schema::row_block::{ProjectedColumn, RowBlock};
use engine::schema::row_change::{RowChangeBuilder, encode_delete};
use engine::schema::{ColumnSchema, Compression, DataType, Encoding, Schema};
use engine::tablet::diskrowset::{
    ColumnFileConfig, DiskRowSet, DiskRowSetWriter, RowSetMeta, RowSetTrackers,
};
use engine::tablet::rowset::{ProbeStats, RowSetScanSpec, Snapshot};
use engine::time::Timestamp;

const TABLET: Uuid = Uuid([0xab; 16]);

/// A table, one rowset of it, and its disk.
struct World {
    disk: MemDisk,
    schema: Schema,
    meta: Option<RowSetMeta>,
    set: Option<DiskRowSet>,
}

#[test]
fn transcripts() {
    datadriven::walk("tests/rowset", |file| {
        let schema = Schema::new(vec![ColumnSchema::new(0, "k", DataType::Int32)], 1).unwrap();
        let mut world = World { disk: MemDisk::new(1), schema, meta: None, set: None };
        world.disk.create_dir("data").unwrap();
        file.run(|case| match run(&mut world, case) {
            Ok(text) if text.is_empty() => "ok\n".to_string(),
            Ok(text) => text,
            Err(error) => format!("{:?}: {error}\n", error.kind),
        });
    });
}

fn number(case: &TestCase, name: &str) -> Option<u64> {
    case.args.get(name).map(|values| values[0].parse().unwrap())
}

fn run(world: &mut World, case: &TestCase) -> Result<String> {
    let time = |name: &str| number(case, name).map(Timestamp);
    match case.directive.as_str() {
        "table" => world.schema = parse_table(case)?,
        "write" => return world.write(case),
        "open" => world.open()?,
        "change" => world.change(case)?,
        "freeze" => return Ok(format!("{}\n", world.set()?.freeze(time("upto").unwrap()))),
        "flush" => {
            let file = format!("data/{}", case.args["file"][0]);
            let meta = world.set()?.flush_frozen(&file, &ColumnFileConfig::tiny())?;
            world.meta = Some(meta);
        }
        "install" => world.set()?.install(world.meta.clone().unwrap())?,
        "find" => return world.find(case),
        "scan" => return world.scan(case),
        "layout" => return world.layout(),
        "meta" => return Ok(show_meta(&world.set()?.meta(), world.set()?)),
        "rot" => {
            let file = format!("data/{}", case.args["file"][0]);
            world.disk.flip_bit(&file, number(case, "at").unwrap()).unwrap();
        }
        "misdirect" => {
            // The write of one page goes to the place of another.
            let at = |name: &str| number(case, name).unwrap() as usize;
            let (mut bytes, from) = (world.bytes(&case.args["file"][0]), world.bytes(&case.args["of"][0]));
            let page = &from[at("from")..at("from") + at("len")];
            bytes[at("to")..at("to") + page.len()].copy_from_slice(page);
            world.replace(&case.args["file"][0], &bytes);
        }
        "misplace" => {
            let bytes = world.bytes(&case.args["file"][0]);
            world.replace(&case.args["as"][0], &bytes);
        }
        "free" => world.disk.set_free(number(case, "bytes").unwrap()),
        "fail" => world.disk.fail_op(number(case, "op").unwrap(), number(case, "errno").unwrap() as i32),
        "crash" => {
            world.set = None;
            world.disk.crash();
        }
        other => panic!("unknown directive {other}"),
    }
    Ok(String::new())
}

/// Parses lines `name TYPE [nullable] [encoding=E] [compression=C] [default=V]`; ids count up from 0.
fn parse_table(case: &TestCase) -> Result<Schema> {
    let mut columns = Vec::new();
    for (id, line) in case.input.lines().enumerate() {
        let mut words = line.split(' ');
        let (name, ty) = (words.next().unwrap(), words.next().unwrap());
        let ty = DataType::ALL.into_iter().find(|candidate| candidate.name() == ty).unwrap();
        let mut column = ColumnSchema::new(id as u32, name, ty);
        for word in words {
            match word.split_once('=') {
                None => column.nullable = true,
                Some(("encoding", "RLE")) => column.encoding = Encoding::Rle,
                Some(("encoding", "PLAIN")) => column.encoding = Encoding::Plain,
                Some(("encoding", "PREFIX")) => column.encoding = Encoding::Prefix,
                Some(("encoding", "BIT_SHUFFLE")) => column.encoding = Encoding::BitShuffle,
                Some(("compression", "ZSTD")) => column.compression = Compression::Zstd,
                Some(("block", bytes)) => column.block_bytes = bytes.parse().unwrap(),
                Some(("default", value)) => column.read_default = parse_cell(ty, value),
                _ => panic!("unknown word {word}"),
            }
        }
        columns.push(column);
    }
    Schema::new(columns, number(case, "key").unwrap_or(1) as usize)
}

fn parse_cell(ty: DataType, text: &str) -> Option<Vec<u8>> {
    match ty.width() {
        _ if text == "NULL" => None,
        Some(width) => Some(text.parse::<i128>().unwrap().to_le_bytes()[..width].to_vec()),
        None => Some(text.as_bytes().to_vec()),
    }
}

fn show_cell(ty: DataType, cell: Option<&[u8]>) -> String {
    match (cell, ty.width()) {
        (None, _) => "NULL".to_string(),
        (Some(cell), None) => String::from_utf8_lossy(cell).into_owned(),
        (Some(cell), Some(width)) => {
            let mut wide = [if cell[width - 1] & 0x80 == 0 { 0 } else { 0xff }; 16];
            wide[..width].copy_from_slice(cell);
            i128::from_le_bytes(wide).to_string()
        }
    }
}

impl World {
    fn set(&self) -> Result<&DiskRowSet> {
        self.set.as_ref().ok_or_else(|| Error::invalid("no rowset is open"))
    }

    fn open(&mut self) -> Result<()> {
        self.set = None;
        let meta = self.meta.clone().unwrap();
        let data = Arc::new(self.disk.clone());
        self.set = Some(DiskRowSet::open(
            data,
            TABLET,
            meta,
            &self.schema,
            PageCache::new(1 << 20),
            RowSetTrackers::default(),
        )?);
        Ok(())
    }

    fn key(&self, cells: &[Option<Vec<u8>>]) -> Vec<u8> {
        let mut key = Vec::new();
        encode_key(self.schema.key_columns(), |i| cells[i].as_deref().unwrap(), &mut key);
        key
    }

    fn cells(&self, text: &str) -> Vec<Option<Vec<u8>>> {
        text.split(' ').zip(self.schema.columns()).map(|(word, column)| parse_cell(column.ty, word)).collect()
    }

    /// Writes lines `ts: cells`, or `ts..died: cells` for a ghost row; a line `from-to ts: ...#...` stands for many.
    fn write(&mut self, case: &TestCase) -> Result<String> {
        let data = Arc::new(self.disk.clone());
        let path = format!("data/{}", case.args["file"][0]);
        let identity = PageOwner { tablet: TABLET, rowset: number(case, "rowset").unwrap_or(1) };
        let config = match case.args.contains_key("tiny") {
            true => ColumnFileConfig::tiny(),
            false => ColumnFileConfig::default(),
        };
        let mut writer = DiskRowSetWriter::new(data, &path, identity, &self.schema, &config)?;
        let projection: Vec<ProjectedColumn> =
            self.schema.columns().iter().map(ProjectedColumn::from).collect();
        let mut delete = Vec::new();
        encode_delete(&mut delete);
        for line in expand(&case.input) {
            let (times, cells) = line.split_once(": ").unwrap();
            let (born, died) =
                times.split_once("..").map_or((times, None), |(born, died)| (born, Some(died)));
            let cells = self.cells(cells);
            let mut block = RowBlock::new(&projection);
            block.push_row(cells.iter().map(Option::as_deref));
            let row = writer.rows();
            writer.append(&block, &[&self.key(&cells)])?;
            writer.undo(row, Timestamp(born.parse().unwrap()), &delete)?;
            if let Some(died) = died {
                writer.redo(row, Timestamp(died.parse().unwrap()), &delete)?;
            }
        }
        self.meta = Some(writer.finish(Timestamp(number(case, "base_ts").unwrap_or(100)))?);
        self.open()?;
        Ok(show_meta(self.meta.as_ref().unwrap(), self.set()?))
    }

    /// Applies lines `row ts delete`, `row ts update column=cell ...` or `row ts reinsert column=cell ...`.
    fn change(&mut self, case: &TestCase) -> Result<()> {
        for line in case.input.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let mut change = Vec::new();
            let builder = match words[2] {
                "delete" => {
                    encode_delete(&mut change);
                    None
                }
                "update" => Some(RowChangeBuilder::update(&mut change)),
                _ => Some(RowChangeBuilder::reinsert(&mut change)),
            };
            if let Some(mut builder) = builder {
                for set in &words[3..] {
                    let (name, cell) = set.split_once('=').unwrap();
                    let column = &self.schema.columns()[self.schema.index_of_name(name).unwrap()];
                    builder.set(column.id, parse_cell(column.ty, cell).as_deref());
                }
            }
            let ts = Timestamp(words[1].parse().unwrap());
            self.set()?.mutate(words[0].parse().unwrap(), ts, &change)?;
        }
        Ok(())
    }

    fn find(&self, case: &TestCase) -> Result<String> {
        let mut out = String::new();
        for line in case.input.lines() {
            let mut probes = ProbeStats::default();
            let found = self.set()?.find(&self.key(&self.cells(line)), &mut probes)?;
            let live = found.map(|row| self.set().unwrap().is_live(row)).transpose()?;
            let shown = found.map_or("absent".to_string(), |row| format!("row {row}"));
            let state = live.map_or("", |live| if live { ", live" } else { ", dead" });
            writeln!(out, "{line}: {shown}{state} (filters {}, indexes {})", probes.blooms, probes.keys)
                .unwrap();
        }
        Ok(out)
    }

    /// Scans with one predicate per line.
    fn scan(&self, case: &TestCase) -> Result<String> {
        let columns = self.schema.columns();
        let bound = |name: &str| case.args.get(name).map(|cells| self.key(&self.cells(&cells.join(" "))));
        let predicates: Vec<Predicate> = case.input.lines().map(|line| self.predicate(line)).collect();
        let spec = RowSetScanSpec {
            columns: columns.iter().map(ProjectedColumn::from).collect(),
            predicates: predicates.into(),
            lower_key: bound("from"),
            upper_key: bound("to"),
            snapshot: Snapshot { before: Timestamp(number(case, "before").unwrap_or(u64::MAX)) },
            diff_from: number(case, "since").map(Timestamp),
            want_keys: false,
            block_rows: 1000,
            block_bytes: usize::MAX,
        };
        let mut scan = self.set()?.scan(&spec)?;
        let mut out = String::new();
        let mut rows = 0;
        while let Some(scanned) = scan.next()? {
            rows += scanned.block.rows;
            for row in 0..scanned.block.rows {
                let cells = scanned.block.columns.iter().zip(columns);
                let cells: Vec<String> = cells.map(|(cells, c)| show_cell(c.ty, cells.cell(row))).collect();
                let gone = scanned.deleted.as_ref().is_some_and(|deleted| deleted.get(row));
                writeln!(out, "{}{}", cells.join(" "), if gone { " (deleted)" } else { "" }).unwrap();
            }
        }
        Ok(if case.args.contains_key("count") {
            format!("{rows} rows\n")
        } else {
            out + &format!("{rows} rows\n")
        })
    }

    /// Parses `a=1`, `a<1`, `a>=1` or `a?` for IS NULL.
    fn predicate(&self, text: &str) -> Predicate {
        let at = text.find(['=', '<', '>', '?']).unwrap();
        let column = &self.schema.columns()[self.schema.index_of_name(&text[..at]).unwrap()];
        let cell = |from: usize| parse_cell(column.ty, &text[from..]).unwrap();
        let kind = match &text[at..at + 1] {
            "=" => PredicateKind::Equal(cell(at + 1)),
            "<" => PredicateKind::Range { lower: None, upper: Some(cell(at + 1)) },
            ">" => PredicateKind::Range { lower: Some(cell(at + 2)), upper: None },
            _ => PredicateKind::IsNull,
        };
        Predicate::new(column.id, kind)
    }

    fn bytes(&self, file: &str) -> Vec<u8> {
        read_file(&self.disk, &format!("data/{file}")).unwrap()
    }

    fn replace(&self, file: &str, bytes: &[u8]) {
        replace_file(&self.disk, &format!("data/{file}"), bytes).unwrap();
    }

    fn layout(&self) -> Result<String> {
        let mut out = String::new();
        for stream in self.set()?.layout()? {
            let column = self.schema.columns().iter().find(|column| column.id.0 == stream.meta.stream);
            let name =
                column.map_or_else(|| format!("{:#x}", stream.meta.stream), |column| column.name.clone());
            let dictionary = if stream.meta.dictionary.is_some() { ", dictionary" } else { "" };
            let meta = &stream.meta;
            writeln!(out, "{name}: {} bytes in {}{dictionary}", meta.raw_bytes, meta.stored_bytes).unwrap();
            for page in stream.pages.iter().take(4).filter(|_| column.is_some()) {
                let ty = column.unwrap().ty;
                let bounds = page.bounds.as_ref().map_or("no bounds".to_string(), |(low, high)| {
                    format!("{} to {}", show_cell(ty, Some(low)), show_cell(ty, Some(high)))
                });
                let (first, last) = (page.first_row, page.first_row + page.rows - 1);
                let (nulls, bytes) = (page.nulls, page.at.len);
                writeln!(out, "  rows {first} to {last}, {nulls} NULL, {bounds}, {bytes} bytes").unwrap();
            }
        }
        Ok(out)
    }
}

/// Expands `1-3 text #` to `text 1`, `text 2`, `text 3`; `%7` in it is the number modulo 7.
fn expand(input: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for line in input.lines() {
        let many = line.split_once(' ').and_then(|(range, rest)| {
            let (from, to) = range.split_once('-')?;
            Some((from.parse::<u64>().ok()?, to.parse::<u64>().ok()?, rest))
        });
        match many {
            None => lines.push(line.to_string()),
            Some((from, to, text)) => {
                let one = |i: u64| text.replace("%7", &(i % 7).to_string()).replace('#', &i.to_string());
                lines.extend((from..=to).map(one));
            }
        }
    }
    lines
}

fn show_meta(meta: &RowSetMeta, set: &DiskRowSet) -> String {
    let files: Vec<&str> = meta.files().collect();
    format!(
        "rows={} live={} base_ts={} redo_ts={} bytes={} recent={} files={}\n",
        meta.rows,
        set.live_rows(),
        meta.base_ts.0,
        meta.redo_ts.0,
        meta.bytes,
        set.dms_len(),
        files.join(" ")
    )
}
