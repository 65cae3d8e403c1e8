//! Negotiation before a connection's first call, both sides, as state machines: bytes in, bytes out.
//!
//! ```text
//! client                                     server
//!   "hrpc" 9 0 0, NEGOTIATE(features)  ──▶
//!                                      ◀──   NEGOTIATE(features, SASL, [PLAIN])
//!   SASL_INITIATE(PLAIN, \0user\0)     ──▶
//!                                      ◀──   SASL_SUCCESS
//!   ConnectionContext                  ──▶   (no reply; calls may follow in the same segment)
//! ```
//!
//! All frames except the last have call id -33. An error is an `ErrorStatusPB` under that id and ends the connection.
//! The only mechanism is PLAIN. It accepts any user name, so it is offered to trusted networks only.
//!
//! *Not here:* TLS, Kerberos and tokens, which are not supported.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::{Bytes, BytesMut};
use prost::Message;

use super::RpcErrorCodePb;
use super::frame::{self, Frame};
use nyala_proto::kudu::rpc::authentication_type_pb as authn;
use nyala_proto::kudu::rpc::negotiate_pb::{NegotiateStep, SaslMechanism};
use nyala_proto::kudu::rpc::{
    AuthenticationTypePb, ConnectionContextPb, ErrorStatusPb, NegotiatePb, RequestHeader, ResponseHeader,
    RpcFeatureFlag, UserInformationPb,
};

/// First bytes of a client: magic, version, service class, authentication protocol.
pub const PREAMBLE: [u8; 7] = *b"hrpc\x09\x00\x00";
const PLAIN: &str = "PLAIN";

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

/// A network: all addresses whose first `prefix` bits equal those of `address`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet {
    pub address: IpAddr,
    pub prefix: u8,
}

impl Subnet {
    /// Returns the networks of loopback, private and link-local addresses.
    pub fn private() -> Vec<Subnet> {
        let v4 = |a, b, prefix| Subnet { address: Ipv4Addr::new(a, b, 0, 0).into(), prefix };
        let v6 = |first, prefix| Subnet { address: Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 0).into(), prefix };
        vec![
            v4(127, 0, 8),
            v4(10, 0, 8),
            v4(172, 16, 12),
            v4(192, 168, 16),
            v4(169, 254, 16),
            Subnet { address: Ipv6Addr::LOCALHOST.into(), prefix: 128 },
            v6(0xfc00, 7),
            v6(0xfe80, 10),
        ]
    }

    /// Parses `address/prefix`, for example `10.0.0.0/8`.
    pub fn parse(text: &str) -> Result<Subnet, String> {
        let bad = || format!("{text:?} is not a subnet; write it as 10.0.0.0/8");
        let (address, prefix) = text.trim().split_once('/').ok_or_else(bad)?;
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let prefix: u8 = prefix.parse().map_err(|_| bad())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        if prefix > bits { Err(bad()) } else { Ok(Subnet { address, prefix }) }
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        // A dual-stack socket reports an IPv4 client as ::ffff:a.b.c.d.
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(address)) => {
                same_prefix(net.to_bits().into(), address.to_bits().into(), 32, self.prefix)
            }
            (IpAddr::V6(net), IpAddr::V6(address)) => {
                same_prefix(net.to_bits(), address.to_bits(), 128, self.prefix)
            }
            _ => false,
        }
    }
}

fn same_prefix(a: u128, b: u128, bits: u8, prefix: u8) -> bool {
    prefix == 0 || (a ^ b) >> (bits - prefix) == 0
}

/// Action of one side after a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NegotiationStep {
    /// Send these bytes and wait for the next frame.
    Continue(Bytes),
    /// Negotiation is complete (for a client: once these bytes are sent).
    Done { send: Bytes, user: String },
    /// Negotiation failed: send these bytes, if any, and close the connection.
    Failed { send: Bytes, code: RpcErrorCodePb, message: String },
}

