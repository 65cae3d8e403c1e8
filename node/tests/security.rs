//! Encryption, authentication and access lists of whole clusters over real sockets.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test observes the servers from outside"
)]

#[path = "common/credentials.rs"]
mod credentials;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use credentials::{jwt, write_authority, write_certificate, write_files};
use engine::schema::DataType;
use node::server::cluster::{Cluster, ClusterConfig};
use node::server::flags::Flags;
use node::server::security::{self, ServerIdentity};
use nyala_client::predicate::Comparison;
use nyala_client::rows::{FromRow, ToRow};
use nyala_client::security::{EncryptionPolicy, SecretText, SecurityConfig};
use nyala_client::{Client, ClientConfig, ErrorKind};
use nyala_common::env::Env;
use nyala_common::env::os::{OsEnv, OsOptions};
use nyala_common::rpc::client::{CallOptions, ClientConnection, RpcError};
use nyala_common::security::tls::{certificates_from_pem, draw_key};
use nyala_common::security::{ClientSecurity, ClientSecurityOptions, RpcCaller, TlsCredentials, TlsSettings};
use nyala_proto::kudu::NodeInstancePb;
use nyala_proto::kudu::master::{
    AddMasterRequestPb, AddMasterResponsePb, ConnectToMasterRequestPb, ConnectToMasterResponsePb,
    TsHeartbeatRequestPb, TsHeartbeatResponsePb, TsToMasterCommonPb,
};
use nyala_proto::kudu::security::SignedTokenPb;
use nyala_proto::kudu::server::{
    GetFlagsRequestPb, GetFlagsResponsePb, GetStatusRequestPb, GetStatusResponsePb,
};

const MASTER: &str = "kudu.master.MasterService";
const GENERIC: &str = "kudu.server.GenericService";

#[derive(Debug, PartialEq, ToRow, FromRow)]
struct Row {
    id: i64,
}

struct World {
    env: Env,
    config: ClusterConfig,
    cluster: Cluster,
    _dir: tempfile::TempDir,
}

impl World {
    /// Starts a cluster with these flags. One master: after a restart on other ports several would not find each other.
    async fn start(settings: &[(&str, &str)]) -> World {
        let env = OsEnv::new(&OsOptions::default()).expect("this machine");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let flags = Flags::new();
        for (name, value) in settings.iter().chain(&[("log_sync", "false"), ("webserver_enabled", "false")]) {
            flags.set(name, value).expect(name);
        }
        let config = ClusterConfig::on_loopback(dir.path().to_str().expect("UTF-8"), 1, flags);
        let cluster = Cluster::start(&env, &config).await.expect("free ports and a fresh directory");
        World { env, config, cluster, _dir: dir }
    }

    async fn restart(&mut self) {
        self.cluster.shutdown().await;
        self.cluster = Cluster::start(&self.env, &self.config).await.expect("it starts again");
    }

    async fn client(&self, user: &str, security: SecurityConfig) -> Client {
        self.try_client(user, security, Duration::from_secs(20)).await.expect("a user of the cluster")
    }

    /// Returns the reason that no master serves this client. If all masters refuse it, it does not ask again.
    async fn refusal(&self, user: &str, security: SecurityConfig) -> String {
        let refused = self.try_client(user, security, Duration::from_secs(20)).await;
        let refused = refused.err().expect("it must be refused").message;
        assert!(!refused.contains("attempts"), "{refused}");
        refused
    }

    async fn try_client(
        &self,
        user: &str,
        security: SecurityConfig,
        connect_timeout: Duration,
    ) -> Result<Client, nyala_client::Error> {
        let masters = ClientConfig::new(self.cluster.master_addresses());
        let config = ClientConfig { user: user.to_string(), connect_timeout, security, ..masters };
        Client::connect(self.env.clone(), config).await
    }

    async fn connect(
        &self,
        addr: SocketAddr,
        caller: impl Into<RpcCaller>,
    ) -> Result<Arc<ClientConnection>, RpcError> {
        let deadline = self.env.now().mono.after(Duration::from_secs(10));
        ClientConnection::connect(&self.env, addr, caller, deadline).await
    }

    /// Calls a method without parameters.
    async fn call<Req: prost::Message + Default, Resp: prost::Message + Default>(
        &self,
        connection: &ClientConnection,
        service: &str,
        method: &str,
    ) -> Result<Resp, RpcError> {
        self.request(connection, service, method, &Req::default()).await
    }

