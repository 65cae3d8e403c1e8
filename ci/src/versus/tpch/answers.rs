//! Comparison of answers: CSV files with names of columns in the first line.
//!
//! Engines differ in types: an average is a decimal with some digits here and a binary fraction there, and sums of
//! binary fractions depend on the order. Two numbers are equal if they differ by at most 1 in the last digit of the one
//! with fewer decimal places, or by a billionth; decimals with as many places must be equal. Other cells must be equal
//! as text. Rows are compared in the order of their cells, because ties of ORDER BY may be in any order.

use std::cmp::Ordering;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Relative difference of equal numbers.
const RELATIVE: f64 = 1e-9;
/// Most decimal places of TPC-H's decimals. Numbers with as many places each, and no more, must be equal as text.
const DECIMAL_PLACES_MAX: usize = 6;
/// Decimal places of a number with an exponent: those of a binary fraction.
const PLACES_MAX: usize = 12;

/// Fails if the answers in two files differ.
pub(super) fn compare(left: &Path, right: &Path) -> Result<()> {
    let (mut one, mut other) = (read(left)?, read(right)?);
    let place = || format!("{} and {}", left.display(), right.display());
    ensure!(one.len() == other.len(), "{}: {} rows and {} rows", place(), one.len(), other.len());
    if first_difference(&one, &other).is_none() {
        return Ok(());
    }
    one.sort_by(order);
    other.sort_by(order);
    match first_difference(&one, &other) {
        None => Ok(()),
        Some((a, b)) => anyhow::bail!("{}: {} in one, {} in the other", place(), a.join(","), b.join(",")),
    }
}

type Row = Vec<String>;

/// Returns the rows of a file, without the names of the columns.
fn read(path: &Path) -> Result<Vec<Row>> {
    let place = || path.display().to_string();
    let file = File::open(path).with_context(place)?;
    let rows = csv::Reader::from_reader(file).into_records();
    rows.map(|row| Ok(row.with_context(place)?.iter().map(cell).collect())).collect()
}

/// Returns a cell without spaces at its ends: published answers have none, and some of TPC-H's texts begin with one.
fn cell(text: &str) -> String {
    text.trim().to_string()
}

fn first_difference<'a>(one: &'a [Row], other: &'a [Row]) -> Option<(&'a Row, &'a Row)> {
    let is_equal =
        |(a, b): &(&Row, &Row)| a.len() == b.len() && a.iter().zip(*b).all(|(a, b)| is_equal_cell(a, b));
    one.iter().zip(other).find(|pair| !is_equal(pair))
}

fn is_equal_cell(a: &str, b: &str) -> bool {
    if a == b {
        return true;
    }
    let (Some((a, a_places)), Some((b, b_places))) = (number(a), number(b)) else { return false };
    let difference = (a - b).abs();
    let is_rounded = a_places != b_places;
    let places = a_places.min(b_places);
    let last_digit = if places > 0 { 10f64.powi(-(places as i32)) } else { 0.0 };
    let is_binary = places > DECIMAL_PLACES_MAX;
    (is_rounded && difference <= last_digit * (1.0 + RELATIVE))
        || ((is_rounded || is_binary) && difference <= RELATIVE * a.abs())
}

/// Returns a number and its decimal places.
fn number(cell: &str) -> Option<(f64, usize)> {
    let value = cell.parse::<f64>().ok()?;
    let places = match cell.split_once('.') {
        _ if cell.contains(['e', 'E']) => PLACES_MAX,
        Some((_, places)) => places.len().min(PLACES_MAX),
        None => 0,
    };
    Some((value, places))
}

fn order(a: &Row, b: &Row) -> Ordering {
    let by_cell = a.iter().zip(b).map(|(a, b)| match (number(a), number(b)) {
        (Some(_), Some(_)) if is_equal_cell(a, b) => Ordering::Equal,
        (Some((a, _)), Some((b, _))) => a.total_cmp(&b),
        _ => a.cmp(b),
    });
    by_cell.fold(Ordering::Equal, Ordering::then)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(one: &str, other: &str) -> bool {
        let dir = tempfile::tempdir().unwrap();
        let (left, right) = (dir.path().join("left.csv"), dir.path().join("right.csv"));
        std::fs::write(&left, one).unwrap();
        std::fs::write(&right, other).unwrap();
        compare(&left, &right).is_ok()
    }

    #[test]
    fn numbers_are_equal_up_to_their_last_common_digit() {
        assert!(is_equal_cell("25.522006", "25.522005853257337"));
        assert!(is_equal_cell("0.05", "0.04998529583839761"));
        assert!(is_equal_cell("37734107.00", "37734107") && !is_equal_cell("3", "4.0"));
        assert!(!is_equal_cell("37734107.00", "37734107.01") && !is_equal_cell("1.5", "1.4"));
        assert!(
            !is_equal_cell("25.52", "25.54000001") && !is_equal_cell("a", "b") && is_equal_cell("a", "a")
        );
    }

    #[test]
    fn rows_are_equal_in_any_order() {
        assert!(compared("a,b\n1,x\n2,y\n", "A,B\n2,y\n1,x\n"));
        assert!(!compared("a,b\n1,x\n2,y\n", "A,B\n2,x\n1,y\n"));
        assert!(compared("a,b\n1, final deposits\n", "A,B\n1,final deposits\n"));
        assert!(!compared("a\n1\n", "a\n1\n1\n") && compared("a\n\"x, y\"\n", "a\n\"x, y\"\n"));
    }
}
