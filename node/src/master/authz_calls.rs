//! Questions of calls about rights on tables, and the tokens that state them.

use engine::catalog::TableRef;
use engine::error::Error;

use super::authz::{self, PolicyAction, Requester, TableQuestion};
use super::proto::refusal_to_pb;
use super::service::{MasterErrorReply, MasterService, master_error, unavailable};
use nyala_common::rpc::Call;
use nyala_proto::kudu::master::master_error_pb::Code;
use nyala_proto::kudu::security::{SignedTokenPb, TablePrivilegePb};

type Result<T, E = MasterErrorReply> = std::result::Result<T, E>;

/// Returns the reply to a caller without the right, and notes it for the audit log.
pub(super) fn unauthorized(call: &Call) -> MasterErrorReply {
    call.note_denied("Unauthorized action");
    master_error(Code::NotAuthorized, &Error::not_authorized("Unauthorized action"))
}

impl MasterService {
    /// Returns the table, named so that it is still the same when a command runs, if the caller may do this with it.
    /// A right to change it is noted for the audit log.
    pub(super) async fn authorize(
        &self,
        call: &Call,
        table: TableRef,
        question: TableQuestion<'_>,
    ) -> Result<TableRef> {
        let sees = question == TableQuestion::Metadata && self.identity.access().is_privileged(&call.user);
        let note_right = || {
            if question.changes() {
                call.note_right();
            }
        };
        let Some(policy) = self.authorizer.policy(&call.user).filter(|_| !sees) else {
            note_right();
            return Ok(table);
        };
        let (named, meant) = self.read(move |catalog, _| Ok(authz::named_tables(catalog, &table))).await?;
        let allowed = |named: &authz::NamedTable| {
            let requester = Requester { user: &call.user, is_owner: named.owner == *call.user };
            authz::allows(&policy, requester, &named.name, question)
        };
        if !named.iter().all(allowed) {
            return Err(unauthorized(call));
        }
        // An unknown id names no table, and so asks for no right.
        if !named.is_empty() {
            note_right();
        }
        meant.map_err(|refusal| refusal_to_pb(&refusal))
    }

    /// Returns an error unless the caller may create a table with this name for this owner.
    pub(super) fn authorize_create(&self, call: &Call, name: &str, owner: Option<&str>) -> Result<()> {
        let requester = Requester { user: &call.user, is_owner: false };
        let for_another = owner.is_some_and(|owner| owner != &*call.user);
        let (action, delegate) = match for_another {
            true => (PolicyAction::All, true),
            false => (PolicyAction::Create, false),
        };
        let policy = self.authorizer.policy(&call.user);
        if policy.is_some_and(|policy| !policy.allows_database(requester, name, action, delegate)) {
            return Err(unauthorized(call));
        }
        call.note_right();
        Ok(())
    }

    /// Returns a token with the caller's privileges on a table; `None` if this cluster has none.
    pub(super) fn authz_token(
        &self,
        call: &Call,
        privilege: TablePrivilegePb,
    ) -> Result<Option<SignedTokenPb>> {
        if !self.authorizer.gives_tokens() || self.identity.settings().is_none() {
            return Ok(None);
        }
        let signed = self.secrets.authz_token(&call.user, privilege);
        let missing = || unavailable(&Error::not_ready("no token key can sign yet; retry"));
        signed.map(Some).ok_or_else(missing)
    }
}
