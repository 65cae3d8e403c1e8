//! Transcripts of the Raft core: `tests/raft/*.txt`.
//!
//! Servers are `a` to `g`. Disks write at once, except those that are stalled; messages wait until they are delivered.
//! The output has notes (`a | BecomeLeader | ...`), messages (`a -> b ...`), and replies to operators' requests
//! (`a : ...`). Safe times are milliseconds of the clocks, whose error is 1 ms unless set otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use datadriven::TestCase;
use engine::error::Error;
use engine::ids::{OpId, PeerId, TabletId, Term, Uuid};
use engine::raft::interface::{UpdateErrorKind, UpdateRequest, UpdateResponse, VoteRequest};
use engine::raft::{
    ConfigChange, ConfigChangePart, ConsensusMeta, MemberKind, Peer, RaftConfig, RaftEvent, RaftMessage,
    RaftOptions, RaftReply, ReplicationBacklog, kind,
};
use engine::time::{ClockReading, Instant, Timestamp, WallTime};
use engine::wal::ReplicateEntry;

use engine_testkit::group::node::Node;
use engine_testkit::group::server_disk::Disk;

const TABLET: TabletId = Uuid([7; 16]);

fn name(id: PeerId) -> String {
    (id.0[0] as char).to_string()
}

fn id(name: &str) -> PeerId {
    Uuid([name.as_bytes()[0]; 16])
}

struct PendingReply {
    from: PeerId,
    sent: u64,
    term: Term,
    is_pre_vote: bool,
}

#[derive(Default)]
struct World {
    nodes: BTreeMap<PeerId, Node>,
    /// Servers whose disk is stalled.
    stalled: BTreeSet<PeerId>,
    /// Servers whose disk cannot be read.
    spoiled: BTreeSet<PeerId>,
    messages: Vec<(PeerId, PeerId, RaftMessage)>,
    /// Replies in flight: to, from, event.
    answers: Vec<(PeerId, PeerId, RaftEvent)>,
    reply_senders: BTreeMap<u64, PendingReply>,
    ticket: u64,
    ms: u64,
    /// Error that clocks report, in milliseconds.
    error_ms: u64,
    text: String,
}

#[test]
fn raft_transcripts() {
    datadriven::walk("tests/raft", |file| {
        let mut world = World::default();
        file.run(|case| {
            world.command(case);
            let text = std::mem::take(&mut world.text);
            // Ids are one letter sixteen times.
            let short = shorten(&text);
            if short.is_empty() { "ok\n".to_string() } else { short }
        });
    });
}

fn shorten(text: &str) -> String {
    let mut short = text.to_string();
    for letter in b'a'..=b'z' {
        short = short.replace(&Uuid([letter; 16]).to_string(), &(letter as char).to_string());
    }
    short
}

