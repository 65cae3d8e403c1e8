use engine::disk::mem::MemDisk;

use super::*;

/// The operating system's number of a missing right.
const EACCES: i32 = 13;

fn complete(store: &BackupStore, to_ms: u64) -> String {
    let claimed = store.claim("1", "a b", to_ms).expect("a new time");
    let mut part = store.create_part(&claimed.dir, "part").expect("a new file");
    part.write_all(b"rows").expect("space");
    let (bytes, crc32c) = part.finish().expect("space");
    let mut manifest = Manifest::example(("1", "a b"), (0, to_ms));
    let tablet = "t".to_string();
    manifest.parts.push(PartEntry { file: "part".to_string(), tablet, bytes, rows: 1, crc32c });
    manifest.kudu_metadata_crc32c = crc32c::crc32c(b"{}");
    store.complete(&claimed.dir, &manifest, b"{}").expect("space");
    claimed.dir
}

/// Shows the directories of a store by their state.
fn shown(store: &BackupStore) -> String {
    let listing = store.list().expect("a directory");
    let backups = listing.backups.iter().map(|backup| format!("{}: complete", backup.dir));
    let unfinished = listing.unfinished.iter().map(|(dir, _)| {
        let state = if store.run_state(dir) == RunState::Running { "claimed" } else { "unfinished" };
        format!("{dir}: {state}")
    });
    let unreadable = listing.unreadable.iter().map(|found| found.error.message.clone());
    backups.chain(unfinished).chain(unreadable).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_directory_is_claimed_by_one_run() {
    let store = BackupStore::on_disk(Arc::new(MemDisk::new(1)));
    let claimed = store.claim("1", "a b", 10).expect("an empty store");
    assert_eq!(store.run_state(&claimed.dir), RunState::Running);
    let error = store.claim("1", "a b", 10).err().expect("it is claimed");
    assert_eq!(error.kind, ErrorKind::AlreadyPresent);
    assert_eq!(shown(&store), "1-a+b/10: claimed");
    drop(claimed);
    assert_eq!(shown(&store), "1-a+b/10: unfinished");
    // Remains are not written to either.
    assert!(store.claim("1", "a b", 10).is_err());
}

#[test]
fn a_backup_without_its_last_file_does_not_exist() {
    let disk = MemDisk::new(1);
    let store = BackupStore::on_disk(Arc::new(disk.clone()));
    let dirs = [10, 20, 30].map(|to_ms| complete(&store, to_ms));
    disk.create("readme-first").expect("a file is no table");
    disk.remove(&format!("{}/{KUDU_METADATA}", dirs[0])).expect("a file");
    disk.remove(&format!("{}/{MANIFEST}", dirs[1])).expect("a file");
    insta::assert_snapshot!(shown(&store), @r"
    1-a+b/30: complete
    1-a+b/10: unfinished
    store/1-a+b/20: no .nyala-manifest.json; the file was lost
    ");
    dirs.iter().for_each(|dir| store.remove(dir).expect("a directory"));
    assert_eq!(shown(&store), "");
}

#[test]
fn a_removal_that_power_cuts_leaves_no_damaged_backup() {
    for cut in 1.. {
        let disk = MemDisk::new(cut);
        let store = BackupStore::on_disk(Arc::new(disk.clone()));
        let dir = complete(&store, 10);
        disk.cut_power_at(cut);
        let removed = store.remove(&dir);
        if removed.is_ok() {
            return;
        }
        disk.crash();
        let listing = store.list().expect("a directory");
        assert!(listing.unreadable.is_empty(), "cut {cut}: {}", shown(&store));
        for backup in &listing.backups {
            store.verify(backup).expect("a whole backup");
        }
        // What is left can be removed later.
        let is_listed = !listing.backups.is_empty() || !listing.unfinished.is_empty();
        let files = disk.list(&dir).unwrap_or_default();
        assert!(is_listed || files.is_empty(), "cut {cut}: {files:?}");
    }
}

#[test]
fn remains_of_a_removal_are_listed_and_removed() {
    for is_kudus in [false, true] {
        let disk = MemDisk::new(1);
        let store = BackupStore::on_disk(Arc::new(disk.clone()));
        let dir = complete(&store, 10);
        let nyalas = [CLAIM, MANIFEST].into_iter().filter(|_| is_kudus);
        nyalas.for_each(|file| disk.remove(&format!("{dir}/{file}")).expect("a file"));
        let within = format!("{dir}/other/within");
        disk.create_dir(&within).expect("a directory");
        store.remove(&dir).expect_err("a directory that is not empty");
        assert_eq!(shown(&store), "1-a+b/10: unfinished");
        disk.remove(&within).expect("an empty directory");
        store.remove(&dir).expect("a directory");
        assert_eq!(shown(&store), "");
    }
}

#[test]
fn damage_is_named() {
    let disk = MemDisk::new(1);
    let store = BackupStore::on_disk(Arc::new(disk.clone()));
    let dir = complete(&store, 10);
    let backup = store.list().expect("a directory").backups.remove(0);
    store.verify(&backup).expect("a whole backup");
    let mut found = Vec::new();
    for file in ["part", KUDU_METADATA] {
        disk.flip_bit(&format!("{dir}/{file}"), 1).expect("a file");
        found.push(store.verify(&backup).expect_err("damage").message);
        disk.flip_bit(&format!("{dir}/{file}"), 1).expect("a file");
    }
    disk.flip_bit(&format!("{dir}/{MANIFEST}"), 100).expect("a file");
    found.push(shown(&store));
    let want = [
        "store/1-a+b/10/part: the checksum is ",
        "store/1-a+b/10/.kudu-metadata.json: the checksum is ",
        "store/1-a+b/10: .nyala-manifest.json: ",
    ];
    for (found, want) in found.iter().zip(want) {
        assert!(found.starts_with(want), "{found}");
    }
}

#[test]
fn a_backup_that_may_not_be_read_is_not_called_damaged() {
    let disk = MemDisk::new(1);
    let store = BackupStore::on_disk(Arc::new(disk.clone()));
    complete(&store, 10);
    let backup = store.list().expect("a directory").backups.remove(0);
    // Operations 1 and 2 list the tables and the runs of one.
    disk.fail_op(3, EACCES);
    let listed = store.list().expect("a directory").unreadable.remove(0).error;
    disk.fail_op(1, EACCES);
    let verified = store.verify(&backup).expect_err("its metadata may not be read");
    for error in [listed, verified] {
        assert_eq!(error.kind, ErrorKind::Io, "{error}");
        assert!(error.message.ends_with("Permission denied (os error 13)"), "{error}");
    }
}

#[test]
fn a_run_whose_lock_may_not_be_taken_is_not_called_ended() {
    let disk = MemDisk::new(1);
    let store = BackupStore::on_disk(Arc::new(disk.clone()));
    let claimed = store.claim("1", "a b", 10).expect("an empty store");
    // The claim is opened and locked.
    for operation in [1, 2] {
        disk.fail_op(operation, EACCES);
        assert_eq!(store.run_state(&claimed.dir), RunState::Unknown, "operation {operation}");
    }
    assert_eq!(store.run_state(&claimed.dir), RunState::Running);
    assert_eq!(store.run_state("1-a+b/20"), RunState::Ended, "no run has claimed it");
}

#[test]
fn stores_are_directories() {
    assert_eq!(root_of("file:///a/b/"), Ok("/a/b"));
    assert_eq!(root_of("/"), Ok("/"));
    assert_eq!(root_of("b"), Ok("b"));
    for scheme in ["s3", "gs", "az", "https"] {
        let error = root_of(&format!("{scheme}://user:secret@bucket/path")).expect_err("no directory");
        assert_eq!(error.kind, ErrorKind::Unsupported);
        assert!(
            error.message.contains(&format!("a location of kind {scheme}:// is no directory")),
            "{error}"
        );
        assert!(!error.message.contains("secret"), "{error}");
    }
    assert_eq!(escape_name("a-b_c.d*é/"), "a-b_c.d*%C3%A9%2F");
}
