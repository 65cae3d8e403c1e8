//! A tablet with three replicas on separate processes whose leaders are killed.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test observes the program from outside"
)]

#[allow(dead_code, reason = "these servers are started one by one")]
mod common;
mod servers;

use std::collections::BTreeSet;

use servers::{COUNT, Servers, TABLET};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_survive_killed_leaders_and_are_stored_once() {
    let mut servers = Servers::start(&["--raft-profile=fast"]).await;
    servers.create(TABLET).await;
    let mut key = 0;
    for _ in 0..3 {
        for _ in 0..20 {
            servers.insert(TABLET, key).await;
            key += 1;
        }
        let leader = servers.leader(TABLET).await;
        servers.kill(leader);
        for _ in 0..20 {
            servers.insert(TABLET, key).await;
            key += 1;
        }
        servers.run(leader);
        servers.uuid(leader).await;
    }
    for number in 0..COUNT {
        let keys = servers.keys(number, TABLET).await;
        assert_eq!(keys.iter().copied().collect::<BTreeSet<_>>(), (0..key).collect(), "server {number}");
        assert_eq!(keys.len() as i64, key, "server {number} has each row once");
    }
}
