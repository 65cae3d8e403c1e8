//! Logs after a crash: torn ends, and damage anywhere.

use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use bytes::Bytes;
use engine::codec;
use engine::disk::Disk;
use engine::disk::mem::MemDisk;
use engine::ids::OpId;
use engine::time::Timestamp;
use engine::wal::{Commit, Entry, Replicate, Wal, WalConfig};

const DIR: &str = "wal";
const CONFIG: WalConfig = WalConfig { segment_bytes_max: 1024, preallocate: false, compress: true };

/// A log whose only segment is followed by arbitrary bytes, as after a torn write.
pub fn torn(data: &[u8]) {
    let disk = MemDisk::new(1);
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    drop(Wal::create(shared.clone(), DIR, CONFIG).expect("an empty disk takes a log"));
    let names = shared.list(DIR).expect("the log's folder");
    let segment = names.iter().find(|name| shared.open(&format!("{DIR}/{name}")).is_ok());
    let segment = shared.open(&format!("{DIR}/{}", segment.expect("a segment"))).expect("just listed");
    segment.append(data).expect("room");
    let mut entries = 0;
    let mut count = |_: Entry| {
        entries += 1;
        Ok(())
    };
    if let Ok((log, _)) = Wal::open(shared, DIR, CONFIG, &mut count) {
        assert!(entries <= data.len(), "each entry takes bytes");
        assert!(log.failure().is_none());
    }
}

/// What a log's life is: batches of operations of so many bytes, and how often its end is taken back.
#[derive(Debug, Arbitrary)]
pub struct Logs {
    pub batches: Vec<(u8, u16)>,
    /// After so many batches, operations above an index are void.
    pub truncate: Option<(u8, u8)>,
    /// Where the files are damaged, counted over all of them in order, and with what.
    pub damage: Vec<(u16, u8)>,
    /// The last file loses so many bytes.
    pub cut: u16,
}

impl Logs {
    /// Writes the log; gives its operations, by index from 1.
    fn write(&self, disk: &MemDisk) -> Vec<Replicate> {
        let mut log = Wal::create(Arc::new(disk.clone()), DIR, CONFIG).expect("an empty disk takes a log");
        let mut ops: Vec<Replicate> = Vec::new();
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
                let replicate = Replicate { op, timestamp: Timestamp(op.index), kind: 1, payload };
                batch.push(Entry::Replicate(replicate.clone()));
                ops.push(replicate);
            }
            let last = ops.last().map_or(OpId::MIN, |entry| entry.op);
            batch.push(Entry::Commit(Commit { op: last, payload: Bytes::from_static(b"done") }));
            log.append(&batch).expect("a sound disk");
        }
        log.sync().expect("a sound disk");
        ops
    }

    /// The log's files with the damage done to them, on another disk. False if that changed nothing.
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

/// A sound log beside whatever list of truncations, in an envelope that is sound: it opens with operations that were
/// written, or says that it cannot be read; and what opened can be written to and opened again.
pub fn truncations(data: &[u8]) {
    let batches = (1..=6).map(|i| (i, 100 * u16::from(i))).collect();
    let disk = MemDisk::new(1);
    let written = Logs { batches, truncate: None, damage: Vec::new(), cut: 0 }.write(&disk);
    let list = disk.create(&format!("{DIR}/truncations")).expect("there was none");
    list.append(&codec::seal(*b"NYWT", 1, data)).expect("room");
    list.sync().expect("a sound disk");
    let Ok((mut log, found)) = operations(&disk) else { return };
    assert!(found.iter().all(|entry| written.contains(entry)), "operations that nobody wrote: {found:?}");
    let last = log.last_op();
    let op = OpId { term: last.term.max(1), index: last.index + 1 };
    let next =
        Replicate { op, timestamp: Timestamp(op.index), kind: 1, payload: Bytes::from_static(b"next") };
    log.append(&[Entry::Replicate(next.clone())]).expect("it follows");
    log.sync().expect("a sound disk");
    drop(log);
    let (_, again) = operations(&disk).expect("it was sound before");
    assert_eq!(again.last(), Some(&next));
}

/// Opens a log; gives its operations too.
fn operations(disk: &MemDisk) -> engine::error::Result<(Wal, Vec<Replicate>)> {
    let mut found = Vec::new();
    let mut keep = |entry: Entry| {
        if let Entry::Replicate(entry) = entry {
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

/// A log with damage opens with a beginning of what was written, or says that it cannot be read.
pub fn damaged(data: &[u8]) {
    let Ok(logs) = Logs::arbitrary(&mut Unstructured::new(data)) else { return };
    let (disk, to) = (MemDisk::new(1), MemDisk::new(2));
    let written = logs.write(&disk);
    let changed = logs.damaged(&disk, &to);
    let opened = operations(&to);
    assert!(changed || opened.is_ok(), "a sound log cannot be opened: {:?}", opened.err());
    let Ok((log, found)) = opened else { return };
    // What was taken back may lie in the segments still, where the list of truncations was lost with the damage.
    let kept = written.iter().zip(&found).take_while(|(a, b)| a == b).count();
    assert!(changed || kept == written.len(), "{kept} of {} operations", written.len());
    assert!(kept == found.len() || logs.truncate.is_some(), "operations that nobody wrote: {found:?}");
    assert_eq!(log.last_op(), found.last().map_or(OpId::MIN, |entry| entry.op));
}
