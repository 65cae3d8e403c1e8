//! Settings of a connection: of SET, SHOW and RESET, and of the startup message.
//!
//! `statement_timeout` has an effect. The others have the value that holds here anyway, and no other is accepted.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use super::super::error::{SqlError, SqlResult, state};

/// Settings without an effect, with the values that they have or may be set to; `*` is any value.
const FIXED: [(&str, &[&str]); 14] = [
    ("application_name", &["*"]),
    ("bytea_output", &["hex"]),
    ("client_encoding", &["UTF8", "utf-8", "unicode"]),
    ("client_min_messages", &["*"]),
    ("datestyle", &["ISO", "ISO, MDY", "ISO, YMD"]),
    ("default_transaction_isolation", &["read committed"]),
    ("extra_float_digits", &["*"]),
    ("intervalstyle", &["postgres"]),
    ("max_identifier_length", &["63"]),
    ("search_path", &["public"]),
    ("server_version", &["16.0"]),
    ("standard_conforming_strings", &["on"]),
    ("timezone", &["UTC", "Etc/UTC", "GMT"]),
    ("transaction_isolation", &["read committed"]),
];

const STATEMENT_TIMEOUT: &str = "statement_timeout";
/// Units of times, and their milliseconds.
const UNITS: [(&str, f64); 6] =
    [("us", 0.001), ("ms", 1.0), ("s", 1e3), ("min", 6e4), ("h", 3.6e6), ("d", 8.64e7)];

/// Part of a connection for which a setting holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SettingScope {
    Session,
    /// Until the end of the transaction block. Outside of one it has no effect, as in Postgres.
    Block,
}

/// Settings of one connection.
#[derive(Debug)]
pub(super) struct ConnectionSettings {
    timeout: Mutex<TimeoutSetting>,
}

/// Values of `statement_timeout`; `None` is no limit.
#[derive(Debug, Clone, Copy)]
struct TimeoutSetting {
    /// Value that RESET restores.
    at_start: Option<Duration>,
    session: Option<Duration>,
    /// Values of the transaction block that runs.
    block: Option<BlockTimeout>,
}

#[derive(Debug, Clone, Copy)]
struct BlockTimeout {
    /// Value of the session at the beginning, which ROLLBACK restores.
    before: Option<Duration>,
    /// Value of SET LOCAL.
    local: Option<Option<Duration>>,
}

impl ConnectionSettings {
    /// Creates the settings of a server with this limit of statements.
    pub(super) fn new(statement_timeout: Option<Duration>) -> ConnectionSettings {
        let timeout = TimeoutSetting { at_start: statement_timeout, session: statement_timeout, block: None };
        ConnectionSettings { timeout: Mutex::new(timeout) }
    }

