//! The study of cores: rate of operations by key by the number of a server's cores, from measured demands.

use anyhow::{Context, Result};
use cores_model::Measurement;

use super::setup::StudyArgs;
use crate::output::outln;

/// Prints the page and writes it on request.
pub(super) fn study(args: &StudyArgs) -> Result<bool> {
    let path = &args.demands;
    let demands = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let measured: Measurement = serde_json::from_str(&demands).context("the measured demands")?;
    let page = cores_model::page(&measured);
    outln!("{page}");
    if let Some(path) = &args.out {
        std::fs::write(path, page).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(true)
}
