//! A folder of plans that exist only while the command runs. It goes when the command ends, or is told to end.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result};
use sim_plan::Plan;
use tokio::signal::unix::{SignalKind, signal};

use super::plan_source::{PlanSource, RunOptions};
use super::run_process::RunJob;

/// Begins the name of such a folder; the process id follows.
const PREFIX: &str = "plans-";
/// Exit code of a command that was told to end, as shells report SIGINT.
const INTERRUPTED: i32 = 128 + 2;

/// The folder of this process.
pub(super) struct ScratchPlans {
    dir: PathBuf,
}

impl ScratchPlans {
    /// Creates the folder below `parent`, and removes those of processes that are gone.
    pub(super) fn new(parent: &Path) -> Result<ScratchPlans> {
        remove_stale(parent);
        let dir = parent.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        remove_when_interrupted(dir.clone());
        Ok(ScratchPlans { dir })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.plan"))
    }

    /// Writes a plan and returns the job that runs it.
    pub(super) fn job(&self, name: &str, plan: &Plan, options: &RunOptions) -> Result<RunJob> {
        let path = self.path(name);
        fs::write(&path, plan.to_string()).with_context(|| format!("writing {}", path.display()))?;
        Ok(RunJob::new(PlanSource { what: path.display().to_string(), options: options.clone() }))
    }
}

impl Drop for ScratchPlans {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next command.
        let _gone = fs::remove_dir_all(&self.dir);
    }
}

fn remove_stale(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|id| id.parse::<u32>().ok());
        if owner.is_some_and(|id| !Path::new(&format!("/proc/{id}")).exists()) {
            let _gone = fs::remove_dir_all(entry.path());
        }
    }
}

/// Removes the folder on SIGINT and SIGTERM and ends the process; its children notice that.
fn remove_when_interrupted(dir: PathBuf) {
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async {
            let kinds = [SignalKind::interrupt(), SignalKind::terminate()];
            let [Ok(mut interrupt), Ok(mut terminate)] = kinds.map(signal) else { return };
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            let _gone = fs::remove_dir_all(&dir);
            std::process::exit(INTERRUPTED);
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_goes_with_its_owner() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        // No process has this id.
        let stale = parent.path().join(format!("{PREFIX}{}", u32::MAX));
        fs::create_dir(&stale).expect("a folder");
        let plans = ScratchPlans::new(parent.path()).expect("a folder");
        fs::write(plans.path("one"), "seed 1").expect("a plan");
        assert!(!stale.exists());
        drop(plans);
        assert_eq!(fs::read_dir(parent.path()).expect("it is there").count(), 0);
    }
}
