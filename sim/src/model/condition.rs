//! Conditions of scans on cells.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use sim_plan::tables::{ColumnKind, Value};

use crate::wire::bloom::BloomFilter;

/// A condition on a cell. Comparisons never hold for NULL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    Equal(Value),
    /// From the first value to below the second.
    Range(Option<Value>, Option<Value>),
    /// This value or a lower one.
    AtMost(Value),
    /// A greater value than this one.
    Above(Value),
    In(Vec<Value>),
    /// A list of very many values, none of which is a floating point number.
    InSet(Arc<BTreeSet<Value>>),
    Null,
    NotNull,
    /// Bloom filters, which also keep what they hold by chance, and bounds as those of a range. A cell meets them all.
    Bloom {
        filters: Vec<BloomFilter>,
        low: Option<Value>,
        high: Option<Value>,
    },
}

/// Truth of a condition. `Open` if the documentation does not decide it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Truth {
    No,
    Open,
    Yes,
}

impl Truth {
    fn of(known: Option<bool>) -> Truth {
        known.map_or(Truth::Open, |holds| if holds { Truth::Yes } else { Truth::No })
    }
}

impl Condition {
    /// Returns a word for the kind of condition.
    pub fn word(&self) -> &'static str {
        match self {
            Condition::Equal(_) => "equal",
            Condition::Range(..) => "range",
            Condition::AtMost(_) => "at-most",
            Condition::Above(_) => "above",
            Condition::In(_) | Condition::InSet(_) => "in",
            Condition::Null => "null",
            Condition::NotNull => "not-null",
            Condition::Bloom { .. } => "bloom",
        }
    }

    /// Returns whether a cell meets the condition.
    pub fn keeps(&self, kind: ColumnKind, cell: &Value) -> Truth {
        let compare = |other: &Value| kind.compare(cell, other);
        match self {
            Condition::Null => Truth::of(Some(cell.is_null())),
            Condition::NotNull => Truth::of(Some(!cell.is_null())),
            _ if cell.is_null() => Truth::No,
            Condition::Equal(value) => Truth::of(compare(value).map(Ordering::is_eq)),
            Condition::Range(low, high) => within(kind, cell, low, high),
            Condition::AtMost(value) => Truth::of(compare(value).map(Ordering::is_le)),
            Condition::Above(value) => Truth::of(compare(value).map(Ordering::is_gt)),
            Condition::In(values) => {
                let each = values.iter().map(|value| Truth::of(compare(value).map(Ordering::is_eq)));
                each.max().unwrap_or(Truth::No)
            }
            Condition::InSet(values) => Truth::of(Some(values.contains(cell))),
            Condition::Bloom { filters, low, high } => {
                let bytes = kind.cell(cell);
                let holds = |filter: &BloomFilter| bytes.as_ref().map(|bytes| filter.may_hold(bytes));
                let held = filters.iter().map(|filter| Truth::of(holds(filter))).min().unwrap_or(Truth::Yes);
                held.min(within(kind, cell, low, high))
            }
        }
    }
}

/// Returns whether a cell is at or above the first bound and below the second one.
fn within(kind: ColumnKind, cell: &Value, low: &Option<Value>, high: &Option<Value>) -> Truth {
    let compare = |other: &Value| kind.compare(cell, other);
    let above = low.as_ref().map_or(Some(true), |low| compare(low).map(Ordering::is_ge));
    let below = high.as_ref().map_or(Some(true), |high| compare(high).map(Ordering::is_lt));
    Truth::of(above).min(Truth::of(below))
}
