//! Whether a server's memory leaves room for what comes in.
//!
//! ```text
//!   0 ─────────────── soft limit ─────────────── hard limit      of what is held; both move with the budget
//!     all may begin       more and more are refused   nothing may begin
//! ```
//!
//! Above the soft limit memory is flushed first, and clients slow down before everything stops. The hard limit is kept
//! by promises: whatever may begin has been promised the most that it can come to hold (`engine::memory`).
//!
//! Source: Kudu's `memory_limit_soft_percentage`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use engine::memory::{Held, MemTracker, Memory, Promise};
use engine::replica::WriteOp;
use engine::tablet::{Counting, Tablet};

/// A promise that takes more than this part of what is left is worth counting rows for.
const QUICK_SHARE: u64 = 64;

/// Room that every answer with rows begins with.
const ANSWER_BYTES_MIN: u64 = 32 << 10;

/// How much of its memory a server uses, and whether that leaves room for work.
pub struct MemoryPressure {
    root: Arc<MemTracker>,
    calls: Arc<MemTracker>,
    answers: Arc<MemTracker>,
    soft_percent: u64,
    refused: AtomicU64,
    /// Whether something was refused for the hard limit since somebody asked.
    starved: AtomicBool,
}

/// Room for a write, from its call to when it was applied.
pub struct Admitted {
    /// The call's bytes.
    pub body: Held,
    /// What the tablet may come to hold.
    pub growth: Promise,
}

/// The rows of an answer, from the first one until they are on the socket.
pub struct AnswerRoom {
    answers: Arc<MemTracker>,
    held: Held,
}

/// Bytes that are counted for as long as anybody has them.
struct Counted {
    bytes: Bytes,
    _room: Arc<AnswerRoom>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AnswerRoom {
    /// The answer has become so long. False if there is no room for that: no more should come to it.
    pub fn grow(&self, bytes: usize) -> bool {
        let more = (bytes as u64).saturating_sub(self.held.bytes());
        self.held.try_add(more, self.answers.open_bytes())
    }

    /// The parts of the finished answer.
    pub fn count(self, parts: Vec<Bytes>) -> Vec<Bytes> {
        let room = Arc::new(self);
        let counted = |bytes| Bytes::from_owner(Counted { bytes, _room: room.clone() });
        parts.into_iter().map(counted).collect()
    }
}

impl MemoryPressure {
    pub fn new(root: &Arc<MemTracker>, soft_percent: u64) -> MemoryPressure {
        let (calls, answers) = (root.child("calls"), root.child("answers"));
        let (refused, starved) = (AtomicU64::new(0), AtomicBool::new(false));
        MemoryPressure { root: root.clone(), calls, answers, soft_percent, refused, starved }
    }

    /// What tablets count their memory by.
    pub fn of_tablets(root: &Arc<MemTracker>) -> Memory {
        Memory::of(&root.child("tablets"))
    }

    pub fn used_bytes(&self) -> u64 {
        self.root.bytes()
    }

    pub fn limit_bytes(&self) -> u64 {
        self.root.limit_bytes()
    }

    /// Writes and messages that were refused so far.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Bytes above which memory has to be freed.
    pub fn soft_limit_bytes(&self) -> u64 {
        soft_limit(self.limit_bytes(), self.soft_percent)
    }

    /// Bytes that should not be held.
    pub fn excess_bytes(&self) -> u64 {
        self.used_bytes().saturating_sub(self.soft_limit_bytes())
    }

    /// Why a write may not begin now, if it may not. `random` decides between the limits.
    pub fn refuse(&self, random: u64) -> Option<String> {
        let (used, limit) = (self.used_bytes(), self.limit_bytes());
        let soft = soft_limit(limit, self.soft_percent);
        let (over, room) = (used.saturating_sub(soft), (limit - soft).max(1));
        let refused = used > soft && (over >= room || random % room < over);
        refused.then(|| {
            self.refusal(format!("Soft memory limit exceeded: {used} bytes are used, {soft} may be"))
        })
    }

    fn refusal(&self, why: String) -> String {
        self.refused.fetch_add(1, Ordering::Relaxed);
        why
    }

    /// Makes room for a write whose call has `body` bytes; an error says why there is none.
    pub fn admit(&self, tablet: &Tablet, write: &WriteOp, body: u64) -> Result<Admitted, String> {
        let held = Held::new(&self.calls);
        let growth = match held.try_add(body, self.root.open_bytes()) {
            true => self.promise(&[(tablet, write)]),
            false => None,
        };
        growth.map(|growth| Admitted { body: held, growth }).ok_or_else(|| self.hard())
    }

    /// Makes room for an answer with rows, which grows; an error says why there is none.
    pub fn answer(&self) -> Result<AnswerRoom, String> {
        let room = AnswerRoom { answers: self.answers.clone(), held: Held::new(&self.answers) };
        let begun = room.held.try_add(ANSWER_BYTES_MIN, self.root.open_bytes());
        if begun { Ok(room) } else { Err(self.hard()) }
    }

