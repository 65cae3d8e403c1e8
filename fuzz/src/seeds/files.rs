//! Stored files, as the engine writes them.

use std::sync::Arc;

use bytes::Bytes;
use engine::catalog::{ClusterRecord, SystemRecord};
use engine::cfile::decoded_page::Dictionary;
use engine::cfile::encoding::{encode, encode_dictionary};
use engine::codec;
use engine::disk::mem::MemDisk;
use engine::format_level::LevelRange;
use engine::ids::{ColumnId, OpId, Uuid};
use engine::raft::{ConsensusMeta, Peer, RaftConfig};
use engine::replica::copy::{CopyManifest, SegmentInfo};
use engine::replica::log_payload::{CommitPayload, LoggedOp};
use engine::replica::{Op, RequestId, WriteOp};
use engine::schema::partition::{Partition, PartitionSchema};
use engine::schema::row_block::ColumnBlock;
use engine::schema::row_change::{RowChangeBuilder, encode_delete};
use engine::schema::row_ops::ClientColumn;
use engine::schema::{DataType, Encoding, PhysicalType};
use engine::tablet::apply::{WriteCounts, WriteResult};
use engine::tablet::deltafile::DeltaDirection;
use engine::tablet::superblock::Superblock;
use engine::time::Timestamp;

use super::seed::Seed;
use crate::targets::{page_bodies, put_changes, put_columns, table};

fn seed(target: &'static str, name: &str, bytes: Vec<u8>) -> Seed {
    (target, name.to_string(), bytes)
}

pub(super) fn seeds() -> Vec<Seed> {
    [metadata(), log_records(), pages(), column_files(), delta_files(), structured()].concat()
}

/// Returns the content of an envelope.
fn unsealed(magic: [u8; 4], sealed: &[u8]) -> Vec<u8> {
    codec::unseal(magic, u16::MAX, sealed).expect("just sealed").1.to_vec()
}

fn metadata() -> Vec<Seed> {
    let partition = PartitionSchema { range_columns: vec![ColumnId(0)], ..PartitionSchema::default() };
    let (tablet, id) = (Uuid([7; 16]), Uuid([9; 16]));
    let meta = Superblock::new(tablet, id, "t", table(), 0, partition, Partition::default());
    let superblock = unsealed(*b"NYTM", &meta.encode());
    let peers = (1..=3).map(|n| Peer::voter(Uuid([n; 16]), "host", 7050)).collect();
    let config = RaftConfig::initial(peers);
    let consensus = unsealed(*b"NYCM", &ConsensusMeta::new(tablet, config.clone()).encode());
    let manifest = CopyManifest {
        superblock: meta.clone(),
        consensus: ConsensusMeta::new(tablet, config.clone()),
        last_op: OpId { term: 1, index: 9 },
        committed: 8,
        file_bytes: Vec::new(),
        segments: vec![SegmentInfo { sequence: 1, bytes: 700 }, SegmentInfo { sequence: 2, bytes: 80 }],
        truncations: Vec::new(),
    };
    let cluster = ClusterRecord { id, created: 5, level: LevelRange::PROGRAM.newest };
    let cluster = unsealed(ClusterRecord::MAGIC, &cluster.seal());
    let update = |build: &dyn Fn(&mut RowChangeBuilder<'_>)| {
        let mut out = Vec::new();
        build(&mut RowChangeBuilder::update(&mut out));
        out
    };
    let set = update(&|change| {
        change.set(ColumnId(1), Some(b"text")).set(ColumnId(300), None);
    });
    vec![
        seed("superblock", "fresh", [&[3][..], &superblock].concat()),
        seed("manifest", "fresh", unsealed(*b"NYCP", &manifest.encode())),
        seed("consensus_meta", "three", consensus),
        seed("consensus_meta", "config", config.encode().to_vec()),
        seed("catalog_row", "cluster", [&[3][..], &cluster].concat()),
        seed("catalog_row", "key", [&[1][..], id.to_string().as_bytes()].concat()),
        seed("change", "update", set),
    ]
}

fn log_records() -> Vec<Seed> {
    let columns: Arc<[ClientColumn]> =
        [ClientColumn { id: ColumnId(300), ty: DataType::Int32, nullable: true }].into();
    let write = WriteOp { columns, rows: Bytes::from_static(b"rows"), indirect: Bytes::from_static(b"x") };
    let request = RequestId { client: b"me".to_vec(), seq: 4, first_incomplete: 3, attempt: 0 };
    let ops = [
        ("write", Op::Write(write)),
        ("no-op", Op::NoOp),
        (
            "alter",
            Op::AlterSchema {
                schema: Box::new(table()),
                version: 2,
                table_name: "t".to_string(),
                extra: Default::default(),
            },
        ),
    ];
    let logged = |(name, op)| {
        let logged = LoggedOp { op, request: Some(request.clone()), auto_increment: 5 };
        let (kind, payload) = logged.encode();
        seed("log_record", name, [&[kind][..], &payload].concat())
    };
    let counts = WriteCounts { inserts: 3, deletes: 200, ..WriteCounts::default() };
    let outcome = WriteResult { counts, ignored: vec![2, 7], ..WriteResult::default() };
    let applied = CommitPayload::Written(outcome).encode();
    // One truncation: before byte 200 of segment 1, above operation 1.3.
    let truncation = vec![1, 1, 200, 1, 1, 3];
    let mut seeds: Vec<Seed> = ops.into_iter().map(logged).collect();
    seeds.push(seed("truncations", "one", truncation));
    seeds.push(seed("log_record", "outcome", [&[0][..], &applied].concat()));
    seeds
}

