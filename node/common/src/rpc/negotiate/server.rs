//! Server side of a negotiation.

use std::sync::Arc;

use bytes::Bytes;
use engine::time::WallTime;
use prost::Message;

use super::gssapi::{GSSAPI, GssapiServer, NONCE_BYTES};
use super::message::{
    AuthnType, NegotiationStep, PLAIN, Rejection, encode, expect_step, handshake_bytes, handshake_error,
    handshake_message, negotiate_step, reject, response_header, unauthorized,
};
use crate::rpc::RpcErrorCodePb;
use crate::rpc::frame::{self, Frame};
use crate::security::pki::certificate_user;
use crate::security::tls::{TlsFlight, TlsSession};
use crate::security::{AuthnMethod, PeerIdentity, SecurityLevel, ServerSecurity, TokenRejection};
use nyala_proto::kudu::rpc::negotiate_pb::{NegotiateStep, SaslMechanism};
use nyala_proto::kudu::rpc::{
    ConnectionContextPb, ErrorStatusPb, NegotiatePb, RequestHeader, ResponseHeader, RpcFeatureFlag,
};

/// Maximum length in bytes of a user's name and of a principal, which log lines and audit events repeat.
const NAME_BYTES_MAX: usize = 256;
/// Bytes of an unknown mechanism that the reply repeats: clients choose names.
const SHOWN_BYTES_MAX: usize = 64;

/// Facts about one connection, and the server's rules.
#[derive(Clone)]
pub struct ServerNegotiationConfig {
    /// True if the client's network is one of the trusted subnets.
    pub trusted: bool,
    /// True if the client is on this host.
    pub loopback: bool,
    /// True if connections within this host are encrypted like others.
    pub encrypt_loopback: bool,
    pub authentication: SecurityLevel,
    pub encryption: SecurityLevel,
    /// True if this server records spans: then clients may send theirs.
    pub spans: bool,
    /// Time at which tokens must be valid.
    pub now: WallTime,
    /// Random bytes that a client with a ticket returns.
    pub nonce: [u8; NONCE_BYTES],
    pub security: ServerSecurity,
}

/// Server side, after the preamble.
pub struct ServerNegotiation {
    pub(super) config: ServerNegotiationConfig,
    pub(super) state: ServerState,
    chosen: Option<AuthnType>,
    /// Mechanism of SASL that the client uses.
    mechanism: Option<&'static str>,
    /// True once TLS has protected or authenticated the connection.
    tls_done: bool,
    session: Option<TlsSession>,
    /// True if the client may send the spans of its calls.
    spans_agreed: bool,
    /// Hash of the certificate of the TLS session, if there is one.
    pub(super) end_point: Option<Result<Vec<u8>, String>>,
    pub(super) peer: Option<PeerIdentity>,
}

pub(super) enum ServerState {
    Features,
    Tls {
        session: Box<TlsSession>,
        authentication_only: bool,
    },
    Authentication,
    /// A token of a Kerberos client is due.
    Gssapi(Box<GssapiServer>),
    /// The connection context is due; after a ticket with the nonce.
    Context(Option<Box<GssapiServer>>),
    Over,
}

impl ServerNegotiation {
    /// Starts a negotiation without TLS and tokens. `trusted` is true if the client's network is one of the trusted
    /// subnets.
    pub fn new(trusted: bool) -> ServerNegotiation {
        ServerNegotiation::with(ServerNegotiationConfig {
            trusted,
            loopback: false,
            encrypt_loopback: false,
            authentication: SecurityLevel::Optional,
            encryption: SecurityLevel::Optional,
            spans: false,
            now: WallTime::default(),
            nonce: [0; NONCE_BYTES],
            security: ServerSecurity::default(),
        })
    }

    pub fn with(config: ServerNegotiationConfig) -> ServerNegotiation {
        let (state, chosen) = (ServerState::Features, None);
        let (mechanism, end_point) = (None, None);
        ServerNegotiation {
            config,
            state,
            chosen,
            mechanism,
            tls_done: false,
            session: None,
            end_point,
            peer: None,
            spans_agreed: false,
        }
    }

