//! Send queue of one connection: filled by any task, emptied by the connection's task.
//!
//! Frames queued during a socket write leave together in the next write. Small parts are copied next to each other;
//! large parts (scan results) are sent without a copy.

use engine::sync::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

use crate::env::Env;

/// Maximum size in bytes of a part that is copied.
const COPY_BYTES_MAX: usize = 4 << 10;
/// Maximum number of slices in one vectored write.
const SLICES_MAX: usize = 32;

#[derive(Debug, Default)]
pub(super) struct SendQueue {
    state: Mutex<State>,
    emptied: Notify,
}

#[derive(Debug, Default)]
struct State {
    sealed: VecDeque<Bytes>,
    sealed_bytes: usize,
    /// Small parts that follow all of `sealed`.
    tail: BytesMut,
    /// Bytes queued minus bytes written to the socket.
    unsent: usize,
    closed: bool,
    /// Waker of [`SendQueue::send_all`] while that waits for a frame.
    sender: Option<Waker>,
    /// True during [`SendQueue::in_turn`].
    is_turn: bool,
}

/// A frame being queued. It holds the lock, so no other frame can get between its parts.
pub(super) struct FrameWrite<'a> {
    state: MutexGuard<'a, State>,
}

impl FrameWrite<'_> {
    /// Returns the buffer for small parts.
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

    /// Returns the waker of a sender that waits and does not poll by itself.
    fn waiting_sender(&mut self) -> Option<Waker> {
        if self.is_turn { None } else { self.sender.take() }
    }
}

impl SendQueue {
    /// Queues one frame, written by `fill`. Returns false if the connection is closed.
    pub(super) fn put(&self, fill: impl FnOnce(&mut FrameWrite<'_>)) -> bool {
        let mut frame = FrameWrite { state: self.lock() };
        if frame.state.closed {
            return false;
        }
        let before = frame.state.queued();
        fill(&mut frame);
        frame.state.unsent += frame.state.queued() - before;
        let sender = frame.state.waiting_sender();
        drop(frame);
        sender.inspect(Waker::wake_by_ref);
        true
    }

    /// Rejects further frames. [`SendQueue::send_all`] ends when the queued frames are sent.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let sender = state.waiting_sender();
        drop(state);
        sender.inspect(Waker::wake_by_ref);
        self.emptied.notify_one();
    }

    /// Runs a part of the connection's turn. Frames that are queued meanwhile, also by other tasks, cause no wake-up:
    /// the connection polls [`SendQueue::send_all`] after it.
    pub(super) fn in_turn<R>(&self, part: impl FnOnce() -> R) -> R {
        self.lock().is_turn = true;
        let result = part();
        self.lock().is_turn = false;
        result
    }

    /// Waits until at most `limit` bytes are unsent, or the queue is closed. Supports one waiter.
    pub(super) async fn at_most(&self, limit: usize) {
        while self.is_above(limit) {
            self.emptied.notified().await;
        }
    }

    /// Returns true if more than `limit` bytes are unsent and the queue is open.
    pub(super) fn is_above(&self, limit: usize) -> bool {
        let state = self.lock();
        state.unsent > limit && !state.closed
    }

    /// Sends queued frames until the queue is closed and empty, or the stream fails.
    ///
    /// The stream fails with `TimedOut` if the peer accepts no byte for the time `stall`.
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
                poll_fn(|cx| self.poll_filled(cx)).await;
                continue;
            }
            while !batch.is_empty() {
                let written = write_some(env, stream, &batch, stall).await?;
                advance(&mut batch, written);
                self.lock().unsent -= written;
                self.emptied.notify_one();
            }
            // A stream with a buffer of its own (TLS) waits for the peer here.
            match stall {
                None => stream.flush().await?,
                Some(stall) => env.timeout(stall, stream.flush()).await.ok_or_else(timed_out)??,
            }
        }
    }

    /// Is ready when a frame is queued or the queue is closed. Supports one sender.
    fn poll_filled(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.queued() > 0 || state.closed {
            state.sender = None;
            return Poll::Ready(());
        }
        state.sender = Some(cx.waker().clone());
        Poll::Pending
    }

    fn take(&self) -> (VecDeque<Bytes>, bool) {
        let mut state = self.lock();
        state.seal();
        state.sealed_bytes = 0;
        (std::mem::take(&mut state.sealed), state.closed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
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
        Some(stall) => env.timeout(stall, write).await.ok_or_else(timed_out)??,
    };
    if written == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(written) }
}

fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the peer accepts no bytes")
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

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::env::mem_net;

    /// Stream that takes everything and counts the writes.
    #[derive(Default)]
    struct CountingStream {
        writes: Arc<AtomicUsize>,
    }

    impl AsyncWrite for CountingStream {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.writes.fetch_add(1, Ordering::Relaxed);
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[derive(Default)]
    struct CountingWaker(AtomicUsize);

    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn put(queue: &SendQueue) {
        assert!(queue.put(|frame| frame.small().extend_from_slice(b"frame")));
    }

    #[tokio::test]
    async fn frames_of_a_turn_leave_in_one_write_and_wake_nobody() {
        let (queue, env) = (SendQueue::default(), mem_net::env());
        let mut stream = CountingStream::default();
        let (writes, wakes) = (stream.writes.clone(), Arc::new(CountingWaker::default()));
        let waker = Waker::from(wakes.clone());
        let mut cx = Context::from_waker(&waker);
        let mut sending = pin!(queue.send_all(&env, &mut stream, None));
        assert!(sending.as_mut().poll(&mut cx).is_pending());
        queue.in_turn(|| (0..3).for_each(|_| put(&queue)));
        assert_eq!((writes.load(Ordering::Relaxed), wakes.0.load(Ordering::Relaxed)), (0, 0));
        assert!(sending.as_mut().poll(&mut cx).is_pending());
        assert_eq!((writes.load(Ordering::Relaxed), wakes.0.load(Ordering::Relaxed)), (1, 0));
        put(&queue);
        put(&queue);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "outside of a turn the sender is woken, once");
        assert!(sending.as_mut().poll(&mut cx).is_pending());
        assert_eq!(writes.load(Ordering::Relaxed), 2);
        queue.close();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 2);
        assert!(sending.as_mut().poll(&mut cx).is_ready());
    }
}
