//! Interception of the C library's clock and randomness, for calls that escape `Env`: hashers of the standard library,
//! clocks of dependencies. They are equal in every run of a seed.
//!
//! It is madsim's: its runtime intercepts them for what runs within [`Interception::within`], which is entered once
//! for a whole span of time. Its own executor has no other task, and its time does not advance. Without `--cfg madsim`
//! nothing is intercepted: a run is then reproducible as far as nodes reach everything through `Env`.

#[cfg(madsim)]
pub(super) struct Interception {
    runtime: ::madsim::runtime::Runtime,
}

#[cfg(madsim)]
impl Interception {
    /// Seeds the hashers of this thread too, if it is the first of the process.
    pub(super) fn new(seed: u64) -> Interception {
        let config = ::madsim::Config::default();
        Interception { runtime: ::madsim::runtime::Runtime::with_seed_and_config(seed, config) }
    }

    pub(super) fn within<R>(&self, work: impl FnOnce() -> R) -> R {
        self.runtime.block_on(async move { work() })
    }
}

#[cfg(not(madsim))]
pub(super) struct Interception;

#[cfg(not(madsim))]
impl Interception {
    pub(super) fn new(_seed: u64) -> Interception {
        Interception
    }

    pub(super) fn within<R>(&self, work: impl FnOnce() -> R) -> R {
        work()
    }
}
