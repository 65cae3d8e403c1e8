//! Deleting replicas, and making room for their copies: what this server never forgets of a tablet.
//!
//! ```text
//!   RUNNING, FAILED ── DeleteTablet ──▶ STOPPING ──▶ TOMBSTONED, or gone
//!   nothing, TOMBSTONED, FAILED ── vacate ──▶ COPYING ──▶ open_copied ──▶ RUNNING
//!                                               └──▶ give_back ──▶ what was there, or the tombstone
//! ```
//!
//! Whoever takes a tablet to STOPPING or COPYING is alone with it; everybody else is told that it is being worked on.
//! But a copy over a tombstone goes on voting by what the tombstone remembers until it is complete: it may take long,
//! and its leader may die meanwhile.

use std::sync::Arc;

use engine::disk::Disk;
use engine::error::{Error, ErrorKind, Result};
use engine::ids::{OpId, TabletId, Term};
use engine::note::Note;
use engine::note::raft::{Action, DataState, Post, RaftNote, Role};
use engine::raft::message::{VoteError, VoteErrorKind, VoteRequest, VoteResponse};
use engine::raft::{ConsensusMeta, Status, VoteDecision, decide_vote};
use engine::replica::copy::{Has, Local};
use engine::replica::{cmeta, tombstone};
use engine::tablet::meta::TabletMeta;

use super::entry::{EntryState, TabletEntry};
use super::replica::ReplicaHandle;
use super::tablets::Tablets;
use crate::dirs::Directory;
use crate::env::Env;
use crate::proto::kudu::app_status_pb::ErrorCode;
use crate::wire::status::{TabletError, TabletErrorCode};

/// A tablet's place on this server, kept for its copy.
pub struct Vacant {
    /// What the server knows of the tablet.
    pub local: Local,
    pub data_dir: Arc<Directory>,
    entry: Arc<TabletEntry>,
    /// What had failed the replica that was here.
    failure: Option<Error>,
}

impl Vacant {
    /// A place that nothing failed in. The entry is its caller's alone.
    pub fn new(local: Local, data_dir: Arc<Directory>, entry: Arc<TabletEntry>) -> Vacant {
        Vacant { local, data_dir, entry, failure: None }
    }

    /// Does what changes the promises of the replica that is being copied: no vote is given meanwhile.
    pub async fn alone<R>(&self, work: impl Future<Output = R>) -> R {
        let _alone = self.entry.promises.lock().await;
        work.await
    }

    /// From here on no vote is given: somebody else is about to. The term that was reached.
    pub async fn end_votes(&self, env: &Env) -> Result<Term> {
        end_votes(&self.entry).await;
        term_of(env, &self.entry).await
    }
}

/// Committed or not: whose leader was told that it has a configuration that makes it a learner may be a voter by now.
fn newest_config(status: &Status) -> i64 {
    status.active_config().kudu_index()
}

/// Whether who knows the configuration of this index may be deleted by an order that knows the one of `cas`.
fn check_cas(index: i64, cas: Option<i64>) -> Result<(), TabletError> {
    if tombstone::may_delete(index, cas) {
        return Ok(());
    }
    let what = format!("the configuration at index {index} is newer than {}", cas.unwrap_or_default());
    Err(TabletError::new(TabletErrorCode::CasFailed, ErrorCode::IllegalState, what))
}

impl Tablets {
    /// Deletes a tablet's data. A tombstone keeps what the replica must never forget: its term, its vote, and how far
    /// its log went. `cas`: the index of the newest configuration that the order knows of; a replica that knows a newer
    /// one may be needed in it.
    ///
    /// `CAS_FAILED` for that, `ALREADY_INPROGRESS` if somebody works on it. After any other error it may be deleted
    /// again.
    pub async fn delete(
        &self,
        entry: &Arc<TabletEntry>,
        tombstone: bool,
        cas: Option<i64>,
    ) -> Result<(), TabletError> {
        self.check_cas(entry, cas).await?;
        let found = entry.transition(|state| match state {
            EntryState::Bootstrapping | EntryState::Copying | EntryState::Stopping => None,
            EntryState::Tombstoned(_) if tombstone => None,
            _ => Some(EntryState::Stopping),
        });
        let (last_op, failed_before) = match found {
            EntryState::Running(replica) => self.stop_to_remove(entry, &replica, cas).await?,
            EntryState::Tombstoned(_) if tombstone => return Ok(()),
            EntryState::Tombstoned(last) => (last, false),
            EntryState::Failed(_) => (entry.last_op(), true),
            EntryState::Stopped => (entry.last_op(), false),
            EntryState::Bootstrapping | EntryState::Copying | EntryState::Stopping => {
                return Err(in_progress(entry));
            }
        };
        if !tombstone {
            self.bury(entry.id);
        }
        let term = match self.remove(entry, tombstone, last_op).await {
            Ok(term) => term,
            Err(error) => {
                entry.set_state(EntryState::Failed(error.clone()));
                if !failed_before {
                    self.env().run(|| self.note_failure(entry, Action::Fail)).await;
                }
                self.mark_changed(entry.id);
                return Err(error.into());
            }
        };
        let action = match tombstone {
            true => Action::Tombstone { cas: cas.and_then(|index| u64::try_from(index).ok()) },
            false => Action::Delete,
        };
        self.note_end(entry, action, term, last_op);
        if tombstone {
            entry.set_state(EntryState::Tombstoned(last_op));
            self.mark_changed(entry.id);
        } else {
            entry.set_state(EntryState::Stopped);
            self.forget(entry.id);
        }
        Ok(())
    }

