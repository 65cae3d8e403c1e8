//! Admission of tablet servers: a server of another cluster, or with a wrong clock, is refused by name.
//!
//! ```text
//!   tserver ── heartbeat: its cluster, its wall clock, its offset by the last reply ──▶ master
//!           ◀── the master's wall clock at arrival, its cluster ──────────────────────
//! ```
//!
//! A first heartbeat has no measured offset. Its clock can be seen to be ahead, but a clock that is behind looks like a
//! message that was long under way, up to [`DELAY_MAX`].

use engine::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::time::Duration;

use engine::error::{Error, Result};
use engine::ids::{PeerId, Uuid};
use engine::time::Instant;
use nyala_proto::kudu::master::NyalaServerStatePb;

use crate::server::health::{CheckResult, HealthCheck};

/// Longest time that a heartbeat may be under way: its deadline.
const DELAY_MAX: Duration = Duration::from_secs(15);

/// Range in microseconds that contains the offset of a server's clock: positive if the server is ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClockOffset {
    pub low: i64,
    pub high: i64,
}

impl ClockOffset {
    /// Returns the offset that a heartbeat shows on arrival at `now_micros`; `None` if it has no clock reading.
    pub(super) fn of(state: &NyalaServerStatePb, now_micros: u64) -> Option<ClockOffset> {
        if let (Some(offset), Some(error)) = (state.offset_micros, state.offset_error_micros) {
            let error = i64::try_from(error).unwrap_or(i64::MAX);
            return Some(ClockOffset {
                low: offset.saturating_sub(error),
                high: offset.saturating_add(error),
            });
        }
        let low = (state.wall_micros? as i64).saturating_sub(now_micros as i64);
        Some(ClockOffset { low, high: low.saturating_add(DELAY_MAX.as_micros() as i64) })
    }

    /// Returns an error if the clocks certainly differ by more than `max_micros`.
    fn check(self, max_micros: u64) -> Result<()> {
        let max = i64::try_from(max_micros).unwrap_or(i64::MAX);
        let (word, least) = match self {
            ClockOffset { low, .. } if low > max => ("ahead of", low),
            ClockOffset { high, .. } if high < -max => ("behind", -high),
            _ => return Ok(()),
        };
        let seconds = |micros: i64| micros as f64 / 1e6;
        Err(Error::invalid(format!(
            "its clock is {word} this master's (by {} s at least, {} s allowed); \
             set the clock of the one that is wrong, then the server joins by itself",
            seconds(least),
            seconds(max)
        )))
    }
}

/// Offsets of the tablet servers' clocks, and who is refused: of the servers that send heartbeats.
#[derive(Debug, Default)]
pub(super) struct TserverAdmission(Mutex<BTreeMap<PeerId, KnownServer>>);

#[derive(Debug, Default)]
struct KnownServer {
    offset: Option<ClockOffset>,
    refused: bool,
    last_heartbeat: Instant,
}

impl TserverAdmission {
    fn servers(&self) -> MutexGuard<'_, BTreeMap<PeerId, KnownServer>> {
        self.0.lock()
    }

    /// Records the offset that a heartbeat shows. `Invalid` if it is certainly beyond `max_micros`.
    pub(super) fn check_clock(
        &self,
        now: Instant,
        server: PeerId,
        offset: Option<ClockOffset>,
        max_micros: u64,
    ) -> Result<()> {
        let Some(offset) = offset else { return Ok(()) };
        let mut servers = self.servers();
        let known = servers.entry(server).or_default();
        (known.offset, known.last_heartbeat) = (Some(offset), now);
        offset.check(max_micros)
    }

    /// Returns the error for a server that belongs to another cluster than this master's.
    pub(super) fn foreign(server: PeerId, its: Option<Uuid>, own: Option<Uuid>) -> Error {
        let text =
            |cluster: Option<Uuid>| cluster.map_or("unknown".to_string(), |cluster| cluster.to_string());
        Error::invalid(format!(
            "tablet server {server} belongs to another cluster (its {}, this master's {}); \
             check tserver_master_addrs, and that no empty master has taken the place of a lost one",
            text(its),
            text(own)
        ))
    }

    /// Records if the server's heartbeat is refused. Returns true if that is news.
    pub(super) fn set_refused(&self, now: Instant, server: PeerId, refused: bool) -> bool {
        let mut servers = self.servers();
        let known = servers.entry(server).or_default();
        known.last_heartbeat = now;
        std::mem::replace(&mut known.refused, refused) != refused
    }
}

