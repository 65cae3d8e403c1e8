//! Trace files: actions of the replicas of one tablet, in the format of `spec/README.md`, written by
//! `engine::note::raft::RaftTrace`.
//!
//! A truncated file and a missing or misplaced line are errors here, with the line. Protocol violations are left to
//! TLC.

use anyhow::{Context, Result, bail, ensure};

/// Content of a trace file.
#[derive(Debug, Clone)]
pub(super) struct TraceFile {
    /// Name of the file in messages.
    pub name: String,
    /// Tablet and run: the two head lines.
    pub origin: String,
    pub events: Vec<Event>,
}

#[derive(Debug, Clone)]
pub(super) struct Event {
    /// Line in the file, from 1.
    pub line: usize,
    pub peer: String,
    pub action: &'static Action,
    pub params: Vec<TraceValue>,
    pub post: Post,
    /// Text in the file.
    pub text: String,
}

/// State of a replica after an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Post {
    pub term: u64,
    pub last: (u64, u64),
    pub commit: u64,
    /// Letter of the spec for the role.
    pub role: &'static str,
    pub data: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TraceValue {
    Number(u64),
    /// A timestamp: too large for TLC, which only needs the order.
    Time(u64),
    OpId(u64, u64),
    Bool(bool),
    Peer(String),
    Peers(Vec<String>),
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Number,
    NumberOrNone,
    Time,
    OpId,
    Bool,
    Peer,
    PeerOrNone,
    Peers,
}

/// An action's name and parameters.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Action {
    pub name: &'static str,
    params: &'static [(&'static str, Kind)],
}

