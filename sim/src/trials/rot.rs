//! Rot in the files of a closed replica.

use engine::disk::Disk;
use engine::disk::mem::MemDisk;
use sim_plan::RandomStream;

/// Returns the files of a folder that are durable as a whole: not those being written, nor the last segment of a log,
/// whose end may be torn.
pub(super) fn whole_files(disk: &MemDisk, dir: &str) -> Vec<String> {
    let mut names = disk.list(dir).unwrap_or_default();
    names.sort();
    names.retain(|name| !name.ends_with(".tmp"));
    if names.iter().any(|name| name.ends_with(".wal")) {
        names.retain(|name| name.ends_with(".wal"));
        names.pop();
    }
    names.into_iter().map(|name| format!("{dir}/{name}")).collect()
}

/// Changes a bit of one of these files; returns its path, or `None` if none can be damaged.
pub(super) fn damage(random: &mut RandomStream, disk: &MemDisk, files: &[String]) -> Option<String> {
    if files.is_empty() {
        return None;
    }
    let path = files[random.below(files.len() as u64) as usize].clone();
    let bytes = disk.open(&path).ok()?.len().ok().filter(|bytes| *bytes > 0)?;
    disk.flip_bit(&path, random.below(bytes)).ok()?;
    Some(path)
}
