//! Directed tests, which drive a group along behaviours of the specification's models. `cargo ci spec --directed`
//! generates the scripts, `spec/Directed.tla` defines their steps.
//!
//! ```text
//! nyala-script 1
//! origin MCRaft without onevote
//! servers=s1,s2,s3 voters=s1,s2,s3 learners=none eager=true
//! 1 s1 StartElection asked=true | term=1 vote=s1 role=candidate data=ready last=0.0 commit=0 log=none voters=... ...
//! refused 2 s2 GrantVote ...
//! ```
//!
//! After each step the code's state must be the specification's. Only a weakened specification takes a `refused`
//! step: the code must not reach the state of that line.
//!
//! As in the specification, messages of a leader are never lost: requests, votes and replies are kept, and a step
//! takes the one that it needs. A leader's request is built from its log as a leader might have built it.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::ids::{OpId, PeerId, Term};
use engine::raft::interface::{UpdateErrorKind, UpdateRequest, UpdateResponse, VoteRequest, VoteResponse};
use engine::raft::{
    ConfigChange, ConfigChangePart, ConsensusMeta, MemberKind, Peer, RaftConfig, RaftEvent, RaftMessage, Role,
};
use engine::replica::copy::LocalData;
use engine::wal::ReplicateEntry;

use super::node::Node;
use super::server_disk::Disk;
use super::{FaultRates, Group, InFlight, TABLET, id};

/// One line of a script.
#[derive(Debug)]
struct Step {
    refused: bool,
    number: String,
    server: PeerId,
    action: String,
    params: BTreeMap<String, String>,
    after: BTreeMap<String, String>,
}

/// Result of a step; the error says what it could not do, or did otherwise.
type StepResult<T> = Result<T, String>;

struct Driver {
    group: Group,
    eager: bool,
    votes_asked: Vec<(PeerId, VoteRequest)>,
    votes: Vec<(PeerId, RaftEvent)>,
    /// Numbers of requests in flight: leader, its term, peer, number.
    envelopes: Vec<(PeerId, Term, PeerId, u64)>,
    /// Replies to leaders.
    answers: Vec<(PeerId, UpdateResponse)>,
    /// Entries that the leader of each term ever had in its log.
    sent: BTreeMap<Term, Vec<ReplicateEntry>>,
    /// A server that has just become leader: its no-op is the next step, and is there already.
    led: Option<PeerId>,
}

/// Follows a script to its end. Returns the number of steps and the number of refused ones; an error names the step
/// that differed and the state it reached.
pub fn follow(text: &str) -> StepResult<usize> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let head = lines.next().unwrap_or_default();
    if head != "nyala-script 1" {
        return Err(format!("{head:?} where `nyala-script 1` belongs"));
    }
    lines.next().filter(|line| line.starts_with("origin ")).ok_or("no line `origin ...`")?;
    let setup = pairs(lines.next().unwrap_or_default().split_whitespace())?;
    let mut driver = Driver::new(&setup)?;
    let mut count = 0;
    for line in lines {
        let step = parse(line)?;
        driver.drive(&step).map_err(|why| format!("step {} {}: {why}", step.number, step.action))?;
        count += 1;
    }
    if count == 0 { Err("a script without steps".into()) } else { Ok(count) }
}

fn parse(line: &str) -> StepResult<Step> {
    let bad = || format!("{line:?} is not `NUMBER SERVER ACTION ... | STATE`");
    let (before, after) = line.split_once(" | ").ok_or_else(bad)?;
    let (refused, before) = match before.strip_prefix("refused ") {
        Some(rest) => (true, rest),
        None => (false, before),
    };
    let mut words = before.split_whitespace();
    let (Some(number), Some(server), Some(action)) = (words.next(), words.next(), words.next()) else {
        return Err(bad());
    };
    Ok(Step {
        refused,
        number: number.to_owned(),
        server: server_of(server)?,
        action: action.to_owned(),
        params: pairs(words)?,
        after: pairs(after.split_whitespace())?,
    })
}