    /// Returns the name of the agreed means of authentication, as Kudu's log has it.
    pub fn authn_name(&self) -> Option<&'static str> {
        self.chosen.map(AuthnType::name)
    }

    /// Returns the mechanism of SASL by which the client has named or proved its user.
    pub fn sasl_mechanism(&self) -> Option<&'static str> {
        self.mechanism.filter(|_| self.peer.is_some())
    }

    /// Returns true if the next frame may make this side wait for files.
    pub fn may_block(&self) -> bool {
        let sasl = self.chosen == Some(AuthnType::Sasl) && self.config.security.kerberos.is_some();
        sasl && matches!(self.state, ServerState::Authentication | ServerState::Gssapi(_))
    }

    /// Returns true if headers of calls may carry spans.
    pub fn spans_agreed(&self) -> bool {
        self.spans_agreed
    }

    /// Returns the session for [`NegotiationStep::StartTls`], once.
    pub fn take_session(&mut self) -> Option<TlsSession> {
        self.session.take()
    }

    /// Returns the client's identity after [`NegotiationStep::Done`].
    pub fn into_peer(self) -> Option<PeerIdentity> {
        self.peer
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
            ServerState::Tls { session, authentication_only } => {
                self.on_handshake(&negotiate_message(&header, frame)?, session, authentication_only)
            }
            ServerState::Authentication => self.on_authentication(&negotiate_message(&header, frame)?),
            ServerState::Gssapi(gssapi) => self.on_sasl_response(&negotiate_message(&header, frame)?, gssapi),
            ServerState::Context(gssapi) => self.on_context(&header, frame, gssapi),
            ServerState::Over => reject(RpcErrorCodePb::FatalUnknown, "the negotiation is over"),
        }
    }

    fn on_features(&mut self, message: &NegotiatePb) -> Result<NegotiationStep, Rejection> {
        expect_step(message, NegotiateStep::Negotiate)?;
        let has = |flag: RpcFeatureFlag| message.supported_features.contains(&flag.into());
        let client_tls = has(RpcFeatureFlag::Tls);
        let server_tls = self.config.has_tls();
        if self.config.encryption == SecurityLevel::Required && !(client_tls && server_tls) {
            return unauthorized("client does not support required TLS encryption");
        }
        let chosen = self.choose(message)?;
        if chosen != AuthnType::Sasl && !client_tls {
            return unauthorized(&format!("{} authentication requires TLS", chosen.name()));
        }
        self.chosen = Some(chosen);
        let plain_loopback = self.config.loopback && !self.config.encrypt_loopback;
        let mut supported_features = vec![RpcFeatureFlag::ApplicationFeatureFlags.into()];
        if server_tls {
            supported_features.push(RpcFeatureFlag::Tls.into());
            if plain_loopback {
                supported_features.push(RpcFeatureFlag::TlsAuthenticationOnly.into());
            }
        }
        // Only a client that has it gets this flag: for all others the reply is Kudu's.
        self.spans_agreed = self.config.spans && has(RpcFeatureFlag::NyalaSpans);
        if self.spans_agreed {
            supported_features.push(RpcFeatureFlag::NyalaSpans.into());
        }
        self.state = if client_tls && server_tls {
            let authentication_only = plain_loopback && has(RpcFeatureFlag::TlsAuthenticationOnly);
            let session = self.config.session(chosen == AuthnType::Certificate)?;
            ServerState::Tls { session: Box::new(session), authentication_only }
        } else {
            ServerState::Authentication
        };
        let reply = NegotiatePb {
            supported_features,
            sasl_mechanisms: if chosen == AuthnType::Sasl { self.mechanisms() } else { Vec::new() },
            authn_types: vec![chosen.to_pb()],
            ..negotiate_step(NegotiateStep::Negotiate)
        };
        Ok(NegotiationStep::Continue(encode(&response_header(), &reply)))
    }

    /// Chooses the strongest means of authentication that both sides have.
    fn choose(&self, message: &NegotiatePb) -> Result<AuthnType, Rejection> {
        let offers: Vec<AuthnType> = message.authn_types.iter().filter_map(AuthnType::from_pb).collect();
        let security = &self.config.security;
        // Only a client that can verify this server may send it a secret.
        let verifiable = self.config.has_tls() && security.tls.as_ref().is_some_and(|tls| tls.is_ca_signed());
        let possible = |offer: AuthnType| match offer {
            // With a keytab, a ticket proves to the caller what a certificate without a user does not.
            AuthnType::Certificate => security.tls.as_ref().is_some_and(|tls| {
                verifiable && tls.can_verify() && (self.kerberos().is_none() || tls.proves_user())
            }),
            AuthnType::Token => {
                verifiable && security.tokens.as_ref().is_some_and(|tokens| tokens.has_keys())
            }
            AuthnType::Jwt => verifiable && security.jwt.is_some(),
            AuthnType::Sasl => true,
        };
        let order = [AuthnType::Certificate, AuthnType::Token, AuthnType::Jwt, AuthnType::Sasl];
        match order.into_iter().find(|offer| offers.contains(offer) && possible(*offer)) {
            Some(chosen) => Ok(chosen),
            None if message.authn_types.is_empty() => Ok(AuthnType::Sasl),
            None => reject(
                RpcErrorCodePb::FatalUnauthorized,
                "Not implemented: no mutually supported authentication types",
            ),
        }
    }

    /// Returns the SASL mechanisms to offer: PLAIN only if clients need not prove who they are.
    fn mechanisms(&self) -> Vec<SaslMechanism> {
        let plain = self.config.authentication != SecurityLevel::Required;
        let gssapi = self.kerberos().map(|_| GSSAPI);
        let names = gssapi.into_iter().chain(plain.then_some(PLAIN));
        names.map(|name| SaslMechanism { mechanism: name.to_string() }).collect()
    }

    fn on_handshake(
        &mut self,
        message: &NegotiatePb,
        mut session: Box<TlsSession>,
        authentication_only: bool,
    ) -> Result<NegotiationStep, Rejection> {
        let flight = session.on_flight(handshake_bytes(message)?);
        let reply = |records| encode(&response_header(), &handshake_message(records));
        let records = match flight.map_err(|why| handshake_error(&why))? {
            TlsFlight::Continue(records) => {
                self.state = ServerState::Tls { session, authentication_only };
                return Ok(NegotiationStep::Continue(reply(records)));
            }
            TlsFlight::Done(records) => records,
        };
        self.tls_done = true;
        self.state = ServerState::Authentication;
        if self.chosen == Some(AuthnType::Certificate) {
            self.peer = Some(self.certified_peer(&session)?);
            self.state = ServerState::Context(None);
        }
        if self.chosen == Some(AuthnType::Sasl) && self.kerberos().is_some() {
            self.end_point = Some(session.server_end_point());
        }
        // TLS 1.3 ends with the client's message and gets no reply.
        let send = if records.is_empty() { Bytes::new() } else { reply(records) };
        if authentication_only {
            return Ok(NegotiationStep::Continue(send));
        }
        self.session = Some(*session);
        Ok(NegotiationStep::StartTls { send, then: Box::new(NegotiationStep::Continue(Bytes::new())) })
    }

    fn certified_peer(&self, session: &TlsSession) -> Result<PeerIdentity, Rejection> {
        let invalid = |why: &str| {
            let code = RpcErrorCodePb::FatalInvalidAuthenticationToken;
            (code, format!("Not authorized: {why}"))
        };
        let der = session.peer_certificate().ok_or_else(|| invalid("no client certificate"))?;
        let no_user = "did not find expected X509 userId extension in cert";
        let user = certificate_user(&der).ok_or_else(|| invalid(no_user))?;
        self.peer(&user, None, AuthnMethod::Certificate)
    }

    /// Returns the client's identity. Rejects names of more than [`NAME_BYTES_MAX`].
    pub(super) fn peer(
        &self,
        user: &str,
        principal: Option<Arc<str>>,
        method: AuthnMethod,
    ) -> Result<PeerIdentity, Rejection> {
        let bytes = principal.as_ref().map_or(0, |principal| principal.len()).max(user.len());
        if bytes > NAME_BYTES_MAX {
            return unauthorized(&format!(
                "the user's name is too long ({bytes} bytes, limit {NAME_BYTES_MAX}); use a shorter one"
            ));
        }
        let confidential = self.tls_done || self.config.loopback && !self.config.encrypt_loopback;
        Ok(PeerIdentity { user: user.into(), principal, method, confidential })
    }

    fn on_authentication(&mut self, message: &NegotiatePb) -> Result<NegotiationStep, Rejection> {
        if !self.tls_done && !self.config.trusted {
            return unauthorized(
                "unencrypted connections from publicly routable IPs are prohibited; \
                 add the client's network to --trusted_subnets, or let the client use TLS",
            );
        }
        let reply = match self.chosen.unwrap_or(AuthnType::Sasl) {
            AuthnType::Sasl => {
                self.mechanism = Some(self.mechanism_of(message)?);
                match self.mechanism {
                    Some(GSSAPI) => return self.on_ticket(message),
                    _ => self.on_plain(message)?,
                }
            }
            AuthnType::Token => self.on_token(message)?,
            AuthnType::Jwt => self.on_jwt(message)?,
            // Its proof is the handshake; this state is never reached.
            AuthnType::Certificate => return unauthorized("unexpected step after a certificate"),
        };
        self.state = ServerState::Context(None);
        Ok(NegotiationStep::Continue(encode(&response_header(), &negotiate_step(reply))))
    }

    /// Returns the SASL mechanism that the client chose among those of the offer.
    fn mechanism_of(&self, message: &NegotiatePb) -> Result<&'static str, Rejection> {
        expect_step(message, NegotiateStep::SaslInitiate)?;
        let [chosen] = message.sasl_mechanisms.as_slice() else {
            let count = message.sasl_mechanisms.len();
            return unauthorized(&format!("SASL_INITIATE must name one mechanism, not {count}"));
        };
        if !self.mechanisms().iter().any(|offer| offer.mechanism == chosen.mechanism) {
            let name = &chosen.mechanism;
            let name = name[..name.floor_char_boundary(SHOWN_BYTES_MAX)].escape_debug();
            return reject(
                RpcErrorCodePb::FatalUnauthorized,
                format!("Runtime error: SASL(-4): no mechanism available: {name}"),
            );
        }
        Ok(if chosen.mechanism == GSSAPI { GSSAPI } else { PLAIN })
    }

    fn on_plain(&mut self, message: &NegotiatePb) -> Result<NegotiateStep, Rejection> {
        if !self.config.trusted {
            return unauthorized(
                "unauthenticated connections from publicly routable IPs are prohibited; \
                 add the client's network to --trusted_subnets, or let the client authenticate",
            );
        }
        let user = plain_user(message.token.as_deref().unwrap_or_default())?;
        self.peer = Some(self.peer(&user, None, AuthnMethod::Plain)?);
        Ok(NegotiateStep::SaslSuccess)
    }

    fn on_token(&mut self, message: &NegotiatePb) -> Result<NegotiateStep, Rejection> {
        expect_step(message, NegotiateStep::TokenExchange)?;
        let (Some(token), Some(tokens)) = (&message.authn_token, &self.config.security.tokens) else {
            return unauthorized("no authn_token in TOKEN_EXCHANGE step");
        };
        let TokenRejection { code, message } = match tokens.verify(token, self.config.now) {
            Ok(identity) => {
                let principal = identity.principal.map(Arc::from);
                self.peer = Some(self.peer(&identity.user, principal, AuthnMethod::Token)?);
                return Ok(NegotiateStep::TokenExchange);
            }
            Err(rejection) => rejection,
        };
        reject(code, format!("Not authorized: {message}"))
    }

    fn on_jwt(&mut self, message: &NegotiatePb) -> Result<NegotiateStep, Rejection> {
        expect_step(message, NegotiateStep::JwtExchange)?;
        let invalid = |why: &str| {
            let code = RpcErrorCodePb::FatalInvalidJwt;
            (code, format!("Not authorized: JWT verification failed: {why}"))
        };
        let jwt = message.jwt_raw.as_ref().and_then(|raw| raw.jwt_data.as_deref());
        let (Some(jwt), Some(verifier)) = (jwt, &self.config.security.jwt) else {
            return Err(invalid("no jwt_raw in JWT_EXCHANGE step"));
        };
        let subject = verifier.verify(jwt, self.config.now).map_err(|why| invalid(&why))?;
        self.peer = Some(self.peer(&subject, None, AuthnMethod::Jwt)?);
        Ok(NegotiateStep::JwtExchange)
    }

    fn on_context(
        &mut self,
        header: &RequestHeader,
        frame: &Frame,
        gssapi: Option<Box<GssapiServer>>,
    ) -> Result<NegotiationStep, Rejection> {
        if header.call_id != frame::CONTEXT_CALL_ID {
            let reason = format!("call id {} where the connection context was due", header.call_id);
            return reject(RpcErrorCodePb::FatalInvalidRpcHeader, reason);
        }
        let Ok(context) = ConnectionContextPb::decode(frame.body.clone()) else {
            return reject(
                RpcErrorCodePb::FatalDeserializingRequest,
                "the connection context cannot be decoded",
            );
        };
        if let Some(mut gssapi) = gssapi {
            let checked = gssapi.check_nonce(context.encoded_nonce.as_deref(), &self.config.nonce);
            checked.or_else(|why| unauthorized(&why))?;
        }
        let user = self.peer.as_ref().map(|peer| peer.user.to_string()).unwrap_or_default();
        Ok(NegotiationStep::Done { send: Bytes::new(), user })
    }
}

