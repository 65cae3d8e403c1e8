//! The capacity of a host: its link and its cores serve arriving segments in turn.
//!
//! Without a capacity, a host takes everything as it comes. With one, a segment passes the link, waits for the first
//! free core, and reaches its reader when that core has processed it. So a server's whole work for a request is charged
//! where the request arrives: per message and per KiB, as measured on a real server.

/// Longest segment of one write.
pub(super) const SEGMENT_BYTES_MAX: usize = 16 << 10;

/// A host's link and processors.
#[derive(Debug, Clone)]
pub struct HostCapacity {
    per_message: u64,
    per_kib: u64,
    bytes_per_ms: u64,
    link_free: u64,
    /// Time at which each core is free.
    cores_free: Vec<u64>,
    /// Time that cores have worked and the link has carried.
    used: CapacityUsed,
}

/// Busy time of a host's cores, all together, and of its link, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CapacityUsed {
    pub cores: u64,
    pub link: u64,
}

impl HostCapacity {
    /// `per_message` and `per_kib` are nanoseconds of one core.
    pub fn new(cores: usize, per_message: u64, per_kib: u64, bytes_per_ms: u64) -> HostCapacity {
        let cores_free = vec![0; cores.max(1)];
        let (link_free, used) = (0, CapacityUsed::default());
        HostCapacity { per_message, per_kib, bytes_per_ms: bytes_per_ms.max(1), link_free, cores_free, used }
    }

    /// Returns the work done by `now`, without queued work.
    pub fn used(&self, now: u64) -> CapacityUsed {
        let ahead: u64 = self.cores_free.iter().map(|free| free.saturating_sub(now)).sum();
        let link = self.used.link.saturating_sub(self.link_free.saturating_sub(now));
        CapacityUsed { cores: self.used.cores.saturating_sub(ahead), link }
    }

    /// Returns the time at which a segment that reaches the link's end at `arrives` is ready for its reader.
    pub fn serve(&mut self, arrives: u64, bytes: usize) -> u64 {
        let carried = bytes as u64 * 1_000_000 / self.bytes_per_ms;
        self.link_free = self.link_free.max(arrives.saturating_sub(carried)) + carried;
        // A message of many segments is one message: only its last segment is shorter than the maximum.
        let messages = u64::from(bytes < SEGMENT_BYTES_MAX);
        let work = messages * self.per_message + bytes as u64 * self.per_kib / 1024;
        self.used.cores += work;
        self.used.link += carried;
        let through = self.link_free;
        let core = self.cores_free.iter_mut().min().expect("a host has a core");
        *core = (*core).max(through) + work;
        *core
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_wait_for_link_and_core() {
        // A KiB takes 100 ns of the link, and 10 + 50 ns of a core.
        let mut host = HostCapacity::new(2, 10, 50, 10_240_000);
        assert_eq!(host.serve(1_000, 1024), 1_060, "nothing is in its way");
        assert_eq!(host.serve(1_000, 1024), 1_160, "behind the first on the link, at another core");
        assert_eq!(host.serve(1_000, 0), 1_110, "behind both on the link, at the first core");
        assert_eq!(host.used(1_200), CapacityUsed { cores: 130, link: 200 });
        assert_eq!(host.used(1_130), CapacityUsed { cores: 100, link: 200 }, "the second is not done");
        host.serve(9_000, SEGMENT_BYTES_MAX);
        assert_eq!(host.used(1 << 40).cores, 130 + 16 * 50, "no message ends here");
        let mut slow = HostCapacity::new(1, 1_000, 0, u64::MAX);
        assert_eq!([slow.serve(0, 8), slow.serve(0, 8), slow.serve(5_000, 8)], [1_000, 2_000, 6_000]);
    }
}
