//! Rights on tables in a whole cluster on an in-memory network: what a policy allows, and tokens that are not accepted.
//! Time advances only while every task waits.

mod audit;
mod rest_catalog;
mod table_calls;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use engine::disk::Disk;
use engine::schema::DataType;
use engine::sync::Mutex;
use prost::Message;

use super::{Cluster, ClusterConfig};
use crate::server::flags::Flags;
use crate::server::startup::RunningServer;
use nyala_client::predicate::Comparison;
use nyala_client::rows::ToRow;
use nyala_client::{Client, ClientConfig, ClientError, ClientResult, ColumnAggregate, Table};
use nyala_common::env::testing::{MemDisks, SteadyClock};
use nyala_common::env::{Disks, Env, mem_net};
use nyala_common::rpc::client::{CallOptions, Proxy, RpcError};
use nyala_common::security::token::{TokenConfig, TokenKey, TokenSigner, seconds};
use nyala_proto::kudu::master::{
    GetTableSchemaRequestPb, GetTableSchemaResponsePb, RefreshAuthzCacheRequestPb,
    RefreshAuthzCacheResponsePb, TableIdentifierPb,
};
use nyala_proto::kudu::security::{SignedTokenPb, TablePrivilegePb, TokenPb, token_pb};
use nyala_proto::kudu::tserver::{
    ChecksumRequestPb, ChecksumResponsePb, ListTabletsRequestPb, ListTabletsResponsePb, NewScanRequestPb,
    ScanRequestPb, ScanResponsePb, SplitKeyRangeRequestPb, SplitKeyRangeResponsePb, WriteRequestPb,
    WriteResponsePb,
};
use nyala_proto::kudu::{ColumnPredicatePb, ColumnSchemaPb, column_predicate_pb};

const MASTER: &str = "kudu.master.MasterService";
const TABLETS: &str = "kudu.tserver.TabletServerService";

const POLICY: &str = r#"
    [groups]
    writers = ["ann"]

    [[rule]]
    users = ["@writers"]
    databases = ["*"]
    allow = ["all"]

    [[rule]]
    users = ["bob"]
    databases = ["sales"]
    tables = ["orders"]
    columns = ["id", "amount"]
    allow = ["select"]
"#;
/// Directory of the audit log of both servers.
const AUDIT_DIR: &str = "audit";
/// Longest time until a changed policy and expired tokens are noticed everywhere.
const NOTICED: Duration = Duration::from_secs(6);

/// In-memory disks, and the policy file.
struct PolicyDisks {
    disks: MemDisks,
    policy: Mutex<String>,
}

impl Disks for PolicyDisks {
    fn open(&self, dir: &str) -> io::Result<Arc<dyn Disk>> {
        self.disks.open(dir)
    }

    fn read_file(&self, _: &str) -> io::Result<Vec<u8>> {
        Ok(self.policy.lock().clone().into_bytes())
    }
}

#[derive(Debug, ToRow)]
struct Order {
    id: i64,
    amount: i64,
    secret: i64,
}

struct World {
    env: Env,
    disks: Arc<PolicyDisks>,
    cluster: Cluster,
}

impl World {
    async fn start() -> World {
        let env = mem_net::env();
        let clock = Arc::new(SteadyClock(env.clock.clone()));
        let disks =
            Arc::new(PolicyDisks { disks: MemDisks::default(), policy: Mutex::new(POLICY.to_string()) });
        let env = Env { disks: disks.clone(), clock, ..env };
        let flags = Flags::new();
        for (name, value) in [
            ("raft_profile", "fast"),
            ("heartbeat_interval_ms", "50"),
            ("webserver_enabled", "false"),
            ("block_cache_capacity_mb", "16"),
            ("superuser_acl", "root"),
            ("authz_policy_file", "policy.toml"),
            ("authz_policy_reload_interval_seconds", "1"),
            ("authz_token_validity_seconds", "2"),
            ("tserver_enforce_access_control", "true"),
            ("audit_log_dir", AUDIT_DIR),
        ] {
            flags.set(name, value).expect(name);
        }
        let config = ClusterConfig::on_loopback("cluster", 1, flags);
        let cluster = Cluster::start(&env, &config).await.expect("the cluster starts");
        World { env, disks, cluster }
    }

    async fn client(&self, user: &str) -> Client {
        let masters = ClientConfig::new(self.cluster.master_addresses());
        let config = ClientConfig { user: user.to_string(), ..masters };
        Client::connect(self.env.clone(), config).await.expect("a user")
    }

