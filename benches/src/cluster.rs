//! A cluster in this process: a master and a tablet server.

use engine::error::Result;
use node::server::cluster::{Cluster, ClusterConfig};
use node::server::flags::Flags;
use nyala_common::env::Env;

/// Starts a cluster in `dir` with these flags.
pub async fn start(env: &Env, dir: &str, settings: &[(&str, &str)]) -> Result<Cluster> {
    let flags = Flags::new();
    settings.iter().try_for_each(|(name, value)| flags.set(name, value))?;
    let config = ClusterConfig::on_loopback(dir, 1, flags);
    Cluster::start(env, &config).await
}
