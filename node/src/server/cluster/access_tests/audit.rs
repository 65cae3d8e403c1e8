//! The audit log of a whole cluster.

use engine::disk::read_file;
use expect_test::expect;

use super::*;
use nyala_proto::kudu::master::{
    AlterTableRequestPb, AlterTableResponsePb, DeleteTableRequestPb, DeleteTableResponsePb,
    RecallDeletedTableRequestPb, RecallDeletedTableResponsePb,
};
use nyala_proto::kudu::server::{SetFlagRequestPb, SetFlagResponsePb};

/// Returns the lines of the audit log of all servers by time: user, action, subject, outcome, reason.
fn audited(world: &World) -> Vec<String> {
    let disk = world.disks.disks.disk(AUDIT_DIR);
    let mut lines = Vec::new();
    for name in disk.list("").expect("names") {
        let file = String::from_utf8(read_file(&disk, &name).expect("a file")).expect("ASCII");
        for line in file.lines() {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let text = |key: &str| line[key].as_str().unwrap_or("-").to_string();
            // Ids of tablets are random.
            let subject =
                text("subject").rsplit(" of ").next().unwrap_or_default().escape_debug().to_string();
            // So are those of tables, the texts of the decoder are not this program's, and advice is long.
            let varying = [" with id ", ": table_", ": failed to decode", "; set it"];
            let reason = varying.iter().fold(text("reason"), |reason, from| {
                reason.split(from).next().unwrap_or_default().to_string()
            });
            let action = text("action").rsplit('.').next().unwrap_or_default().to_string();
            let outcome = match text("outcome").as_str() {
                "failed" if name.contains(".denied.") => "failed, with the denials".to_string(),
                outcome => outcome.to_string(),
            };
            let shown = [text("user"), action, subject, outcome, reason];
            lines.push((text("time"), shown.join(" | ")));
        }
    }
    lines.sort();
    lines.into_iter().map(|(_, line)| line).collect()
}

#[tokio::test(start_paused = true)]
async fn the_audit_log_names_user_action_subject_and_outcome() {
    let mut world = World::start().await;
    let (ann, bob) = (world.client("ann").await, world.client("bob").await);
    let tick = || world.env.sleep(Duration::from_millis(10));
    let set_flag = |flag: &str, value: &str| SetFlagRequestPb {
        flag: flag.to_string(),
        value: value.to_string(),
        force: Some(true),
        run_consistency_check: None,
    };
    create(&ann, "sales.orders").await.expect("ann may");
    tick().await;
    assert!(create(&ann, "sales.orders").await.is_err());
    tick().await;
    bob.delete_table("sales.orders").await.expect_err("bob may not");
    tick().await;
    bob.open_table("hr.\u{1b}[2J").await.err().expect("bob may not");
    tick().await;
    let orders = bob.open_table("sales.orders").await.expect("bob sees it");
    count(&orders, &["secret"]).await.expect_err("bob may not");
    tick().await;
    for (user, flag, value) in
        [("bob", "scanner_ttl_ms", "5"), ("root", "scanner_ttl_ms", "70000"), ("root", "audit_log_dir", "")]
    {
        let request = set_flag(flag, value);
        let method = ("kudu.server.GenericService", "SetFlag");
        let _: Result<SetFlagResponsePb, _> = world.call(world.tserver(), user, method, &request).await;
        tick().await;
    }
    world.env.sleep(Duration::from_secs(1)).await;
    expect![[r#"
        ann | CreateTable | sales.orders | allowed | -
        ann | CreateTable | sales.orders | failed | table sales.orders already exists
        bob | DeleteTable | sales.orders | denied | Unauthorized action
        bob | GetTableSchema | hr.\u{1b}[2J | denied | Unauthorized action
        bob | Scan | sales.orders | denied | Not authorized: not authorized to Scan
        bob | SetFlag | scanner_ttl_ms=5 | denied | Not authorized: unauthorized access to method: SetFlag
        root | SetFlag | scanner_ttl_ms=70000 | allowed | -
        root | SetFlag | audit_log_dir= | failed | audit_log_dir takes effect only when the server starts
    "#]]
    .assert_eq(&(audited(&world).join("\n") + "\n"));
    world.cluster.shutdown().await;
}

/// Calls that any user can make without end must not displace the events of others.
#[tokio::test(start_paused = true)]
async fn a_call_that_fails_before_a_right_is_found_is_recorded_with_the_denials() {
    let mut world = World::start().await;
    let ann = world.client("ann").await;
    let master = &world.cluster.masters()[0];
    let tick = || world.env.sleep(Duration::from_millis(10));
    let table = TableIdentifierPb { table_id: Some("7".repeat(16).into()), table_name: None };
    let delete = DeleteTableRequestPb { table: table.clone(), ..Default::default() };
    let deleted: DeleteTableResponsePb =
        world.call(master, "eve", (MASTER, "DeleteTable"), &delete).await.expect("a reply");
    tick().await;
    let alter = AlterTableRequestPb { table: table.clone(), ..Default::default() };
    let altered: AlterTableResponsePb =
        world.call(master, "eve", (MASTER, "AlterTable"), &alter).await.expect("a reply");
    tick().await;
    let recall = RecallDeletedTableRequestPb { table, new_table_name: None };
    let recalled: RecallDeletedTableResponsePb =
        world.call(master, "eve", (MASTER, "RecallDeletedTable"), &recall).await.expect("a reply");
    assert!(deleted.error.is_some() && altered.error.is_some() && recalled.error.is_some());
    tick().await;
    // Field 1 is no table.
    let malformed: Result<DeleteTableResponsePb, _> =
        world.call(master, "eve", (MASTER, "DeleteTable"), &7u64).await;
    malformed.expect_err("it cannot be decoded");
    tick().await;
    ann.delete_table("sales.nothing").await.expect_err("there is no such table, and ann could delete it");
    world.env.sleep(Duration::from_secs(1)).await;
    expect![[r#"
        eve | DeleteTable | 7777777777777777 | failed, with the denials | the table does not exist
        eve | AlterTable | 7777777777777777 | failed, with the denials | the table does not exist
        eve | RecallDeletedTable | 7777777777777777 | failed, with the denials | the table does not exist
        eve | DeleteTable | - | failed, with the denials | DeleteTable: the request cannot be decoded
        ann | DeleteTable | sales.nothing | failed | the table does not exist
    "#]]
    .assert_eq(&(audited(&world).join("\n") + "\n"));
    world.cluster.shutdown().await;
}
