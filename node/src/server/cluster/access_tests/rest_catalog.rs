//! The REST catalog for a user whom a ticket names: tables that the policy hides are absent.

use super::*;
use crate::server::pages::options::PageOptions;
use crate::server::pages::registry::{PageBody, PageErrorKind, PageResult};

/// Gets a path of the master; `user` is the one whom the request's ticket names.
async fn get(world: &World, path: &str, user: Option<&str>) -> PageResult {
    let RunningServer::Master(master) = &world.cluster.masters()[0] else { panic!("a master") };
    let source = master.common.pages.source(path).expect("a page of masters");
    source(PageOptions { user: user.map(str::to_string), ..PageOptions::default() }).await
}

/// Returns the names of the tables in the list, sorted.
async fn names(world: &World, user: Option<&str>) -> Vec<String> {
    let Ok(PageBody::Json(listed)) = get(world, "/api/v1/tables", user).await else { panic!("a list") };
    let tables = listed["tables"].as_array().cloned().unwrap_or_default();
    let name = |table: &serde_json::Value| table["table_name"].as_str().map(str::to_string);
    let mut names: Vec<String> = tables.iter().filter_map(name).collect();
    names.sort();
    names
}

#[tokio::test(start_paused = true)]
async fn a_ticket_shows_the_tables_that_its_user_may_see() {
    let mut world = World::start().await;
    let ann = world.client("ann").await;
    create(&ann, "sales.orders").await.expect("ann may");
    let people = create(&ann, "hr.people").await.expect("ann may");
    for user in [None, Some("ann"), Some("root")] {
        assert_eq!(names(&world, user).await, ["hr.people", "sales.orders"], "{user:?}");
    }
    assert_eq!(names(&world, Some("bob")).await, ["sales.orders"]);
    assert!(names(&world, Some("eve")).await.is_empty());
    let path = format!("/api/v1/tables/{}", people.id());
    assert!(get(&world, &path, Some("ann")).await.is_ok());
    let hidden = get(&world, &path, Some("bob")).await.expect_err("bob may not see it");
    assert_eq!(hidden.kind, PageErrorKind::NotFound);
    world.cluster.shutdown().await;
}
