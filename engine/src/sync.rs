//! Atomics and locks: std's types, or loom's under `--cfg loom`, which explores every order of their steps.
//!
//! Modules shared by readers and a writer take their atomics and locks only from here, so that loom explores the code
//! that runs. Not here: `Arc`, which only counts, and `OnceLock`, which loom does not have. The content of each
//! `OnceLock` is additionally published by one of loom's atomics.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(loom)]
pub use loom::sync::{Mutex, MutexGuard, RwLock};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
pub use std::sync::{Mutex, MutexGuard, RwLock};

/// Access check beside plain memory that threads share. It is called on every access, so loom finds a read and a write
/// without an order between them.
#[cfg(loom)]
#[derive(Default)]
pub struct AccessCheck(loom::cell::UnsafeCell<()>);

#[cfg(loom)]
impl AccessCheck {
    pub fn mark(&self, writes: bool) {
        match writes {
            true => self.0.with_mut(|_| ()),
            false => self.0.with(|_| ()),
        }
    }
}
