//! Trace checking: batches of traces in one TLC, and for each rejected trace the event and the reason.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::tlc::{Tlc, TlcVerdict};
use super::trace::{Event, TraceFile, TraceValue};

/// Events of one TLC run: its parser needs about a kilobyte for each.
const BATCH_EVENTS_MAX: usize = 20_000;

/// A trace that the spec does not allow.
#[derive(Debug)]
pub(super) struct RejectedTrace {
    pub trace: String,
    /// Action of the rejected event.
    pub action: &'static str,
    /// The event, its line in the file, the spec's state there and the violated conditions.
    pub reason: String,
}

/// Checks each trace; returns the rejected ones, grouped by first configuration.
pub(super) fn replay(root: &Path, tlc: &Tlc, traces: &[TraceFile]) -> Result<Vec<RejectedTrace>> {
    let spec = root.join("spec");
    let mut refused = Vec::new();
    for batch in batches(traces) {
        let stopped = stopped(&spec, tlc, &batch)?;
        if !stopped.is_empty() {
            refused.extend(explain(&spec, tlc, &stopped)?);
        }
    }
    Ok(refused)
}

/// Groups traces of equal first configurations, up to the limit.
fn batches(traces: &[TraceFile]) -> Vec<Vec<&TraceFile>> {
    let mut shapes: BTreeMap<(usize, usize), Vec<Vec<&TraceFile>>> = BTreeMap::new();
    for trace in traces {
        let names = Names::of(trace);
        let batches = shapes.entry((names.voters, names.learners)).or_default();
        let full = |batch: &Vec<&TraceFile>| {
            let events: usize = batch.iter().map(|trace| trace.events.len()).sum();
            events + trace.events.len() > BATCH_EVENTS_MAX
        };
        match batches.last_mut().filter(|batch| !full(batch)) {
            Some(batch) => batch.push(trace),
            None => batches.push(vec![trace]),
        }
    }
    shapes.into_values().flatten().collect()
}

/// Returns the traces that TLC did not follow to the end.
fn stopped<'a>(spec: &Path, tlc: &Tlc, batch: &[&'a TraceFile]) -> Result<Vec<&'a TraceFile>> {
    let output = run(spec, tlc, batch, "Followed")?;
    let stopped = |i: &usize| !output.contains(&format!("<<\"followed\", {}>>", i + 1));
    Ok((0..batch.len()).filter(stopped).map(|i| batch[i]).collect())
}

/// Returns TLC's output for these traces, with one of Trace.tla's reports.
fn run(spec: &Path, tlc: &Tlc, batch: &[&TraceFile], report: &str) -> Result<String> {
    let run = tlc.folder(spec, "trace")?;
    fs::write(run.join("TraceData.tla"), data_module(batch))?;
    let outcome = tlc.check(&run, "Trace", &config(batch, report))?;
    match outcome.verdict {
        TlcVerdict::Holds => Ok(outcome.output),
        other => bail!("TLC could not check the traces: {other:?}; see {}", run.join("output.txt").display()),
    }
}

/// Checks rejected traces again to find the event where each stops.
fn explain(spec: &Path, tlc: &Tlc, refused: &[&TraceFile]) -> Result<Vec<RejectedTrace>> {
    let prints = prints(&run(spec, tlc, refused, "Told")?);
    let mut refusals = Vec::new();
    for (i, trace) in refused.iter().enumerate() {
        let mine = format!("<<\"at\", {}, ", i + 1);
        let reached = prints.iter().filter_map(|print| {
            let (at, state) = print.strip_prefix(&mine)?.split_once(", ")?;
            Some((at.parse::<usize>().ok()?, state.trim_end_matches(">>")))
        });
        let (at, state) = reached.max_by_key(|(at, _)| *at).context("TLC did not print where it was")?;
        let reason = reason(trace, at, state, &objections(&prints, i + 1, at))?;
        let action = trace.events[at - 1].action.name;
        refusals.push(RejectedTrace { trace: trace.name.clone(), action, reason });
    }
    Ok(refusals)
}

/// Returns TLC's prints from event `at` of trace `number`, as text.
fn objections(prints: &[String], number: usize, at: usize) -> String {
    let find = |what: &str| {
        let start = format!("<<\"{what}\", {number}, {at}, ");
        prints.iter().find_map(|print| print.strip_prefix(&start))
    };
    match (find("told"), find("violates")) {
        (Some(told), _) => {
            let told = told.trim_end_matches("> ").trim_end_matches(">>");
            format!("may happen, but leads elsewhere (term, last, commit, role, data): {told}>>")
        }
        (None, Some(what)) => format!("breaks a property: {}", what.trim_end_matches(">>")),
        (None, None) => "is guarded, and the guard does not hold".to_owned(),
    }
}

