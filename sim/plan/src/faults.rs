//! Injected faults, as data: time, host, kind and duration.
//!
//! A fault with a `span` or `down` ends by itself after that time. All faults have ended when the recovery phase
//! begins.
//!
//! The plan text has the field names as they are here: `moment` is a trigger, `nth` its countdown, `blow` a triggered
//! fault, `way` a direction.

use std::time::Duration;

use crate::host::Host;
use crate::line_format::{LineField, LineRecord, ParseError, records, words};

words! {
    /// Direction in which nothing passes, seen from the target of the fault.
    pub enum LinkDirection {
        Both = "both",
        In = "in",
        Out = "out",
    }
}

words! {
    /// Part of a call, by the direction of its bytes.
    pub enum CallPart {
        /// Bytes that the host that opened the connection sends.
        Request = "request",
        /// Bytes that the host that accepted it sends.
        Answer = "answer",
    }
}

words! {
    /// Directory of a host.
    pub enum HostDir {
        Wal = "wal",
        Data = "data",
    }
}

words! {
    /// Files of tablets that hold no rows.
    pub enum MetadataKind {
        /// Full segments of logs. The last one is spared: damage at its end is the same as a torn write.
        Log = "log",
        Superblock = "superblock",
        /// Consensus metadata: term, vote and configuration.
        Consensus = "consensus",
    }
}

words! {
    /// Event that a server reports, used to time a fault.
    pub enum Trigger {
        /// The server grants a vote.
        Vote = "vote",
        /// The server becomes leader.
        Lead = "lead",
        /// A leader advances its commit index for the first time in its term.
        Settle = "settle",
        /// A leader or follower advances its commit index.
        Commit = "commit",
        /// The server appends a configuration change to its log.
        Members = "members",
        /// A leader commits a configuration change.
        Changed = "changed",
        /// The server truncates entries that the leader's log does not have.
        Abort = "abort",
        /// A tablet copy begins or ends.
        Copy = "copy",
        /// The server fixes the state that another server copies.
        Source = "source",
        /// The server gives up a tablet copy and recovers the former state from its disk.
        GiveUp = "give-up",
        /// The server begins to create a replica.
        Create = "create",
        /// The server begins to remove a replica's data.
        Remove = "remove",
        /// Rows or deltas were flushed.
        Flush = "flush",
        /// A compaction ended.
        Merge = "merge",
        /// A schema change was applied.
        Alter = "alter",
        /// The server opened a tablet and replayed its log.
        Replay = "replay",
    }
}

words! {
    /// Fault that is applied when a trigger fires.
    pub enum TriggeredFault {
        Kill = "kill",
        Pause = "pause",
        /// Nothing passes between the target and any other host.
        Isolate = "isolate",
        /// Nothing passes between the target and other servers.
        CutPeers = "cut-peers",
        /// Nothing from other servers reaches the target. What it sends arrives.
        Deaf = "deaf",
    }
}

