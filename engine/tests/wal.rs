//! Transcripts of the log over a disk in memory: `tests/wal/*.txt`.

use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;
use engine::disk::mem::MemDisk;
use engine::disk::{Disk, read_file};
use engine::error::{Error, Result};
use engine::ids::OpId;
use engine::time::Timestamp;
use engine::wal::{CommitEntry, LogEntry, ReplicateEntry, Wal, WalConfig};

const DIR: &str = "wals/t";

/// One log, open or not, and its disk.
struct World {
    disk: MemDisk,
    config: WalConfig,
    wal: Option<Wal>,
}

#[test]
fn transcripts() {
    datadriven::walk("tests/wal", |file| {
        let config = WalConfig { segment_bytes_max: 1 << 20, preallocate: true, compress: false };
        let mut world = World { disk: MemDisk::new(1), config, wal: None };
        file.run(|case| match run(&mut world, case) {
            Ok(text) if text.is_empty() => "ok\n".to_string(),
            Ok(text) => text,
            Err(error) => format!("{:?}: {error}\n", error.kind),
        });
    });
}

fn run(world: &mut World, case: &datadriven::TestCase) -> Result<String> {
    let number = |name: &str| case.args.get(name).map(|values| values[0].parse::<u64>().unwrap());
    let text = |name: &str| case.args[name][0].clone();
    match case.directive.as_str() {
        "create" => {
            world.config.segment_bytes_max = number("segment").unwrap_or(1 << 20);
            world.wal = Some(Wal::create(Arc::new(world.disk.clone()), DIR, world.config)?);
        }
        "open" => return open(world),
        "close" => world.wal = None,
        "append" => world.wal()?.append(&parse(&case.input))?,
        "fill" => fill(world.wal()?, number("from").unwrap(), number("to").unwrap())?,
        "sync" => world.wal()?.sync()?,
        "read" => {
            let max = number("max").unwrap_or(1 << 20) as usize;
            let replicates = world.wal()?.read(number("from").unwrap(), max)?;
            return Ok(show(replicates.into_iter().map(LogEntry::Replicate)));
        }
        "gc" => {
            let wal = world.wal()?;
            let before = wal.bytes();
            let freed = wal.gc(number("keep").unwrap())?;
            assert_eq!(before - freed, wal.bytes());
            return Ok(format!("freed {freed}\n"));
        }
        "truncate" => world.wal()?.truncate_after(number("after").unwrap())?,
        "status" => {
            let wal = world.wal()?;
            let first = wal.first_index();
            return Ok(format!("last={} first={first:?} bytes={}\n", wal.last_op(), wal.bytes()));
        }
        "files" => return Ok(files(&world.disk)),
        "crash" => {
            world.wal = None;
            world.disk.crash();
        }
        "fail" => world.disk.fail_op(number("op").unwrap(), number("errno").unwrap() as i32),
        "free" => world.disk.set_free(number("bytes").unwrap()),
        "rot" => {
            let path = format!("{DIR}/{}", text("file"));
            world.disk.flip_bit(&path, number("at").unwrap()).unwrap();
        }
        "raw" => raw_append(&world.disk, &text("file"), &case.args["bytes"]),
        "newer" => make_newer(&world.disk, &text("file")),
        "remove" => world.disk.remove(&format!("{DIR}/{}", text("file"))).unwrap(),
        other => panic!("unknown directive {other}"),
    }
    Ok(String::new())
}

impl World {
    fn wal(&mut self) -> Result<&mut Wal> {
        self.wal.as_mut().ok_or_else(|| Error::invalid("the log is not open"))
    }
}

