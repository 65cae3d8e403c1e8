//! A cluster in memory for tests. Time advances only while every task waits.

use std::sync::Arc;

use node::server::cluster::{Cluster, ClusterConfig};
use node::server::flags::Flags;
use nyala_common::env::testing::{MemDisks, SteadyClock};
use nyala_common::env::{Env, mem_net};

/// Starts a master and a tablet server.
pub(crate) async fn start() -> (Env, Cluster) {
    let env = mem_net::env();
    let clock = Arc::new(SteadyClock(env.clock.clone()));
    let env = Env { disks: Arc::new(MemDisks::default()), clock, ..env };
    let flags = Flags::new();
    for (name, value) in [("webserver_enabled", "false"), ("block_cache_capacity_mb", "16")] {
        flags.set(name, value).expect(name);
    }
    let config = ClusterConfig::on_loopback("cluster", 1, flags);
    let cluster = Cluster::start(&env, &config).await.expect("an empty directory");
    (env, cluster)
}
