//! Proxies before the servers, which delay the data one server sends to another, cut the link between two servers, or
//! reset connections.
//!
//! ```text
//!   A ── connects ──▶ proxy of B (which B advertises) ── connects ──▶ B (to which B is bound)
//! ```
//!
//! The connecting server is found by the process that holds the other end of the connection (`/proc`). Any other
//! process is a client; only [`LinkProxies::reset`] affects clients.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use super::daemon::Role;

/// A server of the cluster.
pub(super) type Node = (Role, usize);

/// Proxies and their rules. Dropping it closes them.
#[derive(Default)]
pub(crate) struct LinkProxies {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    rules: Mutex<Rules>,
    changed: Condvar,
}

#[derive(Default)]
struct Rules {
    /// Server of each process.
    processes: BTreeMap<u32, Node>,
    /// Pairs of servers; data from the first to the second waits.
    held: BTreeSet<(Node, Node)>,
    /// Pairs of servers without a connection, in both orders.
    cut: BTreeSet<(Node, Node)>,
    open: Vec<Connection>,
    /// Times that a rule had an effect.
    met: usize,
    doors: Vec<SocketAddr>,
    /// Number of the next connection.
    next: u64,
    closing: bool,
}

/// Both ends of a proxied connection; `from` is the connecting server, `None` for a client.
struct Connection {
    number: u64,
    from: Option<Node>,
    to: Node,
    ends: [TcpStream; 2],
}

impl LinkProxies {
    /// Opens a proxy to `to`, which is bound to `target`; returns the address to advertise.
    pub(crate) fn door(&self, to: Node, target: SocketAddr) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?;
        self.shared.rules().doors.push(addr);
        let shared = self.shared.clone();
        thread::spawn(move || {
            for dialer in listener.incoming() {
                if shared.rules().closing {
                    return;
                }
                let (shared, Ok(dialer)) = (shared.clone(), dialer) else { continue };
                // A failed connection is closed, as a network would.
                thread::spawn(move || connect(&shared, dialer, addr, to, target));
            }
        });
        Ok(addr)
    }

    /// Registers `process` as that of `node`.
    pub(crate) fn runs(&self, node: Node, process: u32) {
        let mut rules = self.shared.rules();
        rules.processes.retain(|_, other| *other != node);
        rules.processes.insert(process, node);
    }

    /// Delays data from `from` to `to` until [`LinkProxies::heal`]; then it arrives in order.
    pub(crate) fn hold(&self, from: Node, to: Node) {
        self.shared.rules().held.insert((from, to));
    }

    /// Closes the connections between two servers, and refuses new ones until [`LinkProxies::heal`].
    pub(crate) fn cut(&self, one: Node, other: Node) {
        let mut rules = self.shared.rules();
        rules.cut.extend([(one, other), (other, one)]);
        rules.close(|from, to| {
            from.is_some_and(|from| (from, to) == (one, other) || (from, to) == (other, one))
        });
    }

    /// Closes every connection once, also those of clients.
    pub(crate) fn reset(&self) {
        self.shared.rules().close(|_, _| true);
    }

    /// Ends all rules. Returns the number of their effects since the last call.
    pub(crate) fn heal(&self) -> usize {
        let mut rules = self.shared.rules();
        rules.held.clear();
        rules.cut.clear();
        self.shared.changed.notify_all();
        std::mem::take(&mut rules.met)
    }
}

impl Drop for LinkProxies {
    fn drop(&mut self) {
        self.heal();
        let mut rules = self.shared.rules();
        rules.closing = true;
        rules.close(|_, _| true);
        let doors = std::mem::take(&mut rules.doors);
        drop(rules);
        for door in doors {
            // It wakes up and sees that it must close.
            drop(TcpStream::connect(door));
        }
    }
}

impl Shared {
    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().expect("nobody panics while holding it")
    }

    fn wait_while_held(&self, from: Option<Node>, to: Option<Node>) {
        let (Some(from), Some(to)) = (from, to) else { return };
        let mut rules = self.rules();
        rules.met += usize::from(rules.held.contains(&(from, to)));
        while rules.held.contains(&(from, to)) {
            rules = self.changed.wait(rules).expect("nobody panics while holding it");
        }
    }
}

impl Rules {
    /// Returns the number of a new connection; none if the link is cut.
    fn admit(&mut self, from: Option<Node>, to: Node, ends: [TcpStream; 2]) -> Option<u64> {
        if from.is_some_and(|from| self.cut.contains(&(from, to))) {
            self.met += 1;
            return None;
        }
        self.next += 1;
        self.open.push(Connection { number: self.next, from, to, ends });
        Some(self.next)
    }

    fn close(&mut self, which: impl Fn(Option<Node>, Node) -> bool) {
        let before = self.open.len();
        self.open.retain(|connection| {
            let close = which(connection.from, connection.to);
            if close {
                connection.close();
            }
            !close
        });
        self.met += before - self.open.len();
    }
}

