//! Flags of a server: a table of all flags, and a registry of their values.
//!
//! ```text
//! table (all flags, defaults)  ◀─ TOML file  ◀─ command line  ◀─ SetFlag RPC (only flags that may change at run time)
//! ```
//!
//! - Names are Kudu's where Kudu has the flag, so that its tools, tests and users can keep their habits. `-` and `_`
//!   are equal in names.
//! - A flag of Kudu that would grant something nyala lacks is rejected, from every source ([`Class`]).
//! - A flag of the other kind of server is rejected by a server, because it would have no effect
//!   ([`FlagSpec::refusal`]). A process that runs both kinds takes both.
//! - Code that follows changes at run time reads through [`Flags::live`].

mod failure_time;
mod replication_factor;

use engine::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::error::{Error, Result};
use nyala_common::nearest::did_you_mean;

pub use self::failure_time::{FOLLOWER_FAILED_SEC, follower_failed_after};
use self::replication_factor::{DEFAULT_NUM_REPLICAS, ReplicationFactors};
pub use super::flag_table::TABLE;
use crate::dirs::ServerKind;

/// Servers that have a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagScope {
    Both,
    Master,
    TabletServer,
}

/// Type of a flag's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagKind {
    Bool,
    /// A whole number within these bounds.
    Number {
        min: u64,
        max: u64,
    },
    /// A whole number from 0; -1 is never, whose number is the greatest.
    NumberOrNever,
    /// A number with a fraction, from 0 to `max`.
    Fraction {
        max: u32,
    },
    Text,
    /// Texts separated by commas.
    List,
    Choice(&'static [&'static str]),
}

/// Effect of a flag in nyala. Every row of the table has one, so that no flag is accepted silently without effect.
#[derive(Debug, Clone, Copy)]
pub enum Class {
    /// Has the effect that its help states. Rejects changes at run time, even forced ones, unless it is marked
    /// `runtime`: they would be shown but have no effect.
    Effective,
    /// As [`Class::Effective`], and data or access is at risk without it.
    Safeguard,
    /// Accepted without effect, because Kudu's tools and tests set it; the log and `/varz` say so. A change at run time
    /// must be forced.
    Inert,
    /// Would grant something nyala lacks. Accepts only these values, which grant nothing or state the facts.
    Only(&'static [&'static str], Missing),
}

/// A missing feature and the operator's alternative: parts of an error message.
#[derive(Debug, Clone, Copy)]
pub struct Missing {
    pub fault: &'static str,
    pub action: &'static str,
}

/// Specification of one flag.
#[derive(Debug, Clone, Copy)]
pub struct FlagSpec {
    pub name: &'static str,
    pub class: Class,
    pub kind: FlagKind,
    pub default: &'static str,
    pub servers: FlagScope,
    /// True if the flag may be changed at run time, with effect.
    pub runtime: bool,
    /// Kudu's tags: stable, advanced, evolving, experimental, hidden, unsafe.
    pub tags: &'static [&'static str],
    pub help: &'static str,
}

impl FlagSpec {
    const fn new(
        name: &'static str,
        class: Class,
        kind: FlagKind,
        default: &'static str,
        help: &'static str,
    ) -> FlagSpec {
        let (servers, tags) = (FlagScope::Both, &["advanced"]);
        FlagSpec { name, class, kind, default, servers, runtime: false, tags, help }
    }

    pub(super) const fn bool(
        name: &'static str,
        class: Class,
        default: &'static str,
        help: &'static str,
    ) -> FlagSpec {
        FlagSpec::new(name, class, FlagKind::Bool, default, help)
    }

    pub(super) const fn number(
        name: &'static str,
        class: Class,
        default: &'static str,
        help: &'static str,
    ) -> FlagSpec {
        FlagSpec::new(name, class, FlagKind::Number { min: 0, max: u64::MAX >> 1 }, default, help)
    }

    pub(super) const fn fraction(
        name: &'static str,
        class: Class,
        default: &'static str,
        help: &'static str,
    ) -> FlagSpec {
        FlagSpec::new(name, class, FlagKind::Fraction { max: u32::MAX }, default, help)
    }

