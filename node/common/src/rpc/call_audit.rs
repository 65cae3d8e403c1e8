//! Audit of calls: those of audited methods, and all that are denied.
//!
//! ```text
//!   call ──▶ access lists ──denied──▶ record
//!              └──▶ handler, which may note a denial ──▶ reply ──▶ record, if denied or audited
//! ```
//!
//! - The access lists let every user call a method of clients. So a call of one has proved a right only if its handler
//!   noted that: a failure before that is recorded among the denials, which any peer can cause.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;

use super::{MethodInfo, Reply, RpcErrorCodePb, Service};
use crate::security::acl::MethodRole;
use crate::security::audit::{AuditEvent, AuditOutcome, AuditSink, CallFacts, CallNote};
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
        let outcome = outcome(self.note.take(), self.method.role, reply);
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

/// Returns the outcome of a call of a method of this role.
fn outcome(noted: CallFacts, role: MethodRole, reply: &Reply) -> AuditOutcome {
    use RpcErrorCodePb::{ErrorInvalidAuthorizationToken, FatalUnauthorized};
    let has_right = noted.has_right || !is_for_clients(role);
    let failed = |reason: String| match has_right {
        true => AuditOutcome::Failed(reason),
        false => AuditOutcome::FailedUnproved(reason),
    };
    match (noted.outcome, reply) {
        (Some(denied @ AuditOutcome::Denied(_)), _) => denied,
        (_, Reply::Err { code: FatalUnauthorized | ErrorInvalidAuthorizationToken, message, .. }) => {
            AuditOutcome::Denied(message.clone())
        }
        (_, Reply::Err { message, .. }) => failed(message.clone()),
        (Some(AuditOutcome::Failed(reason)), Reply::Ok { .. } | Reply::Withheld { .. }) => failed(reason),
        (noted, Reply::Ok { .. } | Reply::Withheld { .. }) => noted.unwrap_or(AuditOutcome::Allowed),
    }
}

fn is_for_clients(role: MethodRole) -> bool {
    matches!(role, MethodRole::Client | MethodRole::ClientOrService | MethodRole::ClientUnlessFineGrained)
}

/// Returns true if an allowed call is recorded. Servers call one another all the time: those calls are not.
fn is_audited(security: &ServerSecurity, method: &MethodInfo, user: &str) -> bool {
    let between_servers = matches!(method.role, MethodRole::Service | MethodRole::ServiceOnly);
    method.audited && !(between_servers && security.access.service.has(user))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replied(role: MethodRole, reply: &Reply, note: impl FnOnce(&CallNote)) -> AuditOutcome {
        let noted = CallNote::default();
        note(&noted);
        outcome(noted.take(), role, reply)
    }

    #[test]
    fn a_failure_is_one_of_an_action_only_after_a_right_was_found() {
        use MethodRole::{Client, ClientOrService, Superuser};
        let why = || "no such table".to_string();
        let ok = Reply::message(&());
        let malformed = Reply::error(RpcErrorCodePb::ErrorInvalidRequest, why());
        let failed = |note: &CallNote| note.set(AuditOutcome::Failed(why()));
        let failed_with_right = |note: &CallNote| {
            note.set_right();
            note.set(AuditOutcome::Failed(why()));
        };
        for role in [Client, ClientOrService] {
            assert_eq!(replied(role, &ok, failed), AuditOutcome::FailedUnproved(why()));
            assert_eq!(replied(role, &malformed, |_| ()), AuditOutcome::FailedUnproved(why()));
            assert_eq!(replied(role, &ok, failed_with_right), AuditOutcome::Failed(why()));
            assert_eq!(replied(role, &malformed, CallNote::set_right), AuditOutcome::Failed(why()));
            assert_eq!(replied(role, &ok, CallNote::set_right), AuditOutcome::Allowed);
        }
        // The access lists have found the right.
        assert_eq!(replied(Superuser, &ok, failed), AuditOutcome::Failed(why()));
        assert_eq!(replied(Superuser, &malformed, |_| ()), AuditOutcome::Failed(why()));
    }

    #[test]
    fn a_denial_stays_one_whatever_follows() {
        let denied = AuditOutcome::Denied("no right".to_string());
        let then_failed = |note: &CallNote| {
            note.set(denied.clone());
            note.set_right();
            note.set(AuditOutcome::Failed("no such table".to_string()));
        };
        let reply = Reply::message(&());
        assert_eq!(replied(MethodRole::Client, &reply, then_failed), denied);
        let refused = Reply::error(RpcErrorCodePb::FatalUnauthorized, "no right");
        assert_eq!(replied(MethodRole::Superuser, &refused, |_| ()), denied);
    }
}
