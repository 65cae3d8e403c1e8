//! Deletion of replicas to tombstones, slots for their copies, and votes of tombstones.
//!
//! ```text
//!   RUNNING, FAILED ── DeleteTablet ──▶ STOPPING ──▶ TOMBSTONED or deleted
//!   nothing, TOMBSTONED, FAILED ── reserve_slot ──▶ COPYING ──▶ open_copied ──▶ RUNNING
//!                                                     └──▶ give_back ──▶ the previous state, or the tombstone
//! ```
//!
//! Invariant: only the task that moved a tablet to STOPPING or COPYING works on it; other requests get
//! `ALREADY_INPROGRESS`. A copy that replaces a tombstone may take long, and its leader may fail meanwhile. So the
//! replica continues to vote by the tombstone until the copy is complete.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::disk::Disk;
use engine::error::{Error, ErrorKind, Result};
use engine::ids::{OpId, TabletId, Term};
use engine::note::Note;
use engine::note::raft::{NotedDataState, NotedRole, PostState, RaftAction, RaftNote};
use engine::raft::interface::{VoteError, VoteErrorKind, VoteRequest, VoteResponse};
use engine::raft::{ConfigPosition, ConsensusMeta, VoteDecision, decide_vote};
use engine::replica::copy::{LocalData, LocalReplica, RejectedSource, is_vote_unknown};
use engine::replica::{consensus_meta_store, tombstone};
use engine::tablet::superblock::Superblock;

use super::leftovers::{remove_from, remove_leftovers};
use super::replica::ReplicaHandle;
use super::tablet_entry::{EntryState, TabletEntry};
use super::tablet_manager::{TabletManager, failed_entry};
use crate::dirs::Directory;
use nyala_common::env::Env;
use nyala_common::wire::errors::{TabletError, TabletErrorCode};
use nyala_proto::kudu::app_status_pb::ErrorCode;

/// A tablet's slot on this server, reserved for its copy.
pub struct CopySlot {
    /// State of the local replica that the copy replaces.
    pub local: LocalReplica,
    pub data_dir: Arc<Directory>,
    /// Data directories that may have leftovers of a tablet that is not here.
    leftover_dirs: Vec<Arc<Directory>>,
    entry: Arc<TabletEntry>,
    /// Error that had failed the previous replica.
    failure: Option<Error>,
    /// True once the copy has replaced the local replica.
    begun: AtomicBool,
}

impl CopySlot {
    /// Creates a slot without a previous failure. Only the caller uses the entry.
    pub fn new(local: LocalReplica, data_dir: Arc<Directory>, entry: Arc<TabletEntry>) -> CopySlot {
        let leftover_dirs = Vec::new();
        CopySlot { local, data_dir, leftover_dirs, entry, failure: None, begun: AtomicBool::default() }
    }

    /// Removes what earlier creations and copies of a tablet that is not here have left. Does disk work.
    pub fn remove_leftovers(&self, wal: &dyn Disk) -> Result<()> {
        remove_leftovers(wal, &self.leftover_dirs, self.local.tablet)
    }

