//! Replicas of one tablet together: transcripts of their actions (`tests/group/*.txt`), and randomized runs in which
//! every acknowledged operation must take effect exactly once and snapshots must agree.
//!
//! Servers are `a`, `b`, `c`; `servers count=5` begins again with five. `write on=a [request=N]` is one operation,
//! proposed by client request N; its lines are rows. After each command messages are delivered and disks written until
//! nothing is left to do, unless `hold` is given. Replies are shown in the order of their arrival.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use engine::catalog::AUTO_INCREMENTING_ID;
use engine::config::TabletConfig;
use engine::error::{Error, ErrorKind, Result};
use engine::note::Note;
use engine::raft;
use engine::replica::{JobKind, Op, OpResult, RequestId};
use engine::schema::row_block::ProjectedColumn;
use engine::schema::row_ops::RowOpKind;
use engine::schema::{ColumnSchema, DataType, Schema, format_cell};
use engine::tablet::Tablet;
use engine::tablet::scan::{ScanSpec, SnapshotChoice};
use engine::time::Timestamp;
use engine_testkit::cluster::Cluster;
use engine_testkit::world::{Rows, Value, plain_schema, wire_columns};

#[test]
fn transcripts() {
    datadriven::walk("tests/group", |file| {
        let mut cluster = Cluster::new(3, plain_schema(), TabletConfig::tiny()).unwrap();
        cluster.settle();
        file.run(|case| {
            let result = run(&mut cluster, case);
            let mut text = String::new();
            for (server, note) in cluster.notes.drain(..).filter(|(_, note)| !matches!(note, Note::Raft(_))) {
                writeln!(text, "{}: note {note}", name(server)).unwrap();
            }
            for (server, done) in cluster.done.drain(..) {
                writeln!(text, "{}: {}", name(server), show_done(&done.result)).unwrap();
            }
            match result {
                Ok(result) => text += &result,
                Err(error) => writeln!(text, "{:?}: {error}", error.kind).unwrap(),
            }
            if text.is_empty() { "ok\n".to_string() } else { text }
        });
    });
}

fn name(server: usize) -> char {
    (b'a' + server as u8) as char
}

fn run(cluster: &mut Cluster, case: &datadriven::TestCase) -> Result<String> {
    let word = |name: &str| case.args.get(name).map(|values| values[0].clone());
    let server = |name: &str| word(name).map(|name| usize::from(name.as_bytes()[0] - b'a'));
    let on = server("on").unwrap_or(0);
    let mut shown = String::new();
    match case.directive.as_str() {
        "elect" => {
            let event = raft::RaftEvent::Elect { ignore_live_leader: true };
            cluster.step(on, event);
        }
        "write" => {
            let request = word("request").map(|seq| request(seq.parse().unwrap()));
            let op = write_op(&cluster.replica(on).tablet().schema(), &case.input);
            cluster.propose(on, op, request);
        }
        "alter" => {
            let op = add_column(cluster.replica(on).tablet(), &case.input);
            cluster.propose(on, op, None);
        }
        "servers" => {
            let count = word("count").unwrap().parse().unwrap();
            *cluster = Cluster::new(count, plain_schema(), TabletConfig::tiny())?;
        }
        "cut" => drop(cluster.cut.insert(on)),
        "heal" => drop(cluster.cut.remove(&on)),
        "stall" => cluster.servers[on].stalled = true,
        "resume" => cluster.servers[on].stalled = false,
        "fail" => {
            cluster.step(on, engine::replica::ReplicaEvent::LogFailed(Error::corrupt("the disk is gone")))
        }
        "crash" => cluster.crash(on),
        "restart" => cluster.restart(on)?,
        "pass" => cluster.pass(Duration::from_millis(word("ms").unwrap().parse().unwrap())),
        "flush" => drop(cluster.job(on, JobKind::FlushRows)?),
        "checkpoint" => drop(cluster.job(on, JobKind::Checkpoint)?),
        "scan" => {
            let rows = rows(cluster.replica(on).tablet(), SnapshotChoice::Latest)?;
            shown = if rows.is_empty() { "no rows\n".to_string() } else { rows.join("\n") + "\n" };
        }
        "status" => shown = status(cluster),
        "log" => shown = log(cluster),
        "snapshot" => {
            let at = Timestamp::from_micros(cluster.now.as_micros() as u64);
            cluster.step(on, engine::replica::ReplicaEvent::WantSnapshot { at });
        }
        "safe" => shown = safe(cluster),
        other => panic!("unknown directive {other}"),
    }
    if !case.args.contains_key("hold") {
        cluster.settle();
    }
    Ok(shown)
}

