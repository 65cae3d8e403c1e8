//! Power cuts and failures at every disk operation: synced data survives, and no other data appears.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::disk::mem::{DiskOpKind, MemDisk};
use crate::error::ErrorKind;
use crate::time::Timestamp;

const DIR: &str = "wals/t";
const CONFIG: WalConfig = WalConfig { segment_bytes_max: 300, preallocate: true, compress: true };
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

fn op(term: u64, index: u64) -> OpId {
    OpId { term, index }
}

fn replicate(op: OpId) -> LogEntry {
    // Various sizes, some over several sectors.
    let len = if op.index.is_multiple_of(5) { 1300 } else { 30 + op.index as usize };
    let payload = Bytes::from(vec![op.index as u8; len]);
    LogEntry::Replicate(ReplicateEntry { op, timestamp: Timestamp(op.index), kind: 1, payload })
}

fn commit(op: OpId) -> LogEntry {
    LogEntry::Commit(CommitEntry { op, payload: Bytes::from_static(b"done") })
}

/// Allowed contents of a log: one of `candidates`, less some whole segments below `retained_from`.
struct Model {
    entries: Vec<LogEntry>,
    candidates: Vec<Vec<LogEntry>>,
    retained_from: u64,
}

impl Model {
    fn new() -> Model {
        Model { entries: Vec::new(), candidates: vec![Vec::new()], retained_from: 0 }
    }

    fn may(&mut self) {
        self.candidates.push(self.entries.clone());
    }

    fn must(&mut self) {
        self.candidates = vec![self.entries.clone()];
    }

    fn allows(&self, found: &[LogEntry]) -> bool {
        self.candidates.iter().any(|candidate| {
            let removed = candidate.len().saturating_sub(found.len());
            let needed = |entry: &LogEntry| {
                matches!(entry, LogEntry::Replicate(replicate) if replicate.op.index >= self.retained_from)
            };
            candidate[removed..] == *found && !candidate[..removed].iter().any(needed)
        })
    }
}

#[test]
fn the_active_segment_counts_with_its_reserved_space() {
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new(0));
    for (dir, preallocate) in [("wals/a", true), ("wals/b", false)] {
        let config = WalConfig { preallocate, ..CONFIG };
        let mut wal = Wal::create(disk.clone(), dir, config).expect("created");
        let fresh = if preallocate { config.segment_bytes_max } else { wal.bytes() };
        assert_eq!(wal.disk_bytes(), fresh);
        for index in 1..20 {
            wal.append(&[replicate(op(1, index))]).expect("appended");
        }
        assert!(wal.bytes() > 2 * config.segment_bytes_max, "some segments are full");
        assert!(wal.disk_bytes() >= wal.bytes(), "and the last one counts with what it will take");
    }
}

fn append(wal: &mut Wal, model: &mut Model, entries: Vec<LogEntry>) -> Result<()> {
    let before = model.entries.clone();
    model.entries.extend(entries.iter().cloned());
    model.may();
    let result = wal.append(&entries);
    if result.is_err() {
        model.entries = before;
    }
    result
}

fn sync(wal: &mut Wal, model: &mut Model) -> Result<()> {
    wal.sync()?;
    model.must();
    Ok(())
}

fn truncate(wal: &mut Wal, model: &mut Model, index: u64) -> Result<()> {
    let stays =
        |entry: &LogEntry| !matches!(entry, LogEntry::Replicate(replicate) if replicate.op.index > index);
    let before = model.entries.clone();
    model.entries.retain(stays);
    model.may();
    let result = wal.truncate_after(index);
    match result {
        Ok(()) => model.must(),
        Err(_) => model.entries = before,
    }
    result
}

/// Runs a log through batches, syncs, segments, two truncations and log GC. Ends at the first error.
fn run_log(disk: &MemDisk, model: &mut Model) -> Result<()> {
    let mut wal = Wal::create(Arc::new(disk.clone()), DIR, CONFIG)?;
    for index in 1..=9 {
        append(&mut wal, model, vec![replicate(op(1, index)), commit(op(1, index.saturating_sub(3)))])?;
        if index.is_multiple_of(2) {
            sync(&mut wal, model)?;
        }
    }
    truncate(&mut wal, model, 7)?;
    append(&mut wal, model, vec![replicate(op(2, 8)), replicate(op(2, 9)), commit(op(1, 7))])?;
    model.retained_from = 4;
    wal.gc(4)?;
    append(&mut wal, model, vec![replicate(op(2, 10))])?;
    truncate(&mut wal, model, 9)?;
    for index in 10..=14 {
        append(&mut wal, model, vec![replicate(op(3, index))])?;
    }
    sync(&mut wal, model)
}

