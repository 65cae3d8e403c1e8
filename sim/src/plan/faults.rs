//! What goes wrong, as data: when, on which host, what, and for how long.
//!
//! A fault with a `span` heals by itself when that is over. All have healed when the quiet phase begins.

use std::fmt;
use std::time::Duration;

use super::record::{BadLine, Field, Record, records, words};

/// A machine of the cluster, by its role and number: `m0` a master, `t2` a tablet server, `c1` a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    Master(u8),
    Tserver(u8),
    Client(u8),
}

impl Host {
    /// The name it has in the simulated network.
    pub fn name(self) -> String {
        self.to_string()
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Master(number) => write!(f, "m{number}"),
            Host::Tserver(number) => write!(f, "t{number}"),
            Host::Client(number) => write!(f, "c{number}"),
        }
    }
}

impl Field for Host {
    fn text(&self) -> String {
        self.to_string()
    }

    fn parse(text: &str) -> Option<Host> {
        let number = text.get(1..)?.parse().ok()?;
        match text.get(..1)? {
            "m" => Some(Host::Master(number)),
            "t" => Some(Host::Tserver(number)),
            "c" => Some(Host::Client(number)),
            _ => None,
        }
    }
}

words! {
    /// Which way nothing passes, seen from the fault's target.
    pub enum Way {
        Both = "both",
        In = "in",
        Out = "out",
    }
}

words! {
    /// Which directory of a host.
    pub enum Dir {
        Wal = "wal",
        Data = "data",
    }
}

words! {
    /// What a server tells of itself, as a moment to strike at.
    pub enum Moment {
        /// It gives somebody its vote.
        Vote = "vote",
        /// It begins to lead.
        Lead = "lead",
        /// It decides, for the first time since it began to lead, that something is committed.
        Settle = "settle",
        /// It learns, or decides, that something is committed.
        Commit = "commit",
        /// It takes a change of a group's members into its log.
        Members = "members",
        /// It decides that such a change is committed.
        Changed = "changed",
        /// It gives up entries that another leader does not have.
        Abort = "abort",
        /// It begins or ends a copy of a tablet.
        Copy = "copy",
        /// Rows or changes of theirs have gone to disk.
        Flush = "flush",
        /// Files have been merged.
        Merge = "merge",
        /// Columns have changed.
        Alter = "alter",
        /// It has opened a tablet and replayed its log.
        Replay = "replay",
    }
}

words! {
    /// What strikes at a moment.
    pub enum Blow {
        Kill = "kill",
        Pause = "pause",
        /// Nothing passes between it and anyone else.
        Isolate = "isolate",
        /// Nothing passes between it and other servers.
        CutPeers = "cut-peers",
        /// It hears nothing from other servers, and they hear it.
        Deaf = "deaf",
    }
}

records! {
    /// One kind of fault with its parameters.
    pub enum Fault {
        /// The process dies; peers see their connections end; files keep what was written. Starts again after.
        Kill = "kill" { down: Duration },
        /// The machine loses power: peers hear nothing, disks keep what was synced and perhaps some of the rest.
        PowerCut = "power-cut" { down: Duration },
        /// The same, within the `op`-th disk operation from now.
        PowerCutInDisk = "power-cut-in-disk" { dir: Dir, op: u32, down: Duration },
        /// The same, within the `op`-th disk operation after the `nth` such moment from now.
        PowerCutAfter = "power-cut-after" { moment: Moment, nth: u32, dir: Dir, op: u32, down: Duration },
        /// These hosts lose power together with the target.
        ZonePowerCut = "zone-power-cut" { others: Vec<Host>, down: Duration },
        /// This befalls the target as soon as the `nth` such moment from now has come.
        StrikeAfter = "strike-after" { moment: Moment, nth: u32, blow: Blow, span: Duration },
        /// This befalls, of the target and its likes, whoever was the last to decide that something is committed.
        StrikeLeader = "strike-leader" { blow: Blow, span: Duration },
        /// The process does nothing for a while, and does not notice.
        Pause = "pause" { span: Duration },

        /// Nothing passes between the target and anyone else.
        Isolate = "isolate" { way: Way, span: Duration },
        /// Nothing passes between the target and one other.
        CutLink = "cut-link" { peer: Host, way: Way, span: Duration },
        /// Nothing passes between the target and any other server; clients reach it still.
        CutPeers = "cut-peers" { way: Way, span: Duration },
        /// Every link of the target is clogged, and unclogged in another order, one after the other.
        Swizzle = "swizzle" { span: Duration },
        /// Whatever passes between the two takes so much longer.
        SlowLink = "slow-link" { peer: Host, latency: Duration, span: Duration },
        /// Of segments between the target and anyone else so many in a hundred must be sent again.
        Loss = "loss" { percent: u8, span: Duration },
        /// Every connection between the two is reset.
        Reset = "reset" { peer: Host },
        /// New connections to the target are refused, or get no answer.
        NoConnect = "no-connect" { hang: bool, span: Duration },

        /// The device does nothing for a while.
        DiskStall = "disk-stall" { dir: Dir, span: Duration },
        /// The device takes so many times as long.
        DiskSlow = "disk-slow" { dir: Dir, factor: u32, span: Duration },
        /// The `op`-th operation from now fails with EIO.
        DiskError = "disk-error" { dir: Dir, op: u32 },
        /// No more than `free` bytes fit on the device.
        DiskFull = "disk-full" { dir: Dir, free: u64, span: Duration },
        /// The `sync`-th sync from now fails, and what it should have kept is gone though a later one succeeds.
        SyncError = "sync-error" { dir: Dir, sync: u32 },
        /// Of reads, so many in a thousand fail with EIO.
        ReadErrors = "read-errors" { dir: Dir, per_mille: u16, span: Duration },
        /// The machine loses power within the `sync`-th sync from now.
        PowerCutInSync = "power-cut-in-sync" { dir: Dir, sync: u32, down: Duration },
        /// Bits of flushed rows flip.
        BitRot = "bit-rot" { bits: u8 },
        /// The `write`-th write of the data directory from now, or the next one of rows, never reaches the device,
        /// though it says so.
        LostWrite = "lost-write" { write: u32 },
        /// It goes over the rows of some other file.
        MisdirectedWrite = "misdirected-write" { write: u32 },
        /// The server starts again on empty disks.
        Wipe = "wipe" { down: Duration },

        /// The wall clock jumps by `micros` from where it is.
        ClockJump = "clock-jump" { micros: i64 },
        /// The wall clock gains `ppm` microseconds each second.
        ClockDrift = "clock-drift" { ppm: i64, span: Duration },
        /// The clock knows its error no better than this, and is wrong by half of it.
        ClockError = "clock-error" { micros: u64, behind: bool, span: Duration },

        /// The node may use no more than this.
        Memory = "memory" { bytes: u64, span: Duration },
        /// Everything that burns CPU takes so many times as long.
        SlowCpu = "slow-cpu" { factor: u32, span: Duration },
    }
}