impl World {
    fn command(&mut self, case: &TestCase) {
        let words: Vec<String> = case.args.keys().cloned().collect();
        // The arguments are unordered: the parser does not keep their order.
        let mut named: Vec<PeerId> =
            words.iter().filter(|word| word.len() == 1).map(|word| id(word)).collect();
        named.sort();
        let text = |name: &str| case.args.get(name).map(|v| v.first().cloned().unwrap_or_default());
        let first = named.first().copied();
        match case.directive.as_str() {
            "group" => self.group(&named, text("learners")),
            "tick" => self.tick(first.unwrap()),
            "wait" => self.ms += text("ms").unwrap().parse::<u64>().unwrap(),
            "propose" => self.propose(first.unwrap(), &text("op").unwrap()),
            "deliver" => {
                self.deliver(&named, text("count").map_or(usize::MAX, |count| count.parse().unwrap()))
            }
            "drop" => self.drop(&named),
            "run" => self.run_until_quiet(&named),
            "stall" => self.stalled.extend(named),
            "unstall" => named.iter().for_each(|at| {
                self.stalled.remove(at);
                self.write(*at);
            }),
            "store" => named.iter().for_each(|at| self.store(*at)),
            "spoil" => self.spoiled.extend(named),
            "mend" => self.spoiled.retain(|at| !named.contains(at)),
            "gc" => {
                let before = text("before").unwrap().parse().unwrap();
                self.nodes.get_mut(&first.unwrap()).unwrap().disk.gc_before = before;
            }
            "refuse" => self.refuse(id(&text("from").unwrap()), first.unwrap(), &text("error").unwrap()),
            "crash" => named.iter().for_each(|at| self.crash(*at)),
            "start" => named.iter().for_each(|at| self.start(*at, false)),
            "status" => self.status(),
            "backlog" => self.backlog(first.unwrap()),
            "due" => self.due(first.unwrap()),
            "change" => {
                self.change(first.unwrap(), &text("how").unwrap(), &text("who").unwrap(), text("cas"))
            }
            "step_down" => {
                let (to, abrupt) = (text("to").map(|to| id(&to)), text("abrupt").is_some());
                self.step(first.unwrap(), RaftEvent::StepDown { ticket: 0, to, abrupt });
            }
            "elect" => self.step(first.unwrap(), RaftEvent::Elect { ignore_live_leader: true }),
            "unsafe" => {
                let voters = text("voters").unwrap().chars().map(|c| id(&c.to_string())).collect();
                let caller = "an operator".to_string();
                self.step(first.unwrap(), RaftEvent::UnsafeConfig { ticket: 0, voters, caller });
            }
            "clocks" => self.error_ms = text("error").unwrap().parse().unwrap(),
            "want" => self.want(first.unwrap(), text("ms").unwrap().parse().unwrap()),
            "safe" => self.safe(),
            "update" => self.raw_update(case),
            "vote" => self.raw_vote(case),
            other => panic!("{other} is not a command"),
        }
    }

    fn reading(&self) -> ClockReading {
        let wall = WallTime { micros: 1_000_000 + self.ms * 1_000, error_micros: self.error_ms * 1_000 };
        ClockReading { mono: Instant(self.ms * 1_000_000), wall }
    }

    fn group(&mut self, voters: &[PeerId], learners: Option<String>) {
        *self = World { ms: 1_000, error_ms: 1, ..World::default() };
        let mut peers: Vec<Peer> = voters.iter().map(|at| peer(&name(*at), MemberKind::Voter)).collect();
        peers.extend(
            learners.iter().flat_map(|l| l.chars()).map(|c| peer(&c.to_string(), MemberKind::NonVoter)),
        );
        let meta = ConsensusMeta::new(TABLET, RaftConfig::initial(peers.clone()));
        for peer in &peers {
            self.nodes.insert(peer.id, Node::new(peer.id, Disk::with(meta.clone()), 0));
            self.start(peer.id, true);
        }
    }

    fn start(&mut self, at: PeerId, fresh: bool) {
        let now = self.reading();
        let node = self.nodes.get_mut(&at).unwrap();
        // Odd: not elected by its metadata. Its election timeout follows from its letter.
        let boot = node.boot(u64::from(at.0[0]), 1, fresh).unwrap();
        let times = RaftOptions { batch_bytes_max: 3, cache_bytes_max: 1 << 20, ..RaftOptions::tiny() };
        node.start(now, boot, RaftOptions { heartbeat_interval: Duration::from_millis(100), ..times });
        self.settle(at);
    }

    fn crash(&mut self, at: PeerId) {
        self.nodes.get_mut(&at).unwrap().crash(0);
        self.reply_senders.retain(|_, pending| pending.from != at);
        self.messages.retain(|(from, _, _)| *from != at);
    }

    fn step(&mut self, at: PeerId, event: RaftEvent) {
        let now = self.reading();
        let node = self.nodes.get_mut(&at).unwrap();
        if node.step(now, event) {
            self.settle(at);
        }
    }

