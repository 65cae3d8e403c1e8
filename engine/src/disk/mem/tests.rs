//! Effects of crashes, failures and a full device on files and names.

use proptest::prelude::*;

use super::*;
use crate::disk::{create_dir_durably, read_file, replace_file};

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// Creates a file with this durable content.
fn durable_file(disk: &MemDisk, path: &str, bytes: &[u8]) -> Arc<dyn DiskFile> {
    let file = disk.create(path).unwrap();
    file.append(bytes).unwrap();
    file.sync().unwrap();
    disk.sync_dir(crate::disk::parent(path)).unwrap();
    file
}

#[test]
fn a_crash_keeps_synced_bytes_and_a_prefix_of_later_ones() {
    let (mut lengths, mut zeros) = (BTreeSet::new(), 0);
    for seed in 0..200 {
        let disk = MemDisk::new(seed);
        let file = durable_file(&disk, "f", &[1; 700]);
        for _ in 0..3 {
            file.append(&[2; 1000]).unwrap();
        }
        disk.crash();
        assert_eq!(errno(file.append(b"x")), Some(Errno::STALE.raw_os_error()));
        let after = read_file(&disk, "f").unwrap();
        assert_eq!(after[..700], [1; 700], "seed {seed}");
        let rest = &after[700..];
        assert!(rest.iter().all(|byte| [0, 2].contains(byte)), "seed {seed}");
        zeros += usize::from(rest.contains(&0));
        lengths.insert(after.len());
    }
    let has = |len| lengths.contains(&len);
    assert!(has(700) && has(1700) && has(2700) && has(3700), "{lengths:?}");
    assert!(has(1024) && has(1536), "torn at sectors: {lengths:?}");
    assert!(zeros > 5, "sectors that were never written: {zeros}");
}

#[test]
fn torn_writes_end_at_sectors() {
    for seed in 0..100 {
        let disk = MemDisk::new(seed);
        durable_file(&disk, "f", &[1; 100]).append(&[2; 2000]).unwrap();
        disk.crash();
        let after = read_file(&disk, "f").unwrap();
        for (sector, bytes) in after.chunks(512).enumerate() {
            let own = &bytes[if sector == 0 { 100 } else { 0 }..];
            assert!(own.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed} sector {sector}");
        }
    }
}

#[test]
fn names_are_lost_without_a_sync_of_their_directory() {
    let mut seen = BTreeSet::new();
    for seed in 0..60 {
        let disk = MemDisk::new(seed);
        durable_file(&disk, "old", b"");
        disk.create("a").unwrap().sync().unwrap();
        disk.remove("old").unwrap();
        disk.create("b").unwrap();
        disk.crash();
        seen.insert(disk.list("").unwrap().join(" "));
    }
    let wanted = ["a b", "a", "a old", "old"].map(str::to_string);
    assert_eq!(seen, BTreeSet::from(wanted), "a prefix of the changes, each of them possible");
}

#[test]
fn a_synced_directory_keeps_its_names_if_it_keeps_its_own() {
    let (mut kept, mut lost) = (0, 0);
    for seed in 0..40 {
        let disk = MemDisk::new(seed);
        disk.create_dir("d").unwrap();
        durable_file(&disk, "d/f", b"content");
        disk.crash();
        match disk.list("d") {
            Ok(names) => {
                kept += 1;
                assert_eq!(names, ["f"]);
            }
            Err(error) => {
                lost += 1;
                assert_eq!(error.raw_os_error(), Some(Errno::NOENT.raw_os_error()));
            }
        }
    }
    assert!(kept > 5 && lost > 5, "kept {kept}, lost {lost}");
    let disk = MemDisk::new(0);
    create_dir_durably(&disk, "a/b").unwrap();
    durable_file(&disk, "a/b/f", b"content");
    disk.crash();
    assert_eq!(read_file(&disk, "a/b/f").unwrap(), b"content");
}

#[test]
fn a_replaced_file_is_the_old_or_the_new_one() {
    for k in 1..20 {
        for seed in 0..20 {
            let disk = MemDisk::new(seed);
            replace_file(&disk, "f", b"old").unwrap();
            disk.cut_power_at(k);
            let done = replace_file(&disk, "f", b"new").is_ok();
            disk.crash();
            let after = read_file(&disk, "f").unwrap();
            assert!(after == b"new" || (!done && after == b"old"), "k={k} seed={seed}: {after:?}");
        }
    }
}