    async fn call<Q: Message, R: Message + Default>(
        &self,
        server: &RunningServer,
        user: &str,
        (service, method): (&str, &str),
        request: &Q,
    ) -> Result<R, RpcError> {
        let proxy = Proxy::new(self.env.clone(), server.rpc_addr(), user);
        let deadline = self.env.now().mono.after(Duration::from_secs(20));
        let called = proxy.call(service, method, request, deadline, CallOptions::default());
        called.await.map(|response| response.message)
    }

    fn tserver(&self) -> &RunningServer {
        &self.cluster.tablet_servers()[0]
    }

    /// Returns the token that a user gets for a table.
    async fn token(&self, user: &str, table: &str) -> SignedTokenPb {
        let table = TableIdentifierPb { table_id: None, table_name: Some(table.to_string()) };
        let request = GetTableSchemaRequestPb { table };
        let master = &self.cluster.masters()[0];
        let opened: GetTableSchemaResponsePb =
            self.call(master, user, (MASTER, "GetTableSchema"), &request).await.expect("a reply");
        assert_eq!(opened.error, None);
        opened.authz_token.expect("a token")
    }

    /// Calls a method of the tablet server as ann; returns `ok`, or the error of the call.
    async fn outcome<Q: Message, R: Message + Default>(&self, method: &str, request: &Q) -> String {
        let called = self.call::<Q, R>(self.tserver(), "ann", (TABLETS, method), request).await;
        called.map_or_else(|error| error.to_string(), |_| "ok".to_string())
    }

    /// Opens a scan of column `id` as ann.
    async fn scan(&self, tablet: &str, token: Option<SignedTokenPb>) -> String {
        let request = ScanRequestPb {
            new_scan_request: Some(new_scan(tablet, token)),
            batch_size_bytes: Some(0),
            close_scanner: Some(true),
            ..ScanRequestPb::default()
        };
        self.outcome::<_, ScanResponsePb>("Scan", &request).await
    }
}

fn new_scan(tablet: &str, authz_token: Option<SignedTokenPb>) -> NewScanRequestPb {
    let id = ColumnSchemaPb {
        name: "id".to_string(),
        r#type: DataType::Int64 as i32,
        is_nullable: Some(false),
        ..ColumnSchemaPb::default()
    };
    NewScanRequestPb {
        tablet_id: tablet.to_string().into(),
        projected_columns: vec![id],
        authz_token,
        ..NewScanRequestPb::default()
    }
}

async fn create(client: &Client, name: &str) -> ClientResult<Table> {
    let table = client.new_table(name).key("id", DataType::Int64).column("amount", DataType::Int64);
    table.column("secret", DataType::Int64).hash(["id"], 2).replicas(1).create().await
}

async fn insert(table: &Table, ids: std::ops::Range<i64>) -> ClientResult<()> {
    let mut writer = table.writer();
    for id in ids {
        writer.insert(&Order { id, amount: 1, secret: 7 }).await?;
    }
    writer.finish().await.map(drop)
}

async fn count(table: &Table, columns: &[&str]) -> ClientResult<u64> {
    let mut batches = table.select().columns(columns.iter().copied()).open()?;
    let mut rows = 0;
    while let Some(batch) = batches.next_batch().await? {
        rows += batch.num_rows() as u64;
    }
    Ok(rows)
}

fn denied<T: std::fmt::Debug>(result: ClientResult<T>) -> String {
    match result {
        Err(ClientError::Security(error)) => error.message,
        Err(ClientError::RowsRefused(refused)) => refused.rows[0].error.message.clone(),
        other => panic!("{other:?} is no refusal"),
    }
}

