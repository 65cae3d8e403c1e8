//! Tablet copy: building a replica from another server's files and log (paper §3.4).
//!
//! ```text
//!   source                                      sink
//!   superblock, consensus metadata,             admit the caller's term
//!   rowset files, log, fixed at one moment ──►  admit the source's state
//!   (CopyOpen)      manifest                    superblock COPYING, old files go, metadata merged     (CopyStart)
//!                   chunks with CRC32C ──────►  files, then log, each synced
//!   (session ends)                              directories synced, superblock READY                  (CopyFinish)
//! ```
//!
//! Rules:
//!
//! - The source goes on with everything meanwhile: it holds its files open, which keeps them readable when a
//!   compaction or the log's collection removes their names. The log is synced first: a copy never holds what its
//!   source may still lose.
//! - Whoever interrupts the sink finds a tombstone with the operation that the server remembered before, or nothing
//!   at all; COPYING found at start is made that tombstone ([`tombstone::recover`](super::tombstone::recover)).
//! - What this server knows is never taken back: not by a caller or a source whose term is lower than that of
//!   its last operation, not by a log that ends before it. That is what makes the paper's split brain impossible.
//!
//! *Not here:* messages and sessions (the node), replaying what was copied ([`Replica::open`](super::Replica::open)).

use serde::{Deserialize, Serialize};

use crate::codec;
use crate::error::{Error, Result};
use crate::ids::{OpId, TabletId, Term};
use crate::raft::ConsensusMeta;
use crate::tablet::flush::data_dir;
use crate::tablet::meta::{DataState, TabletMeta};

mod sink;
mod source;

pub use sink::{CopySink, Wanted};
pub use source::{CopySource, CopyView};

const MAGIC: [u8; 4] = *b"NYCP";
/// 2 sends the superblock as it is stored.
const VERSION: u16 = 2;

/// A piece of what a source serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The [`Manifest`], encoded.
    Manifest,
    /// The file at this place among all files of the superblock's rowsets, in their order.
    File(u64),
    /// The log segment of this sequence.
    Segment(u64),
}

/// Some bytes of a [`Part`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub offset: u64,
    pub data: Vec<u8>,
    /// CRC32C of `data`, from when it was read.
    pub crc32c: u32,
    /// Bytes of the whole part.
    pub total: u64,
}

impl Chunk {
    pub fn new(offset: u64, data: Vec<u8>, total: u64) -> Chunk {
        Chunk { offset, crc32c: crc32c::crc32c(&data), data, total }
    }

    /// `Corrupt` if the bytes are not those that were sent.
    pub fn check(&self) -> Result<()> {
        let found = crc32c::crc32c(&self.data);
        if found != self.crc32c {
            return Err(Error::corrupt(format!(
                "{} bytes at offset {} arrived with checksum {found:08x}, but were sent with {:08x}",
                self.data.len(),
                self.offset,
                self.crc32c
            )));
        }
        Ok(())
    }
}

/// Everything that makes the copy, but for the bytes of its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    #[serde(with = "superblock")]
    pub superblock: TabletMeta,
    pub consensus: ConsensusMeta,
    /// The last operation in the log.
    pub last_op: OpId,
    /// The highest index of it that the source knew to be committed.
    pub committed: u64,
    /// Bytes of each file of the superblock's rowsets, in their order.
    pub file_bytes: Vec<u64>,
    pub segments: Vec<Segment>,
    /// What the log's file of truncations holds; nothing if there is none.
    pub truncations: Vec<u8>,
}

/// A log segment to be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    pub sequence: u64,
    pub bytes: u64,
}

impl Manifest {
    pub fn encode(&self) -> Vec<u8> {
        let payload = postcard::to_stdvec(self).expect("every field can be written");
        codec::seal(MAGIC, VERSION, &payload)
    }

