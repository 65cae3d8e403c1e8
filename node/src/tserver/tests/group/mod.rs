//! Three tablet servers with shared tablets, as clients, tools and the servers see them. Time is paused: it advances
//! when all tasks wait.

mod commit_wait;
mod copy;
mod copy_begin;
mod copy_limits;
mod damage;
mod failure_time;
mod hibernation;
mod late_scans;
mod messages;
mod scrub;
mod spans;

use super::*;
use crate::hosting::replica::ReplicaHandle;
use engine::raft::interface::PeerStatus;
use engine::raft::{PeerHealth, RaftStatus, Role};
use nyala_common::env::partitionable_net::PartitionableNet;
use nyala_common::env::testing::{MemDisks, becomes, hosts};
use nyala_proto::kudu::HostPortPb;
use nyala_proto::kudu::consensus::bulk_change_config_request_pb::ConfigChangeItemPb;
use nyala_proto::kudu::consensus::health_report_pb::HealthStatus;
use nyala_proto::kudu::consensus::{
    BulkChangeConfigRequestPb, ChangeConfigRequestPb, ChangeConfigResponsePb, ChangeConfigType,
    ConsensusErrorPb, ConsensusRequestPb, ConsensusResponsePb, ConsensusStatusPb, GetConsensusStateRequestPb,
    GetConsensusStateResponsePb, GetLastOpIdRequestPb, GetLastOpIdResponsePb, HeartbeatsRequestPb,
    HeartbeatsResponsePb, IncludeHealthReport, LeaderStepDownMode, LeaderStepDownRequestPb,
    LeaderStepDownResponsePb, OpId as OpIdPb, OpIdType, RaftPeerAttrsPb, ReplicateMsg, VoteRequestPb,
    VoteResponsePb,
};
use nyala_proto::kudu::tablet::TabletDataState;
use nyala_proto::kudu::tserver::{DeleteTabletRequestPb, DeleteTabletResponsePb};
use nyala_proto::kudu::{ExternalConsistencyMode, ReadMode};

/// Servers that can reach each other, each with its own disks.
struct Group {
    wires: PartitionableNet,
    envs: Vec<Env>,
    disks: Vec<MemDisks>,
    change: fn(&mut TserverConfig),
    servers: Vec<Option<RunningTserver>>,
    /// Environment of the client, which is a separate host.
    env: Env,
    proxies: Vec<Proxy>,
}

impl Group {
    async fn start(count: usize) -> Group {
        Group::with(count, |_| {}).await
    }

    async fn with(count: usize, change: fn(&mut TserverConfig)) -> Group {
        let wires = PartitionableNet::default();
        let mut envs = hosts(&wires, count + 1);
        let env = envs.pop().expect("the client is a host too");
        let disks: Vec<MemDisks> = (0..count).map(|_| MemDisks::default()).collect();
        for (env, disks) in envs.iter_mut().zip(&disks) {
            env.disks = Arc::new(disks.clone());
        }
        let proxies = (0..count).map(|number| Proxy::new(env.clone(), addr_of(number), "ann")).collect();
        let servers = (0..count).map(|_| None).collect();
        let mut group = Group { wires, envs, disks, change, servers, env, proxies };
        for number in 0..count {
            group.run(number).await;
        }
        group
    }

    async fn run(&mut self, number: usize) {
        let mut config = TserverConfig::new(addr_of(number), "wal", vec!["data".to_string()]);
        (self.change)(&mut config);
        let running = super::super::run(self.envs[number].clone(), config).await;
        self.servers[number] = Some(running.expect("the server starts"));
    }

    async fn stop(&mut self, number: usize) {
        let server = self.servers[number].take().expect("it runs");
        server.shutdown().await;
    }

    fn server(&self, number: usize) -> &RunningTserver {
        self.servers[number].as_ref().expect("it runs")
    }

    fn uuid(&self, number: usize) -> Uuid {
        self.server(number).server.uuid()
    }

