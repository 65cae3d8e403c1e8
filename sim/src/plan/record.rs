//! Lines of text that mean values: `word name=value name=value`, made and read by what [`records!`] and [`words!`]
//! derive from a type's declaration.

use std::fmt::{Debug, Write as _};
use std::time::Duration;

/// Why a text is no plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine(pub String);

impl std::fmt::Display for BadLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadLine {}

/// A value that fits into a line: its text has no spaces.
pub trait Field: Sized {
    fn text(&self) -> String;
    fn parse(text: &str) -> Option<Self>;
}

macro_rules! field_by_display {
    ($($type:ty),*) => {$(
        impl Field for $type {
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

/// The largest unit that gives a whole number: `3s`, `1500ms`, `20us`, `7ns`.
impl Field for Duration {
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

/// `-` for none.
impl<T: Field> Field for Option<T> {
    fn text(&self) -> String {
        self.as_ref().map_or("-".to_string(), T::text)
    }

    fn parse(text: &str) -> Option<Option<T>> {
        if text == "-" { Some(None) } else { T::parse(text).map(Some) }
    }
}

/// Separated by commas; `-` for an empty list.
impl<T: Field> Field for Vec<T> {
    fn text(&self) -> String {
        if self.is_empty() { "-".to_string() } else { self.iter().map(T::text).collect::<Vec<_>>().join(",") }
    }

    fn parse(text: &str) -> Option<Vec<T>> {
        if text == "-" { Some(Vec::new()) } else { text.split(',').map(T::parse).collect() }
    }
}

/// A value that is a line of its own, or the end of one.
pub trait Record: Sized {
    fn line(&self) -> String;
    fn parse_line(line: &str) -> Result<Self, BadLine>;
}

/// The fields of a line, taken one by one; what is left over is an error.
pub struct Fields<'a> {
    line: &'a str,
    left: Vec<(&'a str, &'a str)>,
}

impl<'a> Fields<'a> {
    /// The first word of a line and the fields behind it.
    pub fn of(line: &'a str) -> Result<(&'a str, Fields<'a>), BadLine> {
        let mut words = line.split_whitespace();
        let word = words.next().ok_or_else(|| BadLine("an empty line".to_string()))?;
        let pairs = words.map(|pair| {
            let no_pair = || BadLine(format!("{pair:?} is not name=value in {line:?}"));
            pair.split_once('=').ok_or_else(no_pair)
        });
        Ok((word, Fields { line, left: pairs.collect::<Result<_, _>>()? }))
    }

    pub fn take<T: Field>(&mut self, name: &str) -> Result<T, BadLine> {
        let at = self.left.iter().position(|(found, _)| *found == name);
        let at = at.ok_or_else(|| BadLine(format!("{name}= is missing in {:?}", self.line)))?;
        let (_, text) = self.left.remove(at);
        T::parse(text).ok_or_else(|| BadLine(format!("{name}={text} makes no sense in {:?}", self.line)))
    }

    pub fn end(self) -> Result<(), BadLine> {
        match self.left.first() {
            None => Ok(()),
            Some((name, _)) => Err(BadLine(format!("{name}= is not known in {:?}", self.line))),
        }
    }
}

/// Appends a field to a line.
pub fn put<T: Field>(line: &mut String, name: &str, value: &T) {
    write!(line, " {name}={}", value.text()).expect("a String takes everything");
}

/// Declares an enum whose variants, or a struct whose fields, are lines of a plan.
macro_rules! records {
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$variant_meta:meta])* $variant:ident = $word:literal {
            $($(#[$field_meta:meta])* $field:ident: $type:ty),* $(,)?
        }),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        $vis enum $name {
            $($(#[$variant_meta])* $variant { $($(#[$field_meta])* $field: $type),* }),*
        }

        impl $name {
            /// The words its lines begin with.
            pub const WORDS: &'static [&'static str] = &[$($word),*];

            /// The word this one's line begins with.
            pub fn word(&self) -> &'static str {
                match self {
                    $($name::$variant { .. } => $word),*
                }
            }
        }

        impl $crate::plan::record::Record for $name {
            fn line(&self) -> String {
                #[allow(unused_mut)]
                let mut line = self.word().to_string();
                match self {
                    $($name::$variant { $($field),* } => {
                        $($crate::plan::record::put(&mut line, stringify!($field), $field);)*
                    })*
                }
                line
            }

            fn parse_line(line: &str) -> Result<$name, $crate::plan::record::BadLine> {
                #[allow(unused_mut)]
                let (word, mut fields) = $crate::plan::record::Fields::of(line)?;
                let parsed = match word {
                    $($word => $name::$variant { $($field: fields.take(stringify!($field))?),* },)*
                    _ => {
                        let message = format!("{word:?} begins no {} in {line:?}", stringify!($name));
                        return Err($crate::plan::record::BadLine(message));
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
            /// The word its line begins with.
            pub const WORD: &'static str = $word;
        }

        impl $crate::plan::record::Record for $name {
            fn line(&self) -> String {
                let mut line = $word.to_string();
                $($crate::plan::record::put(&mut line, stringify!($field), &self.$field);)*
                line
            }

            fn parse_line(line: &str) -> Result<$name, $crate::plan::record::BadLine> {
                let (word, mut fields) = $crate::plan::record::Fields::of(line)?;
                if word != $word {
                    let message = format!("{:?} was expected instead of {word:?}", $word);
                    return Err($crate::plan::record::BadLine(message));
                }
                let parsed = $name { $($field: fields.take(stringify!($field))?),* };
                fields.end()?;
                Ok(parsed)
            }
        }
    };
}

/// Declares an enum of words, a [`Field`].
macro_rules! words {
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$variant_meta:meta])* $variant:ident = $word:literal),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis enum $name { $($(#[$variant_meta])* $variant),* }

        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            pub fn word(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }
        }

        impl $crate::plan::record::Field for $name {
            fn text(&self) -> String {
                self.word().to_string()
            }

            fn parse(text: &str) -> Option<$name> {
                $name::ALL.iter().copied().find(|value| value.word() == text)
            }
        }
    };
}

pub(crate) use {records, words};

#[cfg(test)]
mod tests {
    use super::*;

    fn round<T: Field + PartialEq + Debug>(value: T, text: &str) {
        assert_eq!(value.text(), text);
        assert_eq!(T::parse(text), Some(value));
    }

    #[test]
    fn fields_come_back() {
        round(Duration::from_millis(1_500), "1500ms");
        round(Duration::from_secs(3), "3s");
        round(Duration::from_nanos(1_001), "1001ns");
        round(Duration::ZERO, "0s");
        round(vec![1_u8, 2], "1,2");
        round(Vec::<u8>::new(), "-");
        round(Some(-7_i64), "-7");
        assert_eq!(Duration::parse("5"), None);
        assert_eq!(Duration::parse("99999999999999999999s"), None);
        assert_eq!(u8::parse("256"), None);
    }

    #[test]
    fn what_a_line_says_too_much_or_too_little_is_named() {
        let (_, mut fields) = Fields::of("word a=1 b=2").expect("it is one");
        assert_eq!(fields.take::<u8>("a"), Ok(1));
        assert_eq!(fields.take::<u8>("c").unwrap_err().0, r#"c= is missing in "word a=1 b=2""#);
        assert_eq!(fields.end().unwrap_err().0, r#"b= is not known in "word a=1 b=2""#);
        assert!(Fields::of("word a").is_err());
    }
}