    /// Stops a replica that is to go; its last operation, and whether it had failed. `CAS_FAILED`, with the replica
    /// open again, if a newer configuration was agreed on while it stopped.
    async fn stop_to_remove(
        &self,
        entry: &Arc<TabletEntry>,
        replica: &ReplicaHandle,
        cas: Option<i64>,
    ) -> Result<(Option<OpId>, bool), TabletError> {
        let stopped = replica.stop().await;
        let known = stopped.as_ref().map(|replica| newest_config(&replica.status(self.env().now())));
        entry.remember_last_op(stopped.map(|replica| replica.last_op()));
        let checked = match known {
            Some(index) => check_cas(index, cas),
            None => self.check_cas(entry, cas).await,
        };
        if let Err(newer) = checked {
            entry.set_state(EntryState::Bootstrapping);
            self.open(entry).await;
            return Err(newer);
        }
        Ok((entry.last_op(), replica.failure().is_some()))
    }

    /// Takes the replica's data off the disk; the term that it had reached.
    async fn remove(&self, entry: &TabletEntry, tombstone: bool, last_op: Option<OpId>) -> Result<Term> {
        let (wal, data) = (&*self.dirs().wal.disk, &*entry.data_dir.disk);
        let remove = || {
            let term = cmeta::load_known(data, entry.id)?.map_or(0, |meta| meta.term);
            match tombstone {
                true => tombstone::tombstone(wal, data, entry.id, last_op)?,
                false => tombstone::delete(wal, data, entry.id).or_else(fine_if_gone)?,
            }
            Ok(term)
        };
        self.env().run(remove).await
    }

    async fn check_cas(&self, entry: &TabletEntry, cas: Option<i64>) -> Result<(), TabletError> {
        if cas.is_none() {
            return Ok(());
        }
        check_cas(self.config_index(entry).await?, cas)
    }

    /// Tells whoever watches replication what became of a replica that does not run.
    pub(super) fn note(&self, tablet: TabletId, action: Action, post: Post) {
        let note = Note::Raft(RaftNote { action, post });
        tracing::info!(%tablet, %note);
        self.env().watch.note(tablet, &note);
    }

    /// Something failed a replica that does not run. What is here is as it was, as far as anybody knows. Does disk
    /// work.
    ///
    /// Spec: Raft.tla Fail.
    pub(super) fn note_failure(&self, entry: &TabletEntry, action: Action) {
        let term = cmeta::load(&*entry.data_dir.disk, entry.id).map_or(0, |meta| meta.term);
        let post = Post { data: DataState::Failed, ..tombstone_post(term, entry.last_op()) };
        self.note(entry.id, action, post);
    }

    /// A replica, or what was left of one, could not be opened. Does disk work.
    ///
    /// Spec: Raft.tla FailOpen.
    pub(super) fn note_not_opened(&self, entry: &TabletEntry) {
        let meta = cmeta::load(&*entry.data_dir.disk, entry.id).ok();
        let vote = meta.and_then(|meta| meta.voted_for);
        self.note_failure(entry, Action::FailOpen { vote });
    }

    fn note_end(&self, entry: &TabletEntry, action: Action, term: Term, last_op: Option<OpId>) {
        let gone = action == Action::Delete;
        let post = match gone {
            true => Post { data: DataState::Gone, ..tombstone_post(0, None) },
            false => tombstone_post(term, last_op),
        };
        self.note(entry.id, action, post);
    }

    /// A tombstone has come back with its server, or nobody knows what. Does disk work.
    pub(super) fn note_back(&self, entry: &TabletEntry) {
        let last = match entry.state() {
            EntryState::Tombstoned(last) => last,
            EntryState::Failed(_) => return self.note_not_opened(entry),
            _ => return,
        };
        if let Ok(meta) = cmeta::load(&*entry.data_dir.disk, entry.id) {
            self.note(entry.id, Action::Restart { vote: meta.voted_for }, tombstone_post(meta.term, last));
        }
    }