    fn lock(&self) -> MutexGuard<'_, TimeoutSetting> {
        self.timeout.lock().unwrap_or_else(|error| error.into_inner())
    }

    /// Returns the longest time of a statement.
    pub(super) fn statement_timeout(&self) -> Option<Duration> {
        let timeout = self.lock();
        timeout.block.and_then(|block| block.local).unwrap_or(timeout.session)
    }

    /// Sets a setting. Refuses values that have no effect.
    pub(super) fn set(&self, name: &str, value: &str, scope: SettingScope) -> SqlResult<()> {
        if name != STATEMENT_TIMEOUT {
            return check_fixed(name, value);
        }
        let mut timeout = self.lock();
        let limit = match value.eq_ignore_ascii_case("default") {
            true => timeout.at_start,
            false => parse_timeout(value)?,
        };
        let local = (scope == SettingScope::Block).then_some(limit);
        if local.is_none() {
            timeout.session = limit;
        }
        if let Some(block) = &mut timeout.block {
            block.local = local;
        }
        Ok(())
    }

    /// Sets a setting of the startup message.
    pub(super) fn set_at_start(&self, name: &str, value: &str) -> SqlResult<()> {
        self.set(name, value, SettingScope::Session)?;
        let mut timeout = self.lock();
        timeout.at_start = timeout.session;
        Ok(())
    }

    /// Applies the parameters of a startup message: `statement_timeout`, and the settings of `options`
    /// (`-c name=value`). Other parameters are the client's hints.
    pub(super) fn apply_startup(&self, parameter: impl Fn(&str) -> Option<String>) -> SqlResult<()> {
        for (name, value) in parse_options(&parameter("options").unwrap_or_default())? {
            self.set_at_start(&name, &value).map_err(|error| error.context("options"))?;
        }
        parameter(STATEMENT_TIMEOUT).map_or(Ok(()), |value| self.set_at_start(STATEMENT_TIMEOUT, &value))
    }

    /// Gives a setting, or all for `all`, the value that it had at the start.
    pub(super) fn reset(&self, name: &str) -> SqlResult<()> {
        if name == STATEMENT_TIMEOUT || name == "all" {
            return self.set(STATEMENT_TIMEOUT, "default", SettingScope::Session);
        }
        check_fixed(name, "default")
    }

    /// Returns the value that SHOW replies; `None` for an unknown setting.
    pub(super) fn value(&self, name: &str) -> Option<String> {
        if name == STATEMENT_TIMEOUT {
            return Some(timeout_text(self.statement_timeout()));
        }
        let (_, values) = FIXED.iter().find(|(known, _)| *known == name)?;
        Some(values.first().map_or("", |value| value.trim_matches('*')).to_string())
    }

    /// Begins a transaction block.
    pub(super) fn begin(&self) {
        let mut timeout = self.lock();
        timeout.block = Some(BlockTimeout { before: timeout.session, local: None });
    }

    /// Ends the block, if one runs: what it set for the session stays.
    pub(super) fn commit(&self) {
        self.lock().block = None;
    }

    /// Ends the block, if one runs: what it set is undone.
    pub(super) fn roll_back(&self) {
        let mut timeout = self.lock();
        if let Some(block) = timeout.block.take() {
            timeout.session = block.before;
        }
    }
}

/// Creates the error of what is not supported.
pub(super) fn refused(what: &str) -> SqlError {
    SqlError::with_state(state::NOT_SUPPORTED, format!("{what} is not supported; leave it out"))
}

fn check_fixed(name: &str, value: &str) -> SqlResult<()> {
    let accepted = FIXED.iter().find(|(known, _)| *known == name).map(|(_, values)| *values);
    let is_accepted = |known: &&str| *known == "*" || known.eq_ignore_ascii_case(value);
    match accepted {
        Some(values) if value.eq_ignore_ascii_case("default") || values.iter().any(is_accepted) => Ok(()),
        _ => Err(refused(&format!("SET {name} = {value}"))),
    }
}

/// Parses a time as Postgres writes it: a number of milliseconds, or with a unit. 0 is no limit.
fn parse_timeout(text: &str) -> SqlResult<Option<Duration>> {
    let invalid = || {
        let units = "use milliseconds, or a number with us, ms, s, min, h or d; 0 is no limit";
        SqlError::with_state("22023", format!("{STATEMENT_TIMEOUT}: invalid value {text:?}; {units}"))
    };
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let unit = if unit.trim().is_empty() { "ms" } else { unit.trim() };
    let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(invalid)?;
    let millis = number.parse::<f64>().map_err(|_| invalid())? * scale;
    if millis.round() > f64::from(i32::MAX) {
        return Err(invalid());
    }
    // The number is not negative, because its text has no sign.
    let millis = millis.round() as u64;
    Ok((millis > 0).then(|| Duration::from_millis(millis)))
}

