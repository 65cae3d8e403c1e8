//! A tablet with power cut, operations failing and the disk full at every step: nothing acknowledged is lost.

#[path = "support/model.rs"]
mod model;
mod support;

use engine::config::TabletConfig;
use engine::disk::Disk;
use engine::disk::mem::MemDisk;
use engine::disk::mem::OpKind;
use engine::error::ErrorKind;
use engine::replica::{JobKind, tombstone};
use engine::schema::ops::RowOpKind;
use engine::tablet::meta::TabletMeta;
use model::{Change, Model, Step, check, job, run, scan_rows, workload, workloads, write};
use support::{World, plain_schema};

/// Runs the workload with a fault that strikes at the `k`-th disk operation, until a step fails; gives the model of
/// what was acknowledged, and the step during which the fault struck.
fn run_until_fault(world: &mut World, steps: &[Step]) -> (Model, Option<(Step, engine::error::Error)>) {
    let mut model = Model::new();
    for step in steps {
        let mut attempt = model.clone();
        match run(world, &mut attempt, step) {
            Ok(()) => model = attempt,
            Err(error) => {
                // `write` changes the model only after the answer: the attempt is what was acknowledged.
                return (attempt, Some((step.clone(), error)));
            }
        }
    }
    (model, None)
}

/// After a fault the tablet may hold, besides what was acknowledged, what was on its way.
fn check_after(world: &mut World, model: &Model, step: &Option<(Step, engine::error::Error)>) {
    let mut candidates = vec![model.clone()];
    if let Some((step, _)) = step {
        let changes = match step {
            Step::Write(c) | Step::FlushRows(c) | Step::FlushDeltas(_, c) | Step::Compact(_, _, c) => {
                c.clone()
            }
            Step::MergeDeltas(_, c) => c.clone(),
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
        panic!("after {step:?}: {shown:?} is neither {:?} nor what was under way", model.shown(now));
    };
    let mut fitting = fitting.clone();
    check(world, &fitting);
    // And it goes on.
    let more = [Change { kind: RowOpKind::Upsert, key: 5, v: Some(None), n: Some(Some(5)) }];
    write(world, &mut fitting, &more).unwrap();
    job(world, &mut fitting, JobKind::FlushRows, &more).unwrap();
    world.reopen().unwrap();
    check(world, &fitting);
}

/// Operations of a run without faults: of all kinds, and syncs alone.
fn operations(steps: &[Step]) -> (u64, u64) {
    let mut world = World::new(1, TabletConfig::tiny());
    world.create(plain_schema()).unwrap();
    let (before, syncs) = (world.disk.op_count(), world.disk.op_count_of(OpKind::Sync));
    let (model, failed) = run_until_fault(&mut world, steps);
    assert!(failed.is_none(), "{failed:?}");
    check(&world, &model);
    (world.disk.op_count() - before, world.disk.op_count_of(OpKind::Sync) - syncs)
}

/// Runs a workload with what `arm` does to the disk, loses power, and checks what is there then.
fn survive(steps: &[Step], what: &str, k: u64, arm: impl Fn(&World)) {
    let mut world = World::new(k, TabletConfig::tiny());
    world.create(plain_schema()).unwrap();
    arm(&world);
    let (model, failed) = run_until_fault(&mut world, steps);
    world.open = None;
    world.disk.crash();
    world.reopen().unwrap_or_else(|error| panic!("{what} at {k} during {failed:?}: {error}"));
    check_after(&mut world, &model, &failed);
}

/// One test for each workload, so that they run side by side.
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

/// The disk is full for a moment, and has room again at once: what follows must not build on what was not written.
fn full_disk(name: &str, steps: &[Step]) {
    every_operation_fails(name, steps, ENOSPC);
}

/// A failure is reported as what it was, and loses nothing acknowledged.
fn every_operation_fails(name: &str, steps: &[Step], errno: i32) {
    let (total, _) = operations(steps);
    let mut told = 0;
    for k in 1..=total {
        let mut world = World::new(k, TabletConfig::tiny());
        world.create(plain_schema()).unwrap();
        world.disk.fail_op(k, errno);
        let (model, failed) = run_until_fault(&mut world, steps);
        if let Some((step, error)) = &failed {
            let named = error.kind == ErrorKind::Io && error.errno == Some(errno);
            assert!(named, "{name} at {k}: {step:?} failed with {error:?}");
        }
        told += u32::from(world.notes.iter().any(|note| note.to_string().starts_with("raft Fail")));
        world.open = None;
        world.disk.crash();
        world.reopen().unwrap_or_else(|error| panic!("{name}: {errno} at {k} during {failed:?}: {error}"));
        check_after(&mut world, &model, &failed);
    }
    assert!(told > 0, "{name}: no replica said that it failed");
}

/// A sync that failed may have lost what it should have kept, although the device is fine again: MemDisk drops it, and
/// a second sync of the same file would report success. A job that goes on as if nothing had happened is found out by
/// the power failure at the end.
fn failed_syncs(name: &str, steps: &[Step]) {
    let (_, syncs) = operations(steps);
    let mut went_on = 0;
    for k in 1..=syncs {
        let mut world = World::new(k, TabletConfig::tiny());
        world.create(plain_schema()).unwrap();
        world.disk.fail_nth(OpKind::Sync, k, EIO);
        let (mut model, mut failed) = (Model::new(), None);
        for step in steps {
            let mut attempt = model.clone();
            let outcome = run(&mut world, &mut attempt, step);
            model = attempt;
            let Err(error) = outcome else { continue };
            assert_eq!((error.kind, error.errno), (ErrorKind::Io, Some(EIO)), "{name} at {k}: {error}");
            let job_alone = world.open.as_ref().is_some_and(|(replica, _)| replica.failure().is_none())
                && !matches!(step, Step::Write(_) | Step::AddColumn | Step::DropColumn | Step::Gc);
            if !job_alone {
                failed = Some((step.clone(), error));
                break;
            }
            // The tablet is whole, and the same job may be tried again with files of its own.
            went_on += 1;
            run(&mut world, &mut model, &Step::FlushRows(Vec::new())).unwrap();
        }
        assert_eq!(world.disk.fault_counts().syncs_repeated, 0, "{name} at {k}: nobody asks again");
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

/// Power is cut within `work` at each of its disk operations; `after` looks at what the power failure left.
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

/// What a server does before it opens anything; then everything on the disk belongs to a tablet.
fn clean_up(disk: &MemDisk, k: u64) {
    let known = TabletMeta::list(disk).unwrap();
    let alive = known.iter().filter(|id| tombstone::recover(disk, disk, **id).unwrap().is_some()).count();
    tombstone::remove_strays(disk, &known).unwrap();
    let logs = tombstone::remove_stray_logs(disk, &known).unwrap();
    assert_eq!(logs.kept, [], "power cut at {k}");
    for dir in ["data", "wals"] {
        let names = disk.list(dir).unwrap_or_default();
        assert!(names.len() <= alive, "power cut at {k}: {names:?} in {dir}");
    }
}

#[test]
fn a_log_with_operations_outlives_the_loss_of_its_superblock() {
    let mut world = World::new(1, TabletConfig::tiny());
    world.create(plain_schema()).unwrap();
    run(&mut world, &mut Model::new(), &workload()[0]).unwrap();
    world.open = None;
    let found = tombstone::remove_stray_logs(&world.disk, &[]).unwrap();
    assert_eq!((found.removed, found.kept), (0, vec![support::TABLET]));
    assert_eq!(world.reopen(), Ok(()));
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

#[test]
fn an_interrupted_deletion_has_not_begun_or_can_be_completed() {
    let prepare = |world: &mut World| {
        world.create(plain_schema()).unwrap();
        let mut model = Model::new();
        workload()[..3].iter().for_each(|step| run(world, &mut model, step).unwrap());
    };
    let delete = |world: &mut World| {
        world.open = None;
        tombstone::delete(&world.disk, &world.disk, support::TABLET)
    };
    let after = |world: &mut World, k| {
        clean_up(&world.disk, k);
        match world.reopen() {
            Ok(()) => assert_eq!(world.replica().tablet().stats().live_rows, 4, "it is all there"),
            Err(error) => assert_eq!(error.kind, ErrorKind::NotFound, "power cut at {k}: {error}"),
        }
        match delete(world) {
            Err(error) if error.kind != ErrorKind::NotFound => panic!("power cut at {k}: {error}"),
            _ => {}
        }
        world.create(plain_schema()).unwrap();
    };
    cut_everywhere(prepare, delete, after);
}

#[test]
fn a_damaged_superblock_is_noticed() {
    let path = format!("tablet-meta/{}", support::TABLET);
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

/// The log's disk fails after rows were flushed to another: what the superblock speaks of was committed.
#[test]
fn a_superblock_may_know_of_more_than_the_log_says_was_done() {
    let (mut mended, mut refused) = (0, 0);
    for cut in 0.. {
        let (mut world, mut model) = (World::new(1, TabletConfig::tiny()), Model::new());
        world.create(plain_schema()).unwrap();
        for step in [workload()[0].clone(), Step::FlushRows(Vec::new())] {
            run(&mut world, &mut model, &step).unwrap();
        }
        world.open = None;
        let segment = world.disk.open(&format!("wals/{}/0000000001.wal", support::TABLET)).unwrap();
        let Some(rest) = segment.len().unwrap().checked_sub(cut) else { break };
        segment.truncate(rest).unwrap();
        match world.reopen() {
            Ok(()) => {
                mended += 1;
                check(&world, &model);
                world.reopen().unwrap();
                check(&world, &model);
            }
            Err(error) => {
                refused += 1;
                assert_eq!(error.kind, ErrorKind::Corrupt, "cut by {cut}: {error}");
            }
        }
    }
    assert!(mended > 1 && refused > 1, "{mended} logs were mended, {refused} refused");
}