/// Server side, after the preamble.
#[derive(Debug)]
pub struct ServerNegotiation {
    state: ServerState,
    trusted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ServerState {
    Features,
    Sasl,
    Context(String),
    Over,
}

type Rejection = (RpcErrorCodePb, String);

fn reject<T>(code: RpcErrorCodePb, message: impl Into<String>) -> Result<T, Rejection> {
    Err((code, message.into()))
}

impl ServerNegotiation {
    /// Starts a negotiation. `trusted` is true if the client's network is one of the trusted subnets.
    pub fn new(trusted: bool) -> ServerNegotiation {
        ServerNegotiation { state: ServerState::Features, trusted }
    }

    pub fn on_frame(&mut self, frame: &Frame) -> NegotiationStep {
        self.step(frame).unwrap_or_else(|(code, message)| {
            self.state = ServerState::Over;
            let header = ResponseHeader { is_error: Some(true), ..response_header() };
            let status =
                ErrorStatusPb { message: message.clone(), code: Some(code.into()), ..Default::default() };
            NegotiationStep::Failed { send: encode(&header, &status), code, message }
        })
    }

    fn step(&mut self, frame: &Frame) -> Result<NegotiationStep, Rejection> {
        let Ok(header) = RequestHeader::decode(frame.header.clone()) else {
            return reject(RpcErrorCodePb::FatalInvalidRpcHeader, "the request header cannot be decoded");
        };
        match std::mem::replace(&mut self.state, ServerState::Over) {
            ServerState::Features => self.on_features(&negotiate_message(&header, frame)?),
            ServerState::Sasl => self.on_initiate(&negotiate_message(&header, frame)?),
            ServerState::Context(user) => on_context(&header, frame, user),
            ServerState::Over => reject(RpcErrorCodePb::FatalUnknown, "the negotiation is over"),
        }
    }

    fn on_features(&mut self, message: &NegotiatePb) -> Result<NegotiationStep, Rejection> {
        expect_step(message, NegotiateStep::Negotiate)?;
        if !self.trusted {
            let reason = "unencrypted connections from outside the trusted subnets are not allowed; \
                       add the client's network to --trusted_subnets";
            return reject(RpcErrorCodePb::FatalUnauthorized, reason);
        }
        let is_sasl = |offer: &AuthenticationTypePb| matches!(offer.r#type, Some(authn::Type::Sasl(_)));
        if !message.authn_types.is_empty() && !message.authn_types.iter().any(is_sasl) {
            let reason = "the client offers no SASL authentication, and this server has no other";
            return reject(RpcErrorCodePb::FatalUnauthorized, reason);
        }
        self.state = ServerState::Sasl;
        let reply = NegotiatePb {
            supported_features: vec![RpcFeatureFlag::ApplicationFeatureFlags.into()],
            sasl_mechanisms: vec![SaslMechanism { mechanism: PLAIN.to_string() }],
            authn_types: vec![sasl()],
            ..negotiate_step(NegotiateStep::Negotiate)
        };
        Ok(NegotiationStep::Continue(encode(&response_header(), &reply)))
    }

    fn on_initiate(&mut self, message: &NegotiatePb) -> Result<NegotiationStep, Rejection> {
        expect_step(message, NegotiateStep::SaslInitiate)?;
        let [chosen] = message.sasl_mechanisms.as_slice() else {
            let count = message.sasl_mechanisms.len();
            let reason = format!("SASL_INITIATE must name one mechanism, not {count}");
            return reject(RpcErrorCodePb::FatalUnauthorized, reason);
        };
        if chosen.mechanism != PLAIN {
            let reason = format!("SASL mechanism {:?} is not supported; use {PLAIN}", chosen.mechanism);
            return reject(RpcErrorCodePb::FatalUnauthorized, reason);
        }
        let user = plain_user(message.token.as_deref().unwrap_or_default())?;
        self.state = ServerState::Context(user);
        Ok(NegotiationStep::Continue(encode(&response_header(), &negotiate_step(NegotiateStep::SaslSuccess))))
    }
}

fn on_context(header: &RequestHeader, frame: &Frame, user: String) -> Result<NegotiationStep, Rejection> {
    if header.call_id != frame::CONTEXT_CALL_ID {
        let reason = format!("call id {} where the connection context was due", header.call_id);
        return reject(RpcErrorCodePb::FatalInvalidRpcHeader, reason);
    }
    if ConnectionContextPb::decode(frame.body.clone()).is_err() {
        return reject(RpcErrorCodePb::FatalDeserializingRequest, "the connection context cannot be decoded");
    }
    Ok(NegotiationStep::Done { send: Bytes::new(), user })
}

/// Returns the user in `authzid NUL authcid NUL password` (RFC 4616). Any user and any password are accepted.
fn plain_user(token: &[u8]) -> Result<String, Rejection> {
    let mut parts = token.split(|&byte| byte == 0);
    let user = match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(_), Some(user), Some(_), None) => std::str::from_utf8(user).ok(),
        _ => None,
    };
    match user {
        Some(user) if !user.is_empty() => Ok(user.to_string()),
        _ => reject(RpcErrorCodePb::FatalUnauthorized, "the PLAIN token names no user"),
    }
}

