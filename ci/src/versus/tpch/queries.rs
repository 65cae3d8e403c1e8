//! The queries: TPC-H's 22 with their validation parameters, and those of the Kudu paper's comparison with Phoenix.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Folder of the statements.
pub(super) const FOLDER: &str = "benches/tpch";
const COUNT: usize = 22;
/// Factor of Q11 at scale 1, in ten-thousandths.
const Q11_FRACTION: f64 = 0.0001;

/// A query with its name in the report.
pub(super) struct Query {
    pub name: String,
    pub sql: String,
}

/// Returns TPC-H's queries for a scale.
pub(super) fn tpch(root: &Path, scale: f64) -> Result<Vec<Query>> {
    let query = |number: usize| {
        let path = root.join(FOLDER).join(format!("queries/q{number:02}.sql"));
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(Query { name: format!("Q{number}"), sql: text.replace("$FRACTION", &fraction(scale)) })
    };
    (1..=COUNT).map(query).collect()
}

/// Returns the factor of Q11 as a decimal number.
fn fraction(scale: f64) -> String {
    format!("{:.10}", Q11_FRACTION / scale).trim_end_matches('0').to_string()
}

/// Returns the queries of the paper's comparison with Phoenix.
pub(super) fn phoenix(root: &Path) -> Result<Vec<Query>> {
    let q1 = tpch(root, 1.0)?.swap_remove(0);
    let more = [
        ("COUNT(*)", "SELECT count(*) FROM lineitem"),
        (
            "filter on a column that is no key",
            "SELECT count(*), sum(l_extendedprice) FROM lineitem WHERE l_shipmode = 'AIR'",
        ),
        ("lookup by key", "SELECT * FROM lineitem WHERE l_orderkey = 2370 AND l_linenumber = 1"),
    ];
    let more = more.map(|(name, sql)| Query { name: name.to_string(), sql: sql.to_string() });
    Ok([q1].into_iter().chain(more).collect())
}

/// Returns a file of statements.
pub(super) fn statements(root: &Path, file: &str) -> Result<String> {
    let path = root.join(FOLDER).join(file);
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root;

    #[test]
    fn there_are_22_queries() {
        let queries = tpch(&root(), 0.01).unwrap();
        assert_eq!(queries.len(), COUNT);
        assert!(queries[10].sql.contains("* 0.01\n") && queries.iter().all(|query| !query.sql.contains('$')));
        assert_eq!(fraction(1.0), "0.0001");
    }
}