fn open(world: &mut World) -> Result<String> {
    world.wal = None;
    let mut entries = Vec::new();
    let disk = Arc::new(world.disk.clone());
    let mut keep = |entry| {
        entries.push(entry);
        Ok(())
    };
    let (wal, report) = Wal::open(disk, DIR, world.config, &mut keep)?;
    world.wal = Some(wal);
    let mut text = show(entries.into_iter());
    let void = if report.void > 0 { format!(" void={}", report.void) } else { String::new() };
    let (segments, cut, last) = (report.segments, report.cut_bytes, report.last_op);
    writeln!(text, "segments={segments} cut={cut}{void} last={last}").unwrap();
    Ok(text)
}

/// Parses lines like `replicate 1.5 ts=9 kind=1 payload` and `commit 1.5 payload`.
fn parse(input: &str) -> Vec<LogEntry> {
    let parse_op = |text: &str| {
        let (term, index) = text.split_once('.').unwrap();
        OpId { term: term.parse().unwrap(), index: index.parse().unwrap() }
    };
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let payload = Bytes::copy_from_slice(words.last().unwrap().as_bytes());
        match words[0] {
            "replicate" => LogEntry::Replicate(ReplicateEntry {
                op: parse_op(words[1]),
                timestamp: Timestamp(words[2].strip_prefix("ts=").unwrap().parse().unwrap()),
                kind: words[3].strip_prefix("kind=").unwrap().parse().unwrap(),
                payload,
            }),
            "commit" => LogEntry::Commit(CommitEntry { op: parse_op(words[1]), payload }),
            other => panic!("unknown entry {other}"),
        }
    };
    input.lines().map(line).collect()
}

fn show(entries: impl Iterator<Item = LogEntry>) -> String {
    let payload = |bytes: &Bytes| match bytes.len() {
        0..30 => String::from_utf8_lossy(bytes).into_owned(),
        len => format!("({len} bytes)"),
    };
    let line = |entry| match entry {
        LogEntry::Replicate(ReplicateEntry { op, timestamp, kind, payload: bytes }) => {
            format!("replicate {op} ts={} kind={kind} {}\n", timestamp.0, payload(&bytes))
        }
        LogEntry::Commit(CommitEntry { op, payload: bytes }) => format!("commit {op} {}\n", payload(&bytes)),
    };
    entries.map(line).collect()
}

/// Appends one batch of 100 bytes of payload for each index.
fn fill(wal: &mut Wal, from: u64, to: u64) -> Result<()> {
    for index in from..=to {
        let op = OpId { term: 1, index };
        let payload = Bytes::from(vec![index as u8; 100]);
        wal.append(&[LogEntry::Replicate(ReplicateEntry {
            op,
            timestamp: Timestamp(index),
            kind: 1,
            payload,
        })])?;
    }
    Ok(())
}

fn files(disk: &MemDisk) -> String {
    let mut text = String::new();
    for name in disk.list(DIR).unwrap() {
        let len = disk.open(&format!("{DIR}/{name}")).unwrap().len().unwrap();
        writeln!(text, "{name} {len}").unwrap();
    }
    text
}

/// Appends a count of bytes of one value to a file durably, without the log.
fn raw_append(disk: &MemDisk, file: &str, bytes: &[String]) {
    let [count, value] = bytes else { panic!("bytes=(count,value)") };
    let file = disk.open(&format!("{DIR}/{file}")).unwrap();
    file.append(&vec![value.parse().unwrap(); count.parse().unwrap()]).unwrap();
    file.sync().unwrap();
}

/// Rewrites a file's envelope with the next format version.
fn make_newer(disk: &MemDisk, file: &str) {
    let path = format!("{DIR}/{file}");
    let old = read_file(disk, &path).unwrap();
    let magic = old[..4].try_into().unwrap();
    let version = u16::from_le_bytes([old[4], old[5]]);
    let (_, payload, used) = engine::codec::unseal_prefix(magic, version, &old).unwrap();
    let mut new = engine::codec::seal(magic, version + 1, payload);
    new.extend_from_slice(&old[used..]);
    disk.remove(&path).unwrap();
    let file = disk.create(&path).unwrap();
    file.append(&new).unwrap();
}
