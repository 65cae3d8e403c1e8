//! Atomics and locks: std's types, or loom's under `--cfg loom`, which explores every order of their steps.
//!
//! Modules shared by readers and a writer take their atomics and locks only from here, so that loom explores the code
//! that runs. Not here: `Arc`, which only counts, and `OnceLock`, which loom does not have. The content of each
//! `OnceLock` is additionally published by one of loom's atomics.
//!
//! No thread uses data that a panic left halfway: [`Mutex`] and [`RwLock`] hand a guard out or panic as well, so their
//! users need no error of their own.
//!
//! ```text
//!   plain.rs      the locks of a shipped program
//!   measured.rs   the same with the feature `contention`: waits and holds go to contention.rs, by site
//! ```

#[cfg(all(feature = "contention", not(loom)))]
pub mod contention;
#[cfg(all(feature = "contention", not(loom)))]
mod measured;
#[cfg(any(not(feature = "contention"), loom))]
mod plain;
mod poison;

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

#[cfg(all(feature = "contention", not(loom)))]
pub(crate) use measured::TurnMeter;
#[cfg(all(feature = "contention", not(loom)))]
pub use measured::{
    MeasuredMutex as Mutex, MeasuredRwLock as RwLock, MutexGuard, RwLockReadGuard, RwLockWriteGuard,
};
#[cfg(any(not(feature = "contention"), loom))]
pub(crate) use plain::TurnMeter;
#[cfg(any(not(feature = "contention"), loom))]
pub use plain::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

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