fn pairs<'a>(words: impl Iterator<Item = &'a str>) -> StepResult<BTreeMap<String, String>> {
    let pair = |word: &str| {
        let (key, value) = word.split_once('=').ok_or(format!("{word:?} is not KEY=VALUE"))?;
        Ok((key.to_owned(), value.to_owned()))
    };
    words.map(pair).collect()
}

fn get<'a>(map: &'a BTreeMap<String, String>, key: &str) -> StepResult<&'a str> {
    map.get(key).map(String::as_str).ok_or(format!("{key}=... is missing"))
}

fn number(map: &BTreeMap<String, String>, key: &str) -> StepResult<u64> {
    let text = get(map, key)?;
    text.parse().map_err(|_| format!("{key}={text} is no number"))
}

/// Returns the configuration index of an order; the specification calls the first one 0.
fn config_index(params: &BTreeMap<String, String>) -> StepResult<Option<i64>> {
    Ok(match get(params, "cas")? {
        "none" => None,
        "0" => Some(-1),
        _ => Some(number(params, "cas")? as i64),
    })
}

fn server_of(name: &str) -> StepResult<PeerId> {
    let number = name.strip_prefix('s').and_then(|rest| rest.parse().ok());
    number.map(id).ok_or(format!("{name:?} is no server"))
}

fn servers(text: &str) -> StepResult<Vec<PeerId>> {
    if text == "none" { Ok(Vec::new()) } else { text.split(',').map(server_of).collect() }
}

fn name(id: PeerId) -> String {
    format!("s{}", id.0[0])
}

fn names(ids: impl Iterator<Item = PeerId>) -> String {
    let mut ids: Vec<PeerId> = ids.collect();
    ids.sort_unstable();
    if ids.is_empty() { "none".into() } else { ids.into_iter().map(name).collect::<Vec<_>>().join(",") }
}

fn peer(id: PeerId, member: MemberKind) -> Peer {
    Peer { member, promote: false, ..Peer::voter(id, name(id), 7050) }
}

impl Driver {
    fn new(setup: &BTreeMap<String, String>) -> StepResult<Driver> {
        let voters = servers(get(setup, "voters")?)?.into_iter().map(|id| peer(id, MemberKind::Voter));
        let learners = servers(get(setup, "learners")?)?.into_iter().map(|id| peer(id, MemberKind::NonVoter));
        let first = RaftConfig::initial(voters.chain(learners).collect());
        let meta = ConsensusMeta::new(TABLET, first.clone());
        // No server exists yet: the script's servers are added below.
        let mut group = Group::new(1, 0, 0, FaultRates::zero());
        group.checks = super::invariants::Checks::new(first.clone());
        for server in servers(get(setup, "servers")?)? {
            let member = first.peer(server).is_some();
            let disk = if member { Disk::with(meta.clone()) } else { Disk::default() };
            group.nodes.insert(server, Node::new(server, disk, 0));
        }
        for peer in &first.peers {
            group.start(peer.id, true);
        }
        let eager = get(setup, "eager")? == "true";
        Ok(Driver {
            group,
            eager,
            votes_asked: Vec::new(),
            votes: Vec::new(),
            envelopes: Vec::new(),
            answers: Vec::new(),
            sent: BTreeMap::new(),
            led: None,
        })
    }

    fn drive(&mut self, step: &Step) -> StepResult<()> {
        let done = self.act(step).and_then(|()| {
            self.collect();
            self.answered(step)?;
            self.agrees(step)
        });
        match (step.refused, done) {
            (false, done) => done,
            (true, Err(_)) => Ok(()),
            (true, Ok(())) => Err("the code does what the specification forbids".into()),
        }
    }

