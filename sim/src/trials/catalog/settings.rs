//! Sizes and times of a catalog trial, and the catalog's settings.

use std::time::Duration;

use engine::catalog::CatalogConfig;
use sim_plan::RandomStream;

/// Masters, of which one leads.
pub(super) const MASTERS: usize = 3;
/// Wall time of the trial's beginning.
pub(super) const EPOCH_MICROS: u64 = 1_700_000_000_000_000;
/// User who sends all requests.
pub(super) const CALLER: &str = "trial";
/// Interval of heartbeats.
pub(super) const BEAT: Duration = Duration::from_millis(800);

/// Draws the settings of a trial's catalog.
pub(super) fn config(random: &mut RandomStream) -> CatalogConfig {
    CatalogConfig {
        create_replicas_per_server_max: random.pick(&[4, 60]),
        tablet_creation_timeout: Duration::from_secs(random.between(8, 20)),
        server_unresponsive_after: Duration::from_secs(random.between(4, 12)),
        deleted_table_reserve: Duration::from_secs(random.pick(&[0, 0, 20])),
        deleted_metadata_kept: Duration::from_secs(random.pick(&[5, 40, 3_600])),
        retry_wait_max: Duration::from_secs(random.between(1, 5)),
        ..CatalogConfig::default()
    }
}
