//! Trials find nothing in a sound engine, and report a model that differs from the tablet.

use engine::tablet::rowset::ProbeStats;
use sim_plan::client_ops::WriteKind;

use super::*;
use crate::model::draws;

const SEEDS: u64 = 12;

/// Returns a trial of a seed after a few writes.
fn written(seed: u64) -> Trial {
    let mut trial = Trial::create(seed).expect("a new replica");
    for _ in 0..6 {
        trial.write(true).expect("a sound disk");
    }
    trial
}

#[test]
fn trials_of_a_sound_engine_find_nothing() {
    for seed in 0..SEEDS {
        assert_eq!(run(seed), None);
    }
}

#[test]
fn a_trial_takes_every_step() {
    let random = &mut RandomStream::new(1, "test");
    let steps: Vec<Step> = (0..500).map(|_| step::draw(random)).collect();
    for step in [Step::Burst, Step::Alter, Step::OtherLeader, Step::Forget, Step::PowerCut, Step::LogGc] {
        assert!(steps.contains(&step), "{step:?}");
    }
    for step in [Step::InsertAgain, Step::FreeMemory, Step::FreeLog] {
        assert!(steps.contains(&step), "{step:?}");
    }
}

/// Returns true if two rows of one key are on the disk.
fn has_second_copies(trial: &Trial) -> bool {
    let state = trial.replica.tablet().expect("it is open").state();
    let copies = |key: &Vec<u8>| {
        let found = state.disk.iter().map(|rowset| rowset.find(key, &mut ProbeStats::default()));
        found.filter(|row| row.as_ref().is_ok_and(Option::is_some)).count()
    };
    trial.rows.keys().any(|key| copies(key) > 1)
}

#[test]
fn rows_that_are_inserted_again_are_on_the_disk_twice() {
    let mut twice = 0;
    for seed in 0..SEEDS {
        let mut trial = written(seed);
        trial.insert_again().expect("a sound disk");
        assert_eq!(trial.check().expect("a sound disk"), None, "seed {seed}");
        twice += u64::from(has_second_copies(&trial));
    }
    assert!(twice > 0);
}

#[test]
fn the_policy_frees_memory_and_log() {
    let mut changed = 0;
    for seed in 0..SEEDS {
        let mut trial = written(seed);
        trial.job(JobKind::FlushRows).expect("a sound disk");
        trial.write(true).expect("a sound disk");
        let deltas = |trial: &Trial| -> usize {
            let state = trial.replica.tablet().expect("it is open").state();
            state.disk.iter().map(|rowset| rowset.dms_len()).sum()
        };
        changed += deltas(&trial);
        trial.free_memory().expect("a policy that flushes");
        assert_eq!(deltas(&trial), 0, "seed {seed}");
        let state = trial.replica.tablet().expect("it is open").state();
        assert_eq!(state.active.rows(), 0, "seed {seed}");
        trial.write(true).expect("a sound disk");
        trial.free_log().expect("a policy that flushes");
        let (needed, applied, _) = trial.replica.log_needs().expect("it is open");
        assert_eq!(needed, applied + 1, "seed {seed}");
    }
    assert!(changed > 0, "memory has deltas, too");
}

/// Returns a trial with a scan that is open.
fn scanning(seed: u64) -> Trial {
    let mut trial = written(seed);
    while trial.paused.is_none() {
        trial.read_paused_scan().expect("a sound disk");
    }
    trial
}

fn read_to_the_end(trial: &mut Trial) -> Result<()> {
    while trial.paused.is_some() {
        trial.read_paused_scan()?;
    }
    Ok(())
}

#[test]
fn a_scan_that_stays_open_returns_the_rows_of_its_snapshot() {
    let mut reported = 0;
    for seed in 0..SEEDS {
        let mut trial = scanning(seed);
        trial.job(JobKind::FlushRows).expect("a sound disk");
        trial.write(true).expect("a sound disk");
        read_to_the_end(&mut trial).expect("the rows of its snapshot");
        let mut trial = scanning(seed);
        trial.rows = TrialRows::default();
        reported += u64::from(read_to_the_end(&mut trial).is_err());
    }
    assert!(reported > 0);
}

#[test]
fn a_row_that_the_tablet_lacks_is_reported() {
    for seed in 0..SEEDS {
        let mut trial = written(seed);
        assert_eq!(trial.check().expect("a sound disk"), None);
        let before = trial.rows.live(HybridStamp::MAX).len();
        while trial.rows.live(HybridStamp::MAX).len() == before {
            let row = draws::row(&mut trial.random, &trial.table.shape, WriteKind::Insert);
            trial.rows.apply(&trial.table.shape, &[row], trial.replica.committed_at());
        }
        assert!(trial.check().expect("a sound disk").is_some(), "seed {seed}");
    }
}

#[test]
fn rows_that_only_the_tablet_has_are_reported() {
    let mut reported = 0;
    for seed in 0..SEEDS {
        let mut trial = written(seed);
        let live = trial.rows.live(HybridStamp::MAX).len();
        trial.rows = TrialRows::default();
        let found = trial.check().expect("a sound disk");
        assert_eq!(found.is_some(), live > 0, "seed {seed}");
        reported += u64::from(found.is_some());
    }
    assert!(reported > 0);
}

#[test]
fn an_operation_that_another_leader_replaced_is_in_neither() {
    for seed in 0..SEEDS {
        let mut trial = written(seed);
        trial.append_only().expect("a sound disk");
        trial.job(JobKind::FlushRows).expect("a sound disk");
        trial.replace_leader().expect("a sound disk");
        trial.cut_power().expect("a sound disk");
        assert_eq!(trial.check().expect("a sound disk"), None, "seed {seed}");
    }
}
