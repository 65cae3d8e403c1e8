//! Prepared statements and portals of a connection, within limits.
//!
//! ```text
//!   Parse ── text, types ──┐                   ┌─ limits of the connection (statement_limits)
//!   Bind  ── values ───────┴─ StatementMemory ─┤
//!             dropped by pgwire's store ──► free └─ memory for statements (memory)
//! ```
//!
//! - pgwire's store keeps statements and portals by name, without a limit. What is put there has its memory with it.
//! - A statement is kept as its text, because the memory of a parsed one is not known.
//! - Names are counted: of statements and portals without one, the store keeps one each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use pgwire::api::Type;
use pgwire::api::portal::Portal;
use pgwire::api::store::PortalStore;
use pgwire::messages::extendedquery::Bind;

use super::super::error::SqlResult;
use super::super::script::{self, Parsed};
use super::commands::StatementStore;
use super::statement_limits::StatementLimits;

/// A prepared statement, alone or in a portal.
#[derive(Debug, Clone)]
pub(super) struct Prepared {
    statement: Arc<PreparedStatement>,
    /// Memory of the portal's values; `None` for a statement alone.
    _values: Option<Arc<StatementMemory>>,
}

#[derive(Debug)]
struct PreparedStatement {
    /// Text of the statement; may be empty.
    sql: String,
    /// Types of the parameters.
    types: Vec<Type>,
    _memory: StatementMemory,
}

impl Prepared {
    pub(super) fn types(&self) -> &[Type] {
        &self.statement.types
    }

    /// Parses the statement. Returns `None` if its text is empty.
    pub(super) fn parsed(&self) -> SqlResult<Option<Parsed>> {
        Ok(script::parse(&self.statement.sql)?.pop())
    }
}

/// Prepared statements and portals of one connection.
#[derive(Debug)]
pub(super) struct ConnectionStatements {
    limits: StatementLimits,
    counted: Mutex<CountedStatements>,
}

/// Kind of object that a connection counts.
#[derive(Debug, Clone, Copy)]
enum CountedKind {
    Statement,
    Portal,
}

impl CountedKind {
    fn plural(self) -> &'static str {
        match self {
            CountedKind::Statement => "prepared statements",
            CountedKind::Portal => "portals",
        }
    }
}

/// Names in use, with the number of statements or portals of each: more than one while a replaced statement or
/// portal is not dropped yet. Portals keep their statements.
type NameCounts = BTreeMap<String, usize>;

#[derive(Debug, Default)]
struct CountedStatements {
    statements: NameCounts,
    portals: NameCounts,
    bytes: usize,
}

impl CountedStatements {
    fn names(&mut self, kind: CountedKind) -> &mut NameCounts {
        match kind {
            CountedKind::Statement => &mut self.statements,
            CountedKind::Portal => &mut self.portals,
        }
    }

    fn add_name(&mut self, kind: CountedKind, name: &str) {
        *self.names(kind).entry(name.to_owned()).or_default() += 1;
    }

    fn remove_name(&mut self, kind: CountedKind, name: &str) {
        let names = self.names(kind);
        let Some(count) = names.get_mut(name) else { return };
        *count -= 1;
        if *count == 0 {
            names.remove(name);
        }
    }
}

/// Memory of a statement or of the values of a portal, until it is dropped.
#[derive(Debug)]
struct StatementMemory {
    statements: Arc<ConnectionStatements>,
    kind: CountedKind,
    name: Option<String>,
    reserved: MemoryReservation,
}

impl Drop for StatementMemory {
    fn drop(&mut self) {
        let mut counted = self.statements.lock();
        counted.bytes -= self.reserved.size();
        if let Some(name) = &self.name {
            counted.remove_name(self.kind, name);
        }
    }
}

