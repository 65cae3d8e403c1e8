//! Which replicates were taken back: "those above an index, before a place in the log are void".

use std::io;

use serde::{Deserialize, Serialize};

use crate::codec;
use crate::disk::{self, Disk};
use crate::error::{Error, Result};
use crate::ids::OpId;

/// The file beside the segments that keeps them.
pub const FILE: &str = "truncations";
const MAGIC: [u8; 4] = *b"NYWT";
const VERSION: u16 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Void {
    sequence: u64,
    offset: u64,
    /// The last operation that stayed.
    above: OpId,
}

/// All truncations of a log that still touch one of its segments, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Voids {
    list: Vec<Void>,
}

impl Voids {
    /// Whether a replicate in the batch at this place was taken back.
    pub fn covers(&self, sequence: u64, offset: u64, index: u64) -> bool {
        let covers =
            |void: &Void| (sequence, offset) < (void.sequence, void.offset) && index > void.above.index;
        self.list.iter().any(covers)
    }

    /// Notes that what is before this place and after `above` was taken back.
    pub fn add(&mut self, sequence: u64, offset: u64, above: OpId) {
        self.list.push(Void { sequence, offset, above });
    }

    /// The last operation before a segment, given what its header said when it was begun.
    pub fn base(&self, sequence: u64, header: OpId) -> OpId {
        let later = self.list.iter().filter(|void| void.sequence >= sequence);
        later.fold(header, |base, void| if base.index > void.above.index { void.above } else { base })
    }

    pub fn forget_before(&mut self, sequence: u64) {
        self.list.retain(|void| void.sequence >= sequence);
    }

    /// The log was durable up to this place (sequence, offset) when it was last truncated.
    pub fn durable_up_to(&self) -> (u64, u64) {
        self.list.last().map_or((0, 0), |void| (void.sequence, void.offset))
    }

    /// The bytes of the file that keeps them; none if there is nothing to keep.
    pub fn encode(&self) -> Vec<u8> {
        if self.list.is_empty() {
            return Vec::new();
        }
        let payload = postcard::to_stdvec(self).expect("numbers can be encoded");
        codec::seal(MAGIC, VERSION, &payload)
    }

    pub fn write(&self, disk: &dyn Disk, dir: &str) -> io::Result<()> {
        disk::replace_file(disk, &path(dir), &self.encode())
    }

    /// What [`Voids::write`] wrote last; nothing if it never did.
    pub fn read(disk: &dyn Disk, dir: &str) -> Result<Voids> {
        let path = path(dir);
        let bytes = match disk::read_file(disk, &path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Voids::default()),
            Err(error) => return Err(Error::io(format_args!("read {path}"), &error)),
        };
        let (_version, payload) =
            codec::unseal(MAGIC, VERSION, &bytes).map_err(|error| error.context(&path))?;
        let voids: Voids =
            postcard::from_bytes(payload).map_err(|error| Error::corrupt(format!("{path}: {error}")))?;
        if !voids.list.is_sorted_by_key(|void| (void.sequence, void.offset)) {
            return Err(Error::corrupt(format!("{path}: truncations are not in order")));
        }
        Ok(voids)
    }
}

fn path(dir: &str) -> String {
    format!("{dir}/{FILE}")
}