const fn action(name: &'static str, params: &'static [(&'static str, Kind)]) -> Action {
    Action { name, params }
}

/// The actions, in the order of `spec/README.md`.
pub(super) static ACTIONS: [Action; 27] = [
    action("Create", &[("voters", Kind::Peers), ("learners", Kind::Peers)]),
    action("StartPreElection", &[("term", Kind::Number)]),
    action("GrantPreVote", &[("candidate", Kind::Peer), ("term", Kind::Number)]),
    action("StartElection", &[("term", Kind::Number), ("asked", Kind::Bool)]),
    action("GrantVote", &[("candidate", Kind::Peer), ("term", Kind::Number)]),
    action("SeeTerm", &[("term", Kind::Number)]),
    action("MetaPersist", &[("term", Kind::Number), ("vote", Kind::PeerOrNone)]),
    action("BecomeLeader", &[]),
    action("StepDown", &[]),
    action("ClientAppend", &[("op", Kind::OpId), ("timestamp", Kind::Time)]),
    action(
        "ConfigAppend",
        &[
            ("op", Kind::OpId),
            ("voters", Kind::Peers),
            ("learners", Kind::Peers),
            ("cas", Kind::NumberOrNone),
        ],
    ),
    action("LeaderPersist", &[("upto", Kind::OpId)]),
    action("AbortPending", &[("leader", Kind::Peer), ("after", Kind::Number)]),
    action("FollowerAppend", &[("leader", Kind::Peer), ("prev", Kind::OpId), ("upto", Kind::OpId)]),
    action("FollowerPersist", &[("upto", Kind::OpId)]),
    action("AdvanceCommit", &[]),
    action("FollowerCommit", &[]),
    action("CopyOpen", &[("sink", Kind::Peer), ("upto", Kind::OpId)]),
    action("CopyStart", &[("source", Kind::Peer), ("term", Kind::Number)]),
    action("CopyFinish", &[]),
    action("CopyAbort", &[]),
    action("Tombstone", &[("cas", Kind::NumberOrNone)]),
    action("Delete", &[]),
    action("Fail", &[]),
    action("FailOpen", &[("vote", Kind::PeerOrNone)]),
    action("Restart", &[("vote", Kind::PeerOrNone)]),
    action("SafeTimeAdvance", &[("safe", Kind::Time)]),
];

impl Event {
    /// Returns the terms among its parameters.
    pub(super) fn terms(&self) -> impl Iterator<Item = u64> {
        let named = self.action.params.iter().zip(&self.params);
        named.filter_map(|((key, _), value)| match value {
            TraceValue::Number(term) if *key == "term" => Some(*term),
            TraceValue::OpId(term, _) => Some(*term),
            _ => None,
        })
    }
}

impl TraceFile {
    /// Parses a file's text; `name` precedes every message.
    pub(super) fn parse(name: &str, text: &str) -> Result<TraceFile> {
        let mut lines =
            text.lines().enumerate().map(|(i, line)| (i + 1, line)).filter(|(_, l)| !l.starts_with('#'));
        let mut head = |word: &str| -> Result<String> {
            let (at, line) = lines.next().unwrap_or((1, ""));
            let rest = line.strip_prefix(word).and_then(|rest| rest.strip_prefix(' '));
            Ok(rest.with_context(|| format!("{name}:{at}: {line:?} where `{word} ...` belongs"))?.to_owned())
        };
        let version = head("nyala-trace")?;
        ensure!(version == "1", "{name}: traces of version {version:?} are not known here, only 1");
        let origin = format!("tablet {}, {}", head("tablet")?, head("origin")?);
        let mut events = Vec::new();
        let mut end = None;
        for (at, line) in lines {
            ensure!(end.is_none(), "{name}:{at}: {line:?} after the end");
            if let Some(count) = line.strip_prefix("end ") {
                end = Some(count.parse::<usize>().with_context(|| format!("{name}:{at}: end {count:?}"))?);
            } else {
                let event = event(at, line, events.len() + 1).with_context(|| format!("{name}:{at}"))?;
                events.push(event);
            }
        }
        let count = events.len();
        let end = end.with_context(|| format!("{name}: cut off after event {count}: no line `end N`"))?;
        ensure!(end == count, "{name}: the last line counts {end} events, but there are {count}");
        let first = events.first().map(|event: &Event| event.action.name);
        ensure!(
            first == Some("Create"),
            "{name}: begins with {}, not with Create",
            first.unwrap_or("nothing")
        );
        Ok(TraceFile { name: name.to_owned(), origin, events })
    }
}

/// Returns true if the first event of a file's text is this action.
pub(super) fn begins_with(text: &str, action: &str) -> bool {
    let first = text.lines().find(|line| line.starts_with("1 "));
    first.and_then(|line| line.split(' ').nth(2)) == Some(action)
}

/// Parses one line, which must be event number `number`.
fn event(line: usize, text: &str, number: usize) -> Result<Event> {
    let (action, post) =
        text.split_once(" | ").with_context(|| format!("{text:?} has no ` | ` before the state"))?;
    let mut words = action.split_whitespace();
    let (Some(n), Some(peer), Some(name)) = (words.next(), words.next(), words.next()) else {
        bail!("{text:?} is not `NUMBER PEER ACTION ...`");
    };
    let n: usize = n.parse().with_context(|| format!("{n:?} where event {number} belongs"))?;
    if n > number {
        bail!("event {n} where {number} belongs: events are missing, or in another order");
    }
    ensure!(n == number, "event {n} again, where {number} belongs: doubled, or in another order");
    let action = ACTIONS.iter().find(|action| action.name == name);
    let action = action
        .with_context(|| format!("unknown action {name:?}: spec/README.md, section Traces, has the list"))?;
    let words: Vec<&str> = words.collect();
    let mut params = Vec::new();
    for (i, (key, kind)) in action.params.iter().enumerate() {
        params
            .push(value(words.get(i).copied(), key, *kind).with_context(|| format!("{name} of event {n}"))?);
    }
    ensure!(words.len() == params.len(), "{name} of event {n} has more than {} parameters", params.len());
    let post = post_state(post).with_context(|| format!("the state after event {n}"))?;
    Ok(Event { line, peer: peer.to_owned(), action, params, post, text: text.to_owned() })
}

fn value(word: Option<&str>, key: &str, kind: Kind) -> Result<TraceValue> {
    let word = word.with_context(|| format!("`{key}=...` is missing"))?;
    let text = word.strip_prefix(key).and_then(|rest| rest.strip_prefix('='));
    let text = text.with_context(|| format!("{word:?} where `{key}=...` belongs"))?;
    ensure!(!text.is_empty(), "{key} is empty");
    let bad = || format!("{key} {text:?}");
    Ok(match kind {
        Kind::NumberOrNone | Kind::PeerOrNone if text == "none" => TraceValue::Nothing,
        Kind::Peers if text == "none" => TraceValue::Peers(Vec::new()),
        Kind::Number | Kind::NumberOrNone => TraceValue::Number(small(text).with_context(bad)?),
        Kind::Time => TraceValue::Time(text.parse().with_context(bad)?),
        Kind::OpId => {
            let (term, index) = text.split_once('.').with_context(bad)?;
            TraceValue::OpId(small(term).with_context(bad)?, small(index).with_context(bad)?)
        }
        Kind::Bool => TraceValue::Bool(text.parse().with_context(bad)?),
        Kind::Peer | Kind::PeerOrNone => TraceValue::Peer(text.to_owned()),
        Kind::Peers => TraceValue::Peers(text.split(',').map(str::to_owned).collect()),
    })
}

/// Returns a number that fits TLC's integers.
fn small(text: &str) -> Result<u64> {
    let number: u64 = text.parse()?;
    ensure!(number <= i32::MAX as u64, "{number} is more than TLC can count to");
    Ok(number)
}

fn post_state(text: &str) -> Result<Post> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let get = |i: usize, key: &str, kind: Kind| value(words.get(i).copied(), key, kind);
    let (term, last, commit) =
        (get(0, "term", Kind::Number)?, get(1, "last", Kind::OpId)?, get(2, "commit", Kind::Number)?);
    let (TraceValue::Number(term), TraceValue::OpId(t, i), TraceValue::Number(commit)) = (term, last, commit)
    else {
        bail!("{text:?}");
    };
    let role =
        letter(get(3, "role", Kind::Peer)?, &[("leader", "L"), ("candidate", "C"), ("follower", "F")])?;
    let states = [("ready", "R"), ("copying", "Y"), ("tombstoned", "T"), ("failed", "F"), ("gone", "D")];
    let data = letter(get(4, "data", Kind::Peer)?, &states)?;
    ensure!(words.len() == 5, "{text:?} has more than a state");
    Ok(Post { term, last: (t, i), commit, role, data })
}

fn letter(value: TraceValue, known: &[(&str, &'static str)]) -> Result<&'static str> {
    let TraceValue::Peer(word) = value else { bail!("no word") };
    let found = known.iter().find(|(name, _)| *name == word);
    Ok(found.with_context(|| format!("{word:?} is not known"))?.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: &str = "term=0 last=0.0 commit=0 role=follower data=ready";

    fn file(lines: &[&str]) -> Result<TraceFile> {
        let head = "nyala-trace 1\ntablet t\norigin by hand\n# words\n1 a Create voters=a,b learners=none";
        let text = format!("{head} | {STATE}\n{}\n", lines.join("\n"));
        TraceFile::parse("x.trace", &text)
    }

    fn complaint(lines: &[&str]) -> String {
        format!("{:#}", file(lines).expect_err("a bad file"))
    }

    #[test]
    fn a_good_file_has_its_events() {
        let trace = file(&[
            "2 b MetaPersist term=3 vote=none | term=3 last=2.7 commit=5 role=leader data=ready",
            "end 2",
        ]);
        let trace = trace.expect("well formed");
        assert_eq!((trace.origin.as_str(), trace.events.len()), ("tablet t, by hand", 2));
        let event = &trace.events[1];
        assert_eq!((event.line, event.peer.as_str(), event.action.name), (6, "b", "MetaPersist"));
        assert_eq!(event.params, [TraceValue::Number(3), TraceValue::Nothing]);
        assert_eq!(event.post, Post { term: 3, last: (2, 7), commit: 5, role: "L", data: "R" });
    }

    #[test]
    fn the_first_event_is_found_without_parsing_the_rest() {
        let text = "nyala-trace 1\ntablet t\norigin by hand\n1 a Restart vote=none | ...\n2 a Create |\n";
        assert!(begins_with(text, "Restart"));
        assert!(!begins_with(text, "Create"));
        assert!(!begins_with("nyala-trace 1\n", "Restart"));
    }

    #[test]
    fn a_bad_file_is_reported_with_its_line() {
        let event = |n: u32, action: &str| format!("{n} b {action} | {STATE}");
        let cases = [
            (vec![event(2, "BecomeLeader")], "x.trace: cut off after event 2: no line `end N`"),
            (vec!["end 2".into()], "x.trace: the last line counts 2 events, but there are 1"),
            (
                vec![event(3, "BecomeLeader"), "end 2".into()],
                "x.trace:6: event 3 where 2 belongs: events are missing, or in another order",
            ),
            (
                vec![event(1, "BecomeLeader"), "end 2".into()],
                "x.trace:6: event 1 again, where 2 belongs: doubled, or in another order",
            ),
            (
                vec![event(2, "BecomeKing"), "end 2".into()],
                "x.trace:6: unknown action \"BecomeKing\": spec/README.md, section Traces, has the list",
            ),
            (
                vec![event(2, "SeeTerm"), "end 2".into()],
                "x.trace:6: SeeTerm of event 2: `term=...` is missing",
            ),
            (
                vec![event(2, "SeeTerm term=1 vote=b"), "end 2".into()],
                "x.trace:6: SeeTerm of event 2 has more than 1 parameters",
            ),
            (
                vec![event(2, "SeeTerm term=9999999999"), "end 2".into()],
                "x.trace:6: SeeTerm of event 2: term \"9999999999\": 9999999999 is more than TLC can count to",
            ),
            (
                vec!["2 b BecomeLeader | term=1 last=0.0".into(), "end 2".into()],
                "x.trace:6: the state after event 2: `commit=...` is missing",
            ),
            (
                vec!["2 b BecomeLeader".into()],
                "x.trace:6: \"2 b BecomeLeader\" has no ` | ` before the state",
            ),
            (vec!["end 1".into(), event(2, "StepDown")], "x.trace:7: \"2 b StepDown"),
        ];
        for (lines, expected) in cases {
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            let said = complaint(&lines);
            assert!(said.starts_with(expected), "{said}\n{expected}");
        }
        let other = TraceFile::parse("y", "nyala-trace 2\n").expect_err("another version");
        assert_eq!(other.to_string(), "y: traces of version \"2\" are not known here, only 1");
        let empty = format!("{:#}", TraceFile::parse("y", "").expect_err("nothing"));
        assert_eq!(empty, "y:1: \"\" where `nyala-trace ...` belongs");
    }
}