fn reason(trace: &TraceFile, at: usize, state: &str, objection: &str) -> Result<String> {
    let event = trace.events.get(at - 1).with_context(|| format!("{}: followed after all", trace.name))?;
    let (name, line, text, action) = (&trace.name, event.line, &event.text, event.action.name);
    let mut said = format!("{name}:{line}: event {at} is none that the spec allows here:\n  {text}\n");
    writeln!(said, "  {action} {objection}")?;
    writeln!(
        said,
        "  the spec's state, <<term, vote, role, last, durable, commit, data, tombstone, config>>:"
    )?;
    writeln!(said, "  {state}")?;
    let names = Names::of(trace);
    let peers: Vec<String> = names.by_name().map(|(name, peer)| format!("{name} is {peer}")).collect();
    writeln!(said, "  {} ({})", peers.join(", "), trace.origin)?;
    Ok(said)
}

/// Returns TLC's prints, each on one line: TLC wraps long values.
fn prints(output: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut open = 0i64;
    for line in output.lines() {
        if open > 0 {
            let last = found.last_mut().expect("an open print was pushed");
            last.push(' ');
            last.push_str(line.trim());
        } else if line.starts_with("<<\"") || line.starts_with("<< \"") {
            found.push(line.replacen("<< \"", "<<\"", 1));
        } else {
            continue;
        }
        open += line.matches("<<").count() as i64 - line.matches(">>").count() as i64;
    }
    found
}

/// The spec's names of a trace's peers: s1, s2 ..., first the voters, then the learners of the first configuration,
/// then others as they appear.
struct Names {
    peers: Vec<String>,
    voters: usize,
    learners: usize,
}

impl Names {
    fn of(trace: &TraceFile) -> Names {
        let mut names = Names { peers: Vec::new(), voters: 0, learners: 0 };
        if let Some([TraceValue::Peers(voters), TraceValue::Peers(learners)]) =
            trace.events.first().map(|event| event.params.as_slice())
        {
            names.peers = voters.iter().chain(learners).cloned().collect();
            (names.voters, names.learners) = (voters.len(), learners.len());
        }
        for event in &trace.events {
            names.add(&event.peer);
            for param in &event.params {
                match param {
                    TraceValue::Peer(peer) => names.add(peer),
                    TraceValue::Peers(peers) => peers.iter().for_each(|peer| names.add(peer)),
                    _ => {}
                }
            }
        }
        names
    }

    fn add(&mut self, peer: &str) {
        if !self.peers.iter().any(|known| known == peer) {
            self.peers.push(peer.to_owned());
        }
    }

    fn get(&self, peer: &str) -> String {
        let at = self.peers.iter().position(|known| known == peer);
        format!("\"s{}\"", at.map_or(0, |at| at + 1))
    }

    fn by_name(&self) -> impl Iterator<Item = (String, &str)> {
        self.peers.iter().enumerate().map(|(i, peer)| (format!("s{}", i + 1), peer.as_str()))
    }
}

/// Returns `TraceData.tla`: the traces as one constant.
fn data_module(batch: &[&TraceFile]) -> String {
    let mut text = "---- MODULE TraceData ----\nEXTENDS Properties\n".to_owned();
    for (i, trace) in batch.iter().enumerate() {
        let names = Names::of(trace);
        let times = times(trace);
        let events: Vec<String> = trace.events.iter().map(|event| tuple(event, &names, &times)).collect();
        // The parser's stack grows with the length of one tuple, hence the pieces.
        let pieces: Vec<String> =
            events.chunks(500).map(|piece| format!("<<\n{}\n>>", piece.join(",\n"))).collect();
        let _ = writeln!(
            text,
            "T{} == {}",
            i + 1,
            if pieces.is_empty() { "<<>>".into() } else { pieces.join(" \\o ") }
        );
    }
    let all: Vec<String> = (1..=batch.len()).map(|i| format!("T{i}")).collect();
    let _ = writeln!(text, "Traces == <<{}>>\n====", all.join(", "));
    text
}

fn tuple(event: &Event, names: &Names, times: &BTreeMap<u64, usize>) -> String {
    let params: Vec<String> = event.params.iter().map(|value| tla(value, names, times)).collect();
    let post = &event.post;
    let (peer, params) = (names.get(&event.peer), params.join(", "));
    format!(
        "<<\"{}\", {peer}, <<{params}>>, <<{}, <<{}, {}>>, {}, \"{}\", \"{}\">>>>",
        event.action.name, post.term, post.last.0, post.last.1, post.commit, post.role, post.data
    )
}

fn tla(value: &TraceValue, names: &Names, times: &BTreeMap<u64, usize>) -> String {
    match value {
        TraceValue::Number(number) => number.to_string(),
        TraceValue::Time(time) => times.get(time).copied().unwrap_or_default().to_string(),
        TraceValue::OpId(term, index) => format!("<<{term}, {index}>>"),
        TraceValue::Bool(true) => "TRUE".to_owned(),
        TraceValue::Bool(false) => "FALSE".to_owned(),
        TraceValue::Peer(peer) => names.get(peer),
        TraceValue::Peers(peers) => {
            let peers: Vec<String> = peers.iter().map(|peer| names.get(peer)).collect();
            format!("{{{}}}", peers.join(", "))
        }
        TraceValue::Nothing => "Nil".to_owned(),
    }
}

