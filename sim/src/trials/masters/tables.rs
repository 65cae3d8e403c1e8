//! The tables that the masters have told the clients of.

use std::collections::{BTreeMap, BTreeSet};

use engine::time::Instant;

/// A table that was requested.
#[derive(Debug, Clone)]
pub(super) struct Requested {
    pub(super) replicas: usize,
    pub(super) tablets: usize,
    pub(super) owner: String,
    /// Its comment; `None` once a change of it has had no reply.
    pub(super) comment: Option<String>,
    /// Time of the request.
    pub(super) sent: Instant,
}

/// A table that exists, or did.
#[derive(Debug, Clone)]
pub(super) struct KnownTable {
    pub(super) of: Requested,
    /// Names that it may have: two after a renaming without a reply.
    pub(super) names: Vec<String>,
    /// True once masters have said that all tablets run.
    pub(super) done: bool,
    /// True if its deletion was requested.
    pub(super) ending: bool,
}

#[derive(Debug, Default)]
pub(super) struct Tables {
    /// All that was ever requested, by name.
    pub(super) requested: BTreeMap<String, Requested>,
    /// Names of requests without a reply.
    pub(super) doubtful: BTreeSet<String>,
    /// Tables by id. The deletion of some has no reply.
    pub(super) known: BTreeMap<String, KnownTable>,
    /// Ids of tables that are gone.
    pub(super) gone: BTreeSet<String>,
}

impl Tables {
    /// Takes a table that a master has reported.
    pub(super) fn take(&mut self, id: String, name: &str) {
        self.doubtful.remove(name);
        if let Some(of) = self.requested.get(name).cloned() {
            let names = vec![name.to_string()];
            self.known.insert(id, KnownTable { of, names, done: false, ending: false });
        }
    }

    pub(super) fn end(&mut self, id: &str) {
        if self.known.remove(id).is_some() {
            self.gone.insert(id.to_string());
        }
    }

    /// Compares a master's list, by id, with what must be and may be there.
    pub(super) fn compare(&mut self, listed: &BTreeMap<String, String>) -> Result<(), String> {
        for (id, name) in listed {
            if self.gone.contains(id) {
                return Err(format!("{name} ({id}) is listed, though its deletion was acknowledged"));
            }
            match self.known.get_mut(id) {
                Some(table) if table.names.contains(name) => {
                    // A renaming that has happened is not undone; one without a reply may still come.
                    if table.names.last() == Some(name) {
                        table.names = vec![name.clone()];
                    }
                }
                Some(table) => return Err(format!("{id} is called {name}, not one of {:?}", table.names)),
                None if self.doubtful.contains(name) => self.take(id.clone(), name),
                None => return Err(format!("{name} ({id}) is listed, and was not requested")),
            }
        }
        let missing: Vec<String> =
            self.known.keys().filter(|id| !listed.contains_key(*id)).cloned().collect();
        for id in missing {
            let table = &self.known[&id];
            if !table.ending {
                return Err(format!("{:?} ({id}), which was acknowledged, is not listed", table.names));
            }
            self.end(&id);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> Tables {
        let owner = "ann".to_string();
        let of = Requested { replicas: 1, tablets: 1, owner, comment: None, sent: Instant(1) };
        let requested = ["a", "b"].map(|name| (name.to_string(), of.clone()));
        let mut tables = Tables { requested: requested.into(), ..Tables::default() };
        tables.take("1".to_string(), "a");
        tables
    }

    fn listed(tables: &[(&str, &str)]) -> BTreeMap<String, String> {
        tables.iter().map(|(id, name)| (id.to_string(), name.to_string())).collect()
    }

    #[test]
    fn an_acknowledged_table_must_be_listed_until_its_deletion_is_requested() {
        let mut tables = tables();
        assert_eq!(tables.compare(&listed(&[("1", "a")])), Ok(()));
        assert!(tables.compare(&listed(&[])).is_err());
        tables.known.get_mut("1").expect("it is known").ending = true;
        assert_eq!(tables.compare(&listed(&[])), Ok(()));
        assert!(tables.compare(&listed(&[("1", "a")])).is_err(), "it does not come back");
    }

    #[test]
    fn a_request_without_a_reply_may_have_happened() {
        let mut tables = tables();
        assert!(tables.compare(&listed(&[("1", "a"), ("2", "b")])).is_err());
        tables.doubtful.insert("b".to_string());
        assert_eq!(tables.compare(&listed(&[("1", "a")])), Ok(()));
        assert_eq!(tables.compare(&listed(&[("1", "a"), ("2", "b")])), Ok(()));
        assert!(tables.compare(&listed(&[("1", "a")])).is_err(), "it was there");
        tables.known.get_mut("1").expect("it is known").names.push("c".to_string());
        assert_eq!(tables.compare(&listed(&[("1", "c"), ("2", "b")])), Ok(()));
        assert!(tables.compare(&listed(&[("1", "a"), ("2", "b")])).is_err(), "it had the new name");
    }
}
