//! Table of open scanners: their owners, sequence numbers and expiry.
//!
//! ```text
//!             open                    take                        put_back
//!   Scan call ────▶ idle, next seq ────────▶ busy (work outside) ────────▶ idle, next seq + 1
//!                     │ ttl passed               │ a second call, or close: spoiled
//!                     ▼                          ▼
//!                   removed                    removed when put back
//! ```
//!
//! Pure: the time is an argument, and the caller works on a taken scanner without a lock. Source: `behaviour.md` §7. A
//! call with a wrong sequence number destroys its scanner, because client and server disagree about the rows returned.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::ids::Uuid;
use engine::time::Instant;

/// Reason that a scanner cannot be continued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScannerError {
    /// Unknown, expired, closed or destroyed.
    Gone(Uuid),
    /// The id is malformed.
    NotAnId,
    /// The call is out of order and the scanner is destroyed. Carries the expected sequence number.
    WrongSequence(u32),
    /// The scanner belongs to another user.
    Foreign,
}

struct Slot<S> {
    user: Arc<str>,
    next_seq: u32,
    used: Instant,
    state: State<S>,
}

enum State<S> {
    Idle(S),
    Busy,
    /// Busy, and dropped when the call at work ends.
    Spoiled,
}

/// Scanners of kind `S` by id.
pub struct ScannerTable<S> {
    ttl: Duration,
    slots: BTreeMap<Uuid, Slot<S>>,
}

impl<S> ScannerTable<S> {
    /// Creates a table; `ttl` is the idle time after which a scanner expires.
    pub fn new(ttl: Duration) -> ScannerTable<S> {
        ScannerTable { ttl, slots: BTreeMap::new() }
    }

    /// Sets the idle time after which a scanner expires.
    pub fn set_ttl(&mut self, ttl: Duration) {
        self.ttl = ttl;
    }

    /// Adds a scanner whose opening call has got its reply; the next call must carry sequence number 1.
    pub fn open(&mut self, id: Uuid, user: Arc<str>, scanner: S, now: Instant) {
        let state = State::Idle(scanner);
        self.slots.insert(id, Slot { user, next_seq: 1, used: now, state });
    }

    /// Takes a scanner out to work on it. Each `Ok` must be followed by [`ScannerTable::put_back`] or
    /// [`ScannerTable::remove`].
    pub fn take(&mut self, id: Uuid, user: &str, seq: u32, now: Instant) -> Result<S, ScannerError> {
        self.expire(id, now);
        let slot = self.slots.get_mut(&id).ok_or(ScannerError::Gone(id))?;
        if *slot.user != *user {
            return Err(ScannerError::Foreign);
        }
        let expected = slot.next_seq;
        match std::mem::replace(&mut slot.state, State::Spoiled) {
            State::Idle(scanner) if seq == expected => {
                (slot.state, slot.used) = (State::Busy, now);
                Ok(scanner)
            }
            State::Idle(_) => {
                self.slots.remove(&id);
                Err(ScannerError::WrongSequence(expected))
            }
            State::Busy | State::Spoiled => Err(ScannerError::WrongSequence(expected + 1)),
        }
    }