    pub(super) const fn text(
        name: &'static str,
        class: Class,
        default: &'static str,
        help: &'static str,
    ) -> FlagSpec {
        FlagSpec::new(name, class, FlagKind::Text, default, help)
    }

    pub(super) const fn list(
        name: &'static str,
        class: Class,
        default: &'static str,
        help: &'static str,
    ) -> FlagSpec {
        FlagSpec::new(name, class, FlagKind::List, default, help)
    }

    pub(super) const fn choice(
        name: &'static str,
        class: Class,
        choices: &'static [&'static str],
        default: &'static str,
        help: &'static str,
    ) -> FlagSpec {
        FlagSpec::new(name, class, FlagKind::Choice(choices), default, help)
    }

    pub(super) const fn within(mut self, min: u64, max: u64) -> FlagSpec {
        self.kind = FlagKind::Number { min, max };
        self
    }

    /// Also takes -1, Kudu's word for never.
    pub(super) const fn or_never(mut self) -> FlagSpec {
        self.kind = FlagKind::NumberOrNever;
        self
    }

    /// Bounds a number with a fraction.
    pub(super) const fn at_most(mut self, max: u32) -> FlagSpec {
        self.kind = FlagKind::Fraction { max };
        self
    }

    pub(super) const fn of(mut self, servers: FlagScope) -> FlagSpec {
        self.servers = servers;
        self
    }

    pub(super) const fn runtime(mut self) -> FlagSpec {
        self.runtime = true;
        self
    }

    pub(super) const fn tagged(mut self, tags: &'static [&'static str]) -> FlagSpec {
        self.tags = tags;
        self
    }

    /// Returns the tags as Kudu's tools show them; "inert" is nyala's own.
    pub fn all_tags(&self) -> Vec<String> {
        let (runtime, inert) = (self.runtime.then_some("runtime"), (!self.has_effect()).then_some("inert"));
        self.tags.iter().copied().chain(runtime).chain(inert).map(str::to_string).collect()
    }

    /// Returns true if some value of the flag has an effect.
    pub fn has_effect(&self) -> bool {
        matches!(self.class, Class::Effective | Class::Safeguard)
    }

    /// Returns true if servers of `kind` have the flag.
    pub fn is_of(&self, kind: ServerKind) -> bool {
        match self.servers {
            FlagScope::Both => true,
            FlagScope::Master => kind == ServerKind::Master,
            FlagScope::TabletServer => kind == ServerKind::TabletServer,
        }
    }

    /// Returns the reason that a server of `kind` rejects the flag, if it is one of the other kind.
    pub fn refusal(&self, kind: ServerKind) -> Option<String> {
        let owner = match kind {
            _ if self.is_of(kind) => return None,
            ServerKind::Master => ServerKind::TabletServer,
            ServerKind::TabletServer => ServerKind::Master,
        };
        let (name, owner, kind) = (self.name, owner.name(), kind.name());
        Some(format!("{name}: not a flag of this kind of server (a flag of a {owner}, given to a {kind})"))
    }

    /// Returns an error if a stored value would grant something nyala lacks.
    fn check_granted(&self, value: &str) -> Result<(), String> {
        let Class::Only(accepted, Missing { fault, action }) = self.class else { return Ok(()) };
        if accepted.contains(&value) {
            return Ok(());
        }
        let shown = |value: &str| if value.is_empty() { "nothing".to_string() } else { value.to_string() };
        let accepted: Vec<String> = accepted.iter().map(|value| shown(value)).collect();
        Err(format!("{fault} (given {}, accepted {}); {action}", shown(value), accepted.join(" or ")))
    }

    /// Returns the value as stored, and as a number if it is one (0 or 1 for a bool).
    fn parse(&self, text: &str) -> Result<(String, u64), String> {
        match self.kind {
            FlagKind::Bool => match text.to_ascii_lowercase().as_str() {
                "true" | "t" | "yes" | "y" | "1" => Ok(("true".to_string(), 1)),
                "false" | "f" | "no" | "n" | "0" => Ok(("false".to_string(), 0)),
                _ => Err(format!("{text:?} is neither true nor false")),
            },
            FlagKind::Number { min, max } => match text.parse::<u64>() {
                Ok(number) if (min..=max).contains(&number) => Ok((number.to_string(), number)),
                Ok(number) => Err(format!("{number} is not between {min} and {max}")),
                Err(_) => Err(format!("{text:?} is not a whole number from 0")),
            },
            FlagKind::NumberOrNever => match text.parse::<i64>() {
                Ok(-1) => Ok(("-1".to_string(), u64::MAX)),
                Ok(number @ 0..) => Ok((number.to_string(), number as u64)),
                _ => Err(format!("{text:?} is neither a whole number from 0 nor -1")),
            },
            FlagKind::Fraction { max } => match text.parse::<f64>() {
                Ok(number) if (0.0..=f64::from(max)).contains(&number) => {
                    Ok((text.to_string(), number.to_bits()))
                }
                _ => Err(format!("{text:?} is not a number from 0 to {max}")),
            },
            FlagKind::Choice(choices) if !choices.contains(&text) => {
                Err(format!("{text:?} is none of {}", choices.join(", ")))
            }
            FlagKind::Text | FlagKind::List | FlagKind::Choice(_) => Ok((text.to_string(), 0)),
        }
    }
}

