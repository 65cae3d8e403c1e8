//! TLC's printed values, as far as scripts need them: numbers, words, tuples, sets.

use anyhow::{Context, Result, bail, ensure};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TlaValue {
    Number(u64),
    /// A string without its quotes, a model value, TRUE or FALSE.
    Word(String),
    Tuple(Vec<TlaValue>),
    Set(Vec<TlaValue>),
}

impl TlaValue {
    pub(super) fn parse(text: &str) -> Result<TlaValue> {
        let mut rest = text.trim();
        let value = next(&mut rest).with_context(|| format!("{text:?} is no value of TLC's"))?;
        ensure!(rest.trim().is_empty(), "{rest:?} after a value of TLC's");
        Ok(value)
    }

    pub(super) fn word(&self) -> Result<&str> {
        let TlaValue::Word(word) = self else { bail!("{self:?} where a word belongs") };
        Ok(word)
    }

    /// Returns a tuple's or a set's values.
    pub(super) fn items(&self) -> Result<&[TlaValue]> {
        let (TlaValue::Tuple(items) | TlaValue::Set(items)) = self else {
            bail!("{self:?} where a tuple belongs")
        };
        Ok(items)
    }

    /// Returns the value in TLA+ syntax, with quotes around words that are not in `names`.
    pub(super) fn tla(&self, names: &[String]) -> String {
        let all =
            |items: &[TlaValue]| items.iter().map(|item| item.tla(names)).collect::<Vec<_>>().join(", ");
        match self {
            TlaValue::Number(number) => number.to_string(),
            TlaValue::Word(word) if matches!(word.as_str(), "TRUE" | "FALSE" | "Nil") => word.clone(),
            TlaValue::Word(word) if names.contains(word) => word.clone(),
            TlaValue::Word(word) => format!("\"{word}\""),
            TlaValue::Tuple(items) => format!("<<{}>>", all(items)),
            TlaValue::Set(items) => format!("{{{}}}", all(items)),
        }
    }
}

fn next(rest: &mut &str) -> Result<TlaValue> {
    *rest = rest.trim_start();
    if let Some(after) = rest.strip_prefix("<<") {
        *rest = after;
        return Ok(TlaValue::Tuple(items(rest, ">>")?));
    }
    if let Some(after) = rest.strip_prefix('{') {
        *rest = after;
        return Ok(TlaValue::Set(items(rest, "}")?));
    }
    if let Some(after) = rest.strip_prefix('"') {
        let (word, after) = after.split_once('"').context("a string without its end")?;
        *rest = after;
        return Ok(TlaValue::Word(word.to_owned()));
    }
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    ensure!(!word.is_empty(), "{rest:?} is no value");
    *rest = after;
    Ok(word.parse().map_or_else(|_| TlaValue::Word(word.to_owned()), TlaValue::Number))
}

fn items(rest: &mut &str, end: &str) -> Result<Vec<TlaValue>> {
    let mut items = Vec::new();
    loop {
        *rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix(end) {
            *rest = after;
            return Ok(items);
        }
        if !items.is_empty() {
            *rest = rest.strip_prefix(',').with_context(|| format!("no comma before {rest:?}"))?;
        }
        items.push(next(rest)?);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_and_written() {
        let text = "<< \"GrantVote\",\n   s2,\n <<s1, 1, TRUE>>, << >>, {s1, s2}, {} >>";
        let value = TlaValue::parse(text).expect("a tuple");
        let names = ["s1".to_owned(), "s2".to_owned()];
        assert_eq!(value.tla(&names), "<<\"GrantVote\", s2, <<s1, 1, TRUE>>, <<>>, {s1, s2}, {}>>");
        let items = value.items().expect("a tuple");
        assert_eq!((items.len(), items[0].word().expect("a word")), (6, "GrantVote"));
        assert_eq!(items[2].items().expect("a tuple")[1], TlaValue::Number(1));
        for bad in ["<<1, 2", "<<1 2>>", "1 2", "\"open", ""] {
            assert!(TlaValue::parse(bad).is_err(), "{bad}");
        }
        assert!(items[1].items().is_err() && items[3].word().is_err());
    }
}
