//! What threads share state with: std's types, or loom's under `--cfg loom`, which try every order of their steps.
//!
//! Modules that readers and a writer meet in take their atomics and locks from here and nowhere else, so that what
//! loom explores is the code that runs. Not here: `Arc`, which only counts, and `OnceLock`, of which loom has none:
//! what one of ours holds is published by an atomic of loom's besides.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(loom)]
pub use loom::sync::{Mutex, MutexGuard, RwLock};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
pub use std::sync::{Mutex, MutexGuard, RwLock};

/// Stands beside plain memory that threads share and is told of every access, so that loom finds a read and a write
/// that nothing puts in order.
#[cfg(loom)]
#[derive(Default)]
pub struct Access(loom::cell::UnsafeCell<()>);

#[cfg(loom)]
impl Access {
    pub fn mark(&self, writes: bool) {
        match writes {
            true => self.0.with_mut(|_| ()),
            false => self.0.with(|_| ()),
        }
    }
}
