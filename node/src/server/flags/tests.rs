//! Flags: values, run-time changes, and flags that would grant protection, a clock or a log file that nyala lacks.

use std::collections::BTreeSet;

use super::*;
use crate::config;

/// Flag, a value that is rejected, a value that is accepted.
const RESTRICTED: &[(&str, &str, &str)] = &[
    // Authentication.
    // Encryption of RPCs.
    ("ipki_private_key_password_cmd", "cat /etc/password", ""),
    // Authorization.
    ("ranger_config_path", "/etc/ranger", ""),
    // Tokens.
    ("tsk_private_key_password_cmd", "cat /etc/password", ""),
    // Files.
    ("encrypt_data_at_rest", "true", "false"),
    ("encryption_key_provider", "ranger-kms", ""),
    ("encryption_key_length", "256", "0"),
    ("encryption_cluster_key_name", "kudu_cluster_key", ""),
    ("ranger_kms_url", "kms.example.com:9292", ""),
    ("enable_multi_tenancy", "true", "false"),
    // Transactions.
    ("txn_manager_enabled", "true", "false"),
    ("enable_txn_system_client_init", "true", "false"),
    // The clock.
    ("use_hybrid_clock", "false", "true"),
    // The log.
    ("logtostderr", "false", "true"),
    ("log_dir", "/var/log/kudu", ""),
    ("log_filename", "kudu-master", ""),
    ("max_log_size", "1800", "0"),
    ("max_log_files", "10", "0"),
];

#[test]
fn the_table_is_sound() {
    let flags = Flags::new();
    let mut names: Vec<_> = TABLE.iter().map(|spec| spec.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), TABLE.len(), "a name appears once");
    for current in flags.all() {
        assert!(current.is_default(), "{}: the default is written as it is kept", current.spec.name);
        assert!(!current.spec.help.is_empty());
    }
}

#[test]
fn flags_that_change_at_run_time_have_an_effect() {
    let idle: Vec<_> = TABLE.iter().filter(|spec| spec.runtime && !spec.has_effect()).collect();
    assert!(idle.is_empty(), "{idle:?}");
}

