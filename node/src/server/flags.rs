//! The settings of a server by name: one table says what there is, one registry holds what is set.
//!
//! ```text
//! table (what exists, defaults)  ◀─ TOML file  ◀─ command line  ◀─ SetFlag RPC (only what may change at run time)
//! ```
//!
//! Names are Kudu's where Kudu has the setting, so that its tools, its tests and its users' habits carry over; `-`
//! and `_` are the same in them. A setting of Kudu's that promises what is not there is refused wherever it comes from
//! ([`Class`]). Code that honours a change at run time reads through [`Flags::live`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use engine::error::{Error, Result};

pub use super::flag_table::TABLE;

/// Which servers have a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Servers {
    Both,
    Master,
    TabletServer,
}

/// What a setting's text must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Bool,
    /// A whole number within these bounds.
    Number {
        min: u64,
        max: u64,
    },
    /// A number with a fraction, from 0.
    Fraction,
    Text,
    /// Texts separated by commas.
    List,
    Choice(&'static [&'static str]),
}

/// What a setting does here. Every row of the table says it, so that none can be taken in silence.
#[derive(Debug, Clone, Copy)]
pub enum Class {
    /// What its help says.
    Effective,
    /// As [`Class::Effective`], and data or access is at risk without it: a change that would be shown and not take hold
    /// is refused, also a forced one.
    Safeguard,
    /// Nothing, and nobody relies on it. Taken, as Kudu's tools and tests give it; the log and `/varz` say so.
    Inert,
    /// Promises what is not there. Only these values are taken: they promise nothing, or what is so anyway.
    Only(&'static [&'static str], Missing),
}

/// What is not there, and what to do about it: the parts of an error.
#[derive(Debug, Clone, Copy)]
pub struct Missing {
    pub fault: &'static str,
    pub action: &'static str,
}

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct FlagSpec {
    pub name: &'static str,
    pub class: Class,
    pub kind: Kind,
    pub default: &'static str,
    pub servers: Servers,
    /// May be changed while the server runs, with effect.
    pub runtime: bool,
    /// Kudu's words: stable, advanced, evolving, experimental, hidden, unsafe.
    pub tags: &'static [&'static str],
    pub help: &'static str,
}

impl FlagSpec {
    const fn new(
        name: &'static str,
        class: Class,
        kind: Kind,
        default: &'static str,
        help: &'static str,
    ) -> FlagSpec {
        let (servers, tags) = (Servers::Both, &["advanced"]);
        FlagSpec { name, class, kind, default, servers, runtime: false, tags, help }
    }

    pub(super) const fn bool(
        name: &'static str,
        class: Class,
        default: &'static str,
        help: &'static str,
    ) -> FlagSpec {
        FlagSpec::new(name, class, Kind::Bool, default, help)
    }

    pub(super) const fn number(
        name: &'static str,
        class: Class,
        default: &'static str,
        help: &'static str,
    ) -> FlagSpec {
        FlagSpec::new(name, class, Kind::Number { min: 0, max: u64::MAX >> 1 }, default, help)
    }

    pub(super) const fn fraction(
        name: &'static str,
        class: Class,
        default: &'static str,
        help: &'static str,
    ) -> FlagSpec {
        FlagSpec::new(name, class, Kind::Fraction, default, help)
    }

    pub(super) const fn text(
        name: &'static str,
        class: Class,
        default: &'static str,
        help: &'static str,
    ) -> FlagSpec {
        FlagSpec::new(name, class, Kind::Text, default, help)
    }

    pub(super) const fn list(
        name: &'static str,
        class: Class,
        default: &'static str,
        help: &'static str,
    ) -> FlagSpec {
        FlagSpec::new(name, class, Kind::List, default, help)
    }