/// Returns a time with the largest unit that divides it.
fn timeout_text(limit: Option<Duration>) -> String {
    let millis = limit.map_or(0, |limit| limit.as_millis());
    let whole = [("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1)];
    let unit = whole.into_iter().find(|(_, scale)| millis > 0 && millis.is_multiple_of(*scale));
    unit.map_or_else(|| "0".to_string(), |(name, scale)| format!("{}{name}", millis / scale))
}

/// Parses the `options` of a startup message: `-c name=value` and `--name=value`, with `\` before a space of a value.
fn parse_options(text: &str) -> SqlResult<Vec<(String, String)>> {
    let mut settings = Vec::new();
    let mut words = words(text).into_iter();
    while let Some(word) = words.next() {
        let setting = match (word.strip_prefix("--"), word.strip_prefix("-c")) {
            (Some(setting), _) => setting.to_string(),
            (None, Some("")) => words.next().unwrap_or_default(),
            (None, Some(setting)) => setting.to_string(),
            (None, None) => return Err(refused(&format!("options: {word}"))),
        };
        let Some((name, value)) = setting.split_once('=') else {
            return Err(refused(&format!("options: {setting} (without a value)")));
        };
        settings.push((name.replace('-', "_").to_lowercase(), value.to_string()));
    }
    Ok(settings)
}

/// Splits a text at its spaces, but not at those after a `\`.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), String::new());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => word.extend(letters.next()),
            letter if letter.is_whitespace() => words.push(std::mem::take(&mut word)),
            letter => word.push(letter),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_in_postgres() {
        let shown = |text: &str| parse_timeout(text).map(timeout_text).map_err(|error| error.sql_state());
        let right = [
            ("0", "0"),
            ("1500", "1500ms"),
            ("5s", "5s"),
            ("120 s", "2min"),
            ("1.5h", "90min"),
            ("1d", "1d"),
        ];
        for (text, expected) in right {
            assert_eq!(shown(text), Ok(expected.to_string()), "{text}");
        }
        for text in ["", "-1", "s", "1x", "1e3", "25d", "1.2.3", "never"] {
            assert_eq!(shown(text), Err("22023"), "{text}");
        }
    }

    #[test]
    fn blocks_keep_or_undo_what_they_set() {
        let settings = ConnectionSettings::new(Some(Duration::from_secs(9)));
        let set = |value: &str, scope| settings.set(STATEMENT_TIMEOUT, value, scope).expect("a right value");
        let value = || settings.value(STATEMENT_TIMEOUT).expect("a known setting");
        settings.begin();
        set("1s", SettingScope::Block);
        assert_eq!(value(), "1s");
        settings.commit();
        assert_eq!(value(), "9s");
        settings.begin();
        set("2s", SettingScope::Session);
        settings.roll_back();
        assert_eq!(value(), "9s");
        settings.begin();
        set("2s", SettingScope::Session);
        set("1s", SettingScope::Block);
        settings.commit();
        assert_eq!(value(), "2s");
        set("3s", SettingScope::Block);
        settings.roll_back();
        assert_eq!(value(), "2s", "no block runs");
        settings.reset("all").expect("a reset");
        assert_eq!(value(), "9s");
    }

    #[test]
    fn a_startup_message_sets_what_reset_restores() {
        let apply = |name: &'static str, value: &'static str| {
            let settings = ConnectionSettings::new(None);
            let parameter = |wanted: &str| (wanted == name).then(|| value.to_string());
            settings.apply_startup(parameter).map_err(|error| error.to_string())?;
            settings.reset("all").map_err(|error| error.to_string())?;
            settings.value(STATEMENT_TIMEOUT).ok_or_else(String::new)
        };
        assert_eq!(apply(STATEMENT_TIMEOUT, "5s"), Ok("5s".to_string()));
        assert_eq!(apply("options", "-c statement_timeout=7s"), Ok("7s".to_string()));
        let several = "-cextra_float_digits=3 --statement-timeout=1\\ s -c search_path=public";
        assert_eq!(apply("options", several), Ok("1s".to_string()));
        for options in ["-c geqo=off", "-c", "-B 5", "-c statement_timeout=x", "--x"] {
            assert!(apply("options", options).is_err(), "{options}");
        }
    }
}
