//! Client side of a negotiation.

use bytes::{Bytes, BytesMut};
use prost::Message;

use super::gssapi::{GSSAPI, GssapiClient};
use super::message::{
    AuthnType, NegotiationStep, PLAIN, PREAMBLE, Rejection, encode, expect_step, handshake_bytes,
    handshake_error, handshake_message, negotiate_step, reject, request_header, unauthorized,
};
use crate::rpc::RpcErrorCodePb;
use crate::rpc::frame::{self, Frame};
use crate::security::RpcCaller;
use crate::security::pki::certificate_user;
use crate::security::tls::{TlsFlight, TlsSession};
use nyala_proto::kudu::rpc::negotiate_pb::{NegotiateStep, SaslMechanism};
use nyala_proto::kudu::rpc::{
    ConnectionContextPb, ErrorStatusPb, NegotiatePb, ResponseHeader, RpcFeatureFlag, UserInformationPb,
};
use nyala_proto::kudu::security::{JwtRawPb, SignedTokenPb};

/// Client side.
pub struct ClientNegotiation {
    caller: RpcCaller,
    /// True if the server is on this host.
    loopback: bool,
    /// Token to present, as it was when the negotiation began.
    token: Option<SignedTokenPb>,
    /// Host of the server, as the caller names it: a part of the server's principal.
    host: String,
    state: ClientState,
    session: Option<TlsSession>,
    /// True if this side records spans, and offers to send them.
    offers_spans: bool,
    spans_agreed: bool,
    /// Context with the server, if SASL is done with a ticket.
    gssapi: Option<Box<GssapiClient>>,
    /// Hash of the server's certificate in TLS, for SASL with a ticket.
    end_point: Option<Vec<u8>>,
}

enum ClientState {
    Features,
    Tls { session: Box<TlsSession>, chosen: AuthnType, authentication_only: bool },
    Authentication(AuthnType),
    Over,
}

impl ClientNegotiation {
    /// Starts a negotiation without TLS as `user`.
    pub fn new(user: &str) -> ClientNegotiation {
        ClientNegotiation::with(&user.into(), false)
    }

    /// Starts a negotiation with all that `caller` has. `loopback` is true if the server is on this host.
    pub fn with(caller: &RpcCaller, loopback: bool) -> ClientNegotiation {
        let token = caller.security().and_then(|security| security.token());
        ClientNegotiation {
            caller: caller.clone(),
            loopback,
            token,
            host: String::new(),
            state: ClientState::Features,
            session: None,
            offers_spans: false,
            spans_agreed: false,
            gssapi: None,
            end_point: None,
        }
    }

    /// Sets the name of the server's host.
    #[must_use]
    pub fn for_host(mut self, host: &str) -> ClientNegotiation {
        self.host = host.to_string();
        self
    }

    /// Returns true if the next frame may make this side wait for files or for a KDC.
    pub fn may_block(&self) -> bool {
        match self.state {
            ClientState::Features => {
                self.caller.security().is_some_and(|security| security.kerberos().is_some())
            }
            _ => self.gssapi.is_some(),
        }
    }

    /// Offers to send spans. Without it the messages are Kudu's.
    #[must_use]
    pub fn offering_spans(mut self, offers: bool) -> ClientNegotiation {
        self.offers_spans = offers;
        self
    }

    /// Returns true if headers of calls may carry spans.
    pub fn spans_agreed(&self) -> bool {
        self.spans_agreed
    }

    /// Returns the client's first bytes: preamble and NEGOTIATE.
    pub fn hello(&self) -> Bytes {
        let mut supported_features = vec![RpcFeatureFlag::ApplicationFeatureFlags.into()];
        if self.has_tls() {
            supported_features.push(RpcFeatureFlag::Tls.into());
            let authentication_only = self.loopback && !self.encrypts_loopback();
            if authentication_only {
                supported_features.push(RpcFeatureFlag::TlsAuthenticationOnly.into());
            }
        }
        if self.offers_spans {
            supported_features.push(RpcFeatureFlag::NyalaSpans.into());
        }
        let message = NegotiatePb {
            supported_features,
            authn_types: self.offers().into_iter().map(AuthnType::to_pb).collect(),
            ..negotiate_step(NegotiateStep::Negotiate)
        };
        let mut out = BytesMut::from(PREAMBLE.as_slice());
        frame::put_frame(&request_header(frame::NEGOTIATION_CALL_ID), &message, &mut out);
        out.freeze()
    }