#[test]
fn after_a_failed_sync_bytes_are_readable_but_not_durable() {
    for seed in 0..20 {
        let disk = MemDisk::new(seed);
        let file = durable_file(&disk, "f", b"kept");
        file.append(b"gone").unwrap();
        disk.fail_op(1, Errno::IO.raw_os_error());
        assert_eq!(errno(file.sync()), Some(Errno::IO.raw_os_error()));
        file.sync().unwrap();
        assert_eq!(read_file(&disk, "f").unwrap(), b"keptgone");
        file.append(b"later").unwrap();
        file.sync().unwrap();
        disk.crash();
        assert_eq!(read_file(&disk, "f").unwrap(), b"kept\0\0\0\0later");
        assert_eq!(disk.fault_counts().syncs_failed, 1);
    }
}

#[test]
fn the_kth_operation_fails_with_the_given_errno() {
    let disk = MemDisk::new(1);
    let before = disk.op_count();
    disk.fail_op(2, Errno::NOSPC.raw_os_error());
    disk.fail_op(4, Errno::IO.raw_os_error());
    let file = disk.create("f").unwrap();
    assert_eq!(errno(file.append(b"12345678")), Some(Errno::NOSPC.raw_os_error()));
    assert!(file.len().unwrap() <= 8);
    file.truncate(0).unwrap();
    assert_eq!(errno(disk.rename("f", "g")), Some(Errno::IO.raw_os_error()));
    assert_eq!(disk.list("").unwrap(), ["f"]);
    assert_eq!(disk.op_count() - before, 5);
    assert_eq!(disk.fault_counts().ops_failed, 2);
}

#[test]
fn a_power_cut_lasts_until_the_crash() {
    let disk = MemDisk::new(1);
    let file = disk.create("f").unwrap();
    disk.cut_power_at(2);
    file.append(b"a").unwrap();
    for _ in 0..3 {
        assert_eq!(errno(file.sync()), Some(Errno::IO.raw_os_error()));
    }
    disk.crash();
    disk.list("").unwrap();
}

#[test]
fn a_full_device_takes_a_prefix() {
    let disk = MemDisk::new(1);
    let file = disk.create("f").unwrap();
    disk.set_free(10);
    assert_eq!(errno(file.reserve(11)), Some(Errno::NOSPC.raw_os_error()));
    file.append(b"123456").unwrap();
    assert_eq!(disk.space().unwrap(), DiskSpace { total: 10, free: 4, device: None });
    assert_eq!(errno(file.append(b"789012")), Some(Errno::NOSPC.raw_os_error()));
    assert_eq!(read_file(&disk, "f").unwrap(), b"1234567890");
    file.truncate(6).unwrap();
    assert_eq!(disk.space().unwrap().free, 4);
    disk.remove("f").unwrap();
    assert_eq!(disk.space().unwrap(), DiskSpace { total: 10, free: 10, device: None });
}

#[test]
fn a_second_power_cut_does_not_restore_power() {
    let disk = MemDisk::new(1);
    disk.cut_power_at(1);
    assert!(disk.create("a").is_err() && disk.lost_power());
    disk.cut_power_at(5);
    assert!(disk.lost_power() && disk.create("a").is_err());
    disk.crash();
    assert!(!disk.lost_power() && disk.create("b").is_ok());
}

#[test]
fn a_flipped_bit_persists() {
    let disk = MemDisk::new(1);
    durable_file(&disk, "f", &[0; 10]);
    disk.flip_bit("f", 9).unwrap();
    disk.crash();
    assert_eq!(read_file(&disk, "f").unwrap()[9], 2);
    assert!(disk.flip_bit("f", 10).is_err());
}

#[test]
fn latency_is_taken_once() {
    let disk = MemDisk::new(1);
    disk.create("f").unwrap();
    assert_eq!(disk.take_accrued_latency(), Duration::ZERO);
    let millis = Duration::from_millis;
    disk.set_cost(DiskCost { op: millis(1), kib: millis(10), sync: millis(100) });
    let file = disk.open("f").unwrap();
    file.append(&[0; 2048]).unwrap();
    file.sync().unwrap();
    disk.stall(millis(1000));
    assert_eq!(disk.take_accrued_latency(), millis(1123));
    assert_eq!(disk.take_accrued_latency(), Duration::ZERO);
}

#[test]
fn a_crash_frees_locks() {
    let disk = MemDisk::new(1);
    let old = disk.lock("lock").unwrap();
    disk.crash();
    let _new = disk.lock("lock").unwrap();
    drop(old);
    assert_eq!(errno(disk.lock("lock")), Some(Errno::WOULDBLOCK.raw_os_error()));
}