    fn propose(&mut self, at: PeerId, op: &str) {
        let now = self.reading();
        if self.nodes.get_mut(&at).unwrap().propose(now, Bytes::from(op.to_string())) {
            self.settle(at);
        } else {
            let error = self.nodes[&at].raft().map(|raft| raft.check_leader());
            writeln!(self.text, "{} : refused: {error:?}", name(at)).unwrap();
        }
    }

    /// Lets a reader wait for a timestamp `ms` milliseconds ahead.
    fn want(&mut self, at: PeerId, ms: u64) {
        let now = self.reading();
        let wanted = Timestamp::from_micros(now.wall.micros + ms * 1_000);
        self.nodes.get_mut(&at).unwrap().want_safe_time(now, wanted);
        self.settle(at);
    }

    /// Prints the distance of safe times behind the clocks.
    fn safe(&mut self) {
        let now = self.reading().wall.micros;
        for (id, raft) in self.nodes.values().filter_map(|node| Some((node.id, node.raft()?))) {
            let behind = now as f64 / 1000.0 - raft.safe_time().micros() as f64 / 1000.0;
            writeln!(self.text, "{} {behind} ms behind", name(id)).unwrap();
        }
    }

    fn tick(&mut self, at: PeerId) {
        let due = self.nodes[&at].deadline().0.div_ceil(1_000_000);
        assert!(due < 1 << 40, "{} waits for nothing", name(at));
        self.ms = self.ms.max(due);
        self.step(at, RaftEvent::Tick);
    }

    /// Prints the time until a server's next deadline.
    fn due(&mut self, at: PeerId) {
        let wait = self.nodes[&at].deadline().since(self.reading().mono);
        writeln!(self.text, "{} in {} ms", name(at), wait.as_millis()).unwrap();
    }

    fn settle(&mut self, at: PeerId) {
        let output = self.nodes.get_mut(&at).unwrap().take_output();
        for note in &output.notes {
            writeln!(self.text, "{} | {note}", name(at)).unwrap();
        }
        for (to, message) in output.messages {
            writeln!(self.text, "{} -> {} {}", name(at), name(to.id), show(&message)).unwrap();
            self.messages.push((at, to.id, message));
        }
        for (ticket, reply) in output.replies {
            self.answer(at, ticket, reply);
        }
        for read in output.read_log {
            let result = match self.spoiled.contains(&at) {
                true => Err(Error::corrupt("the disk gives back something else")),
                false => self.nodes[&at].disk.read(read.from, read.max_bytes),
            };
            writeln!(self.text, "{} reads its log from {} for {}", name(at), read.from, name(read.peer))
                .unwrap();
            self.step(at, RaftEvent::LogRead { peer: read.peer, from: read.from, result });
        }
        if !self.stalled.contains(&at) {
            self.write(at);
        }
    }

    fn write(&mut self, at: PeerId) {
        for pick in [0, 0, 0x7fff_fff9, 0x7fff_fff9] {
            while let Some(event) = self.nodes.get_mut(&at).unwrap().write(pick) {
                self.step(at, event);
            }
        }
    }

    /// Makes metadata durable, independently of the log.
    fn store(&mut self, at: PeerId) {
        while let Some(event) = self.nodes.get_mut(&at).unwrap().write_meta() {
            self.step(at, event);
        }
    }

    fn answer(&mut self, at: PeerId, ticket: u64, reply: RaftReply) {
        let pending = self.reply_senders.remove(&ticket);
        let text = match &reply {
            RaftReply::Update(r) => {
                let (last, own) = (r.last_received, r.last_received_current_leader);
                let error = r.error.as_ref().map_or(String::new(), |e| format!(" {e}"));
                format!("term={} last={last} agreed={own} commit={}{error}", r.term, r.last_committed)
            }
            RaftReply::Vote(r) => {
                let error = r.error.as_ref().map_or("yes".to_string(), |e| format!("no: {e}"));
                format!("term={} {error}", r.term)
            }
            RaftReply::Config(result) | RaftReply::StepDown(result) => match result {
                Ok(()) => "done".to_string(),
                Err(error) => format!("{:?}: {error}", error.kind),
            },
        };
        let Some(pending) = pending else {
            writeln!(self.text, "{} : {text}", name(at)).unwrap();
            return;
        };
        writeln!(self.text, "{} => {} {text}", name(at), name(pending.from)).unwrap();
        let event = match reply {
            RaftReply::Update(response) => {
                RaftEvent::Updated { peer: at, sent: pending.sent, result: Ok(response) }
            }
            RaftReply::Vote(response) => {
                let (term, is_pre_vote) = (pending.term, pending.is_pre_vote);
                RaftEvent::Voted { peer: at, term, is_pre_vote, result: Ok(response) }
            }
            other => panic!("{other:?} is no reply to a peer"),
        };
        self.answers.push((pending.from, at, event));
    }

