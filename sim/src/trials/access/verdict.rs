//! Outcomes of calls, and what they should be.

use nyala_common::rpc::RpcErrorCodePb;
use nyala_common::rpc::client::{RpcError, RpcResponse};

use super::rights::ReadShape;
use super::tokens::TokenKind;

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Done,
    NoRight,
    NoToken,
    /// The server does not know the token's key yet: the caller tries again.
    Unavailable,
    /// The call has a form that no server supports any more.
    NotSupported,
}

/// Start of the error for a range predicate of the old form.
const OLD_FORM: &str = "range predicates in their old form";

/// Returns what a reply says; an error that is none of access is a mistake of the trial or the server.
pub(super) fn verdict<R>(
    reply: Result<RpcResponse<R>, RpcError>,
    error: impl Fn(&R) -> Option<String>,
) -> Result<Verdict, String> {
    match reply {
        Ok(reply) => match error(&reply.message) {
            None => Ok(Verdict::Done),
            Some(error) if error.contains(OLD_FORM) => Ok(Verdict::NotSupported),
            Some(error) => Err(error),
        },
        Err(RpcError::Remote { code: RpcErrorCodePb::FatalUnauthorized, .. }) => Ok(Verdict::NoRight),
        Err(RpcError::Remote { code: RpcErrorCodePb::ErrorInvalidAuthorizationToken, .. }) => {
            Ok(Verdict::NoToken)
        }
        Err(RpcError::Remote { code: RpcErrorCodePb::ErrorUnavailable, .. }) => Ok(Verdict::Unavailable),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the verdict on a read whose caller may read.
pub(super) fn allowed(shape: &ReadShape) -> Verdict {
    if shape.old_form.is_empty() { Verdict::Done } else { Verdict::NotSupported }
}

/// Compares the outcome of a call with the documents; `done` is the outcome of one that is allowed.
pub(super) fn expect(
    kind: TokenKind,
    allowed: bool,
    done: Verdict,
    told: Verdict,
    what: impl Fn() -> String,
) -> Result<(), String> {
    let want = match (kind, allowed) {
        (TokenKind::Valid, true) => done,
        (TokenKind::Valid, false) => Verdict::NoRight,
        (TokenKind::OfUnknownKey, _) => Verdict::Unavailable,
        _ => Verdict::NoToken,
    };
    match told == want {
        true => Ok(()),
        false => Err(format!("{} and a token that is {kind:?}: {told:?} instead of {want:?}", what())),
    }
}
