//! TLS and proofs of identity in negotiations, over an in-memory network.

use super::*;
use crate::env::kerberos::{BindingFaults, ClientKerberos, KerberosCredentials, ServerKerberos};
use crate::env::kerberos_double::KerberosDouble;
use crate::rpc::negotiate::{ClientNegotiation, NegotiationStep};
use crate::security::tls::tests::{TestCa, signed_server};
use crate::security::tls::{OwnCertificate, TlsCredentials, TlsSettings, TlsStream};
use crate::security::{
    AuthnTokenVerifier, ClientSecurity, ClientSecurityOptions, EncryptionPolicy, RpcCaller, SecurityLevel,
    ServerSecurity, TokenIdentity, TokenRejection,
};
use engine::time::WallTime;
use nyala_proto::kudu::security::SignedTokenPb;

/// Verifier that accepts the token `good` and rejects others by their text.
struct TestTokens;

impl AuthnTokenVerifier for TestTokens {
    fn has_keys(&self) -> bool {
        true
    }

    fn verify(&self, token: &SignedTokenPb, _now: WallTime) -> Result<TokenIdentity, TokenRejection> {
        match token.token_data.as_deref() {
            Some(b"good") => Ok(TokenIdentity { user: "tina".to_string(), principal: None }),
            Some(b"unknown") => {
                Err(TokenRejection::new(RpcErrorCodePb::ErrorUnavailable, "token signed with unknown key"))
            }
            _ => Err(TokenRejection::new(
                RpcErrorCodePb::FatalInvalidAuthenticationToken,
                "invalid token signature",
            )),
        }
    }
}

fn token(text: &'static [u8]) -> SignedTokenPb {
    SignedTokenPb { token_data: Some(Bytes::from_static(text)), ..Default::default() }
}

/// Returns a client that trusts `ca`.
fn client_of(env: &Env, ca: &TestCa, options: ClientSecurityOptions) -> ClientSecurity {
    let tls = TlsCredentials::new(env, TlsSettings::default()).expect("credentials");
    tls.trust(ca.der.clone()).expect("a CA");
    ClientSecurity::new(tls, options)
}

/// A server with a certificate of `ca`.
struct TlsWorld {
    world: World,
    ca: TestCa,
}

impl TlsWorld {
    async fn new(config: RpcConfig) -> TlsWorld {
        TlsWorld::certified(config, "kudu").await
    }

    /// As [`TlsWorld::new`], with `user` in the certificate.
    async fn certified(config: RpcConfig, user: &str) -> TlsWorld {
        let ca = TestCa::new();
        let env = mem_net::env();
        let tls = Some(signed_server(&env, &ca, user));
        let security =
            ServerSecurity { tls, tokens: Some(Arc::new(TestTokens)), ..ServerSecurity::default() };
        TlsWorld { world: World::secure(env, config, security).await, ca }
    }

    /// Returns a client that trusts the server's CA.
    fn client(&self, encryption: EncryptionPolicy) -> ClientSecurity {
        client_of(&self.world.env, &self.ca, ClientSecurityOptions { encryption, ..Default::default() })
    }

    async fn connect(&self, security: ClientSecurity) -> Result<Arc<ClientConnection>, String> {
        let caller = RpcCaller::secure("root", Arc::new(security));
        let connected =
            ClientConnection::connect(&self.world.env, self.world.addr, caller, self.world.after(5_000));
        connected.await.map_err(|error| error.to_string())
    }

    /// Connects and returns the server's view of the client.
    async fn identity(&self, security: ClientSecurity) -> Result<String, String> {
        let connection = self.connect(security).await?;
        let call = self.world.begin(&connection, "WhoAmI", "", 1_000, CallOptions::default());
        text(call.await.expect("a reply"))
    }
}

fn required(encrypt_loopback: bool) -> RpcConfig {
    RpcConfig { encryption: SecurityLevel::Required, encrypt_loopback, ..RpcConfig::default() }
}

