//! Messages and steps that both sides of a negotiation share.

use bytes::{Bytes, BytesMut};
use prost::Message;

use crate::rpc::RpcErrorCodePb;
use crate::rpc::frame;
use nyala_proto::kudu::rpc::authentication_type_pb as authn;
use nyala_proto::kudu::rpc::negotiate_pb::NegotiateStep;
use nyala_proto::kudu::rpc::{AuthenticationTypePb, NegotiatePb, RequestHeader, ResponseHeader};

/// First bytes of a client: magic, version, service class, authentication protocol.
pub const PREAMBLE: [u8; 7] = *b"hrpc\x09\x00\x00";
pub(super) const PLAIN: &str = "PLAIN";
/// Maximum length of a frame before the peer is authenticated. Tickets, tokens and certificate chains are far shorter.
pub const NEGOTIATION_FRAME_BYTES_MAX: usize = 256 << 10;

/// Checks the first seven bytes of a connection. The last two are not used.
pub fn check_preamble(bytes: &[u8]) -> Result<(), String> {
    if !bytes.starts_with(b"hrpc") {
        return Err(format!("the connection opens with {bytes:02x?}, not with \"hrpc\""));
    }
    match bytes.get(4) {
        Some(9) => Ok(()),
        Some(version) => Err(format!("RPC protocol version {version} is not 9")),
        None => Err("the connection opens with too few bytes".to_string()),
    }
}

/// Action of one side after a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NegotiationStep {
    /// Send these bytes, if any, and wait for the next frame.
    Continue(Bytes),
    /// Send these bytes, if any, wrap the stream into the session that the negotiation holds, and go on with `then`.
    /// Bytes that were received after the current frame belong to the session.
    StartTls { send: Bytes, then: Box<NegotiationStep> },
    /// Negotiation is complete (for a client: once these bytes are sent).
    Done { send: Bytes, user: String },
    /// Negotiation failed: send these bytes, if any, and close the connection.
    Failed { send: Bytes, code: RpcErrorCodePb, message: String },
}

/// Means of authentication, as agreed by both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AuthnType {
    Sasl,
    Token,
    Certificate,
    Jwt,
}

impl AuthnType {
    /// Returns the type's name in Kudu's logs.
    pub(super) fn name(self) -> &'static str {
        match self {
            AuthnType::Sasl => "SASL",
            AuthnType::Token => "TOKEN",
            AuthnType::Certificate => "CERTIFICATE",
            AuthnType::Jwt => "JWT",
        }
    }

    pub(super) fn from_pb(pb: &AuthenticationTypePb) -> Option<AuthnType> {
        Some(match pb.r#type.as_ref()? {
            authn::Type::Sasl(_) => AuthnType::Sasl,
            authn::Type::Token(_) => AuthnType::Token,
            authn::Type::Certificate(_) => AuthnType::Certificate,
            authn::Type::Jwt(_) => AuthnType::Jwt,
        })
    }

    pub(super) fn to_pb(self) -> AuthenticationTypePb {
        let r#type = Some(match self {
            AuthnType::Sasl => authn::Type::Sasl(authn::Sasl {}),
            AuthnType::Token => authn::Type::Token(authn::Token {}),
            AuthnType::Certificate => authn::Type::Certificate(authn::Certificate {}),
            AuthnType::Jwt => authn::Type::Jwt(authn::Jwt {}),
        });
        AuthenticationTypePb { r#type }
    }
}

pub(super) type Rejection = (RpcErrorCodePb, String);

pub(super) fn reject<T>(code: RpcErrorCodePb, message: impl Into<String>) -> Result<T, Rejection> {
    Err((code, message.into()))
}

/// Rejects with FATAL_UNAUTHORIZED and the text of Kudu's status.
pub(super) fn unauthorized<T>(message: &str) -> Result<T, Rejection> {
    reject(RpcErrorCodePb::FatalUnauthorized, format!("Not authorized: {message}"))
}

pub(super) fn expect_step(message: &NegotiatePb, expected: NegotiateStep) -> Result<(), Rejection> {
    if message.step == i32::from(expected) {
        return Ok(());
    }
    let got = NegotiateStep::try_from(message.step).map_or("an unknown step", |step| step.as_str_name());
    unauthorized(&format!("expected {} step, got {got}", expected.as_str_name()))
}

/// Returns the TLS records of a handshake message, which must not be empty.
pub(super) fn handshake_bytes(message: &NegotiatePb) -> Result<&Bytes, Rejection> {
    expect_step(message, NegotiateStep::TlsHandshake)?;
    match &message.tls_handshake {
        Some(bytes) if !bytes.is_empty() => Ok(bytes),
        _ => unauthorized("TLS Handshake error: no tls_handshake in TLS_HANDSHAKE step"),
    }
}

pub(super) fn handshake_error(why: &str) -> Rejection {
    (RpcErrorCodePb::FatalUnauthorized, format!("Not authorized: TLS Handshake error: {why}"))
}

pub(super) fn negotiate_step(step: NegotiateStep) -> NegotiatePb {
    NegotiatePb { step: step.into(), ..Default::default() }
}

pub(super) fn handshake_message(records: Vec<u8>) -> NegotiatePb {
    NegotiatePb { tls_handshake: Some(records.into()), ..negotiate_step(NegotiateStep::TlsHandshake) }
}

pub(super) fn response_header() -> ResponseHeader {
    ResponseHeader { call_id: frame::NEGOTIATION_CALL_ID, ..Default::default() }
}

pub(super) fn request_header(call_id: i32) -> RequestHeader {
    RequestHeader { call_id, ..Default::default() }
}

pub(super) fn encode(header: &impl Message, message: &impl Message) -> Bytes {
    let mut out = BytesMut::new();
    frame::put_frame(header, message, &mut out);
    out.freeze()
}
