//! After a rebalance of the whole cluster, replica counts of a table differ by at most one between servers.

use std::collections::BTreeMap;

use super::Violation;

const NAME: &str = "balance";

/// `servers`: all live ones; `replicas`: a table and a server for each replica.
pub fn check(servers: &[String], replicas: &[(String, String)]) -> Vec<Violation> {
    let mut held: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for (table, server) in replicas {
        let none = || servers.iter().map(|server| (server.as_str(), 0)).collect();
        *held.entry(table).or_insert_with(none).entry(server).or_default() += 1;
    }
    let uneven = |(table, held): (&str, BTreeMap<&str, usize>)| {
        let (most, least) = (held.values().max()?, held.values().min()?);
        let what = format!("table {table} is unbalanced after a rebalance: {held:?}");
        (most - least > 1).then(|| Violation::new(NAME, what))
    };
    held.into_iter().filter_map(uneven).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(on: &[&str]) -> Vec<String> {
        let servers: Vec<String> = ["a", "b", "c"].map(String::from).to_vec();
        let replicas: Vec<_> = on.iter().map(|server| ("t".to_string(), server.to_string())).collect();
        check(&servers, &replicas).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_difference_of_one_is_even() {
        assert!(found(&[]).is_empty());
        assert!(found(&["a", "b", "c", "b"]).is_empty());
    }

    #[test]
    fn a_server_without_any_counts() {
        let reported = "balance: table t is unbalanced after a rebalance: {\"a\": 2, \"b\": 2, \"c\": 0}";
        assert_eq!(found(&["a", "b", "a", "b"]), [reported]);
    }
}