    async fn request<Req: prost::Message, Resp: prost::Message + Default>(
        &self,
        connection: &ClientConnection,
        service: &str,
        method: &str,
        request: &Req,
    ) -> Result<Resp, RpcError> {
        let deadline = self.env.now().mono.after(Duration::from_secs(10));
        let options = CallOptions::default();
        let call = connection.call(service, method, request, deadline, &options);
        call.await.map(|response| response.message)
    }

    fn secure(&self, user: &str) -> (RpcCaller, Arc<ClientSecurity>) {
        let tls = TlsCredentials::new(&self.env, TlsSettings::default()).expect("credentials");
        let options = ClientSecurityOptions {
            encryption: EncryptionPolicy::Required,
            ..ClientSecurityOptions::default()
        };
        let security = Arc::new(ClientSecurity::new(tls, options));
        (RpcCaller::secure(user, security.clone()), security)
    }

    fn tserver(&self) -> SocketAddr {
        self.cluster.tablet_servers()[0].rpc_addr()
    }

    fn leader(&self) -> SocketAddr {
        self.cluster.masters().iter().find(|master| master.leads()).expect("one leads").rpc_addr()
    }
}

async fn write_and_read(client: &Client, table: &str) {
    let created = client.new_table(table).key("id", DataType::Int64).hash(["id"], 2).replicas(1).create();
    let table = created.await.expect("a new table");
    let mut writer = table.writer();
    for id in 0..100 {
        writer.insert(&Row { id }).await.expect("a row");
    }
    writer.finish().await.expect("all rows");
    assert_eq!(rows(client, table.name()).await, 100);
}

async fn rows(client: &Client, table: &str) -> usize {
    let table = client.open_table(table).await.expect("the table");
    let rows = table.select().filter("id", Comparison::GreaterEqual, 0i64).collect::<Row>();
    rows.await.expect("rows").len()
}

fn encrypted() -> SecurityConfig {
    SecurityConfig { encryption: EncryptionPolicy::Required, ..SecurityConfig::default() }
}

async fn no_superuser(world: &World, user: &RpcCaller) {
    let connection = world.connect(world.tserver(), user).await.expect("a token");
    let flags = world.call::<GetFlagsRequestPb, GetFlagsResponsePb>(&connection, GENERIC, "GetFlags").await;
    assert_eq!(
        flags.expect_err("ann is no superuser").to_string(),
        "ERROR_APPLICATION: Not authorized: unauthorized access to method: GetFlags"
    );
}

/// A new master gets the cluster's keys, so a user of the cluster cannot name one.
async fn only_superusers_and_servers_add_masters(world: &World) {
    let refusal = "ERROR_APPLICATION: Not authorized: unauthorized access to method: AddMaster";
    let service = world.env.disks.process_user().expect("a user");
    for (user, allowed) in [("ann", false), ("root-of-test", true), (service.as_str(), true)] {
        let (caller, _) = world.secure(user);
        let connection = world.connect(world.leader(), &caller).await.expect("TLS");
        let added = world.call::<AddMasterRequestPb, AddMasterResponsePb>(&connection, MASTER, "AddMaster");
        match added.await {
            Ok(response) => {
                let error = response.error.and_then(|error| error.status.message).unwrap_or_default();
                assert!(allowed && error.contains("does not say which master to add"), "{user}: {error}");
            }
            Err(error) => assert_eq!((allowed, error.to_string().as_str()), (false, refusal), "{user}"),
        }
    }
}

async fn forged_token_is_refused(
    world: &World,
    user: &RpcCaller,
    security: &ClientSecurity,
    token: &SignedTokenPb,
) {
    let mut forged = token.clone();
    let mut signature = forged.signature.take().expect("a signature").to_vec();
    signature[0] ^= 1;
    forged.signature = Some(signature.into());
    security.set_token(forged);
    let refused = world.connect(world.tserver(), user).await.err().expect("a forged token").to_string();
    assert_eq!(refused, "FATAL_INVALID_AUTHENTICATION_TOKEN: Not authorized: invalid token signature");
}

