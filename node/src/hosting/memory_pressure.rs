//! Memory pressure of a server, and the reservations of writes and replies.
//!
//! ```text
//!   0 ─────────────── soft limit ─────────────── hard limit      of tracked memory; both move with the budget
//!     all are admitted     a growing share is rejected   nothing is admitted
//! ```
//!
//! Above the soft limit memory is flushed first, and clients slow down before all writes stop. Reservations keep the
//! hard limit: every admitted request has reserved the most memory that it can use (`engine::memory`).
//!
//! Source: Kudu's `memory_limit_soft_percentage`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use engine::memory::{MemTracker, MemoryHandle, Reservation, TrackedBytes};
use engine::replica::WriteOp;
use engine::tablet::{GrowthEstimate, Tablet};
use nyala_common::sidecars::Sidecars;

/// Divisor of the memory left: only for a larger reservation the rows are counted exactly.
const QUICK_SHARE: u64 = 64;

/// Initial reservation of every reply with rows.
const REPLY_BYTES_MIN: u64 = 32 << 10;

/// Memory of a scanner between two calls, beside its predicates, about.
const SCANNER_BYTES: u64 = 16 << 10;

/// Tracked memory of a server against its limits.
pub struct MemoryPressure {
    root: Arc<MemTracker>,
    calls: Arc<MemTracker>,
    replies: Arc<MemTracker>,
    scanners: Arc<MemTracker>,
    soft_percent: u64,
    refused: AtomicU64,
    /// True if a reservation failed at the hard limit since [`MemoryPressure::take_starvation_flag`].
    starved: AtomicBool,
}

/// Memory of a write.
pub struct WriteReservation {
    /// Bytes of the call, until its reply.
    pub body: TrackedBytes,
    /// Reservation for the tablet's growth, until the write is applied.
    pub growth: Reservation,
}

/// Memory of a reply's rows, from the first row until they are on the socket.
pub struct ReplyReservation {
    replies: Arc<MemTracker>,
    held: TrackedBytes,
}

/// Bytes that are tracked until the last reference is dropped.
struct TrackedBuffer {
    bytes: Bytes,
    _room: Arc<ReplyReservation>,
}

impl AsRef<[u8]> for TrackedBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl ReplyReservation {
    /// Grows the reservation to a reply of `bytes`. Returns false if memory is short: the reply should end here.
    pub fn grow(&self, bytes: usize) -> bool {
        let more = (bytes as u64).saturating_sub(self.held.bytes());
        self.held.try_add(more, self.replies.reservable_bytes())
    }

    /// Turns the sidecars of the finished reply into tracked bytes. Those of a small reply, which share a buffer, are
    /// not tracked any more: the connection copies them into its send queue at once.
    pub fn count(self, sidecars: Sidecars) -> Sidecars {
        let Sidecars::Separate(parts) = sidecars else { return sidecars };
        let reservation = Arc::new(self);
        let counted = |bytes| Bytes::from_owner(TrackedBuffer { bytes, _room: reservation.clone() });
        Sidecars::Separate(parts.into_iter().map(counted).collect())
    }
}

impl MemoryPressure {
    pub fn new(root: &Arc<MemTracker>, soft_percent: u64) -> MemoryPressure {
        let (calls, replies) = (root.child("calls"), root.child("answers"));
        let scanners = root.child("scanners");
        let (refused, starved) = (AtomicU64::new(0), AtomicBool::new(false));
        MemoryPressure { root: root.clone(), calls, replies, scanners, soft_percent, refused, starved }
    }

    /// Returns the memory handle that tablets use.
    pub fn of_tablets(root: &Arc<MemTracker>) -> MemoryHandle {
        MemoryHandle::of(&root.child("tablets"))
    }

    pub fn used_bytes(&self) -> u64 {
        self.root.bytes()
    }

    pub fn limit_bytes(&self) -> u64 {
        self.root.limit_bytes()
    }

    /// Returns the number of rejected writes and messages.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns the tracked bytes above which memory must be freed.
    pub fn soft_limit_bytes(&self) -> u64 {
        soft_limit(self.limit_bytes(), self.soft_percent)
    }

