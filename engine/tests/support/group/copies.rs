//! What servers do around a replica that does not run: votes of tombstones, copies, deletions.

use engine::error::{Error, Result};
use engine::ids::{OpId, PeerId, Term};
use engine::note::raft::{Action, DataState, Post, RaftNote, Role as NoteRole};
use engine::raft::message::{VoteError, VoteErrorKind, VoteRequest, VoteResponse};
use engine::raft::{Config, ConsensusMeta, Role, decide_vote};
use engine::replica::copy::Manifest;
use engine::replica::tombstone::may_delete;

use super::node::Node;
use super::shelf::{self, Shelf};
use super::{Group, TABLET};

impl Group {
    pub(super) fn tombstone_votes(&mut self, at: PeerId, request: &VoteRequest) -> VoteResponse {
        let node = self.nodes.get_mut(&at).expect("a server");
        let Some(meta) = node.disk.meta.clone() else {
            let error = VoteError { kind: VoteErrorKind::TabletNotFound, message: String::new() };
            return VoteResponse { responder: at, term: 0, granted: false, error: Some(error) };
        };
        let decision = decide_vote(&meta, node.disk.tombstone, request, false);
        let response = decision.response(at, &meta);
        if let Some(changed) = decision.meta {
            let (term, vote) = (changed.term, changed.voted_for);
            node.on_shelf(|shelf| shelf.store(&changed));
            if term > meta.term {
                self.tell(at, Action::SeeTerm { term });
            }
            if response.granted {
                self.tell(at, Action::GrantVote { candidate: request.candidate, term });
            }
            self.tell(at, Action::MetaPersist { term, vote });
        } else if response.granted && request.pre_election {
            self.tell(at, Action::GrantPreVote { candidate: request.candidate, term: request.term });
        }
        if response.granted && !request.pre_election {
            self.checks.voted(at, request.term, request.candidate);
        }
        response
    }

    /// A note of a server without a running replica.
    fn tell(&mut self, at: PeerId, action: Action) {
        let node = &self.nodes[&at];
        let data = if node.is_copying() { DataState::Copying } else { DataState::Tombstoned };
        self.tell_as(at, action, (node.disk.tombstone.unwrap_or_default(), 0, data));
    }

    fn tell_as(&mut self, at: PeerId, action: Action, (last, commit, data): (OpId, u64, DataState)) {
        let term = self.nodes[&at].disk.meta.as_ref().map_or(0, |meta| meta.term);
        let post = Post { term, last, commit, role: NoteRole::Follower, data };
        self.trace.push(at, &RaftNote { action, post });
    }

    /// What the source of a copy offers.
    fn tell_source(&mut self, source: PeerId, sink: PeerId, upto: OpId) {
        let raft = self.nodes[&source].raft().expect("a source runs");
        let role = match raft.role() {
            Role::Leader => NoteRole::Leader,
            Role::Candidate => NoteRole::Candidate,
            _ => NoteRole::Follower,
        };
        let (term, last, commit) = (raft.term(), raft.last(), raft.committed().index);
        let post = Post { term, last, commit, role, data: DataState::Ready };
        self.trace.push(source, &RaftNote { action: Action::CopyOpen { sink, upto }, post });
    }

    /// A copy of what `source` has durably begins, if the code that copies admits it.
    pub fn copy(&mut self, source: PeerId, sink: PeerId, term: Term) -> Result<()> {
        let to = &self.nodes[&sink];
        if !self.nodes[&source].is_up() || (to.is_down() && !to.is_failed()) || to.is_copying() {
            return Err(Error::not_ready("no copy here now"));
        }
        let local = to.local();
        local.admit_term(term)?;
        let from = &self.nodes[&source];
        let (manifest, content) = (manifest(from), (from.disk.log.clone(), from.disk.gc_before));
        local.admit(&manifest)?;
        self.tell_source(source, sink, manifest.last_op);
        let node = self.nodes.get_mut(&sink).expect("a server");
        node.give_way();
        node.on_shelf(|shelf| shelf.begin(&local, term, manifest, content))?;
        self.tell(sink, Action::CopyStart { source, term });
        Ok(())
    }

