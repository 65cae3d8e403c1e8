//! Proxies before the servers, which delay the data one server sends to another, cut the link between two servers, or
//! reset connections.
//!
//! ```text
//!   A ── connects ──▶ proxy of B (which B advertises) ── connects ──▶ B (to which B is bound)
//! ```
//!
//! The connecting server is found by the process that holds the other end of the connection (`/proc`), once a rule
//! depends on it: the kernel's table is long. Any other process is a client; only [`LinkProxies::reset`] affects
//! clients.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
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
    open: BTreeMap<u64, Connection>,
    /// Times that a rule had an effect.
    met: usize,
    doors: Vec<SocketAddr>,
    /// Number of the next connection.
    next: u64,
    closing: bool,
}

/// Process that opened a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialer {
    /// No rule depends on it so far.
    Unknown,
    Server(Node),
    Client,
}

/// Both ends of a proxied connection.
struct Connection {
    from: Dialer,
    /// Address of the dialer, and that of the proxy.
    addrs: [SocketAddr; 2],
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
        let mut rules = self.shared.rules();
        rules.held.insert((from, to));
        rules.identify();
    }

    /// Closes the connections between two servers, and refuses new ones until [`LinkProxies::heal`].
    pub(crate) fn cut(&self, one: Node, other: Node) {
        let mut rules = self.shared.rules();
        let ways = [(one, other), (other, one)];
        rules.cut.extend(ways);
        rules.identify();
        rules.close(|connection| connection.way().is_some_and(|way| ways.contains(&way)));
    }

    /// Closes every connection once, also those of clients.
    pub(crate) fn reset(&self) {
        self.shared.rules().close(|_| true);
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
        rules.close(|_| true);
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

    /// Waits while data of a connection is held: to the server that was dialled, or else back from it.
    fn wait_while_held(&self, number: u64, forth: bool) {
        let mut rules = self.rules();
        let Some((from, to)) = rules.open.get(&number).and_then(Connection::way) else { return };
        let way = if forth { (from, to) } else { (to, from) };
        rules.met += usize::from(rules.held.contains(&way));
        while rules.held.contains(&way) {
            rules = self.changed.wait(rules).expect("nobody panics while holding it");
        }
    }
}

impl Rules {
    /// Returns the number of a new connection; none if the link is cut.
    fn admit(&mut self, connection: Connection) -> Option<u64> {
        self.next += 1;
        let number = self.next;
        self.open.insert(number, connection);
        if self.held.is_empty() && self.cut.is_empty() {
            return Some(number);
        }
        self.identify();
        if self.open[&number].way().is_some_and(|way| self.cut.contains(&way)) {
            self.met += 1;
            self.open.remove(&number);
            return None;
        }
        Some(number)
    }

    /// Finds the dialers of all connections.
    fn identify(&mut self) {
        if self.open.values().all(|connection| connection.from != Dialer::Unknown) {
            return;
        }
        let sockets = Sockets::read(&self.processes);
        let unknown = self.open.values_mut().filter(|connection| connection.from == Dialer::Unknown);
        for connection in unknown {
            let [dialer, door] = connection.addrs;
            connection.from = sockets.owner(dialer, door).map_or(Dialer::Client, Dialer::Server);
        }
    }

    fn close(&mut self, which: impl Fn(&Connection) -> bool) {
        let before = self.open.len();
        self.open.retain(|_, connection| {
            let close = which(connection);
            if close {
                connection.close();
            }
            !close
        });
        self.met += before - self.open.len();
    }
}

impl Connection {
    /// Returns the servers that it connects, the dialer first.
    fn way(&self) -> Option<(Node, Node)> {
        match self.from {
            Dialer::Server(from) => Some((from, self.to)),
            Dialer::Unknown | Dialer::Client => None,
        }
    }

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
    let addrs = [dialer.peer_addr()?, door];
    let server = TcpStream::connect(target)?;
    dialer.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ends = || Ok::<_, io::Error>([dialer.try_clone()?, server.try_clone()?]);
    let connection = Connection { from: Dialer::Unknown, addrs, to, ends: ends()? };
    let Some(number) = shared.rules().admit(connection) else { return Ok(()) };
    let [back_to, back_from] = ends()?;
    let back = shared.clone();
    thread::spawn(move || carry(&back, back_from, back_to, (number, false)));
    carry(shared, dialer, server, (number, true));
    shared.rules().open.remove(&number);
    Ok(())
}

/// Forwards the data of one side; closes both when it ends.
fn carry(shared: &Shared, mut from: TcpStream, mut to: TcpStream, (number, forth): (u64, bool)) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        shared.wait_while_held(number, forth);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    for end in [from, to] {
        // It fails if it is closed already.
        let _ = end.shutdown(Shutdown::Both);
    }
}

/// Sockets of the machine, and those that servers have open.
struct Sockets {
    /// `/proc/net/tcp`.
    table: String,
    /// Servers by the name of an open socket.
    owners: BTreeMap<PathBuf, Node>,
}

impl Sockets {
    fn read(processes: &BTreeMap<u32, Node>) -> Sockets {
        // Without the table, as without a process that has just ended, a connection counts as a client's.
        let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
        let of_process = |(process, node): (&u32, &Node)| {
            let files = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
            let node = *node;
            files.filter_map(move |file| Some((fs::read_link(file.path()).ok()?, node)))
        };
        Sockets { table, owners: processes.iter().flat_map(of_process).collect() }
    }

    /// Returns the server whose process connected from `local` to `remote`.
    fn owner(&self, local: SocketAddr, remote: SocketAddr) -> Option<Node> {
        let socket = format!("socket:[{}]", inode(&self.table, local, remote)?);
        self.owners.get(Path::new(&socket)).copied()
    }
}

/// Returns the inode of a connection's socket in `/proc/net/tcp`, whose lines have addresses in hex and the inode
/// tenth.
fn inode(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<&str> {
    let start = table.find(&format!(" {} {} ", hex(local)?, hex(remote)?))?;
    table[start..].lines().next()?.split_whitespace().nth(8)
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
