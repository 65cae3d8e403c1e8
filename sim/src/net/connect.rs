//! Listening and connecting.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::task::Waker;

use super::attempt::ConnectAttempt;
use super::pipe::Pipe;
use super::rules::{HostId, LinkEffect};
use super::{Accepting, BACKLOG_MAX, Conn, ConnId, End, Event, Network};

/// Nanoseconds until the first retry; each further wait is twice as long.
const RETRY_NANOS: u64 = 1_000_000_000;
const RETRY_NANOS_MAX: u64 = 8_000_000_000;

impl Network {
    /// Takes a port of a host; 0 takes a free one.
    pub fn listen(&mut self, host: HostId, addr: SocketAddr) -> io::Result<SocketAddr> {
        let port = if addr.port() == 0 { self.free_port(host) } else { addr.port() };
        let ip = if addr.ip().is_loopback() { addr.ip() } else { self.hosts[host].ip };
        if self.hosts[host].listeners.contains_key(&port) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        self.hosts[host].listeners.insert(port, Accepting::default());
        Ok(SocketAddr::new(ip, port))
    }

    fn free_port(&mut self, host: HostId) -> u16 {
        let state = &mut self.hosts[host];
        loop {
            let port = state.next_port;
            state.next_port = if port == u16::MAX { super::FIRST_PORT } else { port + 1 };
            if !state.listeners.contains_key(&port) {
                return port;
            }
        }
    }

    /// Returns the next connection; `None` and stores the waker if there is none yet.
    pub fn accept(
        &mut self,
        host: HostId,
        port: u16,
        waker: &Waker,
    ) -> Option<io::Result<(ConnId, SocketAddr)>> {
        loop {
            let Some(accepting) = self.hosts[host].listeners.get_mut(&port) else {
                return Some(Err(io::ErrorKind::NotConnected.into()));
            };
            let Some(id) = accepting.backlog.pop_front() else {
                accepting.waker = Some(waker.clone());
                return None;
            };
            if let Some(remote) = self.peer_addr((id, 1)) {
                return Some(Ok((id, remote)));
            }
        }
    }

    /// Frees a port; resets connections in its backlog.
    pub fn unlisten(&mut self, now: u64, host: HostId, port: u16) {
        let Some(accepting) = self.hosts[host].listeners.remove(&port) else { return };
        for id in accepting.backlog {
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            conn.ends[1].open = false;
            if conn.ends[0].open {
                self.send_reset(now, id, 0);
            } else {
                self.conns.remove(&id);
            }
        }
    }

    /// Begins to connect. `HostUnreachable` if no host has the address.
    pub fn connect(&mut self, now: u64, from: HostId, remote: SocketAddr) -> io::Result<ConnId> {
        let unreachable =
            || io::Error::new(io::ErrorKind::HostUnreachable, format!("{remote} is no machine"));
        let to = self.host_at(remote.ip(), from).ok_or_else(unreachable)?;
        let id = ConnId(self.next_conn);
        self.next_conn += 1;
        let ip = if from == to { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { self.hosts[from].ip };
        let local = SocketAddr::new(ip, self.free_port(from));
        let mut lane = self.lane(from, to);
        let at = now + self.latency(from, to, 0, lane.next_segment(0));
        let (waker, outcome, accepted, retry_nanos) = (None, None, false, RETRY_NANOS);
        let attempt = ConnectAttempt { from, to, local, remote, lane, waker, outcome, accepted, retry_nanos };
        self.attempts.insert(id, attempt);
        self.schedule(at, Event::Syn(id));
        Ok(id)
    }

    /// Returns the outcome of the attempt; `None` and stores the waker if there is none yet.
    pub fn connected(&mut self, id: ConnId, waker: &Waker) -> Option<io::Result<()>> {
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return Some(Err(io::ErrorKind::NotConnected.into()));
        };
        match attempt.outcome.take() {
            Some(outcome) => {
                self.attempts.remove(&id);
                Some(outcome)
            }
            None => {
                attempt.waker = Some(waker.clone());
                None
            }
        }
    }

    /// Drops an attempt whose caller has gone.
    pub fn abandon(&mut self, now: u64, id: ConnId) {
        if self.attempts.remove(&id).is_some() {
            self.close(now, (id, 0));
        }
    }

    pub(super) fn syn(&mut self, now: u64, id: ConnId) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let (from, to, port, accepted) = (attempt.from, attempt.to, attempt.remote.port(), attempt.accepted);
        let key = attempt.lane.next_segment(1);
        let connect_effect = self.rules.connect_effect(from, to);
        if !self.passes(from, to) || connect_effect == Some(LinkEffect::Ignore) {
            return self.retry(now, id);
        }
        let listener = self.hosts[to].listeners.get(&port).filter(|_| connect_effect.is_none());
        let answer = match listener {
            _ if accepted => Event::SynAck(id),
            None => Event::Refused(id),
            Some(accepting) if accepting.backlog.len() >= BACKLOG_MAX => return self.retry(now, id),
            Some(_) => {
                self.take(id);
                Event::SynAck(id)
            }
        };
        let at = now + self.latency(to, from, 0, key);
        self.schedule(at, answer);
    }

    /// Creates the connection at the listening side, whether or not its reply arrives.
    fn take(&mut self, id: ConnId) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        attempt.accepted = true;
        let end = |host, addr| End { host, addr, open: true, error: None };
        let ends = [end(attempt.from, attempt.local), end(attempt.to, attempt.remote)];
        let window = self.profile.window as usize;
        let (pipes, lane) = ([Pipe::new(window), Pipe::new(window)], attempt.lane);
        self.conns.insert(id, Conn { ends, pipes, lane, is_silent: false });
        let listeners = &mut self.hosts[attempt.to].listeners;
        if let Some(accepting) = listeners.get_mut(&attempt.remote.port()) {
            accepting.backlog.push_back(id);
            self.wakes.extend(accepting.waker.take());
        }
    }

    fn retry(&mut self, now: u64, id: ConnId) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let at = now + attempt.retry_nanos;
        attempt.retry_nanos = (attempt.retry_nanos * 2).min(RETRY_NANOS_MAX);
        self.schedule(at, Event::Syn(id));
    }

    pub(super) fn syn_ack(&mut self, now: u64, id: ConnId) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        if !self.passes(attempt.to, attempt.from) {
            return self.retry(now, id);
        }
        self.counts.connected += 1;
        self.conclude(id, Ok(()));
    }

    pub(super) fn refused(&mut self, now: u64, id: ConnId) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        if !self.passes(attempt.to, attempt.from) {
            return self.retry(now, id);
        }
        self.counts.refused += 1;
        self.conclude(id, Err(io::ErrorKind::ConnectionRefused.into()));
    }

    fn conclude(&mut self, id: ConnId, outcome: io::Result<()>) {
        if let Some(attempt) = self.attempts.get_mut(&id) {
            attempt.outcome = Some(outcome);
            self.wakes.extend(attempt.waker.take());
        }
    }
}