fn negotiate_message(header: &RequestHeader, frame: &Frame) -> Result<NegotiatePb, Rejection> {
    if header.call_id != frame::NEGOTIATION_CALL_ID {
        let reason = format!("call id {} during the negotiation", header.call_id);
        return reject(RpcErrorCodePb::FatalInvalidRpcHeader, reason);
    }
    let Ok(message) = NegotiatePb::decode(frame.body.clone()) else {
        let reason = "the negotiation message cannot be decoded";
        return reject(RpcErrorCodePb::FatalDeserializingRequest, reason);
    };
    Ok(message)
}

fn expect_step(message: &NegotiatePb, expected: NegotiateStep) -> Result<(), Rejection> {
    if message.step == i32::from(expected) {
        return Ok(());
    }
    let got = NegotiateStep::try_from(message.step).map_or("an unknown step", |step| step.as_str_name());
    reject(RpcErrorCodePb::FatalUnauthorized, format!("expected {}, got {got}", expected.as_str_name()))
}

fn negotiate_step(step: NegotiateStep) -> NegotiatePb {
    NegotiatePb { step: step.into(), ..Default::default() }
}

fn sasl() -> AuthenticationTypePb {
    AuthenticationTypePb { r#type: Some(authn::Type::Sasl(authn::Sasl {})) }
}

fn response_header() -> ResponseHeader {
    ResponseHeader { call_id: frame::NEGOTIATION_CALL_ID, ..Default::default() }
}

fn request_header(call_id: i32) -> RequestHeader {
    RequestHeader { call_id, ..Default::default() }
}

fn encode(header: &impl Message, message: &impl Message) -> Bytes {
    let mut out = BytesMut::new();
    frame::put_frame(header, message, &mut out);
    out.freeze()
}

/// Client side.
#[derive(Debug)]
pub struct ClientNegotiation {
    user: String,
    state: ClientState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientState {
    Features,
    Sasl,
    Over,
}

impl ClientNegotiation {
    pub fn new(user: &str) -> ClientNegotiation {
        ClientNegotiation { user: user.to_string(), state: ClientState::Features }
    }

    /// Returns the client's first bytes: preamble and NEGOTIATE.
    pub fn hello(&self) -> Bytes {
        let message = NegotiatePb {
            supported_features: vec![RpcFeatureFlag::ApplicationFeatureFlags.into()],
            authn_types: vec![sasl()],
            ..negotiate_step(NegotiateStep::Negotiate)
        };
        let mut out = BytesMut::from(PREAMBLE.as_slice());
        frame::put_frame(&request_header(frame::NEGOTIATION_CALL_ID), &message, &mut out);
        out.freeze()
    }

    pub fn on_frame(&mut self, frame: &Frame) -> NegotiationStep {
        self.step(frame).unwrap_or_else(|(code, message)| {
            self.state = ClientState::Over;
            NegotiationStep::Failed { send: Bytes::new(), code, message }
        })
    }

    fn step(&mut self, frame: &Frame) -> Result<NegotiationStep, Rejection> {
        let message = parse_reply(frame)?;
        match self.state {
            ClientState::Features => self.on_features(&message),
            ClientState::Sasl => {
                expect_step(&message, NegotiateStep::SaslSuccess)?;
                self.state = ClientState::Over;
                Ok(NegotiationStep::Done { send: self.context(), user: self.user.clone() })
            }
            ClientState::Over => reject(RpcErrorCodePb::FatalUnknown, "the negotiation is over"),
        }
    }

    fn on_features(&mut self, message: &NegotiatePb) -> Result<NegotiationStep, Rejection> {
        expect_step(message, NegotiateStep::Negotiate)?;
        if !message.sasl_mechanisms.iter().any(|offer| offer.mechanism == PLAIN) {
            let reason = "the server does not offer SASL PLAIN, the only mechanism this client has";
            return reject(RpcErrorCodePb::FatalUnauthorized, reason);
        }
        self.state = ClientState::Sasl;
        let initiate = NegotiatePb {
            token: Some(format!("\0{}\0", self.user).into()),
            sasl_mechanisms: vec![SaslMechanism { mechanism: PLAIN.to_string() }],
            ..negotiate_step(NegotiateStep::SaslInitiate)
        };
        Ok(NegotiationStep::Continue(encode(&request_header(frame::NEGOTIATION_CALL_ID), &initiate)))
    }

    fn context(&self) -> Bytes {
        let user = UserInformationPb { effective_user: None, real_user: self.user.clone() };
        let context = ConnectionContextPb { deprecated_user_info: Some(user), encoded_nonce: None };
        encode(&request_header(frame::CONTEXT_CALL_ID), &context)
    }
}

fn parse_reply(frame: &Frame) -> Result<NegotiatePb, Rejection> {
    let Ok(header) = ResponseHeader::decode(frame.header.clone()) else {
        return reject(RpcErrorCodePb::FatalInvalidRpcHeader, "the response header cannot be decoded");
    };
    if header.call_id != frame::NEGOTIATION_CALL_ID {
        let reason = format!("call id {} during the negotiation", header.call_id);
        return reject(RpcErrorCodePb::FatalInvalidRpcHeader, reason);
    }
    if header.is_error() {
        let status = ErrorStatusPb::decode(frame.body.clone()).unwrap_or_default();
        return Err((status.code(), status.message));
    }
    NegotiatePb::decode(frame.body.clone()).map_err(|error| {
        (
            RpcErrorCodePb::FatalDeserializingRequest,
            format!("the negotiation message cannot be decoded: {error}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subnets() {
        let private = Subnet::private();
        let trusted = |ip: &str| private.iter().any(|net| net.contains(ip.parse().expect("an address")));
        for ip in ["127.0.0.1", "10.255.0.1", "172.16.0.1", "172.31.255.255", "192.168.3.4", "::1", "fe80::1"]
        {
            assert!(trusted(ip), "{ip}");
        }
        for ip in ["128.0.0.1", "172.32.0.0", "8.8.8.8", "::2", "2001:db8::1", "::ffff:8.8.8.8"] {
            assert!(!trusted(ip), "{ip}");
        }
        assert!(trusted("::ffff:10.0.0.1"), "an IPv4 client of a dual-stack socket");
        let everywhere = Subnet::parse("0.0.0.0/0").expect("a subnet");
        assert!(everywhere.contains("8.8.8.8".parse().expect("an address")));
        for text in ["", "10.0.0.0", "10.0.0.0/33", "x/8", "::/129"] {
            assert!(Subnet::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn plain_tokens() {
        assert_eq!(plain_user(b"\0root\0").as_deref(), Ok("root"));
        assert_eq!(plain_user(b"other\0root\0secret").as_deref(), Ok("root"));
        for token in [b"".as_slice(), b"root", b"\0root", b"\0\0", b"\0a\0b\0", b"\0\xff\0"] {
            assert!(plain_user(token).is_err(), "{token:?}");
        }
    }
}
