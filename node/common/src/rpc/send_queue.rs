//! Send queue of one connection: filled by any task, emptied by the connection's task or by the one that fills it.
//!
//! ```text
//!   put ─▶ frames ── the connection's turn, or other calls in flight ─▶ the connection's task ── one write ─▶ socket
//!                 └─ the connection's only call ── this task, if the socket is idle and takes all at once ──▶ socket
//! ```
//!
//! Frames queued during a socket write leave together in the next write. Small parts are copied next to each other;
//! large parts (scan results) are sent without a copy.

use engine::sync::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use engine::time::Instant;
use engine::turn_slot::TurnSlot;
use tokio::io::AsyncWrite;
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
    /// Socket between two writes.
    socket: TurnSlot<Socket>,
    /// True while the connection's task waits until the socket takes more.
    is_waiting: AtomicBool,
    /// End of the last such wait, in nanoseconds of the monotonic clock.
    last_wait: AtomicU64,
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
    /// True during [`SendQueue::in_turn`].
    is_turn: bool,
}

/// Sending half of a stream, and what it has yet to take.
struct Socket {
    stream: Box<dyn AsyncWrite + Send + Unpin>,
    unsent: VecDeque<Bytes>,
    /// False after a write. A stream with a buffer of its own (TLS) may wait for the peer in its flush.
    is_flushed: bool,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Socket {{ unsent: {} parts, is_flushed: {} }}", self.unsent.len(), self.is_flushed)
    }
}

/// Task that sends a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameSender {
    /// The connection's, with all frames that are queued before it runs.
    Connection,
    /// The one that queues the frame, unless it would have to wait: no other frame is expected soon.
    Here,
}

impl FrameSender {
    /// Returns the sender for a frame of the only call of a connection, and for one of several.
    pub(super) fn of(is_only_call: bool) -> FrameSender {
        if is_only_call { FrameSender::Here } else { FrameSender::Connection }
    }
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
}

impl SendQueue {
    /// Queues one frame, written by `fill`. Returns false if the connection is closed.
    pub(super) fn put(&self, sender: FrameSender, fill: impl FnOnce(&mut FrameWrite<'_>)) -> bool {
        let mut frame = FrameWrite { state: self.lock() };
        if frame.state.closed {
            return false;
        }
        let before = frame.state.queued();
        fill(&mut frame);
        frame.state.unsent += frame.state.queued() - before;
        let is_turn = frame.state.is_turn;
        drop(frame);
        match sender {
            _ if is_turn => {}
            FrameSender::Connection => self.socket.wake_owner(),
            FrameSender::Here => self.send_here(),
        }
        true
    }

    /// Rejects further frames. [`SendQueue::send_all`] ends when the queued frames are sent.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.socket.wake_owner();
        self.emptied.notify_one();
    }

