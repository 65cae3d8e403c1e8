//! The environment of a host on the machine: the operating system's, where directories are below the host's own and
//! names of hosts are addresses on loopback.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine::disk::Disk;
use engine::time::Instant;
use nyala_common::env::os::{ClockError, OsEnv, OsOptions};
use nyala_common::env::{BoxFuture, Disks, Env, Listener, Net, Stream};
use sim_plan::Host;
use sim_plan::line_format::LineField;

/// Error of the clock that all processes read.
const CLOCK_ERROR: Duration = Duration::from_millis(10);
/// Added to ports: the usual ones may be taken by a cluster on this machine. The system chooses ports above these.
const PORT_SHIFT: u16 = 20_000;

/// The network of a run: 254 addresses on loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Loopback {
    second: u8,
    third: u8,
}

impl Loopback {
    /// `number`: other than that of every other run at this time.
    pub(super) fn new(number: u32) -> Loopback {
        // 127.0 is left to others.
        Loopback { second: (number / 256 % 255) as u8 + 1, third: (number % 256) as u8 }
    }

    fn ip(self, host: Host) -> IpAddr {
        let last = match host {
            Host::Master(number) => 1 + number % 32,
            Host::Tserver(number) => 64 + number % 64,
            Host::Client(number) => 128 + number % 64,
        };
        Ipv4Addr::new(127, self.second, self.third, last).into()
    }

    /// Returns the address at which a host's port is.
    pub(super) fn address(self, host: Host, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip(host), port.saturating_add(PORT_SHIFT))
    }

    /// Returns the address of a `host:port`; `None` if that is no host of the plan.
    fn find(self, host_port: &str) -> Option<SocketAddr> {
        let (host, port) = host_port.split_once(':')?;
        Some(self.address(Host::parse(host)?, port.parse().ok()?))
    }
}

/// Returns the environment of a host. Its directory below `root` has its name and exists. Must be called inside a tokio
/// runtime.
pub(super) fn env(network: Loopback, host: Host, root: &Path, memory: u64) -> io::Result<Env> {
    let options = OsOptions { clock_error: ClockError::Fixed(CLOCK_ERROR), memory_limit_bytes: Some(memory) };
    let mut env = OsEnv::new(&options)?;
    env.disks = Arc::new(HostDisks { inner: env.disks.clone(), dir: root.join(host.name()) });
    env.net = Arc::new(HostNet { inner: env.net.clone(), network, ip: network.ip(host) });
    Ok(env)
}

struct HostDisks {
    inner: Arc<dyn Disks>,
    dir: PathBuf,
}

impl Disks for HostDisks {
    fn open(&self, dir: &str) -> io::Result<Arc<dyn Disk>> {
        self.inner.open(&self.dir.join(dir).to_string_lossy())
    }

    fn read_file(&self, path: &str) -> io::Result<Vec<u8>> {
        self.inner.read_file(path)
    }
}

struct HostNet {
    inner: Arc<dyn Net>,
    network: Loopback,
    ip: IpAddr,
}

impl Net for HostNet {
    fn listen(&self, addr: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        let port = if addr.port() == 0 { 0 } else { addr.port().saturating_add(PORT_SHIFT) };
        self.inner.listen(SocketAddr::new(self.ip, port))
    }

    fn connect(&self, addr: SocketAddr, deadline: Instant) -> BoxFuture<'_, io::Result<Stream>> {
        self.inner.connect(addr, deadline)
    }

    fn resolve<'a>(&'a self, host_port: &'a str) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        match self.network.find(host_port) {
            Some(address) => Box::pin(async move { Ok(vec![address]) }),
            None => self.inner.resolve(host_port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_addresses_of_their_own() {
        let network = Loopback::new(70_000);
        let address = |name: &str| network.find(name).map(|address| address.to_string());
        assert_eq!(address("m0:7051").as_deref(), Some("127.19.112.1:27051"));
        assert_eq!(address("t2:7050").as_deref(), Some("127.19.112.66:27050"));
        assert_eq!(address("localhost:7050"), None);
        assert_ne!(Loopback::new(1), Loopback::new(2));
        assert_ne!(Loopback::new(0).second, 0);
    }
}
