//! A tablet compared with a map of versions: random writes, jobs and restarts, reads at every snapshot timestamp.

use std::sync::Arc;

use engine::config::TabletConfig;
use engine::ids::{PeerId, TabletId};
use engine::note::Note;
use engine::observer::{Observer, ObserverHandle};
use engine::replica::{JobKind, JobStep, ReplicaEffects};
use engine::schema::row_ops::RowOpKind;
use engine::sync::Mutex;
use engine::tablet::scan::{ScanSpec, SnapshotChoice};
use engine::time::Timestamp;
use engine_testkit::model::{Change, Model, Step, check, count_rows, follow, job, run, scan_rows, write};
use engine_testkit::workloads::workload;
use engine_testkit::world::{self, World, plain_schema};
use proptest::prelude::*;

fn change() -> impl Strategy<Value = Change> {
    let kinds = [1u8, 2, 3, 5, 10, 11, 12, 13].map(|n| RowOpKind::from_number(n).unwrap());
    let kind = prop::sample::select(kinds.to_vec());
    (kind, 0u8..12, any::<Option<Option<u8>>>(), any::<Option<Option<i32>>>())
        .prop_map(|(kind, key, v, n)| Change { kind, key, v, n })
}

fn changes(max: usize) -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec(change(), 0..max)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => changes(8).prop_map(Step::Write),
        3 => changes(4).prop_map(Step::FlushRows),
        2 => (any::<usize>(), changes(4)).prop_map(|(n, during)| Step::FlushDeltas(n, during)),
        2 => (any::<usize>(), 1usize..4, changes(4)).prop_map(|(a, n, during)| Step::Compact(a, n, during)),
        2 => (any::<usize>(), changes(4)).prop_map(|(n, during)| Step::MajorDeltaCompaction(n, during)),
        2 => (any::<usize>(), changes(4)).prop_map(|(n, during)| Step::MinorDeltaCompaction(n, during)),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Gc),
        1 => Just(Step::CompactDue),
        2 => (0u8..100).prop_map(Step::Forget),
        1 => Just(Step::Restart),
        1 => Just(Step::Crash),
        1 => Just(Step::AddColumn),
        1 => Just(Step::DropColumn),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
    #[test]
    fn a_tablet_is_a_map_of_versions(seed: u64, steps in prop::collection::vec(step(), 1..24)) {
        follow(seed, &steps);
    }
}

/// Flushes three rows of each round's `keys` and compacts the rowsets that the policy chooses. Returns the number of
/// rowsets left of 40.
fn rowsets_after_many_flushes(config: TabletConfig, keys: impl Fn(u8) -> [u8; 3]) -> usize {
    let (mut world, mut model) = (World::new(1, config), Model::new());
    world.create(plain_schema()).unwrap();
    for round in 0..40u8 {
        let change = |key| Change { kind: RowOpKind::Upsert, key, v: Some(Some(round)), n: None };
        write(&mut world, &mut model, &keys(round).map(change)).unwrap();
        job(&mut world, &mut model, JobKind::FlushRows, &[]).unwrap();
        run(&mut world, &mut model, &Step::CompactDue).unwrap();
    }
    check(&world, &model);
    world.replica().tablet().state().disk.len()
}

#[test]
fn many_small_flushes_are_compacted() {
    let left = rowsets_after_many_flushes(TabletConfig::tiny(), |round| [round, 60, 100 + round]);
    assert!(left < 12, "{left} rowsets that overlap");
    let roomy = TabletConfig { rowset_roll_bytes: 1 << 20, ..TabletConfig::tiny() };
    let left = rowsets_after_many_flushes(roomy, |round| [3 * round, 3 * round + 1, 3 * round + 2]);
    assert!(left < 4, "{left} rowsets side by side");
}

#[test]
fn many_delta_files_are_compacted_into_the_base() {
    let (mut world, mut model) = (World::new(1, TabletConfig::tiny()), Model::new());
    world.create(plain_schema()).unwrap();
    let upsert = |v| [Change { kind: RowOpKind::Upsert, key: 1, v: Some(Some(v)), n: None }];
    write(&mut world, &mut model, &upsert(0)).unwrap();
    job(&mut world, &mut model, JobKind::FlushRows, &[]).unwrap();
    for round in 1..20 {
        write(&mut world, &mut model, &upsert(round)).unwrap();
        run(&mut world, &mut model, &Step::FlushDeltas(0, Vec::new())).unwrap();
        run(&mut world, &mut model, &Step::CompactDue).unwrap();
        let files = world.replica().tablet().state().disk[0].meta().delta_files.len();
        assert!(files < world.config.merge_min, "{files} files");
    }
    check(&world, &model);
}

