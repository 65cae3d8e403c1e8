//! A tablet beside a map of versions: writes, jobs with writes between their steps, power failures, restarts.

use arbitrary::{Arbitrary, Unstructured};
use engine::config::TabletConfig;
use engine::schema::ops::RowOpKind;

use crate::model::{Change, Model, OpenScan, Step, check, run};
use crate::support::{World, misplaced_files, plain_schema};

/// More steps than this take long and find what fewer do.
const STEPS_MAX: usize = 24;

#[derive(Debug, Arbitrary)]
struct Write {
    kind: u8,
    key: u8,
    v: Option<Option<u8>>,
    n: Option<Option<i8>>,
}

impl Write {
    fn change(&self) -> Change {
        let kinds = [1, 2, 3, 5, 10, 11, 12, 13];
        let kind = RowOpKind::from_number(kinds[usize::from(self.kind) % kinds.len()]);
        let kind = kind.expect("a write");
        Change { kind, key: self.key % 12, v: self.v, n: self.n.map(|n| n.map(i32::from)) }
    }
}

fn changes(writes: &[Write]) -> Vec<Change> {
    writes.iter().take(8).map(Write::change).collect()
}

#[derive(Debug, Arbitrary)]
enum Act {
    Write(Vec<Write>),
    FlushRows(Vec<Write>),
    FlushDeltas(u8, Vec<Write>),
    Compact(u8, u8, Vec<Write>),
    MergeDeltas(u8, Vec<Write>),
    Checkpoint,
    Gc,
    CompactDue,
    Forget(u8),
    Restart,
    Crash,
    AddColumn,
    DropColumn,
}

impl Act {
    fn step(&self) -> Step {
        match self {
            Act::Write(writes) => Step::Write(changes(writes)),
            Act::FlushRows(during) => Step::FlushRows(changes(during)),
            Act::FlushDeltas(n, during) => Step::FlushDeltas((*n).into(), changes(during)),
            Act::Compact(from, count, during) => {
                Step::Compact((*from).into(), 1 + usize::from(*count) % 3, changes(during))
            }
            Act::MergeDeltas(n, during) => Step::MergeDeltas((*n).into(), changes(during)),
            Act::Checkpoint => Step::Checkpoint,
            Act::Gc => Step::Gc,
            Act::CompactDue => Step::CompactDue,
            Act::Forget(percent) => Step::Forget(percent % 100),
            Act::Restart => Step::Restart,
            Act::Crash => Step::Crash,
            Act::AddColumn => Step::AddColumn,
            Act::DropColumn => Step::DropColumn,
        }
    }
}

/// Every moment that is still remembered reads as the model has it, after every step, also in scans that go on.
pub fn tablet(data: &[u8]) {
    let Ok(acts) = Vec::<Act>::arbitrary(&mut Unstructured::new(data)) else { return };
    let (mut world, mut model) = (World::new(data.len() as u64, TabletConfig::tiny()), Model::new());
    world.create(plain_schema()).expect("an empty disk");
    let mut scans = Vec::new();
    for (i, act) in acts.iter().take(STEPS_MAX).enumerate() {
        if matches!(act, Act::Crash) {
            // Handles of before a power failure are void.
            scans.clear();
        }
        run(&mut world, &mut model, &act.step()).expect("a sound disk");
        check(&world, &model);
        scans.retain_mut(OpenScan::go_on);
        scans.push(OpenScan::new(&world, &model, i % 2 == 0));
    }
    while !scans.is_empty() {
        scans.retain_mut(OpenScan::go_on);
    }
    world.reopen().expect("a sound disk");
    check(&world, &model);
    assert_eq!(misplaced_files(&world.disk), Vec::<String>::new());
}
