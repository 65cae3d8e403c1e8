//! Gauges and counters of a quiet tablet server, and of its tablets, are what its replicas have at the same time: their
//! number by state and role, term, rows, sizes, and rows written by kind. Nothing is in flight and no job runs.

use std::collections::BTreeMap;

use super::Violation;

/// Name of this oracle.
pub const NAME: &str = "tablet gauges";

/// Integers of one entity, by name.
pub type GaugeValues = BTreeMap<&'static str, i64>;

/// Gauges and counters of a tablet server, or of a tablet there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntityGauges {
    pub server: String,
    /// Id of the tablet; `None` for the server's own.
    pub tablet: Option<String>,
    pub told: GaugeValues,
    /// Those that are known otherwise. Others are not checked.
    pub wanted: GaugeValues,
}

/// Reports gauges that have other values than they are to have, or none.
pub fn check(entities: &[EntityGauges]) -> Vec<Violation> {
    entities.iter().flat_map(faults).collect()
}

fn faults(entity: &EntityGauges) -> Vec<Violation> {
    let EntityGauges { server, tablet, told, wanted } = entity;
    let place = tablet.as_ref().map_or(server.clone(), |tablet| format!("{server}, tablet {tablet},"));
    let differs = wanted.iter().filter(|(name, value)| told.get(*name) != Some(*value));
    let what = differs.map(|(name, value)| {
        let told = told.get(name);
        Violation::new(NAME, format!("{place} has the metric {name} {told:?}, which is to be {value}"))
    });
    what.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_have_the_values_of_replicas() {
        let wanted = GaugeValues::from([("num_raft_leaders", 2), ("active_scanners", 0)]);
        let found = |change: fn(&mut GaugeValues)| {
            let mut told = GaugeValues::from([("other", 9)]);
            told.extend(wanted.clone());
            change(&mut told);
            let (server, wanted) = ("t0".to_string(), wanted.clone());
            check(&[EntityGauges { server, tablet: None, told, wanted }]).len()
        };
        assert_eq!(found(|_| {}), 0);
        assert_eq!(found(|told| told.extend([("num_raft_leaders", 3)])), 1);
        assert_eq!(found(|told| told.retain(|name, _| *name != "active_scanners")), 1);
        assert_eq!(found(|told| told.clear()), 2);
    }

    #[test]
    fn a_violation_names_server_and_tablet() {
        let (tablet, wanted) = (Some("a".to_string()), GaugeValues::from([("raft_term", 3)]));
        let entity = EntityGauges { server: "t0".to_string(), tablet, told: GaugeValues::new(), wanted };
        let found = check(&[entity]);
        let message = found.first().map(|violation| violation.message.as_str()).unwrap_or_default();
        assert!(message.contains("t0, tablet a") && message.contains("raft_term"), "{message}");
    }
}
