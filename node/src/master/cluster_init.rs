//! First configuration of the system tablet: agreed at cluster initialization, compared with the flags at later starts.

use std::collections::BTreeSet;
use std::time::Duration;

use engine::error::{Error, Result};
use engine::ids::Uuid;
use engine::raft::{Peer, RaftConfig};

use super::proto::id;
use crate::hosting::raft_transport::SERVICE;
use crate::server::split_host_port;
use nyala_common::env::Env;
use nyala_common::rpc::client::{CallOptions, Proxy, RpcError};
use nyala_common::security::RpcCaller;
use nyala_common::wire::consensus::config_from_pb;
use nyala_proto::kudu::consensus::{
    GetConsensusStateRequestPb, GetConsensusStateResponsePb, GetNodeInstanceRequestPb,
    GetNodeInstanceResponsePb,
};

/// Deadline of one question to a master for its identity.
const ASK_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval between questions to a master that does not reply. Masters of a cluster are usually started together.
const ASK_INTERVAL: Duration = Duration::from_millis(200);

/// Result of asking the other masters about the cluster.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InitialConfig {
    /// The cluster is new, and this is its first configuration.
    New(RaftConfig),
    /// The cluster exists, and has changed since its initialization or does not know this master. So this master needs
    /// a copy of the system tablet.
    Before,
}

/// Returns the first configuration of a new system tablet: all of `masters`, this one (`uuid`) included. Waits until
/// all of them run, or until a running one reports the initialized cluster, because another may have failed since. The
/// result is the same on every master, because each lists them in the order of the flag.
pub(super) async fn initial_config(
    env: &Env,
    caller: &RpcCaller,
    uuid: Uuid,
    masters: &[String],
) -> Result<InitialConfig> {
    let ids = match discover_masters(env, caller, uuid, masters).await? {
        PeerDiscovery::All(ids) => ids,
        PeerDiscovery::Before(config) if config.opid_index.is_none() => {
            return Ok(InitialConfig::New(config));
        }
        PeerDiscovery::Before(_) => return Ok(InitialConfig::Before),
    };
    let mut peers: Vec<Peer> = Vec::new();
    for (master, id) in masters.iter().zip(ids) {
        if let Some(twice) = peers.iter().find(|peer| peer.id == id) {
            return Err(Error::invalid(format!(
                "master_addresses: {master} and {}:{} are the same master",
                twice.host, twice.port
            )));
        }
        let (host, port) = split_host_port(master)?;
        peers.push(Peer::voter(id, host, port));
    }
    if !peers.iter().any(|peer| peer.id == uuid) {
        return Err(Error::invalid(format!(
            "master_addresses: {} does not name this master, {uuid}",
            masters.join(",")
        )));
    }
    match cluster_exists(env, caller, uuid, &peers).await {
        true => Ok(InitialConfig::Before),
        false => Ok(InitialConfig::New(RaftConfig::initial(peers))),
    }
}

/// Result of the discovery among the masters of a new cluster.
enum PeerDiscovery {
    /// All run; their ids in the order of the flag.
    All(Vec<Uuid>),
    /// Some have initialized the cluster, with this master as a member.
    Before(RaftConfig),
}

/// Queries all `masters` until they reply, or until one of them has a system tablet with this master as a member.
async fn discover_masters(
    env: &Env,
    caller: &RpcCaller,
    uuid: Uuid,
    masters: &[String],
) -> Result<PeerDiscovery> {
    let mut ids: Vec<Option<Uuid>> = vec![None; masters.len()];
    let mut logged = false;
    loop {
        let mut away = None;
        for (master, known) in masters.iter().zip(&mut ids) {
            match ask_once(env, caller, master).await? {
                Ok(id) => *known = Some(id),
                Err(error) => away = Some((master, error)),
            }
        }
        let Some((master, error)) = away.filter(|_| ids.contains(&None)) else {
            return Ok(PeerDiscovery::All(ids.into_iter().flatten().collect()));
        };
        for (master, id) in masters.iter().zip(&ids) {
            let Some(id) = id.filter(|id| *id != uuid) else { continue };
            if let Some(config) =
                stored(env, caller, master, id).await.filter(|config| config.peer(uuid).is_some())
            {
                return Ok(PeerDiscovery::Before(config));
            }
        }
        if !std::mem::replace(&mut logged, true) {
            tracing::info!(%master, %error, "waiting for another master to come up");
        }
        env.sleep(ASK_INTERVAL).await;
    }
}

