//! Flags of a tablet server that may change at run time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::config::TabletConfig;
use engine::error::Result;

use super::config::TserverConfig;
use crate::changed_flag::ChangedFlag;
use nyala_common::env::Env;

/// Values of the flags that SetFlag changes, read at each use.
pub struct RuntimeFlags {
    scanner_ttl_ms: Arc<AtomicU64>,
    scanner_max_wait_ms: Arc<AtomicU64>,
    batch_bytes_default: Arc<AtomicU64>,
    batch_bytes_max: Arc<AtomicU64>,
    batch_delay_ms: Arc<AtomicU64>,
    aggregation: Arc<AtomicU64>,
    /// Bits of an `f64`.
    invalid_token_ratio: Arc<AtomicU64>,
    flush_secs: ChangedFlag,
    flush_mb: ChangedFlag,
}

impl RuntimeFlags {
    /// Follows the flags of `config`. First sets them to the values of `config`, which may not come from flags.
    pub fn new(config: &TserverConfig) -> Result<RuntimeFlags> {
        let flags = &config.flags;
        let follow = |name: &str, value: u64| {
            if flags.number(name) != value {
                flags.set(name, &value.to_string())?;
            }
            Ok(flags.live(name))
        };
        Ok(RuntimeFlags {
            scanner_ttl_ms: follow("scanner_ttl_ms", config.scanner_ttl_ms)?,
            scanner_max_wait_ms: follow("scanner_max_wait_ms", config.scanner_max_wait_ms)?,
            batch_bytes_default: follow(
                "scanner_default_batch_size_bytes",
                config.scan_batch_bytes_default as u64,
            )?,
            batch_bytes_max: follow("scanner_max_batch_size_bytes", config.scan_batch_bytes_max as u64)?,
            batch_delay_ms: flags.live("scanner_inject_latency_on_each_batch_ms"),
            aggregation: flags.live("tserver_support_aggregation"),
            invalid_token_ratio: flags.live("tserver_inject_invalid_authz_token_ratio"),
            flush_secs: ChangedFlag::new(flags.live("flush_threshold_secs")),
            flush_mb: ChangedFlag::new(flags.live("flush_threshold_mb")),
        })
    }

    /// Returns `config` with the flags changed since the server started.
    pub fn tablet(&self, config: &TabletConfig) -> TabletConfig {
        let mut config = config.clone();
        if let Some(seconds) = self.flush_secs.get() {
            config.mrs_flush_age_ms = seconds.saturating_mul(1000);
        }
        if let Some(mebibytes) = self.flush_mb.get() {
            config.mrs_flush_bytes = usize::try_from(mebibytes).unwrap_or(usize::MAX).saturating_mul(1 << 20);
        }
        config
    }

    pub fn scanner_ttl(&self) -> Duration {
        millis(&self.scanner_ttl_ms)
    }

    pub fn scanner_max_wait(&self) -> Duration {
        millis(&self.scanner_max_wait_ms)
    }

    /// Returns the size of a response in bytes, given the client's request.
    pub fn batch_bytes(&self, requested: Option<u32>) -> usize {
        let read =
            |setting: &AtomicU64| usize::try_from(setting.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        let requested = requested.map_or_else(|| read(&self.batch_bytes_default), |bytes| bytes as usize);
        requested.min(read(&self.batch_bytes_max))
    }

    /// Returns true for the share of valid authorization tokens that a test wants to be rejected.
    pub fn rejects_token(&self, env: &Env) -> bool {
        let ratio = f64::from_bits(self.invalid_token_ratio.load(Ordering::Relaxed));
        ratio > 0.0 && env.rng.next_u64() as f64 / (u64::MAX as f64) < ratio
    }

    /// Returns true if the server aggregates for clients.
    pub fn has_aggregation(&self) -> bool {
        self.aggregation.load(Ordering::Relaxed) != 0
    }

    /// Returns the delay of each scan batch, for tests.
    pub fn batch_delay(&self) -> Duration {
        millis(&self.batch_delay_ms)
    }
}

fn millis(setting: &AtomicU64) -> Duration {
    Duration::from_millis(setting.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_flag_takes_effect_at_once() {
        let addr = "127.0.0.1:0".parse().unwrap();
        let config =
            TserverConfig { scanner_ttl_ms: 7, ..TserverConfig::new(addr, "w", vec!["d".to_string()]) };
        let runtime_flags = RuntimeFlags::new(&config).unwrap();
        assert_eq!(runtime_flags.scanner_ttl(), Duration::from_millis(7));
        assert_eq!((runtime_flags.batch_bytes(None), runtime_flags.batch_bytes(Some(5))), (1 << 20, 5));
        assert_eq!(runtime_flags.batch_bytes(Some(u32::MAX)), 8 << 20);
        config.flags.change("scanner_ttl_ms", "9", false).unwrap();
        config.flags.change("scanner_max_batch_size_bytes", "100", false).unwrap();
        assert_eq!(runtime_flags.scanner_ttl(), Duration::from_millis(9));
        assert_eq!(runtime_flags.batch_bytes(None), 100);
    }

    #[test]
    fn flush_thresholds_change_at_run_time() {
        let addr = "127.0.0.1:0".parse().unwrap();
        let mut config = TserverConfig::new(addr, "w", vec!["d".to_string()]);
        config.tablet.mrs_flush_age_ms = 1;
        let runtime_flags = RuntimeFlags::new(&config).unwrap();
        assert_eq!(runtime_flags.tablet(&config.tablet), config.tablet);
        config.flags.change("flush_threshold_secs", "2", true).unwrap();
        let changed = runtime_flags.tablet(&config.tablet);
        assert_eq!(
            (changed.mrs_flush_age_ms, changed.mrs_flush_bytes),
            (2000, config.tablet.mrs_flush_bytes)
        );
        config.flags.change("flush_threshold_mb", "3", true).unwrap();
        assert_eq!(runtime_flags.tablet(&config.tablet).mrs_flush_bytes, 3 << 20);
    }
}
