//! Catalog trials find nothing in a sound catalog, reach what they are for, and report what is injected.

use super::*;

const SEEDS: u64 = 40;

#[test]
fn trials_of_a_sound_catalog_find_nothing_and_reach_what_they_are_for() {
    let mut sum = Reached::default();
    for seed in 0..SEEDS {
        let mut trial = CatalogTrial::create(seed).expect("an empty catalog");
        trial.run();
        assert_eq!(trial.found, None, "seed {seed}");
        let of = trial.reached;
        sum.done += of.done;
        sum.refused += of.refused;
        sum.fail_overs += of.fail_overs;
        sum.lost_turns += of.lost_turns;
        sum.lost_changes += of.lost_changes;
        sum.repairs += of.repairs;
        sum.removals += of.removals;
        sum.replacements += of.replacements;
        sum.creations += of.creations;
    }
    let Reached {
        done,
        refused,
        fail_overs,
        lost_turns,
        lost_changes,
        repairs,
        removals,
        replacements,
        creations,
    } = sum;
    let reached = [done > 800, refused > 300, fail_overs > 100, lost_turns > 20, lost_changes > 5];
    assert!(reached.iter().all(|reached| *reached), "{sum:?}");
    assert!(repairs > 100 && removals > 40 && replacements > 5, "{sum:?}");
    assert!(creations > 0, "{sum:?}");
}

/// Returns a trial in the middle, with tables.
fn with_tables() -> CatalogTrial {
    let mut trial = CatalogTrial::create(7).expect("an empty catalog");
    trial.turn();
    while trial.model.tables.len() < 2 {
        trial.take_step();
        assert_eq!(trial.found, None);
    }
    trial
}

#[test]
fn a_table_that_a_fail_over_loses_is_reported() {
    let mut trial = with_tables();
    let lost = *trial.model.tables.keys().next().expect("there are tables");
    let of_lost: Vec<TabletId> = trial.model.tables[&lost].tablets.values().map(|tablet| tablet.id).collect();
    trial.rows.remove(&SystemRowKey::Table(lost));
    of_lost.into_iter().for_each(|tablet| drop(trial.rows.remove(&SystemRowKey::Tablet(tablet))));
    trial.fail_over("injected", false);
    assert!(trial.found.is_some_and(|what| what.contains("the tables are")));
}

#[test]
fn settings_that_the_catalog_or_a_tablet_lacks_are_reported() {
    let mut trial = with_tables();
    let id = *trial.model.tables.keys().next().expect("there are tables");
    let table = trial.model.tables[&id].clone();
    let entry = trial.master.catalog.tables().find(|entry| entry.id == id).expect("it is in the catalog");
    let extra = entry.record.extra.clone();
    let attributes = table_settings::attributes_of(&table);
    assert!(table_settings::has_settings(&table, &extra, &attributes));
    assert!(!table_settings::has_settings(&table, &extra, &BTreeMap::new()));
    let known = trial.model.tables.get_mut(&id).expect("looked up above");
    known.extra.insert("kudu.table.history_max_age_sec".to_string(), "17".to_string());
    assert!(!table_settings::has_settings(known, &extra, &attributes));
    trial.observe();
    assert!(trial.found.is_some_and(|what| what.contains("it is TableRecord")));
}

#[test]
fn a_replica_that_stays_after_its_tablet_is_reported() {
    let mut trial = with_tables();
    trial.end();
    assert_eq!(trial.found, None);
    let left = group::Replica::new(group::ReplicaMode::Running);
    let server = trial.servers.values_mut().next().expect("there are servers");
    // It is never reported.
    server.replicas.insert(engine::ids::Uuid([3; 16]), left);
    trial.settle("injected");
    assert!(trial.found.is_some_and(|what| what.contains("which has ended")));
}

#[test]
fn a_record_that_does_not_expire_is_reported() {
    let mut trial = with_tables();
    trial.end();
    assert_eq!(trial.found, None);
    // The catalog does not know it.
    trial.rows.insert(SystemRowKey::Table(engine::ids::Uuid([3; 16])), vec![1]);
    trial.config.deleted_metadata_kept = Duration::from_secs(3_600);
    trial.check_expired();
    assert_eq!(trial.found, None, "it is kept for longer than the trial lasts");
    trial.config.deleted_metadata_kept = Duration::from_secs(5);
    trial.check_expired();
    assert!(trial.found.is_some_and(|what| what.contains("is kept for longer")));
}
