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
use nyala_common::wire::errors::error_from_status;
use nyala_proto::kudu::consensus::{
    GetConsensusStateRequestPb, GetConsensusStateResponsePb, GetNodeInstanceRequestPb,
    GetNodeInstanceResponsePb,
};

/// Deadline of one question to a master for its identity.
const ASK_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval between questions to masters without an answer. Masters of a cluster are usually started together.
const ASK_INTERVAL: Duration = Duration::from_millis(200);
/// Interval at which the log tells why this master waits.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Result of asking the other masters about the cluster.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InitialConfig {
    /// The cluster is new, and this is its first configuration.
    New(RaftConfig),
    /// The cluster exists, and has changed since its initialization or does not know this master. So this master needs
    /// a copy of the system tablet.
    Before,
}

/// Answer of another master about its system tablet.
#[derive(Debug)]
enum TabletAnswer {
    /// It has one with this committed configuration.
    Stored(RaftConfig),
    /// It has none.
    Absent,
    /// It does not reply, or has a system tablet that is not open yet; the text tells which.
    Unknown(String),
}

/// Returns the first configuration of a new system tablet: all of `masters`, this one (`uuid`) included. Waits until
/// all of them say that they have no system tablet, or until one of them has one; it need not wait for the others then.
/// The result is the same on every master, because each lists them in the order of the flag.
///
/// A master without a reply may have a system tablet, as may one that is still opening. With the others started and
/// this one's disk replaced after a power cut, a new system tablet here would never find into their cluster.
pub(super) async fn initial_config(
    env: &Env,
    caller: &RpcCaller,
    uuid: Uuid,
    masters: &[String],
) -> Result<InitialConfig> {
    let mut ids: Vec<Option<Uuid>> = vec![None; masters.len()];
    let mut next_log = env.now().mono;
    loop {
        let answers = ask_all(env, caller, uuid, masters, &mut ids).await?;
        let peers = all_peers(uuid, masters, &ids)?;
        let reason = match decide(uuid, ids.contains(&Some(uuid)), peers, &answers) {
            Ok(config) => return Ok(config),
            Err(reason) => reason,
        };
        if next_log <= env.now().mono {
            tracing::info!(reason, "waiting for the other masters");
            next_log = env.now().mono.after(LOG_INTERVAL);
        }
        env.sleep(ASK_INTERVAL).await;
    }
}

/// Asks each of the other masters about its system tablet. Updates the ids of `masters`.
async fn ask_all(
    env: &Env,
    caller: &RpcCaller,
    uuid: Uuid,
    masters: &[String],
    ids: &mut [Option<Uuid>],
) -> Result<Vec<TabletAnswer>> {
    let mut answers = Vec::new();
    for (master, known) in masters.iter().zip(ids) {
        match ask_once(env, caller, master).await? {
            Ok(id) if id == uuid => *known = Some(id),
            Ok(id) => {
                *known = Some(id);
                answers.push(ask_tablet(env, caller, master, id).await);
            }
            // The own address needs no answer: it is known what is there.
            Err(_) if *known == Some(uuid) => {}
            Err(error) => answers.push(TabletAnswer::Unknown(format!("{master}: {error}"))),
        }
    }
    Ok(answers)
}

