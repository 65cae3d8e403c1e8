//! Schemas of tables as the leading master gives them, and the tokens with a user's rights on their rows.
//!
//! They are checked whenever no master may show what was before. Masters give tokens where they know who asks: with
//! proofs of identity, or with a policy.

use std::ops::RangeInclusive;

use nyala_common::security::token::{TokenConfig, seconds};
use nyala_proto::kudu::DataType;
use nyala_proto::kudu::master::{GetTableSchemaRequestPb, GetTableSchemaResponsePb};
use nyala_proto::kudu::security::token_pb::Token;
use nyala_proto::kudu::security::{
    AuthzTokenPb, ColumnPrivilegePb, SignedTokenPb, TablePrivilegePb, TokenPb,
};
use prost::Message;

use super::rights::Wish;
use super::script::{Answer, Script, by_id};
use super::settings::{COLUMN, SECURITY, TRUSTED};
use super::tables::Requested;
use crate::security::OPERATOR;

/// Seconds that a clock's reading is rounded down by, at most.
const ROUNDED_SECONDS: i64 = 1;

impl Script {
    /// Reads the schema of a table of which everything is known.
    pub(super) async fn read_schema(&mut self) -> Result<(), String> {
        let Some((id, name, of)) = self.draw_table() else { return Ok(()) };
        let user = self.draw_user();
        let what = format!("the schema of {name} of {} for {user}", of.owner);
        let allowed = self.allows(user, &name, &of.owner, &Wish::See);
        let sent = self.wall_seconds();
        let request = GetTableSchemaRequestPb { table: by_id(&id) };
        let answer: Answer<GetTableSchemaResponsePb> = self.ask_fresh(user, "GetTableSchema", &request).await;
        let Some(reply) = self.check_read(&what, allowed, answer)? else { return Ok(()) };
        let wanted = Requested { owner: self.known_as(&of.owner).to_string(), ..of.clone() };
        let column = check_schema(&reply, &id, &name, &wanted).map_err(|error| format!("{what}: {error}"))?;
        let gives = self.secure || self.policy.is_some();
        match (&reply.authz_token, gives) {
            (None, false) => Ok(()),
            (Some(token), true) => {
                let wanted = self.wanted_token(user, &id, (name.as_str(), &of), column);
                let expires = self.expiry(sent);
                check_token(token, &wanted, &expires).map_err(|error| format!("{what}: {error}"))?;
                self.note(format!("{what}: a token with {:?}", wanted.table_privilege));
                Ok(())
            }
            (token, _) => Err(format!("{what}: masters give tokens: {gives}, and it has {token:?}")),
        }
    }

    fn wall_seconds(&self) -> i64 {
        seconds(self.links.env.now().wall)
    }

    /// Returns the name under which masters know a user: with proofs of identity, all calls are the operator's.
    fn known_as<'a>(&self, user: &'a str) -> &'a str {
        if self.secure && user == TRUSTED { OPERATOR } else { user }
    }

    /// Returns the times at which a token may expire that was signed since this second. All clocks show the same.
    fn expiry(&self, sent: i64) -> RangeInclusive<i64> {
        let validity = if self.secure { SECURITY.authz } else { TokenConfig::default().authz_validity };
        let validity = validity.as_secs() as i64;
        sent + validity - ROUNDED_SECONDS..=self.wall_seconds() + validity + ROUNDED_SECONDS
    }

    /// Returns what the token of a user for a table must state. The table's column has this id.
    fn wanted_token(
        &self,
        user: &str,
        id: &str,
        (name, of): (&str, &Requested),
        column: i32,
    ) -> AuthzTokenPb {
        let policy = self.policy.as_ref();
        let rights = policy.map(|policy| policy.data_rights(user, name, &of.owner));
        let [scan, insert, update, delete] = rights.unwrap_or([true; 4]);
        let reads_column = policy.is_some_and(|policy| policy.reads_column(user, name, &of.owner));
        let granted = ColumnPrivilegePb { scan_privilege: Some(true) };
        let privilege = TablePrivilegePb {
            table_id: Some(id.to_string()),
            scan_privilege: Some(scan),
            insert_privilege: Some(insert),
            update_privilege: Some(update),
            delete_privilege: Some(delete),
            column_privileges: reads_column.then_some((column, granted)).into_iter().collect(),
        };
        AuthzTokenPb { username: Some(self.known_as(user).to_string()), table_privilege: Some(privilege) }
    }
}