#[test]
fn an_unknown_name_gets_a_hint() {
    let error = Flags::new().set("scaner-ttl-ms", "1").unwrap_err();
    expect_test::expect![[r#"there is no setting "scaner_ttl_ms"; did you mean "scanner_ttl_ms"?"#]]
        .assert_eq(&error.message);
    let error = Flags::new().set(&"s".repeat(1 << 20), "1").unwrap_err();
    assert!(!error.message.contains("did you mean"), "a megabyte is no typing error");
}

#[test]
fn values_are_checked() {
    let flags = Flags::new();
    flags.set("scanner-ttl-ms", "5000").unwrap();
    assert_eq!(flags.number("scanner_ttl_ms"), 5000);
    let error = flags.set("scanner_ttl_ms", "soon").unwrap_err();
    assert_eq!(error.message, "scanner_ttl_ms: \"soon\" is not a whole number from 0");
    assert!(flags.set("log_sync", "maybe").is_err());
    flags.set("log_sync", "NO").unwrap();
    assert!(!flags.bool("log_sync"));
}

#[test]
fn numbers_with_a_fraction_have_a_greatest_value() {
    let (flags, name) = (Flags::new(), "leader_failure_max_missed_heartbeat_periods");
    let error = flags.set(name, "1e20").unwrap_err();
    assert_eq!(error.message, format!("{name}: \"1e20\" is not a number from 0 to 100000"));
    for wrong in ["-1", "NaN", "inf", "100000.5"] {
        assert!(flags.set(name, wrong).is_err(), "{wrong}");
    }
    flags.set(name, "2.5").unwrap();
    assert_eq!(flags.fraction(name), 2.5);
}

#[test]
fn all_history_is_kept_by_a_negative_age() {
    let (flags, name) = (Flags::new(), "tablet_history_max_age_sec");
    flags.set(name, "-1").unwrap();
    assert_eq!((flags.text(name).as_str(), flags.number(name)), ("-1", u64::MAX));
    let error = flags.set(name, "-2").unwrap_err();
    assert_eq!(error.message, format!("{name}: \"-2\" is neither a whole number from 0 nor -1"));
    flags.set(name, "0").unwrap();
    assert_eq!(flags.number(name), 0);
}

#[test]
fn only_some_change_at_run_time() {
    let flags = Flags::new();
    let live = flags.live("scanner_ttl_ms");
    assert_eq!(flags.change("scanner_ttl_ms", "7", false), Ok("60000".to_string()));
    assert_eq!(live.load(Ordering::Relaxed), 7);
    assert!(matches!(flags.change("fs_wal_dir", "/x", false), Err(FlagError::NotSafe(_))));
    assert!(matches!(flags.change("fs_wal_dir", "/x", true), Err(FlagError::NotSafe(_))));
    assert!(!flags.is_given("fs_wal_dir"), "a change without effect is not shown");
    assert!(matches!(flags.change("never_fsync", "true", false), Err(FlagError::NotSafe(_))));
    assert_eq!(flags.change("never_fsync", "true", true), Ok("false".to_string()));
    assert!(matches!(flags.change("nothing", "7", true), Err(FlagError::NoSuchFlag(_))));
    assert!(matches!(flags.change("scanner_ttl_ms", "-7", true), Err(FlagError::BadValue(_))));
}

#[test]
fn every_restricted_flag_is_listed() {
    let promises = TABLE.iter().filter(|spec| matches!(spec.class, Class::Only(..))).map(|spec| spec.name);
    let listed = RESTRICTED.iter().map(|(name, ..)| *name);
    assert_eq!(promises.collect::<BTreeSet<_>>(), listed.collect::<BTreeSet<_>>());
}

#[test]
fn a_restricted_value_is_rejected_from_every_source() {
    for (name, restricted, idle) in RESTRICTED {
        let flags = Flags::new();
        let refused = flags.set(name, restricted).expect_err(name).message;
        let found = format!("(given {restricted}, accepted ");
        assert!(refused.starts_with(&format!("{name}: ")) && refused.contains(&found), "{refused}");

        let file = format!("{name} = {restricted:?}\n");
        let in_file = config::apply_file(&flags, None, "nyala.toml", &file).expect_err(name).message;
        assert_eq!(in_file, format!("nyala.toml, line 1: {refused}"));

        for force in [false, true] {
            assert_eq!(flags.change(name, restricted, force), Err(FlagError::BadValue(refused.clone())));
        }
        assert!(!flags.is_given(name), "{name} is not shown as set");
        flags.set(name, idle).expect(name);
        assert_eq!(flags.text(name), *idle);
    }
}

#[test]
fn other_values_without_a_claim_are_accepted() {
    let flags = Flags::new();
    flags.set("redact", "none").unwrap();
    // These are enforced, so that any subnet is accepted.
    flags.set("trusted_subnets", "10.1.0.0/16").unwrap();
    assert_eq!(config::rpc(&flags).unwrap().trusted_subnets.len(), 1);
}

#[test]
fn safeguards_do_not_change_while_the_server_runs() {
    for (name, value) in [
        ("trusted_subnets", "0.0.0.0/0"),
        ("rpc_encryption", "optional"),
        ("user_acl", "*"),
        ("tserver_enforce_access_control", "false"),
        ("log_sync", "false"),
        ("max_clock_sync_error_usec", "1"),
    ] {
        let flags = Flags::new();
        assert!(matches!(flags.change(name, value, true), Err(FlagError::NotSafe(_))), "{name}");
        assert!(!flags.is_given(name));
    }
}

#[test]
fn an_error_names_the_missing_feature_and_the_action() {
    let flags = Flags::new();
    expect_test::expect![[r#"
        ranger_config_path: rights are not asked of Apache Ranger (given /etc/ranger, accepted nothing); leave it out, and write the rights into a file (authz_policy_file)"#]]
    .assert_eq(&flags.set("ranger-config-path", "/etc/ranger").unwrap_err().message);
}

#[test]
fn flags_without_effect_are_reported_if_set() {
    let flags = Flags::new();
    for (name, value) in [("never_fsync", "true"), ("block_manager", "log"), ("scanner_ttl_ms", "5")] {
        flags.set(name, value).unwrap();
    }
    let told: Vec<_> = flags.without_effect().iter().map(|current| current.spec.name).collect();
    assert_eq!(told, ["never_fsync"]);
}

/// Returns the flags of a master that have these values.
fn flags(values: &[(&str, &str)]) -> Flags {
    let flags = Flags::new();
    values.iter().for_each(|(name, value)| flags.set(name, value).expect(name));
    flags
}

#[test]
fn factors_with_which_no_table_can_be_created_are_refused_at_the_start() {
    let refused =
        |values: &[(&str, &str)]| flags(values).check_replication_factors().expect_err("no table").message;
    let lines = [
        refused(&[("min_num_replicas", "5"), ("max_num_replicas", "3")]),
        refused(&[("min_num_replicas", "5"), ("default_num_replicas", "3")]),
        refused(&[("max_num_replicas", "1"), ("default_num_replicas", "3")]),
        refused(&[("default_num_replicas", "4")]),
    ];
    expect_test::expect![[r#"
        min_num_replicas: 5 is above max_num_replicas (3), so that no table could be created; lower it
        default_num_replicas: 3 is not between min_num_replicas (5) and max_num_replicas (7); give a number between them
        default_num_replicas: 3 is not between min_num_replicas (1) and max_num_replicas (1); give a number between them
        default_num_replicas: 4 is even, which survives no more failures than one replica fewer; give an odd number"#]]
    .assert_eq(&lines.join("\n"));
    for allowed in [
        &[("min_num_replicas", "5"), ("default_num_replicas", "5")][..],
        &[],
        &[("min_num_replicas", "5")],
        &[("default_num_replicas", "4"), ("allow_unsafe_replication_factor", "true")],
    ] {
        assert_eq!(flags(allowed).check_replication_factors(), Ok(()), "{allowed:?}");
    }
}

#[test]
fn a_default_that_no_table_can_have_is_refused_at_run_time() {
    let flags = flags(&[("max_num_replicas", "5")]);
    let change = |value: &str| flags.change(DEFAULT_NUM_REPLICAS, value, true);
    for refused in ["2", "7", "0"] {
        assert!(matches!(change(refused), Err(FlagError::BadValue(_))), "{refused}");
    }
    assert_eq!(change("5"), Ok("3".to_string()));
    assert_eq!(change("1"), Ok("5".to_string()));
}