/// Returns all masters as voters, in the order of the flag; `None` until the ids of all are known.
fn all_peers(uuid: Uuid, masters: &[String], ids: &[Option<Uuid>]) -> Result<Option<Vec<Peer>>> {
    let mut peers: Vec<Peer> = Vec::new();
    for (master, id) in masters.iter().zip(ids) {
        let Some(id) = *id else { return Ok(None) };
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
    Ok(Some(peers))
}

/// Returns what follows from the answers of the other masters, or the reason to ask again. `is_listed`: one of the
/// flag's addresses is this master's. `peers` are all masters once they are known.
///
/// A first configuration with this master in it is no sign of an older cluster: the others may just have initialized it
/// and need this master to elect a leader. A configuration without it is one: a new cluster has all masters of the
/// flag. So a master with a new disk joins as long as one other master answers. Only the first configuration of a new
/// cluster needs the answers of all.
fn decide(
    uuid: Uuid,
    is_listed: bool,
    peers: Option<Vec<Peer>>,
    answers: &[TabletAnswer],
) -> std::result::Result<InitialConfig, String> {
    let (mut initialized, mut reason) = (None, None);
    for answer in answers {
        match answer {
            TabletAnswer::Stored(config) if config.peer(uuid).is_some() && config.opid_index.is_none() => {
                initialized = initialized.or(Some(config));
            }
            TabletAnswer::Stored(config) if config.peer(uuid).is_some() || is_listed => {
                return Ok(InitialConfig::Before);
            }
            TabletAnswer::Stored(_) | TabletAnswer::Absent => {}
            TabletAnswer::Unknown(why) => reason = reason.or(Some(why)),
        }
    }
    match (initialized, reason, peers) {
        (Some(config), _, _) => Ok(InitialConfig::New(config.clone())),
        (None, None, Some(peers)) => Ok(InitialConfig::New(RaftConfig::initial(peers))),
        (None, Some(why), _) => Err(why.clone()),
        (None, None, None) => Err("the ids of the masters are not known".to_string()),
    }
}

/// Asks the master at `address`, which is `uuid`, about its system tablet.
async fn ask_tablet(env: &Env, caller: &RpcCaller, address: &str, uuid: Uuid) -> TabletAnswer {
    let proxy = Proxy::new(env.clone(), address, caller);
    let request = GetConsensusStateRequestPb { dest_uuid: Some(id(uuid)), ..Default::default() };
    let until = env.now().mono.after(ASK_TIMEOUT);
    let result = proxy.call(SERVICE, "GetConsensusState", &request, until, CallOptions::default()).await;
    let response: GetConsensusStateResponsePb = match result {
        Ok(response) => response.message,
        Err(error) => return TabletAnswer::Unknown(format!("{address}: {error}")),
    };
    if let Some(error) = response.error {
        return TabletAnswer::Unknown(format!("{address}: {}", error_from_status(&error.status)));
    }
    let Some(tablet) = response.tablets.into_iter().next() else { return TabletAnswer::Absent };
    let config = tablet.cstate.map(|state| config_from_pb(&state.committed_config));
    match config {
        Some(Ok(config)) => TabletAnswer::Stored(config),
        Some(Err(error)) => TabletAnswer::Unknown(format!("{address}: {error}")),
        None => TabletAnswer::Unknown(format!("{address}: no configuration in the reply")),
    }
}

/// Returns the configuration in the system tablet of the master at `address`, which is `uuid`; `None` if it has no
/// system tablet. Waits until it can tell.
pub(super) async fn ask_stored(
    env: &Env,
    caller: &RpcCaller,
    address: &str,
    uuid: Uuid,
) -> Option<RaftConfig> {
    loop {
        match ask_tablet(env, caller, address, uuid).await {
            TabletAnswer::Stored(config) => return Some(config),
            TabletAnswer::Absent => return None,
            TabletAnswer::Unknown(_) => env.sleep(ASK_INTERVAL).await,
        }
    }
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
    use crate::master::join::JoinState;
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

    /// System tablet of a running master.
    #[derive(Default)]
    enum SystemTablet {
        #[default]
        Absent,
        Opening,
        Open(RaftConfig),
    }

    /// A running master.
    struct Master {
        uuid: Uuid,
        tablet: Mutex<SystemTablet>,
    }

    impl Master {
        fn set(&self, tablet: SystemTablet) {
            *self.tablet.lock() = tablet;
        }

        fn consensus_state(&self) -> GetConsensusStateResponsePb {
            let state = |config: &RaftConfig| TabletConsensusInfoPb {
                cstate: Some(ConsensusStatePb {
                    committed_config: config_to_pb(config),
                    ..Default::default()
                }),
                ..Default::default()
            };
            match &*self.tablet.lock() {
                SystemTablet::Absent => GetConsensusStateResponsePb::default(),
                SystemTablet::Opening => {
                    let error = JoinState::default().check_absent().expect_err("it is opening");
                    GetConsensusStateResponsePb { error: Some(error.to_pb()), ..Default::default() }
                }
                SystemTablet::Open(config) => {
                    GetConsensusStateResponsePb { tablets: vec![state(config)], ..Default::default() }
                }
            }
        }
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
                Reply::message(&self.consensus_state())
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
        let service = Arc::new(Master { uuid: master(n).id, tablet: Mutex::default() });
        let server = RpcServer::new(env.clone(), RpcConfig::default()).add(service.clone()).serve(listener);
        (service, server)
    }

    /// Returns the initial configuration that master 1 of three finds within 5 seconds.
    async fn initial_config_of_first(env: &Env) -> Option<InitialConfig> {
        initial_config_among(env, 3).await
    }

    /// Returns the initial configuration that master 1 of `count` finds within 5 seconds.
    async fn initial_config_among(env: &Env, count: u8) -> Option<InitialConfig> {
        let masters: Vec<String> = (1..=count).map(|n| format!("127.0.0.1:{}", master(n).port)).collect();
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
        let knows = |config| other.set(SystemTablet::Open(config));
        assert_eq!(initial_config_of_first(&env).await, None, "the third is unknown");
        knows(RaftConfig::initial(vec![master(2), master(4)]));
        assert_eq!(
            initial_config_of_first(&env).await,
            Some(InitialConfig::Before),
            "they have a cluster without it"
        );
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

    /// Master 1 of five has a new disk and was removed from the others, of which three are a quorum and one is down.
    #[tokio::test(start_paused = true)]
    async fn a_removed_master_with_a_new_disk_joins_while_another_one_is_down() {
        let env = mem_net::env();
        let _me = serve(&env, 1).await;
        let mut others = Vec::new();
        for n in 2..=4 {
            others.push(serve(&env, n).await);
        }
        assert_eq!(initial_config_among(&env, 5).await, None, "the fifth may have a system tablet");
        let stored = RaftConfig { opid_index: Some(9), ..RaftConfig::initial((2..=5).map(master).collect()) };
        for (other, _) in &others {
            other.set(SystemTablet::Open(stored.clone()));
        }
        assert_eq!(initial_config_among(&env, 5).await, Some(InitialConfig::Before));
    }

    #[tokio::test(start_paused = true)]
    async fn masters_that_open_their_system_tablets_are_asked_again() {
        let env = mem_net::env();
        let _me = serve(&env, 1).await;
        let (second, _second) = serve(&env, 2).await;
        let (third, _third) = serve(&env, 3).await;
        second.set(SystemTablet::Opening);
        third.set(SystemTablet::Opening);
        assert_eq!(initial_config_of_first(&env).await, None, "both may have a system tablet");
        third.set(SystemTablet::Absent);
        assert_eq!(initial_config_of_first(&env).await, None, "one may have a system tablet");
        second.set(SystemTablet::Open(RaftConfig::initial(vec![master(4), master(2), master(3)])));
        assert_eq!(
            initial_config_of_first(&env).await,
            Some(InitialConfig::Before),
            "this one replaces master 4, so that it needs a copy"
        );
        second.set(SystemTablet::Absent);
        let all = RaftConfig::initial(vec![master(1), master(2), master(3)]);
        assert_eq!(initial_config_of_first(&env).await, Some(InitialConfig::New(all)), "none has one");
    }

    /// Masters of the flag that master 1 of three has found.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Discovered {
        All,
        OwnAddress,
        NotItself,
    }

    /// Returns the decision of master 1 of three about the others' answers, in words.
    fn decided(discovered: Discovered, answers: &[TabletAnswer]) -> &'static str {
        let peers = (discovered == Discovered::All).then(|| vec![master(1), master(2), master(3)]);
        match decide(master(1).id, discovered != Discovered::NotItself, peers, answers) {
            Ok(InitialConfig::New(config)) if config.peers.len() == 3 => "new",
            Ok(InitialConfig::New(_)) => "new, of another's masters",
            Ok(InitialConfig::Before) => "before",
            Err(_) => "wait",
        }
    }

    #[test]
    fn only_the_word_of_all_others_starts_a_new_cluster() {
        use Discovered::{All, NotItself, OwnAddress};
        use TabletAnswer::{Absent, Stored};
        let unknown = || TabletAnswer::Unknown("it is being opened".to_string());
        let of = |ids: [u8; 2]| RaftConfig::initial(ids.map(master).to_vec());
        let changed = || Stored(RaftConfig { opid_index: Some(7), ..of([1, 2]) });
        assert_eq!(decided(All, &[Absent, Absent]), "new");
        assert_eq!(decided(All, &[Absent, unknown()]), "wait");
        assert_eq!(decided(All, &[unknown(), unknown()]), "wait");
        assert_eq!(decided(OwnAddress, &[Absent, unknown()]), "wait");
        // A cluster without this master, or changed since its initialization.
        assert_eq!(decided(All, &[unknown(), Stored(of([2, 3]))]), "before");
        assert_eq!(decided(OwnAddress, &[unknown(), Stored(of([2, 3]))]), "before");
        assert_eq!(decided(NotItself, &[unknown(), Stored(of([2, 3]))]), "wait", "the flag may be another's");
        assert_eq!(decided(OwnAddress, &[unknown(), changed()]), "before");
        assert_eq!(decided(All, &[Stored(of([1, 2])), changed()]), "before");
        // The others have initialized it and need this master.
        assert_eq!(decided(All, &[Stored(of([1, 2])), unknown()]), "new, of another's masters");
        assert_eq!(decided(OwnAddress, &[unknown(), Stored(of([1, 2]))]), "new, of another's masters");
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
