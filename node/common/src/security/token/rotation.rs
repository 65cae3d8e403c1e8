//! Rotation of token keys: when a key is created, signs, and is removed.

use std::time::Duration;

/// Validity of tokens and rotation of their keys, in whole seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenConfig {
    /// Validity of authentication tokens (`authn_token_validity_seconds`).
    pub authn_validity: Duration,
    /// Validity of authorization tokens (`authz_token_validity_seconds`).
    pub authz_validity: Duration,
    /// Interval at which keys are created, and time until a key signs (`tsk_rotation_seconds`).
    pub rotation: Duration,
}

impl Default for TokenConfig {
    fn default() -> TokenConfig {
        TokenConfig {
            authn_validity: Duration::from_secs(604_800),
            authz_validity: Duration::from_secs(300),
            rotation: Duration::from_secs(86_400),
        }
    }
}

impl TokenConfig {
    /// Returns the longest validity of a token, in seconds.
    pub(super) fn validity_s(&self) -> i64 {
        seconds(self.authn_validity.max(self.authz_validity))
    }

    /// Returns the largest number of keys that have not expired at a time: one signs, one is new, the others verify
    /// tokens that are still valid.
    pub fn keys_max(&self) -> u64 {
        let verifying = self.validity_s() / self.rotation_s().max(1);
        4 + verifying.unsigned_abs()
    }

    fn rotation_s(&self) -> i64 {
        seconds(self.rotation)
    }

    /// Returns the lifetime of a key created now: two intervals, and the validity of the last token it signs.
    pub fn lifetime(&self, now_s: i64) -> KeyLifetime {
        let expires_s = now_s.saturating_add(2 * self.rotation_s()).saturating_add(self.validity_s());
        KeyLifetime { created_s: now_s, expires_s }
    }
}

pub(super) fn seconds(duration: Duration) -> i64 {
    // A hundred thousand years, far from the largest number of seconds.
    const LONGEST_S: u64 = 3_000_000_000_000;
    duration.as_secs().min(LONGEST_S) as i64
}

/// Lifetime of a key in seconds since 1970, by the clock of the master that created it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyLifetime {
    pub created_s: i64,
    /// The last second at which a signature of the key is accepted.
    pub expires_s: i64,
}

/// Changes of the stored keys that are due.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RotationPlan {
    /// Number of the key to create.
    pub create: Option<i64>,
    /// Expired keys to remove.
    pub remove: Vec<i64>,
}

/// Returns what is due at `now_s` among `keys`, in ascending order of their numbers.
///
/// The newest key stays even if it has expired: its number tells the next one.
pub(super) fn plan(keys: &[(i64, KeyLifetime)], config: &TokenConfig, now_s: i64) -> RotationPlan {
    let Some(&(last, newest)) = keys.last() else {
        return RotationPlan { create: Some(0), remove: Vec::new() };
    };
    let aged = newest.created_s.saturating_add(config.rotation_s()) <= now_s;
    let due = aged || signing(keys, config, now_s).is_none();
    let expired = |(number, lifetime): &&(i64, KeyLifetime)| *number != last && lifetime.expires_s < now_s;
    RotationPlan {
        create: due.then(|| last.saturating_add(1)),
        remove: keys.iter().filter(expired).map(|(number, _)| *number).collect(),
    }
}

/// Returns the number of the key that signs at `now_s`: the newest active one. If none is active, the oldest one, which
/// servers have had the longest.
///
/// Only keys that outlive every token they could sign now take part.
pub(super) fn signing(keys: &[(i64, KeyLifetime)], config: &TokenConfig, now_s: i64) -> Option<i64> {
    let longest = now_s.saturating_add(config.validity_s());
    let outlives = |(_, lifetime): &&(i64, KeyLifetime)| lifetime.expires_s >= longest;
    let active =
        |(_, lifetime): &&(i64, KeyLifetime)| lifetime.created_s.saturating_add(config.rotation_s()) <= now_s;
    let newest_active = keys.iter().rev().filter(outlives).find(active);
    newest_active.or_else(|| keys.iter().find(outlives)).map(|(number, _)| *number)
}