/// Returns the ranks of a trace's timestamps from 1, in order; time 0 stays 0.
fn times(trace: &TraceFile) -> BTreeMap<u64, usize> {
    let params = trace.events.iter().flat_map(|event| &event.params);
    let mut times: Vec<u64> = params
        .filter_map(|value| match value {
            TraceValue::Time(time) if *time > 0 => Some(*time),
            _ => None,
        })
        .collect();
    times.sort_unstable();
    times.dedup();
    times.into_iter().enumerate().map(|(i, time)| (time, i + 1)).collect()
}

fn config(batch: &[&TraceFile], report: &str) -> String {
    let names: Vec<Names> = batch.iter().map(|trace| Names::of(trace)).collect();
    let servers = names.iter().map(|names| names.peers.len()).max().unwrap_or_default();
    let (voters, learners) = names.first().map_or((0, 0), |names| (names.voters, names.learners));
    let list = |from: usize, to: usize| -> String {
        let names: Vec<String> = (from + 1..=to).map(|i| format!("\"s{i}\"")).collect();
        format!("{{{}}}", names.join(", "))
    };
    format!(
        "SPECIFICATION TraceSpec\nVIEW View\nINVARIANT {report}\nCHECK_DEADLOCK FALSE\nCONSTANTS\n    \
         Server = {}\n    InitVoters = {}\n    InitLearners = {}\n    Nil = Nil\n    MaxTerm = {}\n    \
         MaxLen = 1000000\n    MaxCfg = 1000000\n    MaxCopies = 1000000\n    Eager = FALSE\n    \
         PreVote = TRUE\n    Lag = 1000000\n    Mut = {{}}\n",
        list(0, servers),
        list(0, voters),
        list(voters, voters + learners),
        max_term(batch) + 1,
    )
}

/// Returns the highest term of all events.
fn max_term(batch: &[&TraceFile]) -> u64 {
    let events = batch.iter().flat_map(|trace| &trace.events);
    events.map(|event| event.terms().max().unwrap_or_default().max(event.post.term)).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(events: &[&str]) -> TraceFile {
        let mut text = "nyala-trace 1\ntablet t\norigin by hand\n".to_owned();
        for (i, event) in events.iter().enumerate() {
            let state = "term=1 last=0.0 commit=0 role=follower data=ready";
            let _ = writeln!(text, "{} {event} | {state}", i + 1);
        }
        let _ = writeln!(text, "end {}", events.len());
        TraceFile::parse("x.trace", &text).expect("well formed")
    }

    #[test]
    fn a_trace_becomes_a_module() {
        let trace = trace(&[
            "b Create voters=b,a learners=none",
            "a ClientAppend op=1.1 timestamp=70000000000",
            "c MetaPersist term=7 vote=none",
            "a SafeTimeAdvance safe=60000000000",
        ]);
        let text = data_module(&[&trace]);
        let expected = [
            "---- MODULE TraceData ----",
            "EXTENDS Properties",
            "T1 == <<",
            "<<\"Create\", \"s1\", <<{\"s1\", \"s2\"}, {}>>, <<1, <<0, 0>>, 0, \"F\", \"R\">>>>,",
            "<<\"ClientAppend\", \"s2\", <<<<1, 1>>, 2>>, <<1, <<0, 0>>, 0, \"F\", \"R\">>>>,",
            "<<\"MetaPersist\", \"s3\", <<7, Nil>>, <<1, <<0, 0>>, 0, \"F\", \"R\">>>>,",
            "<<\"SafeTimeAdvance\", \"s2\", <<1>>, <<1, <<0, 0>>, 0, \"F\", \"R\">>>>",
            ">>",
            "Traces == <<T1>>",
            "====",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
        let config = config(&[&trace], "Followed");
        assert!(config.contains("Server = {\"s1\", \"s2\", \"s3\"}\n    InitVoters = {\"s1\", \"s2\"}\n"));
        assert!(config.contains("MaxTerm = 8\n"));
    }

    #[test]
    fn batches_are_of_one_shape_and_not_too_big() {
        let three = trace(&["a Create voters=a,b,c learners=none"]);
        let one = trace(&["a Create voters=a learners=none"]);
        let traces = vec![three.clone(), one, three];
        let sizes: Vec<usize> = batches(&traces).iter().map(Vec::len).collect();
        assert_eq!(sizes, [1, 2]);
    }

    #[test]
    fn wrapped_prints_are_joined() {
        let output = "noise\n<<\"at\", 3, [s1 |-> <<1,\n  2>>]>>\n<< \"told\",\n  1 >>\nnoise\n";
        assert_eq!(prints(output), ["<<\"at\", 3, [s1 |-> <<1, 2>>]>>", "<<\"told\", 1 >>"]);
    }
}
