//! One direction of a connection: bytes on their way, bytes that arrived, and who waits for either.

use std::collections::VecDeque;
use std::task::Waker;

use bytes::BufMut;

/// Bytes that travel together. No bytes: the writer has nothing more to say.
struct Segment {
    arrives: u64,
    bytes: Vec<u8>,
    fin: bool,
}

/// What arrived at the reader's side.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Arrived {
    Nothing,
    Something,
}

/// Sender's buffer, wire and receiver's buffer in one; at most `window` bytes fit.
pub struct Pipe {
    under_way: VecDeque<Segment>,
    under_way_bytes: usize,
    unread: VecDeque<Vec<u8>>,
    /// Bytes of the first unread segment that were read.
    taken: usize,
    unread_bytes: usize,
    window: usize,
    last_arrival: u64,
    fin_sent: bool,
    fin_arrived: bool,
    pub reader: Option<Waker>,
    pub writer: Option<Waker>,
    /// An arrival is in the network's queue.
    pub scheduled: bool,
    /// Nothing passed when the first segment was due, at this time.
    pub stalled_since: Option<u64>,
}

impl Pipe {
    pub fn new(window: usize) -> Pipe {
        Pipe {
            under_way: VecDeque::new(),
            under_way_bytes: 0,
            unread: VecDeque::new(),
            taken: 0,
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

    /// How many more bytes fit.
    pub fn room(&self) -> usize {
        self.window.saturating_sub(self.under_way_bytes + self.unread_bytes)
    }

    /// Sends bytes that fit; they arrive at `arrives`, or after what was sent before.
    pub fn send(&mut self, bytes: &[u8], arrives: u64) {
        self.push(bytes.to_vec(), arrives, false);
    }

    /// Sends the end, once.
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
        self.under_way_bytes += bytes.len();
        self.under_way.push_back(Segment { arrives: self.last_arrival, bytes, fin });
    }

    /// When the next segment is due.
    pub fn next_arrival(&self) -> Option<u64> {
        self.under_way.front().map(|segment| segment.arrives)
    }

    /// Whether bytes are under way that nobody has got.
    pub fn has_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Takes from the wire what is due. The reader must be woken if something arrived.
    pub fn arrive(&mut self, now: u64) -> Arrived {
        let mut arrived = Arrived::Nothing;
        while self.next_arrival().is_some_and(|due| due <= now) {
            let segment = self.under_way.pop_front().expect("its arrival was just seen");
            self.under_way_bytes -= segment.bytes.len();
            self.unread_bytes += segment.bytes.len();
            self.fin_arrived |= segment.fin;
            if !segment.bytes.is_empty() {
                self.unread.push_back(segment.bytes);
            }
            arrived = Arrived::Something;
        }
        arrived
    }

    /// What is under way is lost for good.
    pub fn lose(&mut self) {
        self.under_way.clear();
        self.under_way_bytes = 0;
    }

    pub fn unread_bytes(&self) -> usize {
        self.unread_bytes
    }

    /// Whether a reader that finds nothing to read has come to the end.
    pub fn at_end(&self) -> bool {
        self.fin_arrived && self.unread_bytes == 0
    }

    /// Gives up to `out.len()` bytes of what arrived, in order.
    pub fn take(&mut self, out: &mut impl BufMut) -> usize {
        let Some(first) = self.unread.front() else { return 0 };
        let count = out.remaining_mut().min(first.len() - self.taken);
        out.put_slice(&first[self.taken..self.taken + count]);
        self.taken += count;
        self.unread_bytes -= count;
        if self.taken == first.len() {
            self.unread.pop_front();
            self.taken = 0;
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
        assert_eq!((pipe.room(), pipe.next_arrival()), (2, Some(50)));
        assert_eq!(pipe.arrive(49), Arrived::Nothing);
        assert_eq!(pipe.arrive(50), Arrived::Something);
        assert_eq!(pipe.room(), 2, "unread bytes count as well");
        let mut out = [0; 4];
        assert_eq!((pipe.take(&mut &mut out[..]), &out), (4, b"abcd"));
        assert_eq!((pipe.take(&mut &mut out[..]), &out[..2]), (2, &b"ef"[..]));
        assert!(!pipe.at_end());
        assert_eq!((pipe.take(&mut &mut out[..]), pipe.take(&mut &mut out[..])), (2, 0));
        assert!(pipe.at_end());
        assert_eq!(pipe.room(), 10);
    }
}
