//! Progress of a restore: an empty file in the store, the mark, for each file whose rows are in the new table.
//!
//! `<root>/.nyala-restore-<id of the new table>/<T in ms>.<file>`. A resumed restore skips the files before the first
//! one without a mark, and writes that one and all later ones, even those with a mark:
//!
//! ```text
//! files, as applied   full/0   full/1   inc/0
//! marks               yes      lost     yes        full/0 is skipped, full/1 and inc/0 are written
//! ```
//!
//! Invariant: of the files that the next run skips, none was written after a later one. Otherwise older rows would have
//! replaced newer ones. Hence:
//!
//! - Before a run writes its first file, it removes the marks of later ones. If that fails, it adds none, so that the
//!   next run meets the same file without a mark.
//! - Once a mark failed, the run adds no more: a mark that is reported as failed may still get into the store.
//! - A restore whose marks cannot be listed fails.
//!
//! Where the store cannot be written, a resumed restore begins with the first file; it writes the same rows again.

use std::collections::BTreeSet;

use engine::error::Result;

use super::manifest::PartEntry;
use super::store::{BackupStore, StoredBackup};

pub(crate) struct RestoreProgress {
    store: BackupStore,
    dir: String,
    stage: ProgressStage,
}

enum ProgressStage {
    /// All files so far had a mark. The set has the marks of other files.
    Skipping(BTreeSet<String>),
    /// Files are written and marked.
    Marking,
    /// Files are written without marks.
    Unmarked,
}

fn mark(backup: &StoredBackup, part: &PartEntry) -> String {
    format!("{}.{}", backup.manifest.to_ms, part.file)
}

impl RestoreProgress {
    /// Reads the progress of the restore to a table.
    pub(crate) fn open(store: &BackupStore, table_id: &str) -> Result<RestoreProgress> {
        let dir = format!(".nyala-restore-{table_id}");
        let stage = ProgressStage::Skipping(store.marks(&dir)?);
        Ok(RestoreProgress { store: store.clone(), dir, stage })
    }

    /// Returns true if a file need not be written: it and all files before it have marks.
    ///
    /// Order: called for all files, in the order in which they are applied.
    pub(crate) fn skips(&mut self, backup: &StoredBackup, part: &PartEntry) -> bool {
        let ProgressStage::Skipping(marks) = &mut self.stage else { return false };
        if marks.remove(&mark(backup, part)) {
            return true;
        }
        self.stage = match self.store.remove_marks(&self.dir, marks) {
            Ok(()) => ProgressStage::Marking,
            Err(_) => ProgressStage::Unmarked,
        };
        false
    }

    /// Marks a file, all rows of which are in the table, unless an earlier mark failed.
    pub(crate) fn add(&mut self, backup: &StoredBackup, part: &PartEntry) {
        let marks = matches!(self.stage, ProgressStage::Marking);
        if marks && self.store.add_mark(&self.dir, &mark(backup, part)).is_err() {
            self.stage = ProgressStage::Unmarked;
        }
    }

