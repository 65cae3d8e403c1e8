//! Server side of a negotiation with a Kerberos ticket.

use std::sync::Arc;

use nyala_proto::kudu::rpc::NegotiatePb;
use nyala_proto::kudu::rpc::negotiate_pb::NegotiateStep;

use super::gssapi::{GssapiReply, GssapiServer};
use super::message::{
    NegotiationStep, Rejection, encode, expect_step, negotiate_step, response_header, unauthorized,
};
use super::server::{ServerNegotiation, ServerState};
use crate::env::kerberos::ServerKerberos;
use crate::security::{AuthnMethod, SecurityLevel};

impl ServerNegotiation {
    /// Returns the keys for tickets, if tickets are accepted.
    pub(super) fn kerberos(&self) -> Option<&Arc<ServerKerberos>> {
        let disabled = self.config.authentication == SecurityLevel::Disabled;
        self.config.security.kerberos.as_ref().filter(|_| !disabled)
    }

    /// Begins a context with the client's ticket.
    pub(super) fn on_ticket(&mut self, message: &NegotiatePb) -> Result<NegotiationStep, Rejection> {
        let Some(kerberos) = self.kerberos().cloned() else {
            return unauthorized("GSSAPI: this server has no keytab");
        };
        let context = kerberos.library.accept(&kerberos.keytab).or_else(failed)?;
        let token = message.token.as_deref().unwrap_or_default();
        self.on_gssapi_token(Box::new(GssapiServer::new(context)), token)
    }

    pub(super) fn on_sasl_response(
        &mut self,
        message: &NegotiatePb,
        gssapi: Box<GssapiServer>,
    ) -> Result<NegotiationStep, Rejection> {
        expect_step(message, NegotiateStep::SaslResponse)?;
        match &message.token {
            Some(token) => self.on_gssapi_token(gssapi, token),
            None => unauthorized("no token in SASL_RESPONSE from client"),
        }
    }

    fn on_gssapi_token(
        &mut self,
        mut gssapi: Box<GssapiServer>,
        token: &[u8],
    ) -> Result<NegotiationStep, Rejection> {
        let reply = match gssapi.on_token(token).or_else(failed)? {
            GssapiReply::Challenge(challenge) => {
                self.state = ServerState::Gssapi(gssapi);
                NegotiatePb { token: Some(challenge.into()), ..negotiate_step(NegotiateStep::SaslChallenge) }
            }
            GssapiReply::Success(principal) => self.on_principal(gssapi, &principal)?,
        };
        Ok(NegotiationStep::Continue(encode(&response_header(), &reply)))
    }

    /// Returns the hash of the certificate as it is sent; for tests it may be wrong or missing.
    fn with_faults(&self, hash: &[u8]) -> Option<Vec<u8>> {
        let faults = &self.kerberos()?.faults;
        let mut hash = hash.to_vec();
        let draw = self.config.nonce.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        if faults.spoils(draw) {
            hash[0] = hash[0].wrapping_add(1);
        }
        faults.sends().then_some(hash)
    }

    /// Takes the client's principal as its identity. Returns the success with what the client must check.
    fn on_principal(
        &mut self,
        mut gssapi: Box<GssapiServer>,
        principal: &str,
    ) -> Result<NegotiatePb, Rejection> {
        let user = self.kerberos().and_then(|kerberos| kerberos.user(principal));
        let Some(user) = user else {
            return unauthorized(&format!("GSSAPI: principal {:?} is no user", principal));
        };
        self.peer = Some(self.peer(&user, Some(principal.into()), AuthnMethod::Kerberos)?);
        let channel_bindings = match &self.end_point {
            None => None,
            Some(Ok(hash)) => {
                self.with_faults(hash).map(|hash| gssapi.bindings(&hash)).transpose().or_else(failed)?
            }
            Some(Err(why)) => return unauthorized(&format!("GSSAPI: no channel bindings: {why}")),
        };
        self.state = ServerState::Context(Some(gssapi));
        Ok(NegotiatePb {
            nonce: Some(self.config.nonce.to_vec().into()),
            channel_bindings,
            ..negotiate_step(NegotiateStep::SaslSuccess)
        })
    }
}

/// Rejects with the library's reason.
fn failed<T>(why: String) -> Result<T, Rejection> {
    unauthorized(&format!("GSSAPI: {why}"))
}