    /// Remembers that the copy has replaced the local replica.
    pub fn set_begun(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// Runs `work`, which changes the consensus metadata of the replica being copied. No vote is granted meanwhile.
    pub async fn alone<R>(&self, work: impl Future<Output = R>) -> R {
        let _alone = self.entry.vote_lock.lock().await;
        work.await
    }

    /// Remembers the leader whose copy was rejected because the vote here cannot be read; `None` when it can be.
    pub fn set_rejected(&self, source: Option<RejectedSource>) {
        self.entry.set_rejected_source(source);
    }

    /// Returns the leader whose copy was the last to be rejected because the vote here cannot be read.
    pub fn rejected(&self) -> Option<RejectedSource> {
        self.entry.rejected_source()
    }

    /// Ends the tombstone's votes: the copied replica votes next. Returns the term reached.
    pub async fn end_votes(&self, env: &Env) -> Result<Term> {
        end_votes(&self.entry).await;
        term_of(env, &self.entry).await
    }
}

/// Checks that an order that knows the configuration `cas` may delete a replica that knows the one at `known`.
fn check_cas(known: ConfigPosition, cas: Option<ConfigPosition>) -> Result<(), TabletError> {
    if tombstone::may_delete(known, cas) {
        return Ok(());
    }
    let newest = cas.map_or(-1, |cas| cas.index);
    let message = format!("the configuration at index {} is newer than {newest}", known.index);
    Err(TabletError::new(TabletErrorCode::CasFailed, ErrorCode::IllegalState, message))
}

impl TabletManager {
    /// Deletes a tablet's data. A tombstone keeps the consensus metadata: term, vote, and the last operation of the
    /// log. `cas` is the newest committed configuration that the order knows; a replica that knows a newer one may be
    /// needed in it.
    ///
    /// `CAS_FAILED` for that, `ALREADY_INPROGRESS` if another task works on the tablet. After any other error the
    /// deletion may be retried. A device without space for a tombstone leaves a replica that runs.
    pub async fn delete(
        &self,
        entry: &Arc<TabletEntry>,
        tombstone: bool,
        cas: Option<ConfigPosition>,
    ) -> Result<(), TabletError> {
        if tombstone {
            entry.check_single()?;
        }
        self.check_cas(entry, cas).await?;
        let found = entry.transition(|state| match state {
            EntryState::Bootstrapping | EntryState::Copying | EntryState::Stopping => None,
            EntryState::Tombstoned(_) if tombstone => None,
            _ => Some(EntryState::Stopping),
        });
        let was_running = matches!(found, EntryState::Running(_));
        let (last_op, earlier) = match found {
            EntryState::Running(replica) => self.stop_to_remove(entry, &replica, cas).await?,
            EntryState::Tombstoned(_) if tombstone => return Ok(()),
            EntryState::Tombstoned(last) => (last, None),
            EntryState::Failed(error) => (entry.last_op(), Some(error)),
            EntryState::Stopped => (entry.last_op(), None),
            EntryState::Bootstrapping | EntryState::Copying | EntryState::Stopping => {
                return Err(in_progress(entry));
            }
        };
        if !tombstone {
            self.mark_deleted(entry.id);
        }
        let (term, last_op) = match self.remove(entry, tombstone, last_op).await {
            Ok(removed) => removed,
            // What is left of a copy that failed before it stored anything.
            Err(error) if earlier.is_some() && error.kind == ErrorKind::NotFound => {
                entry.set_state(EntryState::Stopped);
                self.forget(entry.id);
                return Ok(());
            }
            // A tombstone needs a block for the last operation. Without one the replica is as it was.
            Err(error) if tombstone && was_running && earlier.is_none() && error.is_no_space() => {
                entry.set_state(EntryState::Bootstrapping);
                self.open(entry).await;
                return Err(error.into());
            }
            Err(error) => {
                let is_first = earlier.is_none();
                // The first failure counts: after one for lack of space the tablet would be opened again.
                entry.set_state(EntryState::Failed(earlier.unwrap_or_else(|| error.clone())));
                if is_first {
                    self.env().run(|| self.note_failure(entry, RaftAction::Fail)).await;
                }
                self.mark_changed(entry.id);
                return Err(error.into());
            }
        };
        if tombstone {
            let action = RaftAction::Tombstone { cas: cas.and_then(|cas| u64::try_from(cas.index).ok()) };
            self.note_end(entry, action, term, last_op);
            entry.set_state(EntryState::Tombstoned(last_op));
            self.mark_changed(entry.id);
        } else {
            entry.set_state(EntryState::Stopped);
            self.forget(entry.id);
        }
        Ok(())
    }