#[test]
fn the_end_of_a_process_frees_locks_and_keeps_its_writes() {
    let disk = MemDisk::new(1);
    let (old, file) = (disk.lock("lock").unwrap(), disk.create("f").unwrap());
    file.append(b"written").unwrap();
    disk.end_process();
    let _new = disk.lock("lock").unwrap();
    drop(old);
    assert_eq!(errno(disk.lock("lock")), Some(Errno::WOULDBLOCK.raw_os_error()));
    assert_eq!(errno(file.append(b"by the dead")), Some(Errno::STALE.raw_os_error()));
    assert_eq!(read_file(&disk, "f").unwrap(), b"written");
}

#[test]
fn a_power_cut_while_a_lock_is_taken_fails_the_lock() {
    let disk = MemDisk::new(1);
    disk.cut_power_at(1);
    assert_eq!(errno(disk.lock("lock")), Some(Errno::IO.raw_os_error()));
    assert!(disk.lost_power());
    disk.crash();
    drop(disk.lock("lock").unwrap());
}

#[test]
fn a_scattered_crash_may_lose_a_page_before_one_that_it_keeps() {
    let (mut holes, mut whole) = (0, 0);
    for seed in 0..40 {
        let disk = MemDisk::new(seed);
        let file = durable_file(&disk, "f", &[1; 100]);
        for _ in 0..4 {
            file.append(&[2; 4096]).unwrap();
        }
        disk.scatter_unsynced();
        disk.crash();
        let after = read_file(&disk, "f").unwrap();
        let lost = after.iter().position(|byte| *byte == 0);
        let kept = after.iter().rposition(|byte| *byte == 2);
        holes += u64::from(lost.zip(kept).is_some_and(|(lost, kept)| lost < kept));
        whole += u64::from(lost.is_none());
        assert_eq!(lost.is_some(), disk.fault_counts().pages_lost > 0);
        assert!(after.starts_with(&[1; 100]) && (after.len() - 100).is_multiple_of(4096));
        // The next crash is a usual one again.
        durable_file(&disk, "g", &[1; 10]).append(&[2; 10_000]).unwrap();
        disk.crash();
        assert!(read_file(&disk, "g").unwrap().starts_with(&[1; 10]));
    }
    assert!(holes > 5 && whole > 2, "{holes} with holes, {whole} whole");
}

proptest! {
    /// Whatever operations a file saw, a crash keeps the synced bytes, unless they were truncated since.
    #[test]
    fn synced_bytes_outlive_any_crash(
        seed: u64,
        scatter: bool,
        writes in prop::collection::vec((1..1500usize, any::<bool>()), 1..12),
    ) {
        let disk = MemDisk::new(seed);
        let file = durable_file(&disk, "f", b"");
        let (mut all, mut synced) = (Vec::new(), 0);
        for (at, (len, sync)) in writes.into_iter().enumerate() {
            let bytes = vec![at as u8 + 1; len];
            file.append(&bytes).unwrap();
            all.extend_from_slice(&bytes);
            if sync {
                file.sync().unwrap();
                synced = all.len();
            }
        }
        if scatter {
            disk.scatter_unsynced();
        }
        disk.crash();
        let after = read_file(&disk, "f").unwrap();
        prop_assert!(after.len() >= synced && after.len() <= all.len());
        prop_assert_eq!(&after[..synced], &all[..synced]);
        for (found, written) in after.iter().zip(&all) {
            prop_assert!(found == written || *found == 0);
        }
    }

    /// A truncation that was not synced happened or did not; the file is never anything else.
    #[test]
    fn an_unsynced_truncation_is_all_or_nothing(seed: u64, keep in 0..900u64, more in 0..900usize) {
        let disk = MemDisk::new(seed);
        let file = durable_file(&disk, "f", &[1; 900]);
        file.truncate(keep).unwrap();
        file.append(&vec![2; more]).unwrap();
        disk.crash();
        let after = read_file(&disk, "f").unwrap();
        let (old, new) = after.split_at(after.iter().take_while(|byte| **byte == 1).count());
        let cut = old.len() as u64 == keep && new.iter().all(|byte| [0, 2].contains(byte));
        prop_assert!(cut || after == [1; 900]);
    }
}

#[test]
fn a_power_cut_within_a_sync_keeps_older_bytes() {
    let disk = MemDisk::new(5);
    let file = durable_file(&disk, "f", b"kept");
    disk.cut_power_at_nth(DiskOpKind::Sync, 1);
    file.append(b" or not").unwrap();
    assert_eq!(errno(file.sync()), Some(Errno::IO.raw_os_error()));
    assert!(file.append(b"x").is_err(), "there is no power");
    disk.crash();
    assert!(read_file(&disk, "f").unwrap().starts_with(b"kept"));
    assert_eq!(disk.fault_counts().power_cuts_in_sync, 1);
}

