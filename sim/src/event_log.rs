//! The event log: all events of a run in order, hashed to compare two runs, and retained as text on request.
//!
//! Each event is chained into a 128-bit hash over its number, time, host, kind and a digest of its bytes. The hash is
//! also stored after every N events. Two runs of one seed diverge where these first differ; one more run of each with
//! the text of that range shows the first differing event.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;

use engine::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll};

use crate::live_tasks::LiveTaskGuard;

/// The events of one run; clones share them.
#[derive(Debug, Clone)]
pub struct EventLog {
    log: Arc<Mutex<Log>>,
    /// True if the timeline is retained.
    has_timeline: bool,
}

#[derive(Debug, Default)]
struct Log {
    chain: Chain,
    count: u64,
    /// Hashes after every `every` events.
    steps: Vec<Chain>,
    every: u64,
    keep: Range<u64>,
    lines: Vec<String>,
    timeline: Option<Vec<TimelineEvent>>,
    series: BTreeMap<(String, Series), BTreeMap<u64, u64>>,
}

/// A curve of the timeline: for each host, one value for every `SERIES_STEP_MS` milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Series {
    /// Longest wait of submitted work for its devices and CPU, in microseconds.
    Work,
    /// Bytes written to connections.
    Sent,
    /// Highest tracked memory, in bytes.
    Memory,
}

/// Width of a step of a series, in milliseconds.
pub const SERIES_STEP_MS: u64 = 20;

impl Series {
    pub fn name(self) -> &'static str {
        match self {
            Series::Work => "disk queue, us",
            Series::Sent => "sent, bytes",
            Series::Memory => "memory, bytes",
        }
    }
}

/// One series of one host: the steps that have a value, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeriesPoints {
    pub host: String,
    pub series: Series,
    /// Number of a step of `SERIES_STEP_MS` milliseconds, and its value.
    pub points: Vec<(u64, u64)>,
}

/// An event of a run's timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimelineEvent {
    /// Nanoseconds since the run began.
    pub nanos: u64,
    pub host: String,
    pub kind: &'static str,
    pub text: String,
}

/// Two lanes that are mixed differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Chain(u64, u64);

impl Default for Chain {
    fn default() -> Chain {
        Chain(0xcbf2_9ce4_8422_2325, 0x9e37_79b9_7f4a_7c15)
    }
}

impl Chain {
    fn add(&mut self, word: u64) {
        self.0 = fold(self.0 ^ word, 0xa076_1d64_78bd_642f);
        self.1 = fold(self.1.rotate_left(23) ^ word, 0xe703_7ed1_a0b4_28db) ^ self.0;
    }

    fn value(self) -> u128 {
        (u128::from(self.0) << 64) | u128::from(self.1)
    }
}

/// Folds both halves of the product, so that each bit depends on all bits of both factors.
fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other | 1);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Returns a digest that separates byte strings which are not adversarial.
pub fn digest(bytes: &[u8]) -> u64 {
    let mut digest = 0x8ebc_6af0_9c88_c6e3 ^ bytes.len() as u64;
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        digest = fold(digest ^ word, 0x5899_65cc_7537_4cc3);
    }
    let rest = words.remainder().iter().fold(0_u64, |rest, byte| (rest << 8) | u64::from(*byte));
    fold(digest ^ rest, 0x1d8e_4e27_c47d_124f)
}

/// The fingerprint of a run. Equal seeds give equal fingerprints, or nondeterminism escaped the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunFingerprint {
    pub events: u64,
    pub hash: u128,
}

impl fmt::Display for RunFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} events, hash {:032x}", self.events, self.hash)
    }
}

/// The hashes of a run at regular intervals.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HashCheckpoints {
    /// Events between two hashes.
    pub every: u64,
    pub hashes: Vec<u128>,
}

impl HashCheckpoints {
    /// Returns the range of events in which two runs diverge; all hashes before it are equal.
    pub fn first_difference(&self, other: &HashCheckpoints) -> Option<Range<u64>> {
        let every = self.every.max(other.every);
        let at = |steps: &HashCheckpoints, step: u64| {
            let index = (step * every / steps.every).checked_sub(1)?;
            steps.hashes.get(index as usize).copied()
        };
        let mut step = 1;
        loop {
            match (at(self, step), at(other, step)) {
                (Some(one), Some(two)) if one == two => step += 1,
                (None, None) if self.hashes.len() == other.hashes.len() && self == other => return None,
                _ => return Some((step - 1) * every..step * every),
            }
        }
    }
}

/// `EVERY:HASH,HASH,…`, in hexadecimal.
impl fmt::Display for HashCheckpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.every)?;
        let hashes: Vec<String> = self.hashes.iter().map(|hash| format!("{hash:x}")).collect();
        f.write_str(&hashes.join(","))
    }
}

