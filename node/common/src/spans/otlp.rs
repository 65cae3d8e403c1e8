//! Lines of OTLP JSON (OpenTelemetry protocol 1.x, `ExportTraceServiceRequest`), as the OTLP file exporter writes them.
//!
//! Ids are hexadecimal, numbers of 64 bits are texts, enumerations are numbers: the rules of the protocol's JSON form.

use serde_json::{Value, json};

use super::{Span, SpanValue};

/// Most characters of a text in a span: a peer may choose it.
const TEXT_CHARS_MAX: usize = 1_024;

/// Program that records spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanResource {
    /// Name of the program: `nyala-tablet-server`.
    pub service: String,
    /// Id of this one: a server's UUID.
    pub instance: String,
    pub version: &'static str,
}

/// Returns the line for spans of a program, with its line end.
pub fn line(resource: &SpanResource, spans: &[Span]) -> String {
    let attributes = [
        ("service.name", resource.service.as_str()),
        ("service.instance.id", resource.instance.as_str()),
        ("service.version", resource.version),
    ];
    let attributes: Vec<Value> =
        attributes.into_iter().map(|(key, text)| attribute(key, &SpanValue::Text(text.to_owned()))).collect();
    let spans: Vec<Value> = spans.iter().map(span).collect();
    let scope = json!({ "name": "nyala", "version": resource.version });
    let object = json!({ "resourceSpans": [{
        "resource": { "attributes": attributes },
        "scopeSpans": [{ "scope": scope, "spans": spans }],
    }] });
    format!("{object}\n")
}

fn span(span: &Span) -> Value {
    let ids = &span.span;
    let mut object = json!({
        "traceId": format!("{:032x}", ids.context.trace),
        "spanId": format!("{:016x}", ids.context.span),
        "name": short(&span.name),
        "kind": span.kind as u8,
        "startTimeUnixNano": span.start_nanos.to_string(),
        "endTimeUnixNano": span.end_nanos.to_string(),
    });
    let fields = object.as_object_mut().expect("it is an object");
    if let Some(parent) = ids.parent {
        fields.insert("parentSpanId".to_owned(), format!("{parent:016x}").into());
    }
    if !span.attributes.is_empty() {
        let attributes = span.attributes.iter().map(|(key, value)| attribute(key, value));
        fields.insert("attributes".to_owned(), attributes.collect());
    }
    if !span.events.is_empty() {
        let event = |(name, at): &(&str, u64)| json!({ "timeUnixNano": at.to_string(), "name": name });
        fields.insert("events".to_owned(), span.events.iter().map(event).collect());
    }
    if let Some(why) = &span.error {
        // 2 is STATUS_CODE_ERROR.
        fields.insert("status".to_owned(), json!({ "code": 2, "message": short(why) }));
    }
    object
}

fn attribute(key: &str, value: &SpanValue) -> Value {
    let value = match value {
        SpanValue::Text(text) => json!({ "stringValue": short(text) }),
        SpanValue::Number(number) => json!({ "intValue": number.to_string() }),
    };
    json!({ "key": key, "value": value })
}

fn short(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}
