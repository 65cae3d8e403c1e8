//! The real `kudu` tool against a cluster: each command must succeed and print what it prints with the real server.
//!
//! The expectations were recorded with the real servers, and `cargo ci interop --server kudu tool` checks them there.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::packages::Packages;
use crate::steps::Steps;

/// One command of the tool.
pub(super) struct Check {
    pub(super) name: &'static str,
    /// Arguments, split at spaces but for `{json}`-like ones; `MASTERS` stands for the addresses.
    words: &'static [&'static str],
    /// Texts that stdout and stderr together contain, in this order; runs of white space count as one space.
    wants: &'static [&'static str],
    /// Texts that the output does not contain.
    rejects: &'static [&'static str],
    ends: Ends,
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum Ends {
    Well,
    Badly,
    /// Success with the wanted output within [`EVENTUALLY`], because the shown state lags.
    Eventually,
}

const EVENTUALLY: Duration = Duration::from_secs(60);

const fn check(name: &'static str, words: &'static [&'static str], wants: &'static [&'static str]) -> Check {
    Check { name, words, wants, rejects: &[], ends: Ends::Well }
}

const CREATE: &str = r#"{
  "table_name": "interop",
  "schema": {
    "columns": [
      {"column_name": "id", "column_type": "INT64", "is_nullable": false},
      {"column_name": "name", "column_type": "STRING", "is_nullable": true, "comment": "what it is called"},
      {"column_name": "price", "column_type": "DECIMAL", "is_nullable": true,
       "type_attributes": {"precision": 9, "scale": 2}},
      {"column_name": "n", "column_type": "INT32", "is_nullable": true, "default_value": "5",
       "encoding": "RLE", "compression": "LZ4"}],
    "key_column_names": ["id"]},
  "partition": {
    "hash_partitions": [{"columns": ["id"], "num_buckets": 3, "seed": 0}],
    "range_partition": {
      "columns": ["id"],
      "range_bounds": [
        {"upper_bound": {"bound_type": "exclusive", "bound_values": ["1000"]}},
        {"lower_bound": {"bound_type": "inclusive", "bound_values": ["1000"]},
         "upper_bound": {"bound_type": "exclusive", "bound_values": ["2000"]}}]}},
  "comment": "made by ci",
  "num_replicas": 1}"#;

const DESCRIBED: &[&str] = &[
    "TABLE interop (",
    "id INT64 NOT NULL AUTO_ENCODING DEFAULT_COMPRESSION - -,",
    "name STRING NULLABLE AUTO_ENCODING DEFAULT_COMPRESSION - -,",
    "price DECIMAL(9, 2) NULLABLE AUTO_ENCODING DEFAULT_COMPRESSION - -,",
    "n INT32 NULLABLE RLE LZ4 5 5,",
    "PRIMARY KEY (id) )",
    "HASH (id) PARTITIONS 3, RANGE (id) ( PARTITION VALUES < 1000, PARTITION 1000 <= VALUES < 2000 )",
    "REPLICAS 1",
    "COMMENT made by ci",
];

const CHECKS: &[Check] = &[
    check("master list", &["master", "list", "MASTERS"], &["uuid", "rpc-addresses", "role", "LEADER"]),
    check("tserver list", &["tserver", "list", "MASTERS"], &["uuid", "rpc-addresses", "127."]),
    check("ksck of an empty cluster", &["cluster", "ksck", "MASTERS"], &["HEALTHY", "HEALTHY", "OK"]),
    check(
        "perf loadgen, default",
        &["perf", "loadgen", "MASTERS"],
        &["rows total: 2000", "Dropping auto-created"],
    ),
    check(
        "perf loadgen, two million rows and a scan",
        &[
            "perf",
            "loadgen",
            "MASTERS",
            "--num_threads=2",
            "--num_rows_per_thread=1000000",
            "--table_num_hash_partitions=8",
            "--run_scan",
        ],
        &["rows total: 2000000", "expected rows: 2000000", "actual rows : 2000000"],
    ),
    check("table create", &["table", "create", "MASTERS", CREATE], &[]),
    Check {
        ends: Ends::Badly,
        ..check(
            "table create again",
            &["table", "create", "MASTERS", CREATE],
            &["Already present", "already exists"],
        )
    },
    check("table list", &["table", "list", "MASTERS"], &["interop"]),
    check(
        "table list --list_tablets",
        &["table", "list", "MASTERS", "--list_tablets"],
        &["interop", "T ", "L "],
    ),
    check("table describe", &["table", "describe", "MASTERS", "interop", "--show_attributes"], DESCRIBED),
    check(
        "perf loadgen into it",
        &[
            "perf",
            "loadgen",
            "MASTERS",
            "--table_name=interop",
            "--num_threads=1",
            "--num_rows_per_thread=300",
        ],
        &["rows total: 300"],
    ),
    check(
        "table scan",
        &["table", "scan", "MASTERS", "interop"],
        &["(int64 id=", "int32 n=", "Total count 300 "],
    ),
    check(
        "table scan with predicates",
        &[
            "table",
            "scan",
            "MASTERS",
            "interop",
            "--columns=id,n",
            r#"--predicates=["AND", [">=", "id", 8], ["<", "id", 20]]"#,
        ],
        &["(int64 id=", "Total count 12 "],
    ),
    check("perf table_scan", &["perf", "table_scan", "MASTERS", "interop"], &["Total count 300 "]),
    check(
        "table locate_row",
        &["table", "locate_row", "MASTERS", "interop", "[8]", "--check_row_existence"],
        &["int64 id=8"],
    ),
    Check {
        ends: Ends::Eventually,
        ..check(
            "table statistics",
            &["table", "statistics", "MASTERS", "interop"],
            &["TABLE interop", "on disk size: ", "live row count: 300"],
        )
    },
    check("ksck with tables", &["cluster", "ksck", "MASTERS"], &["interop", "HEALTHY", "OK"]),
    check(
        "table add_column",
        &[
            "table",
            "add_column",
            "MASTERS",
            "interop",
            "extra",
            "INT32",
            "--default_value=[7]",
            "--comment=late",
        ],
        &[],
    ),
    check(
        "table scan of the added column",
        &["table", "scan", "MASTERS", "interop", "--columns=id,extra"],
        &["int32 extra=7)", "Total count 300 "],
    ),
    check("table rename_column", &["table", "rename_column", "MASTERS", "interop", "extra", "later"], &[]),
    check("table describe, altered", &["table", "describe", "MASTERS", "interop"], &["later INT32 NULLABLE"]),
    Check {
        rejects: &["later"],
        ..check("table delete_column", &["table", "delete_column", "MASTERS", "interop", "later"], &[])
    },
    check(
        "table add_range_partition",
        &["table", "add_range_partition", "MASTERS", "interop", "[2000]", "[3000]"],
        &[],
    ),
    check(
        "table describe, one range more",
        &["table", "describe", "MASTERS", "interop"],
        &["PARTITION 1000 <= VALUES < 2000, PARTITION 2000 <= VALUES < 3000 )"],
    ),
    check(
        "table drop_range_partition",
        &["table", "drop_range_partition", "MASTERS", "interop", "[2000]", "[3000]"],
        &[],
    ),
    check("table set_comment", &["table", "set_comment", "MASTERS", "interop", "as set"], &[]),
    check("table rename_table", &["table", "rename_table", "MASTERS", "interop", "renamed"], &[]),
    check(
        "table describe, renamed",
        &["table", "describe", "MASTERS", "renamed"],
        &["TABLE renamed", "as set"],
    ),
    check(
        "table copy",
        &["table", "copy", "MASTERS", "renamed", "MASTERS", "--dst_table=copied"],
        &["Total count 300 "],
    ),
    check("table scan of the copy", &["table", "scan", "MASTERS", "copied"], &["Total count 300 "]),
    check("table delete of the copy", &["table", "delete", "MASTERS", "copied"], &[]),
    check("table delete", &["table", "delete", "MASTERS", "renamed"], &[]),
    Check {
        rejects: &["interop", "renamed", "copied"],
        ..check("table list of nothing", &["table", "list", "MASTERS"], &[])
    },
    Check {
        ends: Ends::Badly,
        ..check("table describe of none", &["table", "describe", "MASTERS", "interop"], &["Not found"])
    },
    check("ksck at the end", &["cluster", "ksck", "MASTERS"], &["HEALTHY", "OK"]),
];

/// Runs every command as a step.
pub(super) fn check_all(packages: &Packages, masters: &str, steps: &mut Steps) {
    for check in CHECKS {
        steps.run(&format!("kudu {}", check.name), || run(packages, masters, check, &[]));
    }
}

const ENCRYPTED_CHECKS: &[Check] = &[
    Check {
        ends: Ends::Eventually,
        ..check(
            "ksck over TLS",
            &["cluster", "ksck", "MASTERS"],
            &["HEALTHY", "HEALTHY", "HEALTHY", "HEALTHY", "OK"],
        )
    },
    check(
        "perf loadgen over TLS, replicated",
        &[
            "perf",
            "loadgen",
            "MASTERS",
            "--num_threads=2",
            "--num_rows_per_thread=100000",
            "--table_num_replicas=3",
            "--run_scan",
        ],
        &["rows total: 200000", "actual rows : 200000"],
    ),
    check("get_flags over TLS", &["master", "get_flags", "MASTERS"], &["rpc_encryption", "required"]),
];

/// Checks commands against a cluster that requires encryption.
pub(super) fn check_encrypted(packages: &Packages, masters: &str, steps: &mut Steps) {
    for check in ENCRYPTED_CHECKS {
        steps.run(&format!("kudu {}", check.name), || run(packages, masters, check, &[]));
    }
}

/// Commands with a ticket against a cluster that requires tickets and encryption.
pub(super) const KERBEROS_CHECKS: &[Check] = &[
    Check {
        ends: Ends::Eventually,
        ..check(
            "ksck with a ticket",
            &["cluster", "ksck", "MASTERS"],
            &["HEALTHY", "HEALTHY", "HEALTHY", "HEALTHY", "OK"],
        )
    },
    check(
        "perf loadgen with a ticket, replicated",
        &[
            "perf",
            "loadgen",
            "MASTERS",
            "--num_threads=2",
            "--num_rows_per_thread=10000",
            "--table_num_replicas=3",
            "--keep_auto_table",
            "--run_scan",
        ],
        &["rows total: 20000", "actual rows : 20000"],
    ),
    check("table list with a ticket", &["table", "list", "MASTERS"], &["default.loadgen_auto_"]),
    check("tserver list with a ticket", &["tserver", "list", "MASTERS"], &["127."]),
    check(
        "get_flags with a ticket",
        &["master", "get_flags", "MASTERS"],
        &["rpc_authentication", "required"],
    ),
];

/// Runs a command, with variables of the environment.
pub(super) fn run(
    packages: &Packages,
    masters: &str,
    check: &Check,
    env: &[(&'static str, PathBuf)],
) -> Result<()> {
    let start = Instant::now();
    loop {
        let result = run_once(packages, masters, check, env);
        let again = check.ends == Ends::Eventually && start.elapsed() < EVENTUALLY;
        if result.is_ok() || !again {
            return result;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn run_once(
    packages: &Packages,
    masters: &str,
    check: &Check,
    env: &[(&'static str, PathBuf)],
) -> Result<()> {
    let words = check.words.iter().map(|word| if *word == "MASTERS" { masters } else { word });
    let tool = env.iter().fold(packages.kudu_tool(), |tool, (name, value)| tool.env(name, value));
    let output = tool.args(words).output()?;
    let said = format!("{}\n{}", output.stdout, output.stderr);
    if output.success != (check.ends != Ends::Badly) {
        bail!("it ended {}:\n{said}", if output.success { "well" } else { "badly" });
    }
    if let Some(missing) = first_missing(&said, check.wants) {
        bail!("it did not say {missing:?} (in order), but:\n{said}");
    }
    if let Some(said_it) = check.rejects.iter().find(|reject| said.contains(**reject)) {
        bail!("it said {said_it:?}:\n{said}");
    }
    Ok(())
}

/// Returns the first text of `wants` that is missing after the previous ones.
fn first_missing<'a>(said: &str, wants: &[&'a str]) -> Option<&'a str> {
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut rest = said.as_str();
    for want in wants {
        let Some(at) = rest.find(want.trim_end()) else { return Some(want) };
        rest = &rest[at + want.trim_end().len()..];
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_expected_in_order() {
        let said = "TABLE t (\n    id INT64 NOT NULL,\n    PRIMARY KEY (id)\n)\n";
        assert_eq!(first_missing(said, &["TABLE t (", "PRIMARY KEY (id) )"]), None);
        assert_eq!(first_missing(said, &["PRIMARY KEY", "TABLE t"]), Some("TABLE t"));
    }
}