impl ServerNegotiationConfig {
    /// Returns true if this server lists TLS.
    fn has_tls(&self) -> bool {
        let has_certificate = self.security.tls.as_ref().is_some_and(|tls| tls.own().is_some());
        has_certificate && self.encryption != SecurityLevel::Disabled
    }

    fn session(&self, mutual: bool) -> Result<TlsSession, Rejection> {
        let session = self.security.tls.as_ref().and_then(|tls| tls.server_session(mutual));
        session.ok_or_else(|| handshake_error("the server has no certificate"))
    }
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
        _ => unauthorized("the PLAIN token names no user"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_tokens() {
        assert_eq!(plain_user(b"\0root\0").as_deref(), Ok("root"));
        assert_eq!(plain_user(b"other\0root\0secret").as_deref(), Ok("root"));
        for token in [b"".as_slice(), b"root", b"\0root", b"\0\0", b"\0a\0b\0", b"\0\xff\0"] {
            assert!(plain_user(token).is_err(), "{token:?}");
        }
    }

    #[test]
    fn a_long_name_is_refused_whatever_proves_it() {
        let server = ServerNegotiation::new(true);
        let (name, long) = ("n".repeat(NAME_BYTES_MAX), "n".repeat(NAME_BYTES_MAX + 1));
        let refused = "Not authorized: the user's name is too long (257 bytes, limit 256); use a shorter one";
        for method in [AuthnMethod::Plain, AuthnMethod::Token, AuthnMethod::Jwt, AuthnMethod::Kerberos] {
            let peer = |user: &str, principal: &str| server.peer(user, Some(principal.into()), method);
            assert!(peer(&name, &name).is_ok());
            for (user, principal) in [(&long, &name), (&name, &long)] {
                let (code, message) = peer(user, principal).expect_err("the name is too long");
                assert_eq!((code, message.as_str()), (RpcErrorCodePb::FatalUnauthorized, refused));
            }
        }
    }
}
