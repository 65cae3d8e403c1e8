//! Lines of the audit log: JSON objects in ASCII.

use std::fmt::Write as _;
use std::sync::Arc;

use chrono::{DateTime, SecondsFormat, Utc};
use engine::ids::Uuid;
use serde::Serialize;

use nyala_common::security::AuthnMethod;
use nyala_common::security::audit::{AuditEvent, AuditOutcome};

/// Longest text of an event, in bytes of UTF-8: peers choose texts.
const TEXT_BYTES_MAX: usize = 1_024;

/// Line of an event.
#[derive(Serialize)]
struct EventLine<'a> {
    time: String,
    server: String,
    user: Option<&'a str>,
    authn: Option<&'static str>,
    remote: String,
    action: &'a str,
    subject: Option<&'a str>,
    outcome: &'static str,
    reason: Option<&'a str>,
}

/// Line for events that are missing before it.
#[derive(Serialize)]
struct LostLine {
    time: String,
    server: String,
    action: &'static str,
    count: u64,
}

/// Appends the line of an event.
pub(super) fn push_event(lines: &mut String, server: Uuid, micros: u64, event: &AuditEvent) {
    let authn = event.authn.map(|authn| match authn {
        AuthnMethod::Plain => "none",
        AuthnMethod::Token => "token",
        AuthnMethod::Certificate => "certificate",
        AuthnMethod::Jwt => "jwt",
        AuthnMethod::Kerberos => "kerberos",
    });
    let (outcome, reason) = match &event.outcome {
        AuditOutcome::Allowed => ("allowed", None),
        AuditOutcome::Failed(reason) | AuditOutcome::FailedUnproved(reason) => {
            ("failed", Some(reason.as_str()))
        }
        AuditOutcome::Denied(reason) => ("denied", Some(reason.as_str())),
    };
    let line = EventLine {
        time: time(micros),
        server: server.to_string(),
        user: event.user.as_deref(),
        authn,
        remote: event.remote.to_string(),
        action: &event.action,
        subject: event.subject.as_deref(),
        outcome,
        reason,
    };
    push_ascii(lines, &line);
}

/// Appends the line for events that are missing before it.
pub(super) fn push_lost(lines: &mut String, server: Uuid, micros: u64, lost: u64) {
    let line =
        LostLine { time: time(micros), server: server.to_string(), action: "events lost", count: lost };
    push_ascii(lines, &line);
}

fn time(micros: u64) -> String {
    let time = i64::try_from(micros).ok().and_then(DateTime::<Utc>::from_timestamp_micros);
    time.unwrap_or_default().to_rfc3339_opts(SecondsFormat::Micros, true)
}

/// Returns the event with texts of a limited length, so that the events that wait use little memory.
pub(super) fn with_short_texts(event: AuditEvent) -> AuditEvent {
    let AuditEvent { user, authn, remote, action, subject, outcome } = event;
    let outcome = match outcome {
        AuditOutcome::Allowed => AuditOutcome::Allowed,
        AuditOutcome::Failed(reason) => AuditOutcome::Failed(shorten(reason)),
        AuditOutcome::FailedUnproved(reason) => AuditOutcome::FailedUnproved(shorten(reason)),
        AuditOutcome::Denied(reason) => AuditOutcome::Denied(shorten(reason)),
    };
    let is_long = |user: &Arc<str>| user.len() > TEXT_BYTES_MAX;
    let user = user.map(|user| if is_long(&user) { Arc::from(first_bytes(&user)) } else { user });
    AuditEvent { user, authn, remote, action: shorten(action), subject: subject.map(shorten), outcome }
}

fn shorten(text: String) -> String {
    if text.len() > TEXT_BYTES_MAX { first_bytes(&text).to_string() } else { text }
}

/// Returns the first characters of a text, as many as an event may have.
fn first_bytes(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

/// Appends JSON and a line end. Characters that are not printable ASCII are only in strings, and escaped.
fn push_ascii(lines: &mut String, line: &impl Serialize) {
    let json = serde_json::to_string(line).expect("texts and numbers have a JSON form");
    for char in json.chars() {
        if matches!(char, ' '..='~') {
            lines.push(char);
        } else {
            for unit in char.encode_utf16(&mut [0; 2]) {
                write!(lines, "\\u{unit:04x}").expect("a string takes all");
            }
        }
    }
    lines.push('\n');
}
