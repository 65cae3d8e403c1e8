//! The bare server: it reads a request and sends as many bytes back as that asks for.
//!
//! - On epoll: one thread, as Redis; on tokio: a task for each connection.
//! - With a log (on epoll only): the writes of one wake-up are appended together, then one fdatasync, then the replies
//!   leave.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

use super::frame::{BODY_MAX, HEAD, Lengths};

#[derive(Args)]
pub(crate) struct Options {
    /// Base of the server
    #[arg(long, value_enum)]
    kind: EchoKind,
    /// Address to listen on
    #[arg(long)]
    address: SocketAddr,
    /// File to which requests are appended and synced before their replies
    #[arg(long)]
    log: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum EchoKind {
    Epoll,
    Tokio,
}

/// Bytes written ahead to the log, so that a sync of appends changes no metadata. The log starts again at its begin.
pub(super) const LOG_BYTES: u64 = 64 << 20;
const LISTENER: Token = Token(usize::MAX);
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

/// Serves until the process is killed.
pub(crate) fn run(options: &Options, runtime: &Runtime) -> Result<(), Box<dyn Error>> {
    match (options.kind, &options.log) {
        (EchoKind::Tokio, None) => Ok(runtime.block_on(serve_on_tokio(options.address))?),
        (EchoKind::Tokio, Some(_)) => {
            Err("--log: only the server on epoll has a log; use --kind epoll".into())
        }
        (EchoKind::Epoll, log) => {
            let log = log.as_deref().map(Log::create).transpose()?;
            Ok(EpollServer::listen(options.address, log)?.serve()?)
        }
    }
}

async fn serve_on_tokio(address: SocketAddr) -> io::Result<()> {
    let listener = tokio::net::TcpListener::bind(address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(answer(stream));
    }
}

/// Answers the requests of one connection until it ends.
async fn answer(mut stream: tokio::net::TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut head, mut body, replies) = ([0; HEAD], vec![0; BODY_MAX], vec![b'y'; BODY_MAX]);
    let mut stream = tokio::io::BufStream::new(&mut stream);
    loop {
        stream.read_exact(&mut head).await?;
        let lengths = Lengths::decode(&head).map_err(io::Error::other)?;
        stream.read_exact(&mut body[..lengths.request]).await?;
        stream.write_all(&replies[..lengths.reply]).await?;
        stream.flush().await?;
    }
}

/// Creates a file with written blocks, so that writes over them allocate none.
pub(super) fn preallocate(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
    for at in (0..LOG_BYTES).step_by(ZEROS.len()) {
        file.write_all_at(&ZEROS, at)?;
    }
    file.sync_all()?;
    Ok(file)
}

struct Log {
    file: File,
    at: u64,
}

impl Log {
    fn create(path: &Path) -> io::Result<Log> {
        Ok(Log { file: preallocate(path)?, at: 0 })
    }

    fn append_and_sync(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.at + bytes.len() as u64 > LOG_BYTES {
            self.at = 0;
        }
        self.file.write_all_at(bytes, self.at)?;
        self.at += bytes.len() as u64;
        self.file.sync_data()
    }
}

/// A connection of the server on epoll.
struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
    /// Bytes to send once the requests of this wake-up are durable.
    owed: usize,
}

struct EpollServer {
    poll: Poll,
    listener: TcpListener,
    connections: BTreeMap<usize, Connection>,
    log: Option<Log>,
}

impl EpollServer {
    fn listen(address: SocketAddr, log: Option<Log>) -> io::Result<EpollServer> {
        let (poll, mut listener) = (Poll::new()?, TcpListener::bind(address)?);
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(EpollServer { poll, listener, connections: BTreeMap::new(), log })
    }

