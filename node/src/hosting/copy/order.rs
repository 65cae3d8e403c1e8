//! The tablet to copy, its source, and the server that receives it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use engine::disk::Disk;
use engine::error::Result;
use engine::ids::{PeerId, TabletId, Term, Uuid};
use engine::replica::copy::CopyLeader;

use super::CopyConfig;
use super::reserved_space::ReservedSpace;
use crate::hosting::space::SpaceWatch;
use nyala_common::env::Env;
use nyala_common::security::RpcCaller;
use nyala_proto::kudu::consensus::StartTabletCopyRequestPb;

/// Tablet to copy and its source.
pub struct CopyOrder {
    pub tablet: TabletId,
    pub source: PeerId,
    /// `host:port` of the source.
    pub addr: String,
    /// Term of the leader that requested the copy; `None` for an operator's request, which Kudu's tool sends without a
    /// term or, if forced, with the largest one.
    pub term: Option<Term>,
}

impl CopyOrder {
    /// Returns the source if it is the leader that requested the copy: a leader names no other source.
    pub fn leader(&self) -> Option<CopyLeader> {
        self.term.map(|term| CopyLeader { id: self.source, term })
    }

    pub fn of(request: &StartTabletCopyRequestPb) -> Result<CopyOrder> {
        let addr = &request.copy_peer_addr;
        Ok(CopyOrder {
            tablet: Uuid::parse(&request.tablet_id).map_err(|error| error.context("tablet_id"))?,
            source: Uuid::parse(&request.copy_peer_uuid).map_err(|error| error.context("copy_peer_uuid"))?,
            addr: format!("{}:{}", addr.host, addr.port),
            term: request
                .caller_term
                .filter(|term| *term < i64::MAX)
                .and_then(|term| u64::try_from(term).ok()),
        })
    }
}

/// Server that receives the copy.
pub struct CopyTarget<'a> {
    pub env: &'a Env,
    /// Name and credentials of the calls to the source.
    pub caller: RpcCaller,
    pub me: Uuid,
    pub wal: Arc<dyn Disk>,
    pub config: CopyConfig,
    /// Bytes fetched so far.
    pub received: &'a AtomicU64,
    /// Space of the directories, and what copies have reserved of it; `None`: no limit.
    pub space: Option<(&'a SpaceWatch, &'a ReservedSpace)>,
}
