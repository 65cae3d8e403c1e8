//! One tablet of this server: what it is, and how it is doing.

use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use engine::error::Error;
use engine::ids::{OpId, TabletId};
use engine::schema::ops::WireColumn;
use engine::tablet::Tablet;
use engine::tablet::meta::{DataState, TabletMeta};

use super::replica::ReplicaHandle;
use crate::dirs::Directory;
use crate::proto::kudu::app_status_pb::ErrorCode;
use crate::proto::kudu::tablet::{TabletDataState, TabletStatePb};
use crate::wire::convert;
use crate::wire::status::{TabletError, TabletErrorCode};

/// A tablet in the server's table. It stays the same through the states; deleting takes it out of the table.
pub struct TabletEntry {
    pub id: TabletId,
    /// The superblock when the entry was made; schema and name may have changed since.
    pub meta: TabletMeta,
    pub data_dir: Arc<Directory>,
    state: Mutex<EntryState>,
    /// The last operation of a log that is closed, or gone.
    last_op: Mutex<Option<OpId>>,
    /// Held by whoever changes the consensus metadata of a replica that does not run: votes of its tombstone, a copy.
    pub promises: tokio::sync::Mutex<()>,
    bound: Mutex<Option<BoundSchema>>,
}

/// Where a replica is in its life.
#[derive(Clone)]
pub enum EntryState {
    /// Being made, or its log being replayed.
    Bootstrapping,
    Running(ReplicaHandle),
    /// It could not be opened.
    Failed(Error),
    Stopping,
    /// Being copied from another server.
    Copying,
    /// The data is gone; the last operation is remembered, if it was known.
    Tombstoned(Option<OpId>),
    /// The server is going down, or the tablet is deleted.
    Stopped,
}

/// The columns that the last writer's schema was bound to, so that the next write with the same schema, which is
/// nearly every one, need not decode it.
struct BoundSchema {
    version: u32,
    client: Vec<u8>,
    columns: Arc<[WireColumn]>,
}

impl TabletEntry {
    pub fn new(meta: TabletMeta, data_dir: Arc<Directory>) -> TabletEntry {
        let state = match meta.data_state {
            DataState::Ready => EntryState::Bootstrapping,
            DataState::Tombstoned | DataState::Deleted | DataState::Copying => {
                EntryState::Tombstoned(meta.tombstone_last_op)
            }
        };
        TabletEntry {
            id: meta.tablet,
            data_dir,
            state: Mutex::new(state),
            last_op: Mutex::new(meta.tombstone_last_op),
            promises: tokio::sync::Mutex::default(),
            bound: Mutex::new(None),
            meta,
        }
    }

    /// A tablet of which little is known and nothing can be used.
    pub fn failed(meta: TabletMeta, data_dir: Arc<Directory>, error: Error) -> TabletEntry {
        let entry = TabletEntry::new(meta, data_dir);
        entry.set_state(EntryState::Failed(error));
        entry
    }

    /// The last operation of the log when it was closed, if that is known.
    pub fn last_op(&self) -> Option<OpId> {
        *self.last_op.lock().expect("nobody panics while holding it")
    }

    /// A deletion that fails must not forget it. Not knowing is no news.
    pub fn remember_last_op(&self, last_op: Option<OpId>) {
        if last_op.is_some() {
            *self.last_op.lock().expect("nobody panics while holding it") = last_op;
        }
    }

    pub fn state(&self) -> EntryState {
        self.lock().clone()
    }

    pub fn set_state(&self, state: EntryState) {
        *self.lock() = state;
    }

    /// Goes to the state that `next` picks for the present one, unless it picks none; gives the present one. So
    /// only one of several that want to stop a replica does.
    pub fn transition(&self, next: impl FnOnce(&EntryState) -> Option<EntryState>) -> EntryState {
        let mut state = self.lock();
        match next(&state) {
            Some(next) => std::mem::replace(&mut *state, next),
            None => state.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, EntryState> {
        self.state.lock().expect("nobody panics while holding a tablet's state")
    }

    /// The running replica, or the error a client gets instead.
    pub fn running(&self) -> Result<ReplicaHandle, TabletError> {
        let state = self.state();
        if let Some(error) = failure_of(&state) {
            return Err(TabletError::failed(&error));
        }
        match state {
            EntryState::Running(replica) => Ok(replica),
            EntryState::Tombstoned(_) => {
                let what = format!("Tablet {} is tombstoned: its data was deleted here", self.id);
                Err(TabletError::new(TabletErrorCode::TabletNotRunning, ErrorCode::IllegalState, what))
            }
            other => {
                let what = format!("Tablet not RUNNING: {}", state_pb(&other).as_str_name());
                Err(TabletError::new(TabletErrorCode::TabletNotRunning, ErrorCode::IllegalState, what))
            }
        }
    }

    /// The tablet, if it is open, whether or not it has failed since.
    pub fn tablet(&self) -> Option<Arc<Tablet>> {
        match &*self.lock() {
            EntryState::Running(replica) => Some(replica.tablet().clone()),
            _ => None,
        }
    }

    /// What failed this tablet, if something did.
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

    /// How much history the table wants kept, if it says so.
    pub fn history_max_age_s(&self) -> Option<u64> {
        let name = convert::HISTORY_MAX_AGE_SEC;
        match self.tablet() {
            Some(tablet) => tablet.table_schema().extra.get(name)?.parse().ok(),
            None => self.meta.extra.get(name)?.parse().ok(),
        }
    }

    /// The columns bound for a client's schema, if the last writer had the same one.
    pub fn bound_columns(&self, client: &[u8], version: u32) -> Option<Arc<[WireColumn]>> {
        let bound = self.bound.lock().expect("nobody panics while holding it");
        let bound = bound.as_ref().filter(|bound| bound.version == version && bound.client == client)?;
        Some(bound.columns.clone())
    }

    /// Remembers a binding. The bytes are copied: a slice would hold on to a whole request.
    pub fn remember_columns(&self, client: &Bytes, version: u32, columns: Arc<[WireColumn]>) {
        let client = client.to_vec();
        *self.bound.lock().expect("nobody panics while holding it") =
            Some(BoundSchema { version, client, columns });
    }
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
