//! A client trial: the client against the double of a cluster, whose servers do whatever a server may do.
//!
//! ```text
//!   nyala-client: tasks write, scan, change ranges ──► the double: masters, tablet servers
//!        │ what it reports                                │ busy, silent, slow or gone; leaders that move,
//!        ▼                                                │ ranges and tokens that change, small batches
//!   verdicts: the double knows every version of a row ◄──┘
//! ```
//!
//! In a run, servers that are right most of the time leave a client's retries and caches little to do. The double is
//! one state behind all servers (`cluster`): `masters`, `writes`, `scanners`, `tablets` are its parts, `service` is the
//! way of a call by the `conditions` of its server.
//!
//! - A result of a row is that of its one execution; no row operation takes effect twice at a tablet.
//! - A scan shows each row once, in a state that it had, or as of the one snapshot.
//! - A call goes to no tablet that the client knew to be gone, by an answer or by its own change of ranges, and to none
//!   whose location has expired.
//! - An error needs a cause: a timeout some leader that did not serve shortly before, a partial scan a disturbance.
//! - Each operation ends, also if several tasks wait for one session, and what the client opened is closed.
//!
//! *Not here:* encodings of all types, security, and the servers' own code, which runs are for.

mod cluster;
mod codec;
mod conditions;
mod limits;
mod masters;
mod reading;
mod rows;
mod scanner_state;
mod scanners;
mod service;
mod sessions;
mod step;
mod tablets;
mod verdicts;
mod worker;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use engine::disk::mem::DiskCost;
use engine::sync::Mutex;
use nyala_client::{Client, ClientConfig};
use nyala_common::env::Env;
use sim_plan::{Host, NetworkSpec, RandomStream};

use self::cluster::Cluster;
use self::limits::{CLIENT, DISTURBED, END, MASTERS, OP_TIMEOUT, RPC_TIMEOUT, SERVERS, TABLE, WORKERS};
use self::service::Member;
use self::worker::Worker;
use super::pass;
use crate::event_log::EventLog;
use crate::oracle::Violation;
use crate::workload::MASTER_PORT;
use crate::world::keyed::KeyedWorld;
use crate::world::{HostProgram, ProgramResult, World};

/// Name of this oracle.
const NAME: &str = "client trial";

/// Lines that a violation's story ends with.
const STORY: usize = 40;

struct ClientTrial {
    random: RandomStream,
    world: KeyedWorld,
    cluster: Arc<Mutex<Cluster>>,
}

/// Runs the trial of a seed; returns what it finds.
pub(super) fn run(seed: u64) -> Option<Violation> {
    let mut trial = ClientTrial::create(seed);
    trial.run();
    let mut cluster = trial.cluster.lock();
    let what = cluster.found.take()?;
    let steps = std::mem::take(&mut cluster.steps);
    Some(Violation::new(NAME, format!("seed {seed}: {what}")).with_end_of(steps, STORY))
}

impl ClientTrial {
    fn create(seed: u64) -> ClientTrial {
        let network = NetworkSpec {
            latency: Duration::from_micros(100),
            jitter: Duration::from_micros(400),
            bytes_per_ms: 100_000,
            window: 65_536,
            loss_per_mille: 0,
            cut_one_in: 50,
        };
        let log = EventLog::keeping(0..0, false);
        let world = KeyedWorld::new(seed, network, DiskCost::default(), log);
        let cluster = Arc::new(Mutex::new(Cluster::new(seed)));
        ClientTrial { random: RandomStream::new(seed, "client trial, steps"), world, cluster }
    }

    fn run(&mut self) {
        for number in 0..MASTERS {
            self.boot(Host::Master(number as u8), Member::Master(number));
        }
        for number in 0..SERVERS {
            self.boot(Host::Tserver(number as u8), Member::Tserver(number));
        }
        self.start_client();
        while self.world.now() < DISTURBED && self.cluster.lock().found.is_none() {
            let wait = self.random.span(Duration::from_millis(20), Duration::from_secs(4));
            self.pass(wait);
            self.take_step();
        }
        self.heal();
        self.pass(END + OP_TIMEOUT * 2 - self.world.now());
        self.cluster.lock().check_pending();
        self.check_scanners();
    }

    fn boot(&mut self, host: Host, member: Member) {
        let cluster = self.cluster.clone();
        let program: HostProgram = Arc::new(move |env| Box::pin(service::run(env, cluster.clone(), member)));
        self.world.boot(&host.name(), program);
    }

    fn start_client(&mut self) {
        let (cluster, seed) = (self.cluster.clone(), self.random.next_u64());
        let program: HostProgram = Arc::new(move |env| Box::pin(run_client(env, cluster.clone(), seed)));
        self.world.client(CLIENT, program);
    }

    /// Lets time pass.
    fn pass(&mut self, span: Duration) {
        let until = self.world.now() + span;
        if let Err(failure) = pass::until(&mut self.world, until) {
            self.cluster.lock().report(failure);
        }
    }

    /// Reports scanners that the client has left open for no reason.
    fn check_scanners(&mut self) {
        let mut cluster = self.cluster.lock();
        let calm = |op: usize| cluster.ops[op].began > cluster.disturbances.any;
        let left =
            cluster.scanners.values().find(|scanner| calm(scanner.op)).map(|scanner| format!("{scanner:?}"));
        left.into_iter().for_each(|scanner| cluster.report(format!("a scanner was left open: {scanner}")));
    }
}

/// Runs the client's tasks.
async fn run_client(env: Env, cluster: Arc<Mutex<Cluster>>, seed: u64) -> ProgramResult {
    let masters = (0..MASTERS).map(|number| format!("{}:{MASTER_PORT}", Host::Master(number as u8)));
    let config = ClientConfig {
        operation_timeout: OP_TIMEOUT,
        rpc_timeout: RPC_TIMEOUT,
        ..ClientConfig::new(masters)
    };
    let client = Client::connect(env.clone(), ClientConfig { connect_timeout: DISTURBED, ..config }).await?;
    let table = loop {
        // Masters may be out of order for longer than one operation waits.
        if let Ok(table) = client.open_table(TABLE).await {
            break table;
        }
    };
    let worker = |number| Worker {
        number,
        env: env.clone(),
        client: client.clone(),
        table: table.clone(),
        cluster: cluster.clone(),
        random: RandomStream::new(seed, &format!("worker {number}")),
        doubted: Default::default(),
        snapshots: Vec::new(),
        written: 0,
    };
    futures_util::future::join_all((0..WORKERS).map(|number| worker(number).run())).await;
    // What closes scanners runs in the background.
    env.sleep(RPC_TIMEOUT).await;
    Ok(())
}

#[cfg(test)]
mod tests;
