//! Messages and replies that wait until metadata is durable.

use std::collections::VecDeque;

use super::config::Peer;
use super::interface::{RaftMessage, RaftReply};
use crate::ids::{PeerId, Term};

/// Gated messages and replies, in the order they were created.
#[derive(Default)]
pub(super) struct DurabilityGate {
    /// Number of the metadata emitted last.
    pub(super) emitted: u64,
    /// Number of the last metadata that changed term or vote: output created now depends on it.
    pub(super) required: u64,
    pub(super) durable: u64,
    /// Terms and votes that are not durable yet, by number.
    pub(super) votes: VecDeque<(u64, Term, Option<PeerId>)>,
    pub(super) gated: VecDeque<(u64, GatedOutput)>,
    /// True if the start is noted as a creation.
    pub fresh: bool,
    /// Term and vote before the stored metadata, if that metadata records an election won.
    pub elected: Option<(Term, Option<PeerId>)>,
    /// True if the metadata of the start is not stored.
    pub unstored: bool,
}

pub(super) enum GatedOutput {
    Message(Peer, RaftMessage),
    Reply(u64, RaftReply),
}
