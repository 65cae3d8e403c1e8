use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use engine::ids::{OpId, Uuid};
use engine::raft::interface::kind;
use engine::time::Timestamp;
use engine::wal::ReplicateEntry;

use super::*;
use nyala_common::env::BoxFuture;
use nyala_common::env::os::{OsEnv, OsOptions};
use nyala_common::env::partitionable_net::PartitionableNet;
use nyala_common::rpc::server::{RpcHandle, RpcServer};
use nyala_common::rpc::{Call, MethodInfo, Reply, RpcConfig, Service};
use nyala_common::security::acl::MethodRole;

const METHODS: [MethodInfo; 2] = [
    MethodInfo {
        name: "UpdateConsensus",
        role: MethodRole::Client,
        audited: false,
        tracked: false,
        required: &[],
    },
    MethodInfo {
        name: "Heartbeats",
        role: MethodRole::Client,
        audited: false,
        tracked: false,
        required: &[],
    },
];

/// Server that replies to heartbeats, and to entries unless it is set to stall.
#[derive(Default)]
struct Replicas {
    calls: AtomicUsize,
    hangs: AtomicBool,
}

impl Service for Replicas {
    fn name(&self) -> &'static str {
        SERVICE
    }

    fn features(&self) -> &'static [u32] {
        &[]
    }

    fn methods(&self) -> &'static [MethodInfo] {
        &METHODS
    }

    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let answer = |update: ConsensusRequestPb| {
                let request = wire::update_from_pb(update, &call.sidecars).expect("it is well formed");
                wire::update_response_to_pb(&taken(&request))
            };
            if call.method == "Heartbeats" {
                let request: HeartbeatsRequestPb = call.decode().expect("it is well formed");
                let responses = request.updates.into_iter().map(answer).collect();
                return Reply::message(&HeartbeatsResponsePb { responses, error: None });
            }
            if self.hangs.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            Reply::message(&answer(call.decode().expect("it is well formed")))
        })
    }
}

/// Returns the response of a follower that has persisted the entries.
fn taken(request: &UpdateRequest) -> UpdateResponse {
    UpdateResponse {
        responder: request.dest,
        term: request.term,
        last_received: request.last(),
        last_received_current_leader: request.last(),
        last_committed: 0,
        error: None,
    }
}

struct World {
    env: Env,
    wires: PartitionableNet,
    peers: RaftTransport,
    replicas: Arc<Replicas>,
    _server: RpcHandle,
}

type Log = Arc<Mutex<Vec<RaftEvent>>>;

/// Server 1 replies; no server listens at the address of server 2.
async fn world() -> World {
    let os = OsEnv::new(&OsOptions::default()).expect("there is entropy");
    let wires = PartitionableNet::default();
    let at = |host| Env { net: wires.host(host), ..os.clone() };
    let replicas = Arc::new(Replicas::default());
    let listener = at(1).net.listen(addr(1)).await.expect("it listens");
    let server = RpcServer::new(at(1), RpcConfig::default()).add(replicas.clone()).serve(listener);
    let config = RaftTransportConfig::of(&RaftOptions::default(), Duration::from_secs(30));
    let env = at(0);
    World { peers: RaftTransport::new(&env, config, "nyala".into()), env, wires, replicas, _server: server }
}

fn addr(number: u8) -> std::net::SocketAddr {
    std::net::SocketAddr::from(([127, 0, 0, 1], 7_000 + u16::from(number)))
}

fn server(number: u8) -> Peer {
    Peer::voter(Uuid([number; 16]), "127.0.0.1", addr(number).port())
}

fn log() -> (Log, RaftEventSink) {
    let log = Log::default();
    let writer = log.clone();
    (log, Arc::new(move |event| writer.lock().push(event)))
}

fn update(to: &Peer, sent: u64, bytes: usize) -> RaftMessage {
    let op = OpId { term: 1, index: sent };
    let payload = Bytes::from(vec![7; bytes]);
    let entry = ReplicateEntry { op, timestamp: Timestamp(sent), kind: kind::WRITE, payload };
    let request = UpdateRequest {
        tablet: Uuid([9; 16]),
        caller: Uuid([0; 16]),
        dest: to.id,
        term: 1,
        sent,
        preceding: OpId { term: 1, index: sent - 1 },
        entries: if bytes > 0 { vec![entry] } else { Vec::new() },
        committed: 0,
        all_replicated: 0,
        safe_time: None,
    };
    if bytes > 0 { RaftMessage::Update(request) } else { RaftMessage::Heartbeat(request) }
}