    /// Returns the tracked bytes above the soft limit.
    pub fn excess_bytes(&self) -> u64 {
        self.used_bytes().saturating_sub(self.soft_limit_bytes())
    }

    /// Returns the reason if a write may not begin now. `random` decides between the limits.
    pub fn refuse(&self, random: u64) -> Option<String> {
        let (used, limit) = (self.used_bytes(), self.limit_bytes());
        let soft = soft_limit(limit, self.soft_percent);
        let (over, headroom) = (used.saturating_sub(soft), (limit - soft).max(1));
        let refused = used > soft && (over >= headroom || random % headroom < over);
        refused.then(|| {
            self.record_refusal(format!("Soft memory limit exceeded: {used} bytes are used, {soft} may be"))
        })
    }

    fn record_refusal(&self, why: String) -> String {
        self.refused.fetch_add(1, Ordering::Relaxed);
        why
    }

    /// Reserves memory for a write whose call has `body` bytes. The error gives the reason for a rejection.
    pub fn reserve_write(
        &self,
        tablet: &Tablet,
        write: &WriteOp,
        body: u64,
    ) -> Result<WriteReservation, String> {
        let held = TrackedBytes::new(&self.calls);
        let growth = match held.try_add(body, self.root.reservable_bytes()) {
            true => self.reserve_writes(&[(tablet, write)]),
            false => None,
        };
        growth.map(|growth| WriteReservation { body: held, growth }).ok_or_else(|| self.hard_limit_message())
    }

    /// Reserves memory for a reply with rows, which grows. The error gives the reason for a rejection.
    pub fn reserve_reply(&self) -> Result<ReplyReservation, String> {
        let reservation =
            ReplyReservation { replies: self.replies.clone(), held: TrackedBytes::new(&self.replies) };
        let begun = reservation.held.try_add(REPLY_BYTES_MIN, self.root.reservable_bytes());
        if begun { Ok(reservation) } else { Err(self.hard_limit_message()) }
    }

    /// Reserves memory for a scanner between two calls, whose predicates have `predicate_bytes`. The error gives the
    /// reason for a rejection.
    pub fn reserve_scanner(&self, predicate_bytes: u64) -> Result<TrackedBytes, String> {
        let held = TrackedBytes::new(&self.scanners);
        let fits = held.try_add(SCANNER_BYTES + predicate_bytes, self.root.reservable_bytes());
        if fits { Ok(held) } else { Err(self.hard_limit_message()) }
    }

    /// Reserves memory for operations from a leader. Operations larger than the whole limit are admitted without a
    /// reservation unless memory is short, because the group must make progress.
    pub fn reserve_operations(
        &self,
        tablet: &Tablet,
        writes: &[WriteOp],
    ) -> Result<Option<Reservation>, String> {
        let writes: Vec<_> = writes.iter().map(|write| (tablet, write)).collect();
        match self.reserve_writes(&writes) {
            Some(promise) => Ok(Some(promise)),
            None if self.excess_bytes() == 0 => Ok(None),
            None => Err(self.hard_limit_message()),
        }
    }

    /// Returns true if a reservation failed at the hard limit since the last call. Reservations count against the hard
    /// limit but not against the soft one: many tablets that each reserve their next chunk may exhaust the limit
    /// although little memory is used.
    pub fn take_starvation_flag(&self) -> bool {
        self.starved.swap(false, Ordering::Relaxed)
    }

    fn hard_limit_message(&self) -> String {
        self.starved.store(true, Ordering::Relaxed);
        let (used, limit) = (self.used_bytes(), self.limit_bytes());
        let reserved = self.root.reserved_bytes().saturating_sub(used);
        self.record_refusal(format!(
            "Hard memory limit exceeded: {used} bytes are used and {reserved} promised of {limit}"
        ))
    }

