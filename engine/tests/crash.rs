//! Crash tests of a tablet: a power cut, a failure or a full disk at every disk operation loses nothing acknowledged.

use std::sync::Arc;

use engine::cfile::cache::PageCache;
use engine::config::TabletConfig;
use engine::disk::mem::DiskOpKind;
use engine::disk::mem::MemDisk;
use engine::disk::{Disk, read_file, replace_file};
use engine::error::ErrorKind;
use engine::ids::Uuid;
use engine::raft::{Peer, RaftConfig};
use engine::replica::{JobKind, Replica, ReplicaEffects, consensus_meta_store, tombstone};
use engine::schema::partition::{Partition, PartitionSchema};
use engine::schema::row_ops::RowOpKind;
use engine::tablet::superblock::{DataState, Superblock};
use engine::time::{ClockReading, Timestamp};
use engine::wal::Wal;
use engine_testkit::model::{Change, Model, Step, check, job, run, scan_rows, write};
use engine_testkit::workloads::{workload, workloads};
use engine_testkit::world::{self, World, plain_schema};

/// Runs the workload with a fault at the `k`-th disk operation, until a step fails. Returns the model of the
/// acknowledged writes, and the step that failed.
fn run_until_fault(world: &mut World, steps: &[Step]) -> (Model, Option<(Step, engine::error::Error)>) {
    let mut model = Model::new();
    for step in steps {
        let mut attempt = model.clone();
        match run(world, &mut attempt, step) {
            Ok(()) => model = attempt,
            Err(error) => {
                // `write` changes the model only after the reply: the attempt has the acknowledged writes.
                return (attempt, Some((step.clone(), error)));
            }
        }
    }
    (model, None)
}

/// Checks the tablet after a fault: it has the acknowledged writes, and possibly the one in flight.
fn check_after(world: &mut World, model: &Model, step: &Option<(Step, engine::error::Error)>) {
    let mut candidates = vec![model.clone()];
    if let Some((step, _)) = step {
        let changes = match step {
            Step::Write(c) | Step::FlushRows(c) | Step::FlushDeltas(_, c) | Step::Compact(_, _, c) => {
                c.clone()
            }
            Step::MajorDeltaCompaction(_, c) | Step::MinorDeltaCompaction(_, c) => c.clone(),
            _ => Vec::new(),
        };
        let ts = world.report.last_timestamp.0;
        let mut more = model.clone();
        for change in &changes {
            more.apply(change, ts);
        }
        candidates.push(more);
        let mut more = model.clone();
        match step {
            Step::AddColumn => (more.extra, more.next_id) = (Some(more.next_id), more.next_id + 1),
            Step::DropColumn => more.extra = None,
            _ => {}
        }
        candidates.push(more);
    }
    let version = world.replica().tablet().schema().columns().len();
    candidates.retain(|candidate| candidate.schema().columns().len() == version);
    let now = world.report.last_timestamp.0 + 1;
    let shown = scan_rows(world, now, true);
    let fitting = candidates.iter().find(|candidate| candidate.shown(now) == shown);
    let Some(fitting) = fitting else {
        panic!("after {step:?}: {shown:?} is neither {:?} nor the write in flight", model.shown(now));
    };
    let mut fitting = fitting.clone();
    check(world, &fitting);
    // The tablet accepts writes again.
    let more = [Change { kind: RowOpKind::Upsert, key: 5, v: Some(None), n: Some(Some(5)) }];
    write(world, &mut fitting, &more).unwrap();
    job(world, &mut fitting, JobKind::FlushRows, &more).unwrap();
    world.reopen().unwrap();
    check(world, &fitting);
}

/// Counts the operations of a run without faults: all kinds, and syncs alone.
fn operations(steps: &[Step]) -> (u64, u64) {
    let mut world = World::new(1, TabletConfig::tiny());
    world.create(plain_schema()).unwrap();
    let (before, syncs) = (world.disk.op_count(), world.disk.op_count_of(DiskOpKind::Sync));
    let (model, failed) = run_until_fault(&mut world, steps);
    assert!(failed.is_none(), "{failed:?}");
    check(&world, &model);
    (world.disk.op_count() - before, world.disk.op_count_of(DiskOpKind::Sync) - syncs)
}