    fn act(&mut self, step: &Step) -> StepResult<()> {
        let (at, params) = (step.server, &step.params);
        let led = self.led.take();
        match step.action.as_str() {
            "StartPreElection" => {
                self.expire_failure_detectors();
                self.group.step(at, RaftEvent::Elect { ignore_live_leader: false });
            }
            "GrantPreVote" | "GrantVote" => {
                let candidate = server_of(get(params, "candidate")?)?;
                self.request_vote(at, candidate, number(params, "term")?, step.action == "GrantPreVote")?;
            }
            "StartElection" if get(params, "asked")? == "true" => {
                self.group.step(at, RaftEvent::Elect { ignore_live_leader: true });
            }
            "StartElection" => self.win_pre_vote(at, number(&step.after, "term")?),
            "BecomeLeader" => {
                self.count_votes(at, number(&step.after, "term")?, false);
                self.led = Some(at);
            }
            "SeeTerm" => self.learn_term(at, number(params, "term")?),
            // A new leader appended its first entry, its no-op, when it was elected.
            "ClientAppend" if led == Some(at) => {}
            "ClientAppend" => {
                self.group.propose_at(at);
            }
            "Receive" => self.receive(at, params)?,
            "AdvanceCommit" => self.advance_commit(at, number(&step.after, "commit")?),
            "MetaPersist" => self.persist_meta(at),
            "LogPersist" => self.persist_log(at),
            "Restart" => self.restart(at),
            "ConfigAppend" => self.change_config(at, params)?,
            "CopyStart" => {
                let (source, term) = (server_of(get(params, "source")?)?, number(params, "term")?);
                self.group.copy(source, at, term).map_err(|error| error.to_string())?;
            }
            "CopyFinish" => self.group.finish_copy(at),
            "CopyAbort" => self.group.abort_copy(at),
            "Tombstone" => {
                self.group.tombstone(at, config_index(params)?);
            }
            "Fail" => self.group.fail(at, false),
            "FailOpen" => self.group.fail(at, true),
            other => return Err(format!("unknown action {other:?}")),
        }
        Ok(())
    }

    /// Expires the failure detectors; the servers are not stepped, so they take no action.
    fn expire_failure_detectors(&mut self) {
        self.group.now = self.group.now.after(Duration::from_secs(60));
    }

    fn request_vote(
        &mut self,
        at: PeerId,
        candidate: PeerId,
        term: Term,
        is_pre_vote: bool,
    ) -> StepResult<()> {
        let wanted = |(from, request): &&(PeerId, VoteRequest)| {
            *from == candidate && (request.dest, request.term, request.is_pre_vote) == (at, term, is_pre_vote)
        };
        let found = self.votes_asked.iter().rev().find(wanted).cloned();
        let (from, request) = found.ok_or(format!("{} did not ask for this vote", name(candidate)))?;
        if !request.ignore_live_leader {
            self.expire_failure_detectors();
        }
        self.deliver(from, at, RaftMessage::Vote(request));
        Ok(())
    }

    fn deliver(&mut self, from: PeerId, to: PeerId, message: RaftMessage) {
        let life = self.group.nodes[&from].life;
        self.group.deliver(InFlight::Request { from, life, to, message }, false);
    }

    /// Delivers the votes.
    fn count_votes(&mut self, at: PeerId, term: Term, pre_elections: bool) {
        for (to, event) in self.votes.clone() {
            let RaftEvent::Voted { term: asked, is_pre_vote, .. } = &event else { continue };
            if to == at && *asked == term && *is_pre_vote == pre_elections {
                self.group.step(at, event);
            }
        }
    }

    /// Delivers the pre-votes; a candidate that has lost its own request sends it again first.
    fn win_pre_vote(&mut self, at: PeerId, term: Term) {
        let stands = |group: &Group| group.nodes[&at].raft().is_some_and(|raft| raft.term() == term);
        self.count_votes(at, term, true);
        if !stands(&self.group) {
            self.group.step(at, RaftEvent::Elect { ignore_live_leader: false });
            self.count_votes(at, term, true);
        }
    }

    /// Delivers a reply that names a newer term.
    fn learn_term(&mut self, at: PeerId, term: Term) {
        let peer = *self.group.nodes.keys().find(|id| **id != at).expect("a group has several servers");
        let response = VoteResponse { responder: peer, term, granted: false, error: None };
        self.group.step(at, RaftEvent::Voted { peer, term, is_pre_vote: false, result: Ok(response) });
    }

