//! One tablet of this server: its superblock and its state.

use engine::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use engine::error::Error;
use engine::ids::{OpId, TabletId};
use engine::replica::copy::RejectedSource;
use engine::schema::Schema;
use engine::schema::row_block::ProjectedColumn;
use engine::schema::row_ops::ClientColumn;
use engine::schema::table_settings::HISTORY_MAX_AGE_SEC;
use engine::tablet::Tablet;
use engine::tablet::superblock::{DataState, Superblock};

use super::replica::ReplicaHandle;
use crate::dirs::Directory;
use nyala_common::wire::errors::{TabletError, TabletErrorCode};
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::tablet::{TabletDataState, TabletStatePb};

/// Entry of the tablet table. It stays through all states and leaves the table only when the tablet is deleted.
pub struct TabletEntry {
    pub id: TabletId,
    /// Superblock as of the creation of the entry; schema and name may have changed since.
    pub meta: Superblock,
    pub data_dir: Arc<Directory>,
    /// Other data directories that have a superblock of this tablet. Only a failed replica has some: which superblock
    /// and vote are old is not known.
    pub duplicates: Vec<Arc<Directory>>,
    state: Mutex<EntryState>,
    /// Last operation of a log that is closed or deleted.
    last_op: Mutex<Option<OpId>>,
    /// See [`LocalReplica::rejected`](engine::replica::copy::LocalReplica::rejected).
    rejected_source: Mutex<Option<RejectedSource>>,
    /// Held while the consensus metadata of a replica that does not run is changed, by votes of its tombstone or by a
    /// copy.
    pub vote_lock: tokio::sync::Mutex<()>,
    bound: Mutex<Option<BoundSchema>>,
    bound_projection: Mutex<Option<BoundProjection>>,
}

/// Size of a tablet, as masters and tools see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TabletSizes {
    /// See [`ReplicaHandle::disk_size`].
    pub disk_bytes: u64,
    pub live_rows: u64,
}

/// State of a tablet on this server.
#[derive(Clone)]
pub enum EntryState {
    /// The tablet is being created or bootstrapped.
    Bootstrapping,
    Running(ReplicaHandle),
    /// The tablet could not be opened.
    Failed(Error),
    Stopping,
    /// The tablet is being copied from another server.
    Copying,
    /// The data is deleted; the last operation is remembered, if known.
    Tombstoned(Option<OpId>),
    /// The server is stopping, or the tablet is deleted.
    Stopped,
}

/// Bytes of a client's schema that is kept for its next request. Comments and defaults of a request may be as long as a
/// message, and one is kept per tablet.
const BOUND_BYTES_MAX: usize = 64 << 10;

/// Columns bound for the last writer's schema. Nearly every write has the schema of the previous one and need not
/// decode it.
struct BoundSchema {
    version: u32,
    client: Vec<u8>,
    columns: Arc<[ClientColumn]>,
}

/// Columns bound for the last scan's. Nearly every scan of a program names the columns of its previous one.
struct BoundProjection {
    schema: Arc<Schema>,
    client: Vec<u8>,
    columns: Arc<[ProjectedColumn]>,
}

impl TabletEntry {
    pub fn new(meta: Superblock, data_dir: Arc<Directory>) -> TabletEntry {
        let state = match meta.data_state {
            DataState::Ready => EntryState::Bootstrapping,
            DataState::Tombstoned | DataState::Deleted | DataState::Copying => {
                EntryState::Tombstoned(meta.tombstone_last_op)
            }
        };
        TabletEntry {
            id: meta.tablet,
            data_dir,
            duplicates: Vec::new(),
            state: Mutex::new(state),
            last_op: Mutex::new(meta.tombstone_last_op),
            rejected_source: Mutex::default(),
            vote_lock: tokio::sync::Mutex::default(),
            bound: Mutex::new(None),
            bound_projection: Mutex::new(None),
            meta,
        }
    }

