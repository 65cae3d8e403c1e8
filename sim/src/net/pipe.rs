//! One direction of a connection: bytes in flight, bytes that arrived, and the tasks that wait for either.

use std::collections::VecDeque;
use std::task::Waker;

use bytes::BufMut;

/// Bytes that travel together. No bytes: the FIN.
struct Segment {
    arrives: u64,
    bytes: Vec<u8>,
    fin: bool,
}

/// Result of an arrival at the reader's side.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum PipeRead {
    Nothing,
    Something,
}

/// Sender's buffer, wire and receiver's buffer in one; at most `window` bytes fit.
pub struct Pipe {
    in_flight: VecDeque<Segment>,
    in_flight_bytes: usize,
    unread: VecDeque<Vec<u8>>,
    /// Bytes of the first unread segment that were read.
    first_read_bytes: usize,
    unread_bytes: usize,
    window: usize,
    last_arrival: u64,
    fin_sent: bool,
    fin_arrived: bool,
    pub reader: Option<Waker>,
    pub writer: Option<Waker>,
    /// True if an arrival is in the network's queue.
    pub scheduled: bool,
    /// Time at which the first segment was due and the link was blocked.
    pub stalled_since: Option<u64>,
}

impl Pipe {
    pub fn new(window: usize) -> Pipe {
        Pipe {
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            unread: VecDeque::new(),
            first_read_bytes: 0,
            unread_bytes: 0,
            window,
            last_arrival: 0,
            fin_sent: false,
            fin_arrived: false,
            reader: None,
            writer: None,
            scheduled: false,
            stalled_since: None,
        }
    }

    /// Returns the number of bytes that still fit.
    pub fn free_bytes(&self) -> usize {
        self.window.saturating_sub(self.in_flight_bytes + self.unread_bytes)
    }

    /// Sends bytes that fit; they arrive at `arrives`, or after what was sent before.
    pub fn send(&mut self, bytes: &[u8], arrives: u64) {
        self.push(bytes.to_vec(), arrives, false);
    }

    /// Sends the FIN, once.
    pub fn finish(&mut self, arrives: u64) {
        if !self.fin_sent {
            self.fin_sent = true;
            self.push(Vec::new(), arrives, true);
        }
    }

    pub fn finished(&self) -> bool {
        self.fin_sent
    }

    fn push(&mut self, bytes: Vec<u8>, arrives: u64, fin: bool) {
        self.last_arrival = self.last_arrival.max(arrives);
        self.in_flight_bytes += bytes.len();
        self.in_flight.push_back(Segment { arrives: self.last_arrival, bytes, fin });
    }

    /// Returns the time when the next segment is due.
    pub fn next_arrival(&self) -> Option<u64> {
        self.in_flight.front().map(|segment| segment.arrives)
    }

    /// Returns true if bytes are in flight.
    pub fn has_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Takes the due segment from the wire. The reader must be woken if one arrived.
    pub fn arrive(&mut self, now: u64) -> PipeRead {
        let mut arrived = PipeRead::Nothing;
        while self.next_arrival().is_some_and(|due| due <= now) {
            let segment = self.in_flight.pop_front().expect("its arrival was just seen");
            self.in_flight_bytes -= segment.bytes.len();
            self.unread_bytes += segment.bytes.len();
            self.fin_arrived |= segment.fin;
            if !segment.bytes.is_empty() {
                self.unread.push_back(segment.bytes);
            }
            arrived = PipeRead::Something;
        }
        arrived
    }

    /// Drops everything in flight.
    pub fn lose(&mut self) {
        self.in_flight.clear();
        self.in_flight_bytes = 0;
    }

    pub fn unread_bytes(&self) -> usize {
        self.unread_bytes
    }

    /// Returns true if a reader that finds nothing to read has reached the end.
    pub fn at_end(&self) -> bool {
        self.fin_arrived && self.unread_bytes == 0
    }

    /// Moves up to the remaining capacity of `out` of what arrived, in order.
    pub fn take(&mut self, buffer: &mut impl BufMut) -> usize {
        let Some(first) = self.unread.front() else { return 0 };
        let count = buffer.remaining_mut().min(first.len() - self.first_read_bytes);
        buffer.put_slice(&first[self.first_read_bytes..self.first_read_bytes + count]);
        self.first_read_bytes += count;
        self.unread_bytes -= count;
        if self.first_read_bytes == first.len() {
            self.unread.pop_front();
            self.first_read_bytes = 0;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_in_order_and_the_window_holds() {
        let mut pipe = Pipe::new(10);
        pipe.send(b"abcdef", 50);
        pipe.send(b"gh", 20);
        pipe.finish(0);
        assert_eq!((pipe.free_bytes(), pipe.next_arrival()), (2, Some(50)));
        assert_eq!(pipe.arrive(49), PipeRead::Nothing);
        assert_eq!(pipe.arrive(50), PipeRead::Something);
        assert_eq!(pipe.free_bytes(), 2, "unread bytes count as well");
        let mut buffer = [0; 4];
        assert_eq!((pipe.take(&mut &mut buffer[..]), &buffer), (4, b"abcd"));
        assert_eq!((pipe.take(&mut &mut buffer[..]), &buffer[..2]), (2, &b"ef"[..]));
        assert!(!pipe.at_end());
        assert_eq!((pipe.take(&mut &mut buffer[..]), pipe.take(&mut &mut buffer[..])), (2, 0));
        assert!(pipe.at_end());
        assert_eq!(pipe.free_bytes(), 10);
    }
}