records! {
    /// One fault with its parameters.
    pub enum Fault as
    /// Kind of a [`Fault`]: the fault without its parameters.
    FaultKind {
        /// Kills the process. Peers see their connections end, files keep all written bytes. It restarts after `down`.
        Kill = "kill" { down: Duration },
        /// Cuts the machine's power. Peers see no end of connections. Disks keep synced bytes and perhaps some others.
        PowerCut = "power-cut" { down: Duration },
        /// Power cut within the `op`-th disk operation from now.
        PowerCutInDisk = "power-cut-in-disk" { dir: HostDir, op: u32, down: Duration },
        /// Power cut within the `op`-th disk operation after the `nth` occurrence of the trigger from now.
        PowerCutAfter = "power-cut-after" { moment: Trigger, nth: u32, dir: HostDir, op: u32, down: Duration },
        /// Power cut after which disks keep any pages of unsynced writes, not only the first ones.
        PowerCutPages = "power-cut-pages" { down: Duration },
        /// Kills the servers of the target's role one after the other, the target first, one `every` so often. Each
        /// restarts after `down`.
        RollingRestart = "rolling-restart" { down: Duration, every: Duration },
        /// Power cut of the target and these hosts together.
        ZonePowerCut = "zone-power-cut" { others: Vec<Host>, down: Duration },
        /// Applies a fault to the target at the `nth` occurrence of the trigger from now.
        StrikeAfter = "strike-after" { moment: Trigger, nth: u32, blow: TriggeredFault, span: Duration },
        /// Applies a fault to the current leader among the servers of the target's role: the last that committed.
        StrikeLeader = "strike-leader" { blow: TriggeredFault, span: Duration },
        /// Pauses the process, which does not notice.
        Pause = "pause" { span: Duration },

        /// Nothing passes between the target and any other host.
        Isolate = "isolate" { way: LinkDirection, span: Duration },
        /// Nothing passes between the target and one other host.
        CutLink = "cut-link" { peer: Host, way: LinkDirection, span: Duration },
        /// Nothing passes between the target and other servers. Clients still reach it.
        CutPeers = "cut-peers" { way: LinkDirection, span: Duration },
        /// Cuts all links of the target, one after the other, and restores them in another order.
        Swizzle = "swizzle" { span: Duration },
        /// Adds `latency` to all segments between the two hosts.
        SlowLink = "slow-link" { peer: Host, latency: Duration, span: Duration },
        /// Percentage of segments between the target and any other host that must be retransmitted.
        Loss = "loss" { percent: u8, span: Duration },
        /// Resets every connection between the two hosts.
        Reset = "reset" { peer: Host },
        /// Resets the connection of a call from the peer to the target within the `nth` write of that part from now:
        /// some of its bytes arrive. It waits no longer than `span`.
        CutCall = "cut-call" { peer: Host, part: CallPart, nth: u32, span: Duration },
        /// New connections to the target are refused, or hang.
        NoConnect = "no-connect" { hang: bool, span: Duration },

        /// The device completes no operation.
        DiskStall = "disk-stall" { dir: HostDir, span: Duration },
        /// Operations of the device take `factor` times as long.
        DiskSlow = "disk-slow" { dir: HostDir, factor: u32, span: Duration },
        /// The `op`-th operation from now fails with EIO.
        DiskError = "disk-error" { dir: HostDir, op: u32 },
        /// The `op`-th operation after the `nth` occurrence of the trigger from now fails with EIO. No operator
        /// restarts the server: the cluster replaces what has failed there.
        DiskErrorAfter = "disk-error-after" { moment: Trigger, nth: u32, dir: HostDir, op: u32 },
        /// The device takes no more than `free` further bytes.
        DiskFull = "disk-full" { dir: HostDir, free: u64, span: Duration },
        /// The `sync`-th sync from now fails. Its unsynced bytes are lost, even if a later sync succeeds.
        SyncError = "sync-error" { dir: HostDir, sync: u32 },
        /// Reads fail with EIO, `per_mille` of them.
        ReadErrors = "read-errors" { dir: HostDir, per_mille: u16, span: Duration },
        /// Power cut within the `sync`-th sync from now.
        PowerCutInSync = "power-cut-in-sync" { dir: HostDir, sync: u32, down: Duration },
        /// Flips bits of flushed rows.
        BitRot = "bit-rot" { bits: u8 },
        /// The `write`-th write to the data directory from now, or the next one of rows, is acknowledged and lost.
        LostWrite = "lost-write" { write: u32 },
        /// As a lost write, but the bytes overwrite rows of another file.
        MisdirectedWrite = "misdirected-write" { write: u32 },
        /// Flips bits of files of tablets that hold no rows.
        MetadataRot = "metadata-rot" { files: MetadataKind, bits: u8 },
        /// Pages of flushed rows, `pages` of them, stay unreadable: each read of one fails with EIO.
        UnreadablePages = "unreadable-pages" { pages: u8 },
        /// Disk wipe: the server restarts on empty disks.
        Wipe = "wipe" { down: Duration },

        /// Moves the wall clock by `micros` microseconds.
        ClockJump = "clock-jump" { micros: i64 },
        /// The wall clock gains `ppm` microseconds each second.
        ClockDrift = "clock-drift" { ppm: i64, span: Duration },
        /// The clock reports a maximum error of `micros` microseconds, and is wrong by half of it.
        ClockError = "clock-error" { micros: u64, behind: bool, span: Duration },

        /// The wall clock is wrong by `seconds`. If it is `told`, the machine states an error of that size.
        ClockStep = "clock-step" { seconds: i64, told: bool, span: Duration },

        /// Hard memory limit of the node in bytes.
        Memory = "memory" { bytes: u64, span: Duration },
        /// Work on the CPU takes `factor` times as long.
        SlowCpu = "slow-cpu" { factor: u32, span: Duration },
    }
}

/// Effect of a fault on the disks of its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskEffect {
    /// Durable data stays, and operations succeed.
    None,
    /// An operation fails, so a replica may fail and be copied again from another server.
    FailsReplicas,
    /// As `FailsReplicas`, but no restart brings the replica back.
    LosesReplicas,
    /// Durable bytes change without an error. A read detects it later, if at all.
    SilentCorruption,
    /// All durable data is gone.
    Wipe,
}

