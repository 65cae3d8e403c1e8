//! Truncations of a log: "replicates above an index, before a position in the log, are void".

use std::io;

use serde::{Deserialize, Serialize};

use crate::codec;
use crate::disk::{self, Disk};
use crate::error::{Error, Result};
use crate::format_level::StoredFormat;
use crate::ids::OpId;

/// Name of the file of truncations, beside the segments.
pub const FILE: &str = "truncations";
const MAGIC: [u8; 4] = *b"NYWT";
const VERSION: u16 = StoredFormat::LogTruncations.only_version();

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Truncation {
    sequence: u64,
    offset: u64,
    /// The last operation that stayed.
    above: OpId,
}

/// All truncations of a log that still touch one of its segments, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Truncations {
    list: Vec<Truncation>,
}

impl Truncations {
    /// Returns true if a replicate in the batch at this position was truncated.
    pub(super) fn covers(&self, sequence: u64, offset: u64, index: u64) -> bool {
        let covers = |truncation: &Truncation| {
            (sequence, offset) < (truncation.sequence, truncation.offset) && index > truncation.above.index
        };
        self.list.iter().any(covers)
    }

    /// Records the truncation of entries before this position and after `above`.
    pub(super) fn add(&mut self, sequence: u64, offset: u64, above: OpId) {
        self.list.push(Truncation { sequence, offset, above });
    }

    /// The last operation before a segment, given the one in its header.
    pub(super) fn base(&self, sequence: u64, header: OpId) -> OpId {
        let later = self.list.iter().filter(|truncation| truncation.sequence >= sequence);
        later.fold(
            header,
            |base, truncation| if base.index > truncation.above.index { truncation.above } else { base },
        )
    }

    pub(super) fn drop_before(&mut self, sequence: u64) {
        self.list.retain(|truncation| truncation.sequence >= sequence);
    }

    /// Position (sequence, offset) up to which the log was durable when it was last truncated.
    pub(super) fn durable_up_to(&self) -> (u64, u64) {
        self.list.last().map_or((0, 0), |truncation| (truncation.sequence, truncation.offset))
    }

    /// Encodes the content of the file; empty if there are no truncations.
    pub(super) fn encode(&self) -> Vec<u8> {
        if self.list.is_empty() {
            return Vec::new();
        }
        let payload = postcard::to_stdvec(self).expect("numbers can be encoded");
        codec::seal(MAGIC, VERSION, &payload)
    }

    pub(super) fn write(&self, disk: &dyn Disk, dir: &str) -> io::Result<()> {
        disk::replace_file(disk, &path(dir), &self.encode())
    }

    /// Reads what [`Truncations::write`] wrote last; empty if it never did.
    pub(super) fn read(disk: &dyn Disk, dir: &str) -> Result<Truncations> {
        let path = path(dir);
        let bytes = match disk::read_file(disk, &path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Truncations::default()),
            Err(error) => return Err(Error::io(format_args!("read {path}"), &error)),
        };
        let (_version, payload) =
            codec::unseal(MAGIC, VERSION, &bytes).map_err(|error| error.context(&path))?;
        let voids: Truncations =
            postcard::from_bytes(payload).map_err(|error| Error::corrupt(format!("{path}: {error}")))?;
        if !voids.list.is_sorted_by_key(|truncation| (truncation.sequence, truncation.offset)) {
            return Err(Error::corrupt(format!("{path}: truncations are not in order")));
        }
        Ok(voids)
    }
}

fn path(dir: &str) -> String {
    format!("{dir}/{FILE}")
}
