//! Spans of calls between two processes, and the bytes of those that record none.

use super::*;
use crate::rpc::negotiate::{ClientNegotiation, ServerNegotiation, ServerNegotiationConfig};
use crate::security::SecurityLevel;
use crate::spans::{Span, SpanContext, SpanKind, SpanOrigin, SpanRecorder};

fn recorded(spans: &SpanRecorder) -> Vec<Span> {
    spans.take(usize::MAX)
}

fn names(spans: &[Span]) -> Vec<&str> {
    spans.iter().map(|span| span.name.as_str()).collect()
}

/// Starts a server and a client which record spans, or do not.
async fn world(server: SpanRecorder, client: SpanRecorder) -> (World, Arc<ClientConnection>) {
    let env = Env { spans: server, ..mem_net::env() };
    let world = World::over(env.clone(), RpcConfig::default()).await;
    let env = Env { spans: client, ..env };
    let connected = ClientConnection::connect(&env, world.addr, "root", world.after(5_000)).await;
    (world, connected.expect("it connects"))
}

async fn echo(world: &World, connection: &ClientConnection, span: SpanOrigin) {
    let options = CallOptions { span, ..CallOptions::default() };
    let text = "x".to_string();
    let called = connection.call::<String, String>(ECHO, "Echo", &text, world.after(1_000), &options).await;
    assert_eq!(called.expect("it echoes").message, "x");
    world.settle().await;
}

#[tokio::test(start_paused = true)]
async fn the_servers_span_is_below_the_clients() {
    // The server samples nothing by itself: it follows the client.
    let (server, client) = (SpanRecorder::new(1, 0.0), SpanRecorder::new(2, 1.0));
    let (world, connection) = world(server.clone(), client.clone()).await;
    echo(&world, &connection, SpanOrigin::Root).await;
    let (called, served) = (recorded(&client), recorded(&server));
    assert_eq!(names(&called), ["test.Echo/Echo"]);
    assert_eq!(names(&served), ["queue", "test.Echo/Echo"]);
    assert_eq!((called[0].kind, called[0].span.parent), (SpanKind::Client, None));
    let (queue, call) = (&served[0], &served[1]);
    assert_eq!((call.kind, call.span.parent), (SpanKind::Server, Some(called[0].span.context.span)));
    assert_eq!(queue.span.parent, Some(call.span.context.span));
    for span in &served {
        assert_eq!(span.span.context.trace, called[0].span.context.trace);
    }
    let events: Vec<&str> = call.events.iter().map(|(name, _)| *name).collect();
    assert_eq!(events, ["admitted", "decoded", "answered"]);
    echo(&world, &connection, SpanOrigin::None).await;
    assert_eq!((recorded(&client).len(), recorded(&server).len()), (0, 0), "no span, none at the server");
}

#[tokio::test(start_paused = true)]
async fn a_server_without_spans_gets_none() {
    let (server, client) = (SpanRecorder::default(), SpanRecorder::new(2, 1.0));
    let (world, connection) = world(server, client.clone()).await;
    echo(&world, &connection, SpanOrigin::Root).await;
    assert_eq!(names(&recorded(&client)), ["test.Echo/Echo"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_samples_the_calls_of_other_clients_and_records_slow_ones() {
    let (all, none) = (SpanRecorder::new(1, 1.0), SpanRecorder::new(1, 0.0));
    for (server, expected) in [(all, 1), (none, 0)] {
        let (world, connection) = world(server.clone(), SpanRecorder::default()).await;
        echo(&world, &connection, SpanOrigin::Root).await;
        let calls = |spans: Vec<Span>| spans.iter().filter(|span| span.kind == SpanKind::Server).count();
        assert_eq!(calls(recorded(&server)), expected);
        let held = world.begin(&connection, "Hold", "slow", 10_000, CallOptions::default());
        world.env.sleep(Duration::from_secs(2)).await;
        world.echo.gate.open(1);
        assert_eq!(text(held.await.expect("a reply")).as_deref(), Ok("slow"));
        world.settle().await;
        assert_eq!(calls(recorded(&server)), 1, "slow");
    }
}

#[tokio::test(start_paused = true)]
async fn a_header_without_agreement_is_ignored() {
    let server = SpanRecorder::new(1, 0.0);
    let env = Env { spans: server.clone(), ..mem_net::env() };
    let world = World::over(env, RpcConfig::default()).await;
    let mut raw = world.raw().await;
    let remote_method =
        Some(RemoteMethodPb { service_name: ECHO.to_string(), method_name: "Echo".to_string() });
    let context = SpanContext { trace: 7, span: 8 };
    let nyala_span = Some(Bytes::copy_from_slice(&context.to_bytes()));
    let header = RequestHeader { call_id: 1, remote_method, nyala_span, ..Default::default() };
    let mut call = BytesMut::new();
    frame::put_frame(&header, &"x".to_string(), &mut call);
    raw.write(&call).await;
    assert_eq!(raw.reply().await.as_deref(), Some("1: ok x"));
    world.settle().await;
    assert_eq!(names(&recorded(&server)), [""; 0]);
}

fn negotiation(spans: bool) -> ServerNegotiation {
    ServerNegotiation::with(ServerNegotiationConfig {
        trusted: true,
        loopback: false,
        encrypt_loopback: false,
        authentication: SecurityLevel::Optional,
        encryption: SecurityLevel::Optional,
        spans,
        now: Default::default(),
        nonce: Default::default(),
        security: ServerSecurity::default(),
    })
}

/// Returns the server's reply to a client's first bytes.
fn reply(server: &mut ServerNegotiation, hello: &Bytes) -> String {
    let mut reader = FrameReader::new(1 << 20);
    reader.space().extend_from_slice(&hello[PREAMBLE.len()..]);
    let frame = reader.next_frame().expect("a frame").expect("a whole frame");
    format!("{:?}", server.on_frame(&frame))
}

/// Kudu's clients and servers see the bytes that they know, whatever this side records.
#[test]
fn the_feature_is_offered_only_with_spans_and_answered_only_to_an_offer() {
    let plain = ClientNegotiation::new("ann").hello();
    let offering = ClientNegotiation::new("ann").offering_spans(true).hello();
    assert_ne!(plain, offering);
    let mut servers = [negotiation(false), negotiation(true), negotiation(false), negotiation(true)];
    let hellos = [&plain, &plain, &offering, &offering];
    let replies: Vec<String> =
        servers.iter_mut().zip(hellos).map(|(server, hello)| reply(server, hello)).collect();
    assert_eq!((&replies[0], &replies[0]), (&replies[1], &replies[2]));
    assert_ne!(replies[0], replies[3]);
    assert_eq!(servers.map(|server| server.spans_agreed()), [false, false, false, true]);
}

#[tokio::test(start_paused = true)]
async fn the_time_of_slow_calls_changes_while_the_server_runs() {
    let server = SpanRecorder::new(1, 0.0);
    let (world, connection) = world(server.clone(), SpanRecorder::default()).await;
    for (slow_ms, slow, spans) in [(1_000, 0, 0), (0, 1, 1), (1_000, 1, 0)] {
        world.slow_call_ms.store(slow_ms, Ordering::Relaxed);
        echo(&world, &connection, SpanOrigin::None).await;
        assert_eq!(world.server.latencies().samples.slow(), slow);
        let calls = recorded(&server).iter().filter(|span| span.kind == SpanKind::Server).count();
        assert_eq!(calls, spans, "a slow call has a span in any case");
    }
}
