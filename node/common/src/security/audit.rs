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
    /// Failed before a right of the caller was found: any peer can cause it.
    FailedUnproved(String),
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

/// Facts about a call that are not in its reply.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct CallFacts {
    /// Outcome, if the handler set one.
    pub outcome: Option<AuditOutcome>,
    /// True if the caller has the right that the call needs.
    pub has_right: bool,
}

/// Facts that a handler notes about its call, beside the reply.
#[derive(Debug, Default)]
pub struct CallNote(Mutex<CallFacts>);

impl CallNote {
    /// Sets the outcome. A denial stays one.
    pub fn set(&self, outcome: AuditOutcome) {
        let mut noted = self.0.lock();
        if !matches!(noted.outcome, Some(AuditOutcome::Denied(_))) {
            noted.outcome = Some(outcome);
        }
    }

    /// Notes that the caller has the right that the call needs.
    pub fn set_right(&self) {
        self.0.lock().has_right = true;
    }

    /// Returns what the handler noted.
    pub fn take(&self) -> CallFacts {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Receiver of audit events.
pub trait AuditSink: Send + Sync {
    /// Takes an event. Never waits.
    fn record(&self, event: AuditEvent);

    /// Returns the reason if no audited call may run now, because it could not be recorded.
    fn refusal(&self) -> Option<String>;
}