/// Runs a workload with the fault that `arm` injects, cuts the power, and checks the tablet.
fn survive(steps: &[Step], fault: &str, k: u64, arm: impl Fn(&World)) {
    let mut world = World::new(k, TabletConfig::tiny());
    world.create(plain_schema()).unwrap();
    arm(&world);
    let (model, failed) = run_until_fault(&mut world, steps);
    world.open = None;
    world.disk.crash();
    world.reopen().unwrap_or_else(|error| panic!("{fault} at {k} during {failed:?}: {error}"));
    check_after(&mut world, &model, &failed);
}

/// One test for each workload, so that they run in parallel.
macro_rules! of_each_workload {
    ($($name:ident: $workload:literal, $check:ident;)*) => {
        $(#[test] fn $name() { let (name, steps) = &workloads()[$workload]; $check(name, steps); })*
    };
}

of_each_workload! {
    power_cut_at_every_operation_of_every_job: 0, power_cuts;
    power_cut_at_every_operation_with_many_changes: 1, power_cuts;
    power_cut_at_every_operation_with_many_rowsets: 2, power_cuts;
    every_operation_of_every_job_fails: 0, broken_disk;
    every_operation_with_many_changes_fails: 1, broken_disk;
    every_operation_with_many_rowsets_fails: 2, broken_disk;
    every_operation_of_every_job_finds_the_disk_full: 0, full_disk;
    every_operation_with_many_changes_finds_the_disk_full: 1, full_disk;
    every_operation_with_many_rowsets_finds_the_disk_full: 2, full_disk;
    a_failed_sync_is_final_in_every_job: 0, failed_syncs;
    a_failed_sync_is_final_with_many_changes: 1, failed_syncs;
    a_failed_sync_is_final_with_many_rowsets: 2, failed_syncs;
}

/// Nothing acknowledged is lost.
fn power_cuts(name: &str, steps: &[Step]) {
    let (total, _) = operations(steps);
    assert!(total > 100, "{name} meets the disk often: {total}");
    (1..=total).for_each(|k| survive(steps, name, k, |world| world.disk.cut_power_at(k)));
}

#[test]
fn a_crash_while_recovering_from_a_crash_loses_nothing() {
    for (name, steps) in workloads() {
        let (total, _) = operations(&steps);
        for k in (1..=total).step_by(17) {
            for again in 1..12 {
                let mut world = World::new(k, TabletConfig::tiny());
                world.create(plain_schema()).unwrap();
                world.disk.cut_power_at(k);
                let (model, failed) = run_until_fault(&mut world, &steps);
                world.open = None;
                world.disk.crash();
                world.disk.cut_power_at(again);
                let _ = world.reopen();
                world.open = None;
                world.disk.crash();
                world.reopen().unwrap_or_else(|error| panic!("{name}: cuts at {k} and {again}: {error}"));
                check_after(&mut world, &model, &failed);
            }
        }
    }
}

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

fn broken_disk(name: &str, steps: &[Step]) {
    every_operation_fails(name, steps, EIO);
}

/// The disk is full for one operation only: later operations must not build on the failed one.
fn full_disk(name: &str, steps: &[Step]) {
    every_operation_fails(name, steps, ENOSPC);
}

/// A failure is reported with its errno, and loses nothing acknowledged.
fn every_operation_fails(name: &str, steps: &[Step], errno: i32) {
    let (total, _) = operations(steps);
    let mut reported = 0;
    for k in 1..=total {
        let mut world = World::new(k, TabletConfig::tiny());
        world.create(plain_schema()).unwrap();
        world.disk.fail_op(k, errno);
        let (model, failed) = run_until_fault(&mut world, steps);
        if let Some((step, error)) = &failed {
            let named = error.kind == ErrorKind::Io && error.errno == Some(errno);
            assert!(named, "{name} at {k}: {step:?} failed with {error:?}");
        }
        reported += u32::from(world.notes.iter().any(|note| note.to_string().starts_with("raft Fail")));
        world.open = None;
        world.disk.crash();
        world.reopen().unwrap_or_else(|error| panic!("{name}: {errno} at {k} during {failed:?}: {error}"));
        check_after(&mut world, &model, &failed);
    }
    assert!(reported > 0, "{name}: no replica reported its failure");
}

/// A failed sync may have lost bytes, although the device works again: MemDisk drops them, and a second sync of the
/// same file would report success. The power failure at the end exposes a job that continues regardless.
fn failed_syncs(name: &str, steps: &[Step]) {
    let (_, syncs) = operations(steps);
    let mut went_on = 0;
    for k in 1..=syncs {
        let mut world = World::new(k, TabletConfig::tiny());
        world.create(plain_schema()).unwrap();
        world.disk.fail_nth(DiskOpKind::Sync, k, EIO);
        let (mut model, mut failed) = (Model::new(), None);
        for step in steps {
            let mut attempt = model.clone();
            let outcome = run(&mut world, &mut attempt, step);
            model = attempt;
            let Err(error) = outcome else { continue };
            assert_eq!((error.kind, error.errno), (ErrorKind::Io, Some(EIO)), "{name} at {k}: {error}");
            // A log that failed fails its replica, whatever the job does.
            let runs =
                |(replica, wal): &(Replica, Wal)| replica.failure().is_none() && wal.failure().is_none();
            let job_alone = world.open.as_ref().is_some_and(runs)
                && !matches!(step, Step::Write(_) | Step::AddColumn | Step::DropColumn | Step::Gc);
            if !job_alone {
                failed = Some((step.clone(), error));
                break;
            }
            // The tablet is intact, and the same job may be retried with new files.
            went_on += 1;
            run(&mut world, &mut model, &Step::FlushRows(Vec::new())).unwrap();
        }
        assert_eq!(world.disk.fault_counts().syncs_repeated, 0, "{name} at {k}: no sync is repeated");
        world.open = None;
        world.disk.crash();
        world.reopen().unwrap_or_else(|error| panic!("{name}: sync {k} failed during {failed:?}: {error}"));
        check_after(&mut world, &model, &failed);
    }
    assert!(went_on > 0, "{name}: some job failed alone");
}

#[test]
fn a_job_on_a_full_disk_fails_alone_and_succeeds_later() {
    let (mut world, mut model) = (World::new(1, TabletConfig::tiny()), Model::new());
    world.create(plain_schema()).unwrap();
    for step in &workload()[..2] {
        run(&mut world, &mut model, step).unwrap();
    }
    world.disk.set_free(0);
    let error = job(&mut world, &mut model, JobKind::FlushRows, &[]).expect_err("the disk is full");
    assert_eq!(error.kind, ErrorKind::Io);
    assert!(world.replica().failure().is_none(), "nothing was lost");
    check(&world, &model);
    world.disk.set_free(1 << 30);
    run(&mut world, &mut model, &workload()[1].clone()).unwrap();
    job(&mut world, &mut model, JobKind::FlushRows, &[]).unwrap();
    check(&world, &model);
    world.reopen().unwrap();
    check(&world, &model);
}

/// Cuts the power within `work` at each of its disk operations; `after` checks the state that the power failure left.
fn cut_everywhere(
    prepare: impl Fn(&mut World),
    work: impl Fn(&mut World) -> Result<(), engine::error::Error>,
    after: impl Fn(&mut World, u64),
) {
    let mut whole = World::new(1, TabletConfig::tiny());
    prepare(&mut whole);
    let before = whole.disk.op_count();
    work(&mut whole).unwrap();
    for k in 1..=whole.disk.op_count() - before {
        let mut world = World::new(k, TabletConfig::tiny());
        prepare(&mut world);
        world.disk.cut_power_at(k);
        assert!(work(&mut world).is_err(), "power is cut at {k}");
        world.open = None;
        world.disk.crash();
        after(&mut world, k);
    }
}

/// Cleans up as a server does before it opens anything; then every file on the disk belongs to a tablet.
fn clean_up(disk: &MemDisk, k: u64) {
    let known = Superblock::list(disk).unwrap();
    let alive = known.iter().filter(|id| tombstone::recover(disk, disk, **id).unwrap().is_some()).count();
    tombstone::remove_strays(disk, &known).unwrap();
    tombstone::remove_stray_metadata(disk, disk, &known).unwrap();
    let logs = tombstone::remove_stray_logs(disk, &known).unwrap();
    assert_eq!(logs.kept, [], "power cut at {k}");
    for dir in ["data", "wals", "tablet-meta"] {
        let names = disk.list(dir).unwrap_or_default();
        assert!(names.len() <= alive, "power cut at {k}: {names:?} in {dir}");
    }
    let votes = disk.list("consensus-meta").unwrap_or_default();
    assert!(alive > 0 || votes.is_empty(), "power cut at {k}: {votes:?} in consensus-meta");
}

#[test]
fn a_log_with_operations_survives_the_loss_of_its_superblock() {
    let mut world = World::new(1, TabletConfig::tiny());
    world.create(plain_schema()).unwrap();
    run(&mut world, &mut Model::new(), &workload()[0]).unwrap();
    world.open = None;
    let found = tombstone::remove_stray_logs(&world.disk, &[]).unwrap();
    assert_eq!((found.removed, found.kept), (0, vec![world::TABLET]));
    assert_eq!(world.reopen(), Ok(()));
}

/// Its tablet may be deleted before another replacement overwrites it.
#[test]
fn an_interrupted_replacement_of_a_superblock_is_removed_at_the_start() {
    let mut world = World::new(1, TabletConfig::tiny());
    world.create(plain_schema()).unwrap();
    world.open = None;
    let superblock = Superblock::load(&world.disk, world::TABLET).unwrap();
    world.disk.fail_nth(DiskOpKind::Append, 1, EIO);
    superblock.store(&world.disk).expect_err("the device fails");
    world.disk.end_faults();
    let names = |world: &World| world.disk.list("tablet-meta").unwrap();
    let own = world::TABLET.to_string();
    assert_eq!(names(&world), [own.clone(), format!("{own}.tmp")]);
    clean_up(&world.disk, 0);
    assert_eq!(names(&world), [own]);
    assert_eq!(world.reopen(), Ok(()));
}

#[test]
fn a_tablet_is_not_created_over_a_log_whose_superblock_was_lost() {
    let mut world = World::new(1, TabletConfig::tiny());
    world.create(plain_schema()).unwrap();
    run(&mut world, &mut Model::new(), &workload()[0]).unwrap();
    world.open = None;
    let superblock = format!("tablet-meta/{}", world::TABLET);
    let bytes = read_file(&world.disk, &superblock).unwrap();
    world.disk.remove(&superblock).unwrap();
    assert_eq!(world.create(plain_schema()).unwrap_err().kind, ErrorKind::Corrupt);
    replace_file(&world.disk, &superblock, &bytes).unwrap();
    assert_eq!(world.reopen(), Ok(()), "the log is still there");
}

#[test]
fn an_interrupted_creation_happened_or_can_be_repeated() {
    let after = |world: &mut World, k| {
        clean_up(&world.disk, k);
        match world.reopen() {
            Ok(()) => {}
            Err(error) if error.kind == ErrorKind::NotFound => world.create(plain_schema()).unwrap(),
            Err(error) => panic!("power cut at {k}: {error}"),
        }
        let mut model = Model::new();
        run(world, &mut model, &workload()[0]).unwrap();
        check(world, &model);
    };
    cut_everywhere(|_| {}, |world| world.create(plain_schema()), after);
}

/// Creates a tablet with a DiskRowSet and four rows.
fn create_with_rows(world: &mut World) {
    world.create(plain_schema()).unwrap();
    let mut model = Model::new();
    workload()[..3].iter().for_each(|step| run(world, &mut model, step).unwrap());
}

fn delete(world: &mut World) -> Result<(), engine::error::Error> {
    world.open = None;
    tombstone::delete(&world.disk, &world.disk, world::TABLET)
}

/// Opens the tablet, which has all rows or is deleted, deletes it, and creates it again.
fn has_all_or_nothing(world: &mut World, k: u64) {
    match world.reopen() {
        Ok(()) => assert_eq!(world.replica().tablet().stats().live_rows, 4, "it is all there"),
        Err(error) => assert_eq!(error.kind, ErrorKind::NotFound, "power cut at {k}: {error}"),
    }
    match delete(world) {
        Err(error) if error.kind != ErrorKind::NotFound => panic!("power cut at {k}: {error}"),
        _ => {}
    }
    world.create(plain_schema()).unwrap();
}

#[test]
fn an_interrupted_deletion_has_not_begun_or_can_be_completed() {
    let after = |world: &mut World, k| {
        clean_up(&world.disk, k);
        has_all_or_nothing(world, k);
    };
    cut_everywhere(create_with_rows, delete, after);
}

#[test]
fn a_deletion_on_a_full_disk_is_completed_without_space() {
    let prepare = |world: &mut World| {
        create_with_rows(world);
        world.disk.set_free(0);
    };
    let after = |world: &mut World, k| {
        world.disk.set_free(0);
        clean_up(&world.disk, k);
        world.disk.set_free(1 << 30);
        has_all_or_nothing(world, k);
    };
    cut_everywhere(prepare, delete, after);
}

#[test]
fn an_unreadable_superblock_is_no_obstacle_to_a_deletion() {
    let prepare = |world: &mut World| {
        create_with_rows(world);
        world.open = None;
        world.disk.flip_bit(&Superblock::path(world::TABLET), 40).unwrap();
    };
    let after = |world: &mut World, k| {
        match tombstone::recover(&world.disk, &world.disk, world::TABLET) {
            Ok(None) => {}
            Err(error) if error.kind == ErrorKind::NotFound => {}
            Err(error) if error.kind == ErrorKind::Corrupt => delete(world).unwrap(),
            other => panic!("power cut at {k}: {other:?}"),
        }
        assert_eq!(Superblock::list(&world.disk).unwrap(), [], "power cut at {k}");
    };
    cut_everywhere(prepare, delete, after);
}

/// A process ends after a failed sync. The next one finds the superblock in the cache, which the device may lack, and
/// removes what the superblock does not name.
#[test]
fn a_restart_between_a_failed_sync_and_a_power_cut_loses_nothing() {
    for (name, steps) in workloads() {
        let (_, syncs) = operations(&steps);
        for k in 1..=syncs {
            let mut world = World::new(k, TabletConfig::tiny());
            world.create(plain_schema()).unwrap();
            world.disk.fail_nth(DiskOpKind::Sync, k, EIO);
            let (model, failed) = run_until_fault(&mut world, &steps);
            world.reopen().unwrap_or_else(|error| panic!("{name} at {k}, after {failed:?}: {error}"));
            // Its last timestamp is that of the write in flight: the next start has one for its own first operation.
            let report = std::mem::take(&mut world.report);
            world.open = None;
            // The device keeps the removals.
            world.disk.sync_dir(&format!("data/{}", world::TABLET)).unwrap();
            world.disk.crash();
            world.reopen().unwrap_or_else(|error| panic!("{name} at {k}, after {failed:?}: {error}"));
            world.report = report;
            check_after(&mut world, &model, &failed);
        }
    }
}

#[test]
fn a_deletion_that_a_restart_finds_in_the_cache_survives_a_power_cut() {
    type Removal = fn(&MemDisk) -> engine::error::Result<()>;
    let removals: [Removal; 2] = [
        |disk| tombstone::tombstone(disk, disk, world::TABLET, None).map(drop),
        |disk| tombstone::delete(disk, disk, world::TABLET),
    ];
    for remove in removals {
        for k in 1.. {
            let mut world = World::new(k, TabletConfig::tiny());
            create_with_rows(&mut world);
            world.open = None;
            world.disk.fail_nth(DiskOpKind::Sync, k, EIO);
            let removed = remove(&world.disk);
            world.disk.end_faults();
            let recover = || tombstone::recover(&world.disk, &world.disk, world::TABLET);
            let before = recover();
            world.disk.crash();
            match recover() {
                Ok(Some(meta)) if meta.data_state == DataState::Ready => {
                    world.reopen().unwrap_or_else(|error| panic!("sync {k}, {before:?}: {error}"));
                    assert_eq!(world.replica().tablet().stats().live_rows, 4, "sync {k}");
                }
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind, ErrorKind::NotFound, "sync {k}: {error}"),
            }
            if removed.is_ok() {
                break;
            }
        }
    }
}