    /// The copy onto `at` ends well, badly, or with the server's power.
    pub(super) fn copy_goes_on(&mut self, at: PeerId, pick: u64) {
        match pick % 16 {
            0 => self.abort_copy(at),
            1 => self.crash_shelf(at),
            2..8 => self.finish_copy(at),
            _ => {}
        }
    }

    pub fn finish_copy(&mut self, at: PeerId) {
        let node = self.nodes.get_mut(&at).expect("a server");
        if !node.unshelve() {
            return;
        }
        let last = node.disk.log.last().map_or(OpId::MIN, |entry| entry.op);
        let committed = node.disk.committed;
        self.tell_as(at, Action::CopyFinish, (last, committed, DataState::Ready));
        self.start(at, false);
    }

    pub fn abort_copy(&mut self, at: PeerId) {
        self.nodes.get_mut(&at).expect("a server").on_shelf(Shelf::abort);
        self.tell(at, Action::CopyAbort);
    }

    /// The power of a server without a replica goes, and comes back.
    pub fn crash_shelf(&mut self, at: PeerId) {
        let node = self.nodes.get_mut(&at).expect("a server");
        node.on_shelf(Shelf::crash);
        let vote = node.disk.meta.as_ref().and_then(|meta| meta.voted_for);
        self.tell(at, Action::Restart { vote });
    }

    /// The master deletes a replica. `cas`: the index of the configuration that it knows of.
    pub fn tombstone(&mut self, at: PeerId, cas: Option<i64>) {
        let node = self.nodes.get_mut(&at).expect("a server");
        let committed = match (node.raft(), &node.disk.meta) {
            (Some(raft), _) => raft.meta().committed.kudu_index(),
            (None, Some(meta)) => meta.committed.kudu_index(),
            (None, None) => return,
        };
        if !may_delete(committed, cas) {
            return;
        }
        node.tombstone();
        self.tickets.retain(|(to, _), _| *to != at);
        self.tell(at, Action::Tombstone { cas: cas.and_then(|index| u64::try_from(index).ok()) });
    }

    /// An error of the disk ends the replica; `at_start`: its server went down, and could not open it again.
    pub fn fail(&mut self, at: PeerId, at_start: bool) {
        let node = self.nodes.get_mut(&at).expect("a server");
        node.fail(!at_start);
        self.tickets.retain(|(to, _), _| *to != at);
        let vote = node.disk.meta.as_ref().and_then(|meta| meta.voted_for);
        let last = node.remembers().unwrap_or_default();
        let action = if at_start { Action::FailOpen { vote } } else { Action::Fail };
        self.tell_as(at, action, (last, 0, DataState::Failed));
    }
}

/// What a source shows of itself, as far as it is judged: there are no files behind it.
fn manifest(source: &Node) -> Manifest {
    let last_op = source.disk.log.last().map_or(OpId::MIN, |entry| entry.op);
    let committed = source.raft().map_or(0, |raft| raft.committed().index).min(last_op.index);
    let mut consensus = source.disk.meta.clone().expect("a running replica has metadata");
    // The configuration as of what is fetched.
    let configs = source.disk.log.iter().filter(|entry| entry.kind == engine::raft::kind::CONFIG);
    if let Some(entry) = configs.filter(|entry| entry.op.index <= committed).last() {
        consensus.committed = Config::decode(&entry.payload).expect("the source decoded it");
    }
    let consensus = ConsensusMeta { tablet: TABLET, ..consensus };
    Manifest {
        superblock: shelf::superblock(),
        consensus,
        last_op,
        committed,
        file_bytes: Vec::new(),
        segments: Vec::new(),
        truncations: Vec::new(),
    }
}
