//! Calls of well-behaved clients.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::env::Listener;

async fn echo(world: &World, connection: &ClientConnection, text: &str) -> Result<String, RpcError> {
    let deadline = world.after(1_000);
    let options = CallOptions::default();
    let response: RpcResponse<String> =
        connection.call(ECHO, "Echo", &text.to_string(), deadline, &options).await?;
    Ok(response.message)
}

async fn call_error(world: &World, service: &str, method: &str, features: Vec<u32>) -> String {
    let connection = world.connect().await;
    let options = CallOptions { features, ..CallOptions::default() };
    let deadline = world.after(1_000);
    let called = connection.call::<String, String>(service, method, &String::new(), deadline, &options).await;
    called.expect_err("the server rejects the call").to_string()
}

#[tokio::test(start_paused = true)]
async fn a_call_gets_its_reply() {
    let world = World::new(RpcConfig::default()).await;
    let connection = world.connect().await;
    assert_eq!(echo(&world, &connection, "hello").await.as_deref(), Ok("hello"));
    assert_eq!(echo(&world, &connection, "").await.as_deref(), Ok(""));
}

#[tokio::test]
async fn calls_work_over_real_sockets() {
    let env = crate::env::os::OsEnv::new(&Default::default()).expect("an environment");
    let world = World::over(env, RpcConfig::default()).await;
    let proxy = Proxy::new(world.env.clone(), world.addr, "root");
    for text in ["one", "two"] {
        let deadline = world.after(60_000);
        let options = CallOptions::default();
        let response: RpcResponse<String> =
            proxy.call(ECHO, "Echo", &text.to_string(), deadline, options).await.expect("a reply");
        assert_eq!(response.message, text);
    }
    let (text, deadline) = (&String::from("s"), world.after(60_000));
    let sidecars = proxy.call::<String, String>(ECHO, "Sidecars", text, deadline, CallOptions::default());
    assert_eq!(sidecars.await.expect("a reply").sidecars[1].len(), 3 << 20);
    world.server.shutdown(Duration::from_secs(10)).await;
}

#[tokio::test(start_paused = true)]
async fn replies_may_overtake_each_other() {
    let world = World::new(RpcConfig::default()).await;
    let connection = world.connect().await;
    let mut held = world.begin(&connection, "Hold", "slow", 10_000, CallOptions::default());
    assert_eq!(echo(&world, &connection, "fast").await.as_deref(), Ok("fast"));
    assert!(held.try_recv().is_err(), "it is still held");
    world.echo.gate.open(1);
    assert_eq!(text(held.await.expect("a reply")).as_deref(), Ok("slow"));
}

#[tokio::test(start_paused = true)]
async fn sidecars_are_sent_with_the_request() {
    let world = World::new(RpcConfig::default()).await;
    let proxy = Proxy::new(world.env.clone(), world.addr, "root");
    let sidecars = vec![Bytes::from(vec![3; 1 << 20]), Bytes::new(), Bytes::from_static(b"end")];
    let (text, deadline) = (&String::from("s"), world.after(1_000));
    let echoed = proxy.call_with_sidecars::<_, String>(
        ECHO,
        "Echo",
        text,
        sidecars.clone(),
        deadline,
        CallOptions::default(),
    );
    let echoed = echoed.await.expect("a reply");
    assert_eq!((echoed.message.as_str(), echoed.sidecars), ("s", sidecars));
}

#[tokio::test(start_paused = true)]
async fn sidecars_are_sent_with_the_reply() {
    let world = World::new(RpcConfig::default()).await;
    let connection = world.connect().await;
    let (text, options) = (&String::from("m"), CallOptions::default());
    let call = connection.call::<String, String>(ECHO, "Sidecars", text, world.after(1_000), &options);
    let response = call.await.expect("a reply");
    assert_eq!(response.message, "m");
    let lengths: Vec<usize> = response.sidecars.iter().map(Bytes::len).collect();
    assert_eq!(lengths, [0, 3 << 20, 3]);
    assert_eq!(response.sidecars[2], "end");
}

