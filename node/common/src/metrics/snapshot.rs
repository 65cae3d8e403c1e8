//! Values of all metrics at one time, by entity.

use std::collections::BTreeMap;

use super::definition::{EntityKind, MetricDef, MetricKind};
use super::histogram::{Histogram, HistogramSnapshot};

/// Value of a metric.
#[derive(Debug, Clone, PartialEq)]
pub enum MetricValue {
    Integer(i64),
    Real(f64),
    Boolean(bool),
    Text(String),
    Distribution(Box<HistogramSnapshot>),
}

/// A metric of an entity with its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub def: &'static MetricDef,
    /// Appended to the name after `_`: the method of a call. Empty for all others.
    pub method: String,
    /// Labels beside those of the entity.
    pub labels: Vec<(&'static str, String)>,
    pub value: MetricValue,
}

impl Sample {
    /// Returns the name as in JSON.
    pub fn name(&self) -> String {
        if self.method.is_empty() {
            self.def.name.to_owned()
        } else {
            format!("{}_{}", self.def.name, self.method)
        }
    }
}

/// A server, table or tablet with its metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct Entity {
    pub kind: EntityKind,
    pub id: String,
    pub attributes: BTreeMap<&'static str, String>,
    pub samples: Vec<Sample>,
}

impl Entity {
    pub fn new(kind: EntityKind, id: impl Into<String>) -> Entity {
        Entity { kind, id: id.into(), attributes: BTreeMap::new(), samples: Vec::new() }
    }

    pub fn attribute(&mut self, name: &'static str, value: impl Into<String>) {
        self.attributes.insert(name, value.into());
    }

    pub fn counter(&mut self, def: &'static MetricDef, value: u64) {
        debug_assert_eq!(def.kind, MetricKind::Counter, "{}", def.name);
        self.add(def, MetricValue::Integer(saturate(value)));
    }

    pub fn gauge(&mut self, def: &'static MetricDef, value: u64) {
        self.value(def, MetricValue::Integer(saturate(value)));
    }

    /// Adds a gauge of another type than a count.
    pub fn value(&mut self, def: &'static MetricDef, value: MetricValue) {
        debug_assert_eq!(def.kind, MetricKind::Gauge, "{}", def.name);
        self.add(def, value);
    }

    /// Adds a gauge with labels.
    pub fn labelled(&mut self, def: &'static MetricDef, labels: &[(&'static str, &str)], value: MetricValue) {
        let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        self.push(Sample { def, method: String::new(), labels, value });
    }

    pub fn histogram(&mut self, def: &'static MetricDef, histogram: &Histogram) {
        self.of_method(def, "", histogram);
    }

    /// Adds the distribution of the calls of a method, which is appended to the name.
    pub fn of_method(&mut self, def: &'static MetricDef, method: &str, histogram: &Histogram) {
        debug_assert_eq!(def.kind, MetricKind::Histogram, "{}", def.name);
        let value = MetricValue::Distribution(Box::new(histogram.snapshot()));
        self.push(Sample { def, method: method.to_owned(), labels: Vec::new(), value });
    }

    /// Adds a count of the calls of a method, which is appended to the name.
    pub fn counter_of_method(&mut self, def: &'static MetricDef, method: &str, value: u64) {
        debug_assert_eq!(def.kind, MetricKind::Counter, "{}", def.name);
        let value = MetricValue::Integer(saturate(value));
        self.push(Sample { def, method: method.to_owned(), labels: Vec::new(), value });
    }

    fn add(&mut self, def: &'static MetricDef, value: MetricValue) {
        self.push(Sample { def, method: String::new(), labels: Vec::new(), value });
    }

    fn push(&mut self, sample: Sample) {
        debug_assert_eq!(sample.def.entity, self.kind, "{}", sample.def.name);
        self.samples.push(sample);
    }
}

fn saturate(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Metrics of a server's process: its own entity, tablets and tables.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricSnapshot {
    pub server: Entity,
    pub others: Vec<Entity>,
}

impl MetricSnapshot {
    /// Creates an empty snapshot of the server with this id, `kudu.master` or `kudu.tabletserver`.
    pub fn new(server: &str) -> MetricSnapshot {
        MetricSnapshot { server: Entity::new(EntityKind::Server, server), others: Vec::new() }
    }

    /// Returns all entities, the server first, the others by kind and id.
    pub fn into_entities(mut self) -> Vec<Entity> {
        self.others.sort_by(|a, b| (a.kind, &a.id).cmp(&(b.kind, &b.id)));
        self.others.insert(0, self.server);
        self.others
    }
}