impl Fault {
    /// How long after its beginning it has healed, restarts included.
    pub fn span(&self) -> Duration {
        self.clone().span_mut().map_or(Duration::ZERO, |span| *span)
    }

    /// Has it last so long, if it lasts at all.
    pub fn set_span(&mut self, span: Duration) {
        if let Some(mine) = self.span_mut() {
            *mine = span;
        }
    }

    /// Whether the machine may lose its power, or what it believes to be synced.
    pub fn cuts_power(&self) -> bool {
        use Fault::{PowerCut, PowerCutAfter, PowerCutInDisk, PowerCutInSync, ZonePowerCut};
        let within = matches!(self, PowerCutInDisk { .. } | PowerCutInSync { .. } | PowerCutAfter { .. });
        let fails = matches!(self, Fault::DiskError { .. } | Fault::SyncError { .. });
        // A wipe comes with a power cut, and is nothing else if others lack something still.
        within || fails || matches!(self, PowerCut { .. } | ZonePowerCut { .. } | Fault::Wipe { .. })
    }

    fn span_mut(&mut self) -> Option<&mut Duration> {
        match self {
            Fault::Kill { down }
            | Fault::PowerCut { down }
            | Fault::PowerCutInDisk { down, .. }
            | Fault::PowerCutAfter { down, .. }
            | Fault::PowerCutInSync { down, .. }
            | Fault::ZonePowerCut { down, .. }
            | Fault::Wipe { down } => Some(down),
            Fault::Pause { span }
            | Fault::StrikeAfter { span, .. }
            | Fault::StrikeLeader { span, .. }
            | Fault::Isolate { span, .. }
            | Fault::CutLink { span, .. }
            | Fault::CutPeers { span, .. }
            | Fault::Swizzle { span }
            | Fault::SlowLink { span, .. }
            | Fault::Loss { span, .. }
            | Fault::NoConnect { span, .. }
            | Fault::DiskStall { span, .. }
            | Fault::DiskSlow { span, .. }
            | Fault::DiskFull { span, .. }
            | Fault::ReadErrors { span, .. }
            | Fault::ClockDrift { span, .. }
            | Fault::ClockError { span, .. }
            | Fault::Memory { span, .. }
            | Fault::SlowCpu { span, .. } => Some(span),
            Fault::Reset { .. }
            | Fault::DiskError { .. }
            | Fault::SyncError { .. }
            | Fault::BitRot { .. }
            | Fault::LostWrite { .. }
            | Fault::MisdirectedWrite { .. }
            | Fault::ClockJump { .. } => None,
        }
    }
}

/// A fault that begins at a time, on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimedFault {
    /// Since the workload began.
    pub at: Duration,
    pub target: Host,
    pub kind: Fault,
}

impl Record for TimedFault {
    fn line(&self) -> String {
        format!("at {} {} {}", self.at.text(), self.target, self.kind.line())
    }

    fn parse_line(line: &str) -> Result<TimedFault, BadLine> {
        let bad = || BadLine(format!("{line:?} is not `at TIME HOST FAULT`"));
        let mut words = line.splitn(4, ' ');
        let (at, time, host) = (words.next(), words.next(), words.next());
        if at != Some("at") {
            return Err(bad());
        }
        let at = time.and_then(Duration::parse).ok_or_else(bad)?;
        let target = host.and_then(Host::parse).ok_or_else(bad)?;
        let kind = Fault::parse_line(words.next().ok_or_else(bad)?)?;
        Ok(TimedFault { at, target, kind })
    }
}