#[tokio::test(start_paused = true)]
async fn users_do_what_the_policy_allows_and_what_a_new_one_allows() {
    let mut world = World::start().await;
    let (ann, bob) = (world.client("ann").await, world.client("bob").await);
    let orders = create(&ann, "sales.orders").await.expect("ann may");
    create(&ann, "hr.people").await.expect("ann may");
    insert(&orders, 0..10).await.expect("ann may");

    let listed = bob.list_tables(None).await.expect("a list");
    assert_eq!(listed.iter().map(|table| table.name.as_str()).collect::<Vec<_>>(), ["sales.orders"]);
    for table in ["hr.people", "hr.nothing"] {
        let refused = bob.open_table(table).await.err().expect("bob may not").message;
        assert!(refused.ends_with("Unauthorized action"), "{refused}");
    }
    let seen = bob.open_table("sales.orders").await.expect("bob sees it");
    assert_eq!(count(&seen, &["id", "amount"]).await.expect("bob may"), 10);
    let scan = "FATAL_UNAUTHORIZED: Not authorized: not authorized to Scan";
    assert!(denied(count(&seen, &["id", "secret"]).await).ends_with(scan));
    let guess = seen.select().columns(["id"]).filter("secret", Comparison::Equal, 7i64);
    assert!(denied(guess.count().await).ends_with(scan));
    assert!(denied(seen.select().count().await).ends_with(scan), "a count tells about every column");
    let sum_of = async |column: &str| {
        let sums =
            seen.select().aggregate(["id"], [ColumnAggregate::sum(column)]).open()?.next_batch().await?;
        ClientResult::Ok(sums.map_or(0, |batch| batch.num_rows()))
    };
    assert!(sum_of("amount").await.expect("bob may") > 0);
    assert!(denied(sum_of("secret").await).ends_with(scan), "a sum tells about its column");
    let groups = seen.select().aggregate(["secret"], [ColumnAggregate::count_rows()]).open();
    let read = groups.expect("columns of the table").next_batch().await.map_err(ClientError::from);
    assert!(denied(read).ends_with(scan), "groups are values");
    assert!(denied(insert(&seen, 20..21).await).contains("not authorized to write"));
    let refused = bob.delete_table("sales.orders").await.expect_err("bob may not").message;
    assert!(refused.ends_with("Unauthorized action"), "{refused}");
    assert!(denied(create(&bob, "sales.more").await.map(drop)).ends_with("Unauthorized action"));

    // Tokens expire while tables are open: the client gets new ones.
    world.env.sleep(NOTICED).await;
    insert(&orders, 10..20).await.expect("ann still may");
    assert_eq!(count(&seen, &["id"]).await.expect("bob still may"), 20);
    let lists_rows = async |client: &Client| {
        let listed = client.list_tables(None).await.expect("a list");
        listed.iter().any(|table| table.live_rows.is_some())
    };
    assert!(lists_rows(&ann).await);
    assert!(!lists_rows(&bob).await, "a number of rows tells about every column");

    // A bad policy changes nothing; it is reported.
    *world.disks.policy.lock() = "[[rule]]".to_string();
    let refresh = RefreshAuthzCacheRequestPb::default();
    let master = &world.cluster.masters()[0];
    let refreshed: RefreshAuthzCacheResponsePb =
        world.call(master, "root", (MASTER, "RefreshAuthzCache"), &refresh).await.expect("a reply");
    let told = refreshed.error.expect("an error").status.message.unwrap_or_default();
    assert!(told.starts_with("policy.toml: "), "{told}");
    world.env.sleep(NOTICED).await;
    assert_eq!(count(&seen, &["id"]).await.expect("bob still may"), 20);

    // A new one takes the rights away, also of tables that are open.
    *world.disks.policy.lock() = POLICY.replace("bob", "eve");
    world.env.sleep(NOTICED).await;
    let refused = denied(count(&seen, &["id"]).await);
    assert!(refused.ends_with("Unauthorized action"), "{refused}");
    world.cluster.shutdown().await;
}

/// Returns a token whose bytes or signature another hand changed.
fn forged(token: &SignedTokenPb, change: impl FnOnce(&mut SignedTokenPb)) -> Option<SignedTokenPb> {
    let mut forged = token.clone();
    change(&mut forged);
    Some(forged)
}

