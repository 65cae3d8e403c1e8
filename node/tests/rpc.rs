//! Transcripts of the pure parts of the RPC layer in `tests/rpc/*.txt`; `REWRITE=1` rewrites them.

use std::fmt::Write;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use datadriven::TestCase;
use engine::time::Instant;
use nyala_common::rpc::frame::{self, Frame, FrameReader, split_body};
use nyala_common::rpc::negotiate::{ClientNegotiation, NegotiationStep, ServerNegotiation, check_preamble};
use nyala_common::rpc::result_tracker::{CachedReply, RequestAdmission, ResultTracker};
use nyala_common::sidecars::Sidecars;
use nyala_proto::kudu::rpc::{ErrorStatusPb, NegotiatePb, RequestHeader, RequestIdPb, ResponseHeader};
use prost::Message;

#[test]
fn frames() {
    datadriven::walk("tests/rpc/frame.txt", |file| file.run(frame_directive));
}

#[test]
fn negotiation() {
    datadriven::walk("tests/rpc/negotiate.txt", |file| {
        let mut session = Session::default();
        file.run(|test| session.directive(test));
    });
}

#[test]
fn results() {
    datadriven::walk("tests/rpc/results.txt", |file| {
        let mut tracker = ResultTracker::new(Duration::from_secs(600), Duration::from_secs(3600));
        let mut now = Instant::default();
        file.run(|test| results_directive(&mut tracker, &mut now, test));
    });
}

/// Parses hex digits with optional blanks; `abc*3` repeats a word, `# ...` is a comment.
fn unhex(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in text.lines().flat_map(|line| line.split('#').next().unwrap().split_whitespace()) {
        let (word, times) =
            word.split_once('*').map_or((word, 1), |(word, times)| (word, times.parse().unwrap()));
        let digits: Vec<u32> = word.chars().map(|digit| digit.to_digit(16).unwrap()).collect();
        for _ in 0..times {
            bytes.extend(digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8));
        }
    }
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn arg<T: std::str::FromStr>(test: &TestCase, name: &str, default: T) -> T {
    test.args.get(name).and_then(|values| values.first()?.parse().ok()).unwrap_or(default)
}

fn frame_directive(test: &mut TestCase) -> String {
    match test.directive.as_str() {
        "read" => {
            read_frames(&unhex(&test.input), arg(test, "limit", 1 << 20), arg(test, "chunk", usize::MAX))
        }
        "split" => split(&unhex(&test.input), &test.args["offsets"]),
        "reply" => write_reply(arg(test, "call", 0), &unhex(&test.input)),
        "error" => write_error(arg(test, "call", 0), arg(test, "code", 0), test.input.trim()),
        other => panic!("no directive {other:?}"),
    }
}

/// Feeds the bytes in chunks, as a network does, and prints each frame.
fn read_frames(bytes: &[u8], limit: usize, chunk: usize) -> String {
    let mut reader = FrameReader::new(limit);
    let mut out = String::new();
    for piece in bytes.chunks(chunk.min(bytes.len())) {
        reader.space().extend_from_slice(piece);
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => print_frame(&frame, &mut out),
                Ok(None) => break,
                Err(error) => return out + &format!("error: {error}\n"),
            }
        }
    }
    out + if reader.is_mid_frame() { "in the middle of a frame\n" } else { "" }
}

fn print_frame(frame: &Frame, out: &mut String) {
    match RequestHeader::decode(frame.header.clone()) {
        Ok(header) => {
            let method = header.remote_method.clone().unwrap_or_default();
            write!(out, "call {}", header.call_id).unwrap();
            if header.remote_method.is_some() {
                write!(out, " {}.{}", method.service_name, method.method_name).unwrap();
            }
            if let Some(millis) = header.timeout_millis {
                write!(out, " timeout={millis}ms").unwrap();
            }
            if !header.required_feature_flags.is_empty() {
                write!(out, " flags={:?}", header.required_feature_flags).unwrap();
            }
        }
        Err(_) => write!(out, "header {}", hex(&frame.header)).unwrap(),
    }
    writeln!(out, " body={}", hex(&frame.body)).unwrap();
}

fn split(body: &[u8], offsets: &[String]) -> String {
    let offsets: Vec<u32> = offsets.iter().filter_map(|offset| offset.parse().ok()).collect();
    match split_body(Bytes::copy_from_slice(body), &offsets) {
        Ok((message, sidecars)) => {
            let sidecars: Vec<String> = sidecars.iter().map(|sidecar| hex(sidecar)).collect();
            format!("message={} sidecars=[{}]\n", hex(&message), sidecars.join(", "))
        }
        Err(error) => format!("error: {error}\n"),
    }
}

fn write_reply(call_id: i32, body: &[u8]) -> String {
    let header = ResponseHeader { call_id, is_error: Some(false), sidecar_offsets: Vec::new() };
    let mut out = BytesMut::new();
    frame::put_head(&header, body.len(), &mut out);
    format!("{}\n", hex(&out) + &hex(body))
}

