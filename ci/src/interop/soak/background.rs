//! The soak of a pull request, as a process beside steps that do not depend on the machine's load.
//!
//! Its lines go to a file, and are printed when the soak has ended.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::command::target_dir;
use crate::interop::packages::Packages;
use crate::interop::{ServerChoice, server};
use crate::steps::Steps;

/// Minutes of load and faults.
const MINUTES: &str = "8";
/// Seed of the faults of a pull request.
const SEED: &str = "1";

/// This program, also after its file was deleted: a lean run drops builds that no later step needs.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// A soak that runs.
pub(crate) struct BackgroundSoak {
    child: Child,
    log: PathBuf,
}

/// Starts the soak, as a step; `None` if that failed.
pub(crate) fn start(root: &Path, steps: &mut Steps) -> Option<BackgroundSoak> {
    let mut soak = None;
    steps.run("soak: packages and program", || {
        soak = Some(BackgroundSoak::start(root)?);
        Ok(())
    });
    soak
}

impl BackgroundSoak {
    fn start(root: &Path) -> Result<BackgroundSoak> {
        let target = target_dir()?.join("interop");
        let packages = Packages::fetch(root, &target)?;
        server(root, ServerChoice::Nyala, None, &packages)?;
        // A copy, because a later step may build the program again while servers are restarted.
        let program = target.join("soak-nyala");
        fs::copy(target_dir()?.join("release/nyala"), &program).context("copying the program")?;
        let log = target.join("soak.log");
        let out = File::create(&log)?;
        let child = Command::new(THIS_PROGRAM)
            .args(["soak", "--minutes", MINUTES, "--seed", SEED, "--nyala"])
            .arg(&program)
            .env("CARGO_MANIFEST_DIR", root.join("ci"))
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .context("starting the soak")?;
        Ok(BackgroundSoak { child, log })
    }

    /// Waits for the end and prints the lines, as a step.
    pub(crate) fn collect(mut self, steps: &mut Steps) {
        steps.run(&format!("soak: {MINUTES} min beside other steps, --seed {SEED}"), || {
            let status = self.child.wait()?;
            print!("{}", fs::read_to_string(&self.log)?);
            ensure!(status.success(), "the soak ended with {status}; its lines are above");
            Ok(())
        });
    }
}
