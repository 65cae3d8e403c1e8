//! Sockets of the real environment. A task that waits for one is marked so.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::task_registry::{WaitMark, mark};

/// A stream that marks its task while it waits.
pub(super) struct OsStream<S>(pub S);

fn marked<T>(polled: Poll<T>) -> Poll<T> {
    if polled.is_pending() {
        mark(WaitMark::Network);
    }
    polled
}

impl<S: AsyncRead + Unpin> AsyncRead for OsStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        marked(Pin::new(&mut self.0).poll_read(context, out))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for OsStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        marked(Pin::new(&mut self.0).poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        marked(Pin::new(&mut self.0).poll_write_vectored(context, parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        marked(Pin::new(&mut self.0).poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        marked(Pin::new(&mut self.0).poll_shutdown(context))
    }
}
