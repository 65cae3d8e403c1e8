//! The sink side of a tablet copy: fetches a tablet into its slot.

use std::sync::atomic::Ordering;

use engine::error::{Error, Result};
use engine::ids::Term;
use engine::note::Note;
use engine::note::raft::{NotedDataState, NotedRole, PostState, RaftAction, RaftNote};
use engine::replica::copy::{CopyManifest, CopySink, RejectedSource, is_vote_unknown};

use super::order::{CopyOrder, CopyTarget};
use super::source_client::CopySourceClient;
use crate::hosting::space::CopyBytes;
use crate::hosting::tombstones::CopySlot;
use nyala_common::env::Env;

/// Fetches a tablet into its slot. Calls `on_session` once the source has opened a session. After a failure the caller
/// recovers the previous state from the disk.
pub async fn copy(
    target: &CopyTarget<'_>,
    order: &CopyOrder,
    slot: &CopySlot,
    on_session: impl FnOnce() + Send,
) -> Result<CopyManifest> {
    let mut remote = CopySourceClient::begin(target, order).await?;
    on_session();
    let copied = copy_session(target, order, slot, &mut remote).await;
    remote.end(copied.as_ref().err()).await;
    copied
}

async fn copy_session(
    target: &CopyTarget<'_>,
    order: &CopyOrder,
    slot: &CopySlot,
    remote: &mut CopySourceClient<'_>,
) -> Result<CopyManifest> {
    let env = target.env;
    let manifest = remote.manifest().await?;
    let reserved = match target.space {
        Some((watch, space)) => {
            let (data_dir, log) = (slot.data_dir.path.clone(), manifest.log_bytes());
            let copy = CopyBytes { data_dir, files: manifest.total_bytes() - log, log };
            Some(space.reserve(watch, order.tablet, copy)?)
        }
        None => None,
    };
    let (wal, data) = (target.wal.clone(), slot.data_dir.disk.clone());
    let disks = (wal.clone(), data.clone());
    let rejected = RejectedSource::of(order.leader(), &manifest);
    let begin = async {
        let begin = || {
            slot.remove_leftovers(&*wal)?;
            CopySink::begin(wal, data, &slot.local, order.leader(), manifest)
        };
        let sink = match env.run(begin).await {
            Ok(sink) => {
                env.observer.mark_if(slot.rejected().is_some(), "tablet copy: unknown vote replaced");
                slot.set_rejected(None);
                slot.set_begun();
                sink
            }
            Err(error) => {
                let unknown = env.run(|| is_vote_unknown(&*disks.0, &*disks.1, &slot.local)).await;
                env.observer.mark_if(unknown, "tablet copy: rejected, unknown vote");
                if unknown && rejected.is_some() {
                    slot.set_rejected(rejected);
                }
                return Err(error);
            }
        };
        let term = order.term.unwrap_or(sink.manifest().consensus.term);
        let began = RaftAction::CopyStart { source: order.source, term };
        note(env, &sink, slot, sink.consensus().term, began);
        Ok::<_, Error>(sink)
    };
    let mut sink = slot.alone(begin).await?;
    while let Some(wanted) = sink.wanted() {
        let chunk = remote.fetch(wanted.part, wanted.offset).await?;
        env.run(|| sink.put(wanted.part, &chunk)).await?;
        let bytes = chunk.data.len() as u64;
        target.received.fetch_add(bytes, Ordering::Relaxed);
        if let Some(reserved) = &reserved {
            reserved.on_written(wanted.part, bytes);
        }
    }
    // The replica votes again when it runs, by its own log.
    let term = slot.end_votes(env).await?;
    env.run(|| sink.finish()).await?;
    note(env, &sink, slot, term, RaftAction::CopyFinish);
    Ok(sink.manifest().clone())
}

/// Reports the copy's action and the replica's term to the observer.
fn note(env: &Env, sink: &CopySink, slot: &CopySlot, term: Term, action: RaftAction) {
    let finished = action == RaftAction::CopyFinish;
    let manifest = sink.manifest();
    let post = PostState {
        term,
        last: if finished { manifest.last_op } else { slot.local.last_op.unwrap_or_default() },
        commit: if finished { manifest.committed } else { 0 },
        role: NotedRole::Follower,
        data: if finished { NotedDataState::Ready } else { NotedDataState::Copying },
    };
    let note = Note::Raft(RaftNote { action, post });
    tracing::info!(tablet = %sink.tablet(), %note);
    env.observer.note(sink.tablet(), &note);
}