impl Connection {
    fn close(&self) {
        for end in &self.ends {
            // It fails if the other side has closed it.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

/// Forwards a connection until either side ends it.
fn connect(
    shared: &Arc<Shared>,
    dialer: TcpStream,
    door: SocketAddr,
    to: Node,
    target: SocketAddr,
) -> io::Result<()> {
    let processes = shared.rules().processes.clone();
    let from = owner(&processes, dialer.peer_addr()?, door);
    let server = TcpStream::connect(target)?;
    dialer.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ends = || Ok::<_, io::Error>([dialer.try_clone()?, server.try_clone()?]);
    let Some(number) = shared.rules().admit(from, to, ends()?) else { return Ok(()) };
    let [back_to, back_from] = ends()?;
    let back = shared.clone();
    thread::spawn(move || carry(&back, back_from, back_to, (Some(to), from)));
    carry(shared, dialer, server, (from, Some(to)));
    shared.rules().open.retain(|connection| connection.number != number);
    Ok(())
}

/// Forwards the data of one side; closes both when it ends.
fn carry(shared: &Shared, mut from: TcpStream, mut to: TcpStream, way: (Option<Node>, Option<Node>)) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        shared.wait_while_held(way.0, way.1);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    for end in [from, to] {
        // It fails if it is closed already.
        let _ = end.shutdown(Shutdown::Both);
    }
}

/// Returns the server whose process connected from `local` to `remote`.
fn owner(processes: &BTreeMap<u32, Node>, local: SocketAddr, remote: SocketAddr) -> Option<Node> {
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    let socket = format!("socket:[{}]", inode(&table, local, remote)?);
    let holds = |process: &u32| {
        let Ok(files) = fs::read_dir(format!("/proc/{process}/fd")) else { return false };
        let is_it = |path: &Path| fs::read_link(path).is_ok_and(|to| to.as_os_str() == socket.as_str());
        files.flatten().any(|file| is_it(&file.path()))
    };
    processes.iter().find(|(process, _)| holds(process)).map(|(_, node)| *node)
}

/// Returns the inode of a connection's socket in `/proc/net/tcp`, whose lines have addresses in hex and the inode
/// tenth.
fn inode(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<&str> {
    let [local, remote] = [hex(local)?, hex(remote)?];
    table.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words.get(1) == Some(&local.as_str()) && words.get(2) == Some(&remote.as_str()))
            .then(|| words.get(9).copied())
            .flatten()
    })
}

/// Returns an IPv4 address as the kernel prints it: the host's bytes in the machine's order, the port.
fn hex(addr: SocketAddr) -> Option<String> {
    let SocketAddr::V4(addr) = addr else { return None };
    Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(addr.ip().octets()), addr.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Node = (Role::TabletServer, 0);
    const B: Node = (Role::TabletServer, 1);

    /// Starts a server that echoes, with a proxy before it.
    fn echo(links: &LinkProxies) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                thread::spawn(move || io::copy(&mut stream.try_clone().unwrap(), &mut stream));
            }
        });
        links.door(B, target).unwrap()
    }

    fn said(stream: &mut TcpStream, word: &[u8; 4]) -> io::Result<[u8; 4]> {
        stream.write_all(word)?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    }

    #[test]
    fn links_are_delayed_cut_and_reset() {
        let links = LinkProxies::default();
        links.runs(A, std::process::id());
        let door = echo(&links);
        let mut stream = TcpStream::connect(door).unwrap();
        assert_eq!(&said(&mut stream, b"ping").unwrap(), b"ping");
        links.hold(B, A);
        links.hold(A, B);
        let mut held = stream.try_clone().unwrap();
        let answer = thread::spawn(move || said(&mut held, b"late").unwrap());
        while links.shared.rules().met == 0 {
            thread::yield_now();
        }
        assert!(!answer.is_finished());
        assert!(links.heal() > 0);
        assert_eq!(&answer.join().unwrap(), b"late");
        links.cut(A, B);
        assert!(said(&mut stream, b"gone").is_err());
        assert!(TcpStream::connect(door).and_then(|mut stream| said(&mut stream, b"none")).is_err());
        assert_eq!(links.heal(), 2);
        let mut stream = TcpStream::connect(door).unwrap();
        assert_eq!(&said(&mut stream, b"back").unwrap(), b"back");
        links.reset();
        assert!(said(&mut stream, b"gone").is_err());
    }

    #[test]
    fn clients_pass_a_cut_link() {
        let links = LinkProxies::default();
        let door = echo(&links);
        links.cut(A, B);
        assert_eq!(&said(&mut TcpStream::connect(door).unwrap(), b"ping").unwrap(), b"ping");
    }

    #[test]
    fn sockets_are_found_in_the_kernels_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 20 4 30 10 -1\n";
        let [local, remote] = ["127.0.0.1:8080", "127.0.0.1:50000"].map(|addr| addr.parse().unwrap());
        assert_eq!(inode(table, local, remote), Some("4242"));
        assert_eq!(inode(table, remote, local), None);
    }
}
