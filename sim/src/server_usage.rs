//! Handles to the running tablet servers of a run, and readings of the resources that they hold.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use engine::memory::MemUsage;
use engine::sync::Mutex;
use node::tserver::server::TabletServer;
use nyala_common::metrics::{MetricValue, table};

use crate::oracle::control_calls::CallCount;
use crate::oracle::resources::ServerUsage;
use sim_plan::Host;

/// The tablet servers that run. Clones share them.
#[derive(Clone, Default)]
pub struct RunningServers {
    servers: Arc<Mutex<BTreeMap<Host, Weak<TabletServer>>>>,
}

impl RunningServers {
    /// Adds a server that has started; it replaces the former process of its host.
    pub fn add(&self, host: Host, server: &Arc<TabletServer>) {
        let mut servers = self.servers.lock();
        servers.insert(host, Arc::downgrade(server));
    }

    /// Returns the calls of each method that each server has got since its start.
    pub fn calls(&self) -> Vec<CallCount> {
        let servers = self.servers.lock();
        let live = servers.iter().filter_map(|(host, server)| Some((host, server.upgrade()?)));
        live.flat_map(|(host, server)| calls(host, &server)).collect()
    }

    /// Returns what each server holds now.
    pub fn usages(&self) -> Vec<ServerUsage> {
        let servers = self.servers.lock();
        let live = servers.iter().filter_map(|(host, server)| Some((host, server.upgrade()?)));
        live.map(|(host, server)| usage(host, &server)).collect()
    }
}

fn calls(host: &Host, server: &TabletServer) -> Vec<CallCount> {
    let samples = server.common.metrics.snapshot().server.samples;
    let of_methods = samples.into_iter().filter(|sample| sample.def.name == table::HANDLER_LATENCY.name);
    let count = of_methods.filter_map(|sample| match sample.value {
        MetricValue::Distribution(times) => Some((sample.method, times.count())),
        _ => None,
    });
    count.map(|(method, calls)| CallCount { server: host.name(), method, calls }).collect()
}

fn usage(host: &Host, server: &TabletServer) -> ServerUsage {
    let memory = server.common.memory.usage();
    let bytes = |id: &str| bytes_of(&memory, id);
    ServerUsage {
        server: host.name(),
        scanners: server.scanners().len() as u64,
        copies_served: server.copy_service().map_or(0, |service| service.session_count() as u64),
        copies_made: server.copies.count() as u64,
        messages: bytes("calls") + bytes("answers"),
        operations: bytes("operations"),
        maintenance: bytes("maintenance"),
    }
}

/// Returns the sum of all trackers of this id.
fn bytes_of(usage: &MemUsage, id: &str) -> u64 {
    if usage.id == id {
        return usage.bytes;
    }
    usage.children.iter().map(|child| bytes_of(child, id)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trackers_of_one_id_are_added_up() {
        let leaf = |id: &str, bytes| MemUsage {
            id: id.to_string(),
            parent_id: None,
            limit: None,
            bytes,
            peak_bytes: bytes,
            children: Vec::new(),
        };
        let tablet =
            |bytes| MemUsage { children: vec![leaf("operations", bytes), leaf("log", 7)], ..leaf("t", 0) };
        let root = MemUsage { children: vec![tablet(3), tablet(4)], ..leaf("server", 0) };
        assert_eq!(bytes_of(&root, "operations"), 7);
    }
}
