//! The locks of a shipped program: a layer over std's or loom's that costs nothing.

#[cfg(loom)]
use loom::sync as inner;
#[cfg(not(loom))]
use std::sync as inner;

pub use inner::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

use super::poison::POISONED;

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

/// Meter of the turns of a [`crate::turn_slot::TurnSlot`]; this one has no state and does nothing.
#[derive(Debug, Default)]
pub(crate) struct TurnMeter {}

impl TurnMeter {
    pub(crate) fn enter<T>(&mut self) {}

    pub(crate) fn miss<T>(&mut self) {}

    pub(crate) fn leave(&mut self) {}
}