    /// Reads what [`Manifest::encode`] made. `Corrupt` if it is damaged or contradicts itself.
    pub fn decode(bytes: &[u8]) -> Result<Manifest> {
        let (version, payload) = codec::unseal(MAGIC, VERSION, bytes)?;
        if version < VERSION {
            return Err(Error::unsupported(format!(
                "the source of the tablet copy speaks format {version}, which is older than {VERSION}; run one build"
            )));
        }
        let manifest: Manifest = postcard::from_bytes(payload)
            .map_err(|error| Error::corrupt(format!("not the manifest of a tablet copy: {error}")))?;
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<()> {
        let tablet = self.superblock.tablet;
        let bad = |what: String| Err(Error::corrupt(format!("the copy of tablet {tablet}: {what}")));
        if self.superblock.data_state != DataState::Ready {
            return bad(format!("its source is {:?}", self.superblock.data_state));
        }
        if self.consensus.tablet != tablet {
            return bad(format!("its consensus metadata is of tablet {}", self.consensus.tablet));
        }
        if self.last_op < self.superblock.last_op {
            let (last, applied) = (self.last_op, self.superblock.last_op);
            return bad(format!("its log ends with {last}, but {applied} was applied"));
        }
        if self.consensus.term < self.last_op.term {
            let (term, last) = (self.consensus.term, self.last_op);
            return bad(format!("its source is in term {term}, but its log ends with {last}"));
        }
        let files = self.files().count();
        if files != self.file_bytes.len() {
            return bad(format!("it has {files} files, but {} sizes", self.file_bytes.len()));
        }
        let dir = data_dir(tablet);
        let inside = |file: &str| {
            let name = file.strip_prefix(&dir).and_then(|rest| rest.strip_prefix('/'));
            name.is_some_and(|name| !name.is_empty() && !name.contains('/') && name != "." && name != "..")
        };
        if let Some(file) = self.files().find(|file| !inside(file)) {
            return bad(format!("its file {file:?} is not in {dir}"));
        }
        let rising = self.segments.windows(2).all(|pair| pair[0].sequence < pair[1].sequence);
        if self.segments.is_empty() || !rising {
            return bad("its log segments are not in order".to_string());
        }
        if self.sizes().try_fold(0u64, u64::checked_add).is_none() {
            return bad("its parts are larger than any disk".to_string());
        }
        Ok(())
    }

    /// Paths of all files of the rowsets.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.superblock.rowsets.iter().flat_map(|rowset| rowset.files())
    }

    /// Bytes to be fetched beside this.
    pub fn total_bytes(&self) -> u64 {
        self.sizes().sum()
    }

    fn sizes(&self) -> impl Iterator<Item = u64> {
        let segments = self.segments.iter().map(|segment| segment.bytes);
        self.file_bytes.iter().copied().chain(segments)
    }
}

/// What a server has of a tablet that it is asked to copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Local {
    pub tablet: TabletId,
    pub has: Has,
    /// The last operation that was in its log, if it is known.
    pub last_op: Option<OpId>,
    /// An operation that was in its log, whether or not more followed.
    pub at_least: OpId,
    /// Its term, as its consensus metadata says; 0 if it has none.
    pub term: Term,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Has {
    Nothing,
    Tombstone,
    /// A replica that cannot be used: its disk or its files are damaged.
    Failed,
    /// A replica in use.
    Replica,
}

impl Local {
    /// Judges a leader's order by its term: first when it comes, and again by the source's own term when that
    /// is known. `AlreadyPresent` over a replica in use, `NotLeader` for a term that is over.
    pub fn admit_term(&self, term: Term) -> Result<()> {
        let tablet = self.tablet;
        if self.has == Has::Replica {
            return Err(Error::already_present(format!(
                "tablet {tablet} has a replica in use here: a copy would take back what it has acknowledged"
            )));
        }
        let least = self.least_term();
        if term < least {
            let what =
                if self.last_op.is_some() { "the last operation it had" } else { "the newest it knows" };
            return Err(Error::not_leader(format!(
                "the leader's term {term} is over: for tablet {tablet} this server remembers term {least}, that of \
                 {what}"
            )));
        }
        Ok(())
    }

    /// Judges the source's state. `Corrupt` if it is another tablet's, `Invalid` if its log ends before ours did.
    pub fn admit(&self, source: &Manifest) -> Result<()> {
        let tablet = self.tablet;
        if source.superblock.tablet != tablet {
            let found = source.superblock.tablet;
            return Err(Error::corrupt(format!("asked for tablet {tablet}, the source sent tablet {found}")));
        }
        self.admit_term(source.consensus.term)?;
        let known = self.last_op.unwrap_or(self.at_least);
        if source.last_op < known {
            return Err(Error::invalid(format!(
                "the source's log of tablet {tablet} ends with {}, before this server's last operation {known}; \
                 copy from the leader",
                source.last_op
            )));
        }
        Ok(())
    }

    /// The lowest term of a leader that can have everything this server acknowledged. Its vote in a later term
    /// says nothing about its log, and does not count; but if the log's end is not known, the term is all there is.
    fn least_term(&self) -> Term {
        match self.last_op {
            Some(op) => op.term,
            None => self.term.max(self.at_least.term),
        }
    }
}

/// A superblock inside a manifest: in the form in which it is stored, which says its own version.
mod superblock {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::tablet::meta::TabletMeta;

    pub fn serialize<S: Serializer>(meta: &TabletMeta, out: S) -> Result<S::Ok, S::Error> {
        meta.encode().serialize(out)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<TabletMeta, D::Error> {
        let bytes = Vec::<u8>::deserialize(input)?;
        TabletMeta::decode(&bytes).map_err(D::Error::custom)
    }
}
