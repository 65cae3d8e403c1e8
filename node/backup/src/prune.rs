//! Directories that no restore needs any more.

use super::chain::prunable;
use super::storage::RunState;
use super::store::{BackupStore, StoreListing};

/// Age at which the remains of an interrupted run go.
const REMAINS_AGE_MS: u64 = 24 * 60 * 60 * 1000;

/// Returns the directories to remove: backups that no restore to the last `keep_ms` reads, and remains older than a
/// day. Tables with a backup that cannot be read keep all.
pub fn expired(store: &BackupStore, listing: &StoreListing, now_ms: u64, keep_ms: u64) -> Vec<String> {
    let mut dirs = Vec::new();
    for id in listing.table_ids() {
        if listing.unreadable.iter().any(|unreadable| unreadable.table_id == id) {
            continue;
        }
        let of_table = listing.of_table(id);
        let spans: Vec<_> = of_table.iter().map(|backup| backup.manifest.span()).collect();
        let removed = prunable(&spans, now_ms.saturating_sub(keep_ms));
        dirs.extend(removed.into_iter().map(|i| of_table[i].dir.clone()));
    }
    let is_remains = |(dir, ms): &&(String, u64)| {
        ms.saturating_add(REMAINS_AGE_MS) < now_ms && store.run_state(dir) == RunState::Ended
    };
    dirs.extend(listing.unfinished.iter().filter(is_remains).map(|(dir, _)| dir.clone()));
    dirs
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use engine::disk::Disk;
    use engine::disk::mem::MemDisk;

    use super::*;
    use crate::kudu_metadata::KUDU_METADATA;
    use crate::manifest::{MANIFEST, Manifest};

    #[test]
    fn remains_go_after_a_day_and_tables_with_damage_keep_all() {
        let disk = MemDisk::new(1);
        let store = BackupStore::on_disk(Arc::new(disk.clone()));
        let now = 10 * REMAINS_AGE_MS;
        let complete = |table: (&str, &str), to_ms: u64| {
            let claimed = store.claim(table.0, table.1, to_ms).expect("a new time");
            let manifest = Manifest::example(table, (0, to_ms));
            store.complete(&claimed.dir, &manifest, b"{}").expect("space");
            claimed.dir
        };
        for table in [("1", "whole"), ("2", "damaged")] {
            for to_ms in [1, 2, now] {
                complete(table, to_ms);
            }
        }
        let damaged = complete(("2", "damaged"), 3);
        disk.flip_bit(&format!("{damaged}/{MANIFEST}"), 100).expect("a file");
        let unfinished = [now - REMAINS_AGE_MS, now - REMAINS_AGE_MS - 1].map(|to_ms| {
            let dir = complete(("3", "unfinished"), to_ms);
            disk.remove(&format!("{dir}/{KUDU_METADATA}")).expect("a file");
            dir
        });
        let running = store.claim("4", "running", 1).expect("a new time");
        let future = store.claim("5", "future", u64::MAX).expect("a new time");
        drop(future);
        let listing = store.list().expect("a directory");
        assert_eq!(listing.unfinished.len(), unfinished.len() + 2);
        let mut found = expired(&store, &listing, now, 1);
        found.sort();
        // The state of 2 is the oldest that can still be asked for.
        assert_eq!(found, ["1-whole/1", unfinished[1].as_str()]);
        drop(running);
        assert!(expired(&store, &listing, now, 1).contains(&"4-running/1".to_string()));
    }

    #[test]
    fn files_of_another_program_stay() {
        let disk = MemDisk::new(1);
        let store = BackupStore::on_disk(Arc::new(disk.clone()));
        // A directory, and a file in the place of one.
        disk.create_dir("web-logs/2024").expect("an empty disk");
        for file in ["web-logs/2024/access.log", "web-logs/2025"] {
            disk.create(file).expect("a new name");
        }
        drop(store.claim("1", "interrupted", 1).expect("a new time"));
        let listing = store.list().expect("a directory");
        assert!(listing.unreadable.is_empty(), "{:?}", listing.unreadable);
        assert_eq!(expired(&store, &listing, 10 * REMAINS_AGE_MS, 1), ["1-interrupted/1"]);
    }
}