fn request(seq: i64) -> RequestId {
    RequestId { client: b"client".to_vec(), seq, first_incomplete: 0, attempt: 1 }
}

/// Parses rows `kind key value n`, `-` for an unset column.
fn write_op(schema: &Schema, input: &str) -> Op {
    let columns = wire_columns(schema);
    let mut rows = Rows::default();
    for line in input.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let kinds = [1, 2, 3, 5].map(|n| RowOpKind::from_number(n).unwrap());
        let kind = kinds.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(words[0])).expect("a kind");
        let cell = |(column, word): (&ColumnSchema, &&str)| match (*word, column.ty) {
            ("-", _) => Value::Unset,
            (word, DataType::String) => Value::text(word),
            (word, DataType::Int64) => Value::Bytes(word.parse::<i64>().unwrap().to_le_bytes().to_vec()),
            (word, _) => Value::int(word.parse().unwrap()),
        };
        let named = schema.columns().iter().filter(|column| !column.auto_incrementing);
        let cells: Vec<Value> = named.zip(&words[1..]).map(cell).collect();
        rows.add(&columns, kind, &cells);
    }
    rows.op(&columns)
}

/// Parses `name version`: adds an INT32.
fn add_column(tablet: &Tablet, input: &str) -> Op {
    let words: Vec<&str> = input.split_whitespace().collect();
    let schema = tablet.schema();
    let mut columns = schema.columns().to_vec();
    let id = 1 + columns.iter().map(|column| column.id.0).max().unwrap();
    columns.push(ColumnSchema::new(id, words[0], DataType::Int32).nullable());
    let schema = Box::new(Schema::new(columns, schema.num_key_columns()).unwrap());
    let (version, table_name) = (words[1].parse().unwrap(), "t".to_string());
    Op::AlterSchema { schema, version, table_name, extra: BTreeMap::new() }
}

fn show_done(result: &Result<OpResult>) -> String {
    match result {
        Ok(OpResult::Write { errors, counts }) => {
            let failed: String =
                errors.iter().map(|(row, error)| format!(" row {row}: {:?}", error.code)).collect();
            let done = counts.inserts + counts.updates + counts.upserts + counts.deletes;
            format!("wrote {done}{failed}")
        }
        Ok(other) => format!("{other:?}"),
        Err(error) => format!("{:?}: {error}", error.kind),
    }
}

fn rows(tablet: &Tablet, snapshot: SnapshotChoice) -> Result<Vec<String>> {
    let schema = tablet.schema();
    let projection: Vec<ProjectedColumn> = schema.columns().iter().map(Into::into).collect();
    let spec = ScanSpec { snapshot, ordered: true, ..ScanSpec::latest(projection) };
    let mut scan = tablet.scan(&spec)?;
    let mut shown = Vec::new();
    while let Some(block) = scan.next_block()? {
        for row in 0..block.rows {
            let cells = schema.columns().iter().zip(&block.columns);
            let cell = |(column, cells): (&ColumnSchema, &engine::schema::row_block::ColumnBlock)| {
                cells
                    .cell(row)
                    .map_or("NULL".to_string(), |cell| format_cell(column.ty, column.attributes, cell))
            };
            shown.push(cells.map(cell).collect::<Vec<_>>().join(" "));
        }
    }
    Ok(shown)
}

fn status(cluster: &Cluster) -> String {
    let mut text = String::new();
    for server in 0..cluster.servers.len() {
        if !cluster.is_up(server) {
            writeln!(text, "{}: down", name(server)).unwrap();
            continue;
        }
        let replica = cluster.replica(server);
        let status = replica.status(cluster.reading());
        let (role, term, last, committed) = (status.role, status.term, status.last, status.committed);
        let applied = replica.last_applied();
        let name = name(server);
        write!(text, "{name}: {role} term={term} last={last} committed={committed} applied={applied}")
            .unwrap();
        match replica.failure() {
            Some(error) => writeln!(text, " failed: {error}").unwrap(),
            None => text.push('\n'),
        }
    }
    text
}

