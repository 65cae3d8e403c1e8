//! Access trials find nothing in a sound server, and report a right that is missing.

use super::rights::{ReadShape, Rights};
use super::*;
use sim_plan::client_ops::WriteKind;

const SEEDS: u64 = 12;

#[test]
fn trials_of_a_sound_server_find_nothing() {
    for seed in 0..SEEDS {
        assert_eq!(play(seed), None, "seed {seed}");
    }
}

#[test]
fn an_upsert_needs_two_rights_and_a_count_every_column() {
    let table = draw::table(&mut RandomStream::new(1, "test"));
    let all = table.columns.iter().map(|column| (column.number, true)).collect();
    let none = Rights { scan: false, insert: false, update: false, delete: false, columns: all };
    let inserts = Rights { insert: true, ..none.clone() };
    assert!(inserts.may_write(&[WriteKind::Insert, WriteKind::InsertIgnore]));
    assert!(!inserts.may_write(&[WriteKind::Insert, WriteKind::Upsert]));
    assert!(Rights { update: true, ..inserts }.may_write(&[WriteKind::Upsert]));
    let count = ReadShape::default();
    assert!(none.may_read(&table, &count));
    let mut fewer = none.clone();
    let last = table.columns.last().expect("a table has columns").number;
    fewer.columns.insert(last, false);
    assert!(!fewer.may_read(&table, &count));
    assert!(Rights { scan: true, ..fewer }.may_read(&table, &count));
}
