//! Metrics of a server: Kudu's JSON and Prometheus' text from one table of definitions.
//!
//! ```text
//!   owner of a value ── registers a MetricSource ──► MetricRegistry
//!   page ── snapshot: each source adds samples ──► entities ── filter, merge ──► json │ prometheus
//! ```
//!
//! - Nothing is global: the owner stores its value (an atomic, a [`Histogram`]) and a source reads it.
//! - An entity is the server, a tablet or a table. Ids are labels and never parts of names.
//! - Every sample has a row of [`table`]: name, kind, unit, level and help.

pub mod dashboards;
pub mod definition;
pub mod histogram;
pub mod json;
mod merge;
pub mod prometheus;
pub mod query;
pub mod snapshot;
pub mod table;

use engine::sync::{Mutex, MutexGuard};
use std::sync::{Arc, Weak};

pub use histogram::Histogram;
pub use snapshot::{Entity, MetricSnapshot, MetricValue};

/// A producer of samples.
pub trait MetricSource: Send + Sync {
    fn collect(&self, out: &mut MetricSnapshot);
}

impl<F: Fn(&mut MetricSnapshot) + Send + Sync> MetricSource for F {
    fn collect(&self, out: &mut MetricSnapshot) {
        self(out);
    }
}

/// All metric sources of one server.
pub struct MetricRegistry {
    /// Id of the server's entity.
    server: &'static str,
    sources: Mutex<Vec<Weak<dyn MetricSource>>>,
    /// Sources that live as long as the server.
    owned: Mutex<Vec<Arc<dyn MetricSource>>>,
}

impl MetricRegistry {
    /// Creates the registry of a server with this id, `kudu.master` or `kudu.tabletserver`.
    pub fn new(server: &'static str) -> Arc<MetricRegistry> {
        Arc::new(MetricRegistry { server, sources: Mutex::default(), owned: Mutex::default() })
    }

    /// Collects from `source` while another owner holds it.
    pub fn register_weak(&self, source: &Arc<dyn MetricSource>) {
        let mut sources = self.sources.lock();
        sources.retain(|source| source.strong_count() > 0);
        sources.push(Arc::downgrade(source));
    }

    /// Collects from `source` as long as the registry lives.
    pub fn register(&self, source: impl MetricSource + 'static) {
        self.lock_sources().push(Arc::new(source));
    }

    fn lock_sources(&self) -> MutexGuard<'_, Vec<Arc<dyn MetricSource>>> {
        self.owned.lock()
    }

    /// Collects all samples.
    pub fn snapshot(&self) -> MetricSnapshot {
        let mut snapshot = MetricSnapshot::new(self.server);
        let sources: Vec<_> = {
            let weak = self.sources.lock();
            weak.iter().filter_map(Weak::upgrade).chain(self.lock_sources().iter().cloned()).collect()
        };
        for source in sources {
            source.collect(&mut snapshot);
        }
        snapshot
    }
}

#[cfg(test)]
mod kudu_names;
#[cfg(test)]
mod tests;
