//! Cost of one call, client and server together, over a loopback socket: CPU time, which hardly depends on other load,
//! and wall time. `cargo bench -p benches --bench rpc [calls]`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use benches::process::ProcessStats;
use nyala_common::env::os::{OsEnv, OsOptions};
use nyala_common::env::{BoxFuture, Env};
use nyala_common::rpc::client::{CallOptions, ClientConnection};
use nyala_common::rpc::server::RpcServer;
use nyala_common::rpc::{Call, MethodInfo, Reply, RpcConfig, Service};
use nyala_common::security::acl::MethodRole;

const METHODS: [MethodInfo; 1] =
    [MethodInfo { name: "Echo", role: MethodRole::Client, audited: false, tracked: false, required: &[] }];

struct Echo;

impl Service for Echo {
    fn name(&self) -> &'static str {
        "bench.Echo"
    }

    fn features(&self) -> &'static [u32] {
        &[]
    }

    fn methods(&self) -> &'static [MethodInfo] {
        &METHODS
    }

    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply> {
        Box::pin(async move {
            match call.decode::<Vec<u8>>() {
                Ok(bytes) => Reply::message(&bytes),
                Err(reply) => reply,
            }
        })
    }
}

async fn calls(env: Env, connection: Arc<ClientConnection>, count: u64, bytes: usize) {
    let body = vec![7u8; bytes];
    for _ in 0..count {
        let deadline = env.now().mono.after(Duration::from_secs(60));
        let options = CallOptions::default();
        let call = connection.call::<Vec<u8>, Vec<u8>>("bench.Echo", "Echo", &body, deadline, &options);
        assert_eq!(call.await.expect("answered").message.len(), bytes);
    }
}

async fn measure(
    env: &Env,
    connections: &[Arc<ClientConnection>],
    name: &str,
    callers: u64,
    count: u64,
    bytes: usize,
) {
    let (wall, before) = (Instant::now(), ProcessStats::own().cpu());
    let running: Vec<_> = (0..callers)
        .map(|caller| {
            let connection = connections[caller as usize % connections.len()].clone();
            tokio::spawn(calls(env.clone(), connection, count / callers, bytes))
        })
        .collect();
    for caller in running {
        caller.await.expect("the callers end well");
    }
    let per_call = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
    println!(
        "{name:<44} {:6.1} us CPU {:7.1} us wall a call",
        per_call(ProcessStats::own().cpu() - before),
        per_call(wall.elapsed())
    );
}

#[tokio::main]
async fn main() {
    let count = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(100_000);
    let env = OsEnv::new(&OsOptions::default()).expect("this machine");
    let listener = env.net.listen("127.0.0.1:0".parse().expect("an address")).await.expect("a free port");
    let config = RpcConfig { queue_length: 1_000, ..RpcConfig::default() };
    let server = RpcServer::new(env.clone(), config).add(Arc::new(Echo)).serve(listener);
    let mut connections = Vec::new();
    for _ in 0..4 {
        let deadline = env.now().mono.after(Duration::from_secs(10));
        let connection = ClientConnection::connect(&env, server.local_addr(), "root", deadline).await;
        connections.push(connection.expect("it connects"));
    }
    measure(&env, &connections[..1], "one caller, 100 bytes", 1, count, 100).await;
    measure(&env, &connections[..1], "64 callers on one connection, 100 bytes", 64, count, 100).await;
    measure(&env, &connections, "64 callers on four connections, 100 bytes", 64, count, 100).await;
    measure(&env, &connections[..1], "one caller, 1 MB each way", 1, count / 100, 1_000_000).await;
}