impl FromStr for HashCheckpoints {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<HashCheckpoints, Self::Err> {
        let (every, hashes) = text.split_once(':').unwrap_or((text, ""));
        let hashes = hashes.split(',').filter(|hash| !hash.is_empty());
        let hashes = hashes.map(|hash| u128::from_str_radix(hash, 16)).collect::<Result<_, _>>()?;
        Ok(HashCheckpoints { every: every.parse()?, hashes })
    }
}

const STEPS_MAX: usize = 512;
const FIRST_EVERY: u64 = 64;

impl EventLog {
    /// Creates a log; `keep` retains every event as a line of text, to find where two runs diverge.
    pub fn new(keep: bool) -> EventLog {
        EventLog::keeping(if keep { 0..u64::MAX } else { 0..0 }, false)
    }

    /// Creates a log that retains the text of the events in `keep` and, if requested, the timeline.
    pub fn keeping(keep: Range<u64>, timeline: bool) -> EventLog {
        let log = Log { every: FIRST_EVERY, keep, timeline: timeline.then(Vec::new), ..Log::default() };
        EventLog { log: Arc::new(Mutex::new(log)), has_timeline: timeline }
    }

    /// Records that `what` happened on `host` at `nanos` of simulated time, with these bytes.
    pub fn record(&self, nanos: u64, host: &str, what: &str, bytes: &[u8]) {
        let mut log = self.lock();
        let number = log.count;
        log.count += 1;
        for word in [number, nanos, digest(host.as_bytes()), digest(what.as_bytes()), digest(bytes)] {
            log.chain.add(word);
        }
        if log.keep.contains(&number) {
            let (millis, hash) = (nanos as f64 / 1e6, log.chain.0);
            let length = bytes.len();
            let text: String = String::from_utf8_lossy(&bytes[..length.min(80)]).escape_debug().collect();
            log.lines.push(format!(
                "#{number} {millis:.6} ms {host} {what} {length} bytes \"{text}\" {hash:016x}"
            ));
        }
        log.step();
    }

    /// Adds a value to a series, if the timeline is retained: sums for bytes sent, else the maximum of the step.
    pub fn add_sample(&self, nanos: u64, host: &str, series: Series, value: u64) {
        if !self.has_timeline {
            return;
        }
        let mut log = self.lock();
        let steps = log.series.entry((host.to_string(), series)).or_default();
        let step = steps.entry(nanos / (SERIES_STEP_MS * 1_000_000)).or_default();
        *step = if series == Series::Sent { *step + value } else { value.max(*step) };
    }

    /// Returns all series by host, each with the steps that have a value.
    pub fn series(&self) -> Vec<SeriesPoints> {
        let track = |((host, series), steps): (&(String, Series), &BTreeMap<u64, u64>)| {
            let points = steps.iter().map(|(step, value)| (*step, *value)).collect();
            SeriesPoints { host: host.clone(), series: *series, points }
        };
        self.lock().series.iter().map(track).collect()
    }

    /// Records an event of the timeline; it is part of the hash as well.
    pub fn record_timeline(&self, nanos: u64, host: &str, kind: &'static str, text: &str) {
        self.record(nanos, host, kind, text.as_bytes());
        if let Some(timeline) = &mut self.lock().timeline {
            timeline.push(TimelineEvent { nanos, host: host.to_string(), kind, text: text.to_string() });
        }
    }

    /// Adds an event to the timeline without hashing it; `text` is only called if the timeline is retained.
    pub fn record_unhashed(&self, nanos: u64, host: &str, kind: &'static str, text: impl FnOnce() -> String) {
        if let Some(timeline) = &mut self.lock().timeline {
            timeline.push(TimelineEvent { nanos, host: host.to_string(), kind, text: text() });
        }
    }

    pub fn fingerprint(&self) -> RunFingerprint {
        let log = self.lock();
        RunFingerprint { events: log.count, hash: log.chain.value() }
    }

    pub fn steps(&self) -> HashCheckpoints {
        let log = self.lock();
        HashCheckpoints { every: log.every, hashes: log.steps.iter().map(|chain| chain.value()).collect() }
    }

    /// Returns the retained events as text.
    pub fn lines(&self) -> Vec<String> {
        self.lock().lines.clone()
    }

    /// Returns the retained timeline.
    pub fn timeline(&self) -> Vec<TimelineEvent> {
        self.lock().timeline.clone().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock()
    }
}

impl Log {
    /// Stores the hash at each interval. When there are too many, every second one is dropped and the interval doubles.
    fn step(&mut self) {
        if self.count.is_multiple_of(self.every) {
            self.steps.push(self.chain);
        }
        if self.steps.len() > STEPS_MAX {
            let mut number = 0;
            self.steps.retain(|_| {
                number += 1;
                number % 2 == 0
            });
            self.every *= 2;
        }
    }
}

