//! All targets, by what they read.

mod answers;
mod catalog;
mod files;
mod import;
mod keys;
mod log;
pub mod messages;
mod metadata;
mod pages;
mod predicates;
mod raft;
mod rows;
mod rpc;
mod tablet;
mod text;

pub use files::{delta_bodies, page_bodies, put_changes, put_columns};
pub use rows::table;

use crate::guard::Memory;

/// A decoder or a state machine, and what it promises of any input.
pub struct Target {
    /// Also the name of its corpus's folder and of its dictionary.
    pub name: &'static str,
    pub run: fn(&[u8]),
    pub memory: Memory,
    /// Runs that take longer than a decoder's: damage to their corpora is tried more thinly.
    pub slow: bool,
}

/// For what copies its input a few times and says what is wrong with it.
const SMALL: Memory = Memory { fixed: 64 << 10, per_byte: 64 };
/// For two readers of a stream, with a buffer of 32 KiB each.
const FRAMES: Memory = Memory { fixed: 96 << 10, per_byte: 64 };
/// For messages: a field of two bytes becomes a struct of hundreds.
const MESSAGES: Memory = Memory { fixed: 64 << 10, per_byte: 1024 };
/// For pages: equal cells and shared prefixes take next to nothing, and a page's cells may have 64 MiB.
const PAGES: Memory = Memory { fixed: 200 << 20, per_byte: 256 };
/// For what writes files on a disk in memory: buffers of a MiB.
const FILES: Memory = Memory { fixed: 32 << 20, per_byte: 1024 };

const fn target(name: &'static str, run: fn(&[u8]), memory: Memory) -> Target {
    Target { name, run, memory, slow: false }
}

const fn slow(name: &'static str, run: fn(&[u8]), memory: Memory) -> Target {
    Target { name, run, memory, slow: true }
}

pub const TARGETS: &[Target] = &[
    target("frame", rpc::frame, FRAMES),
    target("negotiate", rpc::negotiate, SMALL),
    target("negotiate_client", rpc::negotiate_client, SMALL),
    target("message", messages::message, MESSAGES),
    target("scan", predicates::scan, MESSAGES),
    target("token", predicates::token, MESSAGES),
    target("predicate", predicates::predicate, FILES),
    target("scan_answer", answers::scan, MESSAGES),
    target("create_table", catalog::create_table, FILES),
    target("alter_table", catalog::alter_table, FILES),
    target("row_ops", rows::row_ops, SMALL),
    target("range_ops", rows::range_ops, SMALL),
    target("key", keys::key, SMALL),
    target("key_order", keys::order, SMALL),
    target("partition_key", keys::partition, FILES),
    target("change", metadata::change, SMALL),
    target("envelope", metadata::envelope, SMALL),
    target("superblock", metadata::superblock, MESSAGES),
    target("consensus_meta", metadata::consensus_meta, MESSAGES),
    target("log_record", metadata::log_record, MESSAGES),
    target("manifest", metadata::manifest, MESSAGES),
    target("page_index", metadata::page_index, MESSAGES),
    target("catalog_row", metadata::catalog_row, MESSAGES),
    target("page", pages::page, PAGES),
    target("encoding", pages::encoding, PAGES),
    target("compression", pages::compression, PAGES),
    target("bloom", pages::bloom, SMALL),
    target("column", files::column, PAGES),
    target("column_file", files::column_file, PAGES),
    target("page_file", files::page_file, FILES),
    target("delta_file", files::delta_file, PAGES),
    target("delta_order", files::delta_order, FILES),
    target("wal", log::torn, FILES),
    target("wal_damage", log::damaged, FILES),
    target("truncations", log::truncations, FILES),
    target("plan", text::plan, MESSAGES),
    target("config", text::config, FILES),
    target("cell_text", text::cell, SMALL),
    target("csv", import::csv, FILES),
    target("parquet", import::parquet, PAGES),
    slow("tablet", tablet::tablet, Memory { fixed: 64 << 20, per_byte: 64 << 10 }),
    slow("raft", raft::raft, Memory { fixed: 64 << 20, per_byte: 64 << 10 }),
];
