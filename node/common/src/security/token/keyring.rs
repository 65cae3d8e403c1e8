//! Token keys of a running server, shared by its negotiations and by what imports keys.

use engine::sync::Mutex;
use std::sync::Arc;

use engine::time::WallTime;

use super::key::TokenKeyError;
use super::verifier::{TokenFault, TokenFaultKind, TokenVerifier};
use crate::security::{AuthnTokenVerifier, TokenIdentity, TokenRejection};
use nyala_proto::kudu::rpc::error_status_pb::RpcErrorCodePb;
use nyala_proto::kudu::security::{AuthzTokenPb, SignedTokenPb, TokenSigningPublicKeyPb};

/// Public keys that a server knows, replaceable while connections are accepted. Tokens are verified outside the lock:
/// each read and write of a server that controls access has one.
#[derive(Debug, Default)]
pub struct TokenKeyring(Mutex<Arc<TokenVerifier>>);

impl TokenKeyring {
    /// Adds public keys from a master and returns the rejected ones. A known number keeps its key; keys that have
    /// expired by `now` make way for others.
    pub fn import(&self, keys: &[TokenSigningPublicKeyPb], now: WallTime) -> Vec<TokenKeyError> {
        Arc::make_mut(&mut self.0.lock()).import(keys, seconds(now))
    }

    /// Returns the highest number of a known key, -1 if none is known.
    pub fn latest(&self) -> i64 {
        self.verifier().latest()
    }

    /// Checks a token and returns its content if it is an authorization token, `None` if it is a valid one of another
    /// kind.
    pub fn verify_authz(
        &self,
        token: &SignedTokenPb,
        now: WallTime,
    ) -> Result<Option<AuthzTokenPb>, TokenFault> {
        self.verifier().verify_authz(token, seconds(now))
    }

    fn verifier(&self) -> Arc<TokenVerifier> {
        self.0.lock().clone()
    }
}

impl AuthnTokenVerifier for TokenKeyring {
    fn has_keys(&self) -> bool {
        self.latest() >= 0
    }

    fn verify(&self, token: &SignedTokenPb, now: WallTime) -> Result<TokenIdentity, TokenRejection> {
        let user = self.verifier().verify_authn(token, seconds(now));
        user.map(|user| TokenIdentity { user, principal: None }).map_err(|fault| {
            let code = match fault.kind() {
                TokenFaultKind::Invalid => RpcErrorCodePb::FatalInvalidAuthenticationToken,
                TokenFaultKind::Unavailable => RpcErrorCodePb::ErrorUnavailable,
                TokenFaultKind::Unauthorized => RpcErrorCodePb::FatalUnauthorized,
            };
            TokenRejection::new(code, fault.text())
        })
    }
}

/// Returns a time in whole seconds since 1970, as tokens count.
pub fn seconds(time: WallTime) -> i64 {
    i64::try_from(time.micros / 1_000_000).unwrap_or(i64::MAX)
}
