//! Spans of calls: those of a server are made when the call ends, from its steps, so that a running call has none.

use std::net::SocketAddr;

use engine::time::ClockReading;

use super::call_samples::CallSample;
use super::call_steps::CallStep;
use crate::spans::{CallSpan, Span, SpanKind, SpanRecorder, SpanValue, since_1970};

/// Parts of a server's call that are spans of their own: name, first step, last step. Without a first step the part
/// begins with the arrival.
const PARTS: [(&str, Option<CallStep>, CallStep); 6] = [
    ("queue", None, CallStep::Admitted),
    ("prepare", Some(CallStep::Admitted), CallStep::Prepared),
    ("log append", Some(CallStep::Appending), CallStep::Appended),
    ("log sync", Some(CallStep::Appended), CallStep::Logged),
    ("replicate", Some(CallStep::Prepared), CallStep::Replicated),
    ("apply", Some(CallStep::Replicated), CallStep::Applied),
];

/// Records a call that a server has answered at `now`: if it is sampled, or slow.
pub(super) fn record(spans: &SpanRecorder, now: ClockReading, span: Option<CallSpan>, call: &CallSample) {
    if !spans.is_on() {
        return;
    }
    let late = || call.is_slow.then(|| spans.late_root()).flatten();
    let Some(span) = span.or_else(late) else { return };
    let start = since_1970(now, call.received);
    let nanos = |time: std::time::Duration| start.saturating_add(time.as_nanos() as u64);
    for (name, first, last) in PARTS {
        let begin = first.map_or(Some(std::time::Duration::ZERO), |first| call.steps.of(first));
        let (Some(begin), Some(end)) = (begin, call.steps.of(last)) else { continue };
        let Some(part) = spans.child(span.context) else { continue };
        spans.record(Span {
            span: part,
            name: name.to_owned(),
            kind: SpanKind::Internal,
            start_nanos: nanos(begin),
            // An operation that is applied before the replica counts it as committed has no time between.
            end_nanos: nanos(end.max(begin)),
            attributes: Vec::new(),
            events: Vec::new(),
            error: None,
        });
    }
    let events = call.steps.in_order().into_iter().map(|(step, at)| (step.name(), nanos(at)));
    let mut attributes = rpc_attributes(call.service, call.method);
    attributes.push(("client.address", SpanValue::Text(call.remote.ip().to_string())));
    attributes.push(("nyala.request_bytes", SpanValue::Number(call.request_bytes as i64)));
    spans.record(Span {
        span,
        name: format!("{}/{}", call.service, call.method),
        kind: SpanKind::Server,
        start_nanos: start,
        end_nanos: nanos(call.took),
        attributes,
        events: events.collect(),
        error: None,
    });
}

/// A call of a client that has ended.
pub(super) struct OutgoingCall<'a> {
    pub service: &'a str,
    pub method: &'a str,
    pub to: SocketAddr,
    pub error: Option<String>,
}

/// Records a call of a client, between two times.
pub(super) fn record_outgoing(
    spans: &SpanRecorder,
    span: CallSpan,
    (began, ended): (ClockReading, ClockReading),
    call: OutgoingCall<'_>,
) {
    let mut attributes = rpc_attributes(call.service, call.method);
    attributes.push(("server.address", SpanValue::Text(call.to.ip().to_string())));
    attributes.push(("server.port", SpanValue::Number(call.to.port().into())));
    spans.record(Span {
        span,
        name: format!("{}/{}", call.service, call.method),
        kind: SpanKind::Client,
        start_nanos: since_1970(ended, began.mono),
        end_nanos: since_1970(ended, ended.mono),
        attributes,
        events: Vec::new(),
        error: call.error,
    });
}

fn rpc_attributes(service: &str, method: &str) -> Vec<(&'static str, SpanValue)> {
    vec![
        ("rpc.system", SpanValue::Text("kudu".to_owned())),
        ("rpc.service", SpanValue::Text(service.to_owned())),
        ("rpc.method", SpanValue::Text(method.to_owned())),
    ]
}
