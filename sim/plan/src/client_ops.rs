//! Programs of clients, as data.
//!
//! The run creates tables, numbered from 0, before any client begins; ops refer to them by number. Keys and values are
//! small numbers, which the workload expands into the columns of a row.
//!
//! The plan text has the field names as they are here: `at` is a read mode, `from` a replica choice, `back` the age of
//! a snapshot, `asked` the target of a configuration change, `waits` a write wait, `wanted` a search output.

use std::time::Duration;

use crate::line_format::{records, words};

words! {
    /// Operation on one row.
    pub enum WriteKind {
        Insert = "insert",
        InsertIgnore = "insert-ignore",
        Upsert = "upsert",
        UpsertIgnore = "upsert-ignore",
        Update = "update",
        UpdateIgnore = "update-ignore",
        Delete = "delete",
        DeleteIgnore = "delete-ignore",
    }
}

words! {
    /// Read mode of a scan.
    pub enum ReadMode {
        /// The newest state of the replica.
        Latest = "latest",
        /// A snapshot whose timestamp the server chooses, or `back` before now.
        Snapshot = "snapshot",
        /// A snapshot that includes everything that this client has observed.
        YourWrites = "your-writes",
    }
}

words! {
    /// Replicas that a scan may read from.
    pub enum ReplicaChoice {
        Leader = "leader",
        /// Any replica, chosen by the client.
        Any = "any",
    }
}

words! {
    /// Replicas that an operator asks for a configuration change.
    pub enum ChangeTarget {
        /// The leader that the masters report.
        Leader = "leader",
        /// All replicas: every one that is leader or believes that it is.
        All = "all",
    }
}

words! {
    /// Flush mode of a client's session.
    pub enum FlushMode {
        /// Each write is sent and awaited by itself.
        Sync = "sync",
        /// An op [`ClientOp::Flush`] sends the buffered writes.
        Manual = "manual",
        /// The session sends buffered writes by itself.
        Background = "background",
    }
}

words! {
    /// Condition on a cell. `Any` accepts all cells.
    pub enum PredicateKind {
        Equal = "equal",
        Between = "between",
        Below = "below",
        AtLeast = "at-least",
        OneOf = "one-of",
        Any = "any",
        Null = "null",
        NotNull = "not-null",
    }
}

words! {
    /// Output of a search.
    pub enum SearchOutput {
        Rows = "rows",
        /// The row count, then the rows.
        Count = "count",
        /// A limited number of rows, then all of them.
        Few = "few",
    }
}

words! {
    /// Wait of a client after a write.
    pub enum WriteWait {
        /// No wait. Propagated timestamps order the client's later operations.
        No = "no",
        /// Commit wait: until the write's timestamp has passed on every clock (COMMIT_WAIT).
        Commit = "commit",
    }
}

words! {
    /// Layout of the rows in a scan's replies.
    pub enum RowsFormat {
        RowWise = "row-wise",
        /// As row-wise, with UNIXTIME_MICROS cells of 16 bytes.
        Padded = "padded",
        Columnar = "columnar",
    }
}

words! {
    /// Step that alters a model table.
    pub enum TableStep {
        AddColumn = "add-column",
        DropColumn = "drop-column",
        RenameColumn = "rename-column",
        /// Sets or removes a column's write default.
        ChangeDefault = "change-default",
        /// Sets a column's encoding and compression.
        ChangeLayout = "change-layout",
        /// Adds a column and renames another in one request.
        Several = "several",
        RenameTable = "rename-table",
        AddRange = "add-range",
        DropRange = "drop-range",
        /// Adds one or two ranges within keys that no range has, with any bounds.
        AddRanges = "add-ranges",
        /// Drops one or two ranges and adds others that overlap them, in one request.
        ReplaceRanges = "replace-ranges",
        /// Asks for what masters must refuse.
        Refused = "refused",
        /// Hides the table as a soft-deleted one and recalls it.
        HideAndRecall = "hide-and-recall",
        /// Drops the table and creates it again under its name.
        Recreate = "recreate",
    }
}

words! {
    /// Metadata of a model table that a client asks for.
    pub enum MetadataQuery {
        /// Number of rows and bytes, as masters know them.
        Statistics = "statistics",
        /// The list of tables, by a part of their names.
        Tables = "tables",
        /// The tablet of one partition key.
        Location = "location",
        /// The tablets that a server has, with schema and partition.
        Tablets = "tablets",
        /// Ranges of primary keys that split a tablet, and the rows of each.
        KeyRanges = "key-ranges",
    }
}

