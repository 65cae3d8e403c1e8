//! The client against time servers of the test's own, over a network that delivers datagrams at once. Time is paused.

use std::collections::BTreeMap;

use engine::sync::Mutex;
use nyala_common::env::os::{OsEnv, OsOptions};
use nyala_common::env::testing::SteadyClock;
use nyala_common::env::{BoxFuture, Clock, ClockSync, Datagrams, Listener, Net, Stream};
use tokio::sync::Notify;

use super::*;

/// Behaviour of a time server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behaviour {
    /// Its clock is ahead, by microseconds.
    Ahead(i64),
    Silent,
    Kiss(&'static [u8; 4]),
    /// First a forged reply, an hour ahead and with another originate time, then its own.
    Forged,
    Unsynchronised,
}

/// The true time, in microseconds since 1970, at the monotonic clock's zero. The machine's wall clock is another one.
const TRUE_START_US: u64 = 1_800_000_000_000_000;
const HOUR_US: i64 = 3_600_000_000;

/// Time servers by address, and the requests that each has received.
struct TimeServers {
    clock: Arc<dyn Clock>,
    behaviours: Mutex<BTreeMap<SocketAddr, Behaviour>>,
    requests: Mutex<BTreeMap<SocketAddr, u32>>,
}

impl TimeServers {
    fn replies(&self, addr: SocketAddr, request: &[u8]) -> Vec<Vec<u8>> {
        *self.requests.lock().entry(addr).or_default() += 1;
        let reply = |ahead: i64| {
            let now = (TRUE_START_US + self.clock.now().mono.0 / 1_000).wrapping_add_signed(ahead);
            let seconds = (now / 1_000_000 + 2_208_988_800) << 32;
            let time = (seconds | (((now % 1_000_000) << 32) / 1_000_000)).to_be_bytes();
            let mut packet = vec![0; packet::PACKET_BYTES];
            packet[..4].copy_from_slice(&[4 << 3 | 4, 1, 6, -20i8 as u8]);
            packet[24..32].copy_from_slice(&request[40..48]);
            packet[32..40].copy_from_slice(&time);
            packet[40..48].copy_from_slice(&time);
            packet
        };
        match self.behaviours.lock()[&addr] {
            Behaviour::Ahead(micros) => vec![reply(micros)],
            Behaviour::Silent => Vec::new(),
            Behaviour::Kiss(code) => {
                let mut packet = reply(0);
                packet[1] = 0;
                packet[12..16].copy_from_slice(code);
                vec![packet]
            }
            Behaviour::Forged => {
                let mut forged = reply(HOUR_US);
                forged[31] ^= 1;
                vec![forged, reply(0)]
            }
            Behaviour::Unsynchronised => {
                let mut packet = reply(0);
                packet[0] |= 3 << 6;
                vec![packet]
            }
        }
    }
}

#[derive(Clone)]
struct TimeNet(Arc<TimeServers>);

struct TimeSocket {
    servers: Arc<TimeServers>,
    addr: SocketAddr,
    arrived: Mutex<Vec<Vec<u8>>>,
    bell: Notify,
}

impl Datagrams for TimeSocket {
    fn send<'a>(&'a self, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>> {
        self.arrived.lock().extend(self.servers.replies(self.addr, bytes));
        self.bell.notify_one();
        Box::pin(async { Ok(()) })
    }

    fn receive<'a>(&'a self, out: &'a mut [u8]) -> BoxFuture<'a, io::Result<usize>> {
        Box::pin(async move {
            loop {
                let first = {
                    let mut arrived = self.arrived.lock();
                    (!arrived.is_empty()).then(|| arrived.remove(0))
                };
                if let Some(packet) = first {
                    out[..packet.len()].copy_from_slice(&packet);
                    return Ok(packet.len());
                }
                self.bell.notified().await;
            }
        })
    }
}

impl Net for TimeNet {
    fn listen(&self, _: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    fn connect(&self, _: SocketAddr, _: Instant) -> BoxFuture<'_, io::Result<Stream>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    fn resolve<'a>(&'a self, host_port: &'a str) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        Box::pin(async move { Ok(host_port.parse().into_iter().collect()) })
    }

    fn datagrams(&self, addr: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Datagrams>>> {
        let (servers, arrived, bell) = (self.0.clone(), Mutex::default(), Notify::new());
        Box::pin(
            async move { Ok(Box::new(TimeSocket { servers, addr, arrived, bell }) as Box<dyn Datagrams>) },
        )
    }
}

fn addr(number: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1_000 + number as u16))
}