    /// Returns a scanner to the table after a successful call, if it has more rows.
    pub fn put_back(&mut self, id: Uuid, scanner: S, now: Instant) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        match slot.state {
            State::Spoiled => drop(self.slots.remove(&id)),
            _ => {
                slot.next_seq = slot.next_seq.wrapping_add(1);
                (slot.state, slot.used) = (State::Idle(scanner), now);
            }
        }
    }

    /// Removes a taken scanner that is exhausted or failed.
    pub fn remove(&mut self, id: Uuid) {
        self.slots.remove(&id);
    }

    /// Closes a scanner, regardless of its sequence number. An unknown id is no error, so that closing twice succeeds.
    pub fn close(&mut self, id: Uuid, user: &str) -> Result<(), ScannerError> {
        match self.slots.get_mut(&id) {
            None => Ok(()),
            Some(slot) if *slot.user != *user => Err(ScannerError::Foreign),
            Some(Slot { state: State::Idle(_), .. }) => {
                self.slots.remove(&id);
                Ok(())
            }
            Some(slot) => {
                slot.state = State::Spoiled;
                Ok(())
            }
        }
    }

    /// Resets the idle time of a scanner.
    pub fn keep_alive(&mut self, id: Uuid, user: &str, now: Instant) -> Result<(), ScannerError> {
        self.expire(id, now);
        let slot = self.slots.get_mut(&id).ok_or(ScannerError::Gone(id))?;
        if *slot.user != *user {
            return Err(ScannerError::Foreign);
        }
        slot.used = now;
        Ok(())
    }

    /// Drops expired scanners and returns their number.
    pub fn drop_expired(&mut self, now: Instant) -> usize {
        let before = self.slots.len();
        let ttl = self.ttl;
        self.slots.retain(|_, slot| !slot.is_expired(ttl, now));
        before - self.slots.len()
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn expire(&mut self, id: Uuid, now: Instant) {
        if self.slots.get(&id).is_some_and(|slot| slot.is_expired(self.ttl, now)) {
            self.slots.remove(&id);
        }
    }
}

impl<S> Slot<S> {
    fn is_expired(&self, ttl: Duration, now: Instant) -> bool {
        matches!(self.state, State::Idle(_)) && now.since(self.used) > ttl
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: Uuid = Uuid([7; 16]);

    fn at(seconds: u64) -> Instant {
        Instant(seconds * 1_000_000_000)
    }

    fn table() -> ScannerTable<&'static str> {
        let mut table = ScannerTable::new(Duration::from_secs(60));
        table.open(ID, Arc::from("ann"), "scan", at(0));
        table
    }

    #[test]
    fn calls_continue_in_sequence() {
        let mut table = table();
        for seq in 1..4 {
            let scanner = table.take(ID, "ann", seq, at(1)).expect("in order");
            table.put_back(ID, scanner, at(1));
        }
        assert_eq!(table.take(ID, "ann", 3, at(2)), Err(ScannerError::WrongSequence(4)), "a repeated call");
        assert_eq!(
            table.take(ID, "ann", 4, at(2)),
            Err(ScannerError::Gone(ID)),
            "and the scanner is destroyed"
        );
    }

    #[test]
    fn a_second_call_at_once_spoils_the_first() {
        let mut table = table();
        let scanner = table.take(ID, "ann", 1, at(1)).expect("in order");
        assert_eq!(table.take(ID, "ann", 1, at(1)), Err(ScannerError::WrongSequence(2)));
        table.put_back(ID, scanner, at(1));
        assert!(table.is_empty());
    }

    #[test]
    fn closing_an_unknown_scanner_is_no_error() {
        let mut table = table();
        let scanner = table.take(ID, "ann", 1, at(1)).expect("in order");
        assert_eq!(table.close(ID, "ann"), Ok(()), "while a call works on it");
        table.put_back(ID, scanner, at(1));
        assert!(table.is_empty());
        assert_eq!(table.close(ID, "ann"), Ok(()));
    }

    #[test]
    fn idle_scanners_expire_and_busy_ones_do_not() {
        let mut table = table();
        assert_eq!(table.keep_alive(ID, "ann", at(50)), Ok(()));
        let scanner = table.take(ID, "ann", 1, at(100)).expect("kept alive");
        assert_eq!(table.drop_expired(at(1000)), 0, "a call works on it");
        table.put_back(ID, scanner, at(1000));
        assert_eq!(table.keep_alive(ID, "ann", at(1061)), Err(ScannerError::Gone(ID)));
        assert!(table.is_empty());
    }

    #[test]
    fn a_scanner_has_one_user() {
        let mut table = table();
        assert_eq!(table.take(ID, "bob", 1, at(1)), Err(ScannerError::Foreign));
        assert_eq!(table.close(ID, "bob"), Err(ScannerError::Foreign));
        assert_eq!(table.keep_alive(ID, "bob", at(1)), Err(ScannerError::Foreign));
        assert!(table.take(ID, "ann", 1, at(1)).is_ok(), "and is not harmed by others");
    }
}
