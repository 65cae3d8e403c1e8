//! SASL mechanism GSSAPI (RFC 4752) inside a negotiation, both sides: the tokens of a Kerberos context, the agreement
//! on a layer, and what is protected by it.
//!
//! ```text
//!   SASL_INITIATE   ticket                        ──▶
//!                                                 ◀──  SASL_CHALLENGE   reply of the context
//!   SASL_RESPONSE   empty                         ──▶
//!                                                 ◀──  SASL_CHALLENGE   wrap(offered layers, buffer size)
//!   SASL_RESPONSE   wrap(chosen layer, size, -)   ──▶
//!                                                 ◀──  SASL_SUCCESS     nonce, wrap(hash of the certificate)
//!   ConnectionContext   wrap(nonce)               ──▶
//! ```
//!
//! - The only layer is integrity, and only the two messages of the last lines use it: TLS protects the rest.
//! - Invariant: a client is done only after it has compared the hash with the certificate that it saw in TLS, so no
//!   third party is between the two ends. The nonce shows the server that the client's messages are no replay.

use bytes::Bytes;

use crate::env::kerberos::{KerberosContext, KerberosStep};

pub(super) const GSSAPI: &str = "GSSAPI";
/// Layer of RFC 4752 that protects against changes.
const INTEGRITY: u8 = 2;
/// The server's offer: integrity only, and messages of at most 1 KiB.
const OFFER: [u8; 4] = [INTEGRITY, 0, 4, 0];
/// The client's choice: integrity, and messages of at most 64 KiB.
const CHOICE: [u8; 4] = [INTEGRITY, 1, 0, 0];
/// Length of the server's random bytes that a client returns protected.
pub(super) const NONCE_BYTES: usize = 16;

/// Server side, up to the choice of a layer.
pub(super) struct GssapiServer {
    context: Box<dyn KerberosContext>,
    state: ServerState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ServerState {
    /// A token of the context is due.
    Context,
    /// The context is complete; an empty response is due.
    Complete,
    /// The client's choice of a layer is due.
    Offered,
    Over,
}

/// Reply of a server to a token.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GssapiReply {
    Challenge(Vec<u8>),
    /// The client is this principal.
    Success(String),
}

impl GssapiServer {
    pub(super) fn new(context: Box<dyn KerberosContext>) -> GssapiServer {
        GssapiServer { context, state: ServerState::Context }
    }

    pub(super) fn on_token(&mut self, token: &[u8]) -> Result<GssapiReply, String> {
        match std::mem::replace(&mut self.state, ServerState::Over) {
            ServerState::Context => {
                let KerberosStep { token, complete } = self.context.step(token)?;
                if complete && token.is_empty() {
                    return self.offer();
                }
                self.state = if complete { ServerState::Complete } else { ServerState::Context };
                Ok(GssapiReply::Challenge(token))
            }
            ServerState::Complete if token.is_empty() => self.offer(),
            ServerState::Complete => Err("a token after the end of the context".to_string()),
            ServerState::Offered => {
                let choice = self.context.unwrap(token)?;
                let client = self.context.client()?;
                check_choice(&choice, &client)?;
                Ok(GssapiReply::Success(client))
            }
            ServerState::Over => Err("a token after the end".to_string()),
        }
    }

    fn offer(&mut self) -> Result<GssapiReply, String> {
        self.state = ServerState::Offered;
        self.context.wrap(&OFFER).map(GssapiReply::Challenge)
    }

    /// Returns the protected hash of the certificate, as a message carries it.
    pub(super) fn bindings(&mut self, hash: &[u8]) -> Result<Bytes, String> {
        self.context.wrap(hash).map(|wrapped| with_length(&wrapped))
    }

    /// Checks the nonce that the client returned.
    pub(super) fn check_nonce(&mut self, encoded: Option<&[u8]>, nonce: &[u8]) -> Result<(), String> {
        let encoded = encoded.ok_or("ConnectionContextPB wrapped nonce missing")?;
        let returned = self.context.unwrap(without_length(encoded)?)?;
        if returned == nonce { Ok(()) } else { Err("nonce mismatch".to_string()) }
    }
}

/// Checks the layer that a client chose, and that it does not want to act as another principal.
fn check_choice(choice: &[u8], client: &str) -> Result<(), String> {
    let [layer, _, _, _, other @ ..] = choice else {
        return Err("the choice of a layer is cut off".to_string());
    };
    if *layer != INTEGRITY {
        return Err(format!("the client chose layer {layer}, which was not offered"));
    }
    if !other.is_empty() && other != client.as_bytes() {
        return Err("the client wants to act as another principal".to_string());
    }
    Ok(())
}

/// Client side.
pub(super) struct GssapiClient {
    context: Box<dyn KerberosContext>,
    state: ClientState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ClientState {
    Context,
    /// The server's offer of layers is due.
    Complete,
    /// The server's success is due.
    Chosen,
}

impl GssapiClient {
    pub(super) fn new(context: Box<dyn KerberosContext>) -> GssapiClient {
        GssapiClient { context, state: ClientState::Context }
    }

