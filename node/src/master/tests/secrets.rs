//! Keys of the cluster: made at the first leadership, rotated, kept over restarts. Time is paused.

use std::sync::Arc;

use super::*;
use crate::server::flags::Flags;
use crate::server::security;
use nyala_common::env::mem_net;
use nyala_common::env::partitionable_net::PartitionableNet;
use nyala_common::env::testing::hosts;
use nyala_common::security::acl::AccessLists;
use nyala_common::security::pki::certificate_user;
use nyala_common::security::tls::draw_key;
use nyala_common::security::token::{TokenFault, TokenVerifier, seconds};
use nyala_common::security::{
    ClientSecurity, ClientSecurityOptions, EncryptionPolicy, RpcCaller, TlsCredentials, TlsSettings,
};
use nyala_proto::kudu::security::TokenSigningPublicKeyPb;

/// User that servers act as.
const SERVICE_USER: &str = "nyala";
const ROTATION_S: u64 = 10;
const VALIDITY_S: u64 = 60;

fn secure(config: &mut MasterConfig) {
    let flags = Flags::new();
    for (name, value) in [
        ("rpc_encryption", "required".to_string()),
        ("rpc_encrypt_loopback_connections", "true".to_string()),
        ("tsk_rotation_seconds", ROTATION_S.to_string()),
        ("authn_token_validity_seconds", VALIDITY_S.to_string()),
        ("authz_token_validity_seconds", "1".to_string()),
    ] {
        flags.set(name, &value).expect(name);
    }
    config.rpc = crate::config::rpc(&flags).expect("settings");
    let mut settings = security::settings(&mem_net::env(), &flags).expect("settings");
    settings.service_user = SERVICE_USER.to_string();
    settings.access = AccessLists::new(SERVICE_USER, "", "*").expect("lists");
    config.security = Some(settings);
}

async fn started() -> Fixture {
    let env = hosts(&PartitionableNet::default(), 1).pop().expect("one host");
    Fixture::in_env(env, secure).await
}

/// Calls the master over TLS as `user`.
async fn ask<Q: Message, R: Message + Default>(
    fixture: &Fixture,
    user: &str,
    method: &str,
    request: &Q,
) -> Result<R, RpcError> {
    ask_as(fixture, RpcCaller::secure(user, client(fixture)), method, request).await
}

/// Returns the security of a client that encrypts.
fn client(fixture: &Fixture) -> Arc<ClientSecurity> {
    let tls = TlsCredentials::new(&fixture.env, TlsSettings::default()).expect("credentials");
    let options =
        ClientSecurityOptions { encryption: EncryptionPolicy::Required, ..ClientSecurityOptions::default() };
    Arc::new(ClientSecurity::new(tls, options))
}

async fn ask_as<Q: Message, R: Message + Default>(
    fixture: &Fixture,
    caller: RpcCaller,
    method: &str,
    request: &Q,
) -> Result<R, RpcError> {
    let proxy = Proxy::new(fixture.env.clone(), fixture.master.rpc_addr, caller);
    let deadline = fixture.env.now().mono.after(Duration::from_secs(20));
    let called = proxy.call(SERVICE, method, request, deadline, CallOptions::default());
    called.await.map(|response| response.message)
}

async fn connect(fixture: &Fixture) -> ConnectToMasterResponsePb {
    ask(fixture, "ann", "ConnectToMaster", &ConnectToMasterRequestPb {}).await.expect("a user")
}

async fn heartbeat(
    fixture: &Fixture,
    user: &str,
    csr_der: Option<Bytes>,
) -> Result<TsHeartbeatResponsePb, RpcError> {
    ask(fixture, user, "TSHeartbeat", &heartbeat_request(csr_der)).await
}

fn heartbeat_request(csr_der: Option<Bytes>) -> TsHeartbeatRequestPb {
    TsHeartbeatRequestPb {
        common: TsToMasterCommonPb {
            ts_instance: NodeInstancePb { permanent_uuid: id(SERVER), instance_seqno: 1 },
        },
        registration: Some(ServerRegistrationPb {
            rpc_addresses: vec![HostPortPb { host: "127.0.0.1".to_string(), port: 1 }],
            ..Default::default()
        }),
        csr_der,
        latest_tsk_seq_num: Some(-1),
        ..Default::default()
    }
}

/// Returns a request for a certificate of `user`.
fn csr(fixture: &Fixture, user: &str) -> Option<Bytes> {
    let key = draw_key(&fixture.env);
    Some(Bytes::from(key.request(user, Some("host")).expect("a request")))
}

fn numbers(keys: &[TokenSigningPublicKeyPb]) -> Vec<i64> {
    keys.iter().filter_map(|key| key.key_seq_num).collect()
}

