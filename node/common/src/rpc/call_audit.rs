//! Audit of calls: those of audited methods, and all that are denied.
//!
//! ```text
//!   call ──▶ access lists ──denied──▶ record
//!              └──▶ handler, which may note a denial ──▶ reply ──▶ record, if denied or audited
//! ```

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;

use super::{MethodInfo, Reply, RpcErrorCodePb, Service};
use crate::security::acl::MethodRole;
use crate::security::audit::{AuditEvent, AuditOutcome, AuditSink, CallNote};
use crate::security::{PeerIdentity, ServerSecurity};

/// A call that may have to be recorded.
pub(super) struct CallAudit {
    sink: Arc<dyn AuditSink>,
    service: Arc<dyn Service>,
    method: &'static MethodInfo,
    /// True if the call is recorded also if it is allowed.
    audited: bool,
    body: Bytes,
    peer: Arc<PeerIdentity>,
    remote: SocketAddr,
    pub(super) note: Arc<CallNote>,
}

impl CallAudit {
    /// Returns the audit of a call; `None` if the server has no audit log.
    pub(super) fn of(
        security: &ServerSecurity,
        service: &Arc<dyn Service>,
        method: &'static MethodInfo,
        body: &Bytes,
        (peer, remote): (&Arc<PeerIdentity>, SocketAddr),
    ) -> Option<CallAudit> {
        let sink = security.audit.clone()?;
        Some(CallAudit {
            sink,
            service: service.clone(),
            method,
            audited: is_audited(security, method, &peer.user),
            body: body.clone(),
            peer: peer.clone(),
            remote,
            note: Arc::default(),
        })
    }

    /// Returns the reply to a call that may not run because it could not be recorded.
    pub(super) fn refusal(&self) -> Option<Reply> {
        let reason = self.sink.refusal().filter(|_| self.audited)?;
        Some(Reply::too_busy(format!("{}: {reason}", self.method.name)))
    }

    /// Records a call that the access lists deny.
    pub(super) fn denied(self, reason: String) {
        self.record(AuditOutcome::Denied(reason));
    }

    /// Records a call with this reply, if it must be.
    pub(super) fn replied(self, reply: &Reply) {
        use RpcErrorCodePb::{ErrorInvalidAuthorizationToken, FatalUnauthorized};
        let noted = self.note.take();
        let outcome = match (noted, reply) {
            (Some(denied @ AuditOutcome::Denied(_)), _) => denied,
            (_, Reply::Err { code: FatalUnauthorized | ErrorInvalidAuthorizationToken, message, .. }) => {
                AuditOutcome::Denied(message.clone())
            }
            (_, Reply::Err { message, .. }) => AuditOutcome::Failed(message.clone()),
            (noted, Reply::Ok { .. } | Reply::Withheld { .. }) => noted.unwrap_or(AuditOutcome::Allowed),
        };
        if self.audited || matches!(outcome, AuditOutcome::Denied(_)) {
            self.record(outcome);
        }
    }

    fn record(self, outcome: AuditOutcome) {
        self.sink.record(AuditEvent {
            user: Some(self.peer.user.clone()),
            authn: Some(self.peer.method),
            remote: self.remote,
            action: format!("{}.{}", self.service.name(), self.method.name),
            subject: self.service.subject(self.method.name, &self.body),
            outcome,
        });
    }
}

/// Returns true if an allowed call is recorded. Servers call one another all the time: those calls are not.
fn is_audited(security: &ServerSecurity, method: &MethodInfo, user: &str) -> bool {
    let between_servers = matches!(method.role, MethodRole::Service | MethodRole::ServiceOnly);
    method.audited && !(between_servers && security.access.service.has(user))
}