fn reopen(disk: &MemDisk) -> Result<(Wal, Vec<LogEntry>)> {
    let mut entries = Vec::new();
    let (wal, _) = Wal::open(Arc::new(disk.clone()), DIR, CONFIG, &mut |entry| {
        entries.push(entry);
        Ok(())
    })?;
    Ok((wal, entries))
}

/// Checks that the log after a crash is one that the model allows, and can be used.
fn check_after_crash(disk: &MemDisk, model: &Model, case: &str) {
    disk.crash();
    let (mut wal, found) = match reopen(disk) {
        Ok(opened) => opened,
        // Power was cut before the log was created.
        Err(error) => {
            let absent = error.kind == ErrorKind::NotFound && model.candidates[0].is_empty();
            assert!(absent, "{case}: {error}");
            return;
        }
    };
    assert!(model.allows(&found), "{case}: found {found:?}");
    let next = op(9, wal.last_op().index + 1);
    wal.append(&[replicate(next)]).unwrap();
    wal.sync().unwrap();
    disk.crash();
    let (wal, mut again) = reopen(disk).unwrap();
    assert_eq!(again.pop(), Some(replicate(next)), "{case}");
    assert_eq!(again, found, "{case}: a second crash changes nothing");
    assert_eq!(wal.read(next.index, 0).unwrap().len(), 1);
}

fn op_count_of_a_run() -> u64 {
    let disk = MemDisk::new(0);
    run_log(&disk, &mut Model::new()).unwrap();
    disk.op_count()
}

#[test]
fn power_may_be_cut_at_any_operation() {
    let mut torn = 0;
    for k in 1..=op_count_of_a_run() + 1 {
        for seed in 0..6 {
            let disk = MemDisk::new(seed);
            let mut model = Model::new();
            disk.cut_power_at(k);
            let _ = run_log(&disk, &mut model);
            check_after_crash(&disk, &model, &format!("k={k} seed={seed}"));
            torn += disk.fault_counts().writes_torn;
        }
    }
    assert!(torn > 20, "torn writes occurred: {torn}");
}

#[test]
fn any_operation_may_fail() {
    for k in 1..=op_count_of_a_run() {
        for (seed, errno) in [(1, EIO), (2, ENOSPC), (3, EIO)] {
            let disk = MemDisk::new(seed);
            let mut model = Model::new();
            disk.fail_op(k, errno);
            let _ = run_log(&disk, &mut model);
            check_after_crash(&disk, &model, &format!("k={k} errno={errno} seed={seed}"));
        }
    }
}

#[test]
fn a_failed_open_changes_nothing() {
    let disk = MemDisk::new(7);
    let mut model = Model::new();
    run_log(&disk, &mut model).unwrap();
    let start = disk.op_count();
    reopen(&disk).unwrap();
    for k in 1..=disk.op_count() - start {
        disk.fail_op(k, EIO);
        match reopen(&disk) {
            Err(error) => assert_eq!(error.kind, ErrorKind::Io, "k={k}: {error}"),
            Ok(_) => panic!("k={k}: the failure went unnoticed"),
        }
    }
    check_after_crash(&disk, &model, "after failed opens");
}

#[test]
fn a_log_stays_usable_after_a_failed_append() {
    let disk = MemDisk::new(3);
    // One segment: while a new one is created a failure may be one of a sync, which is final.
    let config = WalConfig { segment_bytes_max: 1 << 20, ..CONFIG };
    let mut wal = Wal::create(Arc::new(disk.clone()), DIR, config).unwrap();
    for index in 1..=8 {
        disk.fail_op(1, ENOSPC);
        let error = wal.append(&[replicate(op(1, index))]).unwrap_err();
        assert_eq!(error.errno, Some(ENOSPC));
        assert_eq!(wal.failure(), None);
        wal.append(&[replicate(op(1, index))]).unwrap();
    }
    wal.sync().unwrap();
    disk.crash();
    let (_, entries) = reopen(&disk).unwrap();
    assert_eq!(entries, (1..=8).map(|index| replicate(op(1, index))).collect::<Vec<_>>());
}

#[test]
fn a_power_cut_keeps_nothing_of_a_failed_append_in_a_finished_segment() {
    let config = WalConfig { segment_bytes_max: 600, ..CONFIG };
    for seed in 0..64 {
        let disk = MemDisk::new(seed);
        let mut wal = Wal::create(Arc::new(disk.clone()), DIR, config).unwrap();
        wal.append(&[replicate(op(1, 1))]).unwrap();
        wal.sync().unwrap();
        disk.fail_nth(DiskOpKind::Append, 1, ENOSPC);
        wal.append(&[replicate(op(1, 2)), replicate(op(1, 3))]).unwrap_err();
        // This one needs a segment of its own.
        let entries: Vec<LogEntry> = (2..=5).map(|index| replicate(op(1, index))).collect();
        wal.append(&entries).unwrap();
        wal.sync().unwrap();
        disk.scatter_unsynced();
        disk.crash();
        let (_, found) = reopen(&disk).unwrap_or_else(|error| panic!("disk {seed}: {error}"));
        assert_eq!(found[1..], entries, "disk {seed}");
    }
}

