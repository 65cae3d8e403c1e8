//! The locks of a program that measures contention: those of `plain.rs`, whose guards report to [`super::contention`].
//!
//! A free lock costs two readings of the clock and a look-up; without a clock, one look for it.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync as inner;
use std::sync::TryLockError;

use super::contention::{self, Busy, SectionKind, Site, Visit};
use super::poison::POISONED;

/// A mutex without poison: [`MeasuredMutex::lock`] panics if a thread panicked while it held the lock.
#[derive(Default)]
pub struct MeasuredMutex<T> {
    busy: Busy,
    inner: inner::Mutex<T>,
}

impl<T: fmt::Debug> fmt::Debug for MeasuredMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T> MeasuredMutex<T> {
    pub const fn new(value: T) -> MeasuredMutex<T> {
        MeasuredMutex { busy: Busy::new(), inner: inner::Mutex::new(value) }
    }

    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let site = Site::of::<T>(SectionKind::Exclusive);
        let (guard, visit) = acquire(site, || self.inner.try_lock(), || self.inner.lock());
        MutexGuard { guard, hold: Hold { visit, busy: &self.busy } }
    }

    pub fn into_inner(self) -> T {
        self.inner.into_inner().expect(POISONED)
    }
}

/// A lock of many readers or one writer, without poison as [`MeasuredMutex`] is.
#[derive(Default)]
pub struct MeasuredRwLock<T> {
    readers: Busy,
    writer: Busy,
    inner: inner::RwLock<T>,
}

impl<T: fmt::Debug> fmt::Debug for MeasuredRwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T> MeasuredRwLock<T> {
    pub fn new(value: T) -> MeasuredRwLock<T> {
        MeasuredRwLock { readers: Busy::new(), writer: Busy::new(), inner: inner::RwLock::new(value) }
    }

    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let site = Site::of::<T>(SectionKind::Shared);
        let (guard, visit) = acquire(site, || self.inner.try_read(), || self.inner.read());
        RwLockReadGuard { guard, hold: Hold { visit, busy: &self.readers } }
    }

    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let site = Site::of::<T>(SectionKind::Exclusive);
        let (guard, visit) = acquire(site, || self.inner.try_write(), || self.inner.write());
        RwLockWriteGuard { guard, hold: Hold { visit, busy: &self.writer } }
    }
}

/// Takes a lock, after a wait if `attempt` finds it held. Returns its visit if there is a clock.
fn acquire<G>(
    site: Site,
    attempt: impl FnOnce() -> Result<G, TryLockError<G>>,
    wait: impl FnOnce() -> inner::LockResult<G>,
) -> (G, Option<Visit>) {
    let (guard, waited_from) = match attempt() {
        Ok(guard) => (guard, None),
        Err(TryLockError::WouldBlock) => {
            let from = contention::now();
            (wait().expect(POISONED), from)
        }
        Err(TryLockError::Poisoned(_)) => panic!("{POISONED}"),
    };
    let acquired = contention::now();
    (guard, acquired.map(|acquired| Visit::new(site, waited_from, acquired)))
}

/// A visit that is recorded when it is dropped: after the release of the lock, as the field behind its guard.
struct Hold<'a> {
    visit: Option<Visit>,
    busy: &'a Busy,
}

impl Hold<'_> {
    fn end(&mut self) {
        if let Some(visit) = &mut self.visit {
            visit.end();
        }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if let Some(visit) = &self.visit {
            visit.record(self.busy);
        }
    }
}

macro_rules! guard {
    ($name:ident) => {
        pub struct $name<'a, T> {
            guard: inner::$name<'a, T>,
            hold: Hold<'a>,
        }

        impl<T> Deref for $name<'_, T> {
            type Target = T;

            fn deref(&self) -> &T {
                &self.guard
            }
        }

        impl<T> Drop for $name<'_, T> {
            fn drop(&mut self) {
                self.hold.end();
            }
        }

        impl<T: fmt::Debug> fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.guard.fmt(f)
            }
        }
    };
}

guard!(MutexGuard);
guard!(RwLockReadGuard);
guard!(RwLockWriteGuard);

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// Meter of the turns of a [`crate::turn_slot::TurnSlot`], whose lock protects it.
#[derive(Debug, Default)]
pub(crate) struct TurnMeter {
    visit: Option<Visit>,
    busy: Busy,
}

impl TurnMeter {
    /// Begins a turn.
    #[track_caller]
    pub(crate) fn enter<T>(&mut self) {
        let site = Site::of::<T>(SectionKind::Turn);
        self.visit = contention::now().map(|now| Visit::new(site, None, now));
    }

    /// Counts a visitor that found a turn running.
    #[track_caller]
    pub(crate) fn miss<T>(&mut self) {
        if contention::now().is_some() {
            contention::count_miss(Site::of::<T>(SectionKind::Turn));
        }
    }

    /// Ends the turn, if one runs.
    pub(crate) fn leave(&mut self) {
        if let Some(mut visit) = self.visit.take() {
            visit.end();
            visit.record(&self.busy);
        }
    }
}