words! {
    /// Pause of a scan after its scanner was opened.
    pub enum ScanPause {
        /// Shorter than the time after which a server drops an idle scanner.
        Short = "short",
        /// Longer, with calls that keep the scanner alive.
        KeepAlive = "keep-alive",
        /// Longer, so that the scanner expires and the scan begins again.
        Expire = "expire",
        /// After some rows the scan continues at another replica, after the key of the last row.
        Elsewhere = "elsewhere",
    }
}

/// Time for which clients remember the locations of tablets, in plans that alter model tables.
pub const LOCATIONS_TTL: Duration = Duration::from_secs(4);

/// Idle time after which servers drop a scanner, in plans with paused scans.
pub const SCANNER_TTL: Duration = Duration::from_secs(3);

words! {
    /// Kind of a backup.
    pub enum BackupChoice {
        /// Incremental if there is a base whose history servers still keep.
        Any = "any",
        Full = "full",
        /// Fails without a base.
        Incremental = "incremental",
    }
}

records! {
    /// Settings of one client. Its ops follow on the next lines.
    pub struct ClientSetup = "client" {
        pub number: u8,
        pub flush: FlushMode,
        pub waits: WriteWait,
        /// Pause between two ops.
        pub pace: Duration,
        /// Number of ops after which the client propagates its newest observed timestamp to the next client. 0 never.
        pub propagate_every: u32,
    }
}

/// One client and its ops, which run one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientProgram {
    pub setup: ClientSetup,
    pub ops: Vec<ClientOp>,
}

/// Smallest `value` of a write whose text column has several kilobytes.
pub const LARGE_VALUE_MIN: u32 = 1_000_000;

records! {
    /// One operation of a client.
    pub enum ClientOp as
    /// Kind of a [`ClientOp`]: the op without its parameters.
    ClientOpKind {
        /// Writes a row. `value` determines the cells, and from [`LARGE_VALUE_MIN`] on a long text.
        Write = "write" { kind: WriteKind, table: u8, key: u32, value: u32 },
        /// Sends buffered writes and waits for their replies.
        Flush = "flush" {},
        /// Reads one row by its key.
        Get = "get" { table: u8, key: u32, at: ReadMode, from: ReplicaChoice },
        /// Reads keys from `low` to below `high`. A snapshot is `back` before now, if `back` is not zero.
        Scan = "scan" {
            table: u8,
            low: u32,
            high: u32,
            at: ReadMode,
            back: Duration,
            ordered: bool,
            from: ReplicaChoice,
        },
        /// Reads a whole table at a snapshot, with a pause after every few rows, so that servers restart in between.
        SlowScan = "slow-scan" { table: u8, ordered: bool, pause: Duration, from: ReplicaChoice },
        /// Reads the rows whose cell satisfies a predicate, and the columns that `columns` has a bit for. The values of
        /// the predicate are derived from `value` and from this client's last write.
        Find = "find" {
            table: u8,
            column: u8,
            test: PredicateKind,
            value: u32,
            at: ReadMode,
            back: Duration,
            columns: u8,
            wanted: SearchOutput,
            from: ReplicaChoice,
        },
        /// Reads the changes between `back` before now and now.
        Diff = "diff" { table: u8, back: Duration },
        /// Moves `amount` from one account to another: reads both rows, then updates each if it is unchanged.
        Transfer = "transfer" { table: u8, debit: u32, credit: u32, amount: u32 },
        /// Adds the nullable column with this number.
        AddColumn = "add-column" { table: u8, column: u8 },
        DropColumn = "drop-column" { table: u8, column: u8 },
        /// Adds the range partition with this number, above the initial ones.
        AddRange = "add-range" { table: u8, range: u8 },
        DropRange = "drop-range" { table: u8, range: u8 },
        /// Creates a further table, writes `rows` rows to it and drops it.
        ShortTable = "short-table" { number: u8, rows: u32 },
        /// Adds, renames, drops, writes or reads columns that only this client uses. `step` determines the operation.
        OwnColumn = "own-column" { table: u8, step: u8 },
        /// Adds, drops, fills or reads a range that only this client uses. `step` determines the operation.
        OwnRange = "own-range" { table: u8, step: u8 },
        /// Asks the leader of a tablet to step down.
        StepDown = "step-down" { table: u8, tablet: u8 },
        /// Asks one of a tablet's replicas, by its index, to start an election, even while there is a leader.
        Elect = "elect" { table: u8, tablet: u8, replica: u8 },
        /// Moves a replica of a tablet to a tablet server without one.
        Move = "move" { table: u8, tablet: u8, asked: ChangeTarget },
        /// Evicts a replica on behalf of an operator. Masters add another replica later.
        Evict = "evict" { table: u8, tablet: u8, asked: ChangeTarget },
        /// Runs the rebalancer, with at most `at_once` moves at a time, until the replicas of each table are balanced.
        Rebalance = "rebalance" { at_once: u8 },
        /// Removes a master from the masters' group. Its process keeps running.
        RemoveMaster = "remove-master" { master: u8 },
        /// Adds a master to the masters' group.
        AddMaster = "add-master" { master: u8 },
        Wait = "wait" { span: Duration },
        /// Appends a row to this client's list. It points to the row before, which may be in another tablet.
        Link = "link" {},
        /// Reads the lists of all clients at one snapshot, `back` before now if `back` is not zero.
        Walk = "walk" { back: Duration, from: ReplicaChoice },
        /// Inserts a row into the table with an auto-increment column, under a key that other rows share, or reads all
        /// rows. `step` determines the operation.
        Numbered = "numbered" { step: u8 },
        /// Quiesces a tablet server: until `span` is over it becomes leader of no tablet and begins no scan.
        Quiesce = "quiesce" { server: u8, span: Duration },
        /// Reads the memory trackers of a tablet server.
        Inspect = "inspect" { server: u8 },
        /// Writes rows to a model table. They, and those of the other ops on model tables, are drawn from `draw`.
        TableWrite = "table-write" { table: u8, kind: WriteKind, rows: u8, draw: u32 },
        /// Reads rows of a model table that pass a number of tests.
        TableScan = "table-scan" {
            table: u8,
            at: ReadMode,
            back: Duration,
            ordered: bool,
            tests: u8,
            /// Most rows of each tablet, or 0.
            limit: u32,
            /// True if the scan has bounds of the primary key.
            bounded: bool,
            /// True if only the number of rows is read.
            count: bool,
            format: RowsFormat,
            from: ReplicaChoice,
            draw: u32,
        },
        /// Reads what changed in a model table from `back` ago to `to` ago.
        TableDiff = "table-diff" {
            table: u8,
            back: Duration,
            to: Duration,
            tests: u8,
            format: RowsFormat,
            draw: u32,
        },
        TableAlter = "table-alter" { table: u8, step: TableStep, draw: u32 },
        /// Reads one tablet of a model table, with pauses.
        TablePausedScan = "table-paused-scan" {
            table: u8,
            pause: ScanPause,
            span: Duration,
            ordered: bool,
            format: RowsFormat,
            from: ReplicaChoice,
            draw: u32,
        },
        /// Asks for metadata of a model table.
        TableMetadata = "table-metadata" { table: u8, asked: MetadataQuery, draw: u32 },
        /// Asks a replica of a model table's tablet to stand for election.
        TableElect = "table-elect" { table: u8, draw: u32 },
        /// Backs up a table to the directory `data` of this client's host. See [`ClientProgram::backs_up`].
        Backup = "backup" { table: u8, kind: BackupChoice },
        /// Backs up a model table under the name that it has then.
        TableBackup = "table-backup" { table: u8, kind: BackupChoice },
    }
}

