//! One connection: encrypted, counted, and ended with the server.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use nyala_common::env::Stream;
use nyala_common::security::tls::TlsPort;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::transport::server::Connected;

use super::super::places::ConnectionPlace;
use super::super::shared::{AcceptedConnection, Shared};

/// First bytes of a client of HTTP/2 (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Longest time for the handshake of TLS and the first bytes.
const OPENING_TIME: Duration = Duration::from_secs(10);

/// A connection of gRPC.
pub(super) struct FlightConnection {
    stream: Stream,
    /// First bytes, which were read already, from `given` on.
    given: usize,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Place that the calls of the connection find, so that the first with a known caller takes a client's.
    place: Arc<ConnectionPlace>,
}

/// Opens a connection. `None` if the client does not speak HTTP/2 in time, or its place is needed.
pub(super) async fn open(
    shared: &Arc<Shared>,
    accepted: AcceptedConnection,
    tls: Option<&TlsPort>,
) -> Option<FlightConnection> {
    let AcceptedConnection { stream, place, .. } = accepted;
    let mut stream = match tls {
        Some(tls) => tls.wrap(stream)?,
        None => stream,
    };
    let mut first = [0; PREFACE.len()];
    let reading = shared.env.timeout(OPENING_TIME, stream.read_exact(&mut first));
    let read = tokio::select! {
        biased;
        () = place.ended() => None,
        read = reading => read,
    };
    let is_http2 = matches!(read, Some(Ok(_))) && first == PREFACE;
    let ended = Box::pin(place.ended());
    is_http2.then_some(FlightConnection { stream, given: 0, ended, place })
}

impl FlightConnection {
    /// Fails once the server has stopped, or the place is needed.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.ended.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl Connected for FlightConnection {
    type ConnectInfo = Arc<ConnectionPlace>;

    fn connect_info(&self) -> Arc<ConnectionPlace> {
        self.place.clone()
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
