//! Merging of entities, for example all tablets of a table into one entity.

use std::collections::BTreeMap;

use super::definition::MergeKind;
use super::query::MergeRule;
use super::snapshot::{Entity, MetricValue, Sample};

/// An entity of the reply; merged ones may be of a kind that the server does not have.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MergedEntity {
    pub kind: String,
    pub id: String,
    pub attributes: BTreeMap<&'static str, String>,
    /// Attribute that merged entities had in common; its value is the id.
    pub merged_by: Option<&'static str>,
    pub samples: Vec<Sample>,
}

impl From<Entity> for MergedEntity {
    fn from(entity: Entity) -> MergedEntity {
        let Entity { kind, id, attributes, samples } = entity;
        MergedEntity { kind: kind.name().to_owned(), id, attributes, merged_by: None, samples }
    }
}

/// Merges entities by the first rule of their kind; entities without a rule, or without its attribute, stay.
pub(super) fn merge(entities: Vec<Entity>, rules: &[MergeRule]) -> Vec<MergedEntity> {
    let mut kept = Vec::new();
    let mut merged: BTreeMap<(String, String), MergedEntity> = BTreeMap::new();
    for entity in entities {
        let rule = rules.iter().find(|rule| rule.kind == entity.kind.name());
        let group =
            rule.and_then(|rule| Some((rule, entity.attributes.get_key_value(rule.attribute.as_str())?)));
        let Some((rule, (attribute, id))) = group else {
            kept.push(entity.into());
            continue;
        };
        let (kind, attribute, id) = (rule.merged_kind.clone(), *attribute, id.clone());
        match merged.entry((kind.clone(), id.clone())) {
            std::collections::btree_map::Entry::Vacant(vacant) => {
                vacant.insert(MergedEntity {
                    kind,
                    id,
                    attributes: BTreeMap::new(),
                    merged_by: Some(attribute),
                    samples: entity.samples,
                });
            }
            std::collections::btree_map::Entry::Occupied(mut occupied) => {
                add(occupied.get_mut(), entity.samples)
            }
        }
    }
    kept.extend(merged.into_values());
    kept
}

fn add(entity: &mut MergedEntity, samples: Vec<Sample>) {
    for sample in samples {
        let same = |other: &&mut Sample| {
            std::ptr::eq(other.def, sample.def)
                && other.method == sample.method
                && other.labels == sample.labels
        };
        match entity.samples.iter_mut().find(same) {
            Some(other) => combine(sample.def.merge, &mut other.value, sample.value),
            None => entity.samples.push(sample),
        }
    }
}

/// Merges numbers as their metric says, merges distributions, and joins distinct texts, as Kudu does.
fn combine(kind: MergeKind, value: &mut MetricValue, more: MetricValue) {
    match (value, more) {
        (MetricValue::Integer(value), MetricValue::Integer(more)) => {
            *value = match kind {
                MergeKind::Sum => value.saturating_add(more),
                MergeKind::Max => more.max(*value),
                MergeKind::Min => more.min(*value),
            };
        }
        (MetricValue::Real(value), MetricValue::Real(more)) => {
            *value = match kind {
                MergeKind::Sum => *value + more,
                MergeKind::Max => more.max(*value),
                MergeKind::Min => more.min(*value),
            };
        }
        (MetricValue::Boolean(value), MetricValue::Boolean(more)) => *value |= more,
        (MetricValue::Distribution(value), MetricValue::Distribution(more)) => value.merge(&more),
        (MetricValue::Text(value), MetricValue::Text(more))
            if !value.split(", ").any(|part| part == more) =>
        {
            value.push_str(", ");
            value.push_str(&more);
        }
        // A metric has the same type in all entities.
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::definition::EntityKind;
    use crate::metrics::table;

    #[test]
    fn tablets_are_merged_by_table() {
        let tablet = |id: &str, rows, state: &str| {
            let mut entity = Entity::new(EntityKind::Tablet, id);
            entity.attribute("table_name", "orders");
            entity.counter(&table::ROWS_INSERTED, rows);
            entity.value(&table::TABLET_STATE, MetricValue::Text(state.to_owned()));
            entity
        };
        let entities = vec![
            Entity::new(EntityKind::Server, "kudu.tabletserver"),
            tablet("a", 3, "RUNNING"),
            tablet("b", 4, "FAILED"),
            tablet("c", 5, "RUNNING"),
        ];
        let rule =
            MergeRule { kind: "tablet".into(), merged_kind: "table".into(), attribute: "table_name".into() };
        let merged = merge(entities, &[rule]);
        assert_eq!(merged.len(), 2);
        assert_eq!((merged[1].kind.as_str(), merged[1].id.as_str()), ("table", "orders"));
        assert_eq!((merged[0].merged_by, merged[1].merged_by), (None, Some("table_name")));
        let values: Vec<&MetricValue> = merged[1].samples.iter().map(|sample| &sample.value).collect();
        assert_eq!(values, [&MetricValue::Integer(12), &MetricValue::Text("RUNNING, FAILED".into())]);
    }

    /// A table that has a hundred tablets on a server is not further behind than each of them.
    #[test]
    fn lags_are_merged_by_the_largest_and_ages_by_the_smallest() {
        let tablet = |at: u64| {
            let mut entity = Entity::new(EntityKind::Tablet, format!("{at:02}"));
            entity.attribute("table_name", "orders");
            entity.gauge(&table::SAFE_TIME_LAG, 1_000_000);
            entity.gauge(&table::RAFT_REPLICA_LAG, 200 - at);
            entity.gauge(&table::LAST_WRITE_ELAPSED_TIME, 7 + at);
            entity.gauge(&table::ON_DISK_SIZE, 10);
            entity.value(&table::AVERAGE_DISKROWSET_HEIGHT, MetricValue::Real(1.5));
            entity
        };
        let rule =
            MergeRule { kind: "tablet".into(), merged_kind: "table".into(), attribute: "table_name".into() };
        let merged = merge((0..100).map(tablet).collect(), &[rule]);
        let values: Vec<_> = merged[0].samples.iter().map(|sample| sample.value.clone()).collect();
        let integers = [1_000_000, 200, 7, 1000].map(MetricValue::Integer);
        assert_eq!(values, [&integers[..], &[MetricValue::Real(1.5)]].concat());
    }
}