    /// Delivers messages in flight between the named servers (all, if none is named), and the replies to them.
    fn deliver(&mut self, named: &[PeerId], count: usize) {
        let among = |a: &PeerId, b: &PeerId| named.is_empty() || (named.contains(a) && named.contains(b));
        let mut arriving = Vec::new();
        self.messages.retain(|(from, to, message)| {
            let arrives = among(from, to) && arriving.len() < count;
            if arrives {
                arriving.push((*from, *to, message.clone()));
            }
            !arrives
        });
        for (from, to, message) in arriving {
            self.arrive(from, to, message);
        }
        let answers: Vec<_> = self.answers.extract_if(.., |(to, from, _)| among(to, from)).collect();
        for (to, _, event) in answers {
            self.step(to, event);
        }
    }

    fn arrive(&mut self, from: PeerId, to: PeerId, message: RaftMessage) {
        self.ticket += 1;
        let ticket = self.ticket;
        let up = self.nodes.get(&to).is_some_and(Node::is_up);
        match message {
            RaftMessage::Update(request) | RaftMessage::Heartbeat(request) if up => {
                let pending =
                    PendingReply { from, sent: request.sent, term: request.term, is_pre_vote: false };
                self.reply_senders.insert(ticket, pending);
                self.step(to, RaftEvent::Update { ticket, request });
            }
            RaftMessage::Vote(request) if up => {
                let (term, is_pre_vote) = (request.term, request.is_pre_vote);
                self.reply_senders.insert(ticket, PendingReply { from, sent: 0, term, is_pre_vote });
                self.step(to, RaftEvent::Vote { ticket, request });
            }
            RaftMessage::RunElection => self.step(to, RaftEvent::Elect { ignore_live_leader: true }),
            lost => self.lose(from, to, &lost),
        }
    }

    /// Rejects the oldest update in flight with this error; the replica there never sees it.
    fn refuse(&mut self, from: PeerId, by: PeerId, error: &str) {
        let kind = match error {
            "failed" => UpdateErrorKind::TabletFailed,
            "not-found" => UpdateErrorKind::TabletNotFound,
            "not-running" => UpdateErrorKind::TabletNotRunning,
            "wrong-uuid" => UpdateErrorKind::WrongUuid,
            other => panic!("{other} is no error of an update"),
        };
        let update = |(_, _, message): &(PeerId, PeerId, RaftMessage)| match message {
            RaftMessage::Update(request) | RaftMessage::Heartbeat(request) => {
                Some((request.sent, request.term))
            }
            _ => None,
        };
        let between =
            |sent: &(PeerId, PeerId, RaftMessage)| sent.0 == from && sent.1 == by && update(sent).is_some();
        let at = self.messages.iter().position(between).expect("an update on its way");
        let (sent, term) = update(&self.messages.remove(at)).expect("it is one");
        let result = Ok(UpdateResponse::refusal(by, term, kind, "made up".to_string()));
        self.step(from, RaftEvent::Updated { peer: by, sent, result });
    }

