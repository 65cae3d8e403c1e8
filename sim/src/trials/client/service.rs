//! The services of the double: a call is refused, executed, delayed or left without a reply by its server's condition.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use engine::sync::Mutex;
use nyala_common::env::{BoxFuture, Env};
use nyala_common::rpc::server::RpcServer;
use nyala_common::rpc::{Call, MethodInfo, Reply, RpcConfig, Service};
use nyala_common::security::acl::MethodRole;

use super::cluster::Cluster;
use super::conditions::Condition;
use super::limits::RPC_TIMEOUT;
use crate::wire::client::TSERVER;
use crate::workload::{MASTER_PORT, TSERVER_PORT};
use crate::world::ProgramResult;

/// Method that returns tablets, and the percentage of its replies that are late though nothing is wrong.
const LOCATIONS: &str = "GetTableLocations";
const LATE_PERCENT: u64 = 12;
const MASTER: &str = "kudu.master.MasterService";
const MASTER_METHODS: [MethodInfo; 5] = [
    method("ConnectToMaster"),
    method("GetTableSchema"),
    method(LOCATIONS),
    method("AlterTable"),
    method("IsAlterTableDone"),
];
const TSERVER_METHODS: [MethodInfo; 3] = [method("Write"), method("Scan"), method("ScannerKeepAlive")];
/// Features of all services, ADD_DROP_RANGE_PARTITIONS among them.
const FEATURES: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

const fn method(name: &'static str) -> MethodInfo {
    MethodInfo { name, role: MethodRole::Client, audited: false, tracked: false, required: &[] }
}

/// The server that a service belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Member {
    Master(usize),
    Tserver(usize),
}

/// Treatment of a call; times are waits before and after its execution.
pub(super) enum Treatment {
    Refuse(Reply),
    Serve {
        before: u64,
        after: u64,
    },
    /// Executed, and never replied to.
    LoseReply,
    Ignore,
}

struct DoubleService {
    env: Env,
    cluster: Arc<Mutex<Cluster>>,
    member: Member,
}

impl Cluster {
    /// Draws the treatment of a call by the condition of its server. Locations are late now and then in any case:
    /// ranges may change between a reply and its arrival.
    fn treatment(&mut self, member: Member, method: &str) -> Treatment {
        let condition = match member {
            Member::Master(number) => self.masters[number],
            Member::Tserver(number) => self.servers[number],
        };
        let late = RPC_TIMEOUT.as_nanos() as u64 * 2;
        let serve = Treatment::Serve { before: 0, after: 0 };
        let random = &mut self.random;
        match condition {
            Condition::Busy if random.percent(50) => Treatment::Refuse(Reply::too_busy("the double is busy")),
            Condition::Silent => Treatment::Ignore,
            Condition::Deaf if random.percent(40) => Treatment::LoseReply,
            Condition::Slow if random.percent(50) => {
                Treatment::Serve { before: random.below(late), after: 0 }
            }
            Condition::Slow => Treatment::Serve { before: 0, after: random.below(late) },
            _ if method == LOCATIONS && random.percent(LATE_PERCENT) => {
                Treatment::Serve { before: 0, after: random.below(late / 2) }
            }
            _ => serve,
        }
    }
}

impl DoubleService {
    async fn serve(&self, call: Call) -> Reply {
        let now = || self.env.now().mono.0;
        let treatment = self.cluster.lock().treatment(self.member, call.method);
        let (before, after) = match treatment {
            Treatment::Refuse(reply) => return reply,
            Treatment::Ignore => return pending().await,
            Treatment::LoseReply => (0, u64::MAX),
            Treatment::Serve { before, after } => (before, after),
        };
        if before > 0 {
            self.env.sleep(Duration::from_nanos(before)).await;
        }
        let (reply, method, received) = (self.execute(&call, now(), after), call.method, call.received.0);
        match after {
            0 => {}
            u64::MAX => return pending().await,
            wait => self.env.sleep(Duration::from_nanos(wait)).await,
        }
        self.cluster.lock().replied(method, received, now());
        reply
    }

    fn execute(&self, call: &Call, now: u64, after: u64) -> Reply {
        let mut cluster = self.cluster.lock();
        match self.member {
            Member::Master(number) => cluster.master_call(number, call, now, after),
            Member::Tserver(number) => cluster.tserver_call(number, call, now),
        }
    }
}

impl Service for DoubleService {
    fn name(&self) -> &'static str {
        if matches!(self.member, Member::Master(_)) { MASTER } else { TSERVER }
    }

    fn features(&self) -> &'static [u32] {
        &FEATURES
    }

    fn methods(&self) -> &'static [MethodInfo] {
        if matches!(self.member, Member::Master(_)) { &MASTER_METHODS } else { &TSERVER_METHODS }
    }

    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply> {
        call.release_slot();
        Box::pin(async move { self.serve(call).await })
    }
}

/// Serves a member of the double until its host dies.
pub(super) async fn run(env: Env, cluster: Arc<Mutex<Cluster>>, member: Member) -> ProgramResult {
    let port = if matches!(member, Member::Master(_)) { MASTER_PORT } else { TSERVER_PORT };
    let listener = env.net.listen(([0, 0, 0, 0], port).into()).await?;
    let service = Arc::new(DoubleService { env: env.clone(), cluster, member });
    let _server = RpcServer::new(env, RpcConfig::default()).add(service).serve(listener);
    pending().await
}
