//! What one connection still has to send: filled by anyone, emptied by the connection's own task.
//!
//! Frames that pile up while a write is under way leave together in the next one. Small parts are copied next to
//! each other, large ones (scan results) are sent from where they are.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

use crate::env::Env;

/// Parts up to this size are copied next to their neighbours.
const COPY_BYTES_MAX: usize = 4 << 10;
/// Slices offered to one write.
const SLICES_MAX: usize = 32;

#[derive(Debug, Default)]
pub(super) struct Outbox {
    state: Mutex<State>,
    filled: Notify,
    emptied: Notify,
}

#[derive(Debug, Default)]
struct State {
    sealed: VecDeque<Bytes>,
    sealed_bytes: usize,
    /// Small parts, after all of `sealed`.
    tail: BytesMut,
    /// Bytes put, less bytes written.
    unsent: usize,
    closed: bool,
}

/// A frame being put; nothing else gets between its parts.
pub(super) struct Put<'a> {
    state: MutexGuard<'a, State>,
}

impl Put<'_> {
    /// Where small parts are written.
    pub(super) fn small(&mut self) -> &mut BytesMut {
        &mut self.state.tail
    }

    pub(super) fn part(&mut self, bytes: Bytes) {
        if bytes.len() <= COPY_BYTES_MAX {
            self.state.tail.extend_from_slice(&bytes);
        } else {
            self.state.seal();
            self.state.push(bytes);
        }
    }
}

impl State {
    fn seal(&mut self) {
        if !self.tail.is_empty() {
            let tail = self.tail.split().freeze();
            self.push(tail);
        }
    }

    fn push(&mut self, bytes: Bytes) {
        self.sealed_bytes += bytes.len();
        self.sealed.push_back(bytes);
    }

    fn queued(&self) -> usize {
        self.tail.len() + self.sealed_bytes
    }
}

impl Outbox {
    /// Puts one frame through `fill`; false if the connection is closed.
    pub(super) fn put(&self, fill: impl FnOnce(&mut Put<'_>)) -> bool {
        let mut put = Put { state: self.lock() };
        if put.state.closed {
            return false;
        }
        let before = put.state.queued();
        fill(&mut put);
        put.state.unsent += put.state.queued() - before;
        drop(put);
        self.filled.notify_one();
        true
    }

    /// Nothing more is taken; [`Outbox::send_all`] ends when what is there was sent.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_one();
        self.emptied.notify_one();
    }

    /// Waits until at most `limit` bytes wait to be sent, or the outbox is closed. For one waiter.
    pub(super) async fn at_most(&self, limit: usize) {
        while self.is_above(limit) {
            self.emptied.notified().await;
        }
    }

    fn is_above(&self, limit: usize) -> bool {
        let state = self.lock();
        state.unsent > limit && !state.closed
    }

    /// Sends what is put, until the outbox is closed and empty, or the stream fails.
    ///
    /// `stall`: a peer that takes no byte for this long counts as gone.
    pub(super) async fn send_all(
        &self,
        env: &Env,
        stream: &mut (impl AsyncWrite + Unpin),
        stall: Option<Duration>,
    ) -> io::Result<()> {
        loop {
            let (mut batch, closed) = self.take();
            if batch.is_empty() {
                if closed {
                    return Ok(());
                }
                self.filled.notified().await;
                continue;
            }
            while !batch.is_empty() {
                let written = write_some(env, stream, &batch, stall).await?;
                advance(&mut batch, written);
                self.lock().unsent -= written;
                self.emptied.notify_one();
            }
            stream.flush().await?;
        }
    }

    fn take(&self) -> (VecDeque<Bytes>, bool) {
        let mut state = self.lock();
        state.seal();
        state.sealed_bytes = 0;
        (std::mem::take(&mut state.sealed), state.closed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no one panics holding this lock")
    }
}

async fn write_some(
    env: &Env,
    stream: &mut (impl AsyncWrite + Unpin),
    batch: &VecDeque<Bytes>,
    stall: Option<Duration>,
) -> io::Result<usize> {
    let mut slices = [IoSlice::new(&[]); SLICES_MAX];
    let mut count = 0;
    for (slice, bytes) in slices.iter_mut().zip(batch) {
        *slice = IoSlice::new(bytes);
        count += 1;
    }
    let write = stream.write_vectored(&slices[..count]);
    let written = match stall {
        None => write.await?,
        Some(stall) => {
            let timed_out = || io::Error::new(io::ErrorKind::TimedOut, "the peer takes no bytes");
            env.timeout(stall, write).await.ok_or_else(timed_out)??
        }
    };
    if written == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(written) }
}

fn advance(batch: &mut VecDeque<Bytes>, mut written: usize) {
    while let Some(first) = batch.front_mut() {
        if written < first.len() {
            first.advance(written);
            return;
        }
        written -= first.len();
        batch.pop_front();
    }
}
