//! Tablet copy between disks in memory: transcripts of admitted and rejected copies (`tests/copy/*.txt`), and copies of
//! a busy replica, damaged, interrupted, and crashed at every operation.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use engine::cfile::cache::PageCache;
use engine::config::TabletConfig;
use engine::disk::Disk;
use engine::disk::mem::MemDisk;
use engine::error::{ErrorKind, Result};
use engine::ids::{OpId, PeerId, Uuid};
use engine::raft::{ConsensusMeta, MemberKind, Peer, RaftConfig};
use engine::replica::copy::{
    CopyLeader, CopyPart, CopySink, CopySource, LocalData, LocalReplica, RejectedSource,
};
use engine::replica::{JobKind, Replica, consensus_meta_store, tombstone};
use engine::schema::partition::{Partition, PartitionSchema};
use engine::schema::row_ops::RowOpKind;
use engine::tablet::scan::ScanSpec;
use engine::tablet::superblock::{DataState, Superblock};
use engine::time::Timestamp;
use engine::wal::{LogEntry, ReplicateEntry, Wal, WalConfig, segment_name};
use engine_testkit::world::{self, TABLET, Value, World, plain_schema};

fn peer(name: char) -> PeerId {
    Uuid([name as u8; 16])
}

fn config(names: &str, index: Option<u64>) -> RaftConfig {
    let peers = names.chars().map(|name| Peer::voter(peer(name), name.to_string(), 7050)).collect();
    RaftConfig { opid_index: index, peers }
}

fn dyn_disk(disk: &MemDisk) -> Arc<dyn Disk> {
    Arc::new(disk.clone())
}

fn open(disk: &MemDisk) -> Result<(Replica, Wal)> {
    let cache = PageCache::new(1 << 20);
    let opened =
        Replica::open(dyn_disk(disk), dyn_disk(disk), TABLET, world::setup(), TabletConfig::tiny(), cache)?;
    Ok((opened.0, opened.1))
}

/// Creates the source of a session from an open replica.
fn source_of(replica: &Replica, wal: &mut Wal, consensus: ConsensusMeta) -> Result<CopySource> {
    CopySource::new(replica.copy_view(consensus)?, wal.snapshot()?, 0)
}

/// Returns the state that a server would report of its replica.
fn local(disk: &MemDisk) -> LocalReplica {
    let (has, last_op) = match Superblock::load(disk, TABLET) {
        Ok(meta) if meta.data_state == DataState::Ready => (LocalData::Replica, Some(meta.last_op)),
        Ok(meta) => (LocalData::Tombstone, meta.tombstone_last_op),
        Err(_) if !Wal::is_unused(disk, &engine::replica::wal_dir(TABLET)).unwrap_or(true) => {
            (LocalData::Failed, None)
        }
        Err(_) => (LocalData::Nothing, None),
    };
    let term = consensus_meta_store::load(disk, TABLET).map_or(0, |meta| meta.term);
    LocalReplica {
        server: peer('b'),
        tablet: TABLET,
        has,
        last_op,
        at_least: OpId::MIN,
        term,
        rejected: None,
    }
}

/// Fetches all missing ranges, `max` bytes at a time.
fn fetch(source: &CopySource, sink: &mut CopySink, max: usize) -> Result<()> {
    while let Some(wanted) = sink.wanted() {
        sink.put(wanted.part, &source.read(wanted.part, wanted.offset, max)?)?;
    }
    Ok(())
}

fn copy(
    source: &CopySource,
    to: &MemDisk,
    leader: Option<CopyLeader>,
    rejected: Option<RejectedSource>,
) -> Result<()> {
    let manifest =
        engine::replica::copy::CopyManifest::decode(&source.read(CopyPart::Manifest, 0, usize::MAX)?.data)?;
    let local = LocalReplica { rejected, ..local(to) };
    let mut sink = CopySink::begin(dyn_disk(to), dyn_disk(to), &local, leader, manifest)?;
    let fetched = fetch(source, &mut sink, 4 << 10).and_then(|()| sink.finish());
    if let Err(error) = fetched {
        sink.abort()?;
        return Err(error);
    }
    Ok(())
}

