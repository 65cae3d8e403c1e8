//! Fine-grained access: the authorization token of a call, and what its privileges allow.
//!
//! ```text
//!   token ──▶ signature, expiry, key ──▶ the caller's? ──▶ of the tablet's table? ──▶ columns, kinds of rows
//!                   └── 17, or 7 ◀────────────┴─────────────────┘ the client gets a new token     └── 15: final
//! ```
//!
//! - Invariant: privileges are of column ids, checked against the schema by which the scan reads. So a renamed column
//!   opens no other one.
//! - A scanner that is open needs no token any more: it belongs to its user.
//!
//! *Not here:* who gets which privileges (`master::authz`), the signatures (`nyala_common::security::token`).

use engine::error::Result;
use engine::ids::TableId;
use engine::schema::row_ops::{ClientColumn, RowOpKind, RowOpLimits, RowOpsReader};
use engine::schema::{ColumnSchema, DataType, Schema};

use super::server::TabletServer;
use nyala_common::rpc::{Call, Reply, RpcErrorCodePb};
use nyala_common::security::acl::MethodRole;
use nyala_common::security::token::{TokenFault, TokenFaultKind};
use nyala_proto::kudu::security::{AuthzTokenPb, SignedTokenPb, TablePrivilegePb};
use nyala_proto::kudu::tserver::{NewScanRequestPb, SplitKeyRangeRequestPb};
use nyala_proto::kudu::{ColumnSchemaPb, OrderMode};

/// Access of one caller to one table.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum TableAccess {
    /// Everything: tablet servers do not check, or the caller may do this without a token.
    Full,
    Limited(TablePrivilegePb),
}

/// Returns the access that the token of a call gives.
pub(super) fn access(
    server: &TabletServer,
    call: &Call,
    token: Option<&SignedTokenPb>,
) -> Result<TableAccess, Reply> {
    if !server.identity.access().fine_grained {
        return Ok(TableAccess::Full);
    }
    let token = token.ok_or_else(|| invalid("no authorization token presented"))?;
    let verified = server.identity.keyring.verify_authz(token, server.env.now().wall);
    let privilege = privilege(verified, &call.user)?;
    if server.runtime_flags.rejects_token(&server.env) {
        return Err(invalid("INJECTED FAILURE"));
    }
    Ok(TableAccess::Limited(privilege))
}

/// Returns the access of a Checksum call: superusers, whose tools have no tokens, need none.
pub(super) fn checksum_access(
    server: &TabletServer,
    call: &Call,
    token: Option<&SignedTokenPb>,
) -> Result<TableAccess, Reply> {
    match server.identity.access().allows(MethodRole::Superuser, &call.user) {
        true => Ok(TableAccess::Full),
        false => access(server, call, token),
    }
}

/// Returns the privileges in a verified token of the caller.
fn privilege(
    verified: Result<Option<AuthzTokenPb>, TokenFault>,
    user: &str,
) -> Result<TablePrivilegePb, Reply> {
    let token = verified.map_err(|fault| {
        let code = match fault.kind() {
            TokenFaultKind::Invalid => RpcErrorCodePb::ErrorInvalidAuthorizationToken,
            TokenFaultKind::Unavailable => RpcErrorCodePb::ErrorUnavailable,
            TokenFaultKind::Unauthorized => RpcErrorCodePb::FatalUnauthorized,
        };
        let text = fault.text();
        Reply::error(code, format!("Not authorized: authz token verification failure: {text}"))
    })?;
    let own = token.filter(|token| token.username.as_deref() == Some(user));
    let privilege = own.and_then(|token| token.table_privilege);
    privilege.ok_or_else(|| invalid("invalid authorization token presented"))
}

/// Returns the reply that makes clients get a new token.
fn invalid(text: &str) -> Reply {
    Reply::error(RpcErrorCodePb::ErrorInvalidAuthorizationToken, format!("Not authorized: {text}"))
}

/// Returns the reply for a right that the caller does not have.
fn denied(action: &str) -> Reply {
    Reply::error(RpcErrorCodePb::FatalUnauthorized, format!("Not authorized: not authorized to {action}"))
}

/// Columns that a read touches.
struct TouchedColumns<'a> {
    projected: &'a [ColumnSchemaPb],
    /// Names of columns with predicates.
    filtered: Vec<&'a str>,
    /// True if the read depends on the primary key.
    keys: bool,
}

impl TouchedColumns<'_> {
    /// Returns true if the rows themselves, or a virtual column, tell about every column.
    fn all(&self) -> bool {
        self.projected.is_empty()
            || self.projected.iter().any(|column| column.r#type == DataType::IsDeleted as i32)
    }
}

impl TableAccess {
    /// Returns an error reply if the token is of another table.
    pub(super) fn check_table(&self, table: TableId) -> Result<(), Reply> {
        match self {
            TableAccess::Limited(privilege) if privilege.table_id() != table.to_string() => {
                Err(invalid("authorization token is for the wrong table ID"))
            }
            _ => Ok(()),
        }
    }

