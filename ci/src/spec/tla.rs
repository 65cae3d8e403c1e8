//! The values that TLC prints, as far as scripts need them: numbers, words, tuples, sets.

use anyhow::{Context, Result, bail, ensure};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Number(u64),
    /// A string without its quotes, a model value, TRUE or FALSE.
    Word(String),
    Tuple(Vec<Value>),
    Set(Vec<Value>),
}

impl Value {
    pub fn parse(text: &str) -> Result<Value> {
        let mut rest = text.trim();
        let value = next(&mut rest).with_context(|| format!("{text:?} is no value of TLC's"))?;
        ensure!(rest.trim().is_empty(), "{rest:?} after a value of TLC's");
        Ok(value)
    }

    pub fn word(&self) -> Result<&str> {
        let Value::Word(word) = self else { bail!("{self:?} where a word belongs") };
        Ok(word)
    }

    /// A tuple's values or a set's.
    pub fn items(&self) -> Result<&[Value]> {
        let (Value::Tuple(items) | Value::Set(items)) = self else { bail!("{self:?} where a tuple belongs") };
        Ok(items)
    }

    /// As TLA+ has it, with quotes around the words that are not in `names`.
    pub fn tla(&self, names: &[String]) -> String {
        let all = |items: &[Value]| items.iter().map(|item| item.tla(names)).collect::<Vec<_>>().join(", ");
        match self {
            Value::Number(number) => number.to_string(),
            Value::Word(word) if matches!(word.as_str(), "TRUE" | "FALSE" | "Nil") => word.clone(),
            Value::Word(word) if names.contains(word) => word.clone(),
            Value::Word(word) => format!("\"{word}\""),
            Value::Tuple(items) => format!("<<{}>>", all(items)),
            Value::Set(items) => format!("{{{}}}", all(items)),
        }
    }
}

fn next(rest: &mut &str) -> Result<Value> {
    *rest = rest.trim_start();
    if let Some(after) = rest.strip_prefix("<<") {
        *rest = after;
        return Ok(Value::Tuple(items(rest, ">>")?));
    }
    if let Some(after) = rest.strip_prefix('{') {
        *rest = after;
        return Ok(Value::Set(items(rest, "}")?));
    }
    if let Some(after) = rest.strip_prefix('"') {
        let (word, after) = after.split_once('"').context("a string without its end")?;
        *rest = after;
        return Ok(Value::Word(word.to_owned()));
    }
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    ensure!(!word.is_empty(), "{rest:?} is no value");
    *rest = after;
    Ok(word.parse().map_or_else(|_| Value::Word(word.to_owned()), Value::Number))
}

fn items(rest: &mut &str, end: &str) -> Result<Vec<Value>> {
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
        let value = Value::parse(text).expect("a tuple");
        let names = ["s1".to_owned(), "s2".to_owned()];
        assert_eq!(value.tla(&names), "<<\"GrantVote\", s2, <<s1, 1, TRUE>>, <<>>, {s1, s2}, {}>>");
        let items = value.items().expect("a tuple");
        assert_eq!((items.len(), items[0].word().expect("a word")), (6, "GrantVote"));
        assert_eq!(items[2].items().expect("a tuple")[1], Value::Number(1));
        for bad in ["<<1, 2", "<<1 2>>", "1 2", "\"open", ""] {
            assert!(Value::parse(bad).is_err(), "{bad}");
        }
        assert!(items[1].items().is_err() && items[3].word().is_err());
    }
}
