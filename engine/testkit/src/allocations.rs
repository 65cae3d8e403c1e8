//! An allocator that counts the bytes that the calling thread has allocated and not freed, now and at most.
//!
//! A test program uses it by `#[global_allocator] static ALLOCATOR: CountingAllocator = CountingAllocator;`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

pub struct CountingAllocator;

thread_local! {
    static ALLOCATED: Cell<(i64, i64)> = const { Cell::new((0, 0)) };
}

/// Returns the bytes that this thread has allocated and not freed.
pub fn allocated() -> i64 {
    ALLOCATED.get().0
}

/// Returns the result of `work`, and the most bytes that were allocated at once meanwhile, beyond those before.
pub fn peak<T>(work: impl FnOnce() -> T) -> (T, i64) {
    let (before, _) = ALLOCATED.get();
    ALLOCATED.set((before, before));
    let result = work();
    (result, ALLOCATED.get().1 - before)
}

fn count(bytes: i64) {
    // A thread that ends may free memory after its counter was dropped; that is not counted.
    let _ending = ALLOCATED.try_with(|allocated| {
        let (now, most) = allocated.get();
        allocated.set((now + bytes, most.max(now + bytes)));
    });
}

// SAFETY: every call goes to the system's allocator unchanged; counting neither allocates nor panics.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: `at` came from `alloc` above, with this layout, so it came from the system's allocator.
        unsafe { System.dealloc(at, layout) }
    }
}
