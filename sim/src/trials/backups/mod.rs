//! A trial of backups: a small cluster, one table, and a client that writes, backs up and restores without a pause.
//!
//! ```text
//!   client: rows, ranges ──► master, tablet server
//!      │ backups, full and incremental; some are dropped in their middle, ranges are dropped under others
//!      ▼
//!   store ──► restores, dropped and resumed again and again ──► rows must be those of the backup's time
//! ```
//!
//! In a run, a client backs up now and then, and three backups are restored at the end. Here that is all that happens.
//!
//! *Not here:* faults of servers and of the store's disk, types and defaults, which runs have.

mod keeper;

use std::sync::Arc;
use std::time::Duration;

use engine::disk::mem::DiskCost;
use engine::sync::Mutex;
use sim_plan::RandomStream;

use self::keeper::Keeper;
use super::{fleet, pass};
use crate::cluster;
use crate::event_log::EventLog;
use crate::oracle::Violation;
use crate::run_observer::RunObserver;
use crate::world::keyed::KeyedWorld;
use crate::world::{HostProgram, World};

/// Name of this oracle.
const NAME: &str = "backup trial";
const CLIENT: &str = "client";
/// Time until servers serve, and until the client has ended.
const BEGINNING: Duration = Duration::from_secs(3);
const END: Duration = Duration::from_secs(600);
/// Lines that a violation's story ends with.
const STORY: usize = 40;

/// Runs the trial of a seed; returns what it finds.
pub(super) fn run(seed: u64) -> Option<Violation> {
    let story: Arc<Mutex<Vec<String>>> = Arc::default();
    let what = play(seed, &story).err()?;
    let story = std::mem::take(&mut *story.lock());
    Some(Violation::new(NAME, format!("seed {seed}: {what}")).with_end_of(story, STORY))
}

fn play(seed: u64, story: &Arc<Mutex<Vec<String>>>) -> Result<(), String> {
    let plan = fleet::plan_of(seed, 1, 1, 1);
    let log = EventLog::keeping(0..0, false);
    let mut world = KeyedWorld::new(seed, plan.network.clone(), DiskCost::default(), log);
    let observer = RunObserver::new(&plan, None);
    cluster::boot(&mut world, &plan, &observer);
    let result: Arc<Mutex<Option<Result<(), String>>>> = Arc::default();
    let (into, story) = (result.clone(), story.clone());
    let program: HostProgram = Arc::new(move |env| {
        let (into, story) = (into.clone(), story.clone());
        Box::pin(async move {
            env.sleep(BEGINNING).await;
            let random = RandomStream::new(seed, "backup trial");
            let ended = Keeper::play(env, random, story).await;
            *into.lock() = Some(ended);
            Ok(())
        })
    });
    world.client(CLIENT, program);
    pass::until(&mut world, END)?;
    let ended = result.lock().take();
    ended.unwrap_or_else(|| Err("the client has not ended".to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trials::reached::{self, Situation};

    const SITUATIONS: [Situation; 7] = [
        ("a range that is added", &["range", "is added"]),
        ("a range that is dropped", &["range", "is dropped"]),
        ("a backup", &["backup at", "Some(true)"]),
        ("a backup that fails", &["backup at", "Some(false)"]),
        ("a backup that is given up", &["backup at", "None"]),
        ("a restore", &["restore of", "Some(true)"]),
        ("a restore that is given up", &["restore of", "None"]),
    ];

    #[test]
    fn trials_of_sound_backups_find_nothing_and_reach_what_they_are_for() {
        reached::check(6..=60, &SITUATIONS, |seed| {
            let story = Arc::default();
            assert_eq!(play(seed, &story), Ok(()), "seed {seed}");
            std::mem::take(&mut *story.lock())
        });
    }
}