/// The context of running code: its host and the time of the run.
pub trait ExecutionContext: Send + Sync {
    fn host(&self) -> &str;
    fn nanos(&self) -> u64;
    fn log(&self) -> &EventLog;
    /// Called after a task of this host was polled.
    fn stepped(&self);
}

thread_local! {
    static HERE: RefCell<Option<Arc<dyn ExecutionContext>>> = const { RefCell::new(None) };
}

/// A future with its context: what it logs is recorded as that host's.
pub struct InContext<F> {
    pub here: Arc<dyn ExecutionContext>,
    /// Count of the task; `None` for a host's program.
    pub task: Option<LiveTaskGuard>,
    pub future: F,
}

impl<F: Future + Unpin> Future for InContext<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let before = HERE.replace(Some(self.here.clone()));
        let polled = Pin::new(&mut self.future).poll(cx);
        HERE.replace(before);
        self.here.stepped();
        polled
    }
}

/// Calls [`EventLog::record_unhashed`] for the host whose code runs now; does nothing outside of any.
pub fn record_unhashed_here(kind: &'static str, text: impl FnOnce() -> String) {
    if let Some(here) = HERE.with_borrow(Option::clone) {
        here.log().record_unhashed(here.nanos(), here.host(), kind, text);
    }
}

/// Adds a value to a series of the host whose code runs now; does nothing outside of any.
pub fn add_sample_here(series: Series, value: u64) {
    if let Some(here) = HERE.with_borrow(Option::clone) {
        here.log().add_sample(here.nanos(), here.host(), series, value);
    }
}

/// Returns the run's time at the host whose code runs now; 0 outside of any.
pub fn nanos_here() -> u64 {
    HERE.with_borrow(|here| here.as_ref().map_or(0, |here| here.nanos()))
}

/// Records the nodes' log lines as events of the host that logs them. Called once per process.
pub fn listen_to_logs() {
    // A second run in one process, as tests have them, finds it installed.
    let _in_place = tracing::subscriber::set_global_default(Listener);
}

struct Listener;

struct Text(String);

impl tracing::field::Visit for Text {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        use fmt::Write;
        let written = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
        written.expect("a String takes everything");
    }
}

impl tracing::Subscriber for Listener {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        let target = metadata.target();
        metadata.is_event()
            && *metadata.level() <= tracing::Level::INFO
            && (target.starts_with("node") || target.starts_with("sim"))
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(tracing::level_filters::LevelFilter::INFO)
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let Some(here) = HERE.with_borrow(Option::clone) else { return };
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        here.log().record_timeline(here.nanos(), here.host(), "log", &text.0);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(events: u64, odd: u64) -> EventLog {
        let log = EventLog::new(false);
        for number in 0..events {
            let host = if number == odd { "b" } else { "a" };
            log.record(number * 7, host, "event", &number.to_le_bytes());
        }
        log
    }

    #[test]
    fn runs_part_where_an_event_differs() {
        let (one, two) = (log(1_000_000, u64::MAX), log(1_000_000, 400_000));
        assert_ne!(one.fingerprint(), two.fingerprint());
        let parting = one.steps().first_difference(&two.steps()).expect("they differ");
        assert!(parting.contains(&400_000), "{parting:?}");
        assert!(parting.end - parting.start <= 8_192);
        assert_eq!(one.steps().first_difference(&log(1_000_000, u64::MAX).steps()), None);
        let text = one.steps().to_string();
        assert_eq!(text.parse(), Ok(one.steps()));
    }

    #[test]
    fn lanes_have_a_value_for_each_step() {
        let log = EventLog::keeping(0..0, true);
        let step = SERIES_STEP_MS * 1_000_000;
        for (nanos, value) in [(0, 5), (step - 1, 3), (3 * step, 7)] {
            log.add_sample(nanos, "t0", Series::Sent, value);
            log.add_sample(nanos, "t0", Series::Memory, value);
        }
        let points = |series, steps: &[(u64, u64)]| SeriesPoints {
            host: "t0".to_string(),
            series,
            points: steps.to_vec(),
        };
        assert_eq!(
            log.series(),
            [points(Series::Sent, &[(0, 8), (3, 7)]), points(Series::Memory, &[(0, 5), (3, 7)])]
        );
        let unseen = EventLog::new(true);
        unseen.add_sample(0, "t0", Series::Sent, 1);
        assert!(unseen.series().is_empty());
    }

    #[test]
    fn digests_see_every_byte_and_the_length() {
        let bytes: Vec<u8> = (0..40).collect();
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(digest(&bytes), digest(&other));
            assert_ne!(digest(&bytes), digest(&bytes[..at]));
        }
        assert_ne!(digest(&[0]), digest(&[0, 0]));
    }
}
