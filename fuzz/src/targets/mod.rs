//! All targets, by the inputs that they read.

mod backups;
mod catalog;
mod column_files;
pub mod credentials;
mod import;
pub mod kerberos;
mod keys;
pub mod messages;
mod metadata;
pub mod network_services;
mod pages;
mod predicates;
mod raft;
mod replies;
mod rows;
mod rpc;
mod tablet;
mod text;
mod wal;

pub use column_files::{delta_bodies, page_bodies, put_changes, put_columns};
pub use rows::table;

use crate::memory_guard::MemoryLimit;

/// A decoder or a state machine, and its property for any input.
pub struct Target {
    /// Name of the target, of its corpus's folder and of its dictionary.
    pub name: &'static str,
    pub run: fn(&[u8]),
    pub memory: MemoryLimit,
    /// True if a run takes longer than a decoder's: its corpus is damaged in fewer places.
    pub slow: bool,
}

/// Limit of targets that copy their input a few times and describe its faults.
const SMALL: MemoryLimit = MemoryLimit { fixed: 64 << 10, per_byte: 64 };
/// Limit of two readers of a stream, with a buffer of 32 KiB each.
const FRAMES: MemoryLimit = MemoryLimit { fixed: 96 << 10, per_byte: 64 };
/// Limit of messages: a field of two bytes becomes a struct of hundreds.
const MESSAGES: MemoryLimit = MemoryLimit { fixed: 64 << 10, per_byte: 1024 };
/// Limit of pages: equal cells and shared prefixes take next to nothing, and a page may have 64 MiB of cells.
const PAGES: MemoryLimit = MemoryLimit { fixed: 200 << 20, per_byte: 256 };
/// Limit of targets that write files on a disk in memory: buffers of a MiB.
const FILES: MemoryLimit = MemoryLimit { fixed: 32 << 20, per_byte: 1024 };

const fn target(name: &'static str, run: fn(&[u8]), memory: MemoryLimit) -> Target {
    Target { name, run, memory, slow: false }
}

const fn slow(name: &'static str, run: fn(&[u8]), memory: MemoryLimit) -> Target {
    Target { name, run, memory, slow: true }
}

pub const TARGETS: &[Target] = &[
    target("frame", rpc::frame, FRAMES),
    target("negotiate", rpc::negotiate, SMALL),
    target("negotiate_client", rpc::negotiate_client, SMALL),
    target("negotiate_ticket", kerberos::server, SMALL),
    target("negotiate_ticket_client", kerberos::client, MESSAGES),
    target("signed_token", credentials::signed_token, MESSAGES),
    target("token_key", credentials::token_key, MESSAGES),
    target("jwt", credentials::jwt, MESSAGES),
    target("jwks", credentials::jwks, MESSAGES),
    target("ntp_packet", network_services::ntp_packet, SMALL),
    target("web_passwords", network_services::web_passwords, SMALL),
    target("web_password_header", network_services::web_password_header, SMALL),
    target("message", messages::message, MESSAGES),
    target("scan", predicates::scan, MESSAGES),
    target("token", predicates::token, MESSAGES),
    target("predicate", predicates::predicate, FILES),
    target("scan_answer", replies::scan, MESSAGES),
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
    target("backup_manifest", backups::backup_manifest, MESSAGES),
    target("page_index", metadata::page_index, MESSAGES),
    target("catalog_row", metadata::catalog_row, MESSAGES),
    target("page", pages::page, PAGES),
    target("encoding", pages::encoding, PAGES),
    target("compression", pages::compression, PAGES),
    target("bloom", pages::bloom, SMALL),
    target("column", column_files::column, PAGES),
    target("column_file", column_files::column_file, PAGES),
    target("page_file", column_files::page_file, FILES),
    target("delta_file", column_files::delta_file, PAGES),
    target("delta_order", column_files::delta_order, FILES),
    target("wal", wal::torn, FILES),
    target("wal_damage", wal::damaged, FILES),
    target("truncations", wal::truncations, FILES),
    target("plan", text::plan, MESSAGES),
    target("config", text::config, FILES),
    target("cell_text", text::cell, SMALL),
    target("csv", import::csv, FILES),
    target("parquet", import::parquet, PAGES),
    slow("tablet", tablet::tablet, MemoryLimit { fixed: 64 << 20, per_byte: 64 << 10 }),
    slow("raft", raft::raft, MemoryLimit { fixed: 64 << 20, per_byte: 64 << 10 }),
];