/// Returns true if the cluster existed before. Its first configuration with this master in it is no sign of that: the
/// others may just have initialized it and need this master to elect a leader.
async fn cluster_exists(env: &Env, caller: &RpcCaller, uuid: Uuid, peers: &[Peer]) -> bool {
    for peer in peers.iter().filter(|peer| peer.id != uuid) {
        let config = stored(env, caller, &format!("{}:{}", peer.host, peer.port), peer.id).await;
        if config.is_some_and(|config| config.peer(uuid).is_none() || config.opid_index.is_some()) {
            return true;
        }
    }
    false
}

/// Returns the configuration of the system tablet at `address`; `None` if that master has none or does not reply.
async fn stored(env: &Env, caller: &RpcCaller, address: &str, uuid: Uuid) -> Option<RaftConfig> {
    let proxy = Proxy::new(env.clone(), address, caller);
    let request = GetConsensusStateRequestPb { dest_uuid: Some(id(uuid)), ..Default::default() };
    let until = env.now().mono.after(ASK_TIMEOUT);
    let result = proxy.call(SERVICE, "GetConsensusState", &request, until, CallOptions::default()).await;
    let response: GetConsensusStateResponsePb = result.ok()?.message;
    let state = response.tablets.into_iter().find_map(|tablet| tablet.cstate)?;
    config_from_pb(&state.committed_config).ok()
}

/// Returns the identity of the server at `address`; waits until it replies.
pub(super) async fn ask(env: &Env, caller: &RpcCaller, address: &str) -> Result<Uuid> {
    loop {
        if let Ok(id) = ask_once(env, caller, address).await? {
            return Ok(id);
        }
        env.sleep(ASK_INTERVAL).await;
    }
}

/// Returns the identity of the server at `address`; the inner error if it does not reply.
async fn ask_once(env: &Env, caller: &RpcCaller, address: &str) -> Result<Result<Uuid, RpcError>> {
    let proxy = Proxy::new(env.clone(), address, caller);
    let until = env.now().mono.after(ASK_TIMEOUT);
    let request = GetNodeInstanceRequestPb::default();
    let result = proxy.call(SERVICE, "GetNodeInstance", &request, until, CallOptions::default()).await;
    let instance = result.map(|response| {
        let response: GetNodeInstanceResponsePb = response.message;
        response.node_instance
    });
    match instance {
        Ok(instance) => Ok(Ok(Uuid::parse(&instance.permanent_uuid)?)),
        Err(error) => Ok(Err(error)),
    }
}

/// Returns an error if the system tablet's configuration has other masters than the flag.
pub(super) fn check(config: &RaftConfig, uuid: Uuid, masters: &[String]) -> Result<()> {
    // A master that is still to be added lists masters that the configuration does not have yet. A single master may
    // have a new address.
    if config.peer(uuid).is_none() || config.is_only_voter(uuid) && masters.len() <= 1 {
        return Ok(());
    }
    let stored: BTreeSet<(String, u16)> =
        config.peers.iter().map(|peer| (peer.host.clone(), peer.port)).collect();
    let given: BTreeSet<(String, u16)> =
        masters.iter().map(|master| split_host_port(master)).collect::<Result<_>>()?;
    if stored == given {
        return Ok(());
    }
    let list = |set: &BTreeSet<(String, u16)>| {
        set.iter().map(|(host, port)| format!("{host}:{port}")).collect::<Vec<_>>().join(",")
    };
    Err(Error::invalid(format!(
        "on-disk master list ({}) and provided master list ({}) differ; start with the former, and add or \
         remove masters while the cluster runs",
        list(&stored),
        list(&given)
    )))
}

#[cfg(test)]
mod tests {
    use engine::sync::Mutex;
    use std::net::SocketAddr;
    use std::sync::Arc;

    use super::*;
    use nyala_common::env::{BoxFuture, mem_net};
    use nyala_common::rpc::server::{RpcHandle, RpcServer};
    use nyala_common::rpc::{Call, MethodInfo, Reply, RpcConfig, Service};
    use nyala_common::security::acl::MethodRole;
    use nyala_common::wire::consensus::config_to_pb;
    use nyala_proto::kudu::NodeInstancePb;
    use nyala_proto::kudu::consensus::{
        ConsensusStatePb, get_consensus_state_response_pb::TabletConsensusInfoPb,
    };