    pub(crate) fn remove(self) {
        // Marks that stay are of a table that no restore writes to.
        let _ = self.store.remove(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use engine::disk::Disk;
    use engine::disk::mem::{DiskOpKind, MemDisk};
    use engine::error::ErrorKind;

    use super::*;
    use crate::manifest::Manifest;

    const DIR: &str = ".nyala-restore-u";
    /// The operating system's number of an input/output error.
    const EIO: i32 = 5;

    /// Returns the files of a chain of two backups in the order in which they are applied.
    fn files() -> Vec<(StoredBackup, PartEntry)> {
        let file = |(from_ms, to_ms, number)| {
            let manifest = Manifest::example(("1", "t"), (from_ms, to_ms));
            let (file, tablet) = (format!("part-{number}"), "tablet".to_string());
            let part = PartEntry { file, tablet, bytes: 0, rows: 0, crc32c: 0 };
            (StoredBackup { dir: format!("1-t/{to_ms}"), manifest }, part)
        };
        [(0, 10, 0), (0, 10, 1), (10, 20, 0), (10, 20, 1)].map(file).into()
    }

    /// A disk that outlives the runs of a restore.
    struct World {
        disk: MemDisk,
        store: BackupStore,
    }

    impl World {
        fn new() -> World {
            let disk = MemDisk::new(1);
            World { store: BackupStore::on_disk(Arc::new(disk.clone())), disk }
        }

        /// Restores until `writes_max` files are written, and is interrupted while it writes the next one. Returns the
        /// positions of the files written.
        fn run(&self, writes_max: usize) -> Vec<usize> {
            let mut progress =
                RestoreProgress::open(&self.store, "u").expect("a directory that can be listed");
            let mut written = Vec::new();
            for (at, (backup, part)) in files().iter().enumerate() {
                if progress.skips(backup, part) {
                    continue;
                }
                if written.len() == writes_max {
                    break;
                }
                written.push(at);
                progress.add(backup, part);
            }
            written
        }

        fn marks(&self) -> String {
            let marks = self.store.marks(DIR).expect("a directory that can be listed");
            marks.into_iter().collect::<Vec<_>>().join(" ")
        }

        /// Writes three files and loses the mark of the second one.
        fn with_lost_mark() -> World {
            let world = World::new();
            assert_eq!(world.run(3), [0, 1, 2]);
            world.disk.remove(&format!("{DIR}/10.part-1")).expect("a mark");
            assert_eq!(world.marks(), "10.part-0 20.part-0");
            world
        }
    }

    #[test]
    fn a_resumed_restore_continues_with_the_file_without_a_mark() {
        let world = World::new();
        assert!(world.run(0).is_empty());
        assert_eq!(world.run(1), [0]);
        assert_eq!(world.run(2), [1, 2]);
        assert_eq!(world.marks(), "10.part-0 10.part-1 20.part-0");
        assert_eq!(world.run(4), [3]);
        assert!(world.run(4).is_empty());
        RestoreProgress::open(&world.store, "u").expect("a directory").remove();
        assert_eq!(world.marks(), "");
    }

    #[test]
    fn files_after_a_lost_mark_are_written_again() {
        assert_eq!(World::with_lost_mark().run(4), [1, 2, 3]);
        // Interrupted once more, the older mark of a later file does not count.
        let world = World::with_lost_mark();
        assert_eq!(world.run(1), [1]);
        assert_eq!(world.marks(), "10.part-0 10.part-1");
        assert_eq!(world.run(4), [2, 3]);
    }

    #[test]
    fn while_later_marks_cannot_be_removed_none_is_added() {
        let world = World::with_lost_mark();
        // The first operation lists the directory, the second one removes a mark.
        world.disk.fail_nth(DiskOpKind::Other, 2, EIO);
        assert_eq!(world.run(1), [1]);
        assert_eq!(world.marks(), "10.part-0 20.part-0");
        assert_eq!(world.run(4), [1, 2, 3]);
    }

    #[test]
    fn after_a_mark_that_failed_none_is_added() {
        let world = World::new();
        let mut progress = RestoreProgress::open(&world.store, "u").expect("an empty store");
        for (at, (backup, part)) in files().iter().enumerate() {
            assert!(!progress.skips(backup, part));
            if at == 1 {
                world.disk.fail_some(DiskOpKind::Sync, 1000, EIO);
            }
            progress.add(backup, part);
            world.disk.end_faults();
        }
        assert_eq!(world.marks(), "10.part-0");
        assert_eq!(world.run(4), [1, 2, 3]);
    }

    #[test]
    fn marks_that_cannot_be_listed_fail_the_restore() {
        let world = World::with_lost_mark();
        world.disk.fail_some(DiskOpKind::Other, 1000, EIO);
        let error = RestoreProgress::open(&world.store, "u").err().expect("no operation succeeds");
        assert_eq!(error.kind, ErrorKind::Io, "{error}");
    }
}