/// Waits until every server accepts the token of `user`. A server that was just started has no certificate of the CA
/// before its next heartbeat.
async fn accepted_by_all(world: &World, user: &RpcCaller) {
    let deadline = world.env.now().mono.after(Duration::from_secs(20));
    for server in world.cluster.masters().iter().chain(world.cluster.tablet_servers()) {
        loop {
            let connection = world.connect(server.rpc_addr(), user).await.expect("TLS");
            match world
                .call::<GetStatusRequestPb, GetStatusResponsePb>(&connection, GENERIC, "GetStatus")
                .await
            {
                Ok(_) => break,
                Err(error) => assert!(world.env.now().mono < deadline, "{error}"),
            }
            world.env.sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_requires_encryption_uses_its_own_ca_and_tokens() {
    let settings = [
        ("rpc_encryption", "required"),
        ("rpc_encrypt_loopback_connections", "true"),
        ("user_acl", "ann"),
        ("superuser_acl", "root-of-test"),
    ];
    let mut world = World::start(&settings).await;

    // Without TLS there is no connection, and the reason is said.
    let refused = world.connect(world.tserver(), "ann").await.err().expect("it is refused").to_string();
    assert_eq!(
        refused,
        "FATAL_UNAUTHORIZED: Not authorized: client does not support required TLS encryption"
    );

    let ann = world.client("ann", encrypted()).await;
    write_and_read(&ann, "t").await;
    let bob = world.refusal("bob", encrypted()).await;
    assert!(bob.contains("unauthorized access to method: ConnectToMaster"), "{bob}");

    // The leader gives its CA and a token; the token, not the stated name, counts from then on.
    let (caller, _) = world.secure("ann");
    let connection = world.connect(world.leader(), &caller).await.expect("TLS");
    let connected: ConnectToMasterResponsePb = world
        .call::<ConnectToMasterRequestPb, _>(&connection, MASTER, "ConnectToMaster")
        .await
        .expect("the leader");
    let (token, authority) = (connected.authn_token.expect("a token"), &connected.ca_cert_der[0]);
    let (mallory, security) = world.secure("mallory");
    security.tls.trust(authority.to_vec()).expect("a CA");
    let unproved = world.connect(world.tserver(), &mallory).await.expect("TLS");
    let status = world.call::<GetStatusRequestPb, GetStatusResponsePb>(&unproved, GENERIC, "GetStatus").await;
    let refused = status.expect_err("mallory is no user").to_string();
    assert_eq!(refused, "ERROR_APPLICATION: Not authorized: unauthorized access to method: GetStatus");
    security.set_token(token.clone());
    accepted_by_all(&world, &mallory).await;
    no_superuser(&world, &mallory).await;
    only_superusers_and_servers_add_masters(&world).await;
    forged_token_is_refused(&world, &mallory, &security, &token).await;

    // The CA and the token keys survive a restart of all servers.
    drop(ann);
    world.restart().await;
    security.set_token(token);
    accepted_by_all(&world, &mallory).await;
    let ann = world.client("ann", encrypted()).await;
    assert_eq!(rows(&ann, "t").await, 100);
    world.cluster.shutdown().await;
}

/// Returns the caller of a server with these flags.
fn server_caller(env: &Env, settings: &[(&str, &str)]) -> RpcCaller {
    let flags = Flags::new();
    settings.iter().for_each(|(name, value)| flags.set(name, value).expect(name));
    let settings = security::settings(env, &flags).expect("sound settings");
    ServerIdentity::new(env, Some(&settings), "localhost").expect("an identity").caller("kudu")
}

/// Returns the certificate that the leading master gives a tablet server that calls as `caller` and acts as `kudu`.
async fn signed_certificate(world: &World, caller: &RpcCaller) -> Option<Vec<u8>> {
    let connection = world.connect(world.leader(), caller).await.expect("a server");
    let permanent_uuid = "0123456789abcdef0123456789abcdef".into();
    let ts_instance = NodeInstancePb { permanent_uuid, instance_seqno: 1 };
    let request = TsHeartbeatRequestPb {
        common: TsToMasterCommonPb { ts_instance },
        csr_der: Some(draw_key(&world.env).request("kudu", Some("host")).expect("a request").into()),
        ..TsHeartbeatRequestPb::default()
    };
    let reply = world.request(&connection, MASTER, "TSHeartbeat", &request).await;
    let reply: TsHeartbeatResponsePb = reply.expect("a heartbeat is served");
    assert_eq!((reply.leader_master, reply.error), (Some(true), None));
    reply.signed_cert_der.map(|der| der.to_vec())
}

/// A JSON Web Token that proves the servers' user gets no certificate, which would prove it for years.
async fn only_lasting_proofs_get_certificates(
    world: &World,
    settings: &[(&str, &str)],
    pem: &[u8],
    jwt: SecretText,
) {
    let tls = TlsCredentials::new(&world.env, TlsSettings::default()).expect("credentials");
    let authorities = certificates_from_pem(pem, "CA certificates").expect("a CA");
    authorities.into_iter().for_each(|der| tls.trust(der).expect("a CA"));
    let options =
        ClientSecurityOptions { verify_server: true, jwt: Some(jwt), ..ClientSecurityOptions::default() };
    let bearer = RpcCaller::secure("kudu", Arc::new(ClientSecurity::new(tls, options)));
    assert_eq!(signed_certificate(world, &bearer).await, None);
    let server = server_caller(&world.env, settings);
    assert!(signed_certificate(world, &server).await.is_some(), "a certificate is a lasting proof");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_requires_authentication_believes_certificates_and_json_web_tokens_only() {
    let files = tempfile::tempdir().expect("a temporary directory");
    let key = write_files(files.path());
    let path = |name: &str| files.path().join(name).to_str().expect("UTF-8").to_string();
    let (certificate, private_key, ca, jwks) =
        (path("cert.pem"), path("key.pem"), path("ca.pem"), path("jwks.json"));
    let settings = [
        ("rpc_authentication", "required"),
        ("rpc_encryption", "required"),
        ("rpc_certificate_file", certificate.as_str()),
        ("rpc_private_key_file", &private_key),
        ("rpc_ca_certificate_file", &ca),
        ("enable_jwt_token_auth", "true"),
        ("jwks_file_path", &jwks),
        ("user_acl", "ann"),
    ];
    let mut world = World::start(&settings).await;
    let pem = std::fs::read(path("ca.pem")).expect("the CA");
    let proved = |token: SecretText| SecurityConfig {
        ca_certificates: Some(pem.clone()),
        jwt: Some(token),
        ..encrypted()
    };
    let ann = world.client("ann", proved(jwt(&key, "ann"))).await;
    write_and_read(&ann, "t").await;
    // The proof counts, not the stated name.
    let alias = world.client("another name", proved(jwt(&key, "ann"))).await;
    assert_eq!(rows(&alias, "t").await, 100);
    let bob = world.refusal("ann", proved(jwt(&key, "bob"))).await;
    assert!(bob.contains("unauthorized access to method"), "{bob}");
    let forged = jsonwebtoken::EncodingKey::from_secret(b"another secret");
    let forged = world.refusal("ann", proved(jwt(&forged, "ann"))).await;
    assert!(forged.contains("JWT verification failed: failed to verify signature"), "{forged}");
    let named =
        world.refusal("ann", SecurityConfig { ca_certificates: Some(pem.clone()), ..encrypted() }).await;
    assert!(named.contains("server requires authentication"), "{named}");
    // A server of another CA gets no token.
    let others = tempfile::tempdir().expect("a temporary directory");
    write_files(others.path());
    let other_ca = std::fs::read(others.path().join("ca.pem")).expect("the CA");
    let trusting = SecurityConfig { ca_certificates: Some(other_ca), ..proved(jwt(&key, "ann")) };
    let unverified = world.refusal("ann", trusting).await;
    assert!(unverified.contains("invalid peer certificate"), "{unverified}");
    only_lasting_proofs_get_certificates(&world, &settings, &pem, jwt(&key, "kudu")).await;
    drop((ann, alias));
    world.restart().await;
    let ann = world.client("ann", proved(jwt(&key, "ann"))).await;
    assert_eq!(rows(&ann, "t").await, 100);
    world.cluster.shutdown().await;
}

/// A server calls only those that meet the demands on its own callers: a process in the place of a server that speaks
/// plain text, takes a name for a proof, or has a certificate of another user, gets no heartbeat and no log entry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_calls_only_servers_that_meet_its_own_demands() {
    let mut plain = World::start(&[("rpc_encryption", "disabled"), ("rpc_authentication", "disabled")]).await;
    let files = tempfile::tempdir().expect("a temporary directory");
    let authority = write_authority(files.path());
    write_certificate(files.path(), &authority, Some("kudu"));
    let path = |name: &str| files.path().join(name).to_str().expect("UTF-8").to_string();
    let (certificate, key, ca) = (path("cert.pem"), path("key.pem"), path("ca.pem"));
    let encrypts = [("rpc_encryption", "required"), ("rpc_encrypt_loopback_connections", "true")];
    let authenticates = [
        ("rpc_authentication", "required"),
        ("rpc_certificate_file", certificate.as_str()),
        ("rpc_private_key_file", &key),
        ("rpc_ca_certificate_file", &ca),
    ];
    for (settings, refusal) in [
        (&encrypts[..], "server does not support required TLS encryption"),
        (&authenticates, "client requires authentication, but server does not have Kerberos enabled"),
    ] {
        let refused = plain.connect(plain.leader(), server_caller(&plain.env, settings)).await.err();
        let refused = refused.expect("it must not talk to this server").to_string();
        assert!(refused.contains(refusal), "{refused}");
    }
    plain.cluster.shutdown().await;
    for (user, found) in [(Some("ann"), "found user \"ann\", expected \"kudu\""), (None, "found no user")] {
        let files = tempfile::tempdir().expect("a temporary directory");
        write_certificate(files.path(), &authority, user);
        let path = |name: &str| files.path().join(name).to_str().expect("UTF-8").to_string();
        let mut listener = World::start(&[
            ("rpc_certificate_file", &path("cert.pem")),
            ("rpc_private_key_file", &path("key.pem")),
            ("rpc_ca_certificate_file", &ca),
        ])
        .await;
        let caller = server_caller(&listener.env, &authenticates);
        let refused = listener.connect(listener.leader(), caller).await.err();
        let refused = refused.expect("it is no server of the caller's cluster").to_string();
        assert!(refused.contains("does not name the user that servers act as"), "{refused}");
        assert!(refused.contains(found), "{refused}");
        listener.cluster.shutdown().await;
    }
}

#[tokio::test]
async fn settings_that_nothing_could_satisfy_are_refused() {
    let files = tempfile::tempdir().expect("a temporary directory");
    write_files(files.path());
    let certificate = files.path().join("cert.pem").to_str().expect("UTF-8").to_string();
    let env = OsEnv::new(&OsOptions::default()).expect("this machine");
    let refused = |settings: &[(&str, &str)]| {
        let flags = Flags::new();
        settings.iter().for_each(|(name, value)| flags.set(name, value).expect(name));
        let error = node::server::security::settings(&env, &flags).expect_err("it is refused");
        assert_eq!(error.kind, ErrorKind::Invalid);
        error.message
    };
    let required = ("rpc_authentication", "required");
    let all = [
        refused(&[required]),
        refused(&[required, ("rpc_encryption", "disabled")]),
        refused(&[("rpc_certificate_file", &certificate)]),
        refused(&[("enable_jwt_token_auth", "true")]),
        refused(&[("jwks_file_path", "/etc/jwks.json")]),
        refused(&[("user_acl", "ann,!bob")]),
        refused(&[("rpc_tls_min_protocol", "TLSv1.4")]),
        refused(&[("tsk_rotation_seconds", "60")]),
    ];
    expect_test::expect![[r#"
        rpc_authentication: servers cannot prove who they are (required, without keytab_file and rpc_certificate_file); give each server a keytab with keytab_file and principal, or a certificate of your own CA with rpc_certificate_file, rpc_private_key_file and rpc_ca_certificate_file
        rpc_authentication: no client can prove who it is without TLS (required, rpc_encryption=disabled); set rpc_encryption to required
        rpc_private_key_file: not given; give rpc_certificate_file, rpc_private_key_file, rpc_ca_certificate_file together
        enable_jwt_token_auth: the keys are missing (no jwks_file_path, no jwks_url); name the file or the URL of a JSON Web Key Set
        jwks_file_path: of no use without enable_jwt_token_auth; set both or none
        user_acl: access list: a user name begins with a reserved character ("!bob"); list short names, or * alone
        rpc_tls_min_protocol: unknown version ("TLSv1.4"); use TLSv1.2 or TLSv1.3
        tsk_rotation_seconds: servers would need too many keys for tokens that are still valid (10084, limit 1024); raise it, or lower authn_token_validity_seconds and authz_token_validity_seconds"#]].assert_eq(&all.join("\n"));
}