    /// Stops a replica before its removal. Returns its last operation and its failure, if any. `CAS_FAILED`, with the
    /// replica open again, if a newer configuration was committed while it stopped.
    async fn stop_to_remove(
        &self,
        entry: &Arc<TabletEntry>,
        replica: &ReplicaHandle,
        cas: Option<ConfigPosition>,
    ) -> Result<(Option<OpId>, Option<Error>), TabletError> {
        let stopped = replica.stop().await;
        let known = stopped.as_ref().map(|replica| replica.status(self.env().now()).active_position);
        entry.remember_last_op(stopped.map(|replica| replica.last_op()));
        let checked = match known {
            Some(known) => check_cas(known, cas),
            None => self.check_cas(entry, cas).await,
        };
        if let Err(newer) = checked {
            self.env().observer.mark("delete: newer configuration while it stopped");
            entry.set_state(EntryState::Bootstrapping);
            self.open(entry).await;
            return Err(newer);
        }
        Ok((entry.last_op(), replica.failure()))
    }

    /// Removes the replica's data from the disk. Returns the term that it had reached, and the last operation that its
    /// tombstone knows: a superblock that could not be read when the server started may have it.
    async fn remove(
        &self,
        entry: &TabletEntry,
        tombstone: bool,
        last_op: Option<OpId>,
    ) -> Result<(Term, Option<OpId>)> {
        let (wal, data) = (&*self.dirs().wal.disk, &*entry.data_dir.disk);
        self.env().observer.mark("delete: begins");
        let remove = || {
            let term = consensus_meta_store::load_known(data, entry.id)?.map_or(0, |meta| meta.term);
            if tombstone {
                return Ok((term, tombstone::tombstone(wal, data, entry.id, last_op)?));
            }
            let dirs = [&entry.data_dir].into_iter().chain(&entry.duplicates);
            remove_from(wal, dirs, entry.id)?;
            // At once: after a crash nothing on the disks shows it.
            self.note_end(entry, RaftAction::Delete, term, last_op);
            Ok((term, last_op))
        };
        self.env().run(remove).await
    }

    async fn check_cas(&self, entry: &TabletEntry, cas: Option<ConfigPosition>) -> Result<(), TabletError> {
        if cas.is_none() {
            return Ok(());
        }
        let checked = check_cas(self.config_position(entry).await?, cas);
        self.env().observer.mark_if(checked.is_err(), "delete: rejected, newer configuration");
        checked
    }

    /// Reports to the observer the new state of a replica that does not run.
    pub(super) fn note(&self, tablet: TabletId, action: RaftAction, post: PostState) {
        let note = Note::Raft(RaftNote { action, post });
        tracing::info!(%tablet, %note);
        self.env().observer.note(tablet, &note);
    }

    /// Reports the failure of a replica that does not run. Its stored state is unchanged, as far as the server knows.
    /// Does disk work.
    ///
    /// Spec: Raft.tla Fail.
    pub(super) fn note_failure(&self, entry: &TabletEntry, action: RaftAction) {
        let term = consensus_meta_store::load(&*entry.data_dir.disk, entry.id).map_or(0, |meta| meta.term);
        let post = PostState { data: NotedDataState::Failed, ..tombstone_post(term, entry.last_op()) };
        self.note(entry.id, action, post);
    }

    /// Reports that a replica, or the rest of one, could not be opened. Does disk work.
    ///
    /// Spec: Raft.tla FailOpen.
    pub(super) fn note_not_opened(&self, entry: &TabletEntry) {
        let meta = consensus_meta_store::load(&*entry.data_dir.disk, entry.id).ok();
        let vote = meta.and_then(|meta| meta.voted_for);
        self.note_failure(entry, RaftAction::FailOpen { vote });
    }

    fn note_end(&self, entry: &TabletEntry, action: RaftAction, term: Term, last_op: Option<OpId>) {
        let deleted = action == RaftAction::Delete;
        let post = match deleted {
            true => PostState { data: NotedDataState::Gone, ..tombstone_post(0, None) },
            false => tombstone_post(term, last_op),
        };
        self.note(entry.id, action, post);
    }

