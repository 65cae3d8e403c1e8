//! Actions of servers on a replica that does not run: votes of tombstones, copies, deletions.

use engine::error::{Error, Result};
use engine::ids::{OpId, PeerId, Term};
use engine::note::raft::{NotedDataState, NotedRole, PostState, RaftAction, RaftNote};
use engine::raft::ConfigPosition;
use engine::raft::interface::{VoteError, VoteErrorKind, VoteRequest, VoteResponse};
use engine::raft::{ConsensusMeta, RaftConfig, Role, decide_vote};
use engine::replica::copy::{CopyLeader, CopyManifest};
use engine::replica::tombstone::may_delete;

use super::node::Node;
use super::replica_store::{self, ReplicaStore};
use super::{Group, TABLET};

impl Group {
    pub fn tombstone_votes(&mut self, at: PeerId, request: &VoteRequest) -> VoteResponse {
        let node = self.nodes.get_mut(&at).expect("a server");
        let Some(meta) = node.disk.meta.clone() else {
            let error = VoteError { kind: VoteErrorKind::TabletNotFound, message: String::new() };
            return VoteResponse { responder: at, term: 0, granted: false, error: Some(error) };
        };
        let decision = decide_vote(&meta, node.disk.tombstone, request, false);
        let response = decision.response(at, &meta);
        if let Some(changed) = decision.meta {
            let (term, vote) = (changed.term, changed.voted_for);
            node.with_store(|store| store.store(&changed));
            if term > meta.term {
                self.record_action(at, RaftAction::SeeTerm { term });
            }
            if response.granted {
                self.record_action(at, RaftAction::GrantVote { candidate: request.candidate, term });
            }
            self.record_action(at, RaftAction::MetaPersist { term, vote });
        } else if response.granted && request.is_pre_vote {
            self.record_action(
                at,
                RaftAction::GrantPreVote { candidate: request.candidate, term: request.term },
            );
        }
        if response.granted && !request.is_pre_vote {
            self.checks.voted(at, request.term, request.candidate);
        }
        response
    }

    /// Records an action of a server without a running replica.
    fn record_action(&mut self, at: PeerId, action: RaftAction) {
        let node = &self.nodes[&at];
        let data = if node.is_copying() { NotedDataState::Copying } else { NotedDataState::Tombstoned };
        self.record_action_with(at, action, (node.disk.tombstone.unwrap_or_default(), 0, data));
    }

    fn record_action_with(
        &mut self,
        at: PeerId,
        action: RaftAction,
        (last, commit, data): (OpId, u64, NotedDataState),
    ) {
        let term = self.nodes[&at].disk.meta.as_ref().map_or(0, |meta| meta.term);
        let post = PostState { term, last, commit, role: NotedRole::Follower, data };
        self.trace.push(at, &RaftNote { action, post });
    }

    /// Records the offer of a copy's source.
    fn record_source(&mut self, source: PeerId, sink: PeerId, upto: OpId) {
        let raft = self.nodes[&source].raft().expect("a source runs");
        let role = match raft.role() {
            Role::Leader => NotedRole::Leader,
            Role::Candidate => NotedRole::Candidate,
            _ => NotedRole::Follower,
        };
        let (term, last, commit) = (raft.term(), raft.last(), raft.committed().index);
        let post = PostState { term, last, commit, role, data: NotedDataState::Ready };
        self.trace.push(source, &RaftNote { action: RaftAction::CopyOpen { sink, upto }, post });
    }

    /// Begins a copy of the source's durable state, if the engine admits it.
    pub fn copy(&mut self, source: PeerId, sink: PeerId, term: Term) -> Result<()> {
        let to = &self.nodes[&sink];
        if !self.nodes[&source].is_up() || (to.is_down() && !to.is_failed()) || to.is_copying() {
            return Err(Error::not_ready("no copy here now"));
        }
        let local = to.local();
        local.admit_term(term)?;
        let from = &self.nodes[&source];
        let (manifest, content) = (manifest(from), (from.disk.log.clone(), from.disk.gc_before));
        local.check_source_state(&manifest)?;
        self.record_source(source, sink, manifest.last_op);
        let node = self.nodes.get_mut(&sink).expect("a server");
        node.prepare_replacement();
        node.with_store(|store| store.begin(&local, CopyLeader { id: source, term }, manifest, content))?;
        self.record_action(sink, RaftAction::CopyStart { source, term });
        Ok(())
    }

