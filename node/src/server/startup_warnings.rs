//! Warnings at the start of a server about flags that do less than their reader may expect.

use super::clock_watch::TimeSource;
use super::flags::Flags;
use crate::master::MasterConfig;

/// Logs a warning, if there is one.
pub(super) fn log(warning: Option<String>) {
    if let Some(warning) = warning {
        tracing::warn!("{warning}");
    }
}

/// Returns the warning for a single master that is bound to all addresses and has no advertised name. It may be that of
/// a cluster on one machine, or serve others: nothing says which.
pub(super) fn unnamed_master(config: &MasterConfig, time_source: TimeSource) -> Option<String> {
    let unnamed = config.masters.is_empty() && config.rpc_advertised_addrs.is_empty();
    if !unnamed || !config.rpc_addr.ip().is_unspecified() {
        return None;
    }
    let unchecked = time_source == TimeSource::Auto && config.clock_rule.is_none();
    let clock = unchecked.then_some("its clock is not checked");
    let name = config.wildcard_host.is_none().then_some("others are told to find it on their own machine");
    let faults: Vec<&str> = clock.into_iter().chain(name).collect();
    (!faults.is_empty()).then(|| {
        format!(
            "rpc_bind_addresses: this master is bound to all addresses ({}) without a name, so {}; set \
             rpc_advertised_addresses if other machines use it",
            config.rpc_addr,
            faults.join(", and ")
        )
    })
}

/// Returns the warning for a page cache that is smaller than asked for.
pub(super) fn small_page_cache(flags: &Flags, capacity_bytes: u64) -> Option<String> {
    let name = "block_cache_capacity_mb";
    let (given, capacity) = (flags.number(name), capacity_bytes >> 20);
    (flags.is_given(name) && capacity < given).then(|| {
        format!(
            "{name}: the page cache takes a quarter of the memory limit at most (given {given} MiB, has {capacity} \
             MiB); raise memory_limit_hard_bytes"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::clock_watch::ClockRule;
    use super::*;

    #[test]
    fn a_single_master_on_all_addresses_is_told_what_it_lacks() {
        let master = |address: &str| {
            MasterConfig::new(address.parse().expect("an address"), "wal", vec!["data".to_string()])
        };
        let warning = |config: &MasterConfig| unnamed_master(config, TimeSource::Auto);
        let mut config = master("0.0.0.0:7051");
        expect_test::expect![[
            r#"rpc_bind_addresses: this master is bound to all addresses (0.0.0.0:7051) without a name, so its clock is not checked, and others are told to find it on their own machine; set rpc_advertised_addresses if other machines use it"#
        ]]
        .assert_eq(&warning(&config).expect("a warning"));
        config.wildcard_host = Some("db1".to_string());
        assert!(warning(&config).is_some_and(|why| why.contains("so its clock is not checked; set")));
        config.clock_rule = Some(ClockRule { max_error_micros: 1 });
        assert_eq!(warning(&config), None);
        assert_eq!(warning(&master("127.0.0.1:7051")), None);
        let named =
            MasterConfig { rpc_advertised_addrs: vec!["db1:7051".to_string()], ..master("0.0.0.0:7051") };
        assert_eq!(warning(&named), None);
    }

    #[test]
    fn a_page_cache_smaller_than_asked_for_is_reported() {
        let flags = Flags::new();
        assert_eq!(small_page_cache(&flags, 1 << 20), None, "the default adapts");
        flags.set("block_cache_capacity_mb", "2048").expect("a number");
        assert_eq!(small_page_cache(&flags, 2048 << 20), None);
        expect_test::expect![[
            r#"block_cache_capacity_mb: the page cache takes a quarter of the memory limit at most (given 2048 MiB, has 512 MiB); raise memory_limit_hard_bytes"#
        ]]
        .assert_eq(&small_page_cache(&flags, 512 << 20).expect("a warning"));
    }
}
