//! The line format of plans: `word name=value name=value`. The macros `records!` and [`words!`] derive printing and
//! parsing from the declaration of a type.
//!
//! Invariant: field names, words and the order of fields are the format. Renaming a field changes the text of plans.

use std::fmt::{Debug, Write as _};
use std::time::Duration;

/// Error of a text that is not a plan: the line and its fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError(pub String);

impl std::fmt::Display for ParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParseError {}

/// The value of a field. Its text has no spaces.
pub trait LineField: Sized {
    /// All texts, if the type has a fixed set of them; else empty.
    const WORDS: &'static [&'static str] = &[];

    fn text(&self) -> String;

    /// Parses what [`text`](LineField::text) returns. Returns None for any other text.
    fn parse(text: &str) -> Option<Self>;
}

macro_rules! field_by_display {
    ($($type:ty),*) => {$(
        impl LineField for $type {
            fn text(&self) -> String {
                self.to_string()
            }
            fn parse(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        }
    )*};
}
field_by_display!(u8, u16, u32, u64, i32, i64, usize, bool);

/// In the largest unit that gives a whole number: `3s`, `1500ms`, `20us`, `7ns`.
impl LineField for Duration {
    fn text(&self) -> String {
        let nanos = self.as_nanos();
        let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
        match units.iter().find(|(unit, _)| nanos.is_multiple_of(*unit)) {
            Some((unit, name)) => format!("{}{name}", nanos / unit),
            None => format!("{nanos}ns"),
        }
    }

    fn parse(text: &str) -> Option<Duration> {
        let digits = text.find(|digit: char| !digit.is_ascii_digit())?;
        let number: u64 = text[..digits].parse().ok()?;
        let unit = match &text[digits..] {
            "s" => 1_000_000_000,
            "ms" => 1_000_000,
            "us" => 1_000,
            "ns" => 1,
            _ => return None,
        };
        Some(Duration::from_nanos(number.checked_mul(unit)?))
    }
}

/// `-` for None.
impl<T: LineField> LineField for Option<T> {
    fn text(&self) -> String {
        self.as_ref().map_or("-".to_string(), T::text)
    }

    fn parse(text: &str) -> Option<Option<T>> {
        if text == "-" { Some(None) } else { T::parse(text).map(Some) }
    }
}

/// Values separated by commas, or `-` for an empty list.
impl<T: LineField> LineField for Vec<T> {
    fn text(&self) -> String {
        if self.is_empty() { "-".to_string() } else { self.iter().map(T::text).collect::<Vec<_>>().join(",") }
    }

    fn parse(text: &str) -> Option<Vec<T>> {
        if text == "-" { Some(Vec::new()) } else { text.split(',').map(T::parse).collect() }
    }
}

/// A value that is a line of a plan, or the end of a line.
pub trait LineRecord: Sized {
    fn line(&self) -> String;
    fn parse_line(line: &str) -> Result<Self, ParseError>;
}

/// Fields of a line. They are taken by name; a field that remains is an error.
pub struct Fields<'a> {
    line: &'a str,
    remaining: Vec<(&'a str, &'a str)>,
}

impl<'a> Fields<'a> {
    /// Splits a line into its first word and its fields.
    pub fn of(line: &'a str) -> Result<(&'a str, Fields<'a>), ParseError> {
        let mut words = line.split_whitespace();
        let word =
            words.next().ok_or_else(|| ParseError("a line is empty; a word is expected".to_string()))?;
        let pairs = words.map(|pair| {
            let not_a_pair = || ParseError(format!("{line:?}: a field is not name=value ({pair:?})"));
            pair.split_once('=').ok_or_else(not_a_pair)
        });
        Ok((word, Fields { line, remaining: pairs.collect::<Result<_, _>>()? }))
    }

    /// Removes the field `name` and returns its value.
    pub fn take<T: LineField>(&mut self, name: &str) -> Result<T, ParseError> {
        let line = self.line;
        let index = self.remaining.iter().position(|(found, _)| *found == name);
        let index = index.ok_or_else(|| ParseError(format!("{line:?}: field {name} is missing")))?;
        let (_, text) = self.remaining.remove(index);
        T::parse(text).ok_or_else(|| ParseError(format!("{line:?}: field {name} is invalid ({text})")))
    }

    /// Fails if a field remains.
    pub fn end(self) -> Result<(), ParseError> {
        match self.remaining.first() {
            None => Ok(()),
            Some((name, _)) => Err(ParseError(format!("{:?}: field {name} is unknown", self.line))),
        }
    }
}

/// Appends a field to a line.
pub fn put<T: LineField>(line: &mut String, name: &str, value: &T) {
    write!(line, " {name}={}", value.text()).expect("writing to a String does not fail");
}

