//! Logs after a crash: torn tails, and damage at any offset.

use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use bytes::Bytes;
use engine::codec;
use engine::disk::Disk;
use engine::disk::mem::MemDisk;
use engine::ids::OpId;
use engine::time::Timestamp;
use engine::wal::{CommitEntry, LogEntry, ReplicateEntry, Wal, WalConfig};

const DIR: &str = "wal";
const CONFIG: WalConfig = WalConfig { segment_bytes_max: 1024, preallocate: false, compress: true };

/// Checks a log whose only segment is followed by arbitrary bytes, as after a torn write.
pub(super) fn torn(data: &[u8]) {
    let disk = MemDisk::new(1);
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    drop(Wal::create(shared.clone(), DIR, CONFIG).expect("an empty disk takes a log"));
    let names = shared.list(DIR).expect("the log's folder");
    let segment = names.iter().find(|name| shared.open(&format!("{DIR}/{name}")).is_ok());
    let segment = shared.open(&format!("{DIR}/{}", segment.expect("a segment"))).expect("just listed");
    segment.append(data).expect("room");
    let mut entries = 0;
    let mut count = |_: LogEntry| {
        entries += 1;
        Ok(())
    };
    if let Ok((log, _)) = Wal::open(shared, DIR, CONFIG, &mut count) {
        assert!(entries <= data.len(), "each entry takes bytes");
        assert!(log.failure().is_none());
    }
}

/// History of a log: batches of operations with their sizes, and truncations.
#[derive(Debug, Arbitrary)]
pub(super) struct WalLifetime {
    pub batches: Vec<(u8, u16)>,
    /// Number of batches, and the index above which operations are truncated after them.
    pub truncate: Option<(u8, u8)>,
    /// Damage: offset, counted over all files in order, and the byte to xor.
    pub damage: Vec<(u16, u8)>,
    /// Bytes that the last file loses.
    pub cut: u16,
}

impl WalLifetime {
    /// Writes the log; returns its operations, by index from 1.
    fn write(&self, disk: &MemDisk) -> Vec<ReplicateEntry> {
        let mut log = Wal::create(Arc::new(disk.clone()), DIR, CONFIG).expect("an empty disk takes a log");
        let mut ops: Vec<ReplicateEntry> = Vec::new();
        let mut term = 1;
        for (i, (count, bytes)) in self.batches.iter().take(32).enumerate() {
            if let Some((_, index)) = self.truncate.filter(|(after, _)| usize::from(*after) == i) {
                ops.truncate(index.into());
                log.truncate_after(ops.len() as u64).expect("a sound disk");
                term += 1;
            }
            let mut batch = Vec::new();
            for _ in 0..count % 4 {
                let op = OpId { term, index: ops.len() as u64 + 1 };
                let payload = Bytes::from(vec![op.index as u8; usize::from(bytes % 600)]);
                let replicate = ReplicateEntry { op, timestamp: Timestamp(op.index), kind: 1, payload };
                batch.push(LogEntry::Replicate(replicate.clone()));
                ops.push(replicate);
            }
            let last = ops.last().map_or(OpId::MIN, |entry| entry.op);
            batch.push(LogEntry::Commit(CommitEntry { op: last, payload: Bytes::from_static(b"done") }));
            log.append(&batch).expect("a sound disk");
        }
        log.sync().expect("a sound disk");
        ops
    }

    /// Copies the log's files with the damage to another disk. Returns false if nothing changed.
    fn damaged(&self, disk: &MemDisk, to: &MemDisk) -> bool {
        let mut names = disk.list(DIR).expect("the log's folder");
        names.sort();
        let mut files: Vec<Vec<u8>> = names.iter().map(|name| contents(disk, name)).collect();
        let before = files.clone();
        let total: usize = files.iter().map(Vec::len).sum();
        for (at, with) in &self.damage {
            let mut at = usize::from(*at) % total.max(1);
            for file in &mut files {
                if let Some(byte) = file.get_mut(at) {
                    *byte ^= with;
                    break;
                }
                at -= file.len();
            }
        }
        if let Some(last) = files.last_mut() {
            last.truncate(last.len().saturating_sub(self.cut.into()));
        }
        to.create_dir(DIR).expect("an empty disk");
        for (name, bytes) in names.iter().zip(&files) {
            to.create(&format!("{DIR}/{name}")).expect("a new name").append(bytes).expect("room");
        }
        files != before
    }
}

/// Checks a sound log beside an arbitrary list of truncations in a correct envelope: it opens with operations that
/// were written, or fails; an opened log can be appended to and opened again.
pub(super) fn truncations(data: &[u8]) {
    let batches = (1..=6).map(|i| (i, 100 * u16::from(i))).collect();
    let disk = MemDisk::new(1);
    let written = WalLifetime { batches, truncate: None, damage: Vec::new(), cut: 0 }.write(&disk);
    let list = disk.create(&format!("{DIR}/truncations")).expect("there was none");
    list.append(&codec::seal(*b"NYWT", 1, data)).expect("room");
    list.sync().expect("a sound disk");
    let Ok((mut log, found)) = operations(&disk) else { return };
    assert!(found.iter().all(|entry| written.contains(entry)), "operations that nobody wrote: {found:?}");
    let last = log.last_op();
    let op = OpId { term: last.term.max(1), index: last.index + 1 };
    let next =
        ReplicateEntry { op, timestamp: Timestamp(op.index), kind: 1, payload: Bytes::from_static(b"next") };
    log.append(&[LogEntry::Replicate(next.clone())]).expect("it follows");
    log.sync().expect("a sound disk");
    drop(log);
    let (_, again) = operations(&disk).expect("it was sound before");
    assert_eq!(again.last(), Some(&next));
}

/// Opens a log; returns its operations too.
fn operations(disk: &MemDisk) -> engine::error::Result<(Wal, Vec<ReplicateEntry>)> {
    let mut found = Vec::new();
    let mut keep = |entry: LogEntry| {
        if let LogEntry::Replicate(entry) = entry {
            found.push(entry);
        }
        Ok(())
    };
    let (log, _) = Wal::open(Arc::new(disk.clone()), DIR, CONFIG, &mut keep)?;
    Ok((log, found))
}

fn contents(disk: &MemDisk, name: &str) -> Vec<u8> {
    let file = disk.open(&format!("{DIR}/{name}")).expect("just listed");
    let mut bytes = vec![0; file.len().expect("its length") as usize];
    file.read_at(0, &mut bytes).expect("all of it");
    bytes
}

/// Checks that a damaged log opens with a prefix of what was written, or fails.
pub(super) fn damaged(data: &[u8]) {
    let Ok(logs) = WalLifetime::arbitrary(&mut Unstructured::new(data)) else { return };
    let (disk, to) = (MemDisk::new(1), MemDisk::new(2));
    let written = logs.write(&disk);
    let changed = logs.damaged(&disk, &to);
    let opened = operations(&to);
    assert!(changed || opened.is_ok(), "a sound log cannot be opened: {:?}", opened.err());
    let Ok((log, found)) = opened else { return };
    // Truncated operations may still be in the segments if the damage lost the list of truncations.
    let kept = written.iter().zip(&found).take_while(|(a, b)| a == b).count();
    assert!(changed || kept == written.len(), "{kept} of {} operations", written.len());
    assert!(kept == found.len() || logs.truncate.is_some(), "operations that nobody wrote: {found:?}");
    assert_eq!(log.last_op(), found.last().map_or(OpId::MIN, |entry| entry.op));
}