    /// Makes room for operations that a leader sent. What is more than all the memory there may be is taken without a
    /// promise as long as memory is not short: the group must go on.
    pub fn admit_operations(&self, tablet: &Tablet, writes: &[WriteOp]) -> Result<Option<Promise>, String> {
        let writes: Vec<_> = writes.iter().map(|write| (tablet, write)).collect();
        match self.promise(&writes) {
            Some(promise) => Ok(Some(promise)),
            None if self.excess_bytes() == 0 => Ok(None),
            None => Err(self.hard()),
        }
    }

    /// Whether something was refused for the hard limit since somebody asked. What is promised counts there and not
    /// below the soft limit: many tablets that each promise themselves their next chunk may leave room for nothing
    /// though little is held.
    pub fn starved(&self) -> bool {
        self.starved.swap(false, Ordering::Relaxed)
    }

    fn hard(&self) -> String {
        self.starved.store(true, Ordering::Relaxed);
        let (used, limit) = (self.used_bytes(), self.limit_bytes());
        let promised = self.root.spoken_for().saturating_sub(used);
        self.refusal(format!(
            "Hard memory limit exceeded: {used} bytes are used and {promised} promised of {limit}"
        ))
    }

    /// The rows are counted only where a quick answer would take much of what is left.
    fn promise(&self, writes: &[(&Tablet, &WriteOp)]) -> Option<Promise> {
        let growth = |counting| {
            let of = |(tablet, write): &(&Tablet, &WriteOp)| {
                tablet.growth_max(&write.columns, &write.rows, &write.indirect, counting)
            };
            writes.iter().map(of).sum::<u64>()
        };
        let (quick, left) =
            (growth(Counting::Quick), self.root.open_bytes().saturating_sub(self.root.spoken_for()));
        match quick <= left / QUICK_SHARE {
            true => self.root.promise(quick),
            false => self.root.promise(growth(Counting::Exact)),
        }
    }
}

/// Bytes above which memory is short.
pub fn soft_limit(limit: u64, soft_percent: u64) -> u64 {
    limit / 100 * soft_percent.min(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_refused_more_and_more_between_the_limits() {
        let limit = Arc::new(AtomicU64::new(1000));
        let asked = limit.clone();
        let root = MemTracker::root("server", Some(Arc::new(move || asked.load(Ordering::Relaxed))));
        let memory = MemoryPressure::new(&root, 80);
        let rows = Held::new(&root.child("rows"));
        let refused = || (0..200).filter(|random| memory.refuse(*random).is_some()).count();
        rows.set(800, 0);
        assert_eq!((refused(), memory.excess_bytes()), (0, 0));
        rows.set(850, 0);
        assert_eq!(
            (refused(), memory.excess_bytes()),
            (50, 50),
            "a quarter of the way, a quarter of the writes"
        );
        rows.set(1000, 0);
        assert_eq!(refused(), 200);
        limit.store(2000, Ordering::Relaxed);
        assert_eq!(refused(), 0, "the budget grew");
        limit.store(500, Ordering::Relaxed);
        assert_eq!(refused(), 200, "it shrank");
        assert_eq!(memory.refused(), 450);
    }

    #[test]
    fn what_is_promised_starves_writes_though_little_is_held() {
        let root = MemTracker::root("server", Some(Arc::new(|| 256 << 10)));
        let memory = MemoryPressure::new(&root, 80);
        let tablets = root.child("tablets");
        assert!(memory.answer().is_ok() && !memory.starved());
        let chunks: Vec<_> = (0..15).map(|_| tablets.promise(16 << 10).expect("there is room")).collect();
        let error = memory.answer().err().expect("nothing is left");
        assert_eq!(error, "Hard memory limit exceeded: 0 bytes are used and 245760 promised of 262144");
        assert_eq!((memory.excess_bytes(), memory.refuse(0)), (0, None), "below the soft limit");
        assert!(memory.starved() && !memory.starved(), "told once");
        drop(chunks);
        assert!(memory.answer().is_ok() && !memory.starved());
    }

    #[test]
    fn an_answer_is_counted_until_nobody_has_it() {
        let root = MemTracker::root("server", Some(Arc::new(|| 256 << 10)));
        let memory = MemoryPressure::new(&root, 80);
        let room = memory.answer().expect("there is room");
        assert_eq!(root.bytes(), ANSWER_BYTES_MIN, "before there are rows");
        assert!(room.grow(10) && room.grow(100 << 10));
        assert_eq!(root.bytes(), 100 << 10);
        assert!(!room.grow(1 << 20), "more than there may be: the answer ends");
        let parts = room.count(vec![Bytes::from_static(b"rows"), Bytes::from_static(b"strings")]);
        let on_the_socket = parts[1].slice(3..);
        assert_eq!((root.bytes(), &on_the_socket[..]), (100 << 10, &b"ings"[..]));
        drop(parts);
        assert_eq!(root.bytes(), 100 << 10);
        drop(on_the_socket);
        assert_eq!((root.bytes(), root.spoken_for()), (0, 0));
        let all = Held::new(&root.child("rows"));
        assert!(all.try_keep(256 << 10) && memory.answer().is_err());
        assert_eq!(memory.refused(), 1);
    }
}
