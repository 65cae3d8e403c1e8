//! Messages of a negotiation with a Kerberos ticket, on both sides. The library is a double: its tokens are texts.

use std::sync::Arc;

use nyala_common::env::kerberos::{BindingFaults, ClientKerberos, KerberosCredentials, ServerKerberos};
use nyala_common::env::kerberos_double::KerberosDouble;
use nyala_common::env::mem_net;
use nyala_common::rpc::frame::FrameReader;
use nyala_common::rpc::negotiate::{
    ClientNegotiation, NegotiationStep, ServerNegotiation, ServerNegotiationConfig,
};
use nyala_common::security::{
    AuthnMethod, ClientSecurity, ClientSecurityOptions, EncryptionPolicy, RpcCaller, SecurityLevel,
    ServerSecurity, TlsCredentials, TlsSettings,
};

/// Frames of a negotiation with a double are short.
const FRAME_BYTES_MAX: usize = 64 << 10;
/// Nonce of the seeds.
const NONCE: [u8; 16] = [7; 16];

/// Returns a server that accepts tickets only.
pub(crate) fn new_server() -> ServerNegotiation {
    let kerberos = ServerKerberos {
        library: Arc::new(KerberosDouble::default()),
        keytab: String::new(),
        principal: "kudu/h@R".to_string(),
        host_rules: true,
        faults: BindingFaults::default(),
    };
    ServerNegotiation::with(ServerNegotiationConfig {
        trusted: true,
        loopback: false,
        encrypt_loopback: true,
        authentication: SecurityLevel::Required,
        encryption: SecurityLevel::Disabled,
        spans: false,
        now: engine::time::WallTime::default(),
        nonce: NONCE,
        security: ServerSecurity { kerberos: Some(Arc::new(kerberos)), ..ServerSecurity::default() },
    })
}

/// Returns a client with a ticket that presents nothing else.
pub(crate) fn new_client() -> ClientNegotiation {
    let env = mem_net::env();
    let tls = TlsCredentials::new(&env, TlsSettings::default()).expect("credentials without a certificate");
    let kerberos = ClientKerberos {
        library: Arc::new(KerberosDouble { principal: Some("ann@R".to_string()) }),
        credentials: KerberosCredentials::Cache,
        service: "kudu".to_string(),
    };
    let options = ClientSecurityOptions {
        encryption: EncryptionPolicy::Disabled,
        kerberos: Some(kerberos),
        require_authentication: true,
        ..ClientSecurityOptions::default()
    };
    let caller = RpcCaller::secure("ann", Arc::new(ClientSecurity::new(tls, options)));
    ClientNegotiation::with(&caller, false).for_host("h")
}

/// Checks frames of a client: a client that gets in has shown a ticket, and its user is that of the ticket.
pub(super) fn server(data: &[u8]) {
    let mut reader = FrameReader::new(FRAME_BYTES_MAX);
    reader.space().extend_from_slice(data);
    let mut server = new_server();
    while let Ok(Some(frame)) = reader.next_frame() {
        match server.on_frame(&frame) {
            NegotiationStep::Continue(bytes) => assert!(!bytes.is_empty(), "each frame has a reply"),
            NegotiationStep::Done { user, .. } => {
                let peer = server.into_peer().expect("a client that got in");
                assert_eq!((peer.method, &*peer.user), (AuthnMethod::Kerberos, user.as_str()));
                return assert!(peer.principal.is_some_and(|principal| !principal.is_empty()));
            }
            NegotiationStep::StartTls { .. } => panic!("a server without TLS begins it"),
            NegotiationStep::Failed { .. } => return,
        }
    }
}

/// Checks frames of a server: a client that demands a proof never ends without a context.
pub(super) fn client(data: &[u8]) {
    let mut reader = FrameReader::new(FRAME_BYTES_MAX);
    reader.space().extend_from_slice(data);
    let (mut client, mut frames) = (new_client(), 0);
    while let Ok(Some(frame)) = reader.next_frame() {
        frames += 1;
        match client.on_frame(&frame) {
            NegotiationStep::Continue(bytes) => assert!(!bytes.is_empty(), "each frame has a reply"),
            NegotiationStep::Done { .. } => return assert_eq!(frames, 4, "offer, context, layers, success"),
            NegotiationStep::StartTls { .. } => panic!("a client without TLS begins it"),
            NegotiationStep::Failed { .. } => return,
        }
    }
}
