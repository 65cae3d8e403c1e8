//! Peak memory of a piece of work: an allocator that counts per thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, with counting.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// Bytes that this thread allocated less those it freed. Work may free older memory.
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// Counts `more` bytes; an ending thread no longer counts.
fn count(more: isize) {
    let _ = HELD.try_with(|held| {
        held.set(held.get() + more);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every call goes to `System` unchanged; counting neither allocates nor touches the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps `alloc`'s contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps `alloc_zeroed`'s contract, which is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: `at` came from `System` with this layout.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: `at` came from `System` with this layout, and the caller checked `size`.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Returns the peak of bytes held by `work`, beyond those held before it.
pub fn peak_of(work: impl FnOnce()) -> usize {
    let before = HELD.get();
    PEAK.set(before);
    work();
    (PEAK.get() - before).max(0) as usize
}

/// Memory limit of a target: `fixed` bytes, and `per_byte` for each byte of its input.
#[derive(Debug, Clone, Copy)]
pub struct MemoryLimit {
    pub fixed: usize,
    pub per_byte: usize,
}

impl MemoryLimit {
    pub fn most(&self, input_bytes: usize) -> usize {
        self.fixed + self.per_byte * input_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_of_held_bytes_is_counted() {
        let peak = peak_of(|| {
            for _ in 0..10 {
                drop(std::hint::black_box(vec![1u8; 1000]));
            }
            let mut grown = std::hint::black_box(vec![0u8; 300]);
            grown.resize(5000, 1);
            grown.shrink_to(10);
        });
        assert!((5000..6000).contains(&peak), "{peak}");
        assert_eq!(peak_of(|| {}), 0);
    }
}
