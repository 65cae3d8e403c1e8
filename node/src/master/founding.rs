//! Who replicates the system tablet: agreed when a cluster is founded, compared with the settings ever after.

use std::collections::BTreeSet;
use std::time::Duration;

use engine::error::{Error, Result};
use engine::ids::Uuid;
use engine::raft::{Config, Peer};

use super::convert::id;
use super::requests::MASTER_USER;
use crate::env::Env;
use crate::proto::kudu::consensus::{
    GetConsensusStateRequestPb, GetConsensusStateResponsePb, GetNodeInstanceRequestPb,
    GetNodeInstanceResponsePb,
};
use crate::rpc::client::{CallOptions, Proxy, RpcError};
use crate::server::split_host_port;
use crate::tserver::peers::SERVICE;
use crate::wire::consensus::config_from_pb;

/// How long one master may take to say who it is.
const ASK_TIMEOUT: Duration = Duration::from_secs(3);
/// How often one that does not answer is asked again. Whoever starts masters starts them together.
const ASK_INTERVAL: Duration = Duration::from_millis(200);

/// What the other masters say about the cluster.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Founded {
    /// It is new, and this is its first configuration.
    New(Config),
    /// It is there, and has changed since it was founded, or does not know this master: a copy is what makes this one
    /// know what the others do.
    Before,
}