    fn receive(&mut self, at: PeerId, params: &BTreeMap<String, String>) -> StepResult<()> {
        let (leader, term) = (server_of(get(params, "leader")?)?, number(params, "term")?);
        let (prev, upto) = (number(params, "prev")?, number(params, "upto")?);
        self.send(at, leader, term, prev, upto, number(params, "commit")?);
        if !self.eager {
            // Entries of the request that are already durable are acknowledged by the reply to an idle request.
            self.collect();
            let known = self.group.nodes[&at].disk.log.len() as u64;
            let known = known.min(prev.max(upto));
            let log = &self.sent[&term];
            let same = |n: u64| self.group.nodes[&at].disk.log.get(n as usize - 1) == log.get(n as usize - 1);
            let agreed = (1..=known).rev().find(|n| same(*n)).unwrap_or(0);
            self.send(at, leader, term, agreed, agreed, 0);
        }
        Ok(())
    }

    fn send(&mut self, to: PeerId, leader: PeerId, term: Term, prev: u64, upto: u64, committed: u64) {
        let log = self.sent.get(&term).cloned().unwrap_or_default();
        let preceding = prev.checked_sub(1).map_or(OpId::MIN, |n| log[n as usize].op);
        let request = UpdateRequest {
            tablet: TABLET,
            caller: leader,
            dest: to,
            term,
            preceding,
            entries: log[prev as usize..upto.max(prev) as usize].to_vec(),
            committed,
            all_replicated: 0,
            safe_time: None,
            sent: 0,
        };
        self.deliver(leader, to, RaftMessage::Update(request));
    }

    /// Delivers the newest acknowledgements up to `upto`.
    fn acknowledge(&mut self, leader: PeerId, upto: u64) {
        let term = self.group.nodes[&leader].raft().map_or(0, |raft| raft.term());
        let mut best: BTreeMap<PeerId, UpdateResponse> = BTreeMap::new();
        for (to, response) in &self.answers {
            let index = response.last_received_current_leader.index;
            let fits = *to == leader && response.error.is_none() && response.term == term && index <= upto;
            let known = best.get(&response.responder).map(|other| other.last_received_current_leader.index);
            if fits && known.is_none_or(|known| known <= index) {
                best.insert(response.responder, response.clone());
            }
        }
        for (peer, response) in best {
            let Some(sent) = self.envelope(leader, peer) else { continue };
            self.group.step(leader, RaftEvent::Updated { peer, sent, result: Ok(response) });
            self.collect();
        }
    }

    /// Returns the number of a request in flight; an idle one is sent if there is none.
    fn envelope(&mut self, leader: PeerId, peer: PeerId) -> Option<u64> {
        let term = self.group.nodes[&leader].raft()?.term();
        for _ in 0..2 {
            let found = self.envelopes.iter().position(|(l, t, p, _)| (*l, *t, *p) == (leader, term, peer));
            if let Some(found) = found {
                return Some(self.envelopes.remove(found).3);
            }
            self.group.now = self.group.now.after(super::options().heartbeat_interval);
            self.group.step(leader, RaftEvent::Tick);
            self.collect();
        }
        None
    }

    fn advance_commit(&mut self, leader: PeerId, upto: u64) {
        self.acknowledge(leader, upto);
    }