/// Returns the entry of [`TABLE`] for a name; `-` and `_` are equal.
pub fn spec(name: &str) -> Option<&'static FlagSpec> {
    let name = name.replace('-', "_");
    TABLE.iter().find(|spec| spec.name == name)
}

/// Returns the `Invalid` error for an unknown flag, with the nearest name.
pub fn unknown(name: &str) -> Error {
    let name = name.replace('-', "_");
    let hint = did_you_mean(TABLE.iter().map(|spec| spec.name), &name);
    Error::invalid(format!("there is no setting {name:?}{hint}"))
}

/// Reason that a flag cannot be changed at run time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlagError {
    NoSuchFlag(String),
    BadValue(String),
    NotSafe(String),
}

impl fmt::Display for FlagError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (FlagError::NoSuchFlag(why) | FlagError::BadValue(why) | FlagError::NotSafe(why)) = self;
        f.write_str(why)
    }
}

/// Flags of one server.
pub struct Flags {
    entries: Mutex<BTreeMap<&'static str, Entry>>,
}

struct Entry {
    spec: &'static FlagSpec,
    value: String,
    number: Arc<AtomicU64>,
    /// True if a value was given, even if it is the default.
    given: bool,
}

/// Current state of a flag.
#[derive(Debug, Clone)]
pub struct FlagState {
    pub spec: &'static FlagSpec,
    pub value: String,
}

impl FlagState {
    pub fn is_default(&self) -> bool {
        self.value == self.spec.default
    }
}

impl Default for Flags {
    fn default() -> Flags {
        Flags::new()
    }
}