    /// Reports a tombstone, or a tablet in unknown state, after a restart of the server. Does disk work.
    pub(super) fn note_restart(&self, entry: &TabletEntry) {
        let last = match entry.state() {
            EntryState::Tombstoned(last) => last,
            EntryState::Failed(_) => return self.note_not_opened(entry),
            _ => return,
        };
        if let Ok(meta) = consensus_meta_store::load(&*entry.data_dir.disk, entry.id) {
            self.note(
                entry.id,
                RaftAction::Restart { vote: meta.voted_for },
                tombstone_post(meta.term, last),
            );
        }
    }

    /// Grants or denies the vote of a tombstone, also while a copy is about to replace it: both use the state in the
    /// superblock. Order: the vote is durable before the reply leaves. Nothing else changes the stored state meanwhile.
    ///
    /// Spec: Raft.tla GrantVote of a replica that is "T" or "Y".
    pub async fn vote(
        &self,
        entry: &TabletEntry,
        request: &VoteRequest,
    ) -> Result<VoteResponse, TabletError> {
        let _alone = entry.vote_lock.lock().await;
        if !matches!(entry.state(), EntryState::Tombstoned(_) | EntryState::Copying) {
            return Err(Error::not_ready("the tablet is being copied to this server").into());
        }
        let (me, tablet, disk) = (self.dirs().uuid, entry.id, &*entry.data_dir.disk);
        let vote = || -> Result<_> {
            let TombstoneVote { known, mut vote_state } = read_vote(disk, tablet)?;
            if let EntryState::Tombstoned(_) = entry.state() {
                // A copy that was aborted on a full device has left its superblock.
                vote_state.data = NotedDataState::Tombstoned;
            }
            // A copy that was rejected proves that no vote was given since.
            entry.set_rejected_source(None);
            let decision = decide_vote(&known, vote_state.last, request, false);
            if let Some(changed) = &decision.meta {
                consensus_meta_store::store(disk, changed)?;
            }
            Ok((decision, known, vote_state))
        };
        let (decision, known, vote_state) = self.env().run(vote).await?;
        let unknown = |error: &VoteError| error.kind == VoteErrorKind::LastOpIdUnknown;
        let refused = decision.error.as_ref().is_some_and(unknown);
        self.env().observer.mark_if(refused, "vote: denied, last log entry unknown");
        self.note_vote(tablet, vote_state, request, &known, &decision);
        Ok(decision.response(me, &known))
    }

    fn note_vote(
        &self,
        tablet: TabletId,
        vote_state: PersistedVoteState,
        request: &VoteRequest,
        known: &ConsensusMeta,
        decision: &VoteDecision,
    ) {
        let VoteRequest { candidate, term, .. } = *request;
        let granted = decision.error.is_none();
        let post = |term: Term| PostState { data: vote_state.data, ..tombstone_post(term, vote_state.last) };
        if granted && request.is_pre_vote {
            let action = RaftAction::GrantPreVote { candidate, term };
            return self.note(tablet, action, post(known.term));
        }
        let Some(changed) = &decision.meta else { return };
        let post = post(changed.term);
        if changed.term > known.term {
            self.note(tablet, RaftAction::SeeTerm { term }, post);
        }
        if granted {
            self.note(tablet, RaftAction::GrantVote { candidate, term }, post);
        }
        let action = RaftAction::MetaPersist { term: changed.term, vote: changed.voted_for };
        self.note(tablet, action, post);
    }

    /// Returns the position of the newest configuration that a replica knows, committed or not: one that its leader
    /// knows as a learner may be a voter in a newer configuration. A replica that does not run has its newest committed
    /// configuration stored. Index -1 if that is unknown.
    async fn config_position(&self, entry: &TabletEntry) -> Result<ConfigPosition> {
        if let EntryState::Running(replica) = entry.state() {
            return Ok(replica.status().active_position);
        }
        let disk = &*entry.data_dir.disk;
        let known = self.env().run(|| consensus_meta_store::load_known(disk, entry.id)).await?;
        Ok(ConfigPosition::at(known.map_or(-1, |meta| meta.committed.kudu_index())))
    }