/// The configuration of a new system tablet: every master of `masters`, which this one (`uuid`) is one of. Waits until
/// all of them run, or one that does says that they have met: another may have gone away since. The same on every
/// master, as each names them in the order of the setting.
pub(super) async fn found(env: &Env, uuid: Uuid, masters: &[String]) -> Result<Founded> {
    let ids = match meet(env, uuid, masters).await? {
        Met::All(ids) => ids,
        Met::Before(config) if config.opid_index.is_none() => return Ok(Founded::New(config)),
        Met::Before(_) => return Ok(Founded::Before),
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
    match is_there(env, uuid, &peers).await {
        true => Ok(Founded::Before),
        false => Ok(Founded::New(Config::initial(peers))),
    }
}

/// How the masters of a new cluster met.
enum Met {
    /// All run; their identities, in the order of the setting.
    All(Vec<Uuid>),
    /// Some met before, and count on this one.
    Before(Config),
}

/// Asks all `masters` until they answer or one of them knows the system tablet, with this master in it.
async fn meet(env: &Env, uuid: Uuid, masters: &[String]) -> Result<Met> {
    let mut ids: Vec<Option<Uuid>> = vec![None; masters.len()];
    let mut said = false;
    loop {
        let mut away = None;
        for (master, known) in masters.iter().zip(&mut ids) {
            match ask_once(env, master).await? {
                Ok(id) => *known = Some(id),
                Err(error) => away = Some((master, error)),
            }
        }
        let Some((master, error)) = away.filter(|_| ids.contains(&None)) else {
            return Ok(Met::All(ids.into_iter().flatten().collect()));
        };
        for (master, id) in masters.iter().zip(&ids) {
            let Some(id) = id.filter(|id| *id != uuid) else { continue };
            if let Some(config) = stored(env, master, id).await.filter(|config| config.peer(uuid).is_some()) {
                return Ok(Met::Before(config));
            }
        }
        if !std::mem::replace(&mut said, true) {
            tracing::info!(%master, %error, "waiting for another master to come up");
        }
        env.sleep(ASK_INTERVAL).await;
    }
}

/// Whether the cluster is there already. Its first configuration, with this master in it, is no sign of that: the
/// others may have founded it just now, and need this one to elect a leader.
async fn is_there(env: &Env, uuid: Uuid, peers: &[Peer]) -> bool {
    for peer in peers.iter().filter(|peer| peer.id != uuid) {
        let config = stored(env, &format!("{}:{}", peer.host, peer.port), peer.id).await;
        if config.is_some_and(|config| config.peer(uuid).is_none() || config.opid_index.is_some()) {
            return true;
        }
    }
    false
}

/// Who replicates the system tablet as the master `uuid` at `address` has it; `None` if it has none or does not answer.
async fn stored(env: &Env, address: &str, uuid: Uuid) -> Option<Config> {
    let proxy = Proxy::new(env.clone(), address, MASTER_USER);
    let request = GetConsensusStateRequestPb { dest_uuid: Some(id(uuid)), ..Default::default() };
    let until = env.now().mono.after(ASK_TIMEOUT);
    let asked = proxy.call(SERVICE, "GetConsensusState", &request, until, CallOptions::default()).await;
    let response: GetConsensusStateResponsePb = asked.ok()?.message;
    let state = response.tablets.into_iter().find_map(|tablet| tablet.cstate)?;
    config_from_pb(&state.committed_config).ok()
}

/// The identity of the server at `address`, as soon as it answers.
pub(super) async fn ask(env: &Env, address: &str) -> Result<Uuid> {
    loop {
        if let Ok(id) = ask_once(env, address).await? {
            return Ok(id);
        }
        env.sleep(ASK_INTERVAL).await;
    }
}

/// The identity of the server at `address`; the inner error if it does not answer.
async fn ask_once(env: &Env, address: &str) -> Result<Result<Uuid, RpcError>> {
    let proxy = Proxy::new(env.clone(), address, MASTER_USER);
    let until = env.now().mono.after(ASK_TIMEOUT);
    let request = GetNodeInstanceRequestPb::default();
    let asked = proxy.call(SERVICE, "GetNodeInstance", &request, until, CallOptions::default()).await;
    let instance = asked.map(|response| {
        let response: GetNodeInstanceResponsePb = response.message;
        response.node_instance
    });
    match instance {
        Ok(instance) => Ok(Ok(Uuid::parse(&instance.permanent_uuid)?)),
        Err(error) => Ok(Err(error)),
    }
}

/// Refuses to run with other masters than the system tablet knows.
pub(super) fn check(config: &Config, uuid: Uuid, masters: &[String]) -> Result<()> {
    // One that is still to be added was told of masters that the others do not count yet.
    // One alone is reached at whatever address it has now.
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
    use std::net::SocketAddr;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::env::{BoxFuture, memory};
    use crate::proto::kudu::NodeInstancePb;
    use crate::proto::kudu::consensus::{
        ConsensusStatePb, get_consensus_state_response_pb::TabletConsensusInfoPb,
    };
    use crate::rpc::server::{RpcHandle, RpcServer};
    use crate::rpc::{Call, MethodInfo, Reply, RpcConfig, Service};
    use crate::wire::consensus::config_to_pb;

    const METHODS: [MethodInfo; 2] = [
        MethodInfo { name: "GetNodeInstance", tracked: false, required: &[] },
        MethodInfo { name: "GetConsensusState", tracked: false, required: &[] },
    ];

    /// A master that runs, with or without a system tablet.
    struct Master {
        uuid: Uuid,
        config: Mutex<Option<Config>>,
    }

    impl Service for Master {
        fn name(&self) -> &'static str {
            SERVICE
        }

        fn features(&self) -> &'static [u32] {
            &[]
        }

        fn method(&self, name: &str) -> Option<&'static MethodInfo> {
            METHODS.iter().find(|method| method.name == name)
        }

        fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply> {
            let reply = if call.method == "GetNodeInstance" {
                let node_instance = NodeInstancePb { permanent_uuid: id(self.uuid), instance_seqno: 0 };
                Reply::message(&GetNodeInstanceResponsePb { node_instance })
            } else {
                let state = |config: &Config| TabletConsensusInfoPb {
                    cstate: Some(ConsensusStatePb {
                        committed_config: config_to_pb(config),
                        ..Default::default()
                    }),
                    ..Default::default()
                };
                let tablets = self.config.lock().expect("unpoisoned").iter().map(state).collect();
                Reply::message(&GetConsensusStateResponsePb { tablets, ..Default::default() })
            };
            Box::pin(std::future::ready(reply))
        }
    }

    fn master(n: u8) -> Peer {
        Peer::voter(Uuid([n; 16]), "127.0.0.1", 7050 + u16::from(n))
    }

    /// Serves as the master `n` until what is returned is dropped.
    async fn serve(env: &Env, n: u8) -> (Arc<Master>, RpcHandle) {
        let addr = SocketAddr::from(([127, 0, 0, 1], master(n).port));
        let listener = env.net.listen(addr).await.expect("the address is free");
        let service = Arc::new(Master { uuid: master(n).id, config: Mutex::default() });
        let server = RpcServer::new(env.clone(), RpcConfig::default()).add(service.clone()).serve(listener);
        (service, server)
    }

    /// What the master 1 of three founds, in five seconds at most.
    async fn founds(env: &Env) -> Option<Founded> {
        let masters: Vec<String> = (1..=3).map(|n| format!("127.0.0.1:{}", master(n).port)).collect();
        let founding = found(env, master(1).id, &masters);
        let founded = env.timeout(Duration::from_secs(5), founding).await;
        founded.map(|founded| founded.expect("good settings"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_master_that_others_count_on_does_not_wait_for_one_that_went_away() {
        let env = memory::env();
        let all = Config::initial(vec![master(1), master(2), master(3)]);
        let _me = serve(&env, 1).await;
        let (other, _server) = serve(&env, 2).await;
        let knows = |config| *other.config.lock().expect("unpoisoned") = Some(config);
        assert_eq!(founds(&env).await, None, "nobody knows who the third is");
        knows(Config::initial(vec![master(2), master(4)]));
        assert_eq!(founds(&env).await, None, "they do not count on it");
        knows(all.clone());
        assert_eq!(founds(&env).await, Some(Founded::New(all.clone())), "they met before");
        knows(Config { opid_index: Some(7), ..all });
        assert_eq!(founds(&env).await, Some(Founded::Before), "they changed since, so that it needs a copy");
    }

    #[test]
    fn masters_must_be_those_that_founded_the_cluster() {
        let peer = |n: u8| Peer::voter(Uuid([n; 16]), format!("m{n}"), 7051);
        let config = Config::initial(vec![peer(1), peer(2), peer(3)]);
        let given = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        assert_eq!(check(&config, Uuid([1; 16]), &given(&["m3:7051", "m1:7051", "m2:7051"])), Ok(()));
        let error = check(&config, Uuid([1; 16]), &given(&["m1:7051", "m4:7051"])).expect_err("others");
        assert!(error.message.contains("m1:7051,m2:7051,m3:7051"), "{error}");
        assert!(check(&config, Uuid([1; 16]), &[]).is_err());
        assert_eq!(check(&Config::initial(vec![peer(1)]), Uuid([1; 16]), &[]), Ok(()));
        let grown = given(&["m1:7051", "m2:7051", "m3:7051", "m4:7051"]);
        assert_eq!(check(&config, Uuid([4; 16]), &grown), Ok(()), "it waits to be added");
    }
}