    const METHODS: [MethodInfo; 2] = [
        MethodInfo {
            name: "GetNodeInstance",
            role: MethodRole::Client,
            audited: false,
            tracked: false,
            required: &[],
        },
        MethodInfo {
            name: "GetConsensusState",
            role: MethodRole::Client,
            audited: false,
            tracked: false,
            required: &[],
        },
    ];

    /// A running master, with or without a system tablet.
    struct Master {
        uuid: Uuid,
        config: Mutex<Option<RaftConfig>>,
    }

    impl Service for Master {
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
            let reply = if call.method == "GetNodeInstance" {
                let node_instance = NodeInstancePb { permanent_uuid: id(self.uuid), instance_seqno: 0 };
                Reply::message(&GetNodeInstanceResponsePb { node_instance })
            } else {
                let state = |config: &RaftConfig| TabletConsensusInfoPb {
                    cstate: Some(ConsensusStatePb {
                        committed_config: config_to_pb(config),
                        ..Default::default()
                    }),
                    ..Default::default()
                };
                let tablets = self.config.lock().iter().map(state).collect();
                Reply::message(&GetConsensusStateResponsePb { tablets, ..Default::default() })
            };
            Box::pin(std::future::ready(reply))
        }
    }

    fn master(n: u8) -> Peer {
        Peer::voter(Uuid([n; 16]), "127.0.0.1", 7050 + u16::from(n))
    }

    /// Serves as the master `n` until the returned value is dropped.
    async fn serve(env: &Env, n: u8) -> (Arc<Master>, RpcHandle) {
        let addr = SocketAddr::from(([127, 0, 0, 1], master(n).port));
        let listener = env.net.listen(addr).await.expect("the address is free");
        let service = Arc::new(Master { uuid: master(n).id, config: Mutex::default() });
        let server = RpcServer::new(env.clone(), RpcConfig::default()).add(service.clone()).serve(listener);
        (service, server)
    }

    /// Returns the initial configuration that master 1 of three finds within 5 seconds.
    async fn initial_config_of_first(env: &Env) -> Option<InitialConfig> {
        let masters: Vec<String> = (1..=3).map(|n| format!("127.0.0.1:{}", master(n).port)).collect();
        let caller = RpcCaller::from("kudu");
        let founding = initial_config(env, &caller, master(1).id, &masters);
        let initial = env.timeout(Duration::from_secs(5), founding).await;
        initial.map(|initial| initial.expect("valid flags"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_listed_master_does_not_wait_for_an_unreachable_one() {
        let env = mem_net::env();
        let all = RaftConfig::initial(vec![master(1), master(2), master(3)]);
        let _me = serve(&env, 1).await;
        let (other, _server) = serve(&env, 2).await;
        let knows = |config| *other.config.lock() = Some(config);
        assert_eq!(initial_config_of_first(&env).await, None, "the third is unknown");
        knows(RaftConfig::initial(vec![master(2), master(4)]));
        assert_eq!(initial_config_of_first(&env).await, None, "they do not count on it");
        knows(all.clone());
        assert_eq!(
            initial_config_of_first(&env).await,
            Some(InitialConfig::New(all.clone())),
            "they met before"
        );
        knows(RaftConfig { opid_index: Some(7), ..all });
        assert_eq!(
            initial_config_of_first(&env).await,
            Some(InitialConfig::Before),
            "they changed since, so that it needs a copy"
        );
    }

    #[test]
    fn masters_must_match_the_system_tablets_configuration() {
        let peer = |n: u8| Peer::voter(Uuid([n; 16]), format!("m{n}"), 7051);
        let config = RaftConfig::initial(vec![peer(1), peer(2), peer(3)]);
        let given = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        assert_eq!(check(&config, Uuid([1; 16]), &given(&["m3:7051", "m1:7051", "m2:7051"])), Ok(()));
        let error = check(&config, Uuid([1; 16]), &given(&["m1:7051", "m4:7051"])).expect_err("others");
        assert!(error.message.contains("m1:7051,m2:7051,m3:7051"), "{error}");
        assert!(check(&config, Uuid([1; 16]), &[]).is_err());
        assert_eq!(check(&RaftConfig::initial(vec![peer(1)]), Uuid([1; 16]), &[]), Ok(()));
        let grown = given(&["m1:7051", "m2:7051", "m3:7051", "m4:7051"]);
        assert_eq!(check(&config, Uuid([4; 16]), &grown), Ok(()), "it waits to be added");
    }
}