impl ConnectionStatements {
    pub(super) fn new(limits: StatementLimits) -> ConnectionStatements {
        ConnectionStatements { limits, counted: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, CountedStatements> {
        self.counted.lock().unwrap_or_else(|error| error.into_inner())
    }

    /// Counts a statement under the name that its client gave it, if any.
    pub(super) fn prepare(
        self: &Arc<Self>,
        pool: &Arc<dyn MemoryPool>,
        name: Option<&str>,
        sql: &str,
        types: Vec<Type>,
    ) -> SqlResult<Prepared> {
        let bytes = size_of::<PreparedStatement>() + sql.len() + size_of_val(&types[..]);
        let memory = self.reserve(pool, CountedKind::Statement, name, bytes)?;
        let statement = PreparedStatement { sql: sql.to_string(), types, _memory: memory };
        Ok(Prepared { statement: Arc::new(statement), _values: None })
    }

    /// Counts a portal of a statement. Returns the statement for the portal.
    pub(super) fn bind(
        self: &Arc<Self>,
        pool: &Arc<dyn MemoryPool>,
        prepared: &Prepared,
        bind: &Bind,
    ) -> SqlResult<Prepared> {
        let values: usize = bind.parameters.iter().flatten().map(Bytes::len).sum();
        let formats =
            size_of_val(&bind.parameter_format_codes[..]) + size_of_val(&bind.result_column_format_codes[..]);
        let fixed = size_of::<Portal<Prepared>>() + size_of_val(&bind.parameters[..]);
        let name = bind.portal_name.as_deref();
        let memory = self.reserve(pool, CountedKind::Portal, name, fixed + formats + values)?;
        Ok(Prepared { statement: prepared.statement.clone(), _values: Some(Arc::new(memory)) })
    }

    /// Reserves `bytes` and those of the name. A name that is in use takes no further place.
    fn reserve(
        self: &Arc<Self>,
        pool: &Arc<dyn MemoryPool>,
        kind: CountedKind,
        name: Option<&str>,
        bytes: usize,
    ) -> SqlResult<StatementMemory> {
        let reserved = MemoryConsumer::new("prepared statements").register(pool);
        // The store has the name twice, and so have the counts.
        let bytes = bytes + 4 * name.map_or(0, str::len);
        let client = "the connection";
        let mut counted = self.lock();
        let names = counted.names(kind);
        if name.is_some_and(|name| !names.contains_key(name)) {
            self.limits.check_count(client, kind.plural(), names.len())?;
        }
        self.limits.check_bytes(client, counted.bytes + bytes)?;
        reserved.try_grow(bytes)?;
        counted.bytes += bytes;
        if let Some(name) = name {
            counted.add_name(kind, name);
        }
        Ok(StatementMemory { statements: self.clone(), kind, name: name.map(str::to_owned), reserved })
    }

    /// Returns the names of the statements that have one.
    fn statement_names(&self) -> Vec<String> {
        self.lock().statements.keys().cloned().collect()
    }
}

/// Store of a connection, with the names of its statements, which the store does not tell.
pub(super) struct NamedStatements<'a, S> {
    pub(super) store: &'a S,
    pub(super) statements: &'a ConnectionStatements,
}

impl<S: PortalStore> StatementStore for NamedStatements<'_, S> {
    fn remove(&self, name: &str) {
        self.store.rm_statement(name);
    }

    fn remove_all(&self) {
        self.store.clear_portals();
        self.statements.statement_names().iter().for_each(|name| self.store.rm_statement(name));
    }
}

#[cfg(test)]
mod tests {
    use datafusion::execution::memory_pool::GreedyMemoryPool;
    use pgwire::api::DEFAULT_NAME;
    use pgwire::api::stmt::StoredStatement;
    use pgwire::api::store::MemPortalStore;

    use super::super::super::error::state;
    use super::*;

    /// Memory of a statement or a portal of the tests without its text, name and values.
    const FIXED_MAX: usize = 1000;

    /// Returns a name as pgwire decodes it.
    fn decoded(name: &str) -> Option<&str> {
        Some(name).filter(|name| !name.is_empty())
    }

    /// Returns the name under which pgwire's store keeps a statement.
    fn stored(name: &str) -> &str {
        decoded(name).unwrap_or(DEFAULT_NAME)
    }

    struct World {
        pool: Arc<dyn MemoryPool>,
        statements: Arc<ConnectionStatements>,
        store: MemPortalStore<Prepared>,
    }

