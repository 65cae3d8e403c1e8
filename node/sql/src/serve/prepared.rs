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

#[derive(Debug, Default)]
struct CountedStatements {
    next: u64,
    /// Names of the statements by number; empty for portals and the statement without a name.
    names: BTreeMap<u64, String>,
    bytes: usize,
}

/// Memory of a statement or of the values of a portal, until it is dropped.
#[derive(Debug)]
struct StatementMemory {
    statements: Arc<ConnectionStatements>,
    number: u64,
    reserved: MemoryReservation,
}

impl Drop for StatementMemory {
    fn drop(&mut self) {
        let mut counted = self.statements.lock();
        counted.names.remove(&self.number);
        counted.bytes -= self.reserved.size();
    }
}

impl ConnectionStatements {
    pub(super) fn new(limits: StatementLimits) -> ConnectionStatements {
        ConnectionStatements { limits, counted: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, CountedStatements> {
        self.counted.lock().unwrap_or_else(|error| error.into_inner())
    }

    /// Counts a statement under its name.
    pub(super) fn prepare(
        self: &Arc<Self>,
        pool: &Arc<dyn MemoryPool>,
        name: &str,
        sql: &str,
        types: Vec<Type>,
    ) -> SqlResult<Prepared> {
        // The store has the name twice.
        let bytes = size_of::<PreparedStatement>() + 3 * name.len() + sql.len() + size_of_val(&types[..]);
        let memory = self.reserve(pool, name, bytes)?;
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
        let name = bind.portal_name.as_ref().map_or(0, String::len);
        let fixed = size_of::<Portal<Prepared>>() + size_of_val(&bind.parameters[..]);
        let memory = self.reserve(pool, "", fixed + 2 * name + formats + values)?;
        Ok(Prepared { statement: prepared.statement.clone(), _values: Some(Arc::new(memory)) })
    }

    fn reserve(
        self: &Arc<Self>,
        pool: &Arc<dyn MemoryPool>,
        name: &str,
        bytes: usize,
    ) -> SqlResult<StatementMemory> {
        let reserved = MemoryConsumer::new("prepared statements").register(pool);
        let mut counted = self.lock();
        let client = "the connection";
        self.limits.check_count(client, "prepared statements and portals", counted.names.len())?;
        self.limits.check_bytes(client, counted.bytes + bytes)?;
        reserved.try_grow(bytes)?;
        let number = counted.next;
        counted.next += 1;
        counted.bytes += bytes;
        counted.names.insert(number, name.to_string());
        Ok(StatementMemory { statements: self.clone(), number, reserved })
    }

    /// Returns the names of the statements that have one.
    fn names(&self) -> Vec<String> {
        self.lock().names.values().filter(|name| !name.is_empty()).cloned().collect()
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
        self.statements.names().iter().for_each(|name| self.store.rm_statement(name));
    }
}

#[cfg(test)]
mod tests {
    use datafusion::execution::memory_pool::GreedyMemoryPool;
    use pgwire::api::stmt::StoredStatement;
    use pgwire::api::store::MemPortalStore;

    use super::super::super::error::state;
    use super::*;

    /// Memory of a statement or a portal of the tests without its text, name and values.
    const FIXED_MAX: usize = 1000;

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
            let prepared = self.statements.prepare(&self.pool, name, sql, vec![Type::TEXT])?;
            self.store.put_statement(Arc::new(StoredStatement::new(name.to_string(), prepared, Vec::new())));
            Ok(())
        }

        /// Binds a value to a statement as the message Bind does.
        fn bind(&self, portal: &str, statement: &str, value: &str) -> SqlResult<()> {
            let found = self.store.get_statement(statement).expect("a known statement");
            let prepared = found.value().expect("a statement").statement.clone();
            let value = Some(Bytes::copy_from_slice(value.as_bytes()));
            let bind = Bind::new(Some(portal.to_string()), None, Vec::new(), vec![value], Vec::new());
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
    fn statements_and_portals_are_counted_until_the_store_drops_them() {
        let world = World::new(StatementLimits { count_max: 3, bytes_max: 1 << 20 });
        world.prepare("", "SELECT $1").expect("the first");
        world.prepare("a", "SELECT $1").expect("the second");
        world.bind("p", "a", "x").expect("the third");
        let refused = world.prepare("b", "SELECT $1").expect_err("the fourth");
        assert_eq!(refused.to_string(), "the connection has 3 prepared statements and portals; close some");
        assert_eq!(refused.sql_state(), state::OVERLOADED);
        world.bind("q", "a", "x").expect_err("the fourth");
        // The statement of a portal stays as long as the portal.
        world.store.rm_statement("a");
        world.prepare("b", "SELECT $1").expect_err("the fourth");
        world.store.clear_portals();
        world.prepare("b", "SELECT $1").expect("two are dropped");
        world.store.rm_statement("b");
        world.store.rm_statement("");
        assert_eq!(world.bytes(), 0);
    }

    #[test]
    fn texts_names_and_values_count() {
        let long = "n".repeat(10_000);
        let world = World::new(StatementLimits { count_max: 10, bytes_max: 40_000 });
        world.prepare("s", &long).expect("a long text");
        assert!((10_000..10_000 + FIXED_MAX).contains(&world.bytes()));
        world.prepare("s", "SELECT $1").expect("in place of the long text");
        assert!(world.bytes() < FIXED_MAX);
        world.prepare(&long, "").expect("a long name");
        assert!((30_000..30_000 + FIXED_MAX).contains(&world.bytes()), "three copies");
        world.bind("p", "s", &long[..8_000]).expect("a long value");
        let refused = world.bind("q", "s", &long[..8_000]).expect_err("too much together").to_string();
        let expected = "the connection: prepared statements and their parameters of ";
        assert!(refused.starts_with(expected), "{refused}");
        assert!(refused.ends_with(" bytes (limit 40000); close some statements"), "{refused}");
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
        let is_known = |name| world.store.get_statement(name).is_some();
        assert_eq!([is_known(""), is_known("a"), is_known("b")], [true, false, false], "as in Postgres");
        assert!(world.store.get_portal("p").is_none());
        world.store.rm_statement("");
        assert_eq!(world.bytes(), 0);
    }
}