fn open_alone(disk: &MemDisk) -> Result<(Replica, Wal), engine::error::Error> {
    let (wal, data) = (Arc::new(disk.clone()), Arc::new(disk.clone()));
    let cache = PageCache::new(1 << 20);
    let opened = Replica::open(wal, data, world::TABLET, world::setup(), TabletConfig::tiny(), cache)?;
    Ok((opened.0, opened.1))
}

#[test]
fn the_only_voter_opens_on_a_full_disk_and_stores_its_term_afterwards() {
    let (mut world, mut model) = (World::new(1, TabletConfig::tiny()), Model::new());
    world.create(plain_schema()).unwrap();
    run(&mut world, &mut model, &workload()[0]).unwrap();
    world.open = None;
    let before = consensus_meta_store::load(&world.disk, world::TABLET).unwrap();
    world.disk.set_free(0);
    let (mut replica, log) = open_alone(&world.disk).unwrap();
    let mut out = ReplicaEffects::default();
    replica.start(ClockReading::default(), &mut || Timestamp(1 << 40), &mut out);
    assert!(!replica.is_leader(), "its vote is not durable");
    assert!(
        !replica.tablet().mvcc().is_caught_up(),
        "readers of the newest rows wait for its pending operations"
    );
    let (_, stored_next) = out.meta.expect("the term is to be stored");
    assert_eq!((stored_next.term, stored_next.voted_for), (before.term + 1, Some(world::setup().me.id)));
    assert_eq!(consensus_meta_store::load(&world.disk, world::TABLET), Ok(before));
    drop((replica, log));
    world.disk.set_free(1 << 30);
    world.reopen().unwrap();
    assert!(world.replica().tablet().mvcc().is_caught_up());
    check(&world, &model);
}

