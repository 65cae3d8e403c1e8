//! The RPC layer in turmoil's world: a server must keep what it acknowledged while it is killed, loses power and is cut
//! off.

use std::sync::Arc;
use std::time::Duration;

use engine::disk::{Disk, DiskFile};
use engine::sync::Mutex;
use nyala_common::env::{BoxFuture, Env};
use nyala_common::rpc::client::{CallOptions, Proxy};
use nyala_common::rpc::server::RpcServer;
use nyala_common::rpc::{Call, MethodInfo, Reply, RpcConfig, RpcErrorCodePb, Service};
use nyala_common::security::acl::MethodRole;
use sim::event_log::{EventLog, RunFingerprint};
use sim::world::turmoil::{TurmoilResult, TurmoilWorld};

const JOURNAL: &str = "test.Journal";
const METHODS: [MethodInfo; 2] = [
    MethodInfo { name: "Append", role: MethodRole::Client, audited: false, tracked: false, required: &[1] },
    MethodInfo { name: "Read", role: MethodRole::Client, audited: false, tracked: false, required: &[] },
];

/// A file of numbers, eight bytes each.
struct Journal {
    env: Env,
    file: Arc<dyn DiskFile>,
    turn: Mutex<()>,
}

impl Journal {
    fn open(env: &Env) -> std::io::Result<Journal> {
        let disk: Arc<dyn Disk> = env.disks.open("journal")?;
        let file = disk.open("numbers").or_else(|_| disk.create("numbers"))?;
        disk.sync_dir("")?;
        // The rest of a torn append is not a number.
        let whole = file.len()? / 8 * 8;
        file.truncate(whole)?;
        Ok(Journal { env: env.clone(), file, turn: Mutex::new(()) })
    }

    fn append(&self, number: u64) -> std::io::Result<()> {
        let _turn = self.turn.lock();
        self.file.append(&number.to_le_bytes())?;
        self.file.sync()
    }

    fn read(&self) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.file.len()? as usize];
        self.file.read_at(0, &mut bytes)?;
        Ok(bytes)
    }
}

impl Service for Journal {
    fn name(&self) -> &'static str {
        JOURNAL
    }

    fn features(&self) -> &'static [u32] {
        &[]
    }

    fn methods(&self) -> &'static [MethodInfo] {
        &METHODS
    }

    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply> {
        Box::pin(async move {
            let done = match call.method {
                "Append" => match call.decode::<u64>() {
                    Ok(number) => self.env.run(|| self.append(number)).await.map(|()| Vec::new()),
                    Err(reply) => return reply,
                },
                _ => self.env.run(|| self.read()).await,
            };
            match done {
                Ok(bytes) => Reply::message(&bytes),
                Err(error) => Reply::error(RpcErrorCodePb::ErrorApplication, error.to_string()),
            }
        })
    }
}

async fn serve(env: Env) -> TurmoilResult {
    let journal = Arc::new(Journal::open(&env)?);
    let listener = env.net.listen("0.0.0.0:7050".parse()?).await?;
    let _server = RpcServer::new(env, RpcConfig::default()).add(journal).serve(listener);
    std::future::pending().await
}

/// Appends numbers from 1 on, each until it is acknowledged, then checks that none is missing.
async fn append_all(env: Env, count: u64) -> TurmoilResult {
    let proxy = Proxy::new(env.clone(), "server:7050", "root");
    for number in 1..=count {
        loop {
            let deadline = env.now().mono.after(Duration::from_millis(700));
            let called =
                proxy.call::<u64, Vec<u8>>(JOURNAL, "Append", &number, deadline, CallOptions::default());
            if called.await.is_ok() {
                break;
            }
            env.sleep(Duration::from_millis(20)).await;
        }
    }
    let deadline = env.now().mono.after(Duration::from_secs(20));
    let called = proxy.call::<(), Vec<u8>>(JOURNAL, "Read", &(), deadline, CallOptions::default());
    let bytes = called.await?.message;
    let mut kept: Vec<u64> =
        bytes.chunks_exact(8).map(|n| u64::from_le_bytes(n.try_into().unwrap())).collect();
    kept.dedup();
    match kept.iter().copied().eq(1..=count) {
        true => Ok(()),
        false => Err(format!("acknowledged numbers are missing or out of order: {kept:?}").into()),
    }
}

fn run(seed: u64, keep: bool) -> (RunFingerprint, Vec<String>) {
    let log = EventLog::new(keep);
    let mut world = TurmoilWorld::new(seed, Duration::from_secs(120), log.clone());
    world.host("server", serve);
    world.client("client", |env| append_all(env, 150));
    let faults = ["power", "kill", "hold", "power", "hold", "kill", "power"];
    for (number, fault) in faults.into_iter().enumerate() {
        let pause = Duration::from_millis(60 + (seed * 31 + number as u64 * 17) % 90);
        assert!(!world.run_for(pause).expect("no client fails"), "the faults come in time");
        match fault {
            "power" => world.cut_power("server"),
            "kill" => world.kill("server"),
            _ => world.hold("server", "client"),
        }
        world.run_for(Duration::from_millis(300)).expect("no client fails");
        match fault {
            "hold" => world.release("server", "client"),
            _ => world.restart("server"),
        }
    }
    world.run().expect("everything acknowledged is there");
    assert_eq!(world.machine("server").disk("journal").fault_counts().crashes, 3);
    (world.fingerprint(), log.lines())
}

#[test]
fn what_is_acknowledged_survives() {
    for seed in 0..10 {
        run(seed, false);
    }
}

#[test]
fn a_seed_repeats_itself_through_crashes() {
    let (first, first_lines) = run(3, true);
    let (second, second_lines) = run(3, true);
    let parting = first_lines.iter().zip(&second_lines).find(|(first, second)| first != second);
    assert_eq!(parting, None);
    assert_eq!(first, second);
}