    /// Drops the frames of a closed queue that were not sent.
    pub(super) fn discard(&self) {
        let mut state = self.lock();
        *state = State { closed: state.closed, is_turn: state.is_turn, ..State::default() };
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

    /// Gives the queue the sending half of a stream. It is dropped with the guard.
    pub(super) fn attach(&self, stream: impl AsyncWrite + Send + Unpin + 'static) -> SocketGuard<'_> {
        let socket = Socket { stream: Box::new(stream), unsent: VecDeque::new(), is_flushed: true };
        self.socket.put(socket, false);
        SocketGuard(self)
    }

    /// Sends queued frames until the queue is closed and empty, or the stream fails.
    ///
    /// The stream fails with `TimedOut` if the peer accepts no byte for the time `stall`.
    pub(super) async fn send_all(&self, env: &Env, stall: Option<Duration>) -> io::Result<()> {
        loop {
            let taken = poll_fn(|cx| self.socket.poll_take(cx, |socket, _| self.poll_filled(socket))).await;
            let Some((mut socket, ())) = taken else { return Ok(()) };
            loop {
                let step = poll_fn(|cx| {
                    let step = self.poll_step(&mut socket, cx);
                    if step.is_pending() {
                        self.is_waiting.store(true, Ordering::Relaxed);
                    }
                    step
                });
                let has_more = match stall {
                    None => step.await?,
                    Some(stall) => env.timeout(stall, step).await.ok_or_else(timed_out)??,
                };
                if !has_more {
                    break;
                }
            }
            if self.is_waiting.swap(false, Ordering::Relaxed) {
                self.last_wait.store(env.now().mono.0, Ordering::Relaxed);
            }
            self.socket.put(socket, false);
            if self.is_finished() {
                return Ok(());
            }
        }
    }

    /// Returns true while queued bytes wait for the socket. [`SendQueue::send_all`] fails if they wait for too long.
    pub(super) fn is_waiting(&self) -> bool {
        self.is_waiting.load(Ordering::Relaxed)
    }

    /// Returns the time at which the last bytes that waited for the socket were sent.
    pub(super) fn last_wait(&self) -> Instant {
        Instant(self.last_wait.load(Ordering::Relaxed))
    }

    /// Closes the sending half in order.
    pub(super) async fn shutdown(&self) -> io::Result<()> {
        // A task that still writes ends at once, and the stream is dropped after it.
        let Some(mut socket) = self.socket.visit() else { return Ok(()) };
        poll_fn(|cx| Pin::new(&mut socket.stream).poll_shutdown(cx)).await
    }

    /// Sends what is queued on this task, as far as the socket takes it at once. The connection's task sends the rest,
    /// and meets the errors.
    fn send_here(&self) {
        let Some(mut socket) = self.socket.visit() else { return self.socket.wake_owner() };
        let mut cx = Context::from_waker(Waker::noop());
        for _step in 0..STEPS_HERE_MAX {
            match self.poll_step(&mut socket, &mut cx) {
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Ok(false)) => return socket.end(false),
                Poll::Ready(Err(_)) | Poll::Pending => break,
            }
        }
        socket.end(true);
    }

    /// Writes or flushes once. Returns false if nothing is left.
    fn poll_step(&self, socket: &mut Socket, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if socket.unsent.is_empty() {
            socket.unsent = self.take();
        }
        if !socket.unsent.is_empty() {
            let written = ready!(poll_write(socket, cx))?;
            advance(&mut socket.unsent, written);
            // The queue may have been discarded during the write.
            let mut state = self.lock();
            state.unsent = state.unsent.saturating_sub(written);
            drop(state);
            self.emptied.notify_one();
            return Poll::Ready(Ok(true));
        }
        if socket.is_flushed {
            return Poll::Ready(Ok(false));
        }
        ready!(Pin::new(&mut socket.stream).poll_flush(cx))?;
        socket.is_flushed = true;
        Poll::Ready(Ok(true))
    }

    /// Is ready when a frame is queued or the queue is closed.
    fn poll_filled(&self, socket: &Socket) -> Poll<()> {
        let state = self.lock();
        let is_idle = state.queued() == 0 && socket.unsent.is_empty() && socket.is_flushed;
        if is_idle && !state.closed { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Returns true if the queue is closed and empty.
    fn is_finished(&self) -> bool {
        let state = self.lock();
        state.closed && state.queued() == 0
    }

    fn take(&self) -> VecDeque<Bytes> {
        let mut state = self.lock();
        state.seal();
        state.sealed_bytes = 0;
        std::mem::take(&mut state.sealed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Most writes and flushes of a task that is not the connection's: one of each, and the check that nothing is left.
const STEPS_HERE_MAX: usize = 3;

/// The sending half of a queue's stream; dropped with it.
pub(super) struct SocketGuard<'a>(&'a SendQueue);

impl Drop for SocketGuard<'_> {
    fn drop(&mut self) {
        self.0.socket.close();
    }
}

/// Writes some of what the socket has yet to take.
fn poll_write(socket: &mut Socket, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
    let mut slices = [IoSlice::new(&[]); SLICES_MAX];
    let mut count = 0;
    for (slice, bytes) in slices.iter_mut().zip(&socket.unsent) {
        *slice = IoSlice::new(bytes);
        count += 1;
    }
    socket.is_flushed = false;
    match ready!(Pin::new(&mut socket.stream).poll_write_vectored(cx, &slices[..count]))? {
        0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        written => Poll::Ready(Ok(written)),
    }
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
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use tokio::io::AsyncReadExt;

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

    fn put(queue: &SendQueue, sender: FrameSender) {
        assert!(queue.put(sender, |frame| frame.small().extend_from_slice(b"frame")));
    }

    #[tokio::test]
    async fn frames_of_a_turn_leave_in_one_write_and_wake_nobody() {
        let (queue, env) = (SendQueue::default(), mem_net::env());
        let stream = CountingStream::default();
        let (writes, wakes) = (stream.writes.clone(), Arc::new(CountingWaker::default()));
        let waker = Waker::from(wakes.clone());
        let mut cx = Context::from_waker(&waker);
        let _socket = queue.attach(stream);
        let mut sending = pin!(queue.send_all(&env, None));
        assert!(sending.as_mut().poll(&mut cx).is_pending());
        queue.in_turn(|| (0..3).for_each(|_| put(&queue, FrameSender::Here)));
        assert_eq!((writes.load(Ordering::Relaxed), wakes.0.load(Ordering::Relaxed)), (0, 0));
        assert!(sending.as_mut().poll(&mut cx).is_pending());
        assert_eq!((writes.load(Ordering::Relaxed), wakes.0.load(Ordering::Relaxed)), (1, 0));
        put(&queue, FrameSender::Connection);
        put(&queue, FrameSender::Connection);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "outside of a turn the sender is woken, once");
        assert!(sending.as_mut().poll(&mut cx).is_pending());
        assert_eq!(writes.load(Ordering::Relaxed), 2);
        put(&queue, FrameSender::Here);
        assert_eq!((writes.load(Ordering::Relaxed), wakes.0.load(Ordering::Relaxed)), (3, 1), "sent here");
        queue.close();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 2);
        assert!(sending.as_mut().poll(&mut cx).is_ready());
    }

    /// A stream that takes no more leaves the frame to the connection's task, which sends it later.
    #[tokio::test]
    async fn a_full_socket_leaves_the_frame_to_the_connection() {
        let (queue, env) = (SendQueue::default(), mem_net::env());
        let (near, mut far) = tokio::io::duplex(7);
        let sending = async {
            let _socket = queue.attach(near);
            queue.send_all(&env, None).await
        };
        let sends = async {
            put(&queue, FrameSender::Here);
            put(&queue, FrameSender::Here);
            assert!(queue.is_above(0), "two frames are longer than the pipe");
            let mut received = [0; 10];
            far.read_exact(&mut received).await.expect("all arrives");
            assert_eq!(&received, b"frameframe");
            queue.close();
        };
        let (sent, ()) = tokio::join!(sending, sends);
        sent.expect("the stream is good");
    }
}