fn number_of(physical: PhysicalType) -> u8 {
    PhysicalType::ALL.iter().position(|known| *known == physical).expect("all are listed") as u8
}

/// Builds the input of a page: its first byte, then the page.
fn page_seed(name: &str, physical: PhysicalType, nullable: bool, body: &[u8]) -> Seed {
    let what = number_of(physical) + if nullable { 130 } else { 0 };
    seed("page", name, [&[what][..], body].concat())
}

fn pages() -> Vec<Seed> {
    let mut ints = ColumnBlock::new(PhysicalType::Int32, false);
    (0..50i32).for_each(|i| ints.push(Some(&(i / 9 * 1000).to_le_bytes())));
    let mut texts = ColumnBlock::new(PhysicalType::Binary, false);
    (0..30).for_each(|i| texts.push(Some(format!("value {}", i / 2).as_bytes())));
    let mut nulls = ColumnBlock::new(PhysicalType::Bool, true);
    (0..30).for_each(|i| nulls.push((i % 5 > 0).then_some(&[i / 16][..])));
    let codes: Vec<u32> = (0..30).map(|i| i % 3).collect();
    let dictionary = Dictionary { offsets: vec![0, 1, 1, 4], bytes: b"aabc".to_vec() };
    let page = |name, block: &ColumnBlock, physical, encoding, codes: Option<&[u32]>| {
        page_seed(name, physical, false, &encode(block, physical, encoding, codes))
    };
    let nullable = encode(&nulls, PhysicalType::Bool, Encoding::Rle, None);
    vec![
        page("shuffle", &ints, PhysicalType::Int32, Encoding::BitShuffle, None),
        page("rle", &ints, PhysicalType::Int32, Encoding::Rle, None),
        page("plain", &ints, PhysicalType::Int32, Encoding::Plain, None),
        page("prefix", &texts, PhysicalType::Binary, Encoding::Prefix, None),
        page("strings", &texts, PhysicalType::Binary, Encoding::Plain, None),
        page("codes", &texts, PhysicalType::Binary, Encoding::Dict, Some(&codes)),
        page_seed("dictionary", PhysicalType::Binary, false, &encode_dictionary(&dictionary)),
        // 130 is ten times 13: the type stays, and 128 means nullable.
        page_seed("nulls", PhysicalType::Bool, true, &nullable),
    ]
}

/// Joins pieces as the targets split them.
fn joined(pieces: &[Vec<u8>]) -> Vec<u8> {
    let len = |piece: &Vec<u8>| (piece.len() as u16).to_le_bytes();
    pieces.iter().flat_map(|piece| [&len(piece)[..], piece].concat()).collect()
}

fn column_files() -> Vec<Seed> {
    let cells: Vec<_> = (0..60u32).map(|i| (i % 7 != 0).then(|| vec![i as u8 / 9; 4])).collect();
    let mut seeds = Vec::new();
    for (name, physical) in [("texts", PhysicalType::Binary), ("numbers", PhysicalType::Uint32)] {
        let disk = MemDisk::new(1);
        let meta = put_columns(&disk, &cells, physical);
        let mut pieces = page_bodies(&disk, &meta);
        if pieces[1].is_empty() {
            pieces[1] = b"none".to_vec();
        }
        let nullable_with_dictionary = if meta.dictionary.is_some() { 64 } else { 0 };
        // 128 and more means nullable, the sixth bit a dictionary; both keep the type.
        let what = (128..=255u8)
            .find(|what| what % 13 == number_of(physical) && what & 64 == nullable_with_dictionary);
        let head = [what.expect("one of the many"), cells.len() as u8];
        let index_seed =
            [&[cells.len() as u8, if physical == PhysicalType::Binary { 0 } else { 2 }][..], &pieces[0]];
        seeds.push(seed("page_index", name, index_seed.concat()));
        seeds.push(seed("column_file", name, [&head[..], &joined(&pieces)].concat()));
    }
    seeds
}

fn delta_files() -> Vec<Seed> {
    let mut delete = Vec::new();
    encode_delete(&mut delete);
    let mut update = Vec::new();
    RowChangeBuilder::update(&mut update).set(ColumnId(1), Some(b"new"));
    let changes: Vec<_> = (0..20u32)
        .map(|i| {
            (i / 2, Timestamp(100 + u64::from(i)), if i % 5 == 0 { delete.clone() } else { update.clone() })
        })
        .collect();
    let disk = MemDisk::new(1);
    let meta = put_changes(&disk, DeltaDirection::Redo, &changes).expect("there are changes");
    let bodies = crate::targets::delta_bodies(&disk, &meta);
    vec![seed("delta_file", "redo", [&[0][..], &joined(&bodies)].concat())]
}

/// Returns bytes for `arbitrary`: patterns are as good as any.
fn structured() -> Vec<Seed> {
    let pattern = |len: usize, step: usize| -> Vec<u8> { (0..len).map(|i| (i * step + 7) as u8).collect() };
    let targets = [
        "predicate",
        "key_order",
        "partition_key",
        "encoding",
        "column",
        "scan_answer",
        "delta_order",
        "wal_damage",
        "tablet",
        "raft",
        "page_file",
        "compression",
        "bloom",
    ];
    let mut seeds = Vec::new();
    for target in targets {
        for (name, len, step) in [("short", 40, 37), ("long", 300, 101)] {
            seeds.push(seed(target, name, pattern(len, step)));
        }
    }
    seeds
}
