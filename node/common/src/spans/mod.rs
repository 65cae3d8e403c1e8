//! Spans: timed parts of requests, from the client's call to the followers' logs, if spans are switched on.
//!
//! ```text
//!   client: call ──▶ header (trace, span) ──▶ server: call ─┬─ queue, prepare, append, sync, replicate, apply
//!                                                           └─ call to each follower ──▶ call ── append, sync
//!   SpanRecorder::record ──▶ queue (bounded) ──▶ task of the owner ──▶ one line of OTLP JSON for many spans
//! ```
//!
//! - Off is the default, and costs one branch where a call begins and ends: no random number, no allocation.
//! - A request is sampled where it begins; all later parts follow that decision. Servers record slow calls in any case.
//! - Invariant: ids come from a generator of the recorder's own. The environment's randomness gives its seed when the
//!   recorder is made, and nothing later, so that spans do not change the numbers that other code draws.
//!
//! *Not here:* files of spans (`node/src/server/span_log`), the header field (`rpc`).

pub mod otlp;

use engine::sync::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;

use engine::time::{ClockReading, Instant};
use tokio::sync::Notify;

/// Spans that wait for the owner's task. With one more, the newest is lost.
const WAITING_MAX: usize = 8_192;

/// A span as the ones below it know it: what a call's header carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanContext {
    /// Id of the request. Not 0.
    pub trace: u128,
    /// Id of the span. Not 0.
    pub span: u64,
}

impl SpanContext {
    /// Bytes of the encoded form.
    const BYTES: usize = 24;

    /// Returns the form of a call's header: the ids of trace and span, big-endian.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.trace.to_be_bytes());
        bytes[16..].copy_from_slice(&self.span.to_be_bytes());
        bytes
    }

    /// Decodes the form of a call's header; `None` for other bytes, which are ignored.
    pub fn from_bytes(bytes: &[u8]) -> Option<SpanContext> {
        let (trace, span) = bytes.split_at_checked(16)?;
        let trace = u128::from_be_bytes(trace.try_into().ok()?);
        let span = u64::from_be_bytes(span.try_into().ok()?);
        (trace != 0 && span != 0).then_some(SpanContext { trace, span })
    }
}

/// A span that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallSpan {
    pub context: SpanContext,
    /// Span above it; `None` where the request begins.
    pub parent: Option<u64>,
}

/// Origin of the span of an outgoing call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpanOrigin {
    /// The call has no span.
    #[default]
    None,
    /// A request begins, and is sampled.
    Root,
    /// The call is made for this span.
    Child(SpanContext),
}

/// Side of a span, by the numbers of OTLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    Internal = 1,
    Server = 2,
    Client = 3,
}

/// Value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpanValue {
    Text(String),
    Number(i64),
}

