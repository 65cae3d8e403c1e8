//! Progress of a restore: an empty file in the store for each file whose rows are in the new table.
//!
//! `<root>/.nyala-restore-<id of the new table>/<T in ms>.<file>`. Where the store cannot be written, a resumed restore
//! begins with the first file; it writes the same rows again.

use std::collections::BTreeSet;

use super::manifest::PartEntry;
use super::store::{BackupStore, StoredBackup};

pub(crate) struct RestoreProgress {
    store: BackupStore,
    dir: String,
    done: BTreeSet<String>,
}

fn mark(backup: &StoredBackup, part: &PartEntry) -> String {
    format!("{}.{}", backup.manifest.to_ms, part.file)
}

impl RestoreProgress {
    /// Reads the progress of the restore to a table.
    pub(crate) fn open(store: &BackupStore, table_id: &str) -> RestoreProgress {
        let dir = format!(".nyala-restore-{table_id}");
        let done = store.marks(&dir);
        RestoreProgress { store: store.clone(), dir, done }
    }

    pub(crate) fn is_done(&self, backup: &StoredBackup, part: &PartEntry) -> bool {
        self.done.contains(&mark(backup, part))
    }

    pub(crate) fn add(&self, backup: &StoredBackup, part: &PartEntry) {
        self.store.add_mark(&self.dir, &mark(backup, part));
    }

    pub(crate) fn remove(self) {
        // Marks that stay are of a table that no restore writes to.
        let _ = self.store.remove(&self.dir);
    }
}