fn write_error(call_id: i32, code: i32, message: &str) -> String {
    let header = ResponseHeader { call_id, is_error: Some(true), sidecar_offsets: Vec::new() };
    let status = ErrorStatusPb { message: message.to_string(), code: Some(code), ..Default::default() };
    let mut out = BytesMut::new();
    frame::put_frame(&header, &status, &mut out);
    format!("{}\n", hex(&out))
}

/// Both sides of a negotiation; each directive feeds one of them.
struct Session {
    server: ServerNegotiation,
    client: ClientNegotiation,
}

impl Default for Session {
    fn default() -> Session {
        Session { server: ServerNegotiation::new(true), client: ClientNegotiation::new("root") }
    }
}

impl Session {
    fn directive(&mut self, test: &TestCase) -> String {
        match test.directive.as_str() {
            "preamble" => match check_preamble(&unhex(&test.input)) {
                Ok(()) => "ok\n".to_string(),
                Err(reason) => format!("{reason}\n"),
            },
            "new" => {
                self.server = ServerNegotiation::new(!test.args.contains_key("untrusted"));
                self.client = ClientNegotiation::new("root");
                String::new()
            }
            "hello" => format!("{}\n", hex(&self.client.hello())),
            "server" => print_step(self.server.on_frame(&one_frame(&test.input))),
            "client" => print_step(self.client.on_frame(&one_frame(&test.input))),
            "self" => self.negotiate_with_self(),
            other => panic!("no directive {other:?}"),
        }
    }

    /// Runs the client's side against the server's side.
    fn negotiate_with_self(&mut self) -> String {
        let mut to_server = self.client.hello().slice(7..);
        for _ in 0..8 {
            let to_client = match self.server.on_frame(&one_frame(&hex(&to_server))) {
                NegotiationStep::Continue(bytes) => bytes,
                other => return print_step(other),
            };
            match self.client.on_frame(&one_frame(&hex(&to_client))) {
                NegotiationStep::Continue(bytes) | NegotiationStep::Done { send: bytes, .. } => {
                    to_server = bytes
                }
                other => return print_step(other),
            }
        }
        "no end\n".to_string()
    }
}

fn one_frame(text: &str) -> Frame {
    let mut reader = FrameReader::new(1 << 20);
    reader.space().extend_from_slice(&unhex(text));
    reader.next_frame().expect("a frame").expect("a whole frame")
}

fn print_step(step: NegotiationStep) -> String {
    match step {
        NegotiationStep::Continue(bytes) => format!("send {}\n{}", hex(&bytes), print_negotiate(&bytes)),
        NegotiationStep::StartTls { send, then } => {
            format!("start TLS, send {}\n{}", hex(&send), print_step(*then))
        }
        NegotiationStep::Done { send, user } => format!("done, user {user:?}, send {:?}\n", hex(&send)),
        NegotiationStep::Failed { send, code, message } => {
            format!("failed, {}: {message}\nsend {}\n", code.as_str_name(), hex(&send))
        }
    }
}

fn print_negotiate(bytes: &Bytes) -> String {
    let message = NegotiatePb::decode(one_frame(&hex(bytes)).body).expect("a negotiation message");
    let mechanisms: Vec<&str> =
        message.sasl_mechanisms.iter().map(|offer| offer.mechanism.as_str()).collect();
    let features = &message.supported_features;
    format!("  {:?} features={features:?} mechanisms={mechanisms:?}\n", message.step())
}

/// `begin c=a seq=1 first=1`, `complete c=a seq=1 reply=x`, `fail`, `restore`, `pass seconds=N`, `state`.
fn results_directive(tracker: &mut ResultTracker<String>, now: &mut Instant, test: &TestCase) -> String {
    let id = RequestIdPb {
        client_id: arg(test, "c", String::new()),
        seq_no: arg(test, "seq", 0),
        first_incomplete_seq_no: arg(test, "first", 0),
        attempt_no: 1,
    };
    let reply =
        CachedReply { body: Bytes::from(arg(test, "reply", String::new())), sidecars: Sidecars::default() };
    let print = |waiters: Vec<String>| format!("answers {waiters:?}\n");
    match test.directive.as_str() {
        "begin" => match tracker.begin(&id, *now, arg(test, "as", String::new())) {
            RequestAdmission::Execute(_) => "execute\n".to_string(),
            RequestAdmission::Attached => "attached\n".to_string(),
            RequestAdmission::Repeat(_, reply) => {
                format!("repeat {}\n", String::from_utf8_lossy(&reply.body))
            }
            RequestAdmission::Stale(_) => "stale\n".to_string(),
        },
        "complete" => print(tracker.complete(&id, reply, *now)),
        "fail" => print(tracker.fail(&id)),
        "restore" => print(tracker.restore(&id, reply, *now)),
        "pass" => {
            *now = now.after(Duration::from_secs(arg(test, "seconds", 0)));
            tracker.expire(*now);
            String::new()
        }
        "state" => {
            let (clients, requests) = tracker.counts();
            format!("clients={clients} requests={requests} bytes={}\n", tracker.bytes())
        }
        other => panic!("no directive {other:?}"),
    }
}
