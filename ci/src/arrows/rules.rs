//! Import rules as data: allowed arrows between modules, banned names.

/// Rules of a crate.
pub(super) struct CrateRules {
    /// Folder of the sources, under the workspace's folder.
    pub source: &'static str,
    /// Prefixes of files that are not checked.
    pub exempt: &'static [&'static str],
    /// Files that may import every module; `*` is all of them.
    pub roots: &'static [&'static str],
    /// Modules that every module may import.
    pub base: &'static [&'static str],
    pub modules: &'static [Module],
    pub bans: &'static [BannedPath],
    pub words: &'static [BannedText],
}

/// A row of the table: a module of the crate's root, or one below it that has its own rules, and what it may import
/// besides the base and its own root module; `*` is everything.
pub(super) struct Module {
    pub name: &'static str,
    pub may_import: &'static [&'static str],
}

/// A path (and all below it) that only the excepted files may name.
pub(super) struct BannedPath {
    pub path: &'static str,
    pub except: &'static [&'static str],
    pub reason: &'static str,
}

/// A text that only the excepted files may contain, comments included.
pub(super) struct BannedText {
    pub text: &'static str,
    pub except: &'static [&'static str],
    pub reason: &'static str,
}

const fn module(name: &'static str, may_import: &'static [&'static str]) -> Module {
    Module { name, may_import }
}

const fn ban(path: &'static str, except: &'static [&'static str], reason: &'static str) -> BannedPath {
    BannedPath { path, except, reason }
}

const OS_DISK: &[&str] = &["disk/os.rs"];
/// Files that may name the operating system: the environment, programs, and the shell that talks to a terminal.
const OS_ENV: &[&str] = &[
    "env/os.rs",
    "env/gssapi.rs",
    "env/blocking_disk.rs",
    "env/child_program.rs",
    "env/late_task.rs",
    "env/short_syncs.rs",
    "main.rs",
    "interactive.rs",
];
/// Files that may name `std::fs`: besides the environment, a command that writes a directory of documents, and one that
/// tells its files from one another.
const OS_FILES: &[&str] = &[
    "env/os.rs",
    "env/gssapi.rs",
    "env/blocking_disk.rs",
    "env/control_group.rs",
    "env/permissions.rs",
    "env/users.rs",
    "main.rs",
    "cli/documents.rs",
    "cli/import/options.rs",
];
const DISK_ONLY: &str = "the engine reaches files through disk::Disk";
const ENV_ONLY: &str = "the world is reached through Env";
const NO_ORDER: &str = "its order differs from run to run";
const HIDDEN_RANDOM: &str = "it draws hidden randomness; only a `biased` tokio::select! is allowed";

/// Paths that the crates of the node may not name.
const NODE_BANS: &[BannedPath] = &[
    ban("tokio::net", OS_ENV, ENV_ONLY),
    ban("tokio::time", OS_ENV, ENV_ONLY),
    ban("tokio::fs", OS_ENV, ENV_ONLY),
    ban("tokio::task", OS_ENV, ENV_ONLY),
    ban("tokio::spawn", OS_ENV, ENV_ONLY),
    ban("tokio::runtime", OS_ENV, ENV_ONLY),
    ban("tokio::process", OS_ENV, ENV_ONLY),
    ban("tokio::signal", OS_ENV, ENV_ONLY),
    ban("tokio::join!", &[], HIDDEN_RANDOM),
    ban("tokio::sync::watch", &[], HIDDEN_RANDOM),
    ban("tokio::select! without biased", &[], HIDDEN_RANDOM),
    ban("select! without biased", &[], HIDDEN_RANDOM),
    ban("futures_util::select!", &[], HIDDEN_RANDOM),
    ban("std::fs", OS_FILES, ENV_ONLY),
    ban("std::net::TcpStream", OS_ENV, ENV_ONLY),
    ban("std::net::TcpListener", OS_ENV, ENV_ONLY),
    ban("std::thread", OS_ENV, ENV_ONLY),
    ban("std::time::Instant", OS_ENV, ENV_ONLY),
    ban("std::time::SystemTime", OS_ENV, ENV_ONLY),
    ban("std::collections::HashMap", &[], NO_ORDER),
    ban("std::collections::HashSet", &[], NO_ORDER),
    ban("sim", &[], "production never imports a simulator"),
];

const NO_SIMULATOR: &[BannedText] = &[
    BannedText { text: "madsim", except: &[], reason: "no node source knows a simulator" },
    BannedText { text: "turmoil", except: &[], reason: "no node source knows a simulator" },
];

pub(super) static CRATES: [CrateRules; 8] = [
    CrateRules {
        source: "engine/src",
        exempt: &[],
        roots: &["lib.rs"],
        base: &[
            "ids",
            "time",
            "codec",
            "note",
            "error",
            "config",
            "observer",
            "sync",
            "memory",
            "format_level",
        ],
        modules: &[
            module("ids", &[]),
            module("time", &[]),
            module("codec", &[]),
            module("note", &[]),
            module("error", &[]),
            module("observer", &[]),
            module("format_level", &[]),
            module("sync", &[]),
            module("turn_slot", &["sync"]),
            module("memory", &[]),
            module("config", &["schema"]),
            module("disk", &[]),
            module("schema", &[]),
            module("cfile", &["schema", "disk"]),
            module("wal", &["disk"]),
            module("tablet", &["schema", "cfile", "disk"]),
            module("raft", &["wal"]),
            module("catalog", &["schema"]),
            module("replica", &["raft", "wal", "tablet", "cfile", "schema", "disk"]),
        ],
        bans: &[
            ban("std::fs", OS_DISK, DISK_ONLY),
            ban("rustix::fs", OS_DISK, DISK_ONLY),
            ban("std::net", &[], "the engine has no network"),
            ban("std::thread", &[], "the engine has no threads of its own"),
            ban("std::env", &[], "settings come in engine::config"),
            ban("std::process", &[], "a broken invariant panics; only the program ends the process"),
            ban("tokio", &[], "the engine is synchronous"),
            ban("futures_util", &[], "the engine is synchronous"),
            ban("std::future", &[], "the engine is synchronous"),
            ban("async", &[], "the engine is synchronous"),
            ban("prost", &[], "protobuf ends at node::wire"),
            ban("rand", &[], "randomness is an argument"),
            ban("getrandom", &[], "randomness is an argument"),
            ban("std::collections::HashMap", &[], NO_ORDER),
            ban("std::collections::HashSet", &[], NO_ORDER),
            ban("std::time::Instant", &[], "the engine has no clock"),
            ban("std::time::SystemTime", &[], "the engine has no clock"),
            ban("println!", &[], "the engine returns Notes; the node prints"),
            ban("print!", &[], "the engine returns Notes; the node prints"),
            ban("eprintln!", &[], "the engine returns Notes; the node prints"),
            ban("eprint!", &[], "the engine returns Notes; the node prints"),
        ],
        words: &[],
    },
    CrateRules {
        source: "node/common/src",
        exempt: &[],
        roots: &["lib.rs"],
        base: &[],
        modules: &[
            module("env", &[]),
            module("mailbox", &["env"]),
            module("metrics", &["env"]),
            module("security", &["env"]),
            module("rpc", &["env", "mailbox", "metrics", "security", "sidecars"]),
            module("sidecars", &[]),
            module("wire", &["sidecars"]),
        ],
        bans: NODE_BANS,
        words: NO_SIMULATOR,
    },
    CrateRules {
        source: "node/backup/src",
        exempt: &[],
        roots: &["lib.rs"],
        base: &[],
        modules: &[
            module("chain", &[]),
            module("files", &[]),
            module("manifest", &["chain"]),
            module("kudu_metadata", &["manifest"]),
            module("kudu_backup", &["kudu_metadata", "manifest"]),
            module("storage", &["files"]),
            module("part_reader", &[]),
            module("store", &["files", "kudu_backup", "kudu_metadata", "manifest", "part_reader", "storage"]),
            module("deep", &["manifest", "part_reader", "store"]),
            module("prune", &["chain", "storage", "store"]),
            module("plan", &["chain", "manifest", "store"]),
            module("create", &["chain", "kudu_metadata", "manifest", "part_reader", "store"]),
            module("restore_progress", &["manifest", "store"]),
            module("restore_target", &["manifest"]),
            module(
                "restore",
                &[
                    "kudu_backup",
                    "manifest",
                    "part_reader",
                    "plan",
                    "restore_progress",
                    "restore_target",
                    "store",
                ],
            ),
        ],
        bans: NODE_BANS,
        words: NO_SIMULATOR,
    },
    CrateRules {
        source: "node/cloud/src",
        exempt: &["main.rs"],
        roots: &["lib.rs"],
        base: &[],
        modules: &[module("storage", &[]), module("location", &["storage"])],
        bans: &[],
        words: NO_SIMULATOR,
    },
    CrateRules {
        source: "node/files/src",
        exempt: &[],
        roots: &["lib.rs"],
        base: &[],
        modules: &[
            module("delimited", &[]),
            module("csv_records", &[]),
            module("reader", &["csv_records"]),
            module("json_lines", &["reader"]),
            module("parquet_times", &["reader"]),
            module("parquet_rows", &["reader", "parquet_times"]),
            module("input", &["reader", "json_lines", "parquet_rows"]),
        ],
        bans: NODE_BANS,
        words: NO_SIMULATOR,
    },
    CrateRules {
        source: "node/sql/src",
        exempt: &["main.rs", "options.rs"],
        roots: &["lib.rs"],
        base: &["error"],
        modules: &[
            module("tokens", &[]),
            module("file_writer", &[]),
            module("output", &["file_writer"]),
            module("embedded", &[]),
            module("filter", &[]),
            module("late", &["filter"]),
            module("scan", &["late"]),
            module("aggregate", &["scan"]),
            module("aggregate_rule", &["aggregate", "scan"]),
            module("snapshot", &[]),
            module("table", &["filter", "scan", "snapshot"]),
            module("describe", &[]),
            module("pg_catalog", &["describe", "tokens"]),
            module("catalog", &["pg_catalog", "snapshot", "table"]),
            module("partition", &["tokens"]),
            module("script", &["partition", "pg_catalog", "tokens"]),
            module("session", &["aggregate_rule", "catalog", "pg_catalog", "script", "snapshot"]),
            module("show_create", &["describe", "tokens"]),
            module("ddl", &["partition", "script"]),
            module("unfinished", &["ddl", "script"]),
            module("dml", &["partition", "session", "tokens"]),
            module("copy", &["file_writer", "partition", "tokens"]),
            module(
                "executor",
                &[
                    "copy",
                    "ddl",
                    "describe",
                    "dml",
                    "partition",
                    "pg_catalog",
                    "script",
                    "session",
                    "show_create",
                    "snapshot",
                    "unfinished",
                ],
            ),
            module("shell", &["executor", "output", "script"]),
            module("interactive", &["executor", "output", "shell", "tokens"]),
            module("serve", &["catalog", "dml", "executor", "script", "tokens"]),
        ],
        bans: NODE_BANS,
        words: NO_SIMULATOR,
    },
    CrateRules {
        source: "node/client/src",
        exempt: &[],
        roots: &["*"],
        base: &[],
        modules: &[],
        bans: NODE_BANS,
        words: NO_SIMULATOR,
    },
    CrateRules {
        source: "node/src",
        exempt: &[],
        roots: &["lib.rs", "main.rs"],
        base: &[],
        modules: &[
            module("dirs", &[]),
            module("server_clock", &[]),
            // Values that follow a flag of the server, for code that does not know the flags.
            module("changed_flag", &[]),
            // Code of every server.
            module("server", &["dirs", "server_clock", "changed_flag"]),
            // Replicas of tablets, on tablet servers and masters: it knows neither.
            module("hosting", &["dirs", "server_clock", "changed_flag"]),
            // Verification of stored files, on servers of both kinds.
            module("scrub", &["dirs", "server", "hosting"]),
            module("tserver", &["dirs", "server_clock", "changed_flag", "server", "hosting", "scrub"]),
            module("master", &["dirs", "server_clock", "server", "hosting", "scrub"]),
            // From flags to running servers.
            module("config", &["dirs", "server"]),
            module("server/startup_warnings", &["master"]),
            module(
                "server/startup",
                &[
                    "dirs",
                    "server_clock",
                    "server/startup_warnings",
                    "config",
                    "hosting",
                    "scrub",
                    "tserver",
                    "master",
                ],
            ),
            module("server/cluster", &["dirs", "server/startup", "config"]),
            module("cli", &["*"]),
        ],
        bans: NODE_BANS,
        words: NO_SIMULATOR,
    },
];
