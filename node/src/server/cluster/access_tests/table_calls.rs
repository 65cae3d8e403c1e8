//! Calls that change tables, and the rights that they need together.

use super::*;

/// Rights of bob to drop the tables of one database, and all rights on another.
const DROPPER: &str = r#"
    [[rule]]
    users = ["bob"]
    databases = ["sales"]
    allow = ["drop"]

    [[rule]]
    users = ["bob"]
    databases = ["scratch"]
    allow = ["all"]
"#;

#[tokio::test(start_paused = true)]
async fn a_recall_under_another_name_needs_the_rights_of_a_renaming() {
    let mut world = World::start().await;
    *world.disks.policy.lock() = format!("{POLICY}{DROPPER}");
    world.env.sleep(NOTICED).await;
    let (ann, bob) = (world.client("ann").await, world.client("bob").await);
    create(&ann, "sales.orders").await.expect("ann may");
    bob.delete_table_later("sales.orders", 3_600).await.expect("bob may drop it");
    let table = bob.deleted_tables().await.expect("a list").remove(0).id;
    let refused = bob.recall_table(&table, Some("scratch.orders")).await.expect_err("bob may not rename it");
    assert!(refused.message.ends_with("Unauthorized action"), "{}", refused.message);
    bob.recall_table(&table, Some("sales.orders")).await.expect("it is the same name");
    bob.delete_table_later("sales.orders", 3_600).await.expect("bob may drop it");
    bob.recall_table(&table, None).await.expect("bob may drop it, and so recall it");
    ann.delete_table_later("sales.orders", 3_600).await.expect("ann may");
    ann.recall_table(&table, Some("scratch.orders")).await.expect("ann may rename it");
    let listed = ann.list_tables(None).await.expect("a list");
    assert_eq!(listed.iter().map(|table| table.name.as_str()).collect::<Vec<_>>(), ["scratch.orders"]);
    world.cluster.shutdown().await;
}

/// `cluster check` and `cluster drain` evaluate the tables that a superuser lists.
#[tokio::test(start_paused = true)]
async fn a_superuser_without_rights_lists_every_table_without_its_rows() {
    let mut world = World::start().await;
    let (ann, root) = (world.client("ann").await, world.client("root").await);
    for name in ["hr.people", "sales.orders", "sales.returns"] {
        let table = create(&ann, name).await.expect("ann may");
        insert(&table, 0..5).await.expect("ann may");
    }
    world.env.sleep(NOTICED).await;
    assert!(ann.list_tables(None).await.expect("a list").iter().any(|table| table.live_rows.is_some()));
    let listed = root.list_tables(None).await.expect("a list");
    let names: Vec<&str> = listed.iter().map(|table| table.name.as_str()).collect();
    assert_eq!(names, ["hr.people", "sales.orders", "sales.returns"]);
    assert!(listed.iter().all(|table| table.live_rows.is_none()), "{listed:?}");
    ann.delete_table_later("hr.people", 3_600).await.expect("ann may");
    assert_eq!(root.deleted_tables().await.expect("a list").len(), 1);
    world.cluster.shutdown().await;
}
