//! Flags that the operator sets while servers run: a server replies with the last value, shows the new one, follows it,
//! and refuses values that a flag cannot have.

use nyala_proto::kudu::server::get_flags_response_pb::Flag;
use nyala_proto::kudu::server::set_flag_response_pb::Code;
use nyala_proto::kudu::server::{GetFlagsRequestPb, GetFlagsResponsePb, SetFlagRequestPb, SetFlagResponsePb};
use nyala_proto::kudu::tserver::{ScanRequestPb, ScanResponsePb};

use super::ServingTrial;
use super::flag_values::{self, BATCH_BYTES, BATCH_DELAY, LiveFlag};
use super::tablet_case::TabletCase;
use crate::wire::client::{CallFailure, GENERIC, TSERVER};

/// Delays of batches in milliseconds that stay until the next change or restart.
const DELAYS_MILLIS: [u64; 3] = [0, 1, 25];
/// Values that servers refuse, by flag, whether forced or not.
const REFUSED: [(&str, &str, Code); 4] = [
    ("scanner_ttl_ms", "x", Code::BadValue),
    ("fs_wal_dir", "x", Code::NotSafe),
    // A flag of masters.
    ("default_num_replicas", "5", Code::NotSafe),
    ("no_such_flag", "1", Code::NoSuchFlag),
];
/// Writes before a batch of a limited size is read: more rows than a block has.
const WRITES: usize = 4;

impl ServingTrial {
    /// Changes a flag of a server, tries to change others, and checks what the server shows.
    pub(super) fn change_flags(&mut self, server: usize) {
        let delay = self.random.pick(&DELAYS_MILLIS);
        if !self.set_flag(server, BATCH_DELAY, delay) {
            return;
        }
        self.check_shown(server, BATCH_DELAY);
        self.set_refused_flags(server);
        self.check_shown(server, BATCH_BYTES);
        self.limit_batch();
    }

    /// Returns the value of a flag at a server, if it is known.
    pub(super) fn flag_value(&self, server: usize, flag: LiveFlag) -> Option<u64> {
        self.flags[server].value(flag, self.fleet.restarts[server])
    }

    /// Sets a flag of a server; true if the server has taken the value. A server must take it, and reply with the last
    /// one if that is known.
    pub(super) fn set_flag(&mut self, server: usize, flag: LiveFlag, value: u64) -> bool {
        let before = self.flag_value(server, flag);
        let text = value.to_string();
        let reply = self.send_flag(server, (flag.name, text.as_str()), false);
        self.fleet.note(format!("{} of {server}, {before:?}, is to be {value}: {reply:?}", flag.name));
        let is_set = reply.as_ref().is_ok_and(|reply| reply.result() == Code::Success);
        let restarts = self.fleet.restarts[server];
        self.flags[server].record(flag, restarts, is_set.then_some(value));
        let Ok(reply) = reply else { return false };
        if let Some(fault) = fault_taken(&reply, before) {
            self.fleet.report(format!("server {server}, {} set to {value}: {fault}", flag.name));
        }
        is_set
    }

    fn send_flag(
        &mut self,
        server: usize,
        (flag, value): (&str, &str),
        force: bool,
    ) -> Result<SetFlagResponsePb, CallFailure> {
        let request = SetFlagRequestPb {
            flag: flag.to_string(),
            value: value.to_string(),
            force: Some(force),
            run_consistency_check: None,
        };
        self.fleet.call(server, (GENERIC, "SetFlag"), request)
    }

    /// Returns the flags that a server shows, if it replies.
    fn shown_flags(&mut self, server: usize, names: &[&str]) -> Option<Vec<Flag>> {
        let flags = names.iter().map(ToString::to_string).collect();
        let request = GetFlagsRequestPb { flags, ..Default::default() };
        let reply: Result<GetFlagsResponsePb, _> = self.fleet.call(server, (GENERIC, "GetFlags"), request);
        reply.ok().map(|reply| reply.flags)
    }