impl TserverAdmission {
    /// Forgets a server until its next heartbeat.
    pub(super) fn forget(&self, server: PeerId) {
        self.servers().remove(&server);
    }

    /// Returns the check of `/readyz`: the offsets of the servers' clocks, and a warning while one is refused. Forgets
    /// the servers without a heartbeat for longer than `silence_max`: a refused one may be switched off permanently.
    pub(super) fn check(&self, now: Instant, silence_max: Duration) -> HealthCheck {
        let mut servers = self.servers();
        servers.retain(|_, known| now.since(known.last_heartbeat) <= silence_max);
        let line = |(server, known): (&PeerId, &KnownServer)| {
            let refused = if known.refused { " refused" } else { "" };
            let offset = known
                .offset
                .map_or("unknown".to_string(), |ClockOffset { low, high }| format!("{low} to {high} us"));
            format!("{server}{refused} clock {offset}")
        };
        let text = servers.iter().map(line).collect::<Vec<_>>().join(", ");
        let result = match servers.values().any(|known| known.refused) {
            true => CheckResult::Warning(text),
            false => CheckResult::Ok(text),
        };
        HealthCheck::new("tablet servers", result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    const NOW: u64 = 1_000 * SECOND;
    const MAX: u64 = 10 * SECOND;

    fn first(wall_micros: u64) -> NyalaServerStatePb {
        NyalaServerStatePb { wall_micros: Some(wall_micros), ..NyalaServerStatePb::default() }
    }

    fn measured(offset: i64, error: u64) -> NyalaServerStatePb {
        let (offset_micros, offset_error_micros) = (Some(offset), Some(error));
        NyalaServerStatePb { offset_micros, offset_error_micros, ..first(NOW) }
    }

    fn check(state: &NyalaServerStatePb) -> Result<(), String> {
        let admission = TserverAdmission::default();
        let offset = ClockOffset::of(state, NOW);
        let checked = admission.check_clock(Instant::default(), Uuid([1; 16]), offset, MAX);
        checked.map_err(|error| error.message)
    }

    #[test]
    fn a_clock_that_is_an_hour_wrong_is_refused_at_once() {
        let hour = 3_600 * SECOND;
        let ahead = check(&first(NOW + hour)).unwrap_err();
        assert!(
            ahead.starts_with("its clock is ahead of this master's (by 3600 s at least, 10 s allowed); set")
        );
        let at_noon = 13 * hour;
        let behind = ClockOffset::of(&first(at_noon - hour), at_noon).unwrap().check(MAX).unwrap_err();
        assert!(behind.message.contains("behind this master's (by 3585 s at least"), "{behind}");
    }

    #[test]
    fn only_certain_differences_are_refused() {
        assert_eq!(check(&NyalaServerStatePb::default()), Ok(()), "Kudu's own tablet server");
        assert_eq!(check(&first(NOW)), Ok(()));
        assert_eq!(check(&first(NOW - 20 * SECOND)), Ok(()), "it may have been under way for 15 s");
        assert_eq!(check(&measured(-9_000_000, 2_000_000)), Ok(()));
        assert_eq!(check(&measured(11_000_000, 2_000_000)), Ok(()));
        assert!(check(&measured(-13_000_000, 2_000_000)).is_err());
        assert!(check(&measured(13_000_000, 2_000_000)).is_err());
    }

    #[test]
    fn a_refused_server_is_reported_while_it_sends_heartbeats() {
        let (admission, silence_max) = (TserverAdmission::default(), Duration::from_nanos(10));
        let [a, b] = [Uuid([0xa; 16]), Uuid([0xb; 16])];
        let check = |now| {
            let check = admission.check(Instant(now), silence_max);
            let (result, text) = check.parts();
            format!("{result}: {}", text.replace(&a.to_string(), "a").replace(&b.to_string(), "b"))
        };
        assert!(admission.set_refused(Instant(1), a, true));
        assert!(!admission.set_refused(Instant(5), a, true), "that is known");
        assert!(!admission.set_refused(Instant(5), b, false));
        assert_eq!(check(15), "warning: a refused clock unknown, b clock unknown");
        assert!(!admission.set_refused(Instant(14), b, false));
        assert_eq!(check(16), "ok: b clock unknown", "a was switched off");
        assert!(admission.set_refused(Instant(17), a, true), "it is back");
        assert_eq!(check(18), "warning: a refused clock unknown, b clock unknown");
        admission.forget(a);
        assert_eq!(check(18), "ok: b clock unknown", "a was removed");
    }
}