    impl World {
        fn new(limits: StatementLimits) -> World {
            let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 20));
            let statements = Arc::new(ConnectionStatements::new(limits));
            World { pool, statements, store: MemPortalStore::new() }
        }

        /// Prepares a statement as the message Parse does.
        fn prepare(&self, name: &str, sql: &str) -> SqlResult<()> {
            let prepared = self.statements.prepare(&self.pool, decoded(name), sql, vec![Type::TEXT])?;
            let statement = StoredStatement::new(stored(name).to_string(), prepared, Vec::new());
            self.store.put_statement(Arc::new(statement));
            Ok(())
        }

        /// Binds a value to a statement as the message Bind does.
        fn bind(&self, portal: &str, statement: &str, value: &str) -> SqlResult<()> {
            let found = self.store.get_statement(stored(statement)).expect("a known statement");
            let prepared = found.value().expect("a statement").statement.clone();
            let value = Some(Bytes::copy_from_slice(value.as_bytes()));
            let portal = decoded(portal).map(str::to_string);
            let bind = Bind::new(portal, None, Vec::new(), vec![value], Vec::new());
            let bound = self.statements.bind(&self.pool, &prepared, &bind)?;
            let bound = StoredStatement::new(String::new(), bound, Vec::new());
            let portal = Portal::try_new(&bind, Arc::new(bound)).expect("a portal");
            self.store.put_portal(Arc::new(portal));
            Ok(())
        }

        fn bytes(&self) -> usize {
            let bytes = self.statements.lock().bytes;
            assert_eq!(self.pool.reserved(), bytes, "the memory for statements is that of the connection");
            bytes
        }
    }

    #[test]
    fn names_are_counted_until_the_store_drops_them() {
        let world = World::new(StatementLimits { count_max: 2, bytes_max: 1 << 20 });
        for name in ["a", "b"] {
            world.prepare(name, "SELECT $1").expect("two statements");
            world.bind(name, "a", "x").expect("two portals of the first");
        }
        let refused = world.prepare("c", "SELECT $1").expect_err("the third statement");
        assert_eq!(refused.to_string(), "the connection has 2 prepared statements; close some");
        assert_eq!(refused.sql_state(), state::OVERLOADED);
        let refused = world.bind("c", "a", "x").expect_err("the third portal");
        assert_eq!(refused.to_string(), "the connection has 2 portals; close some");
        // The statement of a portal stays as long as the portal.
        world.store.rm_statement("a");
        world.prepare("c", "SELECT $1").expect_err("the third statement");
        world.store.clear_portals();
        world.prepare("c", "SELECT $1").expect("one is dropped");
        world.store.rm_statement("b");
        world.store.rm_statement("c");
        assert_eq!(world.bytes(), 0);
    }

    #[test]
    fn a_connection_with_all_its_names_replaces_them_and_works_without_names() {
        let world = World::new(StatementLimits { count_max: 1, bytes_max: 1 << 20 });
        for attempt in ["at first", "in place of those before"] {
            for name in ["a", ""] {
                world.prepare(name, "SELECT $1").expect(attempt);
                world.bind(name, "a", "x").expect(attempt);
            }
        }
        world.prepare("b", "SELECT $1").expect_err("the second name");
        world.bind("b", "a", "x").expect_err("the second name");
        NamedStatements { store: &world.store, statements: &world.statements }.remove_all();
        world.prepare("b", "SELECT $1").expect("all statements of the first are dropped");
        world.bind("b", "b", "x").expect("all portals of the first are dropped");
    }

    #[test]
    fn texts_names_and_values_count() {
        let long = "n".repeat(10_000);
        let world = World::new(StatementLimits { count_max: 10, bytes_max: 50_000 });
        world.prepare("s", &long).expect("a long text");
        assert!((10_000..10_000 + FIXED_MAX).contains(&world.bytes()));
        world.prepare("s", "SELECT $1").expect("in place of the long text");
        assert!(world.bytes() < FIXED_MAX);
        world.prepare(&long, "").expect("a long name");
        assert!((40_000..40_000 + FIXED_MAX).contains(&world.bytes()), "four copies");
        world.bind("p", "s", &long[..8_000]).expect("a long value");
        let refused = world.bind("q", "s", &long[..8_000]).expect_err("too much together").to_string();
        let expected = "the connection: prepared statements and their parameters of ";
        assert!(refused.starts_with(expected), "{refused}");
        assert!(refused.ends_with(" bytes (limit 50000); close some statements"), "{refused}");
        world.bind("q", "s", "").expect("a short value");
    }

    #[test]
    fn all_statements_with_a_name_are_removed() {
        let world = World::new(StatementLimits::new(1 << 20));
        for name in ["", "a", "b"] {
            world.prepare(name, "SELECT $1").expect("few statements");
        }
        world.prepare("a", "SELECT $1, 2").expect("in place of the other");
        world.bind("p", "b", "x").expect("a portal");
        NamedStatements { store: &world.store, statements: &world.statements }.remove_all();
        let is_known = |name| world.store.get_statement(stored(name)).is_some();
        assert_eq!([is_known(""), is_known("a"), is_known("b")], [true, false, false], "as in Postgres");
        assert!(world.store.get_portal("p").is_none());
        world.store.rm_statement(DEFAULT_NAME);
        assert_eq!(world.bytes(), 0);
    }
}