/// Returns the privileges in a token.
fn privilege(token: &SignedTokenPb) -> TablePrivilegePb {
    let token = TokenPb::decode(token.token_data.clone().expect("content")).expect("a token");
    match token.token {
        Some(token_pb::Token::Authz(authz)) => authz.table_privilege.expect("privileges"),
        other => panic!("{other:?} is no authorization token"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_not_the_callers_for_the_table_is_refused() {
    const AGAIN: &str = "ERROR_INVALID_AUTHORIZATION_TOKEN: Not authorized:";
    const FAULTY: &str =
        "ERROR_INVALID_AUTHORIZATION_TOKEN: Not authorized: authz token verification failure:";
    let mut world = World::start().await;
    let ann = world.client("ann").await;
    let orders = create(&ann, "sales.orders").await.expect("ann may");
    create(&ann, "hr.people").await.expect("ann may");
    let tablets = orders.scan_tokens(&nyala_client::ScanSpec::default()).await.expect("tablets");
    let tablet = tablets[0].tablet().id.clone();
    let own = world.token("ann", "sales.orders").await;
    assert_eq!(world.scan(&tablet, Some(own.clone())).await, "ok");
    assert_eq!(world.scan(&tablet, None).await, format!("{AGAIN} no authorization token presented"));
    let people = world.token("ann", "hr.people").await;
    let foreign = "authorization token is for the wrong table ID";
    assert_eq!(world.scan(&tablet, Some(people)).await, format!("{AGAIN} {foreign}"));
    let bobs = world.token("bob", "sales.orders").await;
    let others = "invalid authorization token presented";
    assert_eq!(world.scan(&tablet, Some(bobs)).await, format!("{AGAIN} {others}"));

    // An unknown key may come with the next heartbeat; a signature of another key never becomes right.
    let unknown = forged(&own, |token| token.signing_key_seq_num = Some(99));
    let later = "ERROR_UNAVAILABLE: Not authorized: authz token verification failure:";
    assert_eq!(world.scan(&tablet, unknown).await, format!("{later} token signed with unknown key"));
    let config = TokenConfig::default();
    let now = seconds(world.env.now().wall);
    let impostor = TokenSigner::new(config.clone(), [TokenKey::from_seed(0, &[7; 32], config.lifetime(now))]);
    let signed = impostor.authz("ann", privilege(&own), now);
    assert!(signed.is_some());
    assert_eq!(world.scan(&tablet, signed).await, format!("{FAULTY} invalid token signature"));
    let len = own.signature.as_ref().expect("a signature").len();
    for at in [0, len / 2, len - 1] {
        let flipped = forged(&own, |token| {
            let mut signature = token.signature.take().expect("a signature").to_vec();
            signature[at] ^= 1;
            token.signature = Some(signature.into());
        });
        assert_eq!(world.scan(&tablet, flipped).await, format!("{FAULTY} invalid token signature"));
    }
    let empty = forged(&own, |token| token.token_data = None);
    assert_eq!(world.scan(&tablet, empty).await, format!("{FAULTY} invalid token"));
    every_method_asks_for_a_token(&world, &tablet, &own).await;
    world.env.sleep(NOTICED).await;
    assert_eq!(world.scan(&tablet, Some(own)).await, format!("{FAULTY} token expired"));
    world.cluster.shutdown().await;
}

async fn every_method_asks_for_a_token(world: &World, tablet: &str, own: &SignedTokenPb) {
    let missing = "ERROR_INVALID_AUTHORIZATION_TOKEN: Not authorized: no authorization token presented";
    let write = |authz_token| WriteRequestPb {
        tablet_id: tablet.to_string().into(),
        authz_token,
        ..WriteRequestPb::default()
    };
    assert_eq!(world.outcome::<_, WriteResponsePb>("Write", &write(None)).await, missing);
    assert_eq!(world.outcome::<_, WriteResponsePb>("Write", &write(Some(own.clone()))).await, "ok");
    let split =
        SplitKeyRangeRequestPb { tablet_id: tablet.to_string().into(), ..SplitKeyRangeRequestPb::default() };
    assert_eq!(world.outcome::<_, SplitKeyRangeResponsePb>("SplitKeyRange", &split).await, missing);
    let checksum =
        ChecksumRequestPb { new_request: Some(new_scan(tablet, None)), ..ChecksumRequestPb::default() };
    assert_eq!(world.outcome::<_, ChecksumResponsePb>("Checksum", &checksum).await, missing);
    let server = world.tserver();
    let sum: Result<ChecksumResponsePb, _> =
        world.call(server, "root", (TABLETS, "Checksum"), &checksum).await;
    assert_eq!(sum.expect("a superuser needs none").error, None);
    let list = ListTabletsRequestPb::default();
    let refused = world.outcome::<_, ListTabletsResponsePb>("ListTablets", &list).await;
    assert!(refused.ends_with("unauthorized access to method: ListTablets"), "{refused}");
    let predicate = ColumnPredicatePb {
        column: Some("secret".to_string()),
        predicate: Some(column_predicate_pb::Predicate::IsNotNull(Default::default())),
    };
    let bobs = world.token("bob", "sales.orders").await;
    let guess = ScanRequestPb {
        new_scan_request: Some(NewScanRequestPb {
            column_predicates: vec![predicate],
            ..new_scan(tablet, Some(bobs))
        }),
        batch_size_bytes: Some(0),
        ..ScanRequestPb::default()
    };
    let refused: Result<ScanResponsePb, _> = world.call(server, "bob", (TABLETS, "Scan"), &guess).await;
    assert_eq!(
        refused.expect_err("bob may not read it").to_string(),
        "FATAL_UNAUTHORIZED: Not authorized: not authorized to Scan"
    );
}