    /// Creates the entry of an unusable tablet, of which little is known.
    pub fn failed(meta: Superblock, data_dir: Arc<Directory>, error: Error) -> TabletEntry {
        let entry = TabletEntry::new(meta, data_dir);
        entry.set_state(EntryState::Failed(error));
        entry
    }

    /// Fails if the tablet has several superblocks: neither a tombstone nor a copy knows the newest vote then.
    pub fn check_single(&self) -> Result<(), TabletError> {
        match self.failure() {
            Some(error) if !self.duplicates.is_empty() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Returns the last operation of the closed log, if known.
    pub fn last_op(&self) -> Option<OpId> {
        *self.last_op.lock()
    }

    /// Stores the last operation. `None` changes nothing, so that a failed deletion does not lose it.
    pub fn remember_last_op(&self, last_op: Option<OpId>) {
        if last_op.is_some() {
            *self.last_op.lock() = last_op;
        }
    }

    /// Returns the leader of the last copy that was rejected because the vote here cannot be read.
    pub fn rejected_source(&self) -> Option<RejectedSource> {
        *self.rejected_source.lock()
    }

    /// Stores the leader of a rejected copy; `None` when this server can vote again.
    pub fn set_rejected_source(&self, source: Option<RejectedSource>) {
        *self.rejected_source.lock() = source;
    }

    pub fn state(&self) -> EntryState {
        self.lock().clone()
    }

    pub fn set_state(&self, state: EntryState) {
        *self.lock() = state;
    }

    /// Changes to the state that `next` returns for the current one, if any, and returns the current one. So only one
    /// of several concurrent callers stops a replica.
    pub fn transition(&self, next: impl FnOnce(&EntryState) -> Option<EntryState>) -> EntryState {
        let mut state = self.lock();
        match next(&state) {
            Some(next) => std::mem::replace(&mut *state, next),
            None => state.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, EntryState> {
        self.state.lock()
    }

    /// Returns the running replica, or the error for the client.
    pub fn running(&self) -> Result<ReplicaHandle, TabletError> {
        let state = self.state();
        if let Some(error) = failure_of(&state) {
            return Err(TabletError::failed(&error));
        }
        match state {
            EntryState::Running(replica) => Ok(replica),
            // Kudu's code, as if there were no tablet: its C++ client then looks for the tablet's replicas again.
            EntryState::Tombstoned(_) => {
                let message = format!("Tablet {} is tombstoned: its data was deleted here", self.id);
                Err(TabletError::new(TabletErrorCode::TabletNotFound, ErrorCode::IllegalState, message))
            }
            other => {
                let message = format!("Tablet not RUNNING: {}", state_pb(&other).as_str_name());
                Err(TabletError::new(TabletErrorCode::TabletNotRunning, ErrorCode::IllegalState, message))
            }
        }
    }

    /// Returns the tablet if it is open, even if it has failed since.
    pub fn tablet(&self) -> Option<Arc<Tablet>> {
        match &*self.lock() {
            EntryState::Running(replica) => Some(replica.tablet().clone()),
            _ => None,
        }
    }

    /// Returns size and row count of an open tablet, as masters and tools see them.
    pub fn sizes(&self) -> Option<TabletSizes> {
        match &*self.lock() {
            EntryState::Running(replica) => {
                let live_rows = replica.tablet().stats().live_rows;
                Some(TabletSizes { disk_bytes: replica.disk_size(), live_rows })
            }
            _ => None,
        }
    }

    /// Returns the error that failed this tablet, if any.
    pub fn failure(&self) -> Option<Error> {
        failure_of(&self.state())
    }

    pub fn state_pb(&self) -> TabletStatePb {
        state_pb(&self.state())
    }

    pub fn data_state_pb(&self) -> TabletDataState {
        match self.state() {
            EntryState::Tombstoned(_) => TabletDataState::TabletDataTombstoned,
            EntryState::Copying => TabletDataState::TabletDataCopying,
            _ => TabletDataState::TabletDataReady,
        }
    }

    pub fn schema_version(&self) -> u32 {
        self.tablet().map_or(self.meta.schema_version, |tablet| tablet.schema_version())
    }

    pub fn table_name(&self) -> String {
        self.tablet()
            .map_or_else(|| self.meta.table_name.clone(), |tablet| tablet.table_schema().table_name.clone())
    }

    /// Returns the table's own history retention in seconds, if it has one. A negative setting keeps all history.
    pub fn history_max_age_s(&self) -> Option<u64> {
        let parse = |extra: &BTreeMap<String, String>| extra.get(HISTORY_MAX_AGE_SEC)?.parse::<i64>().ok();
        let seconds = match self.tablet() {
            Some(tablet) => parse(&tablet.table_schema().extra),
            None => parse(&self.meta.extra),
        };
        seconds.map(|seconds| u64::try_from(seconds).unwrap_or(u64::MAX))
    }

    /// Returns the columns bound for a client's schema, if the last writer had the same one.
    pub fn bound_columns(&self, client: &[u8], version: u32) -> Option<Arc<[ClientColumn]>> {
        let bound = self.bound.lock();
        let bound = bound.as_ref().filter(|bound| bound.version == version && bound.client == client)?;
        Some(bound.columns.clone())
    }

    /// Stores a binding, unless the schema is too long.
    pub fn remember_columns(&self, client: &Bytes, version: u32, columns: Arc<[ClientColumn]>) {
        let Some(client) = kept_copy(client) else { return };
        *self.bound.lock() = Some(BoundSchema { version, client, columns });
    }

    /// Returns the columns bound for a client's projection, if the last scan had the same one of the same schema.
    pub fn bound_projection(&self, client: &[u8], schema: &Arc<Schema>) -> Option<Arc<[ProjectedColumn]>> {
        let bound = self.bound_projection.lock();
        let is_same = |bound: &&BoundProjection| Arc::ptr_eq(&bound.schema, schema) && bound.client == client;
        Some(bound.as_ref().filter(is_same)?.columns.clone())
    }

    /// Stores a binding; see [`TabletEntry::remember_columns`].
    pub fn remember_projection(&self, client: &[u8], schema: &Arc<Schema>, columns: Arc<[ProjectedColumn]>) {
        let Some(client) = kept_copy(client) else { return };
        let schema = schema.clone();
        *self.bound_projection.lock() = Some(BoundProjection { schema, client, columns });
    }
}

/// Returns a copy of a client's schema; `None` if it is too long to be kept. A slice would keep a whole request alive.
fn kept_copy(client: &[u8]) -> Option<Vec<u8>> {
    (client.len() <= BOUND_BYTES_MAX).then(|| client.to_vec())
}

fn failure_of(state: &EntryState) -> Option<Error> {
    match state {
        EntryState::Failed(error) => Some(error.clone()),
        EntryState::Running(replica) => replica.failure(),
        _ => None,
    }
}

fn state_pb(state: &EntryState) -> TabletStatePb {
    match state {
        EntryState::Bootstrapping => TabletStatePb::Bootstrapping,
        EntryState::Running(replica) if replica.failure().is_some() => TabletStatePb::Failed,
        EntryState::Running(_) => TabletStatePb::Running,
        EntryState::Failed(_) => TabletStatePb::Failed,
        EntryState::Copying => TabletStatePb::Initialized,
        EntryState::Stopping => TabletStatePb::Stopping,
        EntryState::Tombstoned(_) | EntryState::Stopped => TabletStatePb::Stopped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_with_long_comments_is_not_kept() {
        assert_eq!(kept_copy(&[7; BOUND_BYTES_MAX]).map(|kept| kept.len()), Some(BOUND_BYTES_MAX));
        assert_eq!(kept_copy(&[7; BOUND_BYTES_MAX + 1]), None);
    }
}
