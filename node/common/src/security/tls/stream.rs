//! A byte stream inside TLS, after the handshake.

use std::future::Future;
use std::io::{self, IoSlice, Write};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::session::TlsSession;
use crate::env::Stream;

/// Bytes read from the socket at once.
const READ_BYTES: usize = 32 << 10;

/// Encrypted stream around a socket. End of file without the peer's close_notify is an error: the bytes may be cut off.
pub struct TlsStream {
    socket: Stream,
    session: TlsSession,
    /// Bytes of the socket that the session has not taken.
    received: BytesMut,
    /// True after the socket's end of file.
    ended: bool,
}

impl TlsStream {
    /// Continues `socket` inside `session`. `received` are the bytes that were read from the socket after the last
    /// message of the handshake; they belong to the session.
    pub fn new(socket: Stream, session: TlsSession, received: Bytes) -> TlsStream {
        TlsStream { socket, session, received: received.into(), ended: false }
    }

    /// Passes received bytes to the session until there is something to read or nothing is left. Returns true in the
    /// first case. All plaintext must have been read before: the session refuses bytes while it holds a record's.
    fn decrypt(&mut self) -> io::Result<bool> {
        while !self.received.is_empty() {
            let mut bytes = &self.received[..];
            let taken = self.session.connection.read_tls(&mut bytes)?;
            self.received.advance(taken);
            let state = self.session.connection.process_new_packets();
            let state = state.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if state.plaintext_bytes_to_read() > 0 || state.peer_has_closed() {
                return Ok(true);
            }
            if taken == 0 {
                break;
            }
        }
        Ok(false)
    }

    /// Writes encrypted bytes to the socket until none are left.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.session.connection.wants_write() {
            let mut socket = PolledSocket { socket: &mut self.socket, context };
            match self.session.connection.write_tls(&mut socket) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            match this.session.read_plaintext(buffer.initialize_unfilled()) {
                Ok(read) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
            if this.decrypt()? {
                continue;
            }
            // An alert or a key update may have to leave. If the socket is full, the next write sends it.
            if let Poll::Ready(sent) = this.poll_send(context) {
                sent?;
            }
            if this.ended {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            this.received.reserve(READ_BYTES);
            let read = pin!(this.socket.read_buf(&mut this.received)).poll(context);
            if ready!(read)? == 0 {
                this.ended = true;
                // Tells the session, which knows whether the peer closed it in order.
                this.session.connection.read_tls(&mut io::empty())?;
            }
        }
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        loop {
            // The session accepts bytes up to its limit. Encrypted bytes that the socket does not take wait there.
            let written = this.session.connection.writer().write_vectored(slices)?;
            let sent = this.poll_send(context);
            if written > 0 || slices.iter().all(|slice| slice.is_empty()) {
                if let Poll::Ready(Err(error)) = sent {
                    return Poll::Ready(Err(error));
                }
                return Poll::Ready(Ok(written));
            }
            ready!(sent)?;
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(context))?;
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.session.connection.send_close_notify();
        ready!(self.poll_send(context))?;
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

/// A socket as the library writes to it: a write that would wait is an error.
struct PolledSocket<'a, 'c, 'w> {
    socket: &'a mut Stream,
    context: &'c mut Context<'w>,
}

impl PolledSocket<'_, '_, '_> {
    fn now<T>(polled: Poll<io::Result<T>>) -> io::Result<T> {
        match polled {
            Poll::Ready(result) => result,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl Write for PolledSocket<'_, '_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::now(Pin::new(&mut *self.socket).poll_write(self.context, bytes))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        Self::now(Pin::new(&mut *self.socket).poll_write_vectored(self.context, slices))
    }

    fn flush(&mut self) -> io::Result<()> {
        Self::now(Pin::new(&mut *self.socket).poll_flush(self.context))
    }
}