    /// Returns the session for [`NegotiationStep::StartTls`], once.
    pub fn take_session(&mut self) -> Option<TlsSession> {
        self.session.take()
    }

    fn has_tls(&self) -> bool {
        self.caller.security().is_some_and(|security| security.has_tls())
    }

    fn encrypts_loopback(&self) -> bool {
        self.caller.security().is_some_and(|security| security.encrypts_loopback())
    }

    /// Returns the offered means of authentication. A proof is offered only if the server can be verified.
    fn offers(&self) -> Vec<AuthnType> {
        let mut offers = vec![AuthnType::Sasl];
        let Some(security) = self.caller.security().filter(|security| security.has_tls()) else {
            return offers;
        };
        if !security.tls.can_verify() {
            return offers;
        }
        offers.extend(security.tls.proves_user().then_some(AuthnType::Certificate));
        offers.extend(self.token.is_some().then_some(AuthnType::Token));
        offers.extend(security.jwt().is_some().then_some(AuthnType::Jwt));
        offers
    }

    pub fn on_frame(&mut self, frame: &Frame) -> NegotiationStep {
        self.step(frame).unwrap_or_else(|(code, message)| {
            self.state = ClientState::Over;
            NegotiationStep::Failed { send: Bytes::new(), code, message }
        })
    }

    fn step(&mut self, frame: &Frame) -> Result<NegotiationStep, Rejection> {
        let message = parse_reply(frame)?;
        match std::mem::replace(&mut self.state, ClientState::Over) {
            ClientState::Features => self.on_features(&message),
            ClientState::Tls { session, chosen, authentication_only } => {
                self.on_handshake(&message, session, chosen, authentication_only)
            }
            ClientState::Authentication(_) if self.gssapi.is_some() => self.on_gssapi(&message),
            ClientState::Authentication(chosen) => {
                expect_step(&message, success_step(chosen))?;
                Ok(self.done(None))
            }
            ClientState::Over => reject(RpcErrorCodePb::FatalUnknown, "the negotiation is over"),
        }
    }

    fn on_features(&mut self, message: &NegotiatePb) -> Result<NegotiationStep, Rejection> {
        expect_step(message, NegotiateStep::Negotiate)?;
        let has = |flag: RpcFeatureFlag| message.supported_features.contains(&flag.into());
        let tls = self.has_tls() && has(RpcFeatureFlag::Tls);
        self.spans_agreed = self.offers_spans && has(RpcFeatureFlag::NyalaSpans);
        let security = self.caller.security().cloned();
        let security = security.as_deref();
        if !tls && security.is_some_and(|security| security.requires_tls(self.loopback)) {
            return unauthorized("server does not support required TLS encryption");
        }
        let chosen = match message.authn_types.first() {
            Some(pb) => AuthnType::from_pb(pb),
            None => Some(AuthnType::Sasl),
        };
        let Some(chosen) = chosen.filter(|chosen| self.offers().contains(chosen)) else {
            return unauthorized("server chose an authentication type that the client did not offer");
        };
        match chosen {
            AuthnType::Sasl => self.choose_mechanism(message)?,
            // A server without TLS must not get the secret.
            _ if !tls => return unauthorized(&format!("server chose {} without TLS", chosen.name())),
            _ => {}
        }
        if !tls {
            return self.authenticate(chosen);
        }
        let authentication_only =
            self.loopback && !self.encrypts_loopback() && has(RpcFeatureFlag::TlsAuthenticationOnly);
        let verified =
            chosen != AuthnType::Sasl || security.is_some_and(|security| security.verifies_server());
        let session = security.and_then(|security| security.tls.client_session(verified));
        let Some(mut session) = session else {
            return Err(handshake_error("no TLS certificates are trusted by the client"));
        };
        let records = session.first_flight();
        self.state = ClientState::Tls { session: Box::new(session), chosen, authentication_only };
        Ok(NegotiationStep::Continue(handshake(records)))
    }