    /// Ends the copy to `at`: complete, aborted, or by a power failure.
    pub fn end_copy(&mut self, at: PeerId, pick: u64) {
        match pick % 16 {
            0 => self.abort_copy(at),
            1 => self.crash_store(at),
            2..8 => self.finish_copy(at),
            _ => {}
        }
    }

    pub fn finish_copy(&mut self, at: PeerId) {
        let node = self.nodes.get_mut(&at).expect("a server");
        if !node.open_copied() {
            return;
        }
        let last = node.disk.log.last().map_or(OpId::MIN, |entry| entry.op);
        let committed = node.disk.committed;
        self.record_action_with(at, RaftAction::CopyFinish, (last, committed, NotedDataState::Ready));
        self.start(at, false);
    }

    pub fn abort_copy(&mut self, at: PeerId) {
        self.nodes.get_mut(&at).expect("a server").with_store(ReplicaStore::abort);
        self.record_action(at, RaftAction::CopyAbort);
    }

    /// Simulates a power failure of a server without a replica.
    pub fn crash_store(&mut self, at: PeerId) {
        let node = self.nodes.get_mut(&at).expect("a server");
        node.with_store(ReplicaStore::crash);
        let vote = node.disk.meta.as_ref().and_then(|meta| meta.voted_for);
        self.record_action(at, RaftAction::Restart { vote });
    }

    /// Deletes a replica, as the master does. `cas`: the index of the configuration that it knows.
    pub fn tombstone(&mut self, at: PeerId, cas: Option<i64>) {
        let node = self.nodes.get_mut(&at).expect("a server");
        let committed = match (node.raft(), &node.disk.meta) {
            (Some(raft), _) => raft.meta().committed.kudu_index(),
            (None, Some(meta)) => meta.committed.kudu_index(),
            (None, None) => return,
        };
        if !may_delete(ConfigPosition::at(committed), cas.map(ConfigPosition::at)) {
            return;
        }
        node.tombstone();
        self.tickets.retain(|(to, _), _| *to != at);
        self.record_action(
            at,
            RaftAction::Tombstone { cas: cas.and_then(|index| u64::try_from(index).ok()) },
        );
    }

    /// Ends the replica with a disk error; `at_start`: the server restarted and could not open it.
    pub fn fail(&mut self, at: PeerId, at_start: bool) {
        let node = self.nodes.get_mut(&at).expect("a server");
        node.fail(!at_start);
        self.tickets.retain(|(to, _), _| *to != at);
        let vote = node.disk.meta.as_ref().and_then(|meta| meta.voted_for);
        let last = node.persisted_last_op().unwrap_or_default();
        let action = if at_start { RaftAction::FailOpen { vote } } else { RaftAction::Fail };
        self.record_action_with(at, action, (last, 0, NotedDataState::Failed));
    }
}

/// Returns the manifest of a source, as far as it is checked: there are no files behind it.
fn manifest(source: &Node) -> CopyManifest {
    let last_op = source.disk.log.last().map_or(OpId::MIN, |entry| entry.op);
    let committed = source.raft().map_or(0, |raft| raft.committed().index).min(last_op.index);
    let mut consensus = source.disk.meta.clone().expect("a running replica has metadata");
    // The configuration as of the copied entries.
    let configs = source.disk.log.iter().filter(|entry| entry.kind == engine::raft::kind::CONFIG);
    if let Some(entry) = configs.filter(|entry| entry.op.index <= committed).last() {
        consensus.committed = RaftConfig::decode(&entry.payload).expect("the source decoded it");
    }
    let consensus = ConsensusMeta { tablet: TABLET, ..consensus };
    CopyManifest {
        superblock: replica_store::superblock(),
        consensus,
        last_op,
        committed,
        file_bytes: Vec::new(),
        segments: Vec::new(),
        truncations: Vec::new(),
    }
}
