//! A trial of backups: a small cluster, one table, and a client that writes, backs up and restores without a pause.
//!
//! ```text
//!   client: rows, ranges ──► master, tablet server
//!      │ backups, full and incremental; some are dropped in their middle, ranges are dropped or replaced under others
//!      ▼
//!   store ──► restores, dropped or failed and resumed again and again ──► rows must be those of the backup's time
//! ```
//!
//! In a run, a client backs up now and then, and three backups are restored at the end. Here that is all that happens.
//! The tablet server is down for some time in some restores, in one of them for longer than it tries to write. In many
//! trials servers keep two seconds of history, and some backups take longer than that, beside writes and an outage of
//! the master ([`holding`]).
//!
//! Columns come and go, and their defaults change ([`alterations`]). A restored table must have the columns, defaults,
//! comments, partitions and settings of the backup's time ([`facts`]). Some rows of it are then changed, and the backup
//! is restored over it ([`existing`]).
//!
//! *Not here:* other faults of masters, faults of the store's disk, types other than numbers, which runs have.

mod alterations;
mod columns;
mod existing;
mod facts;
mod holding;
mod keeper;
mod outage;
mod restoring;
mod saved;

use std::sync::Arc;
use std::time::Duration;

use engine::disk::mem::DiskCost;
use engine::sync::Mutex;
use sim_plan::{Host, RandomStream};

use self::keeper::Keeper;
use self::outage::Outage;
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
const END: Duration = Duration::from_secs(700);
/// Pause after which the driver looks for an order.
const LOOK: Duration = Duration::from_millis(20);
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
    let mut plan = fleet::plan_of(seed, 1, 1, 1);
    let is_short = holding::shorten_history(&mut plan);
    let log = EventLog::keeping(0..0, false);
    let mut world = KeyedWorld::new(seed, plan.network.clone(), DiskCost::default(), log);
    let observer = RunObserver::new(&plan, None);
    cluster::boot(&mut world, &plan, &observer);
    let result: Arc<Mutex<Option<Result<(), String>>>> = Arc::default();
    let outage: Arc<Outage> = Arc::default();
    let (into, story, orders) = (result.clone(), story.clone(), outage.clone());
    let program: HostProgram = Arc::new(move |env| {
        let (into, story, orders) = (into.clone(), story.clone(), orders.clone());
        Box::pin(async move {
            env.sleep(BEGINNING).await;
            let random = RandomStream::new(seed, "backup trial");
            let ended = Keeper::play(env, random, is_short, orders, story).await;
            *into.lock() = Some(ended);
            Ok(())
        })
    });
    world.client(CLIENT, program);
    while world.now() < END && result.lock().is_none() {
        let next = world.now() + LOOK;
        pass::until(&mut world, next)?;
        if let Some((server, span)) = outage.begin() {
            take_down(&mut world, server, span)?;
            outage.end();
        }
    }
    let ended = result.lock().take();
    ended.unwrap_or_else(|| Err("the client has not ended".to_string()))
}

/// Kills a server, and starts it again after some time.
fn take_down(world: &mut KeyedWorld, server: Host, span: Duration) -> Result<(), String> {
    let server = server.name();
    world.kill(&server);
    let up = world.now() + span;
    pass::until(world, up)?;
    world.restart(&server);
    let serving = world.now() + BEGINNING;
    pass::until(world, serving)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trials::reached::{self, Situation};

    const SITUATIONS: [Situation; 17] = [
        ("a range that is added", &["range", "is added"]),
        ("a range that is dropped", &["range", "is dropped"]),
        ("a range that is replaced", &["range", "is replaced"]),
        ("a column that is added", &["the columns are altered", "added"]),
        ("a default that is removed", &["the columns are altered", "default removed"]),
        ("a backup", &["backup at", "Some(true)"]),
        ("a backup that fails", &["backup at", "Some(false)"]),
        ("a backup that is given up", &["backup at", "None"]),
        ("a backup that takes longer than history is kept", &["history is outlived"]),
        ("such a backup under which the master is down", &["the master is down"]),
        ("a restore", &["restore of", "Some(true)"]),
        ("a restore that is given up", &["restore of", "None"]),
        ("a restore that fails", &["restore of", "in an outage: Some(false)"]),
        ("a restore that does not survive a long outage", &["restore of", "in a long outage: Some(false)"]),
        ("a restore that survives an outage", &["restore of", "in an outage: Some(true)"]),
        ("a restore over a table that exists", &["restore of", " over ", "Some(true)"]),
        ("such a restore that is given up", &["restore of", " over ", "None"]),
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
