//! Counters of injected faults.

/// Number of times each fault happened since the disk was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultCounts {
    pub crashes: u64,
    /// Appends and truncations that a crash undid completely.
    pub writes_lost: u64,
    /// Appends that a crash kept in part.
    pub writes_torn: u64,
    /// Pages of unsynced writes that a crash lost while it kept later ones, see [`super::MemDisk::scatter_unsynced`].
    pub pages_lost: u64,
    /// Creations, renames and removals that a crash undid.
    pub names_lost: u64,
    /// Operations failed by [`super::MemDisk::fail_op`] and its like.
    pub ops_failed: u64,
    /// Failed syncs that left bytes marked clean that are not on the device.
    pub syncs_failed: u64,
    /// Syncs of files after one of their syncs failed. Their result means nothing, so no caller should issue them.
    pub syncs_repeated: u64,
    /// Appends and reservations rejected because the device was full.
    pub full: u64,
    pub bits_flipped: u64,
    /// Reads of pages that [`super::MemDisk::lose_pages`] made unreadable.
    pub pages_unreadable: u64,
    /// Appends that were reported as done, possibly synced, and never reached the device.
    pub writes_phantom: u64,
    /// Appends that overwrote another place.
    pub writes_misdirected: u64,
    /// Power cuts within a sync.
    pub power_cuts_in_sync: u64,
}