/// Formats the log anchors of each server: of its own restart, and of the other members.
fn log(cluster: &Cluster) -> String {
    let up = (0..cluster.servers.len()).filter(|server| cluster.is_up(*server));
    let line = |server| {
        let replica = cluster.replica(server);
        let (keep, wanted) = (replica.log_keep_from(), replica.log_wanted_from());
        format!("{}: needed from {keep}, wanted from {wanted}\n", name(server))
    };
    up.map(line).collect()
}

/// Formats for each server whether snapshots of 100 ms ago are complete. If they are not, although that timestamp is
/// safe, then operations are missing: those in flight, and those that may return after their truncation.
fn safe(cluster: &Cluster) -> String {
    let at = Timestamp::from_micros((cluster.now - Duration::from_millis(100)).as_micros() as u64);
    let up = (0..cluster.servers.len()).filter(|server| cluster.is_up(*server));
    let line = |server| {
        let (replica, reading) = (cluster.replica(server), cluster.reading());
        let mvcc = replica.tablet().mvcc();
        let complete = match mvcc.all_applied_before(at) {
            true => "complete",
            false if replica.status(reading).safe_time >= at => "operations missing",
            false => "not complete",
        };
        let caught_up = if mvcc.is_caught_up() { "" } else { ", catching up" };
        format!("{}: {complete}{caught_up}\n", name(server))
    };
    up.map(line).collect()
}

/// The random number generator of the tests, so that a seed determines a run.
struct TestRng(u64);

impl TestRng {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// One client's write of one row, sent until it gets a reply.
struct Pending {
    seq: i64,
    key: i32,
    /// Servers that got the request, with the ticket there and the life of the server.
    attempts: Vec<(usize, u64, u64)>,
}

/// Every leader continues the auto-increment values of the previous leaders.
#[test]
fn a_new_leader_continues_auto_increment_values() {
    let mut key = ColumnSchema::new(1, AUTO_INCREMENTING_ID, DataType::Int64);
    key.auto_incrementing = true;
    let value = ColumnSchema::new(2, "v", DataType::Int32).nullable();
    let columns = vec![ColumnSchema::new(0, "k", DataType::Int32), key, value];
    let schema = Schema::new(columns, 2).unwrap();
    let mut cluster = Cluster::new(3, schema.clone(), TabletConfig::tiny()).unwrap();
    for (round, leader) in [0, 1, 2, 0].into_iter().enumerate() {
        cluster.step(leader, raft::RaftEvent::Elect { ignore_live_leader: true });
        cluster.settle();
        for row in [2 * round, 2 * round + 1] {
            cluster.propose(leader, write_op(&schema, &format!("insert 7 {row}")), None);
            cluster.settle();
        }
    }
    let replies: Vec<String> = cluster.done.drain(..).map(|(_, done)| show_done(&done.result)).collect();
    assert_eq!(replies, ["wrote 1"; 8]);
    let shown = rows(cluster.replica(1).tablet(), SnapshotChoice::Latest).unwrap();
    let numbered: Vec<String> = (0..8).map(|row| format!("7 {} {row}", row + 1)).collect();
    assert_eq!(shown, numbered);
}

/// The schema of a write decides which of its rows take an auto-increment value.
#[test]
fn no_auto_increment_value_is_assigned_while_an_alteration_is_in_flight() {
    let mut key = ColumnSchema::new(1, AUTO_INCREMENTING_ID, DataType::Int64);
    key.auto_incrementing = true;
    let value = ColumnSchema::new(2, "v", DataType::Int32);
    let schema = Schema::new(vec![ColumnSchema::new(0, "k", DataType::Int32), key, value], 2).unwrap();
    let mut cluster = Cluster::new(3, schema.clone(), TabletConfig::tiny()).unwrap();
    cluster.step(0, raft::RaftEvent::Elect { ignore_live_leader: true });
    cluster.settle();
    let mut columns = schema.columns().to_vec();
    columns[2].write_default = Some(5i32.to_le_bytes().to_vec());
    let with_default = Box::new(Schema::new(columns, 2).unwrap());
    let op = Op::AlterSchema {
        schema: with_default,
        version: 1,
        table_name: "t".to_string(),
        extra: BTreeMap::new(),
    };
    cluster.propose(0, op, None);
    // Rejected as long as `v` has no default, and assigned 1 afterwards.
    cluster.propose(0, write_op(&schema, "insert 7 -\ninsert 7 1"), None);
    cluster.settle();
    cluster.propose(0, write_op(&schema, "insert 7 -\ninsert 7 1"), None);
    cluster.settle();
    let replies: Vec<String> = cluster.done.drain(..).map(|(_, done)| show_done(&done.result)).collect();
    let waits = "Throttled: earlier auto-increment operations are still being applied; retry";
    assert_eq!(replies, [waits, "Altered { version: 1 }", "wrote 2"]);
    let shown = rows(cluster.replica(0).tablet(), SnapshotChoice::Latest).unwrap();
    assert_eq!(shown, ["7 1 5", "7 2 1"]);
}

struct RandomRun {
    cluster: Cluster,
    dice: TestRng,
    pending: Vec<Pending>,
    next: i32,
    acknowledged: BTreeMap<i32, Timestamp>,
    /// Rows of snapshots when they were complete.
    snapshots: Vec<(Timestamp, Vec<String>)>,
    aborted: u64,
}

impl RandomRun {
    fn new(seed: u64) -> RandomRun {
        let mut cluster = Cluster::new(3, plain_schema(), TabletConfig::tiny()).unwrap();
        cluster.settle();
        let (pending, acknowledged, snapshots) = (Vec::new(), BTreeMap::new(), Vec::new());
        RandomRun { cluster, dice: TestRng(seed), pending, next: 0, acknowledged, snapshots, aborted: 0 }
    }