#[test]
fn a_flipped_bit_is_detected() {
    let disk = MemDisk::new(0);
    let mut model = Model::new();
    run_log(&disk, &mut model).unwrap();
    for name in disk.list(DIR).unwrap() {
        let path = format!("{DIR}/{name}");
        let len = disk.open(&path).unwrap().len().unwrap();
        for offset in (0..len).step_by(3) {
            disk.flip_bit(&path, offset).unwrap();
            // Also in the last batch, as no sector of it is missing.
            let error = decode_all(&disk).expect_err("a checksum covers each byte");
            assert_eq!(error.kind, ErrorKind::Corrupt, "{name} {offset}: {error}");
            disk.flip_bit(&path, offset).unwrap();
        }
    }
}

/// Opens a copy of the log, so that truncation of its tail leaves the original unchanged.
fn decode_all(disk: &MemDisk) -> Result<Vec<LogEntry>> {
    let copy = MemDisk::new(0);
    copy.create_dir(DIR).unwrap();
    for name in disk.list(DIR).unwrap() {
        let path = format!("{DIR}/{name}");
        copy.create(&path).unwrap().append(&disk::read_file(disk, &path).unwrap()).unwrap();
    }
    reopen(&copy).map(|(_, found)| found)
}

#[test]
fn replay_may_fail() {
    let disk = MemDisk::new(0);
    run_log(&disk, &mut Model::new()).unwrap();
    let reject = &mut |_| Err(Error::aborted("stop"));
    let error = Wal::open(Arc::new(disk), DIR, CONFIG, reject).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Aborted);
}

proptest! {
    /// For any file content, opening returns a result, and a log it opens can be used.
    #[test]
    fn any_file_content_is_handled(
        at in 0..2000usize,
        cut in 0..200usize,
        garbage in prop::collection::vec(any::<u8>(), 0..200),
        name in 0..3usize,
    ) {
        let disk = MemDisk::new(0);
        run_log(&disk, &mut Model::new()).unwrap();
        let names = disk.list(DIR).unwrap();
        let path = format!("{DIR}/{}", names[name % names.len()]);
        let mut bytes = disk::read_file(&disk, &path).unwrap();
        let at = at.min(bytes.len());
        bytes.splice(at..(at + cut).min(bytes.len()), garbage);
        disk::replace_file(&disk, &path, &bytes).unwrap();
        if let Ok((mut wal, _)) = reopen(&disk) {
            wal.append(&[replicate(op(9, wal.last_op().index + 1))]).unwrap();
            wal.sync().unwrap();
        }
    }
}

/// A log that a build without compression created: it is read, continued in its format, and compressed from its next
/// segment on.
#[test]
fn segments_of_the_first_format_are_read_and_continued() {
    let disk = Arc::new(MemDisk::new(1));
    disk::create_dir_durably(&*disk, DIR).unwrap();
    let header = SegmentHeader { sequence: 1, last_op: OpId::MIN, previous_bytes: 0 };
    let mut bytes = crate::codec::seal(*b"NYWS", 1, &postcard::to_stdvec(&header).unwrap());
    let first = [replicate(op(1, 1)), commit(op(1, 1))];
    let mut batch = Vec::new();
    format::encode_batch(
        &mut batch,
        &first,
        None,
        BatchPosition { sequence: 1, offset: bytes.len() as u64, synced: 0 },
    );
    bytes.extend(batch);
    let file = disk.create(&segment_path(DIR, 1)).unwrap();
    file.append(&bytes).unwrap();
    file.sync().unwrap();
    disk.sync_dir(DIR).unwrap();

    let config = WalConfig { segment_bytes_max: 3000, ..CONFIG };
    let mut found = Vec::new();
    let mut keep = |entry| {
        found.push(entry);
        Ok(())
    };
    let (mut wal, _) = Wal::open(disk.clone(), DIR, config, &mut keep).unwrap();
    for index in 2..=16 {
        wal.append(&[replicate(op(1, index))]).unwrap();
    }
    wal.sync().unwrap();
    drop(wal);
    let has = |sequence: u64, magic: &[u8]| {
        let bytes = disk::read_file(&*disk, &segment_path(DIR, sequence)).unwrap();
        bytes.windows(4).any(|window| window == magic)
    };
    assert!(has(1, b"NYWB") && !has(1, b"NYWC"), "an older build must still read what it began");
    assert!(has(2, b"NYWC"));
    let mut again = Vec::new();
    let mut keep = |entry| {
        again.push(entry);
        Ok(())
    };
    Wal::open(disk.clone(), DIR, config, &mut keep).unwrap();
    let expected: Vec<LogEntry> =
        first.into_iter().chain((2..=16).map(|index| replicate(op(1, index)))).collect();
    assert_eq!((found.as_slice(), again.as_slice()), (&expected[..2], &expected[..]));
}

