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
//!
//! Invariant: no scanner is dropped while the table is locked. The last scan of a compacted rowset closes its files.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use engine::ids::Uuid;
use engine::sync::MutexGuard;
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
    /// Scanners that have left the table and are to be dropped.
    ended: Vec<S>,
}

/// Locked table. The scanners that have left it are dropped after it is unlocked.
pub struct ScannersGuard<'a, S> {
    // Order: fields are dropped in this order.
    table: MutexGuard<'a, ScannerTable<S>>,
    ended: Vec<S>,
}

impl<'a, S> ScannersGuard<'a, S> {
    pub fn new(table: MutexGuard<'a, ScannerTable<S>>) -> ScannersGuard<'a, S> {
        ScannersGuard { table, ended: Vec::new() }
    }
}

impl<S> Deref for ScannersGuard<'_, S> {
    type Target = ScannerTable<S>;

    fn deref(&self) -> &ScannerTable<S> {
        &self.table
    }
}

impl<S> DerefMut for ScannersGuard<'_, S> {
    fn deref_mut(&mut self) -> &mut ScannerTable<S> {
        &mut self.table
    }
}

impl<S> Drop for ScannersGuard<'_, S> {
    fn drop(&mut self) {
        self.ended = self.table.take_ended();
    }
}

impl<S> ScannerTable<S> {
    /// Creates a table; `ttl` is the idle time after which a scanner expires.
    pub fn new(ttl: Duration) -> ScannerTable<S> {
        ScannerTable { ttl, slots: BTreeMap::new(), ended: Vec::new() }
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
            State::Idle(scanner) => {
                self.slots.remove(&id);
                self.ended.push(scanner);
                Err(ScannerError::WrongSequence(expected))
            }
            State::Busy | State::Spoiled => Err(ScannerError::WrongSequence(expected + 1)),
        }
    }

    /// Returns a scanner to the table after a successful call, if it has more rows.
    pub fn put_back(&mut self, id: Uuid, scanner: S, now: Instant) {
        match self.slots.get_mut(&id) {
            Some(slot) if matches!(slot.state, State::Busy) => {
                slot.next_seq = slot.next_seq.wrapping_add(1);
                (slot.state, slot.used) = (State::Idle(scanner), now);
            }
            _ => {
                self.slots.remove(&id);
                self.ended.push(scanner);
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
                self.end(id);
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

    /// Removes expired scanners and returns their number.
    pub fn drop_expired(&mut self, now: Instant) -> usize {
        let expired = self.slots.iter().filter(|(_, slot)| slot.is_expired(self.ttl, now));
        let expired: Vec<Uuid> = expired.map(|(id, _)| *id).collect();
        expired.iter().for_each(|id| self.end(*id));
        expired.len()
    }

    /// Returns the scanners that have left the table since the last call. The caller drops them without a lock.
    pub fn take_ended(&mut self) -> Vec<S> {
        std::mem::take(&mut self.ended)
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn expire(&mut self, id: Uuid, now: Instant) {
        if self.slots.get(&id).is_some_and(|slot| slot.is_expired(self.ttl, now)) {
            self.end(id);
        }
    }

    /// Removes a scanner that no call works on.
    fn end(&mut self, id: Uuid) {
        if let Some(Slot { state: State::Idle(scanner), .. }) = self.slots.remove(&id) {
            self.ended.push(scanner);
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
    use engine::sync::Mutex;

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

    #[test]
    fn scanners_that_end_are_kept_until_they_are_taken() {
        let mut closed = table();
        assert_eq!(closed.close(ID, "ann"), Ok(()));
        let mut repeated = table();
        assert_eq!(repeated.take(ID, "ann", 9, at(1)), Err(ScannerError::WrongSequence(1)));
        let mut expired = table();
        assert_eq!(expired.drop_expired(at(61)), 1);
        let mut late = table();
        assert_eq!(late.take(ID, "ann", 1, at(61)), Err(ScannerError::Gone(ID)));
        let mut spoiled = table();
        let scanner = spoiled.take(ID, "ann", 1, at(1)).expect("in order");
        assert_eq!(spoiled.close(ID, "ann"), Ok(()));
        spoiled.put_back(ID, scanner, at(1));
        for mut table in [closed, repeated, expired, late, spoiled] {
            assert!(table.is_empty());
            assert_eq!((table.take_ended(), table.take_ended()), (vec!["scan"], vec![]));
        }
    }

    /// A scanner that looks at its table when it is dropped. With the table locked that would never end.
    struct Watcher(Arc<Mutex<ScannerTable<Watcher>>>);

    impl Drop for Watcher {
        fn drop(&mut self) {
            assert!(self.0.lock().is_empty());
        }
    }

    #[test]
    fn scanners_are_dropped_after_the_table_is_unlocked() {
        let table: Arc<Mutex<ScannerTable<Watcher>>> =
            Arc::new(Mutex::new(ScannerTable::new(Duration::from_secs(60))));
        let lock = || ScannersGuard::new(table.lock());
        lock().open(ID, Arc::from("ann"), Watcher(table.clone()), at(0));
        assert_eq!(lock().close(ID, "ann"), Ok(()));
        assert_eq!(Arc::strong_count(&table), 1, "it was dropped");
    }
}