    /// Returns the token for a challenge; the first is for none.
    pub(super) fn on_challenge(&mut self, challenge: &[u8]) -> Result<Vec<u8>, String> {
        match self.state {
            ClientState::Context => {
                let KerberosStep { token, complete } = self.context.step(challenge)?;
                if complete {
                    self.state = ClientState::Complete;
                }
                Ok(token)
            }
            ClientState::Complete => {
                let offer = self.context.unwrap(challenge)?;
                if offer.len() != OFFER.len() || offer[0] & INTEGRITY == 0 {
                    return Err("the server does not offer protection against changes".to_string());
                }
                self.state = ClientState::Chosen;
                self.context.wrap(&CHOICE)
            }
            ClientState::Chosen => Err("a challenge after the end".to_string()),
        }
    }

    /// Checks the server's success and returns the protected nonce. `hash` is that of the certificate in TLS, if there
    /// is TLS.
    pub(super) fn on_success(
        &mut self,
        hash: Option<&[u8]>,
        bindings: Option<&[u8]>,
        nonce: Option<&[u8]>,
    ) -> Result<Bytes, String> {
        if self.state != ClientState::Chosen {
            return Err("the server ended the authentication too early".to_string());
        }
        if let Some(hash) = hash {
            let bindings = bindings.ok_or("no channel bindings provided by server")?;
            if self.context.unwrap(without_length(bindings)?)? != hash {
                return Err(
                    "channel bindings do not match: another party is inside the connection".to_string()
                );
            }
        }
        let nonce = nonce.ok_or("no nonce provided by server")?;
        self.context.wrap(nonce).map(|wrapped| with_length(&wrapped))
    }
}

fn with_length(bytes: &[u8]) -> Bytes {
    let length = u32::try_from(bytes.len()).expect("a hash or a nonce is short");
    [&length.to_be_bytes(), bytes].concat().into()
}

fn without_length(bytes: &[u8]) -> Result<&[u8], String> {
    match bytes.split_first_chunk() {
        Some((length, rest)) if u32::from_be_bytes(*length) as usize == rest.len() => Ok(rest),
        _ => Err("the length of a protected message is wrong".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::kerberos::{Kerberos, KerberosCredentials};
    use crate::env::kerberos_double::KerberosDouble;

    fn pair() -> (GssapiClient, GssapiServer) {
        let double = KerberosDouble { principal: Some("ann@R".to_string()) };
        let client = double.initiate(&KerberosCredentials::Cache, "kudu", "h").expect("a ticket");
        (GssapiClient::new(client), GssapiServer::new(double.accept("").expect("keys")))
    }

    /// Runs both sides up to the server's success.
    fn agree(client: &mut GssapiClient, server: &mut GssapiServer) -> String {
        let mut token = client.on_challenge(b"").expect("a ticket");
        loop {
            match server.on_token(&token).expect("it is right") {
                GssapiReply::Challenge(challenge) => {
                    token = client.on_challenge(&challenge).expect("it is right");
                }
                GssapiReply::Success(principal) => return principal,
            }
        }
    }

    #[test]
    fn both_sides_agree_and_check_each_other() {
        let (mut client, mut server) = pair();
        assert_eq!(agree(&mut client, &mut server), "ann@R");
        let bindings = server.bindings(b"hash").expect("it wraps");
        let nonce = client.on_success(Some(b"hash"), Some(&bindings), Some(b"nonce")).expect("they match");
        assert_eq!(server.check_nonce(Some(&nonce), b"nonce"), Ok(()));
        assert!(server.on_token(b"").is_err(), "the end is final");
    }

    #[test]
    fn a_client_refuses_a_server_that_skips_or_changes_the_bindings() {
        let fault = |hash: &[u8], drop: bool| {
            let (mut client, mut server) = pair();
            agree(&mut client, &mut server);
            let bindings = server.bindings(hash).expect("it wraps");
            let bindings = (!drop).then_some(bindings.as_ref());
            client.on_success(Some(b"hash"), bindings, Some(b"nonce")).expect_err("refused")
        };
        assert_eq!(fault(b"hash", true), "no channel bindings provided by server");
        assert!(fault(b"hasi", false).contains("channel bindings do not match"));
        let (mut client, _) = pair();
        client.on_challenge(b"").expect("a ticket");
        let early = client.on_success(None, None, Some(b"nonce")).expect_err("refused");
        assert_eq!(early, "the server ended the authentication too early");
    }

    #[test]
    fn a_server_refuses_a_replayed_or_missing_nonce() {
        let (mut client, mut server) = pair();
        agree(&mut client, &mut server);
        let nonce = client.on_success(None, None, Some(b"old")).expect("it wraps");
        assert_eq!(server.check_nonce(Some(&nonce), b"new"), Err("nonce mismatch".to_string()));
        assert!(server.check_nonce(None, b"new").is_err());
        assert!(server.check_nonce(Some(&nonce[..3]), b"new").is_err());
    }

    #[test]
    fn another_layer_and_another_principal_are_refused() {
        assert_eq!(check_choice(&[2, 0, 0, 9], "ann@R"), Ok(()));
        assert_eq!(check_choice(b"\x02\0\0\x09ann@R", "ann@R"), Ok(()));
        for choice in [b"\x02\0\0".as_slice(), b"\x01\0\0\x09", b"\x06\0\0\x09", b"\x02\0\0\x09eve@R"] {
            assert!(check_choice(choice, "ann@R").is_err(), "{choice:?}");
        }
    }
}
