//! `cargo ci tidy`, the planted bugs: each patch of `sim/mutants/` must still apply, or it plants nothing.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::command::Run;

const FOLDER: &str = "sim/mutants";

/// Fails if a patch no longer fits the sources; the message says which.
pub fn check(root: &Path) -> Result<()> {
    let mut stale = Vec::new();
    let mut count = 0;
    for entry in std::fs::read_dir(root.join(FOLDER)).with_context(|| format!("listing {FOLDER}"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".patch") {
            continue;
        }
        count += 1;
        let patch = format!("{FOLDER}/{name}");
        let applied = Run::new("git").dir(root).args(["apply", "--check", &patch]).output()?;
        if !applied.success {
            stale.push(name);
        }
    }
    stale.sort();
    ensure!(count > 0, "{FOLDER} holds no patch");
    ensure!(
        stale.is_empty(),
        "these patches no longer apply; write them again for the code as it is: {}",
        stale.join(", ")
    );
    Ok(())
}
