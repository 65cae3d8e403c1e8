//! Metrics as JSON in Kudu's form.

use std::collections::BTreeMap;

use serde::Serialize;

use super::definition::MetricKind;
use super::histogram::HistogramSnapshot;
use super::merge::{MergedEntity, merge};
use super::query::MetricQuery;
use super::snapshot::{MetricSnapshot, MetricValue, Sample};

#[derive(Serialize)]
struct EntityJson<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    id: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes: &'a BTreeMap<&'static str, String>,
    metrics: Vec<MetricJson>,
}

#[derive(Serialize)]
struct MetricJson {
    name: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<&'static str, String>,
    #[serde(flatten)]
    schema: Option<SchemaJson>,
    #[serde(flatten)]
    value: ValueJson,
}

#[derive(Serialize)]
struct SchemaJson {
    label: String,
    #[serde(rename = "type")]
    kind: &'static str,
    unit: &'static str,
    description: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<&'static str>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ValueJson {
    Integer { value: i64 },
    Real { value: f64 },
    Boolean { value: bool },
    Text { value: String },
    Distribution(Box<DistributionJson>),
}

#[derive(Serialize)]
struct DistributionJson {
    total_count: u64,
    min: u64,
    mean: f64,
    percentile_75: u64,
    percentile_95: u64,
    percentile_99: u64,
    percentile_99_9: u64,
    percentile_99_99: u64,
    max: u64,
    total_sum: u64,
    last: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<Vec<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counts: Option<Vec<u64>>,
}

/// Returns the JSON page that `query` asks for.
pub fn render(snapshot: MetricSnapshot, query: &MetricQuery) -> String {
    let mut entities = snapshot.into_entities();
    query.retain(&mut entities);
    let entities = merge(entities, &query.merge);
    let page: Vec<EntityJson<'_>> = entities.iter().map(|entity| entity_json(entity, query)).collect();
    let text = if query.compact { serde_json::to_string(&page) } else { serde_json::to_string_pretty(&page) };
    text.expect("numbers and texts are JSON")
}

fn entity_json<'a>(entity: &'a MergedEntity, query: &MetricQuery) -> EntityJson<'a> {
    let metrics = entity.samples.iter().map(|sample| metric_json(sample, query)).collect();
    EntityJson { kind: &entity.kind, id: &entity.id, attributes: &entity.attributes, metrics }
}

fn metric_json(sample: &Sample, query: &MetricQuery) -> MetricJson {
    let def = sample.def;
    let schema = query.include_schema.then(|| SchemaJson {
        label: def.label(),
        kind: def.kind.name(),
        unit: def.unit,
        description: def.help,
        level: (def.kind != MetricKind::Histogram).then(|| def.level.name()),
    });
    let value = match &sample.value {
        MetricValue::Integer(value) => ValueJson::Integer { value: *value },
        MetricValue::Real(value) => ValueJson::Real { value: *value },
        MetricValue::Boolean(value) => ValueJson::Boolean { value: *value },
        MetricValue::Text(value) => ValueJson::Text { value: value.clone() },
        MetricValue::Distribution(value) => {
            ValueJson::Distribution(Box::new(distribution(value, query.include_raw_histograms)))
        }
    };
    let labels = sample.labels.iter().cloned().collect();
    MetricJson { name: sample.name(), labels, schema, value }
}

fn distribution(value: &HistogramSnapshot, raw: bool) -> DistributionJson {
    let list = |of: fn(&(u64, u64)) -> u64| raw.then(|| value.buckets.iter().map(of).collect());
    DistributionJson {
        total_count: value.count(),
        min: value.least,
        mean: value.mean(),
        percentile_75: value.quantile(0.75),
        percentile_95: value.quantile(0.95),
        percentile_99: value.quantile(0.99),
        percentile_99_9: value.quantile(0.999),
        percentile_99_99: value.quantile(0.9999),
        max: value.most,
        total_sum: value.sum,
        last: value.last,
        values: list(|(value, _)| *value),
        counts: list(|(_, count)| *count),
    }
}
