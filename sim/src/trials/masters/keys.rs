//! Token keys in the replies to heartbeats: what a leading master gives to a server that names its newest key.
//!
//! - Always: the keys are those above the newest that the server has, in the order of their numbers, and a number is
//!   that of one key. Other masters, and those without security, give none.
//! - While all masters are settled: there are no more of them than a master keeps, only the newest may have
//!   expired, and none is missing that another server has had for some time.

use std::time::Duration;

use engine::time::Instant;
use nyala_common::security::token::TokenConfig;
use nyala_proto::kudu::security::TokenSigningPublicKeyPb;

use super::settings::SECURITY;

/// Seconds since the expiry of a key within which a settled leader removes it: it looks once a second.
const REMOVED_SECONDS: i64 = 4;
/// Age of a key, since a server has had it, from which on all leaders have it.
const KNOWN_AFTER: Duration = Duration::from_secs(2);

/// The newest key that any server has had, by its number, and the time since then.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NewestKey(Option<(i64, Instant)>);

impl NewestKey {
    /// Records the keys of a reply.
    pub(super) fn take(&mut self, keys: &[TokenSigningPublicKeyPb], now: Instant) {
        let last = keys.iter().filter_map(|key| key.key_seq_num).max();
        if let Some(last) = last.filter(|last| self.0.is_none_or(|(known, _)| *last > known)) {
            self.0 = Some((last, now));
        }
    }

    /// Returns the number of a key that each leader has by now.
    pub(super) fn known(&self, now: Instant) -> Option<i64> {
        self.0.filter(|(_, since)| now.since(*since) > KNOWN_AFTER).map(|(number, _)| number)
    }
}

/// Checks the keys of a reply to a server whose newest key has this number; `None` for one that asks for no keys.
pub(super) fn check_order(
    keys: &[TokenSigningPublicKeyPb],
    above: Option<i64>,
    leads: bool,
) -> Result<(), String> {
    let Some(above) = above.filter(|_| leads) else {
        return if keys.is_empty() {
            Ok(())
        } else {
            Err(format!("it gives keys, and leads: {leads}: {keys:?}"))
        };
    };
    let mut last = above;
    for key in keys {
        let number = key.key_seq_num.ok_or("a key without a number")?;
        if number <= last {
            return Err(format!("key {number} follows {last}, and the server has those up to {above}"));
        }
        last = number;
    }
    Ok(())
}

/// Checks the keys of a settled leader, whose reply was sent at this second or later.
pub(super) fn check_kept(keys: &[TokenSigningPublicKeyPb], second: i64) -> Result<(), String> {
    let config = TokenConfig {
        authn_validity: SECURITY.authn,
        authz_validity: SECURITY.authz,
        rotation: SECURITY.rotation,
    };
    // One more may wait to be removed.
    let most = config.keys_max() as usize + 1;
    if keys.len() > most {
        return Err(format!("{} keys are given, more than {most}: {keys:?}", keys.len()));
    }
    let removed = |key: &&TokenSigningPublicKeyPb| {
        key.expire_unix_epoch_seconds.is_none_or(|expires| expires + REMOVED_SECONDS < second)
    };
    let older = keys.split_last().map_or(&[][..], |(_, older)| older);
    match older.iter().find(removed) {
        Some(key) => Err(format!("at {second} s, a key is given that has expired: {key:?}")),
        None => Ok(()),
    }
}

/// Returns true if a reply lacks a key that the leader must have.
pub(super) fn is_short(keys: &[TokenSigningPublicKeyPb], above: Option<i64>, known: Option<i64>) -> bool {
    let newest = keys.iter().filter_map(|key| key.key_seq_num).max().max(above);
    above.is_some() && newest < known
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(of: &[(i64, i64)]) -> Vec<TokenSigningPublicKeyPb> {
        let key = |(number, expires): &(i64, i64)| TokenSigningPublicKeyPb {
            key_seq_num: Some(*number),
            expire_unix_epoch_seconds: Some(*expires),
            ..TokenSigningPublicKeyPb::default()
        };
        of.iter().map(key).collect()
    }

    #[test]
    fn keys_rise_from_the_servers_newest_and_come_from_the_leader() {
        let check = |numbers: &[i64], above, leads| {
            let of: Vec<(i64, i64)> = numbers.iter().map(|number| (*number, 0)).collect();
            check_order(&keys(&of), above, leads).is_ok()
        };
        assert!(check(&[3, 4], Some(2), true) && check(&[], Some(2), true) && check(&[0], Some(-1), true));
        assert!(!check(&[2, 3], Some(2), true) && !check(&[4, 3], Some(2), true));
        assert!(!check(&[3, 3], Some(2), true));
        assert!(!check(&[3], Some(2), false) && !check(&[3], None, true) && check(&[], None, false));
    }

    #[test]
    fn only_the_newest_key_may_have_expired() {
        assert_eq!(check_kept(&keys(&[(0, 97), (1, 101)]), 100), Ok(()));
        assert!(check_kept(&keys(&[(0, 95), (1, 101)]), 100).is_err());
        assert_eq!(check_kept(&keys(&[(1, 5)]), 100), Ok(()));
        let many: Vec<(i64, i64)> = (0..7).map(|number| (number, 200)).collect();
        assert!(check_kept(&keys(&many[..6]), 100).is_ok() && check_kept(&keys(&many), 100).is_err());
    }

    #[test]
    fn a_key_is_missed_once_another_server_has_had_it_for_some_time() {
        let (mut newest, second) = (NewestKey::default(), 1_000_000_000);
        newest.take(&keys(&[(3, 0), (4, 0)]), Instant(second));
        newest.take(&keys(&[(2, 0)]), Instant(5 * second));
        assert_eq!((newest.known(Instant(2 * second)), newest.known(Instant(4 * second))), (None, Some(4)));
        assert!(is_short(&[], Some(3), Some(4)) && is_short(&keys(&[(3, 0)]), Some(2), Some(4)));
        assert!(!is_short(&[], Some(4), Some(4)) && !is_short(&keys(&[(4, 0)]), Some(2), Some(4)));
        assert!(!is_short(&[], Some(3), None) && !is_short(&[], None, Some(4)));
    }
}