    fn change_config(&mut self, leader: PeerId, params: &BTreeMap<String, String>) -> StepResult<()> {
        let (voters, learners) = (servers(get(params, "voters")?)?, servers(get(params, "learners")?)?);
        let node = &self.group.nodes[&leader];
        let Some(raft) = node.raft() else { return Err("no replica".into()) };
        let (now, commit) = (self.group.reading(node), raft.committed().index);
        let config = raft.status(now).active_config().clone();
        let mut parts = Vec::new();
        for id in &voters {
            match config.peer(*id) {
                None => parts.push(ConfigChangePart::Add(peer(*id, MemberKind::Voter))),
                Some(known) if !known.is_voter() => {
                    let member = Some(MemberKind::Voter);
                    parts.push(ConfigChangePart::Modify { id: *id, member, promote: None, replace: None });
                }
                Some(_) => {}
            }
        }
        let new = learners.iter().filter(|id| config.peer(**id).is_none());
        parts.extend(new.map(|id| ConfigChangePart::Add(peer(*id, MemberKind::NonVoter))));
        let removed = config.peers.iter().filter(|p| !voters.contains(&p.id) && !learners.contains(&p.id));
        parts.extend(removed.map(|peer| ConfigChangePart::Remove(peer.id)));
        let cas = config_index(params)?;
        self.acknowledge(leader, commit);
        // An operator sends the change when all are alive; the master names the configuration that it used.
        let caught_up = self.caught_up(leader, commit);
        self.mark_alive(leader, |peer| cas.is_none() || caught_up.contains(&peer));
        let change = ConfigChange { parts, cas_opid_index: cas };
        self.group.step(leader, RaftEvent::ChangeConfig { ticket: 0, change });
        Ok(())
    }

    /// Returns the peers whose acknowledgements reach the leader's commit index.
    fn caught_up(&self, leader: PeerId, commit: u64) -> Vec<PeerId> {
        let term = self.group.nodes[&leader].raft().map_or(0, |raft| raft.term());
        let reaches = |(to, answer): &&(PeerId, UpdateResponse)| {
            let fits = *to == leader && answer.error.is_none() && answer.term == term;
            fits && answer.last_received_current_leader.index >= commit
        };
        self.answers.iter().filter(reaches).map(|(_, answer)| answer.responder).collect()
    }

    /// Makes these peers alive from the leader's view: they reply with something that says nothing of their logs. The
    /// others have been silent for long.
    fn mark_alive(&mut self, leader: PeerId, alive: impl Fn(PeerId) -> bool) {
        self.group.now = self.group.now.after(super::options().follower_failed_after * 2);
        let peers = self.group.nodes.keys().copied().filter(|id| *id != leader && alive(*id));
        for peer in peers.collect::<Vec<_>>() {
            let Some(sent) = self.envelope(leader, peer) else { continue };
            let response = UpdateResponse::refusal(peer, 0, UpdateErrorKind::InvalidTerm, String::new());
            self.group.step(leader, RaftEvent::Updated { peer, sent, result: Ok(response) });
            self.collect();
        }
    }

    fn persist_meta(&mut self, at: PeerId) {
        while let Some(event) = self.group.nodes.get_mut(&at).and_then(Node::write_meta) {
            self.group.step(at, event);
        }
    }

    fn persist_log(&mut self, at: PeerId) {
        while let Some(event) = self.group.nodes.get_mut(&at).and_then(Node::write_log) {
            self.group.step(at, event);
        }
    }

    /// Restarts a server after the worst crash: nothing that was not durable is there, except the commit record.
    fn restart(&mut self, at: PeerId) {
        if self.group.nodes[&at].has_no_replica() {
            return self.group.crash_store(at);
        }
        let node = self.group.nodes.get_mut(&at).expect("a server");
        let committed = node.raft().map_or(node.disk.committed, |raft| raft.committed().index);
        node.disk.committed = committed.min(node.disk.log.len() as u64);
        node.crash(0);
        self.group.tickets.retain(|(to, _), _| *to != at);
        self.group.start(at, false);
    }

