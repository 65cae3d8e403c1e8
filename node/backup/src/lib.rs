//! Backup and restore of tables: Parquet files in a directory, full or incremental, each with a manifest.
//!
//! ```text
//! create ─► scan at T, or diff scan from the base's T to T ─► part-*.parquet ─► manifest ─► .kudu-metadata.json
//! hold   ── servers keep the history that the scans need while a run lasts
//! store  ── <root>/<table id>-<name>/<T in ms>/
//! chain  ── pure: the base of the next backup, the backups that a restore reads, those that may go
//! plan   ── the backups that restore a table by name; refuses to pass over a newer one that cannot be read
//! restore ─► verify all files ─► <name>.restoring-<T> ─► rename; see partial_name for long names
//! ```
//!
//! Invariant: a directory without `.kudu-metadata.json` is no backup. That file is written once all others are durable,
//! and removed before them.

pub mod chain;
pub mod create;
pub mod deep;
pub mod files;
pub mod hold;
mod kudu_backup;
mod kudu_metadata;
pub mod manifest;
mod part_reader;
mod partial_name;
pub mod plan;
pub mod prune;
pub mod restore;
mod restore_progress;
mod restore_target;
pub mod storage;
pub mod store;