    fn peer(&self, number: usize) -> RaftPeerPb {
        let addr = addr_of(number);
        RaftPeerPb {
            permanent_uuid: Some(schema::id_bytes(&self.uuid(number))),
            member_type: Some(1),
            last_known_addr: Some(HostPortPb { host: addr.ip().to_string(), port: addr.port().into() }),
            ..Default::default()
        }
    }

    fn replica(&self, number: usize) -> Option<ReplicaHandle> {
        self.servers[number].as_ref()?.server.tablets.get(TABLET)?.running().ok()
    }

    fn status(&self, number: usize) -> Option<Arc<RaftStatus>> {
        self.replica(number).map(|replica| replica.status())
    }

    /// Creates the default tablet on `members`.
    async fn create(&self, members: &[usize]) {
        let peers: Vec<RaftPeerPb> = members.iter().map(|number| self.peer(*number)).collect();
        for number in members {
            let request = CreateTabletRequestPb {
                dest_uuid: Some(schema::id_bytes(&self.uuid(*number))),
                table_id: schema::id_bytes(&TABLE),
                tablet_id: schema::id_bytes(&TABLET),
                partition: Some(PartitionPb::default()),
                table_name: "t".to_string(),
                schema: schema::schema_to_pb(&schema()),
                partition_schema: Some(PartitionSchemaPb::default()),
                config: RaftConfigPb { opid_index: Some(-1), peers: peers.clone(), ..Default::default() },
                ..Default::default()
            };
            let created: CreateTabletResponsePb =
                self.call(*number, ADMIN_SERVICE, "CreateTablet", &request).await;
            assert_eq!(created.error, None);
        }
    }

    async fn call<Q: Message, R: Message + Default>(
        &self,
        number: usize,
        service: &str,
        method: &str,
        request: &Q,
    ) -> R {
        let called = self.try_call(number, service, method, request, CallOptions::default()).await;
        called.expect("the call succeeds").message
    }

    async fn try_call<Q: Message, R: Message + Default>(
        &self,
        number: usize,
        service: &str,
        method: &str,
        request: &Q,
        options: CallOptions,
    ) -> Result<RpcResponse<R>, RpcError> {
        let deadline = self.env.now().mono.after(Duration::from_secs(5));
        self.proxies[number].call(service, method, request, deadline, options).await
    }

    /// Waits until `met` holds, one minute at most.
    async fn until(&self, what: &str, met: impl Fn(&Group) -> bool) {
        if !becomes(&self.env, || met(self)).await {
            let states: Vec<_> = (0..self.servers.len()).map(|number| self.status(number)).collect();
            panic!("waited in vain: {what}; {states:#?}");
        }
    }

    /// Returns the error that failed a server's replica, if any.
    fn failure(&self, number: usize) -> Option<engine::error::Error> {
        self.server(number).server.tablets.get(TABLET).expect("it is there").failure()
    }

    /// Waits until a leader takes all its peers for healthy.
    async fn all_healthy(&self, leader: usize) {
        self.until("the health of all", |group| {
            let status = group.status(leader).expect("it runs");
            let healthy = |peer: &PeerStatus| peer.health == PeerHealth::Healthy;
            !status.peers.is_empty() && status.peers.iter().all(healthy)
        })
        .await;
    }

    /// Returns the leader that all running, reachable servers agree on.
    fn agreed(&self, members: &[usize]) -> Option<usize> {
        let statuses: Vec<Arc<RaftStatus>> =
            members.iter().filter_map(|number| self.status(*number)).collect();
        let leader = statuses.first()?.leader?;
        let term = statuses[0].term;
        let same = statuses.iter().all(|status| (status.leader, status.term) == (Some(leader), term));
        let number = *members
            .iter()
            .find(|number| self.replica(**number).is_some() && self.uuid(**number) == leader)?;
        (same && self.status(number)?.role == Role::Leader).then_some(number)
    }

