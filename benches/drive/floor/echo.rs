//! Client of the bare server.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::frame::{BODY_MAX, HEAD, Lengths};
use super::{Done, Failure, Operation, Options, System};

pub(super) struct EchoClient {
    stream: TcpStream,
    bytes: Vec<u8>,
}

/// Connects each client.
pub(super) async fn open(options: &Options) -> Result<Vec<EchoClient>, Failure> {
    let mut clients = Vec::new();
    for _ in 0..options.clients {
        let stream = TcpStream::connect(&options.address).await?;
        stream.set_nodelay(true)?;
        clients.push(EchoClient { stream, bytes: vec![b'x'; HEAD + BODY_MAX] });
    }
    Ok(clients)
}

impl System for EchoClient {
    async fn operate(&mut self, operation: Operation, _row: u64) -> Done {
        let lengths = Lengths::of(operation);
        self.bytes[..HEAD].copy_from_slice(&lengths.encode());
        self.stream.write_all(&self.bytes[..HEAD + lengths.request]).await?;
        self.stream.read_exact(&mut self.bytes[..lengths.reply]).await?;
        Ok(())
    }
}