    /// Chooses GSSAPI if this client has a ticket, or checks that PLAIN is possible and enough for it.
    fn choose_mechanism(&mut self, message: &NegotiatePb) -> Result<(), Rejection> {
        let offers = |name: &str| message.sasl_mechanisms.iter().any(|offer| offer.mechanism == name);
        let (gssapi, plain) = (offers(GSSAPI), offers(PLAIN));
        let mut why = String::new();
        let kerberos = self.caller.security().and_then(|security| security.kerberos());
        if let Some(kerberos) = kerberos.filter(|_| gssapi) {
            match kerberos.library.initiate(&kerberos.credentials, &kerberos.service, &self.host) {
                Ok(context) => {
                    self.gssapi = Some(Box::new(GssapiClient::new(context)));
                    return Ok(());
                }
                Err(fault) => why = format!(" ({fault})"),
            }
        }
        let requires = self.caller.security().is_some_and(|security| security.requires_authentication());
        if !plain || (gssapi && requires) {
            return unauthorized(&format!(
                "server requires authentication, but client does not have Kerberos credentials available{why}"
            ));
        }
        if self.caller.security().is_some_and(|security| security.requires_authentication()) {
            return unauthorized("client requires authentication, but server does not have Kerberos enabled");
        }
        Ok(())
    }

    fn on_handshake(
        &mut self,
        message: &NegotiatePb,
        mut session: Box<TlsSession>,
        chosen: AuthnType,
        authentication_only: bool,
    ) -> Result<NegotiationStep, Rejection> {
        let flight = session.on_flight(handshake_bytes(message)?).map_err(|why| handshake_error(&why))?;
        let records = match flight {
            TlsFlight::Continue(records) => {
                self.state = ClientState::Tls { session, chosen, authentication_only };
                return Ok(NegotiationStep::Continue(handshake(records)));
            }
            TlsFlight::Done(records) => records,
        };
        // TLS 1.2 ends with the server's message and gets no reply.
        let send = if records.is_empty() { Bytes::new() } else { handshake(records) };
        match self.gssapi {
            // The ticket's service proves who the server is, whatever the certificate names.
            Some(_) => {
                self.end_point = Some(session.server_end_point().map_err(|why| handshake_error(&why))?)
            }
            None => self.check_server_user(&session)?,
        }
        let next = self.authenticate(chosen)?;
        if authentication_only {
            return Ok(before(&send, next));
        }
        self.session = Some(*session);
        Ok(NegotiationStep::StartTls { send, then: Box::new(next) })
    }

    /// Fails unless the server's certificate, whose chain is verified, names the user that servers act as. Only servers
    /// demand that: the operator's CA may sign certificates of users and of other programs, too.
    fn check_server_user(&self, session: &TlsSession) -> Result<(), Rejection> {
        let Some(expected) = self.caller.security().and_then(|security| security.server_user()) else {
            return Ok(());
        };
        let found = session.peer_certificate().and_then(|der| certificate_user(&der));
        if found.as_deref() == Some(expected) {
            return Ok(());
        }
        let found = found.map_or("no user".to_string(), |user| format!("user {user:?}"));
        unauthorized(&format!(
            "server's certificate: does not name the user that servers act as (found {found}, expected \
             {expected:?}); give every server a certificate with UID={expected}"
        ))
    }