    async fn leader(&self, members: &[usize]) -> usize {
        self.until("a leader", |group| group.agreed(members).is_some()).await;
        self.agreed(members).expect("it was just so")
    }

    async fn write(&self, number: usize, ops: &[Op<'_>]) -> WriteResponsePb {
        self.call(number, CLIENT_SERVICE, "Write", &write_request(&schema(), ops)).await
    }

    async fn write_as(&self, number: usize, seq: i64, ops: &[Op<'_>]) -> Result<WriteResponsePb, RpcError> {
        let options = CallOptions { request_id: Some(request_id(seq)), ..CallOptions::default() };
        let request = write_request(&schema(), ops);
        let called = self.try_call(number, CLIENT_SERVICE, "Write", &request, options).await;
        called.map(|response| response.message)
    }

    /// Returns the keys of a scan at one server, retried while the server is too busy.
    async fn keys(&self, number: usize, new: NewScanRequestPb) -> Vec<i32> {
        loop {
            let options = CallOptions::default();
            let request = open(new.clone());
            match self.try_call(number, CLIENT_SERVICE, "Scan", &request, options).await {
                Ok(RpcResponse { message, sidecars }) => {
                    let message: ScanResponsePb = message;
                    assert_eq!((message.error.clone(), message.has_more_results()), (None, false));
                    let key = |key: &[u8]| i32::from_le_bytes(key.try_into().expect("4 bytes"));
                    let mut keys: Vec<i32> = sidecars[0].chunks(4).map(key).collect();
                    keys.sort_unstable();
                    return keys;
                }
                Err(error) => assert!(error.is_busy(), "{error}"),
            }
        }
    }

    async fn last_op(&self, number: usize, kind: OpIdType) -> i64 {
        let tablet_id = schema::id_bytes(&TABLET);
        let request = GetLastOpIdRequestPb { dest_uuid: None, tablet_id, opid_type: Some(kind as i32) };
        let answer: GetLastOpIdResponsePb =
            self.call(number, CONSENSUS_SERVICE, "GetLastOpId", &request).await;
        answer.opid.expect("a running replica").index
    }

    /// Waits until a replica has applied all that another has committed.
    async fn caught_up(&self, number: usize, with: usize) {
        let target = self.last_op(with, OpIdType::CommittedOpid).await;
        for _ in 0..3_000 {
            if self.replica(number).is_some() && self.last_op(number, OpIdType::CommittedOpid).await >= target
            {
                return;
            }
            self.env.sleep(Duration::from_millis(10)).await;
        }
        panic!("server {number} did not get operation {target}");
    }

    async fn change_config(
        &self,
        leader: usize,
        kind: ChangeConfigType,
        server: RaftPeerPb,
        cas: Option<i64>,
    ) -> ChangeConfigResponsePb {
        let request = ChangeConfigRequestPb {
            dest_uuid: Some(schema::id_bytes(&self.uuid(leader))),
            tablet_id: schema::id_bytes(&TABLET),
            r#type: Some(kind as i32),
            server: Some(server),
            cas_config_opid_index: cas,
        };
        self.call(leader, CONSENSUS_SERVICE, "ChangeConfig", &request).await
    }

    async fn step_down(
        &self,
        number: usize,
        mode: LeaderStepDownMode,
        to: Option<usize>,
    ) -> LeaderStepDownResponsePb {
        let request = LeaderStepDownRequestPb {
            dest_uuid: None,
            tablet_id: schema::id_bytes(&TABLET),
            mode: Some(mode as i32),
            new_leader_uuid: to.map(|to| schema::id_bytes(&self.uuid(to))),
        };
        self.call(number, CONSENSUS_SERVICE, "LeaderStepDown", &request).await
    }
}

fn addr_of(number: usize) -> std::net::SocketAddr {
    std::net::SocketAddr::from(([127, 0, 0, 1], 7_050 + number as u16))
}

fn others(members: &[usize], but: usize) -> Vec<usize> {
    members.iter().copied().filter(|number| *number != but).collect()
}

fn snapshot_scan(at: u64) -> NewScanRequestPb {
    let mut scan = new_scan(&["key"]);
    scan.read_mode = Some(ReadMode::ReadAtSnapshot as i32);
    scan.snap_timestamp = Some(at);
    scan
}

const ALL: [usize; 3] = [0, 1, 2];

#[tokio::test(start_paused = true)]
async fn rows_are_on_every_replica_and_writes_go_to_the_leader() {
    let group = Group::start(3).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    let written = group.write(leader, &[insert(1, "a"), insert(2, "b")]).await;
    assert_eq!(written.error, None);
    for number in ALL {
        let at = written.timestamp() + 1;
        assert_eq!(group.keys(number, snapshot_scan(at)).await, [1, 2], "server {number}");
    }
    let follower = others(&ALL, leader)[0];
    let refused = error_text(&group.write(follower, &[insert(3, "c")]).await.error);
    assert!(refused.starts_with("UNKNOWN_ERROR + ILLEGAL_STATE: "), "{refused}");
    assert!(refused.contains("not leader of this config"), "{refused}");
    assert!(refused.contains(&group.uuid(leader).to_string()), "it says who leads: {refused}");
}

#[tokio::test(start_paused = true)]
async fn a_failed_leader_is_replaced_and_a_retry_does_not_run_twice() {
    for log_sync in [true, false] {
        let change: fn(&mut TserverConfig) = if log_sync { |_| {} } else { |config| config.log_sync = false };
        let mut group = Group::with(3, change).await;
        group.create(&ALL).await;
        let first = group.leader(&ALL).await;
        let written = group.write_as(first, 1, &[insert(1, "a")]).await.expect("it is written");
        let began = group.env.now().mono;
        group.stop(first).await;
        let rest = others(&ALL, first);
        let second = group.leader(&rest).await;
        let took = group.env.now().mono.since(began);
        assert!(took < Duration::from_millis(4_000), "{took:?} to the next leader");
        let again = group.write_as(second, 1, &[insert(1, "a")]).await.expect("it gets a reply");
        assert_eq!(again, written, "the retry gets the first reply");
        let more = group.write_as(second, 2, &[insert(2, "b")]).await.expect("it is written");
        assert!(more.timestamp() > written.timestamp());
        group.run(first).await;
        group.caught_up(first, second).await;
        assert_eq!(group.keys(first, snapshot_scan(more.timestamp() + 1)).await, [1, 2]);
        let third = group.leader(&ALL).await;
        let again = group.write_as(third, 2, &[insert(2, "b")]).await.expect("it gets a reply");
        assert_eq!(again, more);
    }
}

#[tokio::test(start_paused = true)]
async fn uncommitted_writes_of_an_isolated_leader_are_truncated() {
    let group = Group::start(3).await;
    group.create(&ALL).await;
    let old = group.leader(&ALL).await;
    let rest = others(&ALL, old);
    group.write(old, &[insert(1, "a")]).await;
    // The client can reach the old leader, its peers cannot.
    group.wires.cut(old);
    let beside = Proxy::new(group.envs[old].clone(), addr_of(old), "ann");
    let request = write_request(&schema(), &[insert(7, "alone")]);
    let deadline = group.env.now().mono.after(Duration::from_secs(60));
    let alone = beside.call::<_, WriteResponsePb>(
        CLIENT_SERVICE,
        "Write",
        &request,
        deadline,
        CallOptions::default(),
    );
    let elsewhere = async {
        let new = group.leader(&rest).await;
        let written = group.write(new, &[insert(7, "agreed")]).await;
        assert_eq!((written.error, written.per_row_errors), (None, vec![]));
        group.wires.join(old);
        new
    };
    let (alone, new) = tokio::join!(alone, elsewhere);
    let refused = error_text(&alone.expect("it gets a reply").message.error);
    assert!(refused.starts_with("UNKNOWN_ERROR + ABORTED: "), "{refused}");
    group.caught_up(old, new).await;
    group.leader(&ALL).await;
    let duplicate = group.write(new, &[insert(7, "again"), insert(8, "b")]).await;
    let at = duplicate.timestamp() + 1;
    assert_eq!(duplicate.per_row_errors.len(), 1);
    assert_eq!(group.keys(old, snapshot_scan(at)).await, [1, 7, 8]);
}

#[tokio::test(start_paused = true)]
async fn an_uncertain_write_gets_one_reply_from_the_next_leader() {
    let group = Group::start(3).await;
    group.create(&ALL).await;
    let old = group.leader(&ALL).await;
    let rest = others(&ALL, old);
    let written = group.write_as(old, 1, &[insert(1, "a")]).await.expect("it is written");
    group.wires.cut(old);
    let new = group.leader(&rest).await;
    let row = [insert(1, "a")];
    let (once, twice) = tokio::join!(group.write_as(new, 1, &row), group.write_as(new, 1, &row));
    assert_eq!((once.expect("answered"), twice.expect("answered")), (written.clone(), written));
}

#[tokio::test(start_paused = true)]
async fn one_slow_or_unreachable_follower_delays_no_write() {
    let group = Group::start(3).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    let silent = others(&ALL, leader)[0];
    group.wires.cut(silent);
    let began = group.env.now().mono;
    for key in 0..200 {
        assert_eq!(group.write(leader, &[insert(key, "a")]).await.error, None);
    }
    let took = group.env.now().mono.since(began);
    assert!(took < Duration::from_secs(2), "{took:?} for 200 writes");
    group.wires.join(silent);
    group.caught_up(silent, leader).await;
    let last = group.write(leader, &[insert(200, "b")]).await;
    assert_eq!(group.keys(silent, snapshot_scan(last.timestamp() + 1)).await, (0..=200).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn leadership_is_transferred_on_request() {
    let group = Group::start(3).await;
    group.create(&ALL).await;
    let old = group.leader(&ALL).await;
    let to = others(&ALL, old)[1];
    let refused = group.step_down(to, LeaderStepDownMode::Graceful, None).await;
    assert!(error_text(&refused.error).starts_with("NOT_THE_LEADER + ILLEGAL_STATE: Not currently leader"));
    let wrong = group.step_down(old, LeaderStepDownMode::Abrupt, Some(to)).await;
    assert!(
        error_text(&wrong.error).starts_with("UNKNOWN_ERROR + INVALID_ARGUMENT"),
        "{}",
        error_text(&wrong.error)
    );
    assert_eq!(group.step_down(old, LeaderStepDownMode::Graceful, Some(to)).await.error, None);
    let began = group.env.now().mono;
    group.until("the named successor", |group| group.agreed(&ALL) == Some(to)).await;
    assert!(group.env.now().mono.since(began) < Duration::from_secs(1), "without an election timeout");
    assert_eq!(group.step_down(to, LeaderStepDownMode::Abrupt, None).await.error, None);
    group.until("another leader", |group| group.agreed(&ALL).is_some_and(|leader| leader != to)).await;
}

#[tokio::test(start_paused = true)]
async fn the_largest_accepted_write_reaches_the_followers() {
    let group = Group::with(3, |config| config.rpc.max_message_bytes = 128 << 10).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    let value = |bytes: usize| "x".repeat(bytes);
    // 23 bytes of the row are not the value.
    let most = (64 << 10) - 23;
    let refused = group.write(leader, &[insert(1, &value(most + 1))]).await;
    assert_eq!(
        error_text(&refused.error),
        "UNKNOWN_ERROR + INVALID_ARGUMENT: an operation of 65537 bytes is too large to be replicated: at most \
         65536 fit a message of rpc_max_message_size; write fewer rows at once"
    );
    let written = group.write(leader, &[insert(2, &value(most))]).await;
    assert_eq!((&written.error, written.per_row_errors.len()), (&None, 0));
    for number in ALL {
        assert_eq!(group.keys(number, snapshot_scan(written.timestamp() + 1)).await, [2], "server {number}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_shut_down_transfers_its_leaderships() {
    let mut group = Group::start(3).await;
    group.create(&ALL).await;
    let first = group.leader(&ALL).await;
    group.write(first, &[insert(1, "a")]).await;
    let rest = others(&ALL, first);
    for number in &rest {
        group.caught_up(*number, first).await;
    }
    let began = group.env.now().mono;
    group.stop(first).await;
    let leads = |number: &&usize| group.replica(**number).is_some_and(|replica| replica.is_leader());
    let second = *rest.iter().find(leads).expect("another leads when the server has stopped");
    let took = group.env.now().mono.since(began);
    assert!(took < Duration::from_millis(200), "{took:?} to the next leader");
    assert_eq!(group.write(second, &[insert(2, "b")]).await.error, None);
    // A single running voter has no transfer target and does not wait for one.
    group.stop(others(&rest, second)[0]).await;
    group.env.sleep(Duration::from_secs(5)).await;
    let began = group.env.now().mono;
    group.stop(second).await;
    let took = group.env.now().mono.since(began);
    assert!(took < Duration::from_millis(200), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn members_change_one_at_a_time() {
    let group = Group::start(3).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    let [one, other] = others(&ALL, leader)[..] else { panic!("two followers") };
    let member = |number: usize| RaftPeerPb {
        permanent_uuid: Some(schema::id_bytes(&group.uuid(number))),
        ..Default::default()
    };
    let refused = group.change_config(one, ChangeConfigType::RemovePeer, member(other), None).await;
    assert!(
        error_text(&refused.error).starts_with("NOT_THE_LEADER + ILLEGAL_STATE"),
        "{}",
        error_text(&refused.error)
    );
    let refused = group.change_config(leader, ChangeConfigType::RemovePeer, member(other), Some(77)).await;
    assert!(
        error_text(&refused.error).starts_with("CAS_FAILED + ILLEGAL_STATE"),
        "{}",
        error_text(&refused.error)
    );
    let stranger =
        RaftPeerPb { permanent_uuid: Some(schema::id_bytes(&Uuid([9; 16]))), ..Default::default() };
    let refused = group.change_config(leader, ChangeConfigType::RemovePeer, stranger, None).await;
    assert!(
        error_text(&refused.error).starts_with("INVALID_CONFIG + INVALID_ARGUMENT"),
        "{}",
        error_text(&refused.error)
    );
    let index = |group: &Group| group.status(leader).expect("it runs").committed_config.kudu_index();
    assert_eq!(index(&group), -1);
    // A voter becomes a learner and, marked for promotion, a voter again once it has caught up.
    let attrs = RaftPeerAttrsPb { promote: Some(true), replace: None };
    let demoted = RaftPeerPb { member_type: Some(0), attrs: Some(attrs), ..member(one) };
    let changed = group.change_config(leader, ChangeConfigType::ModifyPeer, demoted, Some(-1)).await;
    assert_eq!(changed.error, None);
    group
        .until("promotion", |group| {
            let status = group.status(leader).expect("it runs");
            status.committed_config.voter_count() == 3 && status.pending_config.is_none()
        })
        .await;
    let removed =
        group.change_config(leader, ChangeConfigType::RemovePeer, member(one), Some(index(&group))).await;
    assert_eq!(removed.error, None);
    let status = group.status(leader).expect("it runs");
    assert_eq!(status.committed_config.voter_count(), 2);
    assert_eq!(group.write(leader, &[insert(1, "a")]).await.error, None);
    let back = RaftPeerPb { member_type: Some(1), ..group.peer(one) };
    let item = ConfigChangeItemPb { r#type: Some(ChangeConfigType::AddPeer as i32), peer: Some(back) };
    let request = BulkChangeConfigRequestPb {
        dest_uuid: None,
        tablet_id: schema::id_bytes(&TABLET),
        config_changes: vec![item],
        cas_config_opid_index: Some(index(&group)),
    };
    let added: ChangeConfigResponsePb =
        group.call(leader, CONSENSUS_SERVICE, "BulkChangeConfig", &request).await;
    assert_eq!(added.error, None);
    group.caught_up(one, leader).await;
}

#[tokio::test(start_paused = true)]
async fn followers_serve_snapshots_and_wait_for_them() {
    let group = Group::start(3).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    let follower = others(&ALL, leader)[0];
    let written = group.write(leader, &[insert(1, "a")]).await;
    // A snapshot timestamp of the server's choice, and one that was observed.
    let mut now = new_scan(&["key"]);
    now.read_mode = Some(ReadMode::ReadAtSnapshot as i32);
    assert_eq!(group.keys(follower, now.clone()).await, [1]);
    let mut own = new_scan(&["key"]);
    own.read_mode = Some(ReadMode::ReadYourWrites as i32);
    own.propagated_timestamp = Some(written.timestamp());
    assert_eq!(group.keys(follower, own).await, [1]);
    // An isolated follower cannot know: it reports that in time and never returns an incomplete result.
    group.wires.cut(follower);
    let beside = Proxy::new(group.envs[follower].clone(), addr_of(follower), "ann");
    let deadline = group.env.now().mono.after(Duration::from_secs(5));
    let stale = beside
        .call::<_, ScanResponsePb>(CLIENT_SERVICE, "Scan", &open(now), deadline, CallOptions::default())
        .await;
    assert!(stale.expect_err("too busy").is_busy());
    // The same holds for an isolated leader.
    group.wires.join(follower);
    group.leader(&ALL).await;
}

#[tokio::test(start_paused = true)]
async fn commit_wait_outlasts_the_error_of_the_clock() {
    let group = Group::start(3).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    let mut request = write_request(&schema(), &[insert(1, "a")]);
    request.external_consistency_mode = Some(ExternalConsistencyMode::CommitWait as i32);
    let written: WriteResponsePb = group.call(leader, CLIENT_SERVICE, "Write", &request).await;
    let wall = group.env.now().wall;
    assert!(wall.micros - wall.error_micros > engine::time::Timestamp(written.timestamp()).micros());
}

#[tokio::test(start_paused = true)]
async fn the_leader_reports_the_health_of_its_followers() {
    let group = Group::with(3, |config| config.raft.follower_failed_after = Duration::from_secs(5)).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    group.write(leader, &[insert(1, "a")]).await;
    let health = async |number| {
        let request = GetConsensusStateRequestPb {
            report_health: Some(IncludeHealthReport::IncludeHealthReport as i32),
            ..Default::default()
        };
        let states: GetConsensusStateResponsePb =
            group.call(number, CONSENSUS_SERVICE, "GetConsensusState", &request).await;
        let state = states.tablets[0].cstate.clone().expect("a state");
        assert_eq!(state.leader_uuid(), group.uuid(leader).to_string());
        let health = |peer: &RaftPeerPb| peer.health_report.map(|report| report.overall_health());
        state.committed_config.peers.iter().map(health).collect::<Vec<_>>()
    };
    let silent = others(&ALL, leader)[0];
    group.all_healthy(leader).await;
    assert_eq!(health(leader).await, [Some(HealthStatus::Healthy); 3]);
    assert_eq!(health(silent).await, [None; 3], "only leaders know");
    group.wires.cut(silent);
    group
        .until("a failed follower", |group| {
            let status = group.status(leader).expect("it runs");
            status.peers.iter().any(|peer| peer.health == PeerHealth::Failed)
        })
        .await;
    let failed = health(leader).await.into_iter().filter(|health| *health == Some(HealthStatus::Failed));
    assert_eq!(failed.count(), 1);
}
