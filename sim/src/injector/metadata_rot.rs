//! Bit rot of files of tablets that hold no rows: logs, superblocks, consensus metadata.

use engine::disk::mem::MemDisk;
use engine::disk::{Disk, read_file};

use super::FaultInjector;
use crate::server_files::{CONSENSUS, LOGS, files_in, is_whole, segments};
use sim_plan::faults::MetadataKind;

/// Directory of tablets' superblocks.
const SUPERBLOCKS: &str = "tablet-meta";

impl FaultInjector {
    /// Flips bits of random files of a kind, which are on this disk; returns the number of bits flipped.
    pub(super) fn rot_metadata(&mut self, disk: &MemDisk, kind: MetadataKind, bits: u8) -> u64 {
        // Faults of the device are for operations of the server: the files are listed elsewhere.
        let image = disk.image();
        let files = match kind {
            MetadataKind::Log => full_segments(&image),
            MetadataKind::Superblock => files_in(&image, SUPERBLOCKS, is_whole),
            MetadataKind::Consensus => files_in(&image, CONSENSUS, is_whole),
        };
        let mut flipped = 0;
        for _ in 0..bits {
            if files.is_empty() {
                break;
            }
            let file = &files[self.draw.below(files.len() as u64) as usize];
            let len = read_file(&image, file).map_or(0, |bytes| bytes.len() as u64);
            flipped += u64::from(disk.flip_bit(file, self.draw.below(len)).is_ok());
        }
        flipped
    }
}

/// Returns the log segments of all tablets but each one's last.
fn full_segments(disk: &MemDisk) -> Vec<String> {
    let tablets = disk.list(LOGS).unwrap_or_default();
    let full = |tablet: String| {
        let mut segments = segments(disk, &format!("{LOGS}/{tablet}"));
        segments.pop();
        segments
    };
    tablets.into_iter().flat_map(full).collect()
}