/// Declares a line of a plan: a struct with the word of its line, or an enum whose variants are lines. An enum also
/// gets an enum of its kinds, `as KIND`: the variants without their fields.
macro_rules! records {
    ($(#[$meta:meta])* $vis:vis enum $name:ident as $(#[$kind_meta:meta])* $kind:ident {
        $($(#[$variant_meta:meta])* $variant:ident = $word:literal {
            $($(#[$field_meta:meta])* $field:ident: $type:ty),* $(,)?
        }),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        $vis enum $name {
            $($(#[$variant_meta])* $variant { $($(#[$field_meta])* $field: $type),* }),*
        }

        $crate::line_format::words! {
            $(#[$kind_meta])*
            $vis enum $kind { $($(#[$variant_meta])* $variant = $word),* }
        }

        impl $name {
            /// The words that its lines begin with.
            pub const WORDS: &'static [&'static str] = &[$($word),*];

            pub fn kind(&self) -> $kind {
                match self {
                    $($name::$variant { .. } => $kind::$variant),*
                }
            }

            /// The word that the line of this value begins with.
            pub fn word(&self) -> &'static str {
                self.kind().word()
            }
        }

        impl $crate::line_format::LineRecord for $name {
            fn line(&self) -> String {
                #[allow(unused_mut)]
                let mut line = self.word().to_string();
                match self {
                    $($name::$variant { $($field),* } => {
                        $($crate::line_format::put(&mut line, stringify!($field), $field);)*
                    })*
                }
                line
            }

            fn parse_line(line: &str) -> Result<$name, $crate::line_format::ParseError> {
                #[allow(unused_mut)]
                let (word, mut fields) = $crate::line_format::Fields::of(line)?;
                let parsed = match word {
                    $($word => $name::$variant { $($field: fields.take(stringify!($field))?),* },)*
                    _ => {
                        let message = format!("{line:?}: {} is unknown ({word})", stringify!($name));
                        return Err($crate::line_format::ParseError(message));
                    }
                };
                fields.end()?;
                Ok(parsed)
            }
        }
    };
    ($(#[$meta:meta])* $vis:vis struct $name:ident = $word:literal {
        $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $type),*
        }

        impl $name {
            /// The word that its line begins with.
            pub const WORD: &'static str = $word;
        }

        impl $crate::line_format::LineRecord for $name {
            fn line(&self) -> String {
                let mut line = $word.to_string();
                $($crate::line_format::put(&mut line, stringify!($field), &self.$field);)*
                line
            }

            fn parse_line(line: &str) -> Result<$name, $crate::line_format::ParseError> {
                let (word, mut fields) = $crate::line_format::Fields::of(line)?;
                if word != $word {
                    let message = format!("{line:?}: the first word is not {} ({word})", $word);
                    return Err($crate::line_format::ParseError(message));
                }
                let parsed = $name { $($field: fields.take(stringify!($field))?),* };
                fields.end()?;
                Ok(parsed)
            }
        }
    };
}

/// Declares an enum whose values are words, each a [`LineField`].
#[macro_export]
macro_rules! words {
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$variant_meta:meta])* $variant:ident = $word:literal),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis enum $name { $($(#[$variant_meta])* $variant),* }

        impl $name {
            /// All values, in the order of the declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            pub fn word(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }
        }

        impl $crate::line_format::LineField for $name {
            const WORDS: &'static [&'static str] = &[$($word),*];

            fn text(&self) -> String {
                self.word().to_string()
            }

            fn parse(text: &str) -> Option<$name> {
                $name::ALL.iter().copied().find(|value| value.word() == text)
            }
        }
    };
}

pub(crate) use records;
pub use words;

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_round_trip<T: LineField + PartialEq + Debug>(value: T, text: &str) {
        assert_eq!(value.text(), text);
        assert_eq!(T::parse(text), Some(value));
    }

    #[test]
    fn a_field_is_parsed_from_its_own_text() {
        assert_round_trip(Duration::from_millis(1_500), "1500ms");
        assert_round_trip(Duration::from_secs(3), "3s");
        assert_round_trip(Duration::from_nanos(1_001), "1001ns");
        assert_round_trip(Duration::ZERO, "0s");
        assert_round_trip(vec![1_u8, 2], "1,2");
        assert_round_trip(Vec::<u8>::new(), "-");
        assert_round_trip(Some(-7_i64), "-7");
        assert_eq!(Duration::parse("5"), None);
        assert_eq!(Duration::parse("99999999999999999999s"), None);
        assert_eq!(u8::parse("256"), None);
    }

    #[test]
    fn a_missing_or_unknown_field_is_named_in_the_error() {
        let (_, mut fields) = Fields::of("word a=1 b=2").expect("the line is valid");
        assert_eq!(fields.take::<u8>("a"), Ok(1));
        assert_eq!(fields.take::<u8>("c").unwrap_err().0, r#""word a=1 b=2": field c is missing"#);
        assert_eq!(fields.end().unwrap_err().0, r#""word a=1 b=2": field b is unknown"#);
        assert!(Fields::of("word a").is_err());
    }
}