#[test]
fn a_member_of_a_group_opens_on_a_full_disk() {
    let disk = MemDisk::new(1);
    let table = Uuid([9; 16]);
    let (how, part) = (PartitionSchema::default(), Partition::default());
    let meta = Superblock::new(world::TABLET, table, "t", plain_schema(), 0, how, part);
    let other = Peer::voter(Uuid([2; 16]), "there", 7050);
    let members = RaftConfig::initial(vec![world::setup().me, other]);
    let (wal, data) = (Arc::new(disk.clone()), Arc::new(disk.clone()));
    let cache = PageCache::new(1 << 20);
    drop(Replica::create(wal, data, meta, members, world::setup(), TabletConfig::tiny(), cache).unwrap());
    disk.set_free(0);
    let (mut replica, _log) = open_alone(&disk).expect("its metadata is as it was");
    replica.start(ClockReading::default(), &mut || Timestamp(1 << 40), &mut ReplicaEffects::default());
    assert!(replica.tablet().mvcc().is_caught_up(), "a follower may lack the newest rows");
}

#[test]
fn a_damaged_superblock_is_detected() {
    let path = format!("tablet-meta/{}", world::TABLET);
    let len = {
        let mut world = World::new(1, TabletConfig::tiny());
        world.create(plain_schema()).unwrap();
        engine::disk::read_file(&world.disk, &path).unwrap().len() as u64
    };
    for offset in 0..len {
        let mut world = World::new(offset, TabletConfig::tiny());
        world.create(plain_schema()).unwrap();
        world.disk.flip_bit(&path, offset).unwrap();
        let error = world.reopen().expect_err("the checksum covers every byte");
        assert_eq!(error.kind, ErrorKind::Corrupt, "{offset}: {error}");
        assert!(error.message.contains(&path), "{error}");
    }
}

/// The log's disk fails after rows were flushed to another disk: the operations in the superblock were committed.
#[test]
fn a_superblock_may_be_ahead_of_the_log() {
    let (mut repaired, mut rejected) = (0, 0);
    for cut in 0.. {
        let (mut world, mut model) = (World::new(1, TabletConfig::tiny()), Model::new());
        world.create(plain_schema()).unwrap();
        for step in [workload()[0].clone(), Step::FlushRows(Vec::new())] {
            run(&mut world, &mut model, &step).unwrap();
        }
        world.open = None;
        let segment = world.disk.open(&format!("wals/{}/0000000001.wal", world::TABLET)).unwrap();
        let Some(rest) = segment.len().unwrap().checked_sub(cut) else { break };
        segment.truncate(rest).unwrap();
        match world.reopen() {
            Ok(()) => {
                repaired += 1;
                check(&world, &model);
                world.reopen().unwrap();
                check(&world, &model);
            }
            Err(error) => {
                rejected += 1;
                assert_eq!(error.kind, ErrorKind::Corrupt, "cut by {cut}: {error}");
            }
        }
    }
    assert!(repaired > 1 && rejected > 1, "{repaired} logs were repaired, {rejected} rejected");
}
