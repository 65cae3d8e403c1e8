//! Access by privileges: properties of the pure checks.

use proptest::prelude::*;

use super::*;
use nyala_proto::kudu::ColumnPredicatePb;
use nyala_proto::kudu::security::ColumnPrivilegePb;

const COLUMNS: [&str; 4] = ["a", "b", "c", "d"];

fn schema() -> Schema {
    let column = |(id, name): (usize, &&str)| ColumnSchema::new(10 + id as u32, name, DataType::Int32);
    Schema::new(COLUMNS.iter().enumerate().map(column).collect(), 1).expect("a valid schema")
}

/// Returns access to columns by position; bit 0 is the first column, the key.
fn columns(bits: u8) -> TableAccess {
    let granted = (0..4).filter(|at| bits & (1 << at) != 0);
    let read = ColumnPrivilegePb { scan_privilege: Some(true) };
    let column_privileges = granted.map(|at| (10 + at, read)).collect();
    TableAccess::Limited(TablePrivilegePb { column_privileges, ..TablePrivilegePb::default() })
}

fn scan(projected: &[&str], filtered: &[&str]) -> NewScanRequestPb {
    NewScanRequestPb {
        projected_columns: projected
            .iter()
            .map(|name| ColumnSchemaPb { name: name.to_string(), ..ColumnSchemaPb::default() })
            .collect(),
        column_predicates: filtered
            .iter()
            .map(|name| ColumnPredicatePb { column: Some(name.to_string()), predicate: None })
            .collect(),
        ..NewScanRequestPb::default()
    }
}

fn allows(access: &TableAccess, scan: &NewScanRequestPb) -> bool {
    match access.check_scan(scan, &schema(), "Scan") {
        Ok(()) => true,
        Err(reply) => {
            let message = "Not authorized: not authorized to Scan";
            assert_eq!(reply, Reply::error(RpcErrorCodePb::FatalUnauthorized, message));
            false
        }
    }
}

#[test]
fn a_predicate_needs_the_right_to_read_its_column() {
    assert!(allows(&columns(0b0011), &scan(&["a"], &["b"])));
    assert!(!allows(&columns(0b0001), &scan(&["a"], &["b"])), "values of b could be guessed");
    assert!(
        !allows(&columns(0b0011), &scan(&["a"], &["no"])),
        "an unknown column is not told from a hidden one"
    );
    assert!(!allows(&columns(0b0011), &scan(&["no"], &[])));
    let unnamed =
        NewScanRequestPb { column_predicates: vec![ColumnPredicatePb::default()], ..scan(&["a"], &[]) };
    assert!(!allows(&columns(0b0001), &unnamed));
}

#[test]
fn a_count_and_a_diff_scan_need_every_column() {
    let deleted = |name: &str| ColumnSchemaPb {
        name: name.to_string(),
        r#type: DataType::IsDeleted as i32,
        ..ColumnSchemaPb::default()
    };
    let mut diff = scan(&["a"], &[]);
    diff.projected_columns.push(deleted("gone"));
    for whole in [scan(&[], &[]), diff] {
        assert!(!allows(&columns(0b0111), &whole));
        assert!(allows(&columns(0b1111), &whole));
    }
}

#[test]
fn order_and_bounds_need_the_key() {
    let key = Some(bytes::Bytes::from_static(b"k"));
    let of_b = || scan(&["b"], &[]);
    let keyed = [
        NewScanRequestPb { order_mode: Some(OrderMode::Ordered as i32), ..of_b() },
        NewScanRequestPb { start_primary_key: key.clone(), ..of_b() },
        NewScanRequestPb { stop_primary_key: key.clone(), ..of_b() },
        NewScanRequestPb { last_primary_key: key.clone(), ..of_b() },
        NewScanRequestPb { last_primary_key: Some(bytes::Bytes::new()), ..of_b() },
    ];
    assert!(allows(&columns(0b0010), &of_b()));
    for scan in keyed {
        assert!(!allows(&columns(0b0010), &scan), "{scan:?}");
        assert!(allows(&columns(0b0011), &scan), "{scan:?}");
    }
    let split = |start| SplitKeyRangeRequestPb {
        start_primary_key: start,
        columns: of_b().projected_columns,
        ..SplitKeyRangeRequestPb::default()
    };
    assert_eq!(columns(0b0010).check_split(&split(None), &schema()), Ok(()));
    assert!(columns(0b0010).check_split(&split(key), &schema()).is_err());
    // Without a bound the answer must not have keys either.
    assert!(!columns(0b0010).sees_keys(&schema()));
    assert!(columns(0b0001).sees_keys(&schema()));
    assert!(TableAccess::Full.sees_keys(&schema()));
}

