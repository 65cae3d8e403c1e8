//! Consensus metadata: a replica's term, its vote in it, and the newest configuration it knows to be committed.
//!
//! Stored as `codec::seal("NYCM", 1, postcard(ConsensusMeta))` by `replica/consensus_meta_store.rs`. It is durable
//! before any message that depends on it leaves (Raft §5.2), and outlives the tablet's data as part of its tombstone.

use serde::{Deserialize, Serialize};

use super::config::RaftConfig;
use crate::codec;
use crate::error::{Error, Result};
use crate::format_level::StoredFormat;
use crate::ids::{PeerId, TabletId, Term};

const MAGIC: [u8; 4] = *b"NYCM";
const VERSION: u16 = StoredFormat::ConsensusMeta.only_version();

/// Consensus metadata of one replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsensusMeta {
    pub tablet: TabletId,
    pub term: Term,
    /// Candidate that this replica voted for in `term`.
    pub voted_for: Option<PeerId>,
    /// The newest configuration known to be committed. A pending one is in the log.
    pub committed: RaftConfig,
}

impl ConsensusMeta {
    /// Creates the metadata of a replica that has received no message.
    pub fn new(tablet: TabletId, committed: RaftConfig) -> ConsensusMeta {
        ConsensusMeta { tablet, term: 0, voted_for: None, committed }
    }

    pub fn encode(&self) -> Vec<u8> {
        let payload = postcard::to_stdvec(self).expect("every field can be written");
        codec::seal(MAGIC, VERSION, &payload)
    }

    /// Decodes the output of [`ConsensusMeta::encode`]; `Corrupt` if it is damaged, `Unsupported` if a newer build
    /// wrote it.
    pub fn decode(bytes: &[u8]) -> Result<ConsensusMeta> {
        let (_version, payload) = codec::unseal(MAGIC, VERSION, bytes)?;
        postcard::from_bytes(payload)
            .map_err(|error| Error::corrupt(format!("not consensus metadata: {error}")))
    }

    /// Enters `term` if it is newer, with no vote in it yet. Returns true if anything changed.
    pub fn see_term(&mut self, term: Term) -> bool {
        let newer = term > self.term;
        if newer {
            (self.term, self.voted_for) = (term, None);
        }
        newer
    }

    /// Merges the metadata of a tablet copy's source. The higher term wins, the vote survives unless the term grows,
    /// the source's configuration is taken: this server's persisted vote stays valid.
    pub fn merge(&mut self, source: &ConsensusMeta) {
        self.see_term(source.term);
        self.committed = source.committed.clone();
    }

    /// Opens a new term for `me` if it is the only voter: the term after every known one (`log_term`: that of the last
    /// entry in the log), with its vote.
    ///
    /// Returns the term and vote before, if it did. Then the caller stores the result and may start the core at once
    /// with [`BootState::elected`](super::BootState::elected). Each start opens a term, even if the last one was never
    /// used: entries of it may have reached a learner before they were durable here.
    pub fn elect_only_voter(&mut self, me: PeerId, log_term: Term) -> Option<(Term, Option<PeerId>)> {
        if !self.committed.is_only_voter(me) {
            return None;
        }
        let before = (self.term, self.voted_for);
        self.term = self.term.max(log_term) + 1;
        self.voted_for = Some(me);
        Some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Uuid;
    use crate::raft::config::Peer;

    fn meta(term: Term, vote: Option<u8>, config: u64) -> ConsensusMeta {
        let peers = vec![Peer::voter(Uuid([1; 16]), "a", 1)];
        let committed = RaftConfig { opid_index: Some(config), peers };
        ConsensusMeta { tablet: Uuid::ZERO, term, voted_for: vote.map(|b| Uuid([b; 16])), committed }
    }

    #[test]
    fn consensus_metadata_survives_the_disk_and_damage_is_detected() {
        let stored = meta(7, Some(3), 12).encode();
        assert_eq!(ConsensusMeta::decode(&stored), Ok(meta(7, Some(3), 12)));
        for at in 0..stored.len() {
            let mut bad = stored.clone();
            bad[at] ^= 4;
            assert!(ConsensusMeta::decode(&bad).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_merge_keeps_the_persisted_vote() {
        for (mine, source, merged) in [
            // A vote in the same term survives.
            (meta(5, Some(1), 2), meta(5, Some(2), 9), meta(5, Some(1), 9)),
            // So does one in a higher term, and the term.
            (meta(6, Some(1), 2), meta(5, Some(2), 9), meta(6, Some(1), 9)),
            // A term that grows has no vote yet, whatever the source's vote.
            (meta(4, Some(1), 2), meta(5, Some(2), 9), meta(5, None, 9)),
        ] {
            let mut result = mine.clone();
            result.merge(&source);
            assert_eq!(result, merged);
        }
    }
}