    /// Reserves a tablet's slot for a copy. The present replica stays as it is until the copy begins.
    ///
    /// `TABLET_ALREADY_EXISTS` for a replica in use, `ALREADY_INPROGRESS` if another task works on the tablet.
    pub async fn reserve_slot(&self, tablet: TabletId) -> Result<CopySlot, TabletError> {
        let server = self.dirs().uuid;
        let (entry, reserved) = self.get_or_reserve(tablet);
        if reserved {
            let slot = CopySlot::new(LocalReplica::nothing(server, tablet), entry.data_dir.clone(), entry);
            return Ok(CopySlot { leftover_dirs: self.dirs().data.clone(), ..slot });
        }
        entry.check_single()?;
        let mut taken = false;
        let found = entry.transition(|state| {
            taken = match state {
                EntryState::Tombstoned(_) | EntryState::Failed(_) => true,
                EntryState::Running(replica) => replica.failure().is_some(),
                _ => false,
            };
            taken.then_some(EntryState::Copying)
        });
        let (has, failure) = match found {
            EntryState::Tombstoned(last) => {
                entry.remember_last_op(last);
                (LocalData::Tombstone, None)
            }
            EntryState::Failed(error) => (LocalData::Failed, Some(error)),
            EntryState::Running(replica) if taken => {
                let failure = replica.failure();
                entry.set_rejected_source(None);
                entry.remember_last_op(replica.stop().await.map(|replica| replica.last_op()));
                (LocalData::Failed, failure)
            }
            EntryState::Running(_) => {
                let message = format!("Tablet {tablet} has a replica in use here");
                let code = TabletErrorCode::TabletAlreadyExists;
                return Err(TabletError::new(code, ErrorCode::AlreadyPresent, message));
            }
            _ => return Err(in_progress(&entry)),
        };
        self.mark_changed(tablet);
        let term = match term_of(self.env(), &entry).await {
            Ok(term) => term,
            Err(error) => {
                // Without that state no request can decide if the tablet may be replaced by a copy.
                entry.set_state(match (has, failure) {
                    (LocalData::Tombstone, _) => EntryState::Tombstoned(entry.last_op()),
                    (_, failure) => EntryState::Failed(failure.unwrap_or_else(|| error.clone())),
                });
                return Err(error.into());
            }
        };
        let local = LocalReplica {
            server,
            tablet,
            has,
            last_op: entry.last_op(),
            at_least: entry.meta.last_op,
            term,
            rejected: entry.rejected_source(),
        };
        Ok(CopySlot { failure, ..CopySlot::new(local, entry.data_dir.clone(), entry) })
    }

    /// Ends a failed copy and recovers the tablet's state from the disk.
    pub async fn abort_copy(&self, slot: CopySlot) {
        let CopySlot { local, data_dir, entry, failure, begun, .. } = slot;
        end_votes(&entry).await;
        let (wal, data) = (&*self.dirs().wal.disk, &*data_dir.disk);
        self.env().observer.mark("tablet copy: given up");
        let (mut aborted, mut vote_unknown) = (false, false);
        let recovered = self.env().run(|| {
            use engine::tablet::superblock::DataState::Copying;
            aborted = match Superblock::load(data, local.tablet) {
                Err(error) if error.kind == ErrorKind::Io => return Err(error),
                loaded => loaded.is_ok_and(|meta| meta.data_state == Copying),
            };
            vote_unknown = is_vote_unknown(wal, data, &local);
            tombstone::recover(wal, data, local.tablet)
        });
        match (recovered.await, failure) {
            (Ok(Some(meta)), failure) => {
                let ready = meta.data_state == engine::tablet::superblock::DataState::Ready;
                let last_op = meta.tombstone_last_op;
                let back = Arc::new(TabletEntry::new(meta, data_dir));
                // A copy that is stored as complete has another log than the replica before it.
                if !(ready && begun.into_inner()) {
                    back.remember_last_op(entry.last_op());
                }
                back.set_rejected_source(entry.rejected_source());
                // Not a tombstone, which its leader would copy again: it must be evicted and added again.
                if ready || vote_unknown {
                    let why = failure.unwrap_or_else(|| Error::corrupt("it was being replaced by a copy"));
                    back.set_state(EntryState::Failed(why));
                }
                if aborted {
                    match term_of(self.env(), &back).await {
                        Ok(term) => self.note_end(&back, RaftAction::CopyAbort, term, last_op),
                        Err(error) => {
                            back.set_state(EntryState::Failed(error));
                            self.env().run(|| self.note_not_opened(&back)).await;
                        }
                    }
                }
                self.put(back);
            }
            (Ok(None), _) => self.forget(local.tablet),
            (Err(error), None) if error.kind == ErrorKind::NotFound => self.forget(local.tablet),
            (Err(error), failure) => {
                let known = failure.is_some() && !aborted;
                entry.set_state(EntryState::Failed(failure.unwrap_or(error)));
                if !known {
                    self.env().run(|| self.note_failure(&entry, RaftAction::Fail)).await;
                }
            }
        }
        self.mark_changed_if_here(local.tablet);
    }

