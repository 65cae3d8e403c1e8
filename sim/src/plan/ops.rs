//! What clients do, as data.
//!
//! Tables are numbered from 0 and made by the run itself before any client begins: `ops` name what happens to them
//! afterwards. Keys and values are small numbers; the workload gives them their columns.

use std::time::Duration;

use super::record::{records, words};

words! {
    /// What happens to one row.
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
    /// At which time a scan reads.
    pub enum ReadAt {
        /// Whatever the replica has.
        Latest = "latest",
        /// A snapshot that the server chooses, or `back` before now.
        Snapshot = "snapshot",
        /// A snapshot that has all that this client has seen.
        YourWrites = "your-writes",
    }
}

words! {
    /// Which replicas a scan may read from.
    pub enum Replicas {
        Leader = "leader",
        /// Any, the client's choice.
        Any = "any",
    }
}

words! {
    /// Whom an operator asks for a change of a group's members.
    pub enum Asked {
        /// The leader that the masters know.
        Leader = "leader",
        /// Every replica, as whoever leads now or believes to.
        All = "all",
    }
}

words! {
    /// When a client's writes go out.
    pub enum Flush {
        /// Each on its own.
        Sync = "sync",
        /// When an op [`Op::Flush`] says so.
        Manual = "manual",
        /// When the session finds it time.
        Background = "background",
    }
}

words! {
    /// What a cell must be; anything for `any`.
    pub enum TestKind {
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
    /// What a search asks for.
    pub enum Wanted {
        Rows = "rows",
        /// How many there are, then the rows themselves.
        Count = "count",
        /// A few, then all of them.
        Few = "few",
    }
}

words! {
    /// When a client takes a write for done.
    pub enum Waits {
        /// At once: what it tells others carries the time of it.
        No = "no",
        /// When its time has passed on every clock (COMMIT_WAIT).
        Commit = "commit",
    }
}

records! {
    /// What one client is like; its ops follow it.
    pub struct ClientSetup = "client" {
        pub number: u8,
        pub flush: Flush,
        pub waits: Waits,
        /// Time between two ops.
        pub pace: Duration,
        /// Tells the next client the newest timestamp it has seen, every so many ops; 0 for never.
        pub propagate_every: u32,
    }
}

/// One client and what it does, one op after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientProgram {
    pub setup: ClientSetup,
    pub ops: Vec<Op>,
}

/// A write whose `value` is not below this has a text of kilobytes.
pub const HEAVY: u32 = 1_000_000;

records! {
    /// One thing that a client does.
    pub enum Op {
        /// Writes a row of its own; which of its cells, `value` says. From [`HEAVY`] on, its text is long.
        Write = "write" { kind: WriteKind, table: u8, key: u32, value: u32 },
        /// Sends what was written, and waits for it.
        Flush = "flush" {},
        /// Reads one row by its key.
        Get = "get" { table: u8, key: u32, at: ReadAt, from: Replicas },
        /// Reads keys from `low` up to but not `high`, `back` before now if it is a snapshot.
        Scan = "scan" {
            table: u8,
            low: u32,
            high: u32,
            at: ReadAt,
            back: Duration,
            ordered: bool,
            from: Replicas,
        },
        /// Reads a whole table at a snapshot, with a pause after each few rows: servers come and go meanwhile.
        SlowScan = "slow-scan" { table: u8, ordered: bool, pause: Duration, from: Replicas },
        /// Reads the rows whose cell passes a test, and only the columns that `columns` has a bit for. The test's
        /// values follow from `value` and from what this client wrote last.
        Find = "find" {
            table: u8,
            column: u8,
            test: TestKind,
            value: u32,
            at: ReadAt,
            back: Duration,
            columns: u8,
            wanted: Wanted,
            from: Replicas,
        },
        /// What changed between `back` before now and now.
        Diff = "diff" { table: u8, back: Duration },
        /// Moves `amount` from one account to another: reads both, then updates them on the condition that they
        /// are as they were.
        Transfer = "transfer" { table: u8, debit: u32, credit: u32, amount: u32 },
        /// Adds a nullable column of this number.
        AddColumn = "add-column" { table: u8, column: u8 },
        DropColumn = "drop-column" { table: u8, column: u8 },
        /// Adds the range partition of this number, beyond the others.
        AddRange = "add-range" { table: u8, range: u8 },
        DropRange = "drop-range" { table: u8, range: u8 },
        /// Makes a table beside those that the run began with, uses it a little and drops it.
        ShortTable = "short-table" { number: u8, rows: u32 },
        /// Adds, renames, drops, writes or reads columns that this client has for itself, as `step` says.
        OwnColumn = "own-column" { table: u8, step: u8 },
        /// Adds, drops, fills or reads a range that this client has for itself.
        OwnRange = "own-range" { table: u8, step: u8 },
        /// Asks the leader of a tablet to let another lead.
        StepDown = "step-down" { table: u8, tablet: u8 },
        /// Asks one of a tablet's replicas, by its place among them, to stand for election, whoever leads.
        Elect = "elect" { table: u8, tablet: u8, replica: u8 },
        /// Moves a replica of a tablet from one tablet server to one that has none.
        Move = "move" { table: u8, tablet: u8, asked: Asked },
        /// Takes a replica out of a tablet's group, as an operator may who has lost patience. Another is made in time.
        Evict = "evict" { table: u8, tablet: u8, asked: Asked },
        /// Moves replicas, so many at once, until every server holds as many of each table as the others.
        Rebalance = "rebalance" { at_once: u8 },
        /// Takes a master out of the masters' group, or adds it again; it runs on, whatever it has.
        RemoveMaster = "remove-master" { master: u8 },
        AddMaster = "add-master" { master: u8 },
        Wait = "wait" { span: Duration },
        /// Appends a row to this client's list, which points at the one before; the next may go to another tablet.
        Link = "link" {},
        /// Reads the lists of all clients at one snapshot, `back` before now if that is not zero.
        Walk = "walk" { back: Duration, from: Replicas },
        /// Inserts a row under a key that others have, too, into the table whose rows the servers number, or reads all
        /// of them, as `step` says.
        Numbered = "numbered" { step: u8 },
        /// Has a tablet server lead nothing new and begin no scans for a while.
        Quiesce = "quiesce" { server: u8, span: Duration },
        /// Asks a tablet server what memory it holds.
        Inspect = "inspect" { server: u8 },
    }
}

impl Op {
    /// Whether it may change what a table holds.
    pub fn writes(&self) -> bool {
        matches!(
            self,
            Op::Write { .. }
                | Op::OwnColumn { .. }
                | Op::OwnRange { .. }
                | Op::Transfer { .. }
                | Op::ShortTable { .. }
                | Op::Link {}
                | Op::Numbered { .. }
        )
    }

    /// Whether it is about the clients' lists.
    pub fn is_of_lists(&self) -> bool {
        matches!(self, Op::Link {} | Op::Walk { .. })
    }
}
