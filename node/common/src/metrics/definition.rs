//! Definition of a metric: name, kind, unit, entity, level and texts.

/// Kind of thing that a metric describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntityKind {
    Server,
    Table,
    Tablet,
}

impl EntityKind {
    pub fn name(self) -> &'static str {
        match self {
            EntityKind::Server => "server",
            EntityKind::Table => "table",
            EntityKind::Tablet => "tablet",
        }
    }
}

/// Kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A count that only grows.
    Counter,
    /// A value that rises and falls, or a text.
    Gauge,
    /// A distribution since the start of the server.
    Histogram,
}

impl MetricKind {
    pub fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

/// Merging of a metric's numbers when entities are merged, for example the tablets of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeKind {
    Sum,
    /// A lag or a level: a sum would grow with the number of tablets.
    Max,
    /// The time since the latest of something.
    Min,
}

/// Importance of a metric, as in Kudu: `Warn` metrics point at trouble, `Debug` ones are for developers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MetricLevel {
    Debug,
    Info,
    Warn,
}

impl MetricLevel {
    pub fn name(self) -> &'static str {
        match self {
            MetricLevel::Debug => "debug",
            MetricLevel::Info => "info",
            MetricLevel::Warn => "warn",
        }
    }

    /// Returns the level with this name.
    pub fn parse(name: &str) -> Option<MetricLevel> {
        [MetricLevel::Debug, MetricLevel::Info, MetricLevel::Warn]
            .into_iter()
            .find(|level| level.name() == name)
    }
}

/// A row of the table of metrics ([`super::table`]).
#[derive(Debug, PartialEq, Eq)]
pub struct MetricDef {
    /// Name without a prefix: Kudu's where the meaning is Kudu's.
    pub name: &'static str,
    pub kind: MetricKind,
    pub entity: EntityKind,
    /// Unit as Kudu names it: `rows`, `bytes`, `microseconds`, …
    pub unit: &'static str,
    pub level: MetricLevel,
    pub merge: MergeKind,
    pub help: &'static str,
    /// True if Kudu has no such metric; its name in Prometheus' text begins with `nyala_`.
    pub own: bool,
}

impl MetricDef {
    /// Returns the title that Kudu's JSON calls `label`: the name in words.
    pub fn label(&self) -> String {
        let words = self.name.split('_').map(|word| {
            let mut letters = word.chars();
            letters
                .next()
                .map_or(String::new(), |first| first.to_uppercase().chain(letters).collect::<String>())
        });
        words.collect::<Vec<_>>().join(" ")
    }
}