    /// Compares what a server shows of a flag, by its name and among all changed ones, with its value.
    fn check_shown(&mut self, server: usize, flag: LiveFlag) {
        let Some(value) = self.flag_value(server, flag) else { return };
        let Some(named) = self.shown_flags(server, &[flag.name]) else { return };
        let Some(changed) = self.shown_flags(server, &[]) else { return };
        self.fleet.note(format!("{} of {server} is shown, value {value}", flag.name));
        if let Some(fault) = flag_values::fault_shown(flag, value, &named, &changed) {
            self.fleet.report(format!("server {server}: {fault}"));
        }
    }

    /// Sets flags to values that they cannot have. Each has its code, and all stay as they are.
    fn set_refused_flags(&mut self, server: usize) {
        let names = REFUSED.map(|(name, ..)| name);
        let before = self.shown_flags(server, &names);
        for (name, value, code) in REFUSED {
            let force = self.random.percent(50);
            let Ok(reply) = self.send_flag(server, (name, value), force) else { continue };
            self.fleet.note(format!("{name} of {server} is refused: {reply:?}"));
            if reply.result() != code || reply.old_value.is_some() {
                let what = format!("server {server}, {name} set to {value}, forced {force}: {reply:?}");
                self.fleet.report(what);
            }
        }
        let after = self.shown_flags(server, &names);
        if let (Some(before), Some(after)) = (before, after)
            && before != after
        {
            self.fleet.report(format!("server {server} shows {after:?} after {before:?}"));
        }
    }

    /// Limits the batches of a leader to one byte for a time, in which a batch is one block of rows. Tablets have more
    /// rows than that in trials with small blocks.
    fn limit_batch(&mut self) {
        let Some((at, leader)) = self.led_tablet() else { return };
        let case = self.tablets[at].clone();
        let block_rows = self.fleet.running(leader).map(|running| running.config.tablet.scan_block_rows);
        let Some(block_rows) = block_rows else { return };
        for _ in 0..WRITES {
            self.write_to(at, leader);
        }
        self.set_flag(leader, BATCH_BYTES, 1);
        let is_limited = self.flag_value(leader, BATCH_BYTES) == Some(1);
        let rows = self.batch_rows(leader, &case);
        self.set_flag(leader, BATCH_BYTES, BATCH_BYTES.default);
        let all = self.batch_rows(leader, &case);
        let has_more = rows.zip(all).is_some_and(|(rows, all)| rows < all);
        self.fleet.note(format!("limited batch, {rows:?} of {all:?}, has more: {has_more}"));
        if is_limited && rows.is_some_and(|rows| rows > block_rows) {
            let what = format!("a batch of one byte has {rows:?} rows, and a block {block_rows}");
            self.fleet.report(what);
        }
    }

    /// Returns the number of rows that a server sends at once, if it does.
    fn batch_rows(&mut self, server: usize, case: &TabletCase) -> Option<usize> {
        let request = ScanRequestPb {
            new_scan_request: Some(self.new_scan(case)),
            call_seq_id: Some(0),
            close_scanner: Some(true),
            ..Default::default()
        };
        let reply: Result<ScanResponsePb, _> = self.fleet.call(server, (TSERVER, "Scan"), request);
        let data = reply.ok().filter(|reply| reply.error.is_none())?.data?;
        usize::try_from(data.num_rows()).ok()
    }
}

/// Returns what is wrong in the reply to a value that a flag can have, which had the value `before`, if that is known.
fn fault_taken(reply: &SetFlagResponsePb, before: Option<u64>) -> Option<String> {
    let is_last = before.is_none_or(|before| reply.old_value() == before.to_string());
    let is_right = reply.result() == Code::Success && reply.old_value.is_some() && is_last;
    (!is_right).then(|| format!("{reply:?}, the value was {before:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_must_be_taken_and_the_last_one_given() {
        let reply = |code: Code, old_value: Option<&str>| SetFlagResponsePb {
            result: code as i32,
            msg: None,
            old_value: old_value.map(str::to_string),
        };
        let is_right = |reply: SetFlagResponsePb, before| fault_taken(&reply, before).is_none();
        assert!(is_right(reply(Code::Success, Some("7")), Some(7)));
        assert!(is_right(reply(Code::Success, Some("7")), None));
        assert!(!is_right(reply(Code::Success, Some("9")), Some(7)), "the new value, or another one");
        assert!(!is_right(reply(Code::Success, None), None));
        assert!(!is_right(reply(Code::NotSafe, None), Some(7)));
    }
}