    pub(super) const fn choice(
        name: &'static str,
        class: Class,
        choices: &'static [&'static str],
        default: &'static str,
        help: &'static str,
    ) -> FlagSpec {
        FlagSpec::new(name, class, Kind::Choice(choices), default, help)
    }

    pub(super) const fn within(mut self, min: u64, max: u64) -> FlagSpec {
        self.kind = Kind::Number { min, max };
        self
    }

    pub(super) const fn of(mut self, servers: Servers) -> FlagSpec {
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

    /// The tags as Kudu's tools show them; "inert" is none of Kudu's.
    pub fn all_tags(&self) -> Vec<String> {
        let (runtime, inert) = (self.runtime.then_some("runtime"), (!self.has_effect()).then_some("inert"));
        self.tags.iter().copied().chain(runtime).chain(inert).map(str::to_string).collect()
    }

    /// Whether setting it, to whatever may be set, changes anything.
    pub fn has_effect(&self) -> bool {
        matches!(self.class, Class::Effective | Class::Safeguard)
    }

    /// An error if a value, as it is kept, promises what is not there.
    fn keep_promise(&self, value: &str) -> Result<(), String> {
        let Class::Only(accepted, Missing { fault, action }) = self.class else { return Ok(()) };
        if accepted.contains(&value) {
            return Ok(());
        }
        let shown = |value: &str| if value.is_empty() { "nothing".to_string() } else { value.to_string() };
        let accepted: Vec<String> = accepted.iter().map(|value| shown(value)).collect();
        Err(format!("{fault} (given {}, accepted {}); {action}", shown(value), accepted.join(" or ")))
    }

    /// The value as it is kept, and as a number if it is one (a bool is 0 or 1).
    fn parse(&self, text: &str) -> Result<(String, u64), String> {
        match self.kind {
            Kind::Bool => match text.to_ascii_lowercase().as_str() {
                "true" | "t" | "yes" | "y" | "1" => Ok(("true".to_string(), 1)),
                "false" | "f" | "no" | "n" | "0" => Ok(("false".to_string(), 0)),
                _ => Err(format!("{text:?} is neither true nor false")),
            },
            Kind::Number { min, max } => match text.parse::<u64>() {
                Ok(number) if (min..=max).contains(&number) => Ok((number.to_string(), number)),
                Ok(number) => Err(format!("{number} is not between {min} and {max}")),
                Err(_) => Err(format!("{text:?} is not a whole number from 0")),
            },
            Kind::Fraction => match text.parse::<f64>() {
                Ok(number) if number >= 0.0 && number.is_finite() => Ok((text.to_string(), number.to_bits())),
                _ => Err(format!("{text:?} is not a number from 0")),
            },
            Kind::Choice(choices) if !choices.contains(&text) => {
                Err(format!("{text:?} is none of {}", choices.join(", ")))
            }
            Kind::Text | Kind::List | Kind::Choice(_) => Ok((text.to_string(), 0)),
        }
    }
}

/// The entry of [`TABLE`] for a name; `-` and `_` are the same.
pub fn spec(name: &str) -> Option<&'static FlagSpec> {
    let name = name.replace('-', "_");
    TABLE.iter().find(|spec| spec.name == name)
}

/// `Invalid`: there is no such setting; names the nearest one there is.
pub fn unknown(name: &str) -> Error {
    let name = name.replace('-', "_");
    let hint = did_you_mean(TABLE.iter().map(|spec| spec.name), &name);
    Error::invalid(format!("there is no setting {name:?}{hint}"))
}

/// Longer names than this are nobody's slip of the pen, and comparing names takes the product of their lengths.
const LIKELY_NAME_BYTES_MAX: usize = 256;

/// The end of an error about a name that does not exist: the nearest one that does.
pub fn did_you_mean<'a>(names: impl Iterator<Item = &'a str>, name: &str) -> String {
    if name.len() > LIKELY_NAME_BYTES_MAX {
        return String::new();
    }
    let likeness = |known: &str| strsim::jaro_winkler(known, name);
    let near = names.max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    near.map_or(String::new(), |near| format!("; did you mean {near:?}?"))
}

/// Why a setting cannot be changed at run time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    NoSuchFlag(String),
    BadValue(String),
    NotSafe(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Refusal::NoSuchFlag(why) | Refusal::BadValue(why) | Refusal::NotSafe(why)) = self;
        f.write_str(why)
    }
}

/// The settings of one server.
pub struct Flags {
    entries: Mutex<BTreeMap<&'static str, Entry>>,
}

struct Entry {
    spec: &'static FlagSpec,
    value: String,
    number: Arc<AtomicU64>,
    /// Somebody gave it, be it the default.
    given: bool,
}

/// A setting as it is now.
#[derive(Debug, Clone)]
pub struct Current {
    pub spec: &'static FlagSpec,
    pub value: String,
}