/// Returns the sequence numbers of the results, and whether each was a reply.
fn answered(log: &Log) -> Vec<(u64, bool)> {
    let events = log.lock();
    let number = |event: &RaftEvent| match event {
        RaftEvent::Updated { sent, result, .. } => (*sent, result.is_ok()),
        other => panic!("{other:?}"),
    };
    let mut numbers: Vec<(u64, bool)> = events.iter().map(number).collect();
    numbers.sort_unstable();
    numbers
}

#[tokio::test(start_paused = true)]
async fn heartbeats_of_many_tablets_share_calls() {
    let world = world().await;
    let (log, post) = log();
    let to = server(1);
    // 1,000 tablets, each twice per second, at the times of their timers.
    for sent in 1..=2_000 {
        world.peers.send(Uuid([9; 16]), &to, (update(&to, sent, 0), None), &post);
        world.env.sleep(Duration::from_micros(500)).await;
    }
    world.env.sleep(Duration::from_secs(1)).await;
    assert_eq!(answered(&log), (1..=2_000).map(|sent| (sent, true)).collect::<Vec<_>>());
    let calls = world.replicas.calls.load(Ordering::Relaxed);
    assert!(calls <= 100, "{calls} calls");
}

#[tokio::test(start_paused = true)]
async fn an_update_with_a_waiter_is_sent_at_once_with_waiting_heartbeats() {
    let world = world().await;
    let (log, post) = log();
    let to = server(1);
    for sent in 1..=3 {
        world.peers.send(Uuid([9; 16]), &to, (update(&to, sent, 0), None), &post);
        world.env.sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(answered(&log), [(1, true)], "those after the first are gathered");
    let RaftMessage::Heartbeat(request) = update(&to, 4, 0) else { panic!("it has no entries") };
    world.peers.send(Uuid([9; 16]), &to, (RaftMessage::Update(request), None), &post);
    world.env.sleep(Duration::from_millis(1)).await;
    assert_eq!(answered(&log), [(1, true), (2, true), (3, true), (4, true)]);
    assert_eq!(world.replicas.calls.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn heartbeats_overtake_stalled_entries() {
    let world = world().await;
    world.replicas.hangs.store(true, Ordering::Relaxed);
    let (log, post) = log();
    let to = server(1);
    for sent in 1..=4 {
        world.peers.send(Uuid([9; 16]), &to, (update(&to, sent, 1 << 20), None), &post);
    }
    world.peers.send(Uuid([9; 16]), &to, (update(&to, 5, 0), None), &post);
    world.env.sleep(Duration::from_millis(100)).await;
    assert_eq!(answered(&log), [(5, true)]);
    world.env.sleep(Duration::from_secs(31)).await;
    assert_eq!(answered(&log), [(1, false), (2, false), (3, false), (4, false), (5, true)]);
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_server_delays_no_other() {
    let world = world().await;
    let (log, post) = log();
    let (here, away) = (server(1), server(2));
    world.peers.send(Uuid([9; 16]), &away, (update(&away, 1, 0), None), &post);
    world.peers.send(Uuid([9; 16]), &away, (update(&away, 2, 10), None), &post);
    world.peers.send(Uuid([9; 16]), &here, (update(&here, 3, 10), None), &post);
    world.env.sleep(Duration::from_millis(10)).await;
    assert_eq!(answered(&log), [(1, false), (2, false), (3, true)]);
    // A message to an unreachable server fails at its deadline.
    world.wires.cut(1);
    world.peers.send(Uuid([9; 16]), &here, (update(&here, 4, 0), None), &post);
    world.env.sleep(Duration::from_secs(2)).await;
    assert_eq!(answered(&log).last(), Some(&(4, false)));
    world.wires.join(1);
    world.peers.send(Uuid([9; 16]), &here, (update(&here, 5, 0), None), &post);
    world.env.sleep(Duration::from_secs(1)).await;
    assert_eq!(answered(&log).last(), Some(&(5, true)));
}