#[tokio::test(start_paused = true)]
async fn checks_are_made_in_order() {
    let world = World::new(RpcConfig::default()).await;
    let call = |service, method, features| call_error(&world, service, method, features);
    assert_eq!(
        call("test.Other", "Echo", vec![9]).await,
        "ERROR_NO_SUCH_SERVICE: service \"test.Other\" is not on this server"
    );
    assert_eq!(
        call(ECHO, "Nonesuch", vec![1, 12]).await,
        "ERROR_INVALID_REQUEST: unsupported feature flags (unsupported feature flags [12])"
    );
    assert_eq!(
        call(ECHO, "Nonesuch", vec![2]).await,
        "ERROR_NO_SUCH_METHOD: service test.Echo has no method \"Nonesuch\""
    );
    assert_eq!(
        call(ECHO, "Strict", vec![]).await,
        "ERROR_INVALID_REQUEST: Strict: the request lacks required fields: 1, 2"
    );
    assert_eq!(call(ECHO, "Forbidden", vec![]).await, "FATAL_UNAUTHORIZED: not for root");
}

#[tokio::test(start_paused = true)]
async fn undecodable_requests_are_invalid() {
    let world = World::new(RpcConfig::default()).await;
    let connection = world.connect().await;
    let options = CallOptions::default();
    // Field 1 is a number; the service expects a string.
    let call = connection.call::<u64, String>(ECHO, "Echo", &7, world.after(1_000), &options);
    let refused = call.await.expect_err("no string").to_string();
    assert!(refused.starts_with("ERROR_INVALID_REQUEST: Echo: the request cannot be decoded"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_rejects_the_least_urgent_call() {
    let world = World::new(RpcConfig { concurrency: 1, queue_length: 2, ..RpcConfig::default() }).await;
    let connection = world.connect().await;
    let begin = |text, millis| world.begin(&connection, "Hold", text, millis, CallOptions::default());
    let running = begin("running", 60_000);
    world.settle().await;
    let (late, soon) = (begin("late", 50_000), begin("soon", 20_000));
    world.settle().await;
    let sooner = begin("sooner", 10_000);
    assert_eq!(
        text(late.await.expect("a reply")).unwrap_err(),
        "ERROR_SERVER_TOO_BUSY: the queue of service test.Echo is full"
    );
    let never = begin("never", 55_000);
    assert!(text(never.await.expect("a reply")).unwrap_err().contains("is full"));
    world.echo.gate.open(3);
    for call in [running, soon, sooner] {
        text(call.await.expect("a reply")).expect("it ran");
    }
    assert_eq!(*world.echo.order.lock(), ["running", "sooner", "soon"]);
    assert_eq!(world.server.counters().calls_rejected.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn calls_whose_deadline_passed_in_the_queue_are_not_run() {
    let world = World::new(RpcConfig { concurrency: 1, ..RpcConfig::default() }).await;
    let mut raw = world.raw().await;
    raw.call(0, "Hold", "first").await;
    let remote_method = Some(RemoteMethodPb { service_name: ECHO.into(), method_name: "Echo".into() });
    let header = RequestHeader { call_id: 1, remote_method, timeout_millis: Some(10), ..Default::default() };
    let mut late = BytesMut::new();
    frame::put_frame(&header, &"late".to_string(), &mut late);
    raw.write(&late).await;
    world.env.sleep(Duration::from_millis(11)).await;
    world.echo.gate.open(1);
    assert_eq!(raw.reply().await.as_deref(), Some("0: ok first"));
    assert_eq!(
        raw.reply().await.as_deref(),
        Some("1: ERROR_SERVER_TOO_BUSY Echo: the deadline passed while the call was queued")
    );
    assert_eq!(*world.echo.order.lock(), ["first"]);
    raw.call(2, "Echo", "after").await;
    assert_eq!(raw.reply().await.as_deref(), Some("2: ok after"), "the slot is free again");
}

#[tokio::test(start_paused = true)]
async fn calls_that_release_their_slot_let_others_run() {
    let world = World::new(RpcConfig { concurrency: 1, queue_length: 0, ..RpcConfig::default() }).await;
    let connection = world.connect().await;
    let waiting = world.begin(&connection, "HoldFree", "waits", 10_000, CallOptions::default());
    world.settle().await;
    assert_eq!(echo(&world, &connection, "runs").await.as_deref(), Ok("runs"));
    world.echo.gate.open(1);
    assert_eq!(text(waiting.await.expect("a reply")).as_deref(), Ok("waits"));
}

#[tokio::test(start_paused = true)]
async fn retries_of_a_tracked_call_get_its_reply() {
    let world = World::new(RpcConfig::default()).await;
    let (one, two) = (world.connect().await, world.connect().await);
    let track = |connection, text, seq_no| {
        let options = CallOptions { request_id: Some(request_id(seq_no)), ..CallOptions::default() };
        world.begin(connection, "Track", text, 10_000, options)
    };
    let first = track(&one, "", 1);
    world.settle().await;
    let attached = track(&two, "", 1);
    world.settle().await;
    world.echo.gate.open(1);
    let reply = first.await.expect("a reply").expect("it ran");
    assert_eq!(attached.await.expect("a reply").as_ref(), Ok(&reply));
    assert_eq!(track(&two, "", 1).await.expect("a reply").as_ref(), Ok(&reply), "the cached reply");
    assert_eq!(world.echo.executed.load(Ordering::Relaxed), 1);
    world.echo.gate.open(10);
    track(&two, "", 2).await.expect("a reply").expect("it ran");
    let stale = text(track(&two, "", 1).await.expect("a reply")).unwrap_err();
    assert_eq!(stale, "ERROR_REQUEST_STALE: request 1 of client c0ffee is stale");
}

#[tokio::test(start_paused = true)]
async fn a_request_without_effect_is_executed_again() {
    let world = World::new(RpcConfig::default()).await;
    let connection = world.connect().await;
    world.echo.gate.open(10);
    for (count, text) in [(1, "fail"), (2, "uncached"), (3, "kept"), (3, "kept")] {
        let options = CallOptions { request_id: Some(request_id(1)), ..CallOptions::default() };
        let _ = world.begin(&connection, "Track", text, 1_000, options).await.expect("a reply");
        assert_eq!(world.echo.executed.load(Ordering::Relaxed), count, "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_withheld_reply_is_for_retries() {
    let world = World::new(RpcConfig::default()).await;
    let connection = world.connect().await;
    world.echo.gate.open(1);
    let call = || {
        let options = CallOptions { request_id: Some(request_id(1)), ..CallOptions::default() };
        world.begin(&connection, "Track", "withheld", 1_000, options)
    };
    let first = text(call().await.expect("a reply"));
    assert_eq!(first, Err("ERROR_APPLICATION: not yet".to_string()));
    assert!(call().await.expect("a reply").is_ok(), "the cached reply");
    assert_eq!(world.echo.executed.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn retries_get_replies_restored_from_a_log() {
    let world = World::new(RpcConfig::default()).await;
    let connection = world.connect().await;
    let reply = "done before".to_string().encode_to_vec();
    world.server.results().restore(&request_id(3), reply.clone(), world.env.now().mono);
    let options = CallOptions { request_id: Some(request_id(3)), ..CallOptions::default() };
    let text = &String::new();
    let call = connection.call::<String, String>(ECHO, "Track", text, world.after(1_000), &options);
    assert_eq!(call.await.expect("a reply").message, "done before");
    assert!(world.server.results().bytes() > reply.len());
}

#[tokio::test(start_paused = true)]
async fn shutdown_finishes_running_calls_and_rejects_the_rest() {
    let world = World::new(RpcConfig { concurrency: 1, ..RpcConfig::default() }).await;
    let mut raw = world.raw().await;
    let mut negotiating = world.raw_unnegotiated().await;
    raw.call(0, "Hold", "runs").await;
    raw.call(1, "Hold", "waits").await;
    world.settle().await;
    let shutdown = world.server.shutdown(Duration::from_secs(10));
    let session = async {
        assert_eq!(raw.reply().await.unwrap(), "1: ERROR_UNAVAILABLE the server is shutting down");
        raw.call(2, "Echo", "late").await;
        assert_eq!(raw.reply().await.unwrap(), "2: ERROR_UNAVAILABLE the server is shutting down");
        world.echo.gate.open(1);
        assert_eq!(raw.reply().await.unwrap(), "0: ok runs");
        assert_eq!(raw.reply().await, None);
    };
    tokio::join!(shutdown, session);
    assert_eq!(negotiating.read_frame().await, None);
    assert!(world.env.net.connect(world.addr, world.after(1_000)).await.is_err(), "the port is closed");
}

#[tokio::test(start_paused = true)]
async fn a_client_of_a_stopping_server_waits_for_running_calls() {
    let world = World::new(RpcConfig::default()).await;
    let connection = world.connect().await;
    let held = world.begin(&connection, "Hold", "begun", 10_000, CallOptions::default());
    world.settle().await;
    let session = async {
        world.settle().await;
        let refused = echo(&world, &connection, "late").await.expect_err("the server is stopping");
        assert!(refused.is_unreachable(), "{refused}");
        assert!(!connection.is_open());
        let unsent = echo(&world, &connection, "later").await;
        assert!(matches!(unsent, Err(RpcError::Network { sent: false, .. })));
        world.echo.gate.open(1);
        assert_eq!(text(held.await.expect("a reply")).as_deref(), Ok("begun"));
    };
    tokio::join!(world.server.shutdown(Duration::from_secs(10)), session);
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_after_the_grace_time() {
    let world = World::new(RpcConfig::default()).await;
    let connection = world.connect().await;
    let held = world.begin(&connection, "Hold", "endless", 60_000, CallOptions::default());
    world.settle().await;
    let began = world.env.now().mono;
    world.server.shutdown(Duration::from_secs(5)).await;
    assert!(world.env.now().mono.since(began) < Duration::from_secs(8));
    assert!(matches!(held.await.expect("a reply"), Err(RpcError::Network { sent: true, .. })));
    assert!(!connection.is_open());
}

#[tokio::test(start_paused = true)]
async fn a_proxy_reconnects() {
    let world =
        World::new(RpcConfig { keepalive: Some(Duration::from_secs(1)), ..RpcConfig::default() }).await;
    let proxy = Proxy::new(world.env.clone(), world.addr.to_string(), "root");
    let text = &String::from("hi");
    for _ in 0..3 {
        let options = CallOptions::default();
        let call = proxy.call::<String, String>(ECHO, "Echo", text, world.after(1_000), options);
        assert_eq!(call.await.expect("a reply").message, "hi");
        world.env.sleep(Duration::from_secs(3)).await;
    }
    assert_eq!(world.server.counters().connections_accepted.load(Ordering::Relaxed), 3);
    world.server.shutdown(Duration::ZERO).await;
    let call = proxy.call::<String, String>(ECHO, "Echo", text, world.after(1_000), CallOptions::default());
    assert!(matches!(call.await, Err(RpcError::Network { sent: false, .. })));
}

#[tokio::test(start_paused = true)]
async fn a_timed_out_call_is_dropped_and_a_silent_connection_closed() {
    let world = World::new(RpcConfig::default()).await;
    let connection = world.connect().await;
    for (millis, open) in [(1_000, true), (1_000, true), (4_000, false)] {
        let held = world.begin(&connection, "Hold", "", millis, CallOptions::default()).await;
        let timed_out = held.expect("a reply").expect_err("held");
        assert!(matches!(timed_out, RpcError::TimedOut { sent: true, .. }), "{timed_out}");
        assert_eq!(connection.is_open(), open);
    }
}

#[tokio::test(start_paused = true)]
async fn silence_lasts_over_calls_that_follow_each_other() {
    let world = World::new(RpcConfig::default()).await;
    let connection = world.connect().await;
    let is_open_after_timeout = || async {
        let held = world.begin(&connection, "Hold", "", 1_100, CallOptions::default()).await;
        let timed_out = held.expect("a reply").expect_err("held");
        assert!(matches!(timed_out, RpcError::TimedOut { sent: true, .. }), "{timed_out}");
        connection.is_open()
    };
    for _ in 0..2 {
        assert!(is_open_after_timeout().await, "silent for less than 3 s");
    }
    world.echo.gate.open(2);
    world.settle().await;
    for open in [true, true, false] {
        assert_eq!(is_open_after_timeout().await, open, "late replies have ended the first silence");
    }
}

/// Accepts one connection and passes its bytes on to `to`, those of the server a few at a time.
async fn relay_slowly(env: Env, mut listener: Box<dyn Listener>, to: SocketAddr) {
    let (client, _) = listener.accept().await.expect("a client");
    let deadline = env.now().mono.after(Duration::from_secs(1));
    let server = env.net.connect(to, deadline).await.expect("it connects");
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let answers = async {
        let mut part = vec![0; 300 << 10];
        loop {
            let read = from_server.read(&mut part).await.unwrap_or(0);
            if read == 0 || to_client.write_all(&part[..read]).await.is_err() {
                return;
            }
            env.sleep(Duration::from_millis(500)).await;
        }
    };
    let _ = tokio::join!(tokio::io::copy(&mut from_client, &mut to_server), answers);
}

/// Accepts one connection and passes its bytes on to `to`, in both directions, until `reads` is false.
async fn relay_while(env: Env, mut listener: Box<dyn Listener>, to: SocketAddr, reads: Arc<AtomicBool>) {
    let (client, _) = listener.accept().await.expect("a client");
    let deadline = env.now().mono.after(Duration::from_secs(1));
    let server = env.net.connect(to, deadline).await.expect("it connects");
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let requests = async {
        let mut part = vec![0; 4 << 10];
        while reads.load(Ordering::Relaxed) {
            let read = from_client.read(&mut part).await.unwrap_or(0);
            to_server.write_all(&part[..read]).await.expect("the server reads");
        }
        std::future::pending::<()>().await;
    };
    let _ = tokio::join!(requests, tokio::io::copy(&mut from_server, &mut to_client));
}

#[tokio::test(start_paused = true)]
async fn a_closed_connection_ends_although_its_peer_takes_no_bytes() {
    let world = World::new(RpcConfig::default()).await;
    let listener = world.env.net.listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a port");
    let (relay, reads) = (listener.local_addr(), Arc::new(AtomicBool::new(true)));
    world.env.spawn("relay", relay_while(world.env.clone(), listener, world.addr, reads.clone()));
    let connection =
        ClientConnection::connect(&world.env, relay, "root", world.after(5_000)).await.expect("it connects");
    reads.store(false, Ordering::Relaxed);
    let large = "x".repeat(4 << 20);
    let held = world.begin(&connection, "Hold", &large, 4_000, CallOptions::default());
    let timed_out = held.await.expect("a reply").expect_err("held");
    assert!(matches!(timed_out, RpcError::TimedOut { sent: true, .. }), "{timed_out}");
    assert!(!connection.is_open());
    world.env.sleep(Duration::from_millis(1)).await;
    assert_eq!(Arc::strong_count(&connection), 1, "its task has ended");
}

#[tokio::test(start_paused = true)]
async fn a_large_response_on_a_slow_link_is_no_silence() {
    let world = World::new(RpcConfig::default()).await;
    let listener = world.env.net.listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a port");
    let slow = listener.local_addr();
    world.env.spawn("relay", relay_slowly(world.env.clone(), listener, world.addr));
    let connection =
        ClientConnection::connect(&world.env, slow, "root", world.after(5_000)).await.expect("it connects");
    let large = world.begin(&connection, "Sidecars", "large", 60_000, CallOptions::default());
    let held = world.begin(&connection, "Hold", "", 3_500, CallOptions::default());
    let timed_out = held.await.expect("a reply").expect_err("held");
    assert!(matches!(timed_out, RpcError::TimedOut { sent: true, .. }), "{timed_out}");
    assert!(connection.is_open(), "bytes came all the time");
    assert_eq!(text(large.await.expect("a reply")).as_deref(), Ok("large"));
}