/// A span that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    pub span: CallSpan,
    pub name: String,
    pub kind: SpanKind,
    /// Start and end in nanoseconds since 1970.
    pub start_nanos: u64,
    pub end_nanos: u64,
    pub attributes: Vec<(&'static str, SpanValue)>,
    /// Names of events within the span, with their times in nanoseconds since 1970.
    pub events: Vec<(&'static str, u64)>,
    /// Reason of a failure.
    pub error: Option<String>,
}

/// Recorder of a process's spans; off by default. Cheap to clone, clones share the queue.
#[derive(Clone, Default)]
pub struct SpanRecorder(Option<Arc<Recording>>);

struct Recording {
    /// Requests are sampled whose random number is below.
    sampled_below: u64,
    /// Span of the whole program, above the requests; `None` for a server.
    program: Option<SpanContext>,
    state: Mutex<RecordingState>,
    /// Notified when spans wait.
    waiting: Notify,
}

struct RecordingState {
    /// State of the generator of ids (SplitMix64).
    random: u64,
    queue: VecDeque<Span>,
    lost: u64,
}

impl RecordingState {
    fn next_u64(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns an id, which is not 0.
    fn id(&mut self) -> u64 {
        self.next_u64().max(1)
    }
}

impl SpanRecorder {
    /// Creates a recorder that samples this share of the requests (0 to 1). The seed comes from the environment.
    pub fn new(seed: u64, ratio: f64) -> SpanRecorder {
        // The cast saturates: a ratio of 1 samples all requests but one of 2^64.
        let sampled_below = (ratio.clamp(0.0, 1.0) * u64::MAX as f64) as u64;
        let state = RecordingState { random: seed, queue: VecDeque::new(), lost: 0 };
        let waiting = Notify::new();
        let recording = Recording { sampled_below, program: None, state: Mutex::new(state), waiting };
        SpanRecorder(Some(Arc::new(recording)))
    }

    /// Creates a recorder of a program that is one span itself, with all its requests below. The seed comes from the
    /// environment.
    pub fn of_program(seed: u64) -> (SpanRecorder, CallSpan) {
        let mut state = RecordingState { random: seed, queue: VecDeque::new(), lost: 0 };
        let program = new_root(&mut state);
        let (state, waiting) = (Mutex::new(state), Notify::new());
        let recording = Recording { sampled_below: u64::MAX, program: Some(program.context), state, waiting };
        (SpanRecorder(Some(Arc::new(recording))), program)
    }

    /// Returns true if spans are recorded.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Begins the span of a request, if it is sampled.
    pub fn root(&self) -> Option<CallSpan> {
        let recording = self.0.as_ref()?;
        if let Some(program) = recording.program {
            return self.child(program);
        }
        let mut state = recording.state.lock();
        if state.next_u64() >= recording.sampled_below {
            return None;
        }
        Some(new_root(&mut state))
    }

    /// Begins the span of a request that was not sampled, and that is worth a span after all.
    pub fn late_root(&self) -> Option<CallSpan> {
        self.0.as_ref().map(|recording| new_root(&mut recording.state.lock()))
    }

    /// Begins a span below `parent`.
    pub fn child(&self, parent: SpanContext) -> Option<CallSpan> {
        let recording = self.0.as_ref()?;
        let span = recording.state.lock().id();
        Some(CallSpan { context: SpanContext { span, ..parent }, parent: Some(parent.span) })
    }

    /// Begins the span of an outgoing call.
    pub fn begin(&self, origin: SpanOrigin) -> Option<CallSpan> {
        match origin {
            SpanOrigin::None => None,
            SpanOrigin::Root => self.root(),
            SpanOrigin::Child(parent) => self.child(parent),
        }
    }

    /// Adds a span that has ended.
    pub fn record(&self, span: Span) {
        let Some(recording) = &self.0 else { return };
        let mut state = recording.state.lock();
        if state.queue.len() < WAITING_MAX {
            state.queue.push_back(span);
        } else {
            state.lost += 1;
        }
        drop(state);
        recording.waiting.notify_one();
    }

    /// Waits for spans. Never returns if spans are off.
    pub async fn wait(&self) {
        let Some(recording) = &self.0 else { return std::future::pending().await };
        loop {
            let waiting = recording.waiting.notified();
            if !recording.state.lock().queue.is_empty() {
                return;
            }
            waiting.await;
        }
    }

    /// Removes the oldest spans from the queue, up to a number.
    pub fn take(&self, count_max: usize) -> Vec<Span> {
        let Some(mut state) = self.state() else { return Vec::new() };
        let count = state.queue.len().min(count_max);
        state.queue.drain(..count).collect()
    }

    /// Returns the number of spans that found the queue full.
    pub fn lost(&self) -> u64 {
        self.state().map_or(0, |state| state.lost)
    }

    fn state(&self) -> Option<MutexGuard<'_, RecordingState>> {
        self.0.as_ref().map(|recording| recording.state.lock())
    }
}

fn new_root(state: &mut RecordingState) -> CallSpan {
    let trace = (u128::from(state.id()) << 64) | u128::from(state.next_u64());
    CallSpan { context: SpanContext { trace, span: state.id() }, parent: None }
}

/// Returns a time of the monotonic clock in nanoseconds since 1970, by a reading of both clocks.
pub fn since_1970(now: ClockReading, at: Instant) -> u64 {
    let wall = now.wall.micros.saturating_mul(1_000);
    match now.mono.0.checked_sub(at.0) {
        Some(ago) => wall.saturating_sub(ago),
        None => wall.saturating_add(at.0 - now.mono.0),
    }
}

#[cfg(test)]
mod tests;