impl FaultKind {
    pub fn disk_effect(self) -> DiskEffect {
        use FaultKind::*;
        match self {
            Kill | PowerCut | PowerCutInDisk | PowerCutAfter | PowerCutPages | RollingRestart
            | ZonePowerCut | StrikeAfter | StrikeLeader | Pause => DiskEffect::None,
            Isolate | CutLink | CutPeers | Swizzle | SlowLink | Loss | Reset | CutCall | NoConnect => {
                DiskEffect::None
            }
            DiskError | DiskFull | SyncError | ReadErrors => DiskEffect::FailsReplicas,
            DiskErrorAfter => DiskEffect::LosesReplicas,
            BitRot | LostWrite | MisdirectedWrite | MetadataRot | UnreadablePages => {
                DiskEffect::SilentCorruption
            }
            Wipe => DiskEffect::Wipe,
            DiskStall | DiskSlow | PowerCutInSync => DiskEffect::None,
            ClockJump | ClockDrift | ClockError | ClockStep | Memory | SlowCpu => DiskEffect::None,
        }
    }

    /// Returns true if the fault takes durable data, or replicas. A plan has one server at most that such faults may
    /// hit.
    pub fn loses_durable_data(self) -> bool {
        use DiskEffect::{LosesReplicas, SilentCorruption, Wipe};
        matches!(self.disk_effect(), SilentCorruption | LosesReplicas | Wipe)
    }
}

impl Fault {
    /// Returns the time from the beginning of the fault to its end, restarts included.
    pub fn span(&self) -> Duration {
        self.clone().span_mut().map_or(Duration::ZERO, |span| *span)
    }

    /// Sets the duration of a fault that has one.
    pub fn set_span(&mut self, span: Duration) {
        if let Some(own) = self.span_mut() {
            *own = span;
        }
    }

    /// Returns true if the fault may lose unsynced bytes, or bytes that the server believes to be synced.
    pub fn cuts_power(&self) -> bool {
        use FaultKind::*;
        match self.kind() {
            PowerCut | PowerCutInDisk | PowerCutAfter | PowerCutPages | ZonePowerCut | PowerCutInSync => true,
            DiskError | DiskErrorAfter | SyncError => true,
            // A wipe includes a power cut. It is only a power cut while other replicas still lack data.
            Wipe => true,
            Kill | RollingRestart | StrikeAfter | StrikeLeader | Pause => false,
            Isolate | CutLink | CutPeers | Swizzle | SlowLink | Loss | Reset | CutCall | NoConnect => false,
            DiskStall | DiskSlow | DiskFull | ReadErrors | BitRot | LostWrite | MisdirectedWrite => false,
            MetadataRot | UnreadablePages => false,
            ClockJump | ClockDrift | ClockError | ClockStep | Memory | SlowCpu => false,
        }
    }

    fn span_mut(&mut self) -> Option<&mut Duration> {
        match self {
            Fault::Kill { down }
            | Fault::PowerCut { down }
            | Fault::PowerCutInDisk { down, .. }
            | Fault::PowerCutAfter { down, .. }
            | Fault::PowerCutInSync { down, .. }
            | Fault::PowerCutPages { down }
            | Fault::RollingRestart { down, .. }
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
            | Fault::CutCall { span, .. }
            | Fault::NoConnect { span, .. }
            | Fault::DiskStall { span, .. }
            | Fault::DiskSlow { span, .. }
            | Fault::DiskFull { span, .. }
            | Fault::ReadErrors { span, .. }
            | Fault::ClockDrift { span, .. }
            | Fault::ClockError { span, .. }
            | Fault::ClockStep { span, .. }
            | Fault::Memory { span, .. }
            | Fault::SlowCpu { span, .. } => Some(span),
            Fault::Reset { .. }
            | Fault::DiskError { .. }
            | Fault::DiskErrorAfter { .. }
            | Fault::SyncError { .. }
            | Fault::BitRot { .. }
            | Fault::LostWrite { .. }
            | Fault::MisdirectedWrite { .. }
            | Fault::MetadataRot { .. }
            | Fault::UnreadablePages { .. }
            | Fault::ClockJump { .. } => None,
        }
    }
}

/// A fault with its time and its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimedFault {
    /// Time of the beginning, since the workload began.
    pub at: Duration,
    pub target: Host,
    pub kind: Fault,
}

impl LineRecord for TimedFault {
    fn line(&self) -> String {
        format!("at {} {} {}", self.at.text(), self.target, self.kind.line())
    }

    fn parse_line(line: &str) -> Result<TimedFault, ParseError> {
        let bad = || ParseError(format!("{line:?}: not `at TIME HOST FAULT`"));
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