#[test]
fn transcripts() {
    datadriven::walk("tests/copy", |file| {
        let mut servers = BTreeMap::new();
        file.run(|case| match run(&mut servers, case) {
            Ok(text) if text.is_empty() => "ok\n".to_string(),
            Ok(text) => text,
            Err(error) => format!("{:?}: {error}\n", error.kind),
        });
    });
}

type Servers = BTreeMap<char, MemDisk>;

fn run(servers: &mut Servers, case: &datadriven::TestCase) -> Result<String> {
    let text = |name: &str| case.args.get(name).map(|values| values[0].clone());
    let name = |name: &str| text(name).and_then(|text| text.chars().next());
    let number = |name: &str| text(name).map(|text| text.parse::<u64>().expect("a number"));
    let at = name("at").unwrap_or('-');
    let disk = servers.entry(at).or_insert_with(|| MemDisk::new(1)).clone();
    match case.directive.as_str() {
        "replica" => {
            let word = |name: &str| case.args.get(name).map(|values| values.join(","));
            let mut committed = config(&word("voters").expect("voters"), number("config"));
            if let Some(learner) = name("learner") {
                let member = MemberKind::NonVoter;
                committed.peers.push(Peer { member, ..Peer::voter(peer(learner), "-", 7050) });
            }
            make_replica(&disk, &word("log").expect("a log"), number("term"), committed)?;
        }
        "tombstone" => {
            let last = match case.args.contains_key("unknown") {
                true => None,
                false => Some(open(&disk)?.1.last_op()),
            };
            tombstone::tombstone(&disk, &disk, TABLET, last)?;
        }
        "vote" => {
            let (term, voted_for) = (number("term").expect("a term"), name("for").map(peer));
            consensus_meta_store::store(
                &disk,
                &ConsensusMeta { term, voted_for, ..consensus_meta_store::load(&disk, TABLET)? },
            )?;
        }
        "copy" => {
            let from = servers[&name("from").expect("a source")].clone();
            let (replica, mut wal) = open(&from)?;
            let source = source_of(&replica, &mut wal, consensus_meta_store::load(&from, TABLET)?)?;
            if let Some(operation) = number("crash-at-op") {
                disk.cut_power_at(operation);
            }
            let rejected = text("rejected").map(|end| {
                let (term, index) = end.split_once('.').expect("term.index");
                let number = |text: &str| text.parse().expect("a number");
                RejectedSource { term: number(term), last_index: number(index) }
            });
            let id = peer(name("from").expect("a source"));
            let leader = number("term").map(|term| CopyLeader { id, term });
            copy(&source, &disk, leader, rejected)?;
        }
        "restart" => {
            disk.crash();
            tombstone::recover(&disk, &disk, TABLET)?;
        }
        "rot" => disk.flip_bit(&format!("consensus-meta/{TABLET}"), 20).expect("it is there"),
        "lose" => {
            for dir in ["tablet-meta", "consensus-meta"] {
                disk.remove(&format!("{dir}/{TABLET}")).expect("it is there");
                disk.sync_dir(dir).expect("synced");
            }
        }
        "delete" => tombstone::delete(&disk, &disk, TABLET)?,
        "show" => {}
        other => panic!("unknown directive {other}"),
    }
    show(&disk)
}

