//! A catalog rebuilt from replicas, and the check of a catalog's rows: each fault is named.

use std::collections::BTreeMap;

use engine::catalog::{
    ClusterRecord, ConsensusState, FoundReplica, HostPort, PeerRecord, RebuiltCatalog, StoredSystemRow,
    SystemRowWrite, check_catalog, rebuild_catalog,
};
use engine::format_level::FormatLevel;
use engine::ids::{ColumnId, Uuid};
use engine::schema::partition::{HashDimension, Partition, PartitionSchema};
use engine::schema::{ColumnSchema, DataType, Schema};

const CLUSTER: ClusterRecord = ClusterRecord { id: Uuid([0xc; 16]), created: 1, level: FormatLevel::FIRST };

fn partitioning() -> PartitionSchema {
    let hash = vec![HashDimension { columns: vec![ColumnId(0)], buckets: 2, seed: 0 }];
    PartitionSchema { hash, ..PartitionSchema::default() }
}

/// Returns the replica on `server` of the tablet with this hash bucket.
fn replica(server: u8, bucket: u8) -> FoundReplica {
    let schema = Schema::new(vec![ColumnSchema::new(0, "k", DataType::Int32)], 1).expect("a schema");
    let peer = |n: u8| PeerRecord {
        server: Uuid([n; 16]),
        voter: true,
        address: HostPort { host: format!("s{n}"), port: 7050 },
        promote: false,
        replace: false,
    };
    let partition: &Partition = &partitioning().partitions_of(&Default::default())[usize::from(bucket)];
    FoundReplica {
        server: Uuid([server; 16]),
        tablet: Uuid([0x10 + bucket; 16]),
        table: Uuid([0xa; 16]),
        table_name: "t".to_string(),
        schema,
        version: 0,
        partition_schema: partitioning(),
        partition: partition.clone(),
        extra: BTreeMap::from([("nyala.table.owner".to_string(), "ann".to_string())]),
        has_data: true,
        consensus: ConsensusState {
            term: 1,
            leader: None,
            config_index: -1,
            peers: (1..=3).map(peer).collect(),
        },
    }
}

fn rebuild(replicas: Vec<FoundReplica>) -> RebuiltCatalog {
    rebuild_catalog(&CLUSTER, 7, &[], replicas)
}

fn stored(rows: &[SystemRowWrite]) -> Vec<StoredSystemRow> {
    let row = |row: &SystemRowWrite| {
        let (entry_type, entry_id) = row.key.columns();
        StoredSystemRow { entry_type, entry_id, metadata: row.metadata.clone().expect("a new row") }
    };
    rows.iter().map(row).collect()
}

fn findings(rows: &[StoredSystemRow]) -> String {
    check_catalog(rows).findings.iter().map(|finding| format!("{finding}\n")).collect()
}

#[test]
fn whole_replicas_give_a_sound_catalog() {
    let rebuilt = rebuild(vec![replica(1, 0), replica(2, 0), replica(1, 1), replica(3, 1)]);
    assert_eq!(rebuilt.findings, []);
    let check = check_catalog(&stored(&rebuilt.rows));
    assert_eq!((check.tables, check.tablets, check.findings), (1, 2, Vec::new()));
}

#[test]
fn faults_of_the_replicas_are_named() {
    let show = |replicas| {
        let lines = rebuild(replicas).findings.into_iter().map(|finding| format!("{finding}\n"));
        lines.collect::<String>()
    };
    let old = FoundReplica { extra: BTreeMap::new(), ..replica(1, 0) };
    let tombstone = FoundReplica { has_data: false, ..replica(1, 1) };
    expect_test::expect![[r#"
        ERROR: table "t" has no tablet for hash bucket [1] of range [, )
        WARNING: tablet 11111111111111111111111111111111 has only tombstones on these servers; it is not restored
    "#]].assert_eq(&show(vec![old, replica(2, 0), tombstone]));
    let other = FoundReplica { table: Uuid([0xb; 16]), tablet: Uuid([0x20; 16]), ..replica(1, 0) };
    let other_2 = FoundReplica { server: Uuid([2; 16]), ..other.clone() };
    let whole = || vec![replica(1, 0), replica(2, 0), replica(1, 1), replica(2, 1)];
    expect_test::expect![[r#"
        ERROR: table "t" has no tablet for hash bucket [1] of range [, )
        ERROR: tables 0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a and 0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b have one name, "t"; leave one of them out
    "#]].assert_eq(&show([whole(), vec![other, other_2]].concat()));
    let twice = FoundReplica { tablet: Uuid([0x30; 16]), ..replica(3, 1) };
    expect_test::expect![[r#"
        ERROR: tablets 11111111111111111111111111111111 and 30303030303030303030303030303030 of table "t" overlap
        WARNING: tablet 30303030303030303030303030303030 of table "t": only 1 of its 3 voters are on these servers; name all tablet servers, or leave it out if it was deleted while that server was down
    "#]].assert_eq(&show([whole(), vec![twice.clone()]].concat()));
    let without = rebuild_catalog(&CLUSTER, 7, &[twice.tablet], [whole(), vec![twice]].concat());
    assert_eq!(without.findings, []);
}

#[test]
fn faults_of_the_rows_are_named() {
    let rows = stored(&rebuild(vec![replica(1, 0), replica(2, 0), replica(1, 1), replica(3, 1)]).rows);
    expect_test::expect![[r#"
        ERROR: there is no row with the id of the cluster
    "#]]
    .assert_eq(&findings(&rows[1..]));
    let without_table = [&rows[..1], &rows[2..]].concat();
    expect_test::expect![[r#"
        ERROR: tablet 10101010101010101010101010101010 belongs to no table: 0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a
        ERROR: tablet 11111111111111111111111111111111 belongs to no table: 0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a
    "#]]
    .assert_eq(&findings(&without_table));
    expect_test::expect![[r#"
        ERROR: table "t" has no tablet for hash bucket [1] of range [, )
    "#]]
    .assert_eq(&findings(&rows[..3]));
    let mut rotten = rows.clone();
    rotten[2].metadata[20] ^= 1;
    rotten[3].entry_type = 9;
    let found = findings(&rotten);
    for fault in ["row of type 2", "row of type 9", "table \"t\" has no tablet"] {
        assert!(found.contains(fault), "{found}");
    }
}
