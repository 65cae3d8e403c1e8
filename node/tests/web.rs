//! The web server over real sockets.

use std::sync::Arc;
use std::time::Duration;

use engine::format_level::LevelRange;
use engine::ids::Uuid;
use engine::time::{ClockReading, Instant};
use node::dirs::ServerKind;
use node::server::flags::Flags;
use node::server::health::{CheckResult, HealthCheck};
use node::server::pages::startup_progress::StartupStep;
use node::server::{ServerContext, ServerHealth, web};
use nyala_common::env::os::{OsEnv, OsOptions};
use nyala_common::env::{BoxFuture, Clock, Env};
use nyala_common::metrics::{MetricSnapshot, table};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn world() -> (Env, ServerContext) {
    let env = OsEnv::new(&OsOptions::default()).unwrap();
    let flags = Flags::new();
    flags.set("heartbeat_interval_ms", "5").unwrap();
    flags.set("never_fsync", "true").unwrap();
    let levels = LevelRange::PROGRAM;
    let common = ServerContext::new(&env, ServerKind::Master, Uuid([7; 16]), levels, Arc::new(flags));
    (env, common)
}

/// Sends a request and returns the whole response.
async fn send_request(env: &Env, web: &web::WebHandle, request: &str) -> String {
    let deadline = env.now().mono.after(Duration::from_secs(10));
    let mut stream = env.net.connect(web.local_addr(), deadline).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    // After malformed bytes the server may reset the connection instead of closing it in order.
    let _ = stream.read_to_string(&mut response).await;
    response
}