    /// Returns the step that proves who the client is.
    fn authenticate(&mut self, chosen: AuthnType) -> Result<NegotiationStep, Rejection> {
        let message = match chosen {
            AuthnType::Sasl if self.gssapi.is_some() => {
                let token = self.gssapi_token(b"")?;
                NegotiatePb {
                    token: Some(token.into()),
                    sasl_mechanisms: vec![SaslMechanism { mechanism: GSSAPI.to_string() }],
                    ..negotiate_step(NegotiateStep::SaslInitiate)
                }
            }
            AuthnType::Sasl => NegotiatePb {
                token: Some(format!("\0{}\0", self.caller.user()).into()),
                sasl_mechanisms: vec![SaslMechanism { mechanism: PLAIN.to_string() }],
                ..negotiate_step(NegotiateStep::SaslInitiate)
            },
            AuthnType::Token => {
                NegotiatePb { authn_token: self.token.take(), ..negotiate_step(NegotiateStep::TokenExchange) }
            }
            AuthnType::Jwt => {
                let jwt = self.caller.security().and_then(|security| security.jwt());
                let jwt_data = jwt.map(|jwt| Bytes::copy_from_slice(jwt.expose().as_bytes()));
                let jwt_raw = Some(JwtRawPb { jwt_data });
                NegotiatePb { jwt_raw, ..negotiate_step(NegotiateStep::JwtExchange) }
            }
            // The handshake was the proof.
            AuthnType::Certificate => return Ok(self.done(None)),
        };
        self.state = ClientState::Authentication(chosen);
        Ok(NegotiationStep::Continue(encode(&request_header(frame::NEGOTIATION_CALL_ID), &message)))
    }

    /// Returns the context's token for a challenge of the server.
    fn gssapi_token(&mut self, challenge: &[u8]) -> Result<Vec<u8>, Rejection> {
        let service = self.caller.security().and_then(|security| security.kerberos());
        let service = service.map(|kerberos| kerberos.service.clone()).unwrap_or_default();
        let Some(gssapi) = &mut self.gssapi else { return unauthorized("GSSAPI: no context") };
        let token = gssapi.on_challenge(challenge);
        token.or_else(|why| unauthorized(&format!("GSSAPI with {service}/{}: {why}", self.host)))
    }

    fn on_gssapi(&mut self, message: &NegotiatePb) -> Result<NegotiationStep, Rejection> {
        if message.step == i32::from(NegotiateStep::SaslChallenge) {
            let token = self.gssapi_token(message.token.as_deref().unwrap_or_default())?;
            let response =
                NegotiatePb { token: Some(token.into()), ..negotiate_step(NegotiateStep::SaslResponse) };
            self.state = ClientState::Authentication(AuthnType::Sasl);
            let bytes = encode(&request_header(frame::NEGOTIATION_CALL_ID), &response);
            return Ok(NegotiationStep::Continue(bytes));
        }
        expect_step(message, NegotiateStep::SaslSuccess)?;
        let Some(gssapi) = &mut self.gssapi else { return unauthorized("GSSAPI: no context") };
        let (bindings, nonce) = (message.channel_bindings.as_deref(), message.nonce.as_deref());
        let proof = gssapi.on_success(self.end_point.as_deref(), bindings, nonce);
        let nonce = proof.or_else(|why| unauthorized(&format!("GSSAPI: {why}")))?;
        Ok(self.done(Some(nonce)))
    }

    fn done(&mut self, encoded_nonce: Option<Bytes>) -> NegotiationStep {
        self.state = ClientState::Over;
        let user = self.caller.user().to_string();
        let info = UserInformationPb { effective_user: None, real_user: user.clone() };
        let context = ConnectionContextPb { deprecated_user_info: Some(info), encoded_nonce };
        NegotiationStep::Done { send: encode(&request_header(frame::CONTEXT_CALL_ID), &context), user }
    }
}

/// Returns `step` with `first` sent before its own bytes.
fn before(first: &Bytes, step: NegotiationStep) -> NegotiationStep {
    let joined = |bytes: Bytes| Bytes::from([first.as_ref(), bytes.as_ref()].concat());
    match step {
        NegotiationStep::Continue(bytes) => NegotiationStep::Continue(joined(bytes)),
        NegotiationStep::Done { send, user } => NegotiationStep::Done { send: joined(send), user },
        other => other,
    }
}

/// Returns the step of the server that ends an authentication.
fn success_step(chosen: AuthnType) -> NegotiateStep {
    match chosen {
        AuthnType::Sasl | AuthnType::Certificate => NegotiateStep::SaslSuccess,
        AuthnType::Token => NegotiateStep::TokenExchange,
        AuthnType::Jwt => NegotiateStep::JwtExchange,
    }
}

fn handshake(records: Vec<u8>) -> Bytes {
    encode(&request_header(frame::NEGOTIATION_CALL_ID), &handshake_message(records))
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