    /// Reserves memory for `writes`. Rows are counted exactly only if the quick estimate is a large share of what is
    /// left.
    fn reserve_writes(&self, writes: &[(&Tablet, &WriteOp)]) -> Option<Reservation> {
        let growth = |counting| {
            let of = |(tablet, write): &(&Tablet, &WriteOp)| {
                tablet.growth_max(&write.columns, &write.rows, &write.indirect, counting)
            };
            writes.iter().map(of).sum::<u64>()
        };
        let (quick, left) = (
            growth(GrowthEstimate::Quick),
            self.root.reservable_bytes().saturating_sub(self.root.reserved_bytes()),
        );
        match quick <= left / QUICK_SHARE {
            true => self.root.try_reserve(quick),
            false => self.root.try_reserve(growth(GrowthEstimate::Exact)),
        }
    }
}

/// Returns the bytes above which memory is short.
pub fn soft_limit(limit: u64, soft_percent: u64) -> u64 {
    limit / 100 * soft_percent.min(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_growing_share_of_writes_is_rejected_between_the_limits() {
        let limit = Arc::new(AtomicU64::new(1000));
        let shared_limit = limit.clone();
        let root = MemTracker::root("server", Some(Arc::new(move || shared_limit.load(Ordering::Relaxed))));
        let memory = MemoryPressure::new(&root, 80);
        let rows = TrackedBytes::new(&root.child("rows"));
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
    fn reservations_starve_writes_though_little_is_tracked() {
        let root = MemTracker::root("server", Some(Arc::new(|| 256 << 10)));
        let memory = MemoryPressure::new(&root, 80);
        let tablets = root.child("tablets");
        assert!(memory.reserve_reply().is_ok() && !memory.take_starvation_flag());
        let chunks: Vec<_> =
            (0..15).map(|_| tablets.try_reserve(16 << 10).expect("memory is left")).collect();
        let error = memory.reserve_reply().err().expect("nothing is left");
        assert_eq!(error, "Hard memory limit exceeded: 0 bytes are used and 245760 promised of 262144");
        assert_eq!((memory.excess_bytes(), memory.refuse(0)), (0, None), "below the soft limit");
        assert!(memory.take_starvation_flag() && !memory.take_starvation_flag(), "reported once");
        drop(chunks);
        assert!(memory.reserve_reply().is_ok() && !memory.take_starvation_flag());
    }

    #[test]
    fn a_reply_is_tracked_until_its_last_reference_is_dropped() {
        let root = MemTracker::root("server", Some(Arc::new(|| 256 << 10)));
        let memory = MemoryPressure::new(&root, 80);
        let reservation = memory.reserve_reply().expect("memory is left");
        assert_eq!(root.bytes(), REPLY_BYTES_MIN, "before there are rows");
        assert!(reservation.grow(10) && reservation.grow(100 << 10));
        assert_eq!(root.bytes(), 100 << 10);
        assert!(!reservation.grow(1 << 20), "more than the limit: the reply ends");
        let parts = vec![Bytes::from_static(b"rows"), Bytes::from_static(b"strings")];
        let parts = reservation.count(parts.into()).into_buffers();
        let on_the_socket = parts[1].slice(3..);
        assert_eq!((root.bytes(), &on_the_socket[..]), (100 << 10, &b"ings"[..]));
        drop(parts);
        assert_eq!(root.bytes(), 100 << 10);
        drop(on_the_socket);
        assert_eq!((root.bytes(), root.reserved_bytes()), (0, 0));
        let small = Sidecars::Shared { bytes: Bytes::from_static(b"row"), ends: vec![3] };
        let counted = memory.reserve_reply().expect("memory is left").count(small.clone());
        assert_eq!((root.bytes(), counted), (0, small), "it is copied at once");
        let scanner = memory.reserve_scanner(100 << 10).expect("memory is left");
        assert_eq!(root.bytes(), SCANNER_BYTES + (100 << 10));
        assert!(memory.reserve_scanner(200 << 10).is_err(), "all scanners together have no space");
        drop(scanner);
        let all = TrackedBytes::new(&root.child("rows"));
        assert!(all.try_hold(256 << 10) && memory.reserve_reply().is_err());
        assert_eq!(memory.refused(), 2);
    }
}