async fn get(env: &Env, web: &web::WebHandle, path: &str) -> (String, String) {
    let response =
        send_request(env, web, &format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")).await;
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_string(), body.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_are_served() {
    let (env, common) = world();
    common.metrics.register(|out: &mut MetricSnapshot| out.server.counter(&table::RPCS_QUEUE_OVERFLOW, 3));
    let web = web::serve(&env, "127.0.0.1:0".parse().unwrap(), common.clone()).await.unwrap();

    let (status, body) = get(&env, &web, "/healthz").await;
    assert_eq!((status.as_str(), body.as_str()), ("HTTP/1.1 503 Service Unavailable", "starting\n"));
    let (status, body) = get(&env, &web, "/readyz").await;
    assert!(status.contains("503") && body.starts_with("server: failed: starting\nclock: ok: "), "{body}");
    common.status.set_health(ServerHealth::Healthy);
    let (status, body) = get(&env, &web, "/healthz").await;
    assert_eq!((status.as_str(), body.as_str()), ("HTTP/1.1 200 OK", "OK"));
    assert_eq!(get(&env, &web, "/livez").await.1, "ok\n");
    common.status.set_health(ServerHealth::Failed("the disk is gone".to_string()));
    assert_eq!(get(&env, &web, "/healthz").await.1, "failed: the disk is gone\n");

    let line = "\nkudu_master_rpcs_queue_overflow{unit_type=\"requests\"} 3\n";
    assert!(get(&env, &web, "/metrics_prometheus").await.1.contains(line));
    let json = r#"[{"type":"server","id":"kudu.master","attributes":{"uuid":"07070707070707070707070707070707"},"metrics":[{"name":"rpcs_queue_overflow","value":3}]}]"#;
    assert_eq!(get(&env, &web, "/metrics?compact=1&metrics=overflow").await.1, json);
    assert!(get(&env, &web, "/metrics?level=loud").await.0.contains("400"));
    let settings = get(&env, &web, "/varz?raw").await.1;
    let (set, all) = settings.split_once("\nAll settings\n").expect("Kudu's two parts");
    assert_eq!(set, "Non-default settings\n--heartbeat_interval_ms=5\n--never_fsync=true\n");
    assert!(all.lines().any(|shown| shown == "--user_acl=*"), "{all}");
    let request = "GET /varz?format=json&q=never_fsync HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let listed = send_request(&env, &web, request).await;
    assert!(listed.contains("\r\nx-total-count: "), "{listed}");
    assert!(get(&env, &web, "/mem-trackers?raw").await.1.contains("\nserver "));
    assert!(get(&env, &web, "/").await.1.contains("master 07070707"));
    let version = get(&env, &web, "/version").await.1;
    assert!(version.starts_with(r#"{"version_info":{"build_clean_repo":true"#), "{version}");
    assert!(get(&env, &web, "/nothing").await.0.contains("404"));
    for path in ["/pprof/profile", "/pprof/cmdline", "/pprof/heap"] {
        let (status, body) = get(&env, &web, path).await;
        assert!(status.contains("403") && body.contains("--enable_pprof"), "{path}: {status} {body}");
    }
    let (status, body) = get(&env, &web, "/tracing.html").await;
    assert!(status.contains("404") && body.contains("/rpcz"), "{status} {body}");
    let posted = send_request(&env, &web, "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(posted.starts_with("HTTP/1.1 405"), "{posted}");
    assert_eq!(common.status.to_pb().bound_http_addresses[0].port, u32::from(web.local_addr().port()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_scraper_gets_text_where_kudu_has_json() {
    let (env, common) = world();
    let web = web::serve(&env, "127.0.0.1:0".parse().unwrap(), common).await.unwrap();
    let mut lines = Vec::new();
    for (path, accept) in [
        ("/metrics", "*/*"),
        ("/metrics", "text/plain"),
        ("/metrics", "application/json, text/plain, */*"),
        ("/jsonmetricz", "application/json, text/plain;version=0.0.4"),
        ("/metrics", "text/plain;version=0.0.4;q=1,*/*;q=0.1"),
        ("/jsonmetricz", "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=1.0.0;q=0.3"),
        ("/metrics_prometheus", "application/json"),
    ] {
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\nconnection: close\r\n\r\n");
        let response = send_request(&env, &web, &request).await;
        let kind = response.lines().find_map(|line| line.strip_prefix("content-type: "));
        lines.push(format!("{path} {accept}\n  {}\n", kind.unwrap_or(&response)));
    }
    expect_test::expect![[r#"
        /metrics */*
          application/json
        /metrics text/plain
          application/json
        /metrics application/json, text/plain, */*
          application/json
        /jsonmetricz application/json, text/plain;version=0.0.4
          application/json
        /metrics text/plain;version=0.0.4;q=1,*/*;q=0.1
          text/plain; version=0.0.4; charset=utf-8
        /jsonmetricz application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=1.0.0;q=0.3
          text/plain; version=0.0.4; charset=utf-8
        /metrics_prometheus application/json
          text/plain; version=0.0.4; charset=utf-8
    "#]]
    .assert_eq(&lines.concat());
}

/// Before the server exists, the port shows its progress and its settings.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_is_shown_from_its_first_moment() {
    let (env, common) = world();
    let startup = common.startup.clone();
    startup.begin(StartupStep::Init, env.now().mono);
    let (address, flags) = ("127.0.0.1:0".parse().unwrap(), common.flags.clone());
    let web = web::open(&env, address, ServerKind::TabletServer, flags, startup.clone()).await.unwrap();
    let redirect = send_request(&env, &web, "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(
        redirect.starts_with("HTTP/1.1 307") && redirect.contains("\r\nlocation: /startup\r\n"),
        "{redirect}"
    );
    let state = async |name: &str| {
        let json = get(&env, &web, "/startup?format=json").await.1;
        serde_json::from_str::<serde_json::Value>(&json).unwrap()[name].clone()
    };
    assert_eq!((state("init_status").await, state("is_tablet_server").await), (0.into(), true.into()));
    startup.end(StartupStep::Init, env.now().mono);
    assert_eq!((state("init_status").await, state("read_filesystem_status").await), (100.into(), 0.into()));
    startup.count_tablets(|| (3, 12));
    startup.begin(StartupStep::StartTablets, env.now().mono);
    assert_eq!((state("start_tablets_status").await, state("tablets_total").await), (25.into(), 12.into()));
    assert!(get(&env, &web, "/startup").await.1.contains("the server is starting"));
    assert!(get(&env, &web, "/livez").await.0.contains("200"));
    assert!(get(&env, &web, "/varz").await.0.contains("200"));
    assert!(get(&env, &web, "/healthz").await.0.contains("503"));
    assert!(get(&env, &web, "/metrics").await.0.contains("503"));
    web.attach(common);
    assert!(get(&env, &web, "/metrics").await.0.contains("200"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_requests_do_not_affect_others() {
    let (env, common) = world();
    let web = web::serve(&env, "127.0.0.1:0".parse().unwrap(), common).await.unwrap();
    for malformed in ["\0\0\0\0", "hrpc\x09\0\0", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n"] {
        let response = send_request(&env, &web, malformed).await;
        assert!(response.is_empty() || response.starts_with("HTTP/1.1 400"), "{response}");
    }
    assert!(get(&env, &web, "/").await.0.contains("200"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_in_use_is_reported() {
    let (env, common) = world();
    let web = web::serve(&env, "127.0.0.1:0".parse().unwrap(), common.clone()).await.unwrap();
    let error = web::serve(&env, web.local_addr(), common).await.err().unwrap();
    assert_eq!(error.errno, Some(libc::EADDRINUSE));
    assert!(error.message.contains("stop that one or choose another with --webserver_port"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readiness_lists_all_checks() {
    let (env, common) = world();
    common.status.set_health(ServerHealth::Healthy);
    let warning = || HealthCheck::new("space", CheckResult::Warning("little \"space\"".to_string()));
    common.checks.register(move |checks| checks.push(warning()));
    let web = web::serve(&env, "127.0.0.1:0".parse().unwrap(), common.clone()).await.unwrap();
    let (status, body) = get(&env, &web, "/readyz").await;
    assert!(status.contains("200") && body.contains("\nspace: warning: little \"space\"\n"), "{body}");
    let (status, body) = get(&env, &web, "/readyz?format=json&strict=1").await;
    assert!(status.contains("503"), "{status}");
    let json: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(json["ready"], false);
    assert_eq!(json["checks"][0]["state"], "ok");
    assert_eq!(json["checks"][2]["detail"], "little \"space\"");
    common.checks.register(|checks| {
        checks.push(HealthCheck::new("masters", CheckResult::Failed("none".to_string())));
    });
    assert!(get(&env, &web, "/readyz").await.0.contains("503"));
    assert!(get(&env, &web, "/healthz").await.0.contains("200"), "it answers");
}

/// Clients that send half a request, from one address, do not keep others from the port.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_sent_requests_starve_nobody() {
    let (env, common) = world();
    common.status.set_health(ServerHealth::Healthy);
    let web = web::serve(&env, "127.0.0.1:0".parse().unwrap(), common).await.unwrap();
    let deadline = env.now().mono.after(Duration::from_secs(10));
    let mut half_sent = Vec::new();
    for _ in 0..200 {
        let mut stream = env.net.connect(web.local_addr(), deadline).await.unwrap();
        stream.write_all(b"GET /metr").await.unwrap();
        half_sent.push(stream);
    }
    for _ in 0..40 {
        let answered = env.timeout(Duration::from_secs(4), get(&env, &web, "/healthz")).await;
        assert_eq!(answered.expect("at once").1, "OK");
    }
    let mut rest = String::new();
    let closed = env.timeout(Duration::from_secs(20), half_sent[0].read_to_string(&mut rest)).await;
    assert!(closed.is_some(), "the oldest was dropped");
}

/// Clients that keep their connections open after a request, from one address, do not keep others from the port.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_kept_open_starve_no_probe() {
    let (env, common) = world();
    common.status.set_health(ServerHealth::Healthy);
    let web = web::serve(&env, "127.0.0.1:0".parse().unwrap(), common).await.unwrap();
    let deadline = env.now().mono.after(Duration::from_secs(10));
    let mut kept = Vec::new();
    for _ in 0..40 {
        let mut stream = env.net.connect(web.local_addr(), deadline).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut first = [0; 8];
        stream.read_exact(&mut first).await.expect("an answer");
        assert_eq!(&first, b"HTTP/1.1");
        kept.push(stream);
    }
    assert_eq!(get(&env, &web, "/healthz").await.1, "OK");
}

/// A clock that stands: no wait ends, so that nothing is closed for its age.
struct StoppedClock(ClockReading);

impl Clock for StoppedClock {
    fn now(&self) -> ClockReading {
        self.0
    }

    fn sleep_until(&self, _until: Instant) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// Clients of many addresses that send their requests letter by letter, more than the port takes, do not keep the
/// server from showing that it lives. The port's clock stands, so that slow clients are not dropped for their age.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_slow_clients_leave_the_signs_of_life_alone() {
    let (env, common) = world();
    common.status.set_health(ServerHealth::Healthy);
    // Both ends of a connection are files of this process.
    let files = env.memory.process().expect("Linux").open_files_max;
    let clients = usize::try_from(files / 2).unwrap_or(usize::MAX).saturating_sub(100).min(1100);
    assert!(clients >= 100, "the limit of open files is {files}");
    let stopped = Env { clock: Arc::new(StoppedClock(env.now())), ..env.clone() };
    let web = web::serve(&stopped, "127.0.0.1:0".parse().unwrap(), common).await.unwrap();
    let mut slow = Vec::new();
    for client in 0..clients {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        let from = std::net::Ipv4Addr::new(127, 0, 1, u8::try_from(client / 25).unwrap());
        socket.bind((from, 0).into()).unwrap();
        let mut stream = socket.connect(web.local_addr()).await.unwrap();
        stream.write_all(b"G").await.unwrap();
        slow.push(stream);
    }
    for letters in [b"ET", b" /", b"ta", b"bl"] {
        for stream in &mut slow {
            // The oldest have been dropped in favour of others.
            let _ = stream.write_all(letters).await;
        }
        for path in ["/livez", "/healthz", "/metrics_prometheus"] {
            let answered = env.timeout(Duration::from_secs(60), get(&env, &web, path)).await;
            assert!(answered.expect("an answer").0.contains("200"), "{path}");
        }
    }
}