    /// Takes the messages of the last step out of those in flight, and does the pending writes, if the disks are quick.
    fn collect(&mut self) {
        if self.eager {
            for at in self.group.nodes.keys().copied().collect::<Vec<_>>() {
                self.persist_meta(at);
                self.persist_log(at);
            }
        }
        for message in std::mem::take(&mut self.group.in_flight) {
            match message {
                InFlight::Request { from, message: RaftMessage::Vote(request), .. } => {
                    self.votes_asked.push((from, request));
                }
                InFlight::Request { from, to, message, .. } => {
                    if let RaftMessage::Update(request) | RaftMessage::Heartbeat(request) = message {
                        self.envelopes.push((from, request.term, to, request.sent));
                    }
                }
                InFlight::Answer { to, event: RaftEvent::Updated { result: Ok(response), .. }, .. } => {
                    self.answers.push((to, response));
                }
                InFlight::Answer { to, event: event @ RaftEvent::Voted { .. }, .. } => {
                    self.votes.push((to, event))
                }
                InFlight::Answer { .. } => {}
            }
        }
        for node in self.group.nodes.values() {
            if let Some(raft) = node.raft().filter(|raft| raft.is_leader()) {
                self.sent.insert(raft.term(), node.log.clone());
            }
        }
    }

    /// Checks that a vote that was granted was sent, if no disk is waited for.
    fn answered(&self, step: &Step) -> StepResult<()> {
        let given = match self.votes.last() {
            Some((_, RaftEvent::Voted { peer, result: Ok(vote), .. })) => {
                *peer == step.server && vote.granted
            }
            _ => false,
        };
        if self.eager && step.action.starts_with("Grant") && !given {
            return Err("the code does not give this vote".into());
        }
        Ok(())
    }

    /// Checks that the server's state is the specification's.
    fn agrees(&self, step: &Step) -> StepResult<()> {
        // Between this and the next step the code has already advanced.
        let ahead = step.action == "BecomeLeader";
        // An only voter commits its appends at once.
        let alone =
            step.action == "ConfigAppend" && step.after.get("voters").is_some_and(|v| !v.contains(','));
        let state = self.state(step.server);
        let differs = |(key, wanted): &(&String, &String)| {
            let skip = ahead && !matches!(key.as_str(), "term" | "vote" | "role")
                || alone && key.as_str() == "commit";
            !skip && state.get(key.as_str()).is_some_and(|is| is != *wanted)
        };
        let differences: Vec<String> =
            step.after.iter().filter(differs).map(|(key, value)| format!("{key}={value}")).collect();
        if differences.is_empty() {
            return Ok(());
        }
        let state: Vec<String> = state.iter().map(|(key, value)| format!("{key}={value}")).collect();
        Err(format!("the specification has {} where the code is {}", differences.join(" "), state.join(" ")))
    }

    fn state(&self, at: PeerId) -> BTreeMap<&'static str, String> {
        let node = &self.group.nodes[&at];
        let vote = |vote: Option<PeerId>| vote.map_or("none".to_owned(), name);
        let Some(raft) = node.raft() else {
            let (term, voted) = node.disk.meta.as_ref().map_or((0, None), |m| (m.term, m.voted_for));
            let data = match node.local().has {
                _ if node.is_failed() => "failed",
                _ if node.is_copying() => "copying",
                LocalData::Tombstone => "tombstoned",
                _ => "none",
            };
            let last = node.persisted_last_op().unwrap_or_default();
            let words = [("term", term.to_string()), ("vote", vote(voted)), ("data", data.into())];
            return words.into_iter().chain([("last", last.to_string())]).collect();
        };
        let status = raft.status(self.group.reading(node));
        let role = match raft.role() {
            Role::Leader => "leader",
            Role::Candidate => "candidate",
            _ => "follower",
        };
        let terms: Vec<String> = node.log.iter().map(|entry| entry.op.term.to_string()).collect();
        let config = status.active_config();
        BTreeMap::from([
            ("term", raft.term().to_string()),
            ("vote", vote(raft.meta().voted_for)),
            ("role", role.to_owned()),
            ("data", "ready".to_owned()),
            ("last", raft.last().to_string()),
            ("commit", raft.committed().index.to_string()),
            ("log", if terms.is_empty() { "none".into() } else { terms.join(",") }),
            ("voters", names(config.voters().map(|peer| peer.id))),
            ("learners", names(config.peers.iter().filter(|p| !p.is_voter()).map(|peer| peer.id))),
        ])
    }
}