    fn advance(&mut self) {
        let server = self.dice.below(3) as usize;
        match self.dice.below(100) {
            0..40 => self.deliver(),
            40..58 => self.cluster.apply_effects(server),
            58..70 => self.send(server),
            70..80 => self.pass(),
            80..83 => drop(self.cluster.cut.insert(server)),
            83..88 => self.cluster.cut.clear(),
            88 => self.cluster.crash(server),
            89..93 => self.restart(server),
            93 => self.cluster.servers[server].stalled = true,
            94..96 => self.cluster.servers[server].stalled = false,
            96 => self.flush(server),
            97 => self.cluster.step(server, raft::RaftEvent::Elect { ignore_live_leader: true }),
            _ => self.check_snapshots(server),
        }
        self.take_replies();
    }

    /// Delivers a random parcel once, twice or not at all.
    fn deliver(&mut self) {
        if self.cluster.wires.is_empty() {
            return;
        }
        let at = self.dice.below(self.cluster.wires.len() as u64) as usize;
        let parcel = self.cluster.wires.remove(at).expect("it is there");
        self.cluster.deliver(parcel);
    }

    fn pass(&mut self) {
        let until = self.cluster.now + Duration::from_millis(self.dice.below(20));
        self.cluster.now = until;
        for server in 0..3 {
            if self.cluster.is_up(server) {
                self.cluster.step(server, raft::RaftEvent::Tick);
            }
        }
    }

    /// A client begins a write or retries one, at a random server.
    fn send(&mut self, server: usize) {
        if !self.cluster.is_up(server) {
            return;
        }
        if self.pending.len() < 4 {
            let (seq, key) = (i64::from(self.next), self.next);
            self.next += 1;
            self.pending.push(Pending { seq, key, attempts: Vec::new() });
        }
        let at = self.dice.below(self.pending.len() as u64) as usize;
        let (seq, key) = (self.pending[at].seq, self.pending[at].key);
        // A node's tracker defers a retry while the first attempt is in flight there.
        let life = self.cluster.servers[server].life;
        if self.pending[at].attempts.iter().any(|(attempts, _, then)| (*attempts, *then) == (server, life)) {
            return;
        }
        let schema = plain_schema();
        let op = write_op(&schema, &format!("insert {key} v{key} {key}"));
        let ticket = self.cluster.propose(server, op, Some(request(seq)));
        self.pending[at].attempts.push((server, ticket, life));
    }

