//! What happened, in order: hashed, so that two runs can be compared, and kept as text if asked for.
//!
//! Each event is chained into a hash of 128 bits over its number, its time, its host, its kind and a digest of its
//! bytes. The hash as it was after every so many events is kept as well: where two runs of one seed first differ
//! in these is where they part, and one more run of each that keeps the text there tells by which event.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

/// The events of one run; clones share them.
#[derive(Debug, Clone)]
pub struct EventLog {
    log: Arc<Mutex<Log>>,
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
    moments: Option<Vec<Moment>>,
    lanes: BTreeMap<(String, Lane), BTreeMap<u64, u64>>,
}

/// What a page draws as a curve, for each host: one value for every [`LANE_MS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// The longest time that work handed in then had to wait for its devices and its CPU, in microseconds.
    Work,
    /// Bytes written to connections.
    Sent,
    /// The most memory that was counted, in bytes.
    Memory,
}

/// The width of a step of a lane.
pub const LANE_MS: u64 = 20;

impl Lane {
    pub fn name(self) -> &'static str {
        match self {
            Lane::Work => "disk queue, us",
            Lane::Sent => "sent, bytes",
            Lane::Memory => "memory, bytes",
        }
    }
}

/// What one host's page shows of a lane: the steps that have a value, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Track {
    pub host: String,
    pub lane: Lane,
    /// A step's number, of [`LANE_MS`] each, and its value.
    pub points: Vec<(u64, u64)>,
}

/// What is shown on a run's page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    /// Since the run began.
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

/// Both halves of the product: each bit of it depends on all bits of both.
fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other | 1);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Tells byte strings apart that are not made to deceive.
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

/// What a run came to. Equal for equal seeds, or something escaped the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint {
    pub events: u64,
    pub hash: u128,
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} events, hash {:032x}", self.events, self.hash)
    }
}

/// The hashes of a run along its way.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Steps {
    /// Events from one to the next.
    pub every: u64,
    pub hashes: Vec<u128>,
}

impl Steps {
    /// The events among which two runs part: none of the hashes before differs.
    pub fn parting(&self, other: &Steps) -> Option<Range<u64>> {
        let every = self.every.max(other.every);
        let at = |steps: &Steps, step: u64| {
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
impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.every)?;
        let hashes: Vec<String> = self.hashes.iter().map(|hash| format!("{hash:x}")).collect();
        f.write_str(&hashes.join(","))
    }
}

impl FromStr for Steps {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Steps, Self::Err> {
        let (every, hashes) = text.split_once(':').unwrap_or((text, ""));
        let hashes = hashes.split(',').filter(|hash| !hash.is_empty());
        let hashes = hashes.map(|hash| u128::from_str_radix(hash, 16)).collect::<Result<_, _>>()?;
        Ok(Steps { every: every.parse()?, hashes })
    }
}

const STEPS_MAX: usize = 512;
const FIRST_EVERY: u64 = 64;

impl EventLog {
    /// `keep`: whether every event is kept as a line of text, to find where two runs part.
    pub fn new(keep: bool) -> EventLog {
        EventLog::keeping(if keep { 0..u64::MAX } else { 0..0 }, false)
    }

    /// Keeps the text of the events with these numbers, and, if asked for, the moments of the run.
    pub fn keeping(keep: Range<u64>, moments: bool) -> EventLog {
        let log = Log { every: FIRST_EVERY, keep, moments: moments.then(Vec::new), ..Log::default() };
        EventLog { log: Arc::new(Mutex::new(log)) }
    }

    /// At `nanos` of simulated time `what` happened on `host`, with these bytes.
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

    /// A value for a page's lane, if moments are kept: sums for what is sent, else the most of its step.
    pub fn lane(&self, nanos: u64, host: &str, lane: Lane, value: u64) {
        let mut log = self.lock();
        if log.moments.is_none() {
            return;
        }
        let steps = log.lanes.entry((host.to_string(), lane)).or_default();
        let step = steps.entry(nanos / (LANE_MS * 1_000_000)).or_default();
        *step = if lane == Lane::Sent { *step + value } else { value.max(*step) };
    }

    /// The lanes by host: each with the steps that have a value.
    pub fn lanes(&self) -> Vec<Track> {
        let track = |((host, lane), steps): (&(String, Lane), &BTreeMap<u64, u64>)| {
            let points = steps.iter().map(|(step, value)| (*step, *value)).collect();
            Track { host: host.clone(), lane: *lane, points }
        };
        self.lock().lanes.iter().map(track).collect()
    }

