//! The mutants' part of `cargo ci tidy`: each patch of `sim/mutants/` must apply, or its mutant is lost.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::command::CommandLine;

const FOLDER: &str = "sim/mutants";

/// Fails with the patches that no longer apply.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut stale = Vec::new();
    let mut count = 0;
    for entry in std::fs::read_dir(root.join(FOLDER)).with_context(|| format!("listing {FOLDER}"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".patch") {
            continue;
        }
        count += 1;
        let patch = format!("{FOLDER}/{name}");
        let applied = CommandLine::new("git").dir(root).args(["apply", "--check", &patch]).output()?;
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
