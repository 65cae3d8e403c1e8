//! One connection: encrypted, counted, and ended with the server.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use nyala_common::env::Stream;
use nyala_common::security::tls::TlsPort;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::transport::server::Connected;

use super::super::shared::{AcceptedConnection, ConnectionGuard, Shared};

/// First bytes of a client of HTTP/2 (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Longest time for the handshake of TLS and the first bytes.
const OPENING_TIME: Duration = Duration::from_secs(20);

/// A connection of gRPC.
pub(super) struct FlightConnection {
    stream: Stream,
    peer: SocketAddr,
    /// First bytes, which were read already, from `given` on.
    given: usize,
    stopped: Pin<Box<WaitForCancellationFutureOwned>>,
    _guard: ConnectionGuard,
}

/// Opens a connection. `None` if there are too many, or the client does not speak HTTP/2 in time.
pub(super) async fn open(
    shared: &Arc<Shared>,
    accepted: AcceptedConnection,
    tls: Option<&TlsPort>,
) -> Option<FlightConnection> {
    let AcceptedConnection { stream, peer, is_refused, guard } = accepted;
    if is_refused {
        return None;
    }
    let mut stream = match tls {
        Some(tls) => tls.wrap(stream)?,
        None => stream,
    };
    let mut first = [0; PREFACE.len()];
    let read = shared.env.timeout(OPENING_TIME, stream.read_exact(&mut first)).await;
    let is_http2 = matches!(read, Some(Ok(_))) && first == PREFACE;
    let stopped = Box::pin(shared.cancels.stopped().cancelled_owned());
    is_http2.then_some(FlightConnection { stream, peer, given: 0, stopped, _guard: guard })
}

impl FlightConnection {
    /// Fails once the server has stopped.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.stopped.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl Connected for FlightConnection {
    type ConnectInfo = SocketAddr;

    fn connect_info(&self) -> SocketAddr {
        self.peer
    }
}

impl AsyncRead for FlightConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        let first = &PREFACE[self.given..];
        if first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let taken = first.len().min(buffer.remaining());
        buffer.put_slice(&first[..taken]);
        self.given += taken;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for FlightConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