impl ClientProgram {
    /// Returns true if the client's ops are backups and waits. Its host may be killed or lose power as a server's: it
    /// continues with the next op. Ops of other kinds are left out.
    pub fn backs_up(&self) -> bool {
        self.ops.iter().any(ClientOp::is_backup)
    }
}

impl ClientOp {
    /// Returns true if the op may change rows.
    pub fn writes(&self) -> bool {
        matches!(
            self,
            ClientOp::Write { .. }
                | ClientOp::OwnColumn { .. }
                | ClientOp::OwnRange { .. }
                | ClientOp::Transfer { .. }
                | ClientOp::ShortTable { .. }
                | ClientOp::Link {}
                | ClientOp::Numbered { .. }
                | ClientOp::TableWrite { .. }
        )
    }

    /// Returns true if the op is an operator's: it changes leaders or members, or stops a server from leading.
    pub fn is_by_operator(&self) -> bool {
        use ClientOp::*;
        matches!(
            self,
            StepDown { .. }
                | Elect { .. }
                | Move { .. }
                | Evict { .. }
                | Rebalance { .. }
                | RemoveMaster { .. }
                | AddMaster { .. }
                | Quiesce { .. }
                | TableElect { .. }
        )
    }

    /// Returns true if the op backs up a table.
    pub fn is_backup(&self) -> bool {
        matches!(self, ClientOp::Backup { .. } | ClientOp::TableBackup { .. })
    }

    /// Returns true if the op is an operator's change of the masters' group.
    pub fn changes_masters(&self) -> bool {
        matches!(self, ClientOp::RemoveMaster { .. } | ClientOp::AddMaster { .. })
    }

    /// Returns true if the op appends to a client's list or reads the lists.
    pub fn is_of_lists(&self) -> bool {
        matches!(self, ClientOp::Link {} | ClientOp::Walk { .. })
    }
}