#[tokio::test(start_paused = true)]
async fn both_modes_of_tls_serve_calls() {
    for encrypt_loopback in [false, true] {
        let tls = TlsWorld::new(required(encrypt_loopback)).await;
        for encryption in [EncryptionPolicy::Optional, EncryptionPolicy::Required] {
            let connection = tls.connect(tls.client(encryption)).await.expect("it connects");
            let call = tls.world.begin(&connection, "Echo", "secret", 1_000, CallOptions::default());
            assert_eq!(text(call.await.expect("a reply")).as_deref(), Ok("secret"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn large_replies_and_many_calls_pass_through_tls() {
    let tls = TlsWorld::new(required(true)).await;
    let connection = tls.connect(tls.client(EncryptionPolicy::Required)).await.expect("it connects");
    let deadline = tls.world.after(60_000);
    let (text, options) = ("x".repeat(100_000), CallOptions::default());
    for _ in 0..3 {
        let reply = connection.call::<String, String>(ECHO, "Sidecars", &text, deadline, &options);
        let reply = reply.await.expect("a reply");
        assert_eq!(reply.message, text);
        assert_eq!(reply.sidecars.iter().map(Bytes::len).collect::<Vec<_>>(), [0, 3 << 20, 3]);
        assert!(reply.sidecars[1].iter().all(|byte| *byte == 7));
    }
}

#[tokio::test(start_paused = true)]
async fn identities_follow_the_proof() {
    let tls = TlsWorld::new(RpcConfig::default()).await;
    let client = || tls.client(EncryptionPolicy::Optional);
    assert_eq!(tls.identity(client()).await.as_deref(), Ok("root Plain confidential"));
    let with_token = client();
    with_token.set_token(token(b"good"));
    assert_eq!(tls.identity(with_token).await.as_deref(), Ok("tina Token confidential"));
    let server = signed_server(&tls.world.env, &tls.ca, "tserver");
    let server = ClientSecurity::new(server, ClientSecurityOptions::default());
    assert_eq!(tls.identity(server).await.as_deref(), Ok("tserver Certificate confidential"));
    let plain = tls.client(EncryptionPolicy::Disabled);
    assert_eq!(tls.identity(plain).await.as_deref(), Ok("root Plain confidential"), "loopback, by default");
    let tls = TlsWorld::new(RpcConfig { encrypt_loopback: true, ..RpcConfig::default() }).await;
    let plain = tls.client(EncryptionPolicy::Disabled);
    assert_eq!(tls.identity(plain).await.as_deref(), Ok("root Plain readable"));
}

/// A server with a keytab of the double, and a client with the ticket of `principal`, if that is not empty.
async fn kerberos_world(config: RpcConfig, principal: &str) -> (TlsWorld, ClientSecurity) {
    faulty_kerberos_world(config, principal, BindingFaults::default()).await
}

async fn faulty_kerberos_world(
    config: RpcConfig,
    principal: &str,
    faults: BindingFaults,
) -> (TlsWorld, ClientSecurity) {
    let tls = kerberos_server(config, "kudu", faults).await;
    let options = ClientSecurityOptions { kerberos: Some(kerberos_client(principal)), ..Default::default() };
    let client = client_of(&tls.world.env, &tls.ca, options);
    (tls, client)
}

/// Returns a client's Kerberos with the ticket of `principal`, if that is not empty.
fn kerberos_client(principal: &str) -> ClientKerberos {
    let ticket = (!principal.is_empty()).then(|| principal.to_string());
    ClientKerberos {
        library: Arc::new(KerberosDouble { principal: ticket }),
        credentials: KerberosCredentials::Cache,
        service: "kudu".to_string(),
    }
}

/// A server with a keytab of the double, and a certificate with this user.
async fn kerberos_server(config: RpcConfig, certified: &str, faults: BindingFaults) -> TlsWorld {
    let ca = TestCa::new();
    let env = mem_net::env();
    let kerberos = ServerKerberos {
        library: Arc::new(KerberosDouble::default()),
        keytab: "server.keytab".to_string(),
        principal: "kudu/h@R".to_string(),
        host_rules: true,
        faults,
    };
    let tls = (config.encryption != SecurityLevel::Disabled).then(|| signed_server(&env, &ca, certified));
    let security = ServerSecurity { tls, kerberos: Some(Arc::new(kerberos)), ..ServerSecurity::default() };
    TlsWorld { world: World::secure(env, config, security).await, ca }
}

/// Returns the demands of a server that calls others, with the ticket of `principal`, if that is not empty.
fn server_demands(principal: &str) -> ClientSecurityOptions {
    ClientSecurityOptions {
        server_user: Some("kudu".to_string()),
        kerberos: (!principal.is_empty()).then(|| kerberos_client(principal)),
        ..Default::default()
    }
}

/// Returns the refusal of a server whose certificate has another user.
fn no_service_user(found: &str) -> Result<String, String> {
    Err(format!(
        "FATAL_UNAUTHORIZED: Not authorized: server's certificate: does not name the user that servers act as (found \
         {found}, expected \"kudu\"); give every server a certificate with UID=kudu"
    ))
}

#[tokio::test(start_paused = true)]
async fn a_server_calls_only_servers_whose_certificate_names_the_service_user() {
    for (user, expected) in [
        ("kudu", Ok("kudu Certificate confidential".to_string())),
        ("ann", no_service_user("user \"ann\"")),
        ("", no_service_user("no user")),
    ] {
        let tls = TlsWorld::certified(RpcConfig::default(), user).await;
        let own = signed_server(&tls.world.env, &tls.ca, "kudu");
        assert_eq!(tls.identity(ClientSecurity::new(own, server_demands(""))).await, expected, "{user}");
        // Without a proof of its own it does not fall back to a name.
        let nameless = tls.identity(client_of(&tls.world.env, &tls.ca, server_demands(""))).await;
        let refused = nameless.expect_err("only PLAIN is left");
        assert!(refused.contains("client requires authentication"), "{refused}");
        // Clients demand the CA only.
        let client = tls.client(EncryptionPolicy::Optional);
        client.set_token(token(b"good"));
        assert_eq!(tls.identity(client).await.as_deref(), Ok("tina Token confidential"), "{user}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_ticket_proves_a_server_whose_certificate_names_no_user() {
    let (by_ticket, by_certificate) = ("kudu Kerberos confidential", "kudu Certificate confidential");
    for (user, own, expected) in [
        ("", "", Ok(by_ticket.to_string())),
        ("", "kudu", Ok(by_ticket.to_string())),
        ("kudu", "", Ok(by_ticket.to_string())),
        ("kudu", "kudu", Ok(by_certificate.to_string())),
        ("ann", "", Ok(by_ticket.to_string())),
        ("ann", "kudu", no_service_user("user \"ann\"")),
    ] {
        let authentication = SecurityLevel::Required;
        let config = RpcConfig { authentication, ..required(true) };
        let tls = kerberos_server(config, user, BindingFaults::default()).await;
        let own_tls = signed_server(&tls.world.env, &tls.ca, own);
        let caller = ClientSecurity::new(own_tls, server_demands("kudu/caller@R"));
        assert_eq!(tls.identity(caller).await, expected, "{user:?} called by {own:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_ticket_proves_the_user_with_and_without_tls_around_the_calls() {
    let config = |authentication, encryption, encrypt_loopback| RpcConfig {
        authentication,
        encryption,
        encrypt_loopback,
        ..RpcConfig::default()
    };
    let required = SecurityLevel::Required;
    for (config, principal, expected) in [
        (config(required, required, true), "ann@R", "ann Kerberos confidential"),
        (config(required, SecurityLevel::Optional, false), "ann/admin@R", "ann Kerberos confidential"),
        (config(required, required, false), "eve@OTHER", "other-eve Kerberos confidential"),
        (config(SecurityLevel::Optional, required, true), "ann@R", "ann Kerberos confidential"),
        (config(SecurityLevel::Optional, SecurityLevel::Disabled, true), "ann@R", "ann Kerberos readable"),
        (config(SecurityLevel::Optional, required, true), "", "root Plain confidential"),
        (config(SecurityLevel::Disabled, required, true), "ann@R", "root Plain confidential"),
    ] {
        let (tls, client) = kerberos_world(config, principal).await;
        assert_eq!(tls.identity(client).await.as_deref(), Ok(expected), "{principal}");
    }
    let (tls, client) = kerberos_world(config(required, required, true), "").await;
    assert_eq!(
        tls.identity(client).await.expect_err("it has no ticket"),
        "FATAL_UNAUTHORIZED: Not authorized: server requires authentication, but client does not have Kerberos \
         credentials available (no ticket; run kinit)"
    );
    let (tls, client) = kerberos_world(config(required, required, true), "@R").await;
    let nameless = tls.identity(client).await.expect_err("it is no user");
    assert!(nameless.contains("GSSAPI: principal \"@R\" is no user"), "{nameless}");
}

#[tokio::test(start_paused = true)]
async fn a_client_refuses_a_ticket_that_is_not_bound_to_its_connection() {
    let never = BindingFaults { send: Some(Arc::default()), ..BindingFaults::default() };
    let ratio = Some(Arc::new(1f64.to_bits().into()));
    let wrong = BindingFaults { invalid_ratio: ratio, ..BindingFaults::default() };
    for (faults, fault) in
        [(never, "no channel bindings provided by server"), (wrong, "channel bindings do not match")]
    {
        let (tls, client) = faulty_kerberos_world(required(true), "ann@R", faults).await;
        let refused = tls.identity(client).await.expect_err("the client refuses it");
        assert!(refused.contains(fault), "{refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn rejected_tokens_carry_the_code_that_clients_react_to() {
    let tls = TlsWorld::new(RpcConfig::default()).await;
    for (text, expected) in [
        (b"forged".as_slice(), "FATAL_INVALID_AUTHENTICATION_TOKEN: Not authorized: invalid token signature"),
        (b"unknown", "ERROR_UNAVAILABLE: Not authorized: token signed with unknown key"),
    ] {
        let client = tls.client(EncryptionPolicy::Optional);
        client.set_token(SignedTokenPb {
            token_data: Some(Bytes::copy_from_slice(text)),
            ..Default::default()
        });
        assert_eq!(tls.identity(client).await, Err(expected.to_string()));
    }
}

#[tokio::test(start_paused = true)]
async fn required_settings_refuse_what_lacks_them() {
    let tls = TlsWorld::new(required(false)).await;
    let plain = tls.client(EncryptionPolicy::Disabled);
    assert_eq!(
        tls.identity(plain).await,
        Err("FATAL_UNAUTHORIZED: Not authorized: client does not support required TLS encryption".to_string())
    );
    let authentication = SecurityLevel::Required;
    let tls = TlsWorld::new(RpcConfig { authentication, ..RpcConfig::default() }).await;
    let nameless = tls.identity(tls.client(EncryptionPolicy::Optional)).await.expect_err("it has no proof");
    assert!(nameless.contains("server requires authentication, but client does not have"), "{nameless}");
    let with_token = tls.client(EncryptionPolicy::Optional);
    with_token.set_token(token(b"good"));
    assert_eq!(tls.identity(with_token).await.as_deref(), Ok("tina Token confidential"));
    // A client that asks for PLAIN although it was not offered.
    let encryption = SecurityLevel::Disabled;
    let tls = TlsWorld::new(RpcConfig { authentication, encryption, ..RpcConfig::default() }).await;
    let mut raw = tls.world.raw_unnegotiated().await;
    raw.write(&negotiation_bytes()).await;
    raw.read_frame().await.expect("NEGOTIATE");
    let (_, body) = raw.read_frame().await.expect("an error");
    let status = ErrorStatusPb::decode(body).expect("a status");
    assert_eq!(status.code(), RpcErrorCodePb::FatalUnauthorized);
    assert!(
        status.message.starts_with("Runtime error: SASL(-4): no mechanism available"),
        "{}",
        status.message
    );
    assert!(raw.read_frame().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_client_refuses_a_downgrade() {
    // The server has no TLS, or hides it.
    let world = World::new(RpcConfig::default()).await;
    let ca = TestCa::new();
    let client = |options| client_of(&world.env, &ca, options);
    let jwt = Some(crate::security::SecretText::new("a.b.c".to_string()));
    let refused = [
        client(ClientSecurityOptions { encryption: EncryptionPolicy::Required, ..Default::default() }),
        client(ClientSecurityOptions { verify_server: true, ..Default::default() }),
        client(ClientSecurityOptions { jwt, ..Default::default() }),
    ];
    for security in refused {
        let caller = RpcCaller::secure("root", Arc::new(security));
        let connected = ClientConnection::connect(&world.env, world.addr, caller, world.after(1_000)).await;
        let error = connected.err().expect("a refusal").to_string();
        assert!(error.contains("server does not support required TLS encryption"), "{error}");
    }
    // With a token alone the client may fall back to its name, but never sends the token in plain text.
    let security = client(ClientSecurityOptions::default());
    security.set_token(token(b"good"));
    let caller = RpcCaller::secure("root", Arc::new(security));
    assert!(ClientConnection::connect(&world.env, world.addr, caller, world.after(1_000)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_client_verifies_the_server_it_gives_a_secret() {
    let tls = TlsWorld::new(RpcConfig::default()).await;
    let other = TestCa::new();
    let security = client_of(&tls.world.env, &other, ClientSecurityOptions::default());
    security.set_token(token(b"good"));
    let error = tls.identity(security).await.expect_err("another CA");
    assert!(error.contains("TLS Handshake error") && error.contains("invalid peer certificate"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn plain_bytes_after_the_handshake_end_the_connection() {
    let tls = TlsWorld::new(required(true)).await;
    let caller = RpcCaller::secure("root", Arc::new(tls.client(EncryptionPolicy::Required)));
    let mut negotiation = ClientNegotiation::with(&caller, true);
    let mut raw = tls.world.raw_unnegotiated().await;
    raw.write(&negotiation.hello()).await;
    loop {
        let (header, body) = raw.read_frame().await.expect("a reply");
        match negotiation.on_frame(&frame::Frame { header, body }) {
            NegotiationStep::Continue(bytes) => raw.write(&bytes).await,
            NegotiationStep::StartTls { send, .. } => {
                // A call in plain text right behind the client's Finished, as an attacker would inject it.
                raw.write(&[send.as_ref(), &call_bytes(0, "Echo", "injected")].concat()).await;
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    let mut rest = Vec::new();
    let _ = raw.stream.read_to_end(&mut rest).await;
    let counters = tls.world.server.counters();
    assert_eq!(counters.calls_received.load(Ordering::Relaxed), 0);
    assert_eq!(counters.negotiations_failed.load(Ordering::Relaxed), 1);
}

/// Returns the streams of a server and a client after a handshake.
fn wrapped_streams(tls: &TlsWorld) -> (TlsStream, TlsStream) {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let server = signed_server(&tls.world.env, &tls.ca, "kudu");
    let mut server = server.server_session(false).expect("a session");
    let mut client = tls.client(EncryptionPolicy::Required).tls.client_session(true).expect("a session");
    let mut bytes = client.first_flight();
    use crate::security::tls::TlsFlight;
    while let TlsFlight::Continue(reply) = server.on_flight(&bytes).expect("a flight") {
        let (TlsFlight::Continue(next) | TlsFlight::Done(next)) = client.on_flight(&reply).expect("a flight");
        bytes = next;
    }
    let server = TlsStream::new(Box::new(theirs), server, Bytes::new());
    (server, TlsStream::new(Box::new(ours), client, Bytes::new()))
}

#[tokio::test(start_paused = true)]
async fn a_reader_of_few_bytes_gets_all_that_has_arrived() {
    let tls = TlsWorld::new(RpcConfig::default()).await;
    let (mut server, mut client) = wrapped_streams(&tls);
    let sent: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    client.write_all(&sent).await.expect("it is sent");
    client.shutdown().await.expect("the end is sent");
    let (mut got, mut part) = (Vec::new(), [0; 1000]);
    loop {
        match server.read(&mut part).await.expect("more bytes, or the end") {
            0 => break,
            read => got.extend_from_slice(&part[..read]),
        }
    }
    assert!(got == sent, "{} bytes of {}", got.len(), sent.len());
}

#[tokio::test(start_paused = true)]
async fn a_cut_off_tls_connection_is_an_error_for_the_reader() {
    let tls = TlsWorld::new(RpcConfig::default()).await;
    let (mut server, mut client) = wrapped_streams(&tls);
    client.write_all(b"half").await.expect("it is sent");
    client.flush().await.expect("it is sent");
    let mut half = [0; 4];
    server.read_exact(&mut half).await.expect("it arrives");
    drop(client);
    let error = server.read(&mut half).await.expect_err("no close_notify");
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
}

#[tokio::test(start_paused = true)]
async fn long_frames_are_refused_before_the_client_has_proved_anything() {
    let tls = TlsWorld::new(RpcConfig::default()).await;
    let mut raw = tls.world.raw_unnegotiated().await;
    raw.write(&PREAMBLE).await;
    raw.write(&(1_u32 << 20).to_be_bytes()).await;
    assert!(raw.read_frame().await.is_none());
    assert_eq!(tls.world.server.counters().negotiations_failed.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_half_open_negotiations_disturbs_nobody_else() {
    let tls = TlsWorld::new(RpcConfig { negotiations_max: 10, ..RpcConfig::default() }).await;
    let bystander = tls.world.connect().await;
    let mut flood = Vec::new();
    for _ in 0..100 {
        flood.push(tls.world.raw_unnegotiated().await);
        tls.world.settle().await;
    }
    let counters = tls.world.server.counters();
    assert_eq!(counters.connections_open.load(Ordering::Relaxed), 11, "ten half-open ones and the bystander");
    let late = tls.connect(tls.client(EncryptionPolicy::Required)).await.expect("it connects");
    for connection in [&bystander, &late] {
        let call = tls.world.begin(connection, "Echo", "fine", 1_000, CallOptions::default());
        assert_eq!(text(call.await.expect("a reply")).as_deref(), Ok("fine"));
    }
    tls.world.env.sleep(Duration::from_secs(4)).await;
    assert_eq!(counters.connections_open.load(Ordering::Relaxed), 2, "the others took longer than 3 s");
}

#[tokio::test(start_paused = true)]
async fn a_self_signed_server_encrypts_but_gets_no_secret() {
    let env = mem_net::env();
    let own = TlsCredentials::new(&env, TlsSettings::default()).expect("credentials");
    own.set_own(OwnCertificate::self_signed(&env, "kudu", "host").expect("a certificate")).expect("it fits");
    let security =
        ServerSecurity { tls: Some(own), tokens: Some(Arc::new(TestTokens)), ..ServerSecurity::default() };
    let world = World::secure(env, required(true), security).await;
    let tls = TlsWorld { world, ca: TestCa::new() };
    let client = tls.client(EncryptionPolicy::Required);
    client.set_token(token(b"good"));
    assert_eq!(tls.identity(client).await.as_deref(), Ok("root Plain confidential"));
}

#[tokio::test(start_paused = true)]
async fn access_lists_hold_for_every_method() {
    let access = Arc::new(AccessLists::new("kudu", "root", "ann").expect("lists"));
    let security = ServerSecurity { access, ..ServerSecurity::default() };
    let world = World::secure(mem_net::env(), RpcConfig::default(), security).await;
    let connection = world.connect().await;
    let refused = |user: &'static str, method: &'static str| {
        let (env, addr, deadline) = (world.env.clone(), world.addr, world.after(1_000));
        async move {
            let connection =
                ClientConnection::connect(&env, addr, user, deadline).await.expect("it connects");
            let call = |method: &'static str| {
                let connection = connection.clone();
                async move {
                    let options = CallOptions::default();
                    let text = "text".to_string();
                    connection.call::<String, String>(ECHO, method, &text, deadline, &options).await
                }
            };
            let refused = call(method).await.err().map(|error| error.to_string());
            // A refusal leaves the connection open.
            assert_eq!(call(method).await.err().map(|error| error.to_string()), refused);
            refused
        }
    };
    let refusal =
        |method| Some(format!("ERROR_APPLICATION: Not authorized: unauthorized access to method: {method}"));
    for (user, client, admin) in
        [("root", true, true), ("ann", true, false), ("kudu", false, false), ("bob", false, false)]
    {
        assert_eq!(refused(user, "Echo").await, if client { None } else { refusal("Echo") }, "{user}");
        assert_eq!(refused(user, "Admin").await, if admin { None } else { refusal("Admin") }, "{user}");
    }
    drop(connection);
    // Checked before the request is looked at.
    let connection = ClientConnection::connect(&world.env, world.addr, "bob", world.after(1_000)).await;
    let options = CallOptions::default();
    let connection = connection.expect("it connects");
    let call = connection.call::<u64, String>(ECHO, "Admin", &7, world.after(1_000), &options);
    assert_eq!(call.await.err().map(|error| error.to_string()), refusal("Admin"));
}