    fn take_replies(&mut self) {
        for (server, done) in std::mem::take(&mut self.cluster.done) {
            let this = |attempts: &(usize, u64, u64)| (attempts.0, attempts.1) == (server, done.ticket);
            let attempts = |pending: &Pending| pending.attempts.iter().any(this);
            let Some(at) = self.pending.iter().position(attempts) else { continue };
            match done.result {
                Ok(OpResult::Write { errors, counts }) => {
                    assert!(errors.is_empty() && counts.inserts == 1, "applied twice: {errors:?}");
                    let pending = self.pending.remove(at);
                    self.acknowledged.insert(pending.key, done.timestamp);
                }
                Ok(other) => panic!("a write came to {other:?}"),
                Err(error) => {
                    self.aborted += u64::from(error.kind == ErrorKind::Aborted);
                    self.pending[at].attempts.retain(|attempts| !this(attempts));
                }
            }
        }
    }

    fn restart(&mut self, server: usize) {
        if !self.cluster.is_up(server) {
            self.cluster.restart(server).unwrap();
        }
    }

    fn flush(&mut self, server: usize) {
        let servers = &self.cluster.servers[server];
        let quiet = servers.out.log.is_empty() && !servers.stalled;
        if self.cluster.is_up(server) && quiet && self.cluster.replica(server).failure().is_none() {
            self.cluster.job(server, JobKind::FlushRows).unwrap();
        }
    }

    /// Checks a snapshot that is complete here, and an earlier one that was complete anywhere.
    fn check_snapshots(&mut self, server: usize) {
        if !self.cluster.is_up(server) {
            return;
        }
        let tablet = self.cluster.replica(server).tablet().clone();
        let safe = tablet.mvcc().safe_time(Timestamp::MIN);
        if safe > Timestamp::MIN {
            assert!(tablet.mvcc().all_applied_before(safe.next()));
            let shown = rows(&tablet, SnapshotChoice::At(safe.next())).unwrap();
            self.snapshots.push((safe.next(), shown));
        }
        for (at, shown) in self.snapshots.iter().rev().take(20) {
            if tablet.mvcc().all_applied_before(*at) {
                let again = rows(&tablet, SnapshotChoice::At(*at)).unwrap();
                assert_eq!(&again, shown, "the snapshot of {at} on {}", name(server));
            }
        }
    }

    /// Restarts all servers, and completes every write.
    fn recover(&mut self) {
        self.cluster.cut.clear();
        for server in 0..3 {
            self.cluster.servers[server].stalled = false;
            self.restart(server);
        }
        self.cluster.settle();
        for _ in 0..400 {
            self.cluster.pass(Duration::from_millis(20));
            self.take_replies();
            let Some(leader) = self.cluster.leader() else { continue };
            self.send(leader);
            self.cluster.settle();
            self.take_replies();
            if self.next > 4 && self.pending.len() < 2 {
                break;
            }
        }
        self.cluster.pass(Duration::from_millis(200));
        let leader = self.cluster.leader().expect("a leader is elected in the end");
        let expected = rows(self.cluster.replica(leader).tablet(), SnapshotChoice::Latest).unwrap();
        for server in 0..3 {
            assert_eq!(self.cluster.replica(server).failure(), None);
            let shown = rows(self.cluster.replica(server).tablet(), SnapshotChoice::Latest).unwrap();
            assert_eq!(shown, expected, "{} and the leader {}", name(server), name(leader));
            self.check_snapshots(server);
        }
        for key in self.acknowledged.keys() {
            assert!(
                expected.contains(&format!("{key} \"v{key}\" {key}")),
                "{key} was acknowledged: {expected:?}"
            );
        }
    }
}

#[test]
fn random_runs_lose_nothing_and_do_nothing_twice() {
    let (mut acknowledged, mut aborted) = (0, 0);
    for seed in 0..20 {
        let result = std::panic::catch_unwind(|| {
            let mut run = RandomRun::new(seed);
            (0..1_500).for_each(|_| run.advance());
            run.recover();
            (run.acknowledged.len() as u64, run.aborted)
        });
        let (more, cut_off) = result.unwrap_or_else(|_| panic!("the run of seed {seed}, see above"));
        (acknowledged, aborted) = (acknowledged + more, aborted + cut_off);
    }
    assert!(acknowledged > 150 && aborted > 1, "{acknowledged} acknowledged, {aborted} aborted");
}
