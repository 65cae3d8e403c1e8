//! Metrics in Prometheus' text format.
//!
//! - The server's metrics have the names of Kudu 1.18, `kudu_tserver_<name>` and `kudu_master_<name>`, or with
//!   [`Naming::Labelled`] those of 1.19, as all others: `kudu_<name>` with the entity in labels.
//! - Metrics that Kudu lacks are `nyala_<name>`, in base units with Prometheus' suffixes.
//! - Merged entities have the attribute that they were merged by as a label too, so that a table has the same label
//!   `table_name` whether its metrics are merged or a master's.
//! - Distributions are summaries under Kudu's names, and histograms under nyala's.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::definition::{EntityKind, MetricDef, MetricKind};
use super::histogram::HistogramSnapshot;
use super::merge::{MergedEntity, merge};
use super::query::MetricQuery;
use super::snapshot::{MetricSnapshot, MetricValue, Sample};

/// Names of the server's own metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// The role is part of the name.
    ByRole,
    /// The role is a label.
    Labelled,
}

const QUANTILES: [(&str, f64); 5] =
    [("0.75", 0.75), ("0.95", 0.95), ("0.99", 0.99), ("0.999", 0.999), ("0.9999", 0.9999)];
const MICROS: &str = "microseconds";

struct Family {
    help: &'static str,
    kind: &'static str,
    lines: Vec<String>,
}

/// Returns the text page that `query` asks for.
pub fn render(snapshot: MetricSnapshot, query: &MetricQuery, naming: Naming) -> String {
    let mut entities = snapshot.into_entities();
    query.retain(&mut entities);
    let mut families = BTreeMap::new();
    for entity in merge(entities, &query.merge) {
        let (prefix, labels) = names(&entity, naming);
        for sample in &entity.samples {
            add(&mut families, &prefix, &labels, sample);
        }
    }
    let mut text = String::new();
    for (name, Family { help, kind, lines }) in families {
        // Writing to a string does not fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        lines.iter().for_each(|line| text.push_str(line));
    }
    text
}

/// Returns the prefix of Kudu's names and the labels of an entity.
fn names(entity: &MergedEntity, naming: Naming) -> (String, Vec<(&'static str, String)>) {
    let role = match (entity.kind.as_str(), entity.id.as_str()) {
        ("server", "kudu.master") => Some("master"),
        ("server", _) => Some("tserver"),
        _ => None,
    };
    if let (Some(role), Naming::ByRole) = (role, naming) {
        return (format!("kudu_{role}_"), Vec::new());
    }
    let mut labels = vec![("type", role.unwrap_or(&entity.kind).to_owned())];
    if role.is_none() {
        labels.push(("id", entity.id.clone()));
        labels.extend(entity.merged_by.map(|attribute| (attribute, entity.id.clone())));
        labels.extend(entity.attributes.iter().map(|(name, value)| (*name, value.clone())));
        labels.retain(|(name, _)| *name != "partition");
    }
    ("kudu_".to_owned(), labels)
}

fn add(
    families: &mut BTreeMap<String, Family>,
    prefix: &str,
    entity: &[(&'static str, String)],
    sample: &Sample,
) {
    let def = sample.def;
    let name = if def.own { own_name(def, &sample.name()) } else { format!("{prefix}{}", sample.name()) };
    let mut labels = entity.to_vec();
    labels.extend(sample.labels.iter().cloned());
    if !def.own {
        labels.push(("unit_type", def.unit.to_owned()));
    }
    let kind = match def.kind {
        MetricKind::Histogram if !def.own => "summary",
        kind => kind.name(),
    };
    let mut lines = String::new();
    match &sample.value {
        MetricValue::Integer(value) => line(&mut lines, &name, "", &labels, scaled(def, *value as f64)),
        MetricValue::Real(value) => line(&mut lines, &name, "", &labels, scaled(def, *value)),
        MetricValue::Boolean(value) => line(&mut lines, &name, "", &labels, f64::from(u8::from(*value))),
        // Prometheus has no texts.
        MetricValue::Text(_) => return,
        MetricValue::Distribution(value) if def.own => histogram(&mut lines, &name, &labels, def, value),
        MetricValue::Distribution(value) => summary(&mut lines, &name, &labels, value),
    }
    let family = families.entry(name).or_insert(Family { help: def.help, kind, lines: Vec::new() });
    family.lines.push(lines);
}

/// Returns the name of a metric that Kudu lacks.
fn own_name(def: &MetricDef, name: &str) -> String {
    let unit = match def.unit {
        MICROS => "_seconds",
        "bytes" => "_bytes",
        _ => "",
    };
    let total = if def.kind == MetricKind::Counter { "_total" } else { "" };
    format!("nyala_{name}{unit}{total}")
}

/// Returns the names under which servers show a metric; both roles have names of their own.
pub fn names_of(def: &MetricDef) -> Vec<String> {
    match (def.own, def.entity) {
        (true, _) => vec![own_name(def, def.name)],
        (false, EntityKind::Server) => {
            ["master", "tserver"].map(|role| format!("kudu_{role}_{}", def.name)).to_vec()
        }
        (false, _) => vec![format!("kudu_{}", def.name)],
    }
}

fn scaled(def: &MetricDef, value: f64) -> f64 {
    if def.own && def.unit == MICROS { value / 1e6 } else { value }
}

fn summary(out: &mut String, name: &str, labels: &[(&'static str, String)], value: &HistogramSnapshot) {
    let mut quantile = |share: &str, value: u64| {
        let labels = [labels, &[("quantile", share.to_owned())]].concat();
        line(out, name, "", &labels, value as f64);
    };
    quantile("0", value.least);
    for (share, number) in QUANTILES {
        quantile(share, value.quantile(number));
    }
    quantile("1", value.most);
    line(out, name, "_sum", labels, value.sum as f64);
    line(out, name, "_count", labels, value.count() as f64);
}

/// Bounds of the buckets double from 16 µs to 134 s.
const BOUNDS: u32 = 24;

fn histogram(
    out: &mut String,
    name: &str,
    labels: &[(&'static str, String)],
    def: &MetricDef,
    value: &HistogramSnapshot,
) {
    let mut bucket = |bound: &str, count: u64| {
        let labels = [labels, &[("le", bound.to_owned())]].concat();
        line(out, name, "_bucket", &labels, count as f64);
    };
    for bound in (0..BOUNDS).map(|at| 16_u64 << at) {
        let below = value.buckets.iter().filter(|(value, _)| *value <= bound).map(|(_, count)| count).sum();
        bucket(&scaled(def, bound as f64).to_string(), below);
    }
    bucket("+Inf", value.count());
    line(out, name, "_sum", labels, scaled(def, value.sum as f64));
    line(out, name, "_count", labels, value.count() as f64);
}

fn line(out: &mut String, name: &str, suffix: &str, labels: &[(&'static str, String)], value: f64) {
    let escape = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let parts: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect();
    let labels = if parts.is_empty() { String::new() } else { format!("{{{}}}", parts.join(", ")) };
    // Writing to a string does not fail.
    let _ = writeln!(out, "{name}{suffix}{labels} {value}");
}
