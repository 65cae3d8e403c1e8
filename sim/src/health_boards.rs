//! Checks of the running servers of a run, as `/readyz` shows them, and the gauges of its masters.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use engine::sync::Mutex;
use node::server::health::HealthBoard;
use node::server::{ServerContext, ServerHealth, ServerStatus};
use nyala_common::metrics::{Entity, MetricRegistry, MetricValue};

use crate::oracle::catalog_gauges::{MasterGauges, PREFIX};
use crate::oracle::readiness::ServerCheck;
use crate::oracle::registrations::Registration;
use sim_plan::Host;

/// Attribute of the entity of a table.
const TABLE_NAME: &str = "table_name";

/// Sources of the checks and metrics of masters and tablet servers. Clones share them.
#[derive(Clone, Default)]
pub struct HealthBoards {
    sources: Arc<Mutex<BTreeMap<Host, HealthSources>>>,
}

/// Sources of one server's checks and metrics.
struct HealthSources {
    status: Weak<ServerStatus>,
    board: Weak<HealthBoard>,
    metrics: Weak<MetricRegistry>,
}

impl HealthBoards {
    /// Adds a server that has started; it replaces the former process of its host.
    pub fn add(&self, host: Host, common: &ServerContext) {
        let (status, board) = (Arc::downgrade(&common.status), Arc::downgrade(&common.checks));
        let metrics = Arc::downgrade(&common.metrics);
        self.sources.lock().insert(host, HealthSources { status, board, metrics });
    }

    /// Returns the servers that have started.
    pub fn hosts(&self) -> Vec<Host> {
        self.sources.lock().keys().copied().collect()
    }

    /// Returns the checks of all servers that run.
    pub fn checks(&self) -> Vec<ServerCheck> {
        let mut found = Vec::new();
        for (host, sources) in self.sources.lock().iter() {
            let status = sources.status.upgrade().map(|status| status.check());
            let of_board = sources.board.upgrade().map(|board| board.checks()).unwrap_or_default();
            found.extend(status.iter().chain(&of_board).map(|check| {
                let (word, text) = check.parts();
                ServerCheck { server: host.name(), name: check.name, word, text: text.to_string() }
            }));
        }
        found
    }

    /// Returns what the servers that run, and have started without an error, say of themselves.
    pub fn registrations(&self) -> Vec<(Host, Registration)> {
        let sources = self.sources.lock();
        let running = sources.iter().filter_map(|(host, sources)| Some((*host, sources.status.upgrade()?)));
        let healthy = running.filter(|(_, status)| status.health() == ServerHealth::Healthy);
        let own =
            |status: &ServerStatus| Registration::of(&status.node_instance(), Some(&status.registration()));
        healthy.map(|(host, status)| (host, own(&status))).collect()
    }

    /// Returns the gauges of all masters that run.
    pub fn gauges(&self) -> Vec<MasterGauges> {
        let mut found = Vec::new();
        for (host, sources) in self.sources.lock().iter() {
            let metrics = sources.metrics.upgrade().filter(|_| matches!(host, Host::Master(_)));
            found.extend(metrics.map(|metrics| gauges(host.name(), &metrics)));
        }
        found
    }
}

fn gauges(server: String, registry: &MetricRegistry) -> MasterGauges {
    let metrics = registry.snapshot();
    let own = integers(&metrics.server).filter(|(name, _)| name.starts_with(PREFIX));
    let tables = metrics.others.iter().flat_map(|entity| {
        let table = entity.attributes.get(TABLE_NAME);
        let of_table = |table: &String| {
            let named = integers(entity).map(|(name, value)| ((table.clone(), name.to_string()), value));
            named.collect::<Vec<_>>()
        };
        table.map(of_table).unwrap_or_default()
    });
    let catalog = own.map(|(name, value)| (name.to_string(), value)).collect();
    MasterGauges { server, catalog, tables: tables.collect() }
}

/// Returns the names and values of an entity's integers.
pub(crate) fn integers(entity: &Entity) -> impl Iterator<Item = (&'static str, i64)> {
    entity.samples.iter().filter_map(|sample| match &sample.value {
        MetricValue::Integer(value) => Some((sample.def.name, *value)),
        _ => None,
    })
}
