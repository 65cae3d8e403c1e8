//! Atomics and locks: std's types, or loom's under `--cfg loom`, which explores every order of their steps.
//!
//! Modules shared by readers and a writer take their atomics and locks only from here, so that loom explores the code
//! that runs. Not here: `Arc`, which only counts, and `OnceLock`, which loom does not have. The content of each
//! `OnceLock` is additionally published by one of loom's atomics.
//!
//! No thread uses data that a panic left halfway: [`Mutex`] and [`RwLock`] hand a guard out or panic as well, so their
//! users need no error of their own.

#[cfg(loom)]
use loom::sync as inner;
#[cfg(not(loom))]
use std::sync as inner;

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

pub use inner::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// Message of the panic of a thread that meets what another thread's panic left.
const POISONED: &str = "a thread panicked while it held this lock";

/// A mutex without poison: [`Mutex::lock`] panics if a thread panicked while it held the lock.
#[derive(Debug, Default)]
pub struct Mutex<T>(inner::Mutex<T>);

impl<T> Mutex<T> {
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(inner::Mutex::new(value))
    }

    #[cfg(loom)]
    pub fn new(value: T) -> Mutex<T> {
        Mutex(inner::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect(POISONED)
    }

    pub fn into_inner(self) -> T {
        self.0.into_inner().expect(POISONED)
    }
}

/// A lock of many readers or one writer, without poison as [`Mutex`] is.
#[derive(Debug, Default)]
pub struct RwLock<T>(inner::RwLock<T>);

impl<T> RwLock<T> {
    pub fn new(value: T) -> RwLock<T> {
        RwLock(inner::RwLock::new(value))
    }

    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().expect(POISONED)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().expect(POISONED)
    }
}

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