#[test]
fn an_aborted_job_leaves_no_file() {
    let mut world = World::new(1, TabletConfig::tiny());
    world.create(plain_schema()).unwrap();
    let mut model = Model::new();
    run(&mut world, &mut model, &workload()[0]).unwrap();
    let (replica, _) = world.open.as_mut().unwrap();
    let mut job = replica.start_job(JobKind::FlushRows).unwrap().unwrap();
    assert_eq!(job.step().unwrap(), JobStep::More);
    assert!(replica.start_job(JobKind::Checkpoint).is_err(), "one job at a time");
    replica.end_job(job, Some(engine::error::Error::aborted("enough")), &mut ReplicaEffects::default());
    let dir = format!("data/{}", world::TABLET);
    assert!(engine::disk::Disk::list(&world.disk, &dir).unwrap().is_empty());
    check(&world, &model);
}

#[test]
fn rows_on_disk_are_counted_without_reading_them() {
    let (mut world, mut model) = (World::new(1, TabletConfig::tiny()), Model::new());
    world.create(plain_schema()).unwrap();
    let insert = |key| Change { kind: RowOpKind::Insert, key, v: None, n: None };
    write(&mut world, &mut model, &(0..50).map(insert).collect::<Vec<_>>()).unwrap();
    job(&mut world, &mut model, JobKind::FlushRows, &[]).unwrap();
    world.cache_bytes = 0;
    world.reopen().unwrap();
    let now = world.clock + 1;
    let before = world.disk.op_count();
    assert_eq!(count_rows(&world, now), 50);
    assert_eq!(world.disk.op_count(), before, "nothing was asked of the disk");
    assert_eq!(count_rows(&world, 1), 0, "before they were inserted: their history tells");
    assert!(world.disk.op_count() > before);
}

/// An observer that acts when a scan has listed the rowsets and is about to open them: the ancient history mark moves
/// to now, and a major delta compaction drops the history of a rowset.
#[derive(Default)]
struct Meanwhile {
    world: Mutex<Option<World>>,
    after: Mutex<Option<World>>,
}

impl Observer for Meanwhile {
    fn mark(&self, mark: &'static str) {
        let world = (mark == "scan: over delta files").then(|| self.world.lock().take());
        let Some(mut world) = world.flatten() else { return };
        world.replica().tablet().raise_history_mark(Timestamp(world.clock + 1));
        let rowset = world.replica().tablet().state().disk[0].meta().id;
        assert!(world.job(JobKind::MajorDeltaCompaction(rowset), &mut |_| {}).unwrap());
        *self.after.lock() = Some(world);
    }

    fn note(&self, _: PeerId, _: TabletId, _: &Note) {}
}

#[test]
fn a_scan_fails_if_its_history_is_dropped_while_it_opens() {
    let meanwhile = Arc::new(Meanwhile::default());
    let config = TabletConfig { observer: ObserverHandle::new(meanwhile.clone()), ..TabletConfig::tiny() };
    let (mut world, mut model) = (World::new(1, config), Model::new());
    world.create(plain_schema()).unwrap();
    let upsert = |v| [Change { kind: RowOpKind::Upsert, key: 1, v: Some(Some(v)), n: None }];
    write(&mut world, &mut model, &upsert(0)).unwrap();
    job(&mut world, &mut model, JobKind::FlushRows, &[]).unwrap();
    write(&mut world, &mut model, &upsert(1)).unwrap();
    let then = Timestamp(world.clock + 1);
    write(&mut world, &mut model, &upsert(2)).unwrap();
    run(&mut world, &mut model, &Step::FlushDeltas(0, Vec::new())).unwrap();
    let tablet = world.replica().tablet().clone();
    let columns = tablet.schema().columns().iter().map(Into::into).collect();
    let spec = ScanSpec { snapshot: SnapshotChoice::At(then), ..ScanSpec::latest(columns) };
    *meanwhile.world.lock() = Some(world);
    let error = tablet.scan(&spec).err().expect("the old version of the row is gone");
    assert!(error.message.contains("ancient history mark"), "{error}");
    let world = meanwhile.after.lock().take().expect("the job has run");
    assert_eq!(scan_rows(&world, world.clock + 1, true), model.shown(world.clock + 1));
}