    /// The vote of a tombstone, or of one that a copy is about to replace: both know what the superblock remembers.
    /// What is promised is durable before anybody hears of it. Nothing else changes what is stored meanwhile.
    ///
    /// Spec: Raft.tla GrantVote of a replica that is "T" or "Y".
    pub async fn vote(
        &self,
        entry: &TabletEntry,
        request: &VoteRequest,
    ) -> Result<VoteResponse, TabletError> {
        let _alone = entry.promises.lock().await;
        if !matches!(entry.state(), EntryState::Tombstoned(_) | EntryState::Copying) {
            return Err(Error::not_ready("the tablet is being made anew here").into());
        }
        let (me, tablet, disk) = (self.dirs().uuid, entry.id, &*entry.data_dir.disk);
        let vote = || -> Result<_> {
            let Promises { known, standing } = promises(disk, tablet)?;
            let decision = decide_vote(&known, standing.last, request, false);
            if let Some(changed) = &decision.meta {
                cmeta::store(disk, changed)?;
            }
            Ok((decision, known, standing))
        };
        let (decision, known, standing) = self.env().run(vote).await?;
        let unknown = |error: &VoteError| error.kind == VoteErrorKind::LastOpIdUnknown;
        let refused = decision.error.as_ref().is_some_and(unknown);
        self.env().watch.mark_if(refused, "vote: refused, nobody knows how far the log went");
        self.note_vote(tablet, standing, request, &known, &decision);
        Ok(decision.response(me, &known))
    }

    fn note_vote(
        &self,
        tablet: TabletId,
        standing: Standing,
        request: &VoteRequest,
        known: &ConsensusMeta,
        decision: &VoteDecision,
    ) {
        let VoteRequest { candidate, term, .. } = *request;
        let granted = decision.error.is_none();
        let post = |term: Term| Post { data: standing.data, ..tombstone_post(term, standing.last) };
        if granted && request.pre_election {
            let action = Action::GrantPreVote { candidate, term };
            return self.note(tablet, action, post(known.term));
        }
        let Some(changed) = &decision.meta else { return };
        let post = post(changed.term);
        if changed.term > known.term {
            self.note(tablet, Action::SeeTerm { term }, post);
        }
        if granted {
            self.note(tablet, Action::GrantVote { candidate, term }, post);
        }
        let action = Action::MetaPersist { term: changed.term, vote: changed.voted_for };
        self.note(tablet, action, post);
    }

    /// Index of the newest configuration that a replica knows, as Kudu writes it. One that does not run has the newest
    /// that it knew to be committed stored; -1 if nobody could ever know any more.
    async fn config_index(&self, entry: &TabletEntry) -> Result<i64> {
        if let EntryState::Running(replica) = entry.state() {
            return Ok(newest_config(&replica.status()));
        }
        let disk = &*entry.data_dir.disk;
        let known = self.env().run(|| cmeta::load_known(disk, entry.id)).await?;
        Ok(known.map_or(-1, |meta| meta.committed.kudu_index()))
    }