#[test]
fn every_kind_of_row_needs_its_rights() {
    use RowOpKind::{Delete, DeleteIgnore, Insert, InsertIgnore, Update, UpdateIgnore, Upsert, UpsertIgnore};
    let access = |insert, update, delete| {
        TableAccess::Limited(TablePrivilegePb {
            insert_privilege: Some(insert),
            update_privilege: Some(update),
            delete_privilege: Some(delete),
            ..TablePrivilegePb::default()
        })
    };
    let kinds = [Insert, InsertIgnore, Upsert, UpsertIgnore, Update, UpdateIgnore, Delete, DeleteIgnore];
    let allowed = |access: &TableAccess| kinds.map(|kind| u8::from(access.check_kind(kind).is_ok()));
    assert_eq!(allowed(&access(true, false, false)), [1, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(allowed(&access(false, true, false)), [0, 0, 0, 0, 1, 1, 0, 0]);
    assert_eq!(allowed(&access(true, true, false)), [1, 1, 1, 1, 1, 1, 0, 0]);
    assert_eq!(allowed(&access(false, false, true)), [0, 0, 0, 0, 0, 0, 1, 1]);
    let reader = access(false, false, false);
    let denied = |text: &str| Err(Reply::error(RpcErrorCodePb::FatalUnauthorized, text.to_string()));
    assert_eq!(reader.check_any_write(), denied("Not authorized: not authorized to write"));
    assert_eq!(
        access(true, false, true).check_kind(Upsert),
        denied("Not authorized: not authorized to UPDATE")
    );
}

#[test]
fn a_token_is_for_one_user_and_one_table() {
    let granted = TablePrivilegePb { table_id: Some("7".to_string()), ..TablePrivilegePb::default() };
    let token = |user: &str| {
        Ok(Some(AuthzTokenPb { username: Some(user.to_string()), table_privilege: Some(granted.clone()) }))
    };
    assert_eq!(privilege(token("ann"), "ann"), Ok(granted.clone()));
    let code = |verified| match privilege(verified, "ann") {
        Err(Reply::Err { code, .. }) => code,
        other => panic!("{other:?} is no refusal"),
    };
    assert_eq!(code(token("bob")), RpcErrorCodePb::ErrorInvalidAuthorizationToken);
    assert_eq!(code(Ok(None)), RpcErrorCodePb::ErrorInvalidAuthorizationToken, "an authentication token");
    assert_eq!(code(Err(TokenFault::Expired)), RpcErrorCodePb::ErrorInvalidAuthorizationToken);
    assert_eq!(code(Err(TokenFault::UnknownKey)), RpcErrorCodePb::ErrorUnavailable);
    assert_eq!(code(Err(TokenFault::IncompatibleFeature)), RpcErrorCodePb::FatalUnauthorized);
    assert!(TableAccess::Limited(granted).check_table(engine::ids::Uuid([7; 16])).is_err());
}

proptest! {
    /// A scan is allowed exactly if each column that it names is granted.
    #[test]
    fn a_scan_reads_granted_columns_only(
        granted in 0..16u8,
        projected in proptest::sample::subsequence(&COLUMNS[..], 1..=4),
        filtered in proptest::sample::subsequence(&COLUMNS[..], 0..=4),
    ) {
        let bit = |name: &&str| 1 << COLUMNS.iter().position(|column| column == name).expect("a column");
        let touched = projected.iter().chain(&filtered).map(bit).fold(0u8, |all, one| all | one);
        prop_assert_eq!(allows(&columns(granted), &scan(&projected, &filtered)), touched & !granted == 0);
    }
}
