//! `cargo ci --lean`: the run of a machine with little disk space.
//!
//! Each part of a run builds the workspace in a profile of its own, and the folders together take tens of gigabytes.
//! A lean run deletes a folder after the last step that needs it, so that the largest one decides.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::command::target_dir;
use crate::steps::Steps;

/// Subfolders of a profile's folder that cargo fills. The programs beside them stay: later steps start some.
const BUILT: [&str; 5] = [".fingerprint", "build", "deps", "examples", "incremental"];

/// Deletes builds, if the run is lean.
pub(crate) struct Lean(pub bool);

impl Lean {
    /// Deletes what cargo has built in these profiles' folders of the target folder.
    pub(crate) fn drop_builds(&self, profiles: &[&str], steps: &mut Steps) {
        if self.0 {
            steps.run(&format!("lean: {}", profiles.join(", ")), || delete(&target_dir()?, profiles));
        }
    }
}

fn delete(target: &Path, profiles: &[&str]) -> Result<()> {
    for profile in profiles {
        for built in BUILT {
            let folder = target.join(profile).join(built);
            if folder.exists() {
                fs::remove_dir_all(&folder).with_context(|| format!("deleting {}", folder.display()))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_other_profiles_stay() -> Result<()> {
        let target = tempfile::tempdir()?;
        for folder in ["debug/deps", "debug/build/x", "sim/deps", "python"] {
            fs::create_dir_all(target.path().join(folder))?;
        }
        fs::write(target.path().join("debug/ci"), "")?;
        delete(target.path(), &["debug", "loom"])?;
        let has = |path: &str| target.path().join(path).exists();
        assert!(!has("debug/deps") && !has("debug/build"));
        assert!(has("debug/ci") && has("sim/deps") && has("python"));
        Ok(())
    }
}