/// Checks a table's schema; returns the id of its column.
fn check_schema(
    reply: &GetTableSchemaResponsePb,
    id: &str,
    name: &str,
    of: &Requested,
) -> Result<i32, String> {
    let columns: Vec<_> = reply.schema.iter().flat_map(|schema| &schema.columns).collect();
    let shown: Vec<_> = columns
        .iter()
        .map(|column| (column.name.as_str(), column.r#type(), column.is_key(), column.is_nullable()))
        .collect();
    let hashes = reply.partition_schema.iter().flat_map(|partition| &partition.hash_schema);
    let buckets: usize = hashes.map(|hash| hash.num_buckets as usize).product();
    let is_right = reply.table_id.as_deref() == Some(id.as_bytes())
        && reply.table_name.as_deref() == Some(name)
        && reply.owner.as_deref() == Some(of.owner.as_str())
        && of.comment.as_deref().is_none_or(|comment| reply.comment() == comment)
        && reply.num_replicas == Some(of.replicas as i32)
        && buckets == of.tablets
        && shown == [(COLUMN, DataType::Int32, true, false)];
    match columns.first().and_then(|column| column.id) {
        Some(column) if is_right => Ok(column as i32),
        _ => Err(format!("{reply:?} is not {name} ({id}) with {of:?}")),
    }
}

fn check_token(
    token: &SignedTokenPb,
    wanted: &AuthzTokenPb,
    expires: &RangeInclusive<i64>,
) -> Result<(), String> {
    let decoded = TokenPb::decode(token.token_data.clone().unwrap_or_default());
    let decoded = decoded.map_err(|error| error.to_string())?;
    if decoded.token.as_ref() != Some(&Token::Authz(wanted.clone())) {
        return Err(format!("the token states {:?}, not {wanted:?}", decoded.token));
    }
    match decoded.expire_unix_epoch_seconds {
        Some(at) if expires.contains(&at) => Ok(()),
        at => Err(format!("the token expires at {at:?}, not in {expires:?}")),
    }
}

#[cfg(test)]
mod tests {
    use engine::time::Instant;
    use nyala_proto::kudu::partition_schema_pb::HashBucketSchemaPb;
    use nyala_proto::kudu::{ColumnSchemaPb, PartitionSchemaPb, SchemaPb};

    use super::*;

    fn token(update: bool, delete: bool) -> AuthzTokenPb {
        let privilege = TablePrivilegePb {
            table_id: Some("7".to_string()),
            update_privilege: Some(update),
            delete_privilege: Some(delete),
            ..TablePrivilegePb::default()
        };
        AuthzTokenPb { username: Some("ann".to_string()), table_privilege: Some(privilege) }
    }

    fn signed(token: Token, expires: i64) -> SignedTokenPb {
        let token =
            TokenPb { expire_unix_epoch_seconds: Some(expires), token: Some(token), ..TokenPb::default() };
        SignedTokenPb { token_data: Some(token.encode_to_vec().into()), ..SignedTokenPb::default() }
    }

    #[test]
    fn a_token_with_another_right_user_table_or_end_is_rejected() {
        let wanted = token(true, false);
        let check = |token: Token, expires| check_token(&signed(token, expires), &wanted, &(4..=6)).is_ok();
        assert!(check(Token::Authz(token(true, false)), 5));
        assert!(!check(Token::Authz(token(true, true)), 5) && !check(Token::Authz(token(false, false)), 5));
        assert!(!check(Token::Authz(token(true, false)), 7) && !check(Token::Authn(Default::default()), 5));
        let bob = AuthzTokenPb { username: Some("bob".to_string()), ..token(true, false) };
        assert!(!check(Token::Authz(bob), 5));
    }

    #[test]
    fn a_schema_with_another_name_owner_comment_column_or_partition_is_rejected() {
        let of = Requested {
            replicas: 3,
            tablets: 2,
            owner: "ann".to_string(),
            comment: Some("c".to_string()),
            sent: Instant(1),
        };
        let column = ColumnSchemaPb {
            id: Some(10),
            name: COLUMN.to_string(),
            r#type: DataType::Int32 as i32,
            is_key: Some(true),
            ..ColumnSchemaPb::default()
        };
        let hash = HashBucketSchemaPb { num_buckets: 2, ..HashBucketSchemaPb::default() };
        let right = GetTableSchemaResponsePb {
            schema: Some(SchemaPb { columns: vec![column] }),
            partition_schema: Some(PartitionSchemaPb {
                hash_schema: vec![hash],
                ..PartitionSchemaPb::default()
            }),
            num_replicas: Some(3),
            table_id: Some("7".into()),
            table_name: Some("sales.a1".to_string()),
            owner: Some("ann".to_string()),
            comment: Some("c".to_string()),
            ..GetTableSchemaResponsePb::default()
        };
        let check = |reply: &GetTableSchemaResponsePb| check_schema(reply, "7", "sales.a1", &of);
        assert_eq!(check(&right), Ok(10));
        let with = |change: &dyn Fn(&mut GetTableSchemaResponsePb)| {
            let mut reply = right.clone();
            change(&mut reply);
            check(&reply).is_err()
        };
        assert!(with(&|reply| reply.table_name = Some("sales.a2".to_string())));
        assert!(with(&|reply| reply.owner = Some("bob".to_string())));
        assert!(with(&|reply| reply.comment = None));
        assert!(with(&|reply| reply.num_replicas = Some(1)));
        assert!(with(&|reply| reply.partition_schema = None));
        assert!(with(&|reply| reply.schema = None));
    }
}