    /// Keeps a tablet's place for a copy. What is there now stays as it is until the copy begins.
    ///
    /// `TABLET_ALREADY_EXISTS` over a replica in use, `ALREADY_INPROGRESS` if somebody works on it.
    pub async fn vacate(&self, tablet: TabletId) -> Result<Vacant, TabletError> {
        let (entry, reserved) = self.get_or_reserve(tablet);
        if reserved {
            let local = Local { tablet, has: Has::Nothing, last_op: None, at_least: OpId::MIN, term: 0 };
            return Ok(Vacant { local, data_dir: entry.data_dir.clone(), entry, failure: None });
        }
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
                (Has::Tombstone, None)
            }
            EntryState::Failed(error) => (Has::Failed, Some(error)),
            EntryState::Running(replica) if taken => {
                let failure = replica.failure();
                entry.remember_last_op(replica.stop().await.map(|replica| replica.last_op()));
                (Has::Failed, failure)
            }
            EntryState::Running(_) => {
                let what = format!("Tablet {tablet} has a replica in use here");
                let code = TabletErrorCode::TabletAlreadyExists;
                return Err(TabletError::new(code, ErrorCode::AlreadyPresent, what));
            }
            _ => return Err(in_progress(&entry)),
        };
        self.mark_changed(tablet);
        let term = match term_of(self.env(), &entry).await {
            Ok(term) => term,
            Err(error) => {
                // By what it does not know nobody may judge whether it may be copied over.
                entry.set_state(match (has, failure) {
                    (Has::Tombstone, _) => EntryState::Tombstoned(entry.last_op()),
                    (_, failure) => EntryState::Failed(failure.unwrap_or_else(|| error.clone())),
                });
                return Err(error.into());
            }
        };
        let local = Local { tablet, has, last_op: entry.last_op(), at_least: entry.meta.last_op, term };
        Ok(Vacant { local, data_dir: entry.data_dir.clone(), entry, failure })
    }

    /// Ends a copy that failed: what the disk says now is what is here.
    pub async fn give_back(&self, vacant: Vacant) {
        let Vacant { local, data_dir, entry, failure } = vacant;
        end_votes(&entry).await;
        let (wal, data) = (&*self.dirs().wal.disk, &*data_dir.disk);
        let mut aborted = false;
        let recovered = self.env().run(|| {
            use engine::tablet::meta::DataState::Copying;
            aborted = match TabletMeta::load(data, local.tablet) {
                Err(error) if error.kind == ErrorKind::Io => return Err(error),
                loaded => loaded.is_ok_and(|meta| meta.data_state == Copying),
            };
            tombstone::recover(wal, data, local.tablet)
        });
        match (recovered.await, failure) {
            (Ok(Some(meta)), failure) => {
                let ready = meta.data_state == engine::tablet::meta::DataState::Ready;
                let last_op = meta.tombstone_last_op;
                let back = Arc::new(TabletEntry::new(meta, data_dir));
                back.remember_last_op(entry.last_op());
                if ready {
                    let why = failure.unwrap_or_else(|| Error::corrupt("it was being replaced by a copy"));
                    back.set_state(EntryState::Failed(why));
                }
                if aborted {
                    match term_of(self.env(), &back).await {
                        Ok(term) => self.note_end(&back, Action::CopyAbort, term, last_op),
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
                    self.env().run(|| self.note_failure(&entry, Action::Fail)).await;
                }
            }
        }
        self.mark_changed_if_here(local.tablet);
    }

    /// Opens what was copied.
    pub async fn open_copied(&self, vacant: Vacant) {
        let Vacant { local, data_dir, entry, .. } = vacant;
        let disk = &*data_dir.disk;
        match self.env().run(|| TabletMeta::load(disk, local.tablet)).await {
            Ok(meta) => {
                let opened = Arc::new(TabletEntry::new(meta, data_dir));
                self.put(opened.clone());
                self.open(&opened).await;
            }
            Err(error) => {
                entry.set_state(EntryState::Failed(error));
                self.env().run(|| self.note_not_opened(&entry)).await;
                self.mark_changed(local.tablet);
            }
        }
    }
}

/// From here on this entry votes no more.
async fn end_votes(entry: &TabletEntry) {
    let _alone = entry.promises.lock().await;
    entry.set_state(EntryState::Bootstrapping);
}

/// The term that is stored of a replica that does not run; 0 if nobody knows it any more.
async fn term_of(env: &Env, entry: &TabletEntry) -> Result<Term> {
    let load = || cmeta::load_known(&*entry.data_dir.disk, entry.id);
    Ok(env.run(load).await?.map_or(0, |meta| meta.term))
}

/// What a replica without data promised, and what it is judged by.
struct Promises {
    known: ConsensusMeta,
    standing: Standing,
}

#[derive(Clone, Copy)]
struct Standing {
    last: Option<OpId>,
    data: DataState,
}

/// `NotReady` for a replica that has data: it failed and has yet to give way to a copy.
fn promises(disk: &dyn Disk, tablet: TabletId) -> Result<Promises> {
    use engine::tablet::meta::DataState as Stored;
    let meta = TabletMeta::load(disk, tablet)?;
    let data = match meta.data_state {
        Stored::Tombstoned => DataState::Tombstoned,
        Stored::Copying => DataState::Copying,
        Stored::Ready | Stored::Deleted => return Err(Error::not_ready("the replica has failed")),
    };
    let standing = Standing { last: meta.tombstone_last_op, data };
    Ok(Promises { known: cmeta::load(disk, tablet)?, standing })
}

/// Where a tombstone stands.
fn tombstone_post(term: Term, last_op: Option<OpId>) -> Post {
    let (last, role) = (last_op.unwrap_or(OpId::MIN), Role::Follower);
    Post { term, last, commit: 0, role, data: DataState::Tombstoned }
}

fn fine_if_gone(error: Error) -> Result<()> {
    if error.kind == ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

fn in_progress(entry: &TabletEntry) -> TabletError {
    let what = format!("Tablet {} is {}", entry.id, entry.state_pb().as_str_name());
    TabletError::new(TabletErrorCode::AlreadyInprogress, ErrorCode::AlreadyPresent, what)
}