    /// Opens the copied replica.
    pub async fn open_copied(&self, slot: CopySlot) {
        let CopySlot { local, data_dir, .. } = slot;
        let disk = &*data_dir.disk;
        match self.env().run(|| Superblock::load(disk, local.tablet)).await {
            Ok(meta) => {
                let opened = Arc::new(TabletEntry::new(meta, data_dir));
                self.put(opened.clone());
                self.open(&opened).await;
            }
            Err(error) => {
                // Not the entry from before the copy, which remembers the end of the log that was replaced.
                let failed = || Arc::new(failed_entry(local.tablet, &data_dir, error));
                let failed = self.env().run(failed).await;
                self.put(failed.clone());
                self.env().run(|| self.note_not_opened(&failed)).await;
                self.mark_changed(local.tablet);
            }
        }
    }
}

/// Ends the votes of this entry.
async fn end_votes(entry: &TabletEntry) {
    let _alone = entry.vote_lock.lock().await;
    entry.set_state(EntryState::Bootstrapping);
}

/// Returns the stored term of a replica that does not run; 0 if it is unknown.
async fn term_of(env: &Env, entry: &TabletEntry) -> Result<Term> {
    let load = || consensus_meta_store::load_known(&*entry.data_dir.disk, entry.id);
    Ok(env.run(load).await?.map_or(0, |meta| meta.term))
}

/// Persisted vote of a replica without data, and the state that decides about new votes.
struct TombstoneVote {
    known: ConsensusMeta,
    vote_state: PersistedVoteState,
}

#[derive(Clone, Copy)]
struct PersistedVoteState {
    last: Option<OpId>,
    data: NotedDataState,
}

/// Reads the persisted vote. `NotReady` for a failed replica that still has data: a copy must replace it first.
fn read_vote(disk: &dyn Disk, tablet: TabletId) -> Result<TombstoneVote> {
    use engine::tablet::superblock::DataState as Stored;
    let meta = Superblock::load(disk, tablet)?;
    let data = match meta.data_state {
        Stored::Tombstoned => NotedDataState::Tombstoned,
        Stored::Copying => NotedDataState::Copying,
        Stored::Ready | Stored::Deleted => return Err(Error::not_ready("the replica has failed")),
    };
    let vote_state = PersistedVoteState { last: meta.tombstone_last_op, data };
    Ok(TombstoneVote { known: consensus_meta_store::load(disk, tablet)?, vote_state })
}

/// Returns the state of a tombstone for the trace.
fn tombstone_post(term: Term, last_op: Option<OpId>) -> PostState {
    let (last, role) = (last_op.unwrap_or(OpId::MIN), NotedRole::Follower);
    PostState { term, last, commit: 0, role, data: NotedDataState::Tombstoned }
}

fn in_progress(entry: &TabletEntry) -> TabletError {
    let message = format!("Tablet {} is {}", entry.id, entry.state_pb().as_str_name());
    TabletError::new(TabletErrorCode::AlreadyInprogress, ErrorCode::AlreadyPresent, message)
}
