//! Tablet copy: builds a replica from another server's files and log (paper §3.4).
//!
//! ```text
//!   source                                      sink
//!   superblock, consensus metadata,             admit the caller's term
//!   rowset files, log, as a snapshot       ──►  admit the source's state
//!   (CopyOpen)      manifest                    superblock COPYING, old files removed, metadata merged (CopyStart)
//!                   chunks with CRC32C ──────►  files, then log, each synced
//!   (session ends)                              directories synced, superblock READY                  (CopyFinish)
//! ```
//!
//! Rules:
//!
//! - The source continues all its work meanwhile. It holds its files open, which keeps them readable when a compaction
//!   or log GC removes their names. Order: the log is synced first, so a copy never holds data that its source may
//!   still lose.
//! - An interrupted sink leaves a tombstone with the last operation stored before, or nothing at all. COPYING found at
//!   start is turned into that tombstone ([`tombstone::recover`](super::tombstone::recover)).
//! - Invariant: this server's state never goes backwards. It rejects a caller or a source whose term is lower than that
//!   of its last operation, and a log that ends before it. That makes the paper's split brain impossible.
//!
//! *Not here:* messages and sessions (the node), replay of the copied log ([`Replica::open`](super::Replica::open)).

use serde::{Deserialize, Serialize};

use crate::codec;
use crate::error::{Error, Result};
use crate::ids::{OpId, PeerId, TabletId, Term};
use crate::raft::ConsensusMeta;
use crate::tablet::flush::data_dir;
use crate::tablet::superblock::{DataState, Superblock};

mod sink;
mod source;

pub use sink::{CopySink, FetchRange, is_vote_unknown};
pub use source::{CopySnapshot, CopySource};

const MAGIC: [u8; 4] = *b"NYCP";
/// Version 2 sends the superblock in its stored form.
const VERSION: u16 = 2;

/// A part of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CopyPart {
    /// The [`CopyManifest`], encoded.
    Manifest,
    /// The file at this position among all files of the superblock's rowsets, in their order.
    File(u64),
    /// The log segment of this sequence.
    Segment(u64),
}

/// Bytes of a [`CopyPart`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyChunk {
    pub offset: u64,
    pub data: Vec<u8>,
    /// CRC32C of `data`, from when it was read.
    pub crc32c: u32,
    /// Bytes of the whole part.
    pub total: u64,
}

impl CopyChunk {
    pub fn new(offset: u64, data: Vec<u8>, total: u64) -> CopyChunk {
        CopyChunk { offset, crc32c: crc32c::crc32c(&data), data, total }
    }

    /// Fails with `Corrupt` if the bytes differ from those that were sent.
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

/// Everything that makes the copy, except the bytes of its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyManifest {
    #[serde(with = "superblock")]
    pub superblock: Superblock,
    pub consensus: ConsensusMeta,
    /// The last operation in the log.
    pub last_op: OpId,
    /// The highest index of the log that the source knew to be committed.
    pub committed: u64,
    /// Bytes of each file of the superblock's rowsets, in their order.
    pub file_bytes: Vec<u64>,
    pub segments: Vec<SegmentInfo>,
    /// Content of the log's file of truncations; empty if there is none.
    pub truncations: Vec<u8>,
}

/// A log segment to be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentInfo {
    pub sequence: u64,
    pub bytes: u64,
}

impl CopyManifest {
    pub fn encode(&self) -> Vec<u8> {
        let payload = postcard::to_stdvec(self).expect("every field can be written");
        codec::seal(MAGIC, VERSION, &payload)
    }