    /// Something that a person who reads the run's page wants to see; part of the hash as well.
    pub fn moment(&self, nanos: u64, host: &str, kind: &'static str, text: &str) {
        self.record(nanos, host, kind, text.as_bytes());
        let mut log = self.lock();
        if let Some(moments) = &mut log.moments {
            moments.push(Moment { nanos, host: host.to_string(), kind, text: text.to_string() });
        }
    }

    /// Like [`EventLog::moment`], but not part of the hash and made only if it is kept.
    pub fn aside(&self, nanos: u64, host: &str, kind: &'static str, text: impl FnOnce() -> String) {
        if let Some(moments) = &mut self.lock().moments {
            moments.push(Moment { nanos, host: host.to_string(), kind, text: text() });
        }
    }

    pub fn fingerprint(&self) -> Fingerprint {
        let log = self.lock();
        Fingerprint { events: log.count, hash: log.chain.value() }
    }

    pub fn steps(&self) -> Steps {
        let log = self.lock();
        Steps { every: log.every, hashes: log.steps.iter().map(|chain| chain.value()).collect() }
    }

    /// The events as text; none if they are not kept.
    pub fn lines(&self) -> Vec<String> {
        self.lock().lines.clone()
    }

    /// The moments, if they are kept.
    pub fn moments(&self) -> Vec<Moment> {
        self.lock().moments.clone().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().expect("nothing panics while it holds the log")
    }
}

impl Log {
    /// Keeps the hash now and then; when there are many, every second one goes and the steps are twice as long.
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

/// Where code runs: on which host, at what time of the run.
pub trait Whereabouts: Send + Sync {
    fn host(&self) -> &str;
    fn nanos(&self) -> u64;
    fn log(&self) -> &EventLog;
    /// A task there has made a step.
    fn stepped(&self);
}

thread_local! {
    static HERE: RefCell<Option<Arc<dyn Whereabouts>>> = const { RefCell::new(None) };
}

/// A future that knows where it runs: what it logs is recorded as that host's.
pub struct At<F> {
    pub here: Arc<dyn Whereabouts>,
    pub future: F,
}

impl<F: Future + Unpin> Future for At<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let before = HERE.replace(Some(self.here.clone()));
        let polled = Pin::new(&mut self.future).poll(cx);
        HERE.replace(before);
        self.here.stepped();
        polled
    }
}

/// An [`EventLog::aside`] of the host whose code runs now; nothing outside of any.
pub fn aside_here(kind: &'static str, text: impl FnOnce() -> String) {
    if let Some(here) = HERE.with_borrow(Option::clone) {
        here.log().aside(here.nanos(), here.host(), kind, text);
    }
}

/// An [`EventLog::lane`] of the host whose code runs now; nothing outside of any.
pub fn lane_here(lane: Lane, value: u64) {
    if let Some(here) = HERE.with_borrow(Option::clone) {
        here.log().lane(here.nanos(), here.host(), lane, value);
    }
}

/// The time of the run at the host whose code runs now; 0 outside of any.
pub fn nanos_here() -> u64 {
    HERE.with_borrow(|here| here.as_ref().map_or(0, |here| here.nanos()))
}

/// Sends what nodes log to the events of the run, as the host's that logs it. Once per process.
pub fn listen_to_logs() {
    // A second run in one process, as tests have them, finds it in place.
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
        here.log().moment(here.nanos(), here.host(), "log", &text.0);
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
        let parting = one.steps().parting(&two.steps()).expect("they differ");
        assert!(parting.contains(&400_000), "{parting:?}");
        assert!(parting.end - parting.start <= 8_192);
        assert_eq!(one.steps().parting(&log(1_000_000, u64::MAX).steps()), None);
        let text = one.steps().to_string();
        assert_eq!(text.parse(), Ok(one.steps()));
    }

    #[test]
    fn lanes_have_a_value_for_each_step() {
        let log = EventLog::keeping(0..0, true);
        let step = LANE_MS * 1_000_000;
        for (nanos, value) in [(0, 5), (step - 1, 3), (3 * step, 7)] {
            log.lane(nanos, "t0", Lane::Sent, value);
            log.lane(nanos, "t0", Lane::Memory, value);
        }
        let lane =
            |lane, steps: &[(u64, u64)]| Track { host: "t0".to_string(), lane, points: steps.to_vec() };
        assert_eq!(log.lanes(), [lane(Lane::Sent, &[(0, 8), (3, 7)]), lane(Lane::Memory, &[(0, 5), (3, 7)])]);
        let unseen = EventLog::new(true);
        unseen.lane(0, "t0", Lane::Sent, 1);
        assert!(unseen.lanes().is_empty());
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
