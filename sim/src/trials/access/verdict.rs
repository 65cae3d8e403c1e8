//! Outcomes of calls, and what they should be.

use nyala_common::rpc::RpcErrorCodePb;
use nyala_common::rpc::client::{RpcError, RpcResponse};

use super::tokens::TokenKind;

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Done,
    NoRight,
    NoToken,
}

/// Returns what a reply says; an error that is none of access is a mistake of the trial or the server.
pub(super) fn verdict<R>(
    reply: Result<RpcResponse<R>, RpcError>,
    error: impl Fn(&R) -> Option<String>,
) -> Result<Verdict, String> {
    match reply {
        Ok(reply) => error(&reply.message).map_or(Ok(Verdict::Done), Err),
        Err(RpcError::Remote { code: RpcErrorCodePb::FatalUnauthorized, .. }) => Ok(Verdict::NoRight),
        Err(RpcError::Remote { code: RpcErrorCodePb::ErrorInvalidAuthorizationToken, .. }) => {
            Ok(Verdict::NoToken)
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Compares the outcome of a call with the documents.
pub(super) fn expect(
    kind: TokenKind,
    allowed: bool,
    told: Verdict,
    what: impl Fn() -> String,
) -> Result<(), String> {
    let want = match (kind, allowed) {
        (TokenKind::Valid, true) => Verdict::Done,
        (TokenKind::Valid, false) => Verdict::NoRight,
        _ => Verdict::NoToken,
    };
    match told == want {
        true => Ok(()),
        false => Err(format!("{} and a token that is {kind:?}: {told:?} instead of {want:?}", what())),
    }
}