/// Creates a replica with a log of empty operations, such as `1.1,1.2,3.3`; the term is the last one's unless given.
fn make_replica(disk: &MemDisk, log: &str, term: Option<u64>, committed: RaftConfig) -> Result<()> {
    let schema = plain_schema();
    let range_columns = schema.key_columns().iter().map(|column| column.id).collect();
    let how = PartitionSchema { range_columns, ..PartitionSchema::default() };
    let meta = Superblock::new(TABLET, Uuid([9; 16]), "t", schema, 0, how, Partition::default());
    let wal_config = WalConfig { segment_bytes_max: 200, preallocate: false, compress: true };
    let mut wal = Wal::create(dyn_disk(disk), &engine::replica::wal_dir(TABLET), wal_config)?;
    let mut last = 0;
    for (at, op) in log.split(',').enumerate() {
        let (term, index) = op.split_once('.').expect("term.index");
        let op = OpId { term: term.parse().expect("a term"), index: index.parse().expect("an index") };
        let timestamp = Timestamp(at as u64 + 1);
        wal.append(&[LogEntry::Replicate(ReplicateEntry {
            op,
            timestamp,
            kind: 3,
            payload: vec![0].into(),
        })])?;
        last = op.term;
    }
    wal.sync()?;
    disk.create_dir(&format!("data/{TABLET}")).expect("created");
    disk.sync_dir("data").expect("synced");
    let term = term.unwrap_or(last);
    consensus_meta_store::store(disk, &ConsensusMeta { term, ..ConsensusMeta::new(TABLET, committed) })?;
    meta.store(disk)
}

fn show(disk: &MemDisk) -> Result<String> {
    let mut text = String::new();
    match Superblock::load(disk, TABLET) {
        Err(error) if error.kind == ErrorKind::NotFound => text.push_str("nothing"),
        Err(error) => return Err(error),
        Ok(meta) if meta.data_state == DataState::Ready => {
            write!(text, "ready last={}", open(disk)?.1.last_op()).expect("text");
        }
        Ok(meta) => {
            let last = meta.tombstone_last_op.map_or("unknown".to_string(), |last| last.to_string());
            write!(text, "{:?} last={last}", meta.data_state).expect("text");
        }
    }
    if let Ok(meta) = consensus_meta_store::load(disk, TABLET) {
        let vote = meta.voted_for.map_or("none".to_string(), |peer| (peer.0[0] as char).to_string());
        let voters: String = meta.committed.peers.iter().map(|peer| peer.host.as_str()).collect();
        write!(text, " term={} vote={vote} voters={voters}", meta.term).expect("text");
    }
    let files = data_files(disk).len();
    writeln!(text, " files={files}").expect("text");
    Ok(text)
}

/// Returns the files of the tablet's log and rows.
fn data_files(disk: &MemDisk) -> Vec<String> {
    let dirs = [format!("wals/{TABLET}"), format!("data/{TABLET}")];
    let list = |dir: &String| {
        let names = disk.list(dir).unwrap_or_default();
        names.into_iter().map(move |name| format!("{dir}/{name}")).collect::<Vec<_>>()
    };
    dirs.iter().flat_map(list).collect()
}

// ---- copies of a busy replica

fn row(key: i32, value: &str) -> Vec<Value> {
    vec![Value::int(key), Value::text(value), Value::Null]
}

fn upsert(world: &mut World, keys: impl Iterator<Item = i32>, value: &str) {
    let rows: Vec<_> = keys.map(|key| (RowOpKind::Upsert, row(key, value))).collect();
    world.write(&rows).expect("written");
}

/// Creates a replica with two rowsets, deltas of them on disk and in memory, and rows in memory.
fn busy_world() -> World {
    let mut world = World::new(7, TabletConfig::tiny());
    world.create(plain_schema()).expect("created");
    upsert(&mut world, 0..60, "first");
    world.job(JobKind::FlushRows, &mut |_| {}).expect("flushed");
    upsert(&mut world, (0..60).step_by(3), "changed");
    let rowset = world.replica().tablet().state().disk[0].meta().id;
    world.job(JobKind::FlushDeltas(rowset), &mut |_| {}).expect("flushed");
    upsert(&mut world, 30..90, "second");
    world.job(JobKind::FlushRows, &mut |_| {}).expect("flushed");
    upsert(&mut world, (0..120).step_by(5), "third");
    world
}