/// A client whose rounds the test runs itself.
struct Fixture {
    servers: Arc<TimeServers>,
    clock: Arc<NtpClock>,
    client: NtpClient,
}

impl Fixture {
    fn new(behaviours: &[Behaviour]) -> Fixture {
        let mut env = OsEnv::new(&OsOptions::default()).expect("the real environment");
        env.clock = Arc::new(SteadyClock(env.clock.clone()));
        let numbered = behaviours.iter().enumerate().map(|(number, behaviour)| (addr(number), *behaviour));
        let servers = Arc::new(TimeServers {
            clock: env.clock.clone(),
            behaviours: Mutex::new(numbered.collect()),
            requests: Mutex::default(),
        });
        env.net = Arc::new(TimeNet(servers.clone()));
        let config = NtpConfig {
            servers: (0..behaviours.len()).map(|number| addr(number).to_string()).collect(),
            interval: Duration::from_secs(16),
            timeout: Duration::from_secs(3),
        };
        let clock = Arc::new(NtpClock::new(env.clock.clone()));
        let client = NtpClient::new(&env, config, clock.clone());
        Fixture { servers, clock, client }
    }

    /// Runs a round. Returns the clock's error, and its distance from the true time, if it is synchronised.
    async fn round(&mut self) -> Option<(u64, u64)> {
        self.client.round().await;
        let ClockSync::Synchronised { error_micros } = self.clock.synchronisation() else { return None };
        let reading = self.clock.now();
        Some((error_micros, reading.wall.micros.abs_diff(TRUE_START_US + reading.mono.0 / 1_000)))
    }

    async fn outcome(behaviours: &[Behaviour]) -> Option<(u64, u64)> {
        Fixture::new(behaviours).round().await
    }
}

use Behaviour::{Ahead, Forged, Kiss, Silent, Unsynchronised};

#[tokio::test(start_paused = true)]
async fn a_majority_of_right_servers_sets_the_clock() {
    for behaviours in [
        &[Ahead(0)][..],
        &[Ahead(0), Ahead(3), Ahead(-3)],
        &[Ahead(0), Ahead(HOUR_US), Ahead(0)],
        &[Ahead(0), Ahead(0), Silent],
        &[Forged, Ahead(0), Kiss(b"DENY")],
        &[Ahead(0), Unsynchronised, Forged, Ahead(-HOUR_US), Ahead(2)],
    ] {
        let (error, distance) = Fixture::outcome(behaviours).await.expect("they agree");
        assert!(distance <= error && error < 50_000, "{behaviours:?}: {distance} us away, error {error} us");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_majority_the_clock_is_unsynchronised() {
    for behaviours in [
        &[Silent][..],
        &[Unsynchronised],
        &[Kiss(b"RATE")],
        &[Ahead(0), Ahead(HOUR_US)],
        &[Ahead(0), Silent, Silent],
        &[Ahead(0), Ahead(HOUR_US), Ahead(-HOUR_US)],
    ] {
        assert_eq!(Fixture::outcome(behaviours).await, None, "{behaviours:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn silence_after_an_agreement_widens_the_error() {
    let mut fixture = Fixture::new(&[Ahead(0), Ahead(0), Ahead(0)]);
    let (before, _) = fixture.round().await.expect("they agree");
    fixture.servers.behaviours.lock().values_mut().for_each(|behaviour| *behaviour = Silent);
    fixture.client.env.sleep(Duration::from_secs(10_000)).await;
    let (after, distance) = fixture.round().await.expect("the monotonic clock continues");
    assert!(distance <= after);
    assert!((5_000_000..5_100_000).contains(&(after - before)), "500 ppm of 10,000 s: {}", after - before);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_is_asked_less() {
    let mut fixture = Fixture::new(&[Kiss(b"DENY"), Kiss(b"RATE"), Ahead(0)]);
    for _ in 0..20 {
        fixture.round().await;
        fixture.client.env.sleep(Duration::from_secs(16)).await;
    }
    let requests: Vec<u32> = fixture.servers.requests.lock().values().copied().collect();
    assert_eq!(requests, [1, 4, 20], "denied; slowed down to 32, 64, 128 s and so on; every round");
}