    fn lose(&mut self, from: PeerId, to: PeerId, message: &RaftMessage) {
        let unreachable_error = || Error::not_ready("the peer cannot be reached");
        match message {
            RaftMessage::Update(request) | RaftMessage::Heartbeat(request) => {
                self.step(
                    from,
                    RaftEvent::Updated { peer: to, sent: request.sent, result: Err(unreachable_error()) },
                );
            }
            RaftMessage::StartCopy { .. } => {
                self.step(from, RaftEvent::CopyStarted { peer: to, result: Err(unreachable_error()) })
            }
            _ => {}
        }
    }

    /// Drops the messages in flight between the named servers.
    fn drop(&mut self, named: &[PeerId]) {
        let among = |a: &PeerId, b: &PeerId| named.is_empty() || (named.contains(a) && named.contains(b));
        let lost: Vec<_> = self.messages.extract_if(.., |(from, to, _)| among(from, to)).collect();
        for (from, to, message) in lost {
            self.lose(from, to, &message);
        }
    }

    fn run_until_quiet(&mut self, named: &[PeerId]) {
        let among = |a: &PeerId, b: &PeerId| named.is_empty() || (named.contains(a) && named.contains(b));
        for _ in 0..50 {
            let waiting = self.messages.iter().any(|(a, b, _)| among(a, b))
                || self.answers.iter().any(|(a, b, _)| among(a, b));
            if !waiting {
                break;
            }
            self.deliver(named, usize::MAX);
        }
        // Other transcripts show the steps in between.
        self.text.clear();
        self.status();
    }

    fn backlog(&mut self, at: PeerId) {
        let ReplicationBacklog { uncommitted, committed } = self.nodes[&at].raft().unwrap().backlog();
        writeln!(self.text, "uncommitted={uncommitted} committed={committed}").unwrap();
    }

    fn status(&mut self) {
        let now = self.reading();
        for node in self.nodes.values() {
            let Some(raft) = node.raft() else {
                writeln!(self.text, "{} down", name(node.id)).unwrap();
                continue;
            };
            let status = raft.status(now);
            let log: Vec<String> = node.log.iter().map(|entry| entry.op.to_string()).collect();
            let (role, term, commit) = (status.role, status.term, status.committed.index);
            write!(self.text, "{} {role} term={term} log=[{}] commit={commit}", name(node.id), log.join(" "))
                .unwrap();
            if raft.durable() < raft.last().index {
                write!(self.text, " durable={}", raft.durable()).unwrap();
            }
            if let Some(pending) = &status.pending_config {
                write!(self.text, " pending {pending}").unwrap();
            } else if status.committed_config.opid_index.is_some() {
                write!(self.text, " config {}", status.committed_config).unwrap();
            }
            for peer in status.peers.iter().filter(|p| format!("{:?}", p.health).starts_with("Failed")) {
                write!(self.text, " {} {:?}", name(peer.id), peer.health).unwrap();
            }
            self.text.push('\n');
        }
    }

    fn change(&mut self, at: PeerId, how: &str, who: &str, cas: Option<String>) {
        let promoted = |member, promote| Peer { promote, ..peer(who, member) };
        let modify = |member| ConfigChangePart::Modify {
            id: id(who),
            member: Some(member),
            promote: None,
            replace: None,
        };
        let part = match how {
            "add" => ConfigChangePart::Add(promoted(MemberKind::Voter, false)),
            "learn" => ConfigChangePart::Add(promoted(MemberKind::NonVoter, true)),
            "remove" => ConfigChangePart::Remove(id(who)),
            "promote" => modify(MemberKind::Voter),
            "demote" => modify(MemberKind::NonVoter),
            "replace" => {
                ConfigChangePart::Modify { id: id(who), member: None, promote: None, replace: Some(true) }
            }
            other => panic!("{other} is not a change"),
        };
        let cas_opid_index = cas.map(|index| index.parse().unwrap());
        if matches!(how, "add" | "learn") {
            self.nodes.entry(id(who)).or_insert_with(|| {
                let meta =
                    ConsensusMeta::new(TABLET, RaftConfig::initial(vec![peer("z", MemberKind::Voter)]));
                Node::new(id(who), Disk::with(meta), 0)
            });
            if !self.nodes[&id(who)].is_up() {
                let text = std::mem::take(&mut self.text);
                self.start(id(who), false);
                self.text = text;
            }
        }
        self.step(
            at,
            RaftEvent::ChangeConfig { ticket: 0, change: ConfigChange { parts: vec![part], cas_opid_index } },
        );
    }

