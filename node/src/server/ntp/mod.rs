//! The NTP client of `time_source=builtin`: asks several servers for the time, and sets the server's own clock to what
//! a majority of them agrees on.
//!
//! ```text
//!   poll all servers ─▶ packet.rs: reply or fault ─▶ one interval a server ─▶ agreement.rs ─▶ clock.rs
//!     ▲      └ kiss of death: ask that server less                                             │ error grows
//!     └──────────────── builtin_ntp_poll_interval_ms ◀────────────────────────────────────────┘ by 500 ppm
//! ```
//!
//! - A server's interval is as wide as the round trip and the error that it states allow.
//! - The machine's own wall clock is never read. Without an agreement the clock is unsynchronised, and nothing serves.
//! - After an agreement the monotonic clock continues it. Its growing error stops the server by `ClockRule`, if the
//!   servers stay silent.

mod agreement;
mod clock;
pub mod packet;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use engine::error::{Error, Result};
use engine::time::Instant;
use futures_util::future::join_all;

use super::flags::Flags;
use agreement::TimeInterval;
use clock::{NtpClock, drift_us};
use nyala_common::env::Env;
use packet::{PacketFault, ServerTimes};

const PORT: u16 = 123;
/// Longest interval between requests to a server that asks for fewer.
const INTERVAL_MAX: Duration = Duration::from_secs(1024);
/// Pause of requests to a server that refuses this client.
const DENIED_PAUSE: Duration = Duration::from_secs(3600);
/// Poll intervals after which the last reply of a server does not count any more.
const REPLY_POLLS_MAX: u32 = 8;

/// Settings of the client (`builtin_ntp_servers`, `builtin_ntp_poll_interval_ms`, `builtin_ntp_request_timeout_ms`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NtpConfig {
    /// `host:port` names.
    pub servers: Vec<String>,
    pub interval: Duration,
    pub timeout: Duration,
}

impl NtpConfig {
    pub(super) fn of(flags: &Flags) -> Result<NtpConfig> {
        let with_port = |name: &String| match super::split_host_port(name) {
            Ok(_) => name.clone(),
            Err(_) => format!("{name}:{PORT}"),
        };
        let servers: Vec<String> = flags.list("builtin_ntp_servers").iter().map(with_port).collect();
        if servers.is_empty() {
            return Err(Error::invalid(
                "builtin_ntp_servers: time_source=builtin needs a server; name at least one",
            ));
        }
        let millis = |name| Duration::from_millis(flags.number(name));
        let interval = millis("builtin_ntp_poll_interval_ms");
        Ok(NtpConfig { servers, interval, timeout: millis("builtin_ntp_request_timeout_ms") })
    }
}

/// Returns `env` with a clock that the servers set; a task polls them as long as the process runs.
pub(super) fn start(env: &Env, config: NtpConfig) -> Env {
    let clock = Arc::new(NtpClock::new(env.clock.clone()));
    let client = NtpClient::new(env, config, clock.clone());
    drop(env.spawn("ntp", client.run()));
    Env { clock, ..env.clone() }
}

/// A server, and what is known of it.
struct NtpServer {
    name: String,
    addr: Option<SocketAddr>,
    /// The last reply: when it came, and its interval.
    reply: Option<(Instant, TimeInterval)>,
    interval: Duration,
    not_before: Instant,
    /// The last fault, so that it is logged once.
    fault: Option<String>,
}

struct NtpClient {
    env: Env,
    config: NtpConfig,
    clock: Arc<NtpClock>,
    servers: Vec<NtpServer>,
    is_agreed: bool,
}

impl NtpClient {
    fn new(env: &Env, config: NtpConfig, clock: Arc<NtpClock>) -> NtpClient {
        let server = |name: &String| NtpServer {
            name: name.clone(),
            addr: None,
            reply: None,
            interval: config.interval,
            not_before: Instant(0),
            fault: None,
        };
        let servers = config.servers.iter().map(server).collect();
        NtpClient { env: env.clone(), config, clock, servers, is_agreed: false }
    }

    async fn run(mut self) {
        loop {
            self.round().await;
            // Until there is time to serve, the servers are asked every second.
            let pause =
                if self.is_agreed { self.config.interval } else { self.config.interval.min(FIRST_PAUSE) };
            self.env.sleep(pause).await;
        }
    }

    /// Asks all servers whose time has come, and sets the clock if they agree.
    async fn round(&mut self) {
        let now = self.env.now().mono;
        let (env, timeout, interval) = (&self.env, self.config.timeout, self.config.interval);
        join_all(self.servers.iter_mut().filter(|server| now >= server.not_before).map(
            |server| async move {
                let asked = server.ask(env, timeout).await;
                server.note(asked, env.now().mono, interval);
            },
        ))
        .await;
        let now = self.env.now().mono;
        let intervals: Vec<_> = self.servers.iter().filter_map(|server| server.known(now)).collect();
        let agreed = agreement::agree(&intervals, self.servers.len());
        if let Some(interval) = agreed {
            self.clock.set(now, interval);
        }
        if agreed.is_some() != std::mem::replace(&mut self.is_agreed, agreed.is_some()) || agreed.is_none() {
            self.log(agreed, intervals.len());
        }
    }

