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
use sim_plan::{Plan, RandomStream};

use self::keeper::Keeper;
use super::fleet;
use crate::cluster;
use crate::event_log::EventLog;
use crate::oracle::Violation;
use crate::run_observer::RunObserver;
use crate::world::keyed::KeyedWorld;
use crate::world::{HostProgram, StopReason, World};

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
    let mut story = std::mem::take(&mut *story.lock());
    let story = story.split_off(story.len().saturating_sub(STORY));
    Some(Violation { oracle: NAME, message: format!("seed {seed}: {what}"), story })
}

fn plan_of(seed: u64) -> Plan {
    fleet::plan_of(seed, 1, 1, 1)
}

fn play(seed: u64, story: &Arc<Mutex<Vec<String>>>) -> Result<(), String> {
    let plan = plan_of(seed);
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
    loop {
        match world.run_until(END) {
            Ok(StopReason::Reached | StopReason::ClientsEnded) => break,
            Ok(_) => {}
            Err(failure) => return Err(failure.to_string()),
        }
    }
    let ended = result.lock().take();
    ended.unwrap_or_else(|| Err("the client has not ended".to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_of_sound_backups_find_nothing() {
        for seed in 0..6 {
            let found = run(seed).map(|found| format!("{}\n{}", found.message, found.story.join("\n")));
            assert_eq!(found, None);
        }
    }
}