    /// Delivers an arbitrary request.
    fn raw_update(&mut self, case: &TestCase) {
        let text = |name: &str| case.args.get(name).map(|v| v.first().cloned().unwrap_or_default());
        let to = id(&text("to").unwrap());
        let caller = id(&text("from").unwrap());
        let term = text("term").unwrap().parse().unwrap();
        let entries = case.args.get("entries").cloned().unwrap_or_default();
        let entry = |text: &String| ReplicateEntry {
            op: op(text.trim_end_matches('c')),
            timestamp: Timestamp::from_micros(9_000_000 + op(text.trim_end_matches('c')).index),
            kind: if text.ends_with('c') { kind::CONFIG } else { kind::WRITE },
            payload: Bytes::from_static(b"made up"),
        };
        let request = UpdateRequest {
            tablet: if text("tablet").is_some() { Uuid::ZERO } else { TABLET },
            caller,
            dest: text("dest").map_or(to, |dest| id(&dest)),
            term,
            sent: 0,
            preceding: op(&text("preceding").unwrap_or("0.0".to_string())),
            entries: entries.iter().map(entry).collect(),
            committed: text("commit").map_or(0, |commit| commit.parse().unwrap()),
            all_replicated: 0,
            safe_time: None,
        };
        self.step(to, RaftEvent::Update { ticket: u64::MAX, request });
    }

    fn raw_vote(&mut self, case: &TestCase) {
        let text = |name: &str| case.args.get(name).map(|v| v.first().cloned().unwrap_or_default());
        let to = id(&text("to").unwrap());
        let request = VoteRequest {
            tablet: if text("tablet").is_some() { Uuid::ZERO } else { TABLET },
            candidate: id(&text("from").unwrap()),
            dest: text("dest").map_or(to, |dest| id(&dest)),
            term: text("term").unwrap().parse().unwrap(),
            last_op: op(&text("last").unwrap()),
            is_pre_vote: text("pre").is_some(),
            ignore_live_leader: text("asked").is_some(),
        };
        self.step(to, RaftEvent::Vote { ticket: u64::MAX, request });
    }
}

fn op(text: &str) -> OpId {
    let (term, index) = text.split_once('.').expect("term.index");
    OpId { term: term.parse().unwrap(), index: index.parse().unwrap() }
}

fn peer(name: &str, member: MemberKind) -> Peer {
    Peer { member, ..Peer::voter(id(name), name, 7050) }
}

fn show(message: &RaftMessage) -> String {
    match message {
        RaftMessage::Update(request) | RaftMessage::Heartbeat(request) => {
            let entries: Vec<String> = request.entries.iter().map(show_entry).collect();
            let (term, preceding, commit) = (request.term, request.preceding, request.committed);
            format!("update term={term} after={preceding} [{}] commit={commit}", entries.join(" "))
        }
        RaftMessage::Vote(request) => {
            let what = if request.is_pre_vote { "would you vote" } else { "vote" };
            let asked = if request.ignore_live_leader { " asked" } else { "" };
            format!("{what} term={} last={}{asked}", request.term, request.last_op)
        }
        RaftMessage::RunElection => "run an election".to_string(),
        RaftMessage::StartCopy { source, term } => format!("copy from {} term={term}", name(source.id)),
    }
}

fn show_entry(entry: &ReplicateEntry) -> String {
    match entry.kind {
        kind::NO_OP => format!("{} no-op", entry.op),
        kind::CONFIG => format!("{} config", entry.op),
        _ => format!("{} {}", entry.op, String::from_utf8_lossy(&entry.payload)),
    }
}