    fn log(&self, agreed: Option<TimeInterval>, replies: usize) {
        let servers = self.servers.len();
        match agreed {
            Some(TimeInterval { low, high }) => {
                let error_us = (high - low + 1) / 2;
                tracing::info!(servers, replies, %error_us, "a majority of the time servers agrees");
            }
            None => {
                let faults: Vec<_> = self.servers.iter().filter_map(NtpServer::describe).collect();
                tracing::warn!(
                    servers,
                    replies,
                    faults = faults.join("; "),
                    "no majority of the time servers agrees"
                );
            }
        }
    }
}

/// Pause between rounds until the servers agree for the first time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Reason that a server gave no time.
enum AskFault {
    Network(io::Error),
    Packet(PacketFault),
}

impl NtpServer {
    /// Asks for the time. Returns when the reply came, and its interval.
    async fn ask(&mut self, env: &Env, timeout: Duration) -> Result<(Instant, TimeInterval), AskFault> {
        let addr = match self.addr {
            Some(addr) => addr,
            None => *self.addr.insert(resolve(env, &self.name).await.map_err(AskFault::Network)?),
        };
        let exchange = exchange(env, addr);
        let silent = || AskFault::Network(io::Error::new(io::ErrorKind::TimedOut, "it does not reply"));
        env.timeout(timeout, exchange).await.unwrap_or_else(|| Err(silent()))
    }

    /// Stores the outcome of a request.
    fn note(&mut self, asked: Result<(Instant, TimeInterval), AskFault>, now: Instant, interval: Duration) {
        let fault = match asked {
            Ok(reply) => {
                self.reply = Some(reply);
                self.interval = interval;
                None
            }
            Err(AskFault::Network(error)) => {
                // The name may have another address by now.
                self.addr = None;
                Some(error.to_string())
            }
            Err(AskFault::Packet(PacketFault::KissOfDeath(code))) => {
                self.reply = None;
                self.interval = match code.as_str() {
                    "DENY" | "RSTR" => DENIED_PAUSE,
                    _ => (self.interval * 2).min(INTERVAL_MAX),
                };
                self.not_before = now.after(self.interval);
                Some(format!("kiss of death {code}"))
            }
            Err(AskFault::Packet(PacketFault::Useless(why) | PacketFault::NotAReply(why))) => {
                self.reply = None;
                Some(why.to_string())
            }
        };
        if fault.is_some() && fault != self.fault {
            tracing::warn!(server = self.name, fault, "a time server gives no time");
        }
        self.fault = fault;
    }

    /// Returns the server's interval, wider by the time since its reply; `None` if it has not replied lately.
    fn known(&self, now: Instant) -> Option<TimeInterval> {
        let (at, TimeInterval { low, high }) = self.reply?;
        let drift = i128::from(drift_us(at, now));
        let is_recent = now.since(at) <= self.interval.max(FIRST_PAUSE) * REPLY_POLLS_MAX;
        is_recent.then_some(TimeInterval { low: low - drift, high: high + drift })
    }

    fn describe(&self) -> Option<String> {
        self.fault.as_ref().map(|fault| format!("{}: {fault}", self.name))
    }
}

async fn resolve(env: &Env, name: &str) -> io::Result<SocketAddr> {
    let found = env.net.resolve(name).await?;
    let first = found.iter().find(|addr| addr.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))
}

/// Sends a request and waits for its reply. Packets that are not the reply are passed over.
async fn exchange(env: &Env, addr: SocketAddr) -> Result<(Instant, TimeInterval), AskFault> {
    let socket = env.net.datagrams(addr).await.map_err(AskFault::Network)?;
    let mut secret = [0; 8];
    env.rng.fill_secret(&mut secret);
    let nonce = u64::from_be_bytes(secret);
    let sent_at = env.now().mono;
    socket.send(&packet::request(nonce)).await.map_err(AskFault::Network)?;
    let mut bytes = [0; 512];
    loop {
        let len = socket.receive(&mut bytes).await.map_err(AskFault::Network)?;
        let received_at = env.now().mono;
        match packet::parse(&bytes[..len], nonce) {
            Ok(times) => return Ok((received_at, interval(times, sent_at, received_at))),
            Err(PacketFault::NotAReply(why)) => tracing::debug!(%addr, why, "a packet that is no reply"),
            Err(fault) => return Err(AskFault::Packet(fault)),
        }
    }
}

/// Returns the interval of the offset that a reply allows: the reply was sent at any time between the request's arrival
/// and its own.
fn interval(times: ServerTimes, sent_at: Instant, received_at: Instant) -> TimeInterval {
    let round_trip = i128::try_from(received_at.since(sent_at).as_micros()).unwrap_or(i128::MAX);
    let travel = (round_trip - i128::from(times.sent - times.received)).max(0) + 1;
    let (sent, error) = (i128::from(times.sent), i128::from(times.error));
    let arrived = i128::from(received_at.0 / 1_000);
    TimeInterval { low: sent - arrived - error - 1, high: sent + travel - arrived + error }
}
