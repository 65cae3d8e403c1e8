//! One connection: encrypted, counted, and ended with the server, or when its client proves nothing in time.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use nyala_common::env::{BoxFuture, Env, Stream};
use nyala_common::security::tls::TlsPort;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::transport::server::Connected;

use super::super::places::ConnectionPlace;
use super::super::shared::AcceptedConnection;

/// First bytes of a client of HTTP/2 (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Longest time for the handshake of TLS, the first bytes and the client's proof together.
const PROOF_TIME: Duration = Duration::from_secs(10);

/// A connection of gRPC.
pub(super) struct FlightConnection {
    stream: Stream,
    /// First bytes, which were read already, from `given` on.
    given: usize,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
    /// End of the time for a proof; `None` once it has passed.
    late: Option<BoxFuture<'static, ()>>,
    /// Place that the calls of the connection find, so that the first with a known caller takes a client's.
    place: Arc<ConnectionPlace>,
}

/// Opens a connection. `None` if the client does not speak HTTP/2 in time, or its place is needed.
pub(super) async fn open(
    env: &Env,
    accepted: AcceptedConnection,
    tls: Option<&TlsPort>,
) -> Option<FlightConnection> {
    let AcceptedConnection { stream, place, .. } = accepted;
    let mut stream = match tls {
        Some(tls) => tls.wrap(stream)?,
        None => stream,
    };
    let mut late = env.clock.sleep_until(env.now().mono.after(PROOF_TIME));
    let mut first = [0; PREFACE.len()];
    let read = tokio::select! {
        biased;
        () = place.ended() => None,
        read = stream.read_exact(&mut first) => Some(read),
        () = &mut late => None,
    };
    let is_http2 = matches!(read, Some(Ok(_))) && first == PREFACE;
    let ended = Box::pin(place.ended());
    is_http2.then_some(FlightConnection { stream, given: 0, ended, late: Some(late), place })
}

impl FlightConnection {
    /// Fails once the server has stopped, the place is needed, or the client has proved nothing in time.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.late.as_mut().is_some_and(|late| late.as_mut().poll(context).is_ready()) {
            self.late = None;
            self.place.end_unproved();
        }
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

#[cfg(test)]
mod tests {
    use nyala_common::env::mem_net;
    use tokio::io::{AsyncWriteExt, DuplexStream};
    use tokio_util::sync::CancellationToken;

    use super::super::super::places::Places;
    use super::*;

    /// Opens a connection whose client has sent the first bytes. Returns its other end, too.
    async fn opened(env: &Env) -> (DuplexStream, FlightConnection) {
        let (mut client, server) = tokio::io::duplex(1 << 10);
        client.write_all(PREFACE).await.expect("an open connection");
        let peer = ([127, 0, 0, 1], 1).into();
        let place = Places::new(1, CancellationToken::new()).enter([127, 0, 0, 1].into());
        let accepted = AcceptedConnection { stream: Box::new(server), peer, place };
        (client, open(env, accepted, None).await.expect("a client of HTTP/2"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_proof_ends() {
        let env = mem_net::env();
        let (_client, mut connection) = opened(&env).await;
        let since = env.now().mono;
        let mut bytes = Vec::new();
        let ended = connection.read_to_end(&mut bytes).await.expect_err("no proof");
        assert_eq!((ended.kind(), bytes.as_slice()), (io::ErrorKind::ConnectionAborted, PREFACE));
        assert!(env.now().mono.since(since) >= PROOF_TIME);
        assert!(!connection.place.prove(), "its place is gone");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_a_proof_stays() {
        let env = mem_net::env();
        let (mut client, mut connection) = opened(&env).await;
        assert!(connection.place.prove());
        let mut bytes = [0; PREFACE.len() + 1];
        let late_byte = async {
            env.sleep(3 * PROOF_TIME).await;
            client.write_all(b"x").await.expect("an open connection");
        };
        let (read, ()) = tokio::join!(connection.read_exact(&mut bytes), late_byte);
        assert_eq!(read.expect("an open connection"), bytes.len());
        assert_eq!(bytes.last(), Some(&b'x'));
    }
}