impl Flags {
    /// Creates flags at their defaults.
    pub fn new() -> Flags {
        let entry = |spec: &'static FlagSpec| {
            let (value, number) = spec.parse(spec.default).expect("the table's defaults are valid");
            (spec.name, Entry { spec, value, number: Arc::new(AtomicU64::new(number)), given: false })
        };
        Flags { entries: Mutex::new(TABLE.iter().map(entry).collect()) }
    }

    /// Sets a value before the server starts. `Invalid` names the flag and the fault.
    pub fn set(&self, name: &str, value: &str) -> Result<()> {
        let spec = spec(name).ok_or_else(|| unknown(name))?;
        self.store(spec, value).map(drop).map_err(|why| Error::invalid(format!("{}: {why}", spec.name)))
    }

    /// Changes a value at run time and returns the old one. `force` also changes flags that have no effect at all.
    pub fn change(&self, name: &str, value: &str, force: bool) -> Result<String, FlagError> {
        let spec = spec(name).ok_or_else(|| FlagError::NoSuchFlag(unknown(name).message))?;
        let bad_value = |why| FlagError::BadValue(format!("{}: {why}", spec.name));
        let (stored, number) = spec.parse(value).map_err(bad_value)?;
        spec.check_granted(&stored).map_err(bad_value)?;
        if spec.name == DEFAULT_NUM_REPLICAS {
            self.replication_factors().check_default(number).map_err(bad_value)?;
        }
        if !spec.runtime && spec.has_effect() {
            let why = format!("{} takes effect only when the server starts; set it and restart", spec.name);
            return Err(FlagError::NotSafe(why));
        }
        if !spec.runtime && !force {
            let why = format!("{} has no effect here; force it to have it shown in spite of that", spec.name);
            return Err(FlagError::NotSafe(why));
        }
        self.store(spec, value).map_err(bad_value)
    }

    fn replication_factors(&self) -> ReplicationFactors {
        ReplicationFactors {
            min: self.number("min_num_replicas"),
            max: self.number("max_num_replicas"),
            with_even: self.bool("allow_unsafe_replication_factor"),
        }
    }

    /// Returns `Invalid` for values with which no table can be created, or none with the factor of
    /// `default_num_replicas`. If that is not given, tables may be created that name a factor.
    pub fn check_replication_factors(&self) -> Result<()> {
        let factors = self.replication_factors();
        factors.check().map_err(|why| Error::invalid(format!("min_num_replicas: {why}")))?;
        if !self.is_given(DEFAULT_NUM_REPLICAS) {
            return Ok(());
        }
        let checked = factors.check_default(self.number(DEFAULT_NUM_REPLICAS));
        checked.map_err(|why| Error::invalid(format!("{DEFAULT_NUM_REPLICAS}: {why}")))
    }

    fn store(&self, spec: &'static FlagSpec, value: &str) -> Result<String, String> {
        let (value, number) = spec.parse(value)?;
        spec.check_granted(&value)?;
        let mut entries = self.entries();
        let entry = entries.get_mut(spec.name).expect("every flag of the table has an entry");
        entry.number.store(number, Ordering::Relaxed);
        entry.given = true;
        Ok(std::mem::replace(&mut entry.value, value))
    }

    /// Returns true if a value was given, even if it is the default.
    pub fn is_given(&self, name: &str) -> bool {
        self.with(name, |entry| entry.given)
    }

    /// Returns an independent copy.
    pub fn fork(&self) -> Flags {
        let copy = |entry: &Entry| Entry {
            spec: entry.spec,
            value: entry.value.clone(),
            number: Arc::new(AtomicU64::new(entry.number.load(Ordering::Relaxed))),
            given: entry.given,
        };
        let entries = self.entries().iter().map(|(name, entry)| (*name, copy(entry))).collect();
        Flags { entries: Mutex::new(entries) }
    }

    /// Returns the flags that were given a value other than the default and have no effect.
    pub fn without_effect(&self) -> Vec<FlagState> {
        let idle = |spec: &FlagSpec| matches!(spec.class, Class::Inert) && self.is_given(spec.name);
        self.all().into_iter().filter(|current| idle(current.spec) && !current.is_default()).collect()
    }

    /// Returns all flags, by name.
    pub fn all(&self) -> Vec<FlagState> {
        let current = |entry: &Entry| FlagState { spec: entry.spec, value: entry.value.clone() };
        self.entries().values().map(current).collect()
    }

    pub fn text(&self, name: &str) -> String {
        self.with(name, |entry| entry.value.clone())
    }

    /// Returns the texts of a list, trimmed, without empty ones.
    pub fn list(&self, name: &str) -> Vec<String> {
        let text = self.text(name);
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_string).collect()
    }

    pub fn number(&self, name: &str) -> u64 {
        self.live(name).load(Ordering::Relaxed)
    }

    pub fn bool(&self, name: &str) -> bool {
        self.number(name) != 0
    }

    pub fn fraction(&self, name: &str) -> f64 {
        f64::from_bits(self.number(name))
    }

    /// Returns the number (0 or 1 for a bool) behind a flag. It follows changes, so read it at each use.
    pub fn live(&self, name: &str) -> Arc<AtomicU64> {
        self.with(name, |entry| entry.number.clone())
    }

    fn with<T>(&self, name: &str, read: impl FnOnce(&Entry) -> T) -> T {
        read(self.entries().get(name).unwrap_or_else(|| panic!("{name} is not in the table of flags")))
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<&'static str, Entry>> {
        self.entries.lock()
    }
}

/// Returns true if the value of a flag is a secret, or leads to one, and must not be shown.
pub fn is_secret(name: &str) -> bool {
    name.contains("password") || spec(name).is_some_and(|spec| spec.tags.contains(&"sensitive"))
}

#[cfg(test)]
mod tests;