    fn serve(mut self) -> io::Result<()> {
        let (mut events, mut ready, mut appended) = (Events::with_capacity(1024), Vec::new(), Vec::new());
        let replies = vec![b'y'; BODY_MAX];
        for next in 0.. {
            self.poll.poll(&mut events, None)?;
            ready.clear();
            appended.clear();
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(next)?,
                    Token(id) => ready.push(id),
                }
            }
            ready.retain(|id| self.receive(*id, &mut appended));
            if let Some(log) = self.log.as_mut().filter(|_| !appended.is_empty()) {
                log.append_and_sync(&appended)?;
            }
            for id in &ready {
                self.reply(*id, &replies);
            }
        }
        Ok(())
    }

    /// Accepts all connections that wait; `batch` makes their ids new.
    fn accept(&mut self, batch: usize) -> io::Result<()> {
        for place in 0.. {
            let mut stream = match self.listener.accept() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                accepted => accepted?.0,
            };
            stream.set_nodelay(true)?;
            let id = (batch << 16) + place;
            self.poll.registry().register(&mut stream, Token(id), Interest::READABLE)?;
            self.connections.insert(id, Connection { stream, received: Vec::new(), owed: 0 });
        }
        Ok(())
    }

    /// Reads the requests of a connection; drops one that ended or sent nonsense. Returns true if a reply is owed.
    fn receive(&mut self, id: usize, appended: &mut Vec<u8>) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        if connection.receive(appended, self.log.is_some()).is_err() {
            self.connections.remove(&id);
            return false;
        }
        connection.owed > 0
    }

    fn reply(&mut self, id: usize, replies: &[u8]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.reply(replies).is_err() {
            self.connections.remove(&id);
        }
    }
}

impl Connection {
    fn receive(&mut self, appended: &mut Vec<u8>, is_logged: bool) -> io::Result<()> {
        let mut bytes = [0; 32 << 10];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                // A short read emptied the socket; another one would only say so.
                Ok(count) => {
                    self.received.extend_from_slice(&bytes[..count]);
                    if count < bytes.len() {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        while let Some(head) = self.received.first_chunk::<HEAD>() {
            let lengths = Lengths::decode(head).map_err(io::Error::other)?;
            let Some(request) = self.received.get(..HEAD + lengths.request) else { break };
            if is_logged && lengths.is_write() {
                appended.extend_from_slice(request);
            }
            self.owed += lengths.reply;
            self.received.drain(..HEAD + lengths.request);
        }
        Ok(())
    }

    /// Sends what is owed. A client has one request at a time, so its socket takes the reply at once.
    fn reply(&mut self, replies: &[u8]) -> io::Result<()> {
        let reply = replies.get(..self.owed).ok_or(io::ErrorKind::OutOfMemory)?;
        self.owed = 0;
        self.stream.write_all(reply)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream as Client;
    use std::thread;

    use super::super::Operation;
    use super::*;

    /// Starts a server whose thread ends with the test's process; returns its address.
    fn serve(log: Option<Log>) -> SocketAddr {
        let server = EpollServer::listen("127.0.0.1:0".parse().unwrap(), log).unwrap();
        let address = server.listener.local_addr().unwrap();
        thread::spawn(move || server.serve().unwrap());
        address
    }

    fn request(operation: Operation) -> (Vec<u8>, usize) {
        let lengths = Lengths::of(operation);
        ([&lengths.encode()[..], &vec![b'q'; lengths.request]].concat(), lengths.reply)
    }

    #[test]
    fn replies_have_the_length_asked_for() {
        let mut client = Client::connect(serve(None)).unwrap();
        for operation in [Operation::Insert, Operation::Read, Operation::Update] {
            let (bytes, reply) = request(operation);
            let (first, second) = bytes.split_at(5);
            client.write_all(first).unwrap();
            client.write_all(second).unwrap();
            client.read_exact(&mut vec![0; reply]).unwrap();
        }
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "nothing but the replies");
    }

    #[test]
    fn requests_are_in_the_log_before_their_replies() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut client = Client::connect(serve(Some(Log::create(&path).unwrap()))).unwrap();
        let (bytes, reply) = request(Operation::Insert);
        client.write_all(&bytes).unwrap();
        client.read_exact(&mut vec![0; reply]).unwrap();
        let logged = std::fs::read(&path).unwrap();
        assert_eq!((&logged[..bytes.len()], logged.len() as u64), (&bytes[..], LOG_BYTES));
    }

    #[test]
    fn nonsense_ends_its_connection_only() {
        let address = serve(None);
        let mut bad = Client::connect(address).unwrap();
        bad.write_all(&[0xff; HEAD]).unwrap();
        assert_eq!(bad.read(&mut [0]).unwrap_or(0), 0);
        let mut good = Client::connect(address).unwrap();
        let (bytes, reply) = request(Operation::Read);
        good.write_all(&bytes).unwrap();
        good.read_exact(&mut vec![0; reply]).unwrap();
    }
}