#[test]
fn entries_that_members_need_are_spared_up_to_a_limit() {
    let disk = Arc::new(MemDisk::new(1));
    let mut wal = Wal::create(disk, DIR, CONFIG).unwrap();
    for index in 1..=40 {
        wal.append(&[replicate(op(1, index))]).unwrap();
    }
    let bytes = wal.bytes();
    assert_eq!(wal.gc_keeping_from(30, 10, u64::MAX).unwrap(), bytes - wal.bytes());
    let first = wal.first_index().unwrap();
    assert!((2..=10).contains(&first), "{first}");
    wal.gc_keeping_from(30, 10, wal.bytes() / 2).unwrap();
    let first = wal.first_index().unwrap();
    assert!((11..=30).contains(&first), "{first}");
    wal.gc_keeping_from(30, 1, 0).unwrap();
    assert!(wal.first_index().unwrap() > 24);
}

#[test]
fn a_log_that_lost_its_end_after_it_was_truncated_is_damaged() {
    let disk = Arc::new(MemDisk::new(1));
    let config = WalConfig { segment_bytes_max: 1 << 20, preallocate: false, compress: true };
    let mut wal = Wal::create(disk.clone(), DIR, config).unwrap();
    wal.append(&[replicate(op(1, 1))]).unwrap();
    let of_one_batch = wal.bytes();
    wal.append(&[replicate(op(1, 2))]).unwrap();
    wal.truncate_after(1).unwrap();
    drop(wal);
    // A new operation 2 here would be taken for the truncated one.
    disk.open(&segment_path(DIR, 1)).unwrap().truncate(of_one_batch).unwrap();
    let error = Wal::open(disk, DIR, config, &mut |_| Ok(())).err().expect("its end is missing");
    assert_eq!(error.kind, ErrorKind::Corrupt);
    assert!(error.message.contains("the log ends here, but was durable up to"), "{error}");
}

/// Returns the first error of a check of all segments of an open log.
fn check_segments(wal: &mut Wal) -> Result<()> {
    check_truncations(&*wal.disk, DIR)?;
    for segment in wal.snapshot()?.segments {
        let mut check = SegmentCheck::new(DIR, segment);
        while check.step()? > 0 {}
    }
    Ok(())
}

#[test]
fn a_flipped_bit_is_detected_while_the_log_is_in_use() {
    let disk = MemDisk::new(0);
    let mut wal = Wal::create(Arc::new(disk.clone()), DIR, CONFIG).unwrap();
    for index in 1..=9 {
        wal.append(&[replicate(op(1, index)), commit(op(1, index))]).unwrap();
    }
    wal.truncate_after(8).unwrap();
    check_segments(&mut wal).unwrap();
    for name in disk.list(DIR).unwrap() {
        let path = format!("{DIR}/{name}");
        let len = disk.open(&path).unwrap().len().unwrap();
        for offset in (0..len).step_by(3) {
            disk.flip_bit(&path, offset).unwrap();
            let error = check_segments(&mut wal).expect_err("a checksum covers each byte");
            assert_eq!(error.kind, ErrorKind::Corrupt, "{name} {offset}: {error}");
            assert!(error.message.contains(&name), "{error}");
            disk.flip_bit(&path, offset).unwrap();
        }
    }
    wal.append(&[replicate(op(2, 9))]).unwrap();
    check_segments(&mut wal).unwrap();
}

#[test]
fn a_check_of_a_segment_reads_it_in_steps() {
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new(0));
    let config = WalConfig { segment_bytes_max: 8 << 20, preallocate: false, compress: false };
    let mut wal = Wal::create(disk, DIR, config).unwrap();
    for index in 1..=4_000 {
        let payload = Bytes::from(vec![index as u8; 1000]);
        let entry = ReplicateEntry { op: op(1, index), timestamp: Timestamp(index), kind: 1, payload };
        wal.append(&[LogEntry::Replicate(entry)]).unwrap();
    }
    let segment = wal.snapshot().unwrap().segments.remove(0);
    let (bytes, mut check) = (segment.bytes, SegmentCheck::new(DIR, segment));
    let steps: Vec<u64> =
        std::iter::from_fn(|| Some(check.step().unwrap()).filter(|step| *step > 0)).collect();
    assert_eq!(steps.iter().sum::<u64>(), bytes);
    // A step ends with the batch that fills a MiB.
    let (last, full) = steps.split_last().unwrap();
    assert!(full.iter().all(|step| (1 << 20..(1 << 20) + 2_000).contains(step)), "{steps:?}");
    assert_eq!((full.len(), *last > 0), (4, true), "{steps:?}");
}