impl Current {
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
    /// Everything at its default.
    pub fn new() -> Flags {
        let entry = |spec: &'static FlagSpec| {
            let (value, number) = spec.parse(spec.default).expect("the table's defaults are valid");
            (spec.name, Entry { spec, value, number: Arc::new(AtomicU64::new(number)), given: false })
        };
        Flags { entries: Mutex::new(TABLE.iter().map(entry).collect()) }
    }

    /// Sets a value before the server starts; `Invalid` says which setting is wrong and how.
    pub fn set(&self, name: &str, value: &str) -> Result<()> {
        let spec = spec(name).ok_or_else(|| unknown(name))?;
        self.store(spec, value).map(drop).map_err(|why| Error::invalid(format!("{}: {why}", spec.name)))
    }

    /// Changes a value while the server runs; gives the old one. With `force` also where it has no effect, unless
    /// somebody relies on it.
    pub fn change(&self, name: &str, value: &str, force: bool) -> Result<String, Refusal> {
        let spec = spec(name).ok_or_else(|| Refusal::NoSuchFlag(unknown(name).message))?;
        let bad_value = |why| Refusal::BadValue(format!("{}: {why}", spec.name));
        spec.parse(value).and_then(|(value, _)| spec.keep_promise(&value)).map_err(bad_value)?;
        if !spec.runtime && matches!(spec.class, Class::Safeguard) {
            let why = format!("{} takes effect only when the server starts; set it and restart", spec.name);
            return Err(Refusal::NotSafe(why));
        }
        if !spec.runtime && !force {
            let why = format!(
                "{} takes effect only when the server starts; force it if you know better",
                spec.name
            );
            return Err(Refusal::NotSafe(why));
        }
        self.store(spec, value).map_err(bad_value)
    }

    fn store(&self, spec: &'static FlagSpec, value: &str) -> Result<String, String> {
        let (value, number) = spec.parse(value)?;
        spec.keep_promise(&value)?;
        let mut entries = self.entries();
        let entry = entries.get_mut(spec.name).expect("every setting of the table has an entry");
        entry.number.store(number, Ordering::Relaxed);
        entry.given = true;
        Ok(std::mem::replace(&mut entry.value, value))
    }

    /// Whether somebody gave a value, were it the default.
    pub fn is_given(&self, name: &str) -> bool {
        self.with(name, |entry| entry.given)
    }

    /// A copy that changes on its own.
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

    /// Settings that somebody gave, other than the default, and that do nothing.
    pub fn without_effect(&self) -> Vec<Current> {
        let idle = |spec: &FlagSpec| matches!(spec.class, Class::Inert) && self.is_given(spec.name);
        self.all().into_iter().filter(|current| idle(current.spec) && !current.is_default()).collect()
    }

    /// Every setting, by name.
    pub fn all(&self) -> Vec<Current> {
        let current = |entry: &Entry| Current { spec: entry.spec, value: entry.value.clone() };
        self.entries().values().map(current).collect()
    }

    pub fn text(&self, name: &str) -> String {
        self.with(name, |entry| entry.value.clone())
    }

    /// The texts of a list, trimmed, without empty ones.
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

    /// The number (or bool, as 0 or 1) behind a setting, which follows changes: read it where it is used.
    pub fn live(&self, name: &str) -> Arc<AtomicU64> {
        self.with(name, |entry| entry.number.clone())
    }

    fn with<T>(&self, name: &str, read: impl FnOnce(&Entry) -> T) -> T {
        read(self.entries().get(name).unwrap_or_else(|| panic!("{name} is not in the table of settings")))
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<&'static str, Entry>> {
        self.entries.lock().expect("nothing panics while it changes a setting")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sound() {
        let flags = Flags::new();
        let mut names: Vec<_> = TABLE.iter().map(|spec| spec.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TABLE.len(), "a name appears once");
        for current in flags.all() {
            assert!(current.is_default(), "{}: the default is written as it is kept", current.spec.name);
            assert!(!current.spec.help.is_empty());
        }
    }

    #[test]
    fn what_changes_at_run_time_has_an_effect() {
        let idle: Vec<_> = TABLE.iter().filter(|spec| spec.runtime && !spec.has_effect()).collect();
        assert!(idle.is_empty(), "{idle:?}");
    }

    #[test]
    fn an_unknown_name_gets_a_hint() {
        let error = Flags::new().set("scaner-ttl-ms", "1").unwrap_err();
        expect_test::expect![[r#"there is no setting "scaner_ttl_ms"; did you mean "scanner_ttl_ms"?"#]]
            .assert_eq(&error.message);
        let error = Flags::new().set(&"s".repeat(1 << 20), "1").unwrap_err();
        assert!(!error.message.contains("did you mean"), "nobody meant a megabyte");
    }

    #[test]
    fn values_are_checked() {
        let flags = Flags::new();
        flags.set("scanner-ttl-ms", "5000").unwrap();
        assert_eq!(flags.number("scanner_ttl_ms"), 5000);
        let error = flags.set("scanner_ttl_ms", "soon").unwrap_err();
        assert_eq!(error.message, "scanner_ttl_ms: \"soon\" is not a whole number from 0");
        assert!(flags.set("log_sync", "maybe").is_err());
        flags.set("log_sync", "NO").unwrap();
        assert!(!flags.bool("log_sync"));
    }

    #[test]
    fn only_some_change_at_run_time() {
        let flags = Flags::new();
        let live = flags.live("scanner_ttl_ms");
        assert_eq!(flags.change("scanner_ttl_ms", "7", false), Ok("60000".to_string()));
        assert_eq!(live.load(Ordering::Relaxed), 7);
        assert!(matches!(flags.change("fs_wal_dir", "/x", false), Err(Refusal::NotSafe(_))));
        assert_eq!(flags.change("fs_wal_dir", "/x", true), Ok(String::new()));
        assert!(matches!(flags.change("nothing", "7", true), Err(Refusal::NoSuchFlag(_))));
        assert!(matches!(flags.change("scanner_ttl_ms", "-7", true), Err(Refusal::BadValue(_))));
    }
}