async fn keys(fixture: &Fixture) -> Vec<TokenSigningPublicKeyPb> {
    heartbeat(fixture, SERVICE_USER, None).await.expect("a server").tsks
}

#[tokio::test(start_paused = true)]
async fn keys_rotate_and_survive_a_restart() {
    let mut fixture = started().await;
    let first = connect(&fixture).await;
    let token = first.authn_token.expect("a token");
    assert_eq!(token.signing_key_seq_num, Some(0));
    assert_eq!(numbers(&keys(&fixture).await), [0]);
    let mut verifier = TokenVerifier::default();
    let verify = |verifier: &TokenVerifier, fixture: &Fixture| {
        verifier.verify_authn(&token, seconds(fixture.env.now().wall))
    };
    assert_eq!(verify(&verifier, &fixture), Err(TokenFault::UnknownKey));
    let now_s = seconds(fixture.env.now().wall);
    assert!(verifier.import(&keys(&fixture).await, now_s).is_empty());
    assert_eq!(verify(&verifier, &fixture).as_deref(), Ok("ann"));

    // The second key spreads before it signs.
    fixture.env.sleep(Duration::from_secs(ROTATION_S + 2)).await;
    assert_eq!(numbers(&keys(&fixture).await), [0, 1]);
    assert_eq!(connect(&fixture).await.authn_token.expect("a token").signing_key_seq_num, Some(0));
    fixture.restart().await;
    let again = connect(&fixture).await;
    assert_eq!(again.ca_cert_der, first.ca_cert_der, "the CA is made once");
    assert_eq!(numbers(&keys(&fixture).await), [0, 1]);
    fixture.env.sleep(Duration::from_secs(ROTATION_S)).await;
    assert!(connect(&fixture).await.authn_token.expect("a token").signing_key_seq_num > Some(0));
    assert_eq!(verify(&verifier, &fixture).as_deref(), Ok("ann"), "the old key still verifies");

    // Expired keys are removed, and no number comes twice.
    fixture.env.sleep(Duration::from_secs(2 * ROTATION_S + VALIDITY_S)).await;
    assert_eq!(verify(&verifier, &fixture), Err(TokenFault::Expired));
    let left = numbers(&keys(&fixture).await);
    assert!(!left.contains(&0) && left.windows(2).all(|pair| pair[0] < pair[1]), "{left:?}");
    fixture.master.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn only_servers_get_certificates_and_only_for_themselves() {
    let fixture = started().await;
    let request = |user: &str| csr(&fixture, user);
    let signed = heartbeat(&fixture, SERVICE_USER, request(SERVICE_USER)).await.expect("a server");
    let certificate = signed.signed_cert_der.expect("a certificate");
    assert_eq!(certificate_user(&certificate).as_deref(), Some(SERVICE_USER));
    assert_eq!(signed.ca_cert_der, connect(&fixture).await.ca_cert_der);
    let other = heartbeat(&fixture, SERVICE_USER, request("ann")).await.expect("a reply");
    assert!(shown(&other.error).contains("CSR did not contain expected username"), "{:?}", other.error);
    assert_eq!(other.signed_cert_der, None);
    let refused = heartbeat(&fixture, "ann", request("ann")).await.expect_err("no server").to_string();
    assert_eq!(refused, "ERROR_APPLICATION: Not authorized: unauthorized access to method: TSHeartbeat");
    fixture.master.shutdown().await;
}

/// A token is valid for days, a certificate for years. The heartbeat is served: a server may come by a token once it has
/// its certificate, and then sends no request.
#[tokio::test(start_paused = true)]
async fn a_token_gets_no_certificate() {
    let fixture = started().await;
    let connected: ConnectToMasterResponsePb =
        ask(&fixture, SERVICE_USER, "ConnectToMaster", &ConnectToMasterRequestPb {}).await.expect("a server");
    let bearer = client(&fixture);
    bearer.tls.trust(connected.ca_cert_der[0].to_vec()).expect("a CA");
    bearer.set_token(connected.authn_token.expect("a token"));
    for csr_der in [None, csr(&fixture, SERVICE_USER)] {
        // The stated name is no server's: it is the token that is believed.
        let caller = RpcCaller::secure("ann", bearer.clone());
        let request = heartbeat_request(csr_der);
        let reply: TsHeartbeatResponsePb =
            ask_as(&fixture, caller, "TSHeartbeat", &request).await.expect("a server");
        assert_eq!((&reply.error, &reply.signed_cert_der), (&None, &None));
        assert_eq!(numbers(&reply.tsks), [0]);
    }
    fixture.master.shutdown().await;
}
