//! Clients that violate the protocol, and their isolation from other clients.

use super::*;
use crate::env::MemoryBudget;

/// Starts a server and a well-behaved connection to it.
async fn watched(config: RpcConfig) -> (World, Arc<ClientConnection>) {
    let world = World::new(config).await;
    let bystander = world.connect().await;
    (world, bystander)
}

async fn still_served(world: &World, bystander: &Arc<ClientConnection>) {
    let call = world.begin(bystander, "Echo", "fine", 1_000, CallOptions::default());
    assert_eq!(text(call.await.expect("a reply")).as_deref(), Ok("fine"));
}

#[tokio::test(start_paused = true)]
async fn a_call_id_in_flight_must_not_be_reused() {
    let (world, bystander) = watched(RpcConfig::default()).await;
    let mut raw = world.raw().await;
    raw.call(5, "Hold", "").await;
    raw.call(5, "Echo", "").await;
    assert_eq!(raw.reply().await, None);
    still_served(&world, &bystander).await;
    let mut raw = world.raw().await;
    for text in ["one", "two"] {
        raw.call(5, "Echo", text).await;
        assert_eq!(raw.reply().await, Some(format!("5: ok {text}")), "the id is free after its reply");
    }
}

#[tokio::test(start_paused = true)]
async fn malformed_bytes_end_their_own_connection_only() {
    let config = RpcConfig { max_message_bytes: 1 << 20, ..RpcConfig::default() };
    let (world, bystander) = watched(config).await;
    let no_method = {
        let mut out = BytesMut::new();
        frame::put_frame(&RequestHeader { call_id: 1, ..Default::default() }, &String::new(), &mut out);
        out.to_vec()
    };
    let bad_sidecars = {
        let mut out = BytesMut::new();
        let remote_method = Some(RemoteMethodPb { service_name: ECHO.into(), method_name: "Echo".into() });
        let sidecar_offsets = vec![9, 3];
        let header = RequestHeader { call_id: 1, remote_method, sidecar_offsets, ..Default::default() };
        frame::put_frame(&header, &"0123456789".to_string(), &mut out);
        out.to_vec()
    };
    // Each feature is one that the service has.
    let long_header = {
        let mut out = BytesMut::new();
        let remote_method = Some(RemoteMethodPb { service_name: ECHO.into(), method_name: "Echo".into() });
        let required_feature_flags = vec![1; 400_000];
        let header =
            RequestHeader { call_id: 1, remote_method, required_feature_flags, ..Default::default() };
        frame::put_frame(&header, &String::new(), &mut out);
        out.to_vec()
    };
    let malformed: [&[u8]; 9] = [
        b"GET / HTTP/1.1\r\nHost: kudu\r\n\r\n",
        &[0xff; 64],
        &[0, 0, 0, 0],
        &[0, 0x10, 0, 1],
        &[0, 0, 0, 3, 1, 0xff, 0],
        &call_bytes(-7, "Echo", ""),
        &no_method,
        &bad_sidecars,
        &long_header,
    ];
    for (number, bytes) in malformed.iter().enumerate() {
        let mut raw = world.raw().await;
        raw.write(bytes).await;
        assert_eq!(raw.reply().await, None, "number {number}");
        still_served(&world, &bystander).await;
    }
    let counters = world.server.counters();
    assert_eq!(counters.protocol_errors.load(Ordering::Relaxed), malformed.len() as u64);
    assert_eq!(counters.connections_open.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_long_name_is_refused_and_not_repeated() {
    let (world, bystander) = watched(RpcConfig::default()).await;
    let mut raw = world.raw().await;
    raw.call(1, &"é".repeat(1_000), "").await;
    let reply = format!("1: ERROR_NO_SUCH_METHOD service {ECHO} has no method {:?}", "é".repeat(64));
    assert_eq!(raw.reply().await, Some(reply));
    let id = RequestIdPb { client_id: "c".repeat(129), ..request_id(1) };
    let options = CallOptions { request_id: Some(id), ..CallOptions::default() };
    let call = world.begin(&bystander, "Track", "", 1_000, options);
    let refused = text(call.await.expect("a reply")).expect_err("the client's name is too long");
    assert!(refused.contains("the client id of the request is too long (129 bytes, limit 128)"), "{refused}");
    assert_eq!(world.server.results().bytes(), 0);
    still_served(&world, &bystander).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_with_a_long_user_name_is_not_admitted() {
    let (world, bystander) = watched(RpcConfig::default()).await;
    let connect = async |bytes: usize| {
        let user = "u".repeat(bytes);
        let connected = ClientConnection::connect(&world.env, world.addr, user.as_str(), world.after(5_000));
        connected.await.map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(connect(256).await, Ok(()));
    let refused = connect(250_000).await.expect_err("the user's name is too long");
    assert!(refused.contains("the user's name is too long (250000 bytes, limit 256)"), "{refused}");
    still_served(&world, &bystander).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_above_its_limits_is_not_decoded() {
    let (world, bystander) = watched(RpcConfig::default()).await;
    let call = world.begin(&bystander, "WhoAmI", &"x".repeat(1 << 20), 1_000, CallOptions::default());
    let refused = text(call.await.expect("a reply")).expect_err("the request is too long");
    let reason = "WhoAmI: the request is too long (1048580 bytes, limit 1048576); send less at a time";
    assert!(refused.contains(reason), "{refused}");
    let mut raw = world.raw().await;
    let replies = [
        (2, "ok "),
        (3, "ERROR_INVALID_REQUEST Strict: too many elements in things (limit 2); send fewer at a time"),
    ];
    for (things, wanted) in replies {
        raw.write(&strict_call_bytes(things)).await;
        assert_eq!(raw.reply().await, Some(format!("1: {wanted}")), "{things} things");
    }
    still_served(&world, &bystander).await;
}

/// Returns a call of `Strict` whose request has an empty field 1, and these many empty fields 2.
fn strict_call_bytes(things: usize) -> Vec<u8> {
    let remote_method = Some(RemoteMethodPb { service_name: ECHO.into(), method_name: "Strict".into() });
    let header = RequestHeader { call_id: 1, remote_method, ..Default::default() };
    let body: Vec<u8> = [&[0x0au8, 0][..], &[0x12, 0].repeat(things)].concat();
    let mut out = BytesMut::new();
    frame::put_head(&header, body.len(), &mut out);
    out.extend_from_slice(&body);
    out.to_vec()
}

#[tokio::test(start_paused = true)]
async fn connections_above_the_limit_are_refused_until_one_ends() {
    let (world, bystander) = watched(RpcConfig { connections_max: 2, ..RpcConfig::default() }).await;
    let last = world.raw().await;
    assert_eq!(world.raw_unnegotiated().await.read_frame().await, None);
    still_served(&world, &bystander).await;
    drop(last);
    world.env.sleep(Duration::from_secs(2)).await;
    let mut next = world.raw().await;
    next.call(0, "Echo", "hi").await;
    assert_eq!(next.reply().await.as_deref(), Some("0: ok hi"));
}

/// Memory of a machine without any for incomplete requests, beyond what a configuration allows.
struct NoMemory;

impl MemoryBudget for NoMemory {
    fn limit_bytes(&self) -> u64 {
        0
    }
}

#[tokio::test(start_paused = true)]
async fn long_incomplete_requests_share_a_budget() {
    let env = Env { memory: Arc::new(NoMemory), ..mem_net::env() };
    let config = RpcConfig { incoming_bytes_min: 5 << 20, ..RpcConfig::default() };
    let world = World::over(env, config).await;
    let bystander = world.connect().await;
    let begun = |bytes: usize| [&(40u32 << 20).to_be_bytes()[..], &vec![1; bytes]].concat();
    // A buffer has at most twice the bytes that arrived: the first one alone fits, both together do not.
    let (mut first, mut second) = (world.raw().await, world.raw().await);
    first.write(&begun(3 << 19)).await;
    let _closed = second.stream.write_all(&begun(4 << 20)).await;
    assert_eq!(second.read_frame().await, None);
    first.write(&[1; 1_000]).await;
    still_served(&world, &bystander).await;
    assert_eq!(world.server.counters().connections_open.load(Ordering::Relaxed), 2, "the first one is open");
}

#[tokio::test(start_paused = true)]
async fn other_protocols_get_no_reply() {
    let (world, bystander) = watched(RpcConfig::default()).await;
    for bytes in [b"GET / HTTP/1.1\r\n".as_slice(), b"hrpc\x0a\0\0", b"hrp", b""] {
        let mut raw = world.raw_unnegotiated().await;
        raw.write(bytes).await;
        raw.stream.shutdown().await.expect("it shuts down");
        assert_eq!(raw.read_frame().await, None);
    }
    still_served(&world, &bystander).await;
    assert_eq!(world.server.counters().negotiations_failed.load(Ordering::Relaxed), 4);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_negotiate_is_dropped() {
    let world = World::new(RpcConfig::default()).await;
    let began = world.env.now().mono;
    let mut silent = world.raw_unnegotiated().await;
    let mut slow = world.raw_unnegotiated().await;
    slow.write(&negotiation_bytes()[..20]).await;
    assert_eq!(silent.read_frame().await, None);
    assert_eq!(slow.read_frame().await, None);
    let waited = world.env.now().mono.since(began);
    assert!(waited >= Duration::from_secs(3) && waited < Duration::from_secs(4), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_negotiation_may_be_delayed_or_arrive_byte_by_byte() {
    let delay = Duration::from_millis(1_000);
    let world = World::new(RpcConfig { negotiation_delay: delay, ..RpcConfig::default() }).await;
    let began = world.env.now().mono;
    let mut raw = world.raw_unnegotiated().await;
    for byte in negotiation_bytes() {
        raw.write(&[byte]).await;
        world.settle().await;
    }
    // The first call may follow the last negotiation frame without a pause.
    raw.call(0, "Echo", "hi").await;
    raw.read_frame().await.expect("NEGOTIATE");
    raw.read_frame().await.expect("SASL_SUCCESS");
    assert_eq!(raw.reply().await.as_deref(), Some("0: ok hi"));
    assert!(world.env.now().mono.since(began) >= delay);
}

#[tokio::test(start_paused = true)]
async fn a_rejected_negotiation_reports_the_reason() {
    let world = World::new(RpcConfig { trusted_subnets: Vec::new(), ..RpcConfig::default() }).await;
    let connected = ClientConnection::connect(&world.env, world.addr, "root", world.after(5_000)).await;
    let Err(RpcError::Remote { code, .. }) = connected else { panic!("it was let in") };
    assert_eq!(code, RpcErrorCodePb::FatalUnauthorized);
}

/// The reply is larger than what is in flight on a stream, and is read slowly.
#[tokio::test(start_paused = true)]
async fn a_connection_is_not_idle_while_its_peer_takes_a_reply() {
    let keepalive = Some(Duration::from_secs(65));
    let world = World::new(RpcConfig { keepalive, ..RpcConfig::default() }).await;
    let (mut slow, mut stuck) = (world.raw().await, world.raw().await);
    slow.call(0, "Sidecars", "slow").await;
    stuck.call(0, "Sidecars", "stuck").await;
    let (mut taken, mut part) = (Vec::new(), vec![0; 128 << 10]);
    while taken.len() < 3 << 20 {
        world.env.sleep(Duration::from_secs(20)).await;
        let read = slow.stream.read(&mut part).await.expect("the server sends");
        assert_ne!(read, 0, "closed after {} bytes", taken.len());
        taken.extend_from_slice(&part[..read]);
    }
    while !taken.ends_with(b"end") {
        let read = slow.stream.read(&mut part).await.expect("the server sends");
        assert_ne!(read, 0, "closed after {} bytes", taken.len());
        taken.extend_from_slice(&part[..read]);
    }
    let sent = world.env.now().mono;
    assert_eq!(slow.reply().await, None, "an idle connection is closed");
    let waited = world.env.now().mono.since(sent);
    assert!(waited > Duration::from_secs(40) && waited < Duration::from_secs(66), "{waited:?}");
    assert_eq!(stuck.read_frame().await, None, "its reply was cut");
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    let keepalive = Some(Duration::from_secs(65));
    let world = World::new(RpcConfig { keepalive, ..RpcConfig::default() }).await;
    let began = world.env.now().mono;
    let (mut idle, mut busy) = (world.raw().await, world.raw().await);
    world.env.sleep(Duration::from_secs(30)).await;
    busy.call(0, "Hold", "held").await;
    assert_eq!(idle.reply().await, None);
    let waited = world.env.now().mono.since(began);
    assert!(waited >= Duration::from_secs(65) && waited < Duration::from_secs(66), "{waited:?}");
    world.env.sleep(Duration::from_secs(300)).await;
    world.echo.gate.open(1);
    assert_eq!(busy.reply().await.as_deref(), Some("0: ok held"));
    let answered = world.env.now().mono;
    assert_eq!(busy.reply().await, None);
    let waited = world.env.now().mono.since(answered);
    assert!(waited >= Duration::from_secs(65) && waited < Duration::from_secs(131), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_not_read_from() {
    let config = RpcConfig { max_unsent_bytes: 4 << 20, ..RpcConfig::default() };
    let (world, bystander) = watched(config).await;
    let mut raw = world.raw().await;
    for call_id in 0..100 {
        raw.call(call_id, "Sidecars", "").await;
        world.settle().await;
    }
    still_served(&world, &bystander).await;
    let read = world.server.counters().calls_received.load(Ordering::Relaxed);
    assert!(read < 60, "{read} calls read with 3 MiB of reply to each");
    // A client that accepts no byte for the keep-alive time is disconnected.
    world.env.sleep(Duration::from_secs(140)).await;
    assert_eq!(world.server.counters().connections_open.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn calls_continue_after_their_client_disconnects() {
    let (world, bystander) = watched(RpcConfig::default()).await;
    let mut raw = world.raw().await;
    raw.call(0, "Hold", "orphan").await;
    world.settle().await;
    drop(raw);
    world.settle().await;
    world.echo.gate.open(1);
    still_served(&world, &bystander).await;
    world.server.shutdown(Duration::from_secs(1)).await;
}