    /// Returns an error reply if the scan touches a column that the caller may not read; `method` is in its text.
    pub(super) fn check_scan(
        &self,
        new: &NewScanRequestPb,
        schema: &Schema,
        method: &str,
    ) -> Result<(), Reply> {
        let given = |key: &Option<bytes::Bytes>| key.as_ref().is_some_and(|key| !key.is_empty());
        // The empty text is a key, after which a scan can continue.
        let bounded =
            given(&new.start_primary_key) || given(&new.stop_primary_key) || new.last_primary_key.is_some();
        let predicates = new.column_predicates.iter().map(|predicate| predicate.column());
        let old = new.deprecated_range_predicates.iter().map(|predicate| predicate.column.name.as_str());
        let touched = TouchedColumns {
            projected: &new.projected_columns,
            filtered: predicates.chain(old).collect(),
            keys: new.order_mode() == OrderMode::Ordered || bounded,
        };
        self.check_read(&touched, schema, method)
    }

    pub(super) fn check_split(&self, request: &SplitKeyRangeRequestPb, schema: &Schema) -> Result<(), Reply> {
        let given = |key: &Option<bytes::Bytes>| key.as_ref().is_some_and(|key| !key.is_empty());
        let keys = given(&request.start_primary_key) || given(&request.stop_primary_key);
        let touched = TouchedColumns { projected: &request.columns, filtered: Vec::new(), keys };
        self.check_read(&touched, schema, "SplitKeyRange")
    }

    /// Returns true if the caller may see keys of rows, such as those at which a tablet is split.
    pub(super) fn sees_keys(&self, schema: &Schema) -> bool {
        schema.key_columns().iter().all(|column| self.may_read(column))
    }

    fn may_read(&self, column: &ColumnSchema) -> bool {
        let TableAccess::Limited(privilege) = self else { return true };
        let granted = i32::try_from(column.id.0).ok().and_then(|id| privilege.column_privileges.get(&id));
        privilege.scan_privilege() || granted.is_some_and(|column| column.scan_privilege())
    }

    fn check_read(&self, touched: &TouchedColumns<'_>, schema: &Schema, method: &str) -> Result<(), Reply> {
        let TableAccess::Limited(privilege) = self else { return Ok(()) };
        if privilege.scan_privilege() {
            return Ok(());
        }
        let may = |column: &ColumnSchema| self.may_read(column);
        let columns = schema.columns();
        // An unknown name is refused like a forbidden one, so that callers cannot find out which columns exist.
        let named = |name: &str| schema.index_of_name(name).is_some_and(|index| may(&columns[index]));
        let allowed = match touched.all() {
            true => columns.iter().all(may),
            false => touched.projected.iter().all(|column| named(&column.name)),
        };
        let allowed = allowed
            && touched.filtered.iter().all(|name| named(name))
            && (!touched.keys || schema.key_columns().iter().all(may));
        if allowed { Ok(()) } else { Err(denied(method)) }
    }

    /// Returns an error reply if the caller may not write at all.
    pub(super) fn check_any_write(&self) -> Result<(), Reply> {
        let TableAccess::Limited(privilege) = self else { return Ok(()) };
        let any =
            privilege.insert_privilege() || privilege.update_privilege() || privilege.delete_privilege();
        if any { Ok(()) } else { Err(denied("write")) }
    }

    /// Returns true if the caller may write rows of every kind, so that a batch need not be looked through.
    pub(super) fn writes_all(&self) -> bool {
        match self {
            TableAccess::Full => true,
            TableAccess::Limited(privilege) => {
                privilege.insert_privilege() && privilege.update_privilege() && privilege.delete_privilege()
            }
        }
    }

    /// Returns an error reply if the caller may not write rows of this kind.
    pub(super) fn check_kind(&self, kind: RowOpKind) -> Result<(), Reply> {
        let TableAccess::Limited(privilege) = self else { return Ok(()) };
        let insert = (privilege.insert_privilege(), "INSERT");
        let update = (privilege.update_privilege(), "UPDATE");
        let delete = (privilege.delete_privilege(), "DELETE");
        let needed = match kind.base() {
            RowOpKind::Insert => [insert, insert],
            RowOpKind::Upsert => [insert, update],
            RowOpKind::Update => [update, update],
            _ => [delete, delete],
        };
        let missing = needed.into_iter().find(|(granted, _)| !granted);
        missing.map_or(Ok(()), |(_, name)| Err(denied(name)))
    }
}

/// Returns the kinds of rows in a batch, each once. Errors are about the request: bytes that are no rows.
pub(super) fn kinds(
    columns: &[ClientColumn],
    schema: &Schema,
    rows: &[u8],
    indirect: &[u8],
) -> Result<std::collections::BTreeSet<RowOpKind>> {
    let mut reader = RowOpsReader::new(columns, schema, rows, indirect, RowOpLimits::default())?;
    let mut kinds = std::collections::BTreeSet::new();
    while let Some(row) = reader.next()? {
        kinds.insert(row.kind);
    }
    Ok(kinds)
}

#[cfg(test)]
mod tests;
