//! Pipe between a socket and the protocol's code.
//!
//! A statement may run for minutes without a byte to its client. The pipe reads ahead meanwhile, so that the end of the
//! client ends the statement. It also limits messages, before any of their bytes is buffered.

use std::sync::Arc;

use nyala_common::env::{Env, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};

use super::cancel::Cancellation;
use super::encryption::{GSSAPI_REQUEST, OpenedConnection, TLS_REQUEST};
use super::places::ConnectionPlace;

/// Bytes in each direction of the pipe.
const PIPE_BYTES: usize = 64 << 10;
/// Requests before the startup message.
const ENCRYPTION_REQUESTS: [u32; 2] = [TLS_REQUEST, GSSAPI_REQUEST];

/// Returns the end of the pipe for the protocol's code.
///
/// The tasks of the pipe end with the socket and with the returned end. The task that reads closes `cancellation`. The
/// connection has its place until its last bytes are sent.
pub(super) fn open(
    env: &Env,
    connection: OpenedConnection,
    limit: MessageLimit,
    cancellation: Arc<Cancellation>,
    place: Arc<ConnectionPlace>,
) -> DuplexStream {
    let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
    let (socket_read, socket_write) = tokio::io::split(connection.stream);
    let (pipe_read, mut pipe_write) = tokio::io::split(theirs);
    let reading = cancellation.clone();
    env.spawn("SQL client input", async move {
        tokio::select! {
            biased;
            () = reading.closed().cancelled() => {}
            () = receive(connection.first, socket_read, &mut pipe_write, limit) => {}
        }
        reading.close();
        // The other half keeps the pipe open: without this the protocol's code would wait for messages forever.
        let _ = pipe_write.shutdown().await;
    });
    env.spawn("SQL client output", async move {
        send(pipe_read, socket_write).await;
        cancellation.close();
        drop(place);
    });
    ours
}

/// Copies the first bytes, then from the socket until the client ends or sends a message that is too long.
async fn receive(
    first: Vec<u8>,
    mut socket: ReadHalf<Stream>,
    pipe: &mut WriteHalf<DuplexStream>,
    mut limit: MessageLimit,
) {
    if limit.accept(&first).is_err() || pipe.write_all(&first).await.is_err() {
        return;
    }
    let mut buffer = vec![0; PIPE_BYTES / 4];
    loop {
        let read = match socket.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(read) => read,
        };
        if limit.accept(&buffer[..read]).is_err() || pipe.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// Copies to the socket until the protocol's code has dropped its end and everything is sent.
async fn send(mut pipe: ReadHalf<DuplexStream>, mut socket: WriteHalf<Stream>) {
    // A client that is gone needs no error.
    let _ = tokio::io::copy(&mut pipe, &mut socket).await;
    let _ = socket.shutdown().await;
}

/// Limit of the size of messages, applied to the bytes of a connection as they come.
#[derive(Debug)]
pub(super) struct MessageLimit {
    bytes_max: u64,
    /// True after the startup message: messages begin with a byte for their type.
    is_started: bool,
    /// First bytes of the message: type, length, and before the startup the code.
    header: Vec<u8>,
    /// Bytes of the message that are still to come.
    left: u64,
}

/// A message is longer than allowed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl MessageLimit {
    pub(super) fn new(bytes_max: usize) -> MessageLimit {
        MessageLimit { bytes_max: bytes_max as u64, is_started: false, header: Vec::new(), left: 0 }
    }

    /// Takes the next bytes of a connection. Fails at the header of a message that is too long.
    pub(super) fn accept(&mut self, mut bytes: &[u8]) -> Result<(), TooLong> {
        while !bytes.is_empty() {
            if self.left > 0 {
                let skipped = self.left.min(bytes.len() as u64);
                bytes = &bytes[skipped as usize..];
                self.left -= skipped;
                continue;
            }
            self.header.push(bytes[0]);
            bytes = &bytes[1..];
            let wanted = if self.is_started { 5 } else { 8 };
            if self.header.len() == wanted {
                self.begin_message()?;
            }
        }
        Ok(())
    }

    fn begin_message(&mut self) -> Result<(), TooLong> {
        let number = |at: usize| {
            let bytes = self.header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            u32::from_be_bytes(bytes.unwrap_or_default())
        };
        let (len, known) = if self.is_started { (number(1), 4) } else { (number(0), 8) };
        if u64::from(len) > self.bytes_max {
            return Err(TooLong);
        }
        let is_started = self.is_started || !ENCRYPTION_REQUESTS.contains(&number(4));
        self.left = u64::from(len).saturating_sub(known);
        self.is_started = is_started;
        self.header.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn untyped(code: u32, body: usize) -> Vec<u8> {
        [&(8 + body as u32).to_be_bytes()[..], &code.to_be_bytes(), &vec![0; body]].concat()
    }

    fn typed(body: usize) -> Vec<u8> {
        [&b"Q"[..], &(4 + body as u32).to_be_bytes(), &vec![b'Q'; body]].concat()
    }

    #[test]
    fn messages_within_the_limit_pass_in_any_pieces() {
        let bytes = [untyped(80_877_103, 0), untyped(196_608, 20), typed(60), typed(0), typed(96)].concat();
        for size in 1..bytes.len() {
            let mut limit = MessageLimit::new(100);
            let mut pieces = bytes.chunks(size);
            assert!(pieces.all(|piece| limit.accept(piece).is_ok()), "pieces of {size} bytes");
        }
    }

    #[test]
    fn a_long_message_is_refused_at_its_header() {
        let mut limit = MessageLimit::new(100);
        limit.accept(&untyped(196_608, 20)).expect("a short message");
        assert_eq!(limit.accept(&typed(97)[..5]), Err(TooLong));
        assert_eq!(MessageLimit::new(100).accept(&untyped(196_608, 200)[..8]), Err(TooLong));
    }
}
