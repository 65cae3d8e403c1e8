//! Tablets of this process: their rows are read without calls.
//!
//! ```text
//! Scanner ── a tablet of this process? ─┬─ yes: LocalTablets ── blocks of columns ─┐
//!                                       └─ no:  calls of its server ── sidecars ───┴─► Arrow batches
//! ```
//!
//! A program that runs a tablet server beside its client saves the encoding of rows and the socket. Only scans at a
//! known snapshot read this way: such a scan has the same rows at any replica that has applied all before it. Scans in
//! key order that resume at another replica, and diff scans, call the server.

use std::fmt;

use engine::error::Result;
use engine::schema::row_block::RowBlock;
use engine::tablet::scan::ScanSpec;

use nyala_common::env::BoxFuture;

/// Tablets of this process.
pub trait LocalTablets: fmt::Debug + Send + Sync {
    /// Opens a scan once the tablet has applied all operations before its snapshot. `None` if the tablet is not in this
    /// process, or is not running: then the scan calls its server.
    fn open<'a>(
        &'a self,
        tablet: &'a str,
        spec: ScanSpec,
    ) -> BoxFuture<'a, Result<Option<Box<dyn LocalScan>>>>;
}

/// Scan of a tablet of this process.
pub trait LocalScan: Send {
    /// Returns the next rows, never an empty block; `None` at the end.
    fn next_block(&mut self) -> BoxFuture<'_, Result<Option<RowBlock>>>;
}
