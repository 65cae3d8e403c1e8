//! Audit events: who did what, from where, and if it was allowed. Pure.
//!
//! *Not here:* the choice of calls ([`crate::rpc`]), and the files (`node::server::audit`).

use std::net::SocketAddr;
use std::sync::Arc;

use engine::sync::Mutex;

use super::AuthnMethod;

/// Result of an audited action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditOutcome {
    Allowed,
    /// Allowed, and failed for another reason.
    Failed(String),
    Denied(String),
}

/// One audited action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEvent {
    /// `None` if the peer has no name: its authentication failed.
    pub user: Option<Arc<str>>,
    /// Proof of the name.
    pub authn: Option<AuthnMethod>,
    pub remote: SocketAddr,
    /// Service and method, for example `kudu.master.MasterService.CreateTable`; `authentication` for a failed one.
    pub action: String,
    /// Table, tablet, server or flag of the action.
    pub subject: Option<String>,
    pub outcome: AuditOutcome,
}

/// Outcome that a handler notes about its call, beside the reply.
#[derive(Debug, Default)]
pub struct CallNote(Mutex<Option<AuditOutcome>>);

impl CallNote {
    /// Sets the outcome. A denial stays one.
    pub fn set(&self, outcome: AuditOutcome) {
        let mut noted = self.0.lock();
        if !matches!(*noted, Some(AuditOutcome::Denied(_))) {
            *noted = Some(outcome);
        }
    }

    /// Returns the outcome, if the handler set one.
    pub fn take(&self) -> Option<AuditOutcome> {
        self.0.lock().take()
    }
}

/// Receiver of audit events.
pub trait AuditSink: Send + Sync {
    /// Takes an event. Never waits.
    fn record(&self, event: AuditEvent);

    /// Returns the reason if no audited call may run now, because it could not be recorded.
    fn refusal(&self) -> Option<String>;
}