fn consensus(world: &World) -> ConsensusMeta {
    let term = world.replica().last_op().term;
    ConsensusMeta { term, ..ConsensusMeta::new(TABLET, config("ABC", None)) }
}

fn world_source(world: &mut World) -> CopySource {
    let consensus = consensus(world);
    let (replica, wal) = world.open.as_mut().expect("open");
    source_of(replica, wal, consensus).expect("the copy is admitted")
}

/// Returns the current rows of a replica.
fn rows(replica: &Replica) -> Vec<String> {
    let spec = ScanSpec {
        ordered: true,
        ..ScanSpec::latest(replica.tablet().schema().columns().iter().map(Into::into).collect())
    };
    let mut scan = replica.tablet().scan(&spec).expect("a scan");
    let mut rows = Vec::new();
    while let Some(block) = scan.next_block().expect("a block") {
        let cells = |row| block.columns.iter().map(move |cells| cells.cell(row).map(<[u8]>::to_vec));
        rows.extend((0..block.rows).map(|row| format!("{:?}", cells(row).collect::<Vec<_>>())));
    }
    rows
}

fn begin(source: &CopySource, to: &MemDisk) -> Result<CopySink> {
    CopySink::begin(dyn_disk(to), dyn_disk(to), &local(to), None, source.manifest().clone())
}

#[test]
fn a_copy_is_a_snapshot_while_its_source_changes() {
    let mut world = busy_world();
    let source = world_source(&mut world);
    let expected = rows(world.replica());
    let target = MemDisk::new(3);
    let mut sink = begin(&source, &target).expect("the copy is admitted");
    let mut turns = 0..;
    while let Some(wanted) = sink.wanted() {
        // Each chunk is fetched from a source that has written, flushed, compacted and collected its log meanwhile.
        let turn = turns.next().expect("without end");
        upsert(&mut world, (turn % 50)..(turn % 50 + 10), "later");
        if turn % 3 == 0 {
            world.job(JobKind::FlushRows, &mut |_| {}).expect("flushed");
            let all = world.replica().tablet().state().disk.iter().map(|rowset| rowset.meta().id).collect();
            world.job(JobKind::Compact(all), &mut |_| {}).expect("merged");
            let (replica, wal) = world.open.as_mut().expect("open");
            wal.gc(replica.log_keep_from()).expect("cut");
        }
        sink.put(wanted.part, &source.read(wanted.part, wanted.offset, 900).expect("pinned")).expect("taken");
    }
    assert!(source.manifest().files().all(|file| world.disk.open(file).is_err()), "all were replaced");
    sink.finish().expect("everything is there");
    let (copied, wal) = open(&target).expect("it is a replica");
    assert_eq!(rows(&copied), expected);
    assert_eq!(wal.last_op(), source.last_op());
    assert_eq!(world::misplaced_files(&target), Vec::<String>::new());
    assert_eq!(
        world::misplaced_files(&world.disk),
        Vec::<String>::new(),
        "nor is anything left at the source"
    );
    let used = local(&target).check_source_state(source.manifest()).map_err(|error| error.kind);
    assert_eq!(used, Err(ErrorKind::AlreadyPresent), "a replica in use is not copied over");
}

/// Creates the tombstone of a server that was evicted long ago: it records operation 1.2 and a vote.
fn evicted(seed: u64) -> (MemDisk, ConsensusMeta) {
    let disk = MemDisk::new(seed);
    let mut world = World::new(seed, TabletConfig::tiny());
    world.disk = disk.clone();
    world.create(plain_schema()).expect("created");
    upsert(&mut world, 0..5, "old");
    upsert(&mut world, 0..5, "older");
    world.open = None;
    tombstone::tombstone(&disk, &disk, TABLET, Some(KEPT)).expect("tombstoned");
    let meta = ConsensusMeta {
        term: 9,
        voted_for: Some(peer('B')),
        ..ConsensusMeta::new(TABLET, config("ABC", Some(4)))
    };
    consensus_meta_store::store(&disk, &meta).expect("stored");
    (disk, meta)
}

