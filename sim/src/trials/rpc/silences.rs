//! Connections that were lost in silence: neither end was told, and the client has to find out by its calls.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::time::Instant;

/// Connections between a client and a server that were lost at once.
#[derive(Debug, Clone, Copy)]
struct Silence {
    server: usize,
    /// Number of the server's start: its end closes all of them.
    start: u64,
    connections: usize,
    at: Instant,
}

/// All silences of a trial, and the beats that are due after them.
#[derive(Debug, Default)]
pub(super) struct Silences {
    all: Vec<Silence>,
    /// The servers to which clients are to send calls at short intervals.
    beats: BTreeMap<usize, usize>,
}

impl Silences {
    pub(super) fn add(
        &mut self,
        (client, server): (usize, usize),
        start: u64,
        connections: usize,
        at: Instant,
    ) {
        self.all.push(Silence { server, start, connections, at });
        self.beats.insert(client, server);
    }

    /// Returns the server to which a client is to send calls, once.
    pub(super) fn take_beats(&mut self, client: usize) -> Option<usize> {
        self.beats.remove(&client)
    }

    /// Returns the number of connections of a server's start that it may not have noticed to be lost: it
    /// notices that after some time without a byte.
    pub(super) fn unnoticed(&self, server: usize, start: u64, now: Instant, within: Duration) -> usize {
        let is_open = |silence: &&Silence| {
            (silence.server, silence.start) == (server, start) && now.since(silence.at) < within
        };
        self.all.iter().filter(is_open).map(|silence| silence.connections).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_may_have_lost_connections_open_for_some_time() {
        let at = |seconds: u64| Instant(seconds * 1_000_000_000);
        let within = Duration::from_secs(10);
        let mut silences = Silences::default();
        silences.add((0, 1), 3, 2, at(20));
        assert_eq!(
            (silences.take_beats(1), silences.take_beats(0), silences.take_beats(0)),
            (None, Some(1), None)
        );
        assert_eq!(silences.unnoticed(1, 3, at(29), within), 2);
        assert_eq!(silences.unnoticed(1, 3, at(30), within), 0, "it must have noticed");
        assert_eq!(silences.unnoticed(1, 4, at(29), within), 0, "it has restarted");
        assert_eq!(silences.unnoticed(0, 3, at(29), within), 0, "another server");
    }
}
