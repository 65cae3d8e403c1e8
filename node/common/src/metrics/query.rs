//! Query of a metrics page: which entities and metrics, how merged, and in which form.

use super::definition::MetricLevel;
use super::snapshot::Entity;

/// Parsed query of `/metrics` or `/metrics_prometheus`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetricQuery {
    /// Kinds of entities; substrings, without regard to case, as the next two. Empty for all.
    types: Vec<String>,
    ids: Vec<String>,
    metrics: Vec<String>,
    /// Pairs of an attribute and a part of its value; one must match.
    attributes: Vec<(String, String)>,
    level: Option<MetricLevel>,
    pub merge: Vec<MergeRule>,
    pub include_schema: bool,
    pub include_raw_histograms: bool,
    pub compact: bool,
}

/// Merges all entities of a kind that have the same value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeRule {
    pub kind: String,
    /// Kind of the merged entities.
    pub merged_kind: String,
    pub attribute: String,
}

impl MetricQuery {
    /// Parses the part of a URL after `?`; the error says what was wrong.
    pub fn parse(query: &str) -> Result<MetricQuery, String> {
        let mut parsed = MetricQuery::default();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, "1"));
            parsed.set(&decode(name)?, &decode(value)?)?;
        }
        Ok(parsed)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "types" => self.types = list(value),
            "ids" => self.ids = list(value),
            "metrics" => self.metrics = list(value),
            "attributes" => self.attributes = pairs(value)?,
            "level" => {
                let level = MetricLevel::parse(value)
                    .ok_or_else(|| format!("level: unknown ({value:?}, one of debug, info, warn)"))?;
                self.level = Some(level);
            }
            "merge_rules" => self.merge = value.split(',').map(merge_rule).collect::<Result<_, _>>()?,
            "include_schema" => self.include_schema = is_true(value),
            "include_raw_histograms" => self.include_raw_histograms = is_true(value),
            "compact" => self.compact = is_true(value),
            // Kudu ignores what it does not know, and scrapers send parameters of their own.
            _ => {}
        }
        Ok(())
    }

    /// Sets the least level of shown metrics unless the query has one.
    #[must_use]
    pub fn or_level(mut self, level: MetricLevel) -> MetricQuery {
        self.level = self.level.or(Some(level));
        self
    }

    /// Removes what is not asked for; an entity without metrics is removed too.
    pub fn retain(&self, entities: &mut Vec<Entity>) {
        entities.retain(|entity| {
            matches(&self.types, entity.kind.name())
                && matches(&self.ids, &entity.id)
                && self.has_attribute(entity)
        });
        for entity in entities.iter_mut() {
            entity.samples.retain(|sample| {
                self.level.is_none_or(|level| sample.def.level >= level)
                    && (self.metrics.is_empty() || matches(&self.metrics, &sample.name()))
            });
        }
        entities.retain(|entity| !entity.samples.is_empty());
    }

    fn has_attribute(&self, entity: &Entity) -> bool {
        let has = |(name, part): &(String, String)| {
            entity.attributes.get(name.as_str()).is_some_and(|value| contains(value, part))
        };
        self.attributes.is_empty() || self.attributes.iter().any(has)
    }
}

fn matches(parts: &[String], text: &str) -> bool {
    parts.is_empty() || parts.iter().any(|part| contains(text, part))
}

fn contains(text: &str, part: &str) -> bool {
    text.to_lowercase().contains(&part.to_lowercase())
}

fn list(value: &str) -> Vec<String> {
    value.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn pairs(value: &str) -> Result<Vec<(String, String)>, String> {
    let parts: Vec<&str> = value.split(',').collect();
    if parts.len() % 2 == 1 {
        return Err(format!("attributes: odd number of parts ({}); give name,value pairs", parts.len()));
    }
    Ok(parts.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect())
}

fn merge_rule(text: &str) -> Result<MergeRule, String> {
    let parts: Vec<&str> = text.split('|').collect();
    let [kind, merged_kind, attribute] = parts[..] else {
        return Err(format!("merge_rules: malformed ({text:?}); give kind|merged kind|attribute"));
    };
    Ok(MergeRule {
        kind: kind.to_owned(),
        merged_kind: merged_kind.to_owned(),
        attribute: attribute.to_owned(),
    })
}

fn is_true(value: &str) -> bool {
    matches!(value, "1" | "true")
}

/// Decodes `%20` and `+` in the query of an address.
pub fn decode(text: &str) -> Result<String, String> {
    let malformed = || format!("query: malformed escape ({text:?})");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        match first {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
                let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                bytes.push(byte.ok_or_else(malformed)?);
                rest = &rest[2..];
            }
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).map_err(|_| malformed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::definition::EntityKind;
    use crate::metrics::table;

    fn tablets() -> Vec<Entity> {
        let mut entities = Vec::new();
        for (id, table) in [("aa01", "orders"), ("bb02", "Lineitem")] {
            let mut entity = Entity::new(EntityKind::Tablet, id);
            entity.attribute("table_name", table);
            entity.counter(&table::ROWS_INSERTED, 3);
            entity.gauge(&table::RAFT_TERM, 1);
            entities.push(entity);
        }
        entities
    }

    fn shown(query: &str) -> String {
        let mut entities = tablets();
        MetricQuery::parse(query).unwrap().retain(&mut entities);
        let show = |entity: &Entity| {
            let names: Vec<String> = entity.samples.iter().map(|sample| sample.name()).collect();
            format!("{}[{}]", entity.id, names.join(" "))
        };
        entities.iter().map(show).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn filters_are_substrings_without_regard_to_case() {
        assert_eq!(shown("ids=BB"), "bb02[rows_inserted raft_term]");
        assert_eq!(shown("types=server,TAB&metrics=rows"), "aa01[rows_inserted] bb02[rows_inserted]");
        assert_eq!(shown("attributes=table_name,line"), "bb02[rows_inserted raft_term]");
        assert_eq!(shown("level=info&ids=aa"), "aa01[rows_inserted]");
        assert_eq!(shown("level=warn"), "");
        assert_eq!(shown("attributes=table%5Fname%2Cline%49tem&x=y"), "bb02[rows_inserted raft_term]");
    }

    #[test]
    fn malformed_queries_are_errors() {
        for (query, text) in [
            ("attributes=a,b,c", "attributes: odd number of parts (3); give name,value pairs"),
            ("level=loud", "level: unknown (\"loud\", one of debug, info, warn)"),
            ("merge_rules=a|b", "merge_rules: malformed (\"a|b\"); give kind|merged kind|attribute"),
            ("ids=%zz", "query: malformed escape (\"%zz\")"),
            ("ids=%e", "query: malformed escape (\"%e\")"),
        ] {
            assert_eq!(MetricQuery::parse(query).unwrap_err(), text);
        }
    }
}