const KEPT: OpId = OpId { term: 1, index: 2 };

fn copy_in_chunks(source: &CopySource, to: &MemDisk, max: usize) -> Result<()> {
    let mut sink = begin(source, to)?;
    fetch(source, &mut sink, max)?;
    sink.finish()
}

#[test]
fn a_crash_leaves_the_tombstone_or_the_whole_replica() {
    let mut world = busy_world();
    let source = world_source(&mut world);
    let expected = rows(world.replica());
    let (mut undone, mut done) = (0, 0);
    for k in 1.. {
        let (disk, before) = evicted(k);
        disk.cut_power_at(k);
        let finished = copy_in_chunks(&source, &disk, 16 << 10);
        disk.crash();
        let meta = tombstone::recover(&disk, &disk, TABLET).expect("readable").expect("not deleted");
        let now = consensus_meta_store::load(&disk, TABLET).expect("kept");
        assert_eq!(
            (now.term, now.voted_for),
            (before.term, before.voted_for),
            "the vote is kept, cut at {k}"
        );
        if meta.data_state == DataState::Ready {
            done += 1;
            assert_eq!(rows(&open(&disk).expect("a whole replica").0), expected, "cut at {k}");
        } else {
            undone += 1;
            assert!(finished.is_err(), "cut at {k}");
            assert_eq!((meta.data_state, meta.tombstone_last_op), (DataState::Tombstoned, Some(KEPT)));
            assert_eq!(data_files(&disk), Vec::<String>::new(), "cut at {k}");
            copy_in_chunks(&source, &disk, 16 << 10).expect("it can be copied again");
        }
        assert_eq!(world::misplaced_files(&disk), Vec::<String>::new(), "cut at {k}");
        if finished.is_ok() {
            break;
        }
    }
    assert!(undone > 40 && done > 0, "{undone} undone, {done} done");
}

#[test]
fn a_crash_while_aborting_a_copy_leaves_the_tombstone() {
    let mut world = busy_world();
    let source = world_source(&mut world);
    for k in 1.. {
        let (disk, _) = evicted(k);
        let mut sink = begin(&source, &disk).expect("begun");
        let wanted = sink.wanted().expect("something");
        sink.put(wanted.part, &source.read(wanted.part, 0, 1 << 20).expect("read")).expect("taken");
        disk.cut_power_at(k);
        let aborted = sink.abort();
        disk.crash();
        let meta = tombstone::recover(&disk, &disk, TABLET).expect("readable").expect("not deleted");
        assert_eq!((meta.data_state, meta.tombstone_last_op), (DataState::Tombstoned, Some(KEPT)));
        assert_eq!(data_files(&disk), Vec::<String>::new(), "cut at {k}");
        if aborted.is_ok() {
            return;
        }
    }
}

#[test]
fn a_full_disk_aborts_a_copy_to_the_tombstone() {
    let mut world = busy_world();
    let source = world_source(&mut world);
    let (disk, _) = evicted(1);
    disk.set_free(4 << 10);
    let mut sink = begin(&source, &disk).expect("begun");
    let full = fetch(&source, &mut sink, 1 << 10).expect_err("it does not fit");
    assert_eq!(full.kind, ErrorKind::Io);
    let stuck = sink.wanted();
    disk.set_free(1 << 20);
    fetch(&source, &mut sink, 1 << 10).expect("it resumes when there is space again");
    assert!(stuck.is_some() && sink.finish().is_ok());
    open(&disk).expect("a whole replica");
}