    /// Decodes the output of [`CopyManifest::encode`]. `Corrupt` if it is damaged or contradicts itself.
    pub fn decode(bytes: &[u8]) -> Result<CopyManifest> {
        let (version, payload) = codec::unseal(MAGIC, VERSION, bytes)?;
        if version < VERSION {
            return Err(Error::unsupported(format!(
                "the source of the tablet copy speaks format {version}, which is older than {VERSION}; run one build"
            )));
        }
        let manifest: CopyManifest = postcard::from_bytes(payload)
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
        let ascending = self.segments.windows(2).all(|pair| pair[0].sequence < pair[1].sequence);
        if self.segments.is_empty() || !ascending {
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

    /// Bytes to be fetched besides the manifest.
    pub fn total_bytes(&self) -> u64 {
        self.sizes().sum()
    }

    /// Bytes of the log segments among them.
    pub fn log_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    fn sizes(&self) -> impl Iterator<Item = u64> {
        let segments = self.segments.iter().map(|segment| segment.bytes);
        self.file_bytes.iter().copied().chain(segments)
    }
}

/// Local state of a tablet that this server is asked to copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalReplica {
    /// This server.
    pub server: PeerId,
    pub tablet: TabletId,
    pub has: LocalData,
    /// The last operation that was in its log, if known.
    pub last_op: Option<OpId>,
    /// An operation that was in its log, with or without later ones.
    pub at_least: OpId,
    /// The term of its consensus metadata; 0 if it has none.
    pub term: Term,
    /// The last leader whose copy was rejected because this server's vote is unknown.
    pub rejected: Option<RejectedSource>,
}

impl LocalReplica {
    /// The state of a server that has nothing of the tablet.
    pub fn nothing(server: PeerId, tablet: TabletId) -> LocalReplica {
        let has = LocalData::Nothing;
        LocalReplica { server, tablet, has, last_op: None, at_least: OpId::MIN, term: 0, rejected: None }
    }
}

/// Leader that ordered a copy of its own replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyLeader {
    pub id: PeerId,
    /// The term in which it was elected.
    pub term: Term,
}

/// Leader whose copy was rejected because this server's vote is unknown, and the end of its log at that time. The
/// server has given no vote since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RejectedSource {
    pub term: Term,
    pub last_index: u64,
}

impl RejectedSource {
    /// `None` if the source did not lead in its term when its log was read: another leader's log may have been longer.
    pub fn of(leader: Option<CopyLeader>, source: &CopyManifest) -> Option<RejectedSource> {
        let term = source.consensus.term;
        let leads = leader.is_some_and(|leader| leader.term == term);
        leads.then_some(RejectedSource { term, last_index: source.last_op.index })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalData {
    Nothing,
    Tombstone,
    /// A replica that cannot be used: its disk or its files are damaged.
    Failed,
    /// A replica in use.
    Replica,
}

impl LocalReplica {
    /// Checks the term of a leader's request: on arrival, and again with the source's own term. `AlreadyPresent` over a
    /// replica in use, `NotLeader` for a term that is over.
    pub fn admit_term(&self, term: Term) -> Result<()> {
        let tablet = self.tablet;
        if self.has == LocalData::Replica {
            return Err(Error::already_present(format!(
                "tablet {tablet} has a replica in use here: a copy would lose operations that it has acknowledged"
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

    /// Checks the source's state. `Corrupt` if it is another tablet's, `Invalid` if its log ends before this server's
    /// did.
    pub fn check_source_state(&self, source: &CopyManifest) -> Result<()> {
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

    /// The lowest term of a leader that can have everything this server acknowledged. A vote in a later term says
    /// nothing about the log and does not count. If the log's end is unknown, the term is the only bound.
    fn least_term(&self) -> Term {
        match self.last_op {
            Some(op) => op.term,
            None => self.term.max(self.at_least.term),
        }
    }
}

/// A superblock inside a manifest: in its stored form, which includes its version.
mod superblock {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::tablet::superblock::Superblock;

    pub(super) fn serialize<S: Serializer>(meta: &Superblock, out: S) -> Result<S::Ok, S::Error> {
        meta.encode().serialize(out)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Superblock, D::Error> {
        let bytes = Vec::<u8>::deserialize(input)?;
        Superblock::decode(&bytes).map_err(D::Error::custom)
    }
}
