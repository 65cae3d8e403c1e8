//! What clients know of their backups.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{ClientNo, Nanos};
use crate::wire::keys::Bounds;

/// A run of a backup.
#[derive(Debug, Clone)]
pub(super) struct BackupRun {
    pub client: ClientNo,
    pub invoked: Nanos,
    /// `None` if the process was killed meanwhile.
    pub returned: Option<Nanos>,
    /// Table and time in milliseconds of the backup that it reported as complete.
    pub reported: Option<(String, u64)>,
}

/// Backups as far as clients know.
#[derive(Debug, Default)]
pub(super) struct BackupLog {
    pub runs: Vec<BackupRun>,
    /// Bounds of the tablets of model tables, by their ids.
    pub bounds: BTreeMap<String, Bounds>,
    /// Number of ops that a client has begun.
    pub begun: BTreeMap<ClientNo, usize>,
    /// Clients without further ops.
    pub ended: BTreeSet<ClientNo>,
}