#[test]
fn a_copy_that_filled_the_disk_is_aborted_without_space() {
    let mut world = busy_world();
    let source = world_source(&mut world);
    for free in [0, 4 << 10] {
        let (disk, _) = evicted(1);
        let mut sink = begin(&source, &disk).expect("begun");
        disk.set_free(free);
        fetch(&source, &mut sink, 1 << 10).expect_err("it does not fit");
        sink.abort().expect("it frees what it has written");
        assert_eq!(data_files(&disk), Vec::<String>::new(), "{free} bytes free");
        let meta = tombstone::recover(&disk, &disk, TABLET).expect("readable").expect("not deleted");
        assert_eq!((meta.data_state, meta.tombstone_last_op), (DataState::Tombstoned, Some(KEPT)));
        disk.set_free(1 << 20);
        copy_in_chunks(&source, &disk, 16 << 10).expect("it can be copied again");
        open(&disk).expect("a whole replica");
    }
}

#[test]
fn damaged_and_foreign_bytes_are_rejected_and_fetched_again() {
    let mut world = busy_world();
    let source = world_source(&mut world);
    let target = MemDisk::new(3);
    let mut sink = begin(&source, &target).expect("begun");
    let wanted = sink.wanted().expect("something");
    let chunk = source.read(wanted.part, 0, 300).expect("read");
    let mut messages = Vec::new();
    let mut reject = |part, change: &dyn Fn(&mut engine::replica::copy::CopyChunk)| {
        let mut changed = chunk.clone();
        change(&mut changed);
        let error = sink.put(part, &changed).expect_err("rejected");
        messages.push(format!("{:?}: {error}", error.kind));
    };
    reject(CopyPart::File(0), &|chunk| chunk.data[17] ^= 1);
    reject(CopyPart::File(0), &|chunk| chunk.offset = 300);
    reject(CopyPart::Segment(1), &|_| ());
    reject(CopyPart::File(0), &|chunk| chunk.total -= 1);
    reject(CopyPart::File(0), &|chunk| {
        *chunk = engine::replica::copy::CopyChunk::new(0, Vec::new(), chunk.total)
    });
    let messages = messages
        .join("\n")
        .replace(&wanted.bytes.to_string(), "N")
        .replace(&(wanted.bytes - 1).to_string(), "M");
    expect_test::expect![[r#"
        Corrupt: File(0): 300 bytes at offset 0 arrived with checksum 5c51a869, but were sent with 93dc9b7c
        Invalid: File(0): chunk is from offset 300, but File(0) from 0 on is needed
        Invalid: Segment(1): chunk is from offset 0, but File(0) from 0 on is needed
        Corrupt: File(0): the source has M bytes of it, but N were announced
        Corrupt: File(0): 0 bytes came where up to N are missing"#]]
    .assert_eq(&messages);
    assert_eq!(sink.wanted(), Some(wanted), "nothing was taken");
    assert!(sink.finish().is_err(), "it lacks everything");
    fetch(&source, &mut sink, 1 << 20).and_then(|()| sink.finish()).expect("the right bytes are taken");
    open(&target).expect("a whole replica");
}

/// Flips bits of a part's file one after another: no copy of it begins. Returns the number of these bits.
fn reject_rot(world: &World, source: &CopySource, part: CopyPart, path: &str, bytes: u64) -> usize {
    let mut rejected = 0;
    for offset in (0..bytes).step_by(61) {
        world.disk.flip_bit(path, offset).expect("it is there");
        let error = source.read(part, 0, 100).expect_err("it is damaged");
        assert_eq!(error.kind, ErrorKind::Corrupt, "{path} at {offset}: {error}");
        assert!(error.message.contains(path), "{error}");
        world.disk.flip_bit(path, offset).expect("it is there");
        rejected += 1;
    }
    source.read(part, 0, 100).expect("it is intact again");
    rejected
}

/// Wherever a bit of a file flipped after it was written, its copy does not begin.
#[test]
fn bit_rot_at_the_source_is_not_copied() {
    let mut world = busy_world();
    let source = world_source(&mut world);
    let superblock = source.manifest().superblock.clone();
    let paths = superblock.rowsets.iter().flat_map(|rowset| rowset.files());
    let mut rejected = 0;
    for (number, path) in paths.enumerate() {
        let bytes = source.manifest().file_bytes[number];
        rejected += reject_rot(&world, &source, CopyPart::File(number as u64), path, bytes);
    }
    assert!(rejected > 100, "there were {rejected} places to damage");
}

/// A copy with a damaged segment would be complete, and could never be opened.
#[test]
fn bit_rot_in_the_log_of_the_source_is_not_copied() {
    let mut world = busy_world();
    let source = world_source(&mut world);
    let mut rejected = 0;
    for segment in &source.manifest().segments {
        let path = format!("{}/{}", engine::replica::wal_dir(TABLET), segment_name(segment.sequence));
        rejected += reject_rot(&world, &source, CopyPart::Segment(segment.sequence), &path, segment.bytes);
    }
    assert!(rejected > 10, "there were {rejected} places to damage");
}

#[test]
fn damaged_and_false_manifests_are_rejected() {
    let mut world = busy_world();
    let source = world_source(&mut world);
    let manifest = source.manifest().clone();
    let bytes = manifest.encode();
    for at in (0..bytes.len()).step_by(7) {
        let mut bad = bytes.clone();
        bad[at] ^= 1;
        assert!(engine::replica::copy::CopyManifest::decode(&bad).is_err(), "byte {at}");
    }
    let mut messages = Vec::new();
    let mut reject = |change: &dyn Fn(&mut engine::replica::copy::CopyManifest)| {
        let mut altered = manifest.clone();
        change(&mut altered);
        let error = engine::replica::copy::CopyManifest::decode(&altered.encode()).expect_err("rejected");
        messages.push(format!("{:?}: {error}", error.kind));
    };
    reject(&|altered| altered.superblock.data_state = DataState::Copying);
    reject(&|altered| altered.consensus.tablet = Uuid([1; 16]));
    reject(&|altered| altered.last_op = OpId::MIN);
    reject(&|altered| altered.consensus.term = 0);
    reject(&|altered| altered.file_bytes.clear());
    reject(&|altered| altered.superblock.rowsets[0].file = "../../etc/passwd".to_string());
    reject(&|altered| altered.segments.clear());
    reject(&|altered| altered.segments[0].bytes = u64::MAX);
    expect_test::expect![[r#"
        Corrupt: the copy of tablet 07070707070707070707070707070707: its source is Copying
        Corrupt: the copy of tablet 07070707070707070707070707070707: its consensus metadata is of tablet 01010101010101010101010101010101
        Corrupt: the copy of tablet 07070707070707070707070707070707: its log ends with 0.0, but 1.4 was applied
        Corrupt: the copy of tablet 07070707070707070707070707070707: its source is in term 0, but its log ends with 1.5
        Corrupt: the copy of tablet 07070707070707070707070707070707: it has 6 files, but 0 sizes
        Corrupt: the copy of tablet 07070707070707070707070707070707: its file "../../etc/passwd" is not in data/07070707070707070707070707070707
        Corrupt: the copy of tablet 07070707070707070707070707070707: its log segments are not in order
        Corrupt: the copy of tablet 07070707070707070707070707070707: its parts are larger than any disk"#]].assert_eq(&messages.join("\n"));
    let other = LocalReplica::nothing(peer('b'), Uuid([1; 16]));
    expect_test::expect!["asked for tablet 01010101010101010101010101010101, the source sent tablet 07070707070707070707070707070707"].assert_eq(&other.check_source_state(&manifest).expect_err("another tablet").message);
}

#[test]
fn a_sink_can_abort_after_its_source_died() {
    let mut world = busy_world();
    let source = world_source(&mut world);
    let (disk, _) = evicted(1);
    let mut sink = begin(&source, &disk).expect("begun");
    let wanted = sink.wanted().expect("something");
    sink.put(wanted.part, &source.read(wanted.part, 0, 100).expect("read")).expect("taken");
    world.disk.crash();
    let dead = fetch(&source, &mut sink, 1 << 20).expect_err("its files are gone");
    assert_eq!(dead.kind, ErrorKind::Io);
    sink.abort().expect("aborted");
    world.reopen().expect("it comes back");
    let source = world_source(&mut world);
    copy_in_chunks(&source, &disk, 1 << 20).expect("another session starts over");
    assert_eq!(rows(&open(&disk).expect("a whole replica").0), rows(world.replica()));
}

#[test]
fn log_gc_between_the_two_snapshots_is_detected() {
    let mut world = busy_world();
    let consensus = consensus(&world);
    let view = world.replica().copy_view(consensus).expect("a view");
    for round in 0..20 {
        upsert(&mut world, round..round + 20, "more");
    }
    world.job(JobKind::FlushRows, &mut |_| {}).expect("flushed");
    let all = world.replica().tablet().state().disk.iter().map(|rowset| rowset.meta().id).collect();
    world.job(JobKind::Compact(all), &mut |_| {}).expect("merged");
    let (replica, wal) = world.open.as_mut().expect("open");
    wal.gc(replica.log_keep_from()).expect("cut");
    let error = CopySource::new(view, wal.snapshot().expect("a view"), 0).err().expect("it does not join");
    assert_eq!(error.kind, ErrorKind::NotReady, "{error}");
}

#[test]
fn truncated_entries_are_not_copied() {
    let source = MemDisk::new(1);
    make_replica(&source, "1.1,1.2,1.3,1.4", None, config("ABC", None)).expect("created");
    let (replica, mut wal) = open(&source).expect("open");
    wal.truncate_after(2).expect("truncated");
    let op = OpId { term: 2, index: 3 };
    let entry = ReplicateEntry { op, timestamp: Timestamp(90), kind: 3, payload: vec![0].into() };
    wal.append(&[LogEntry::Replicate(entry)]).expect("appended");
    let consensus =
        ConsensusMeta { term: op.term, ..consensus_meta_store::load(&source, TABLET).expect("there") };
    let session = source_of(&replica, &mut wal, consensus).expect("a session");
    let target = MemDisk::new(2);
    copy_in_chunks(&session, &target, 64).expect("copied");
    let mut ops = Vec::new();
    let config = WalConfig { segment_bytes_max: 200, preallocate: false, compress: true };
    let replayed = Wal::open(dyn_disk(&target), &engine::replica::wal_dir(TABLET), config, &mut |entry| {
        if let LogEntry::Replicate(replicate) = entry {
            ops.push(replicate.op.to_string());
        }
        Ok(())
    });
    replayed.expect("the log is whole");
    assert_eq!(ops.join(" "), "1.1 1.2 2.3");
}

#[test]
fn a_failed_replica_is_not_replaced_by_an_older_one() {
    let mut world = busy_world();
    let source = world_source(&mut world);
    let last = source.last_op();
    let newer = OpId { index: last.index + 1, ..last };
    let failed = |last_op, at_least, term| LocalReplica {
        server: peer('b'),
        tablet: TABLET,
        has: LocalData::Failed,
        last_op,
        at_least,
        term,
        rejected: None,
    };
    let check = |local: LocalReplica| local.check_source_state(source.manifest()).map_err(|error| error.kind);
    assert_eq!(check(failed(Some(last), OpId::MIN, 0)), Ok(()));
    assert_eq!(check(failed(Some(newer), OpId::MIN, 0)), Err(ErrorKind::Invalid), "it acknowledged more");
    assert_eq!(check(failed(None, newer, 0)), Err(ErrorKind::Invalid), "it had applied more");
    assert_eq!(check(failed(None, OpId::MIN, last.term)), Ok(()));
    let later = last.term + 1;
    assert_eq!(
        check(failed(None, OpId::MIN, later)),
        Err(ErrorKind::NotLeader),
        "its term is all that is known"
    );
    assert_eq!(check(failed(Some(last), OpId::MIN, later)), Ok(()), "a vote says nothing about its log");
}
