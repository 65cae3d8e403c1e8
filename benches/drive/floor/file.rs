//! A file on the data's disk without a server: appends of a log's block, each made durable.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::echo_server::{LOG_BYTES, preallocate};
use super::{Done, Failure, Operation, Options, System};

/// Bytes of an append.
const BLOCK: [u8; 4096] = [b'x'; 4096];

pub(super) struct AppendClient {
    file: Arc<File>,
    next: Arc<AtomicU64>,
}

/// Opens the file for all clients.
pub(super) fn open(options: &Options) -> Result<Vec<AppendClient>, Failure> {
    if options.operation != Operation::Insert {
        return Err("a file takes inserts only".into());
    }
    let (file, next) = (Arc::new(preallocate(options.address.as_ref())?), Arc::default());
    let client = |_| AppendClient { file: Arc::clone(&file), next: Arc::clone(&next) };
    Ok((0..options.clients).map(client).collect())
}

impl System for AppendClient {
    async fn operate(&mut self, _operation: Operation, _row: u64) -> Done {
        let at = self.next.fetch_add(BLOCK.len() as u64, Ordering::Relaxed) % LOG_BYTES;
        tokio::task::block_in_place(|| {
            self.file.write_all_at(&BLOCK, at)?;
            self.file.sync_data()
        })?;
        Ok(())
    }
}