#[test]
fn faults_fire_by_kind_and_at_random() {
    let disk = MemDisk::new(5);
    let file = durable_file(&disk, "f", b"a");
    disk.fail_nth(DiskOpKind::Append, 2, Errno::IO.raw_os_error());
    file.append(b"b").unwrap();
    file.sync().unwrap();
    assert!(file.append(b"c").is_err());
    file.append(b"d").unwrap();
    disk.fail_some(DiskOpKind::Read, 500, Errno::IO.raw_os_error());
    let mut byte = [0];
    let failed = (0..200).filter(|_| file.read_at(0, &mut byte).is_err()).count();
    assert!((50..150).contains(&failed), "{failed} of 200");
    disk.fail_some(DiskOpKind::Read, 0, 0);
    file.read_at(0, &mut byte).unwrap();
    assert_eq!(disk.fault_counts().ops_failed, 1 + failed as u64);
}

#[test]
fn a_lost_write_loses_synced_bytes() {
    for seed in 0..20 {
        let disk = MemDisk::new(seed);
        create_dir_durably(&disk, "data").unwrap();
        durable_file(&disk, "data/other", &[1; 100]);
        let file = durable_file(&disk, "data/f", b"first ");
        let vote = durable_file(&disk, "vote", b"");
        let damage = if seed % 2 == 0 { WriteDamage::Lost } else { WriteDamage::Misdirected };
        disk.damage_append(1, damage);
        vote.append(b"yes").unwrap();
        vote.sync().unwrap();
        file.append(b"second").unwrap();
        file.sync().unwrap();
        disk.crash();
        assert_eq!(read_file(&disk, "vote").unwrap(), b"yes", "only files of rows are damaged");
        let after = read_file(&disk, "data/f").unwrap();
        assert!(!after.ends_with(b"second"), "seed {seed}: {after:?}");
        let counts = disk.fault_counts();
        assert_eq!(counts.writes_phantom + counts.writes_misdirected, 1);
    }
}

#[test]
fn bit_rot_hits_files_of_rows() {
    let disk = MemDisk::new(1);
    assert_eq!(disk.flip_bits(3), 0, "there is no file");
    durable_file(&disk, "spared", &[0; 64]);
    assert_eq!(disk.flip_bits(3), 0, "there are no rows");
    create_dir_durably(&disk, "data").unwrap();
    durable_file(&disk, "data/f", &[0; 64]);
    assert_eq!(disk.flip_bits(1), 1);
    let ones: u32 = read_file(&disk, "data/f").unwrap().iter().map(|byte| byte.count_ones()).sum();
    assert_eq!(ones, 1);
}

#[test]
fn an_image_has_the_live_bytes_and_is_independent() {
    let disk = MemDisk::new(1);
    let file = durable_file(&disk, "f", b"synced");
    file.append(b" and not").unwrap();
    disk.cut_power_at(1);
    let image = disk.image();
    assert_eq!(read_file(&image, "f").unwrap(), b"synced and not");
    replace_file(&image, "f", b"other").unwrap();
    image.crash();
    assert_eq!(read_file(&image, "f").unwrap(), b"other");
    disk.end_faults();
    assert_eq!(read_file(&disk, "f").unwrap(), b"synced and not");
}

#[test]
fn an_unreadable_page_stays_so_while_others_are_read() {
    let disk = MemDisk::new(1);
    create_dir_durably(&disk, "data").unwrap();
    let file = durable_file(&disk, "data/f", &[7; 10_000]);
    assert_eq!(disk.lose_pages(1), 1);
    let fails = |offset: u64, len: usize| errno(file.read_at(offset, &mut vec![0; len])).is_some();
    let pages: Vec<bool> =
        [(0, 4_096), (4_096, 4_096), (8_192, 1_808)].map(|(at, len)| fails(at, len)).into();
    assert_eq!(pages.iter().filter(|fails| **fails).count(), 1, "{pages:?}");
    assert!(fails(0, 10_000) && fails(0, 10_000));
    disk.crash();
    let file = disk.open("data/f").unwrap();
    assert!(file.read_at(0, &mut vec![0; 10_000]).is_err());
    assert_eq!(disk.fault_counts().pages_unreadable, 4);
    disk.end_faults();
}
