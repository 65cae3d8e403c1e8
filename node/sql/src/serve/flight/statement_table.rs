//! Table of prepared statements: those of each user, within limits that no other user takes up.
//!
//! A statement is kept as its text, because the memory of a parsed one is not known. The text and the values that are
//! bound to it are counted in the memory for statements (`memory`), too.

use std::collections::BTreeMap;
use std::time::Duration;

use datafusion::arrow::array::RecordBatch;
use datafusion::execution::memory_pool::MemoryReservation;
use engine::time::Instant;
use tonic::codegen::Bytes;

use super::super::super::error::SqlResult;
use super::super::statement_limits::StatementLimits;

/// Time after its last use at which a statement is forgotten.
const UNUSED_TIME: Duration = Duration::from_secs(3600);

/// A prepared statement with the values that its client has sent last.
pub(super) struct PreparedStatement {
    pub(super) sql: String,
    /// Number of its parameters.
    pub(super) count: usize,
    pub(super) bound: BoundValues,
    pub(super) used: Instant,
    /// Memory of the text.
    pub(super) memory: MemoryReservation,
}

/// Values of parameters, one column for each.
pub(super) struct BoundValues {
    pub(super) batches: Vec<RecordBatch>,
    pub(super) memory: MemoryReservation,
}

impl PreparedStatement {
    fn bytes(&self) -> usize {
        self.memory.size() + self.bound.memory.size()
    }
}

/// Prepared statements by user and handle.
pub(super) struct StatementTable {
    /// Limits of each user.
    limits: StatementLimits,
    by_user: BTreeMap<String, BTreeMap<Bytes, PreparedStatement>>,
}

impl StatementTable {
    pub(super) fn new(limits: StatementLimits) -> StatementTable {
        StatementTable { limits, by_user: BTreeMap::new() }
    }

    /// Adds a statement of a user. Forgets those of all users that were not used for a long time.
    pub(super) fn insert(
        &mut self,
        user: &str,
        handle: Bytes,
        statement: PreparedStatement,
    ) -> SqlResult<()> {
        self.by_user.retain(|_, known| {
            known.retain(|_, old| statement.used.since(old.used) <= UNUSED_TIME);
            !known.is_empty()
        });
        let count = self.by_user.get(user).map_or(0, BTreeMap::len);
        self.limits.check_count(format_args!("user {user:?}"), "prepared statements", count)?;
        self.check_bytes(user, None, statement.bytes())?;
        self.by_user.entry(user.to_string()).or_default().insert(handle, statement);
        Ok(())
    }

    /// Returns a user's statement with this handle.
    pub(super) fn get_mut(&mut self, user: &str, handle: &Bytes) -> Option<&mut PreparedStatement> {
        self.by_user.get_mut(user)?.get_mut(handle)
    }

    /// Replaces the values of a user's statement. Does nothing if the statement was closed meanwhile.
    pub(super) fn bind(&mut self, user: &str, handle: &Bytes, bound: BoundValues) -> SqlResult<()> {
        let Some(statement) = self.get_mut(user, handle) else { return Ok(()) };
        let bytes = statement.memory.size() + bound.memory.size();
        self.check_bytes(user, Some(handle), bytes)?;
        if let Some(statement) = self.get_mut(user, handle) {
            statement.bound = bound;
        }
        Ok(())
    }

    /// Forgets a statement.
    pub(super) fn remove(&mut self, user: &str, handle: &Bytes) {
        if let Some(known) = self.by_user.get_mut(user) {
            known.remove(handle);
        }
    }

    /// Checks the size of a user's statements with one of `bytes` in place of that of `replaced`.
    fn check_bytes(&self, user: &str, replaced: Option<&Bytes>, bytes: usize) -> SqlResult<()> {
        let others = self.by_user.get(user).into_iter().flatten();
        let others = others.filter(|(handle, _)| Some(*handle) != replaced);
        let total: usize = bytes + others.map(|(_, statement)| statement.bytes()).sum::<usize>();
        self.limits.check_bytes(format_args!("user {user:?}"), total)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};

    use super::super::super::super::error::state;
    use super::*;

    const LIMITS: StatementLimits = StatementLimits { count_max: 2, bytes_max: 100 };

    fn pool() -> Arc<dyn MemoryPool> {
        Arc::new(GreedyMemoryPool::new(1000))
    }

    fn reserved(pool: &Arc<dyn MemoryPool>, bytes: usize) -> MemoryReservation {
        let memory = MemoryConsumer::new("test").register(pool);
        memory.try_grow(bytes).expect("within the pool");
        memory
    }

    fn values(pool: &Arc<dyn MemoryPool>, bytes: usize) -> BoundValues {
        BoundValues { batches: Vec::new(), memory: reserved(pool, bytes) }
    }

    fn statement(pool: &Arc<dyn MemoryPool>, bytes: usize, seconds: u64) -> PreparedStatement {
        let memory = reserved(pool, bytes);
        let used = Instant(seconds * 1_000_000_000);
        PreparedStatement { sql: String::new(), count: 0, bound: values(pool, 0), used, memory }
    }

    fn handle(number: u8) -> Bytes {
        Bytes::copy_from_slice(&[number])
    }

    #[test]
    fn limits_are_those_of_each_user() {
        let pool = pool();
        let mut table = StatementTable::new(LIMITS);
        table.insert("ann", handle(1), statement(&pool, 10, 0)).expect("the first");
        table.insert("ann", handle(2), statement(&pool, 10, 0)).expect("the second");
        let refused = table.insert("ann", handle(3), statement(&pool, 10, 0)).expect_err("the third");
        assert_eq!(refused.to_string(), r#"user "ann" has 2 prepared statements; close some"#);
        assert_eq!(refused.sql_state(), state::OVERLOADED);
        table.insert("bob", handle(4), statement(&pool, 90, 0)).expect("another user");
        assert!(table.get_mut("bob", &handle(1)).is_none(), "a handle is of no use to another user");
        table.remove("bob", &handle(1));
        table.remove("ann", &handle(2));
        table.insert("ann", handle(3), statement(&pool, 10, 0)).expect("one was closed");
        assert_eq!(pool.reserved(), 10 + 10 + 90, "memory of statements that are known");
    }

    #[test]
    fn bound_values_count_until_they_are_replaced() {
        let pool = pool();
        let mut table = StatementTable::new(LIMITS);
        table.insert("ann", handle(1), statement(&pool, 10, 0)).expect("the first");
        table.insert("ann", handle(2), statement(&pool, 10, 0)).expect("the second");
        table.bind("ann", &handle(1), values(&pool, 70)).expect("90 bytes together");
        let refused = table.bind("ann", &handle(2), values(&pool, 20)).expect_err("110 bytes together");
        let expected = "user \"ann\": prepared statements and their parameters of 110 bytes (limit 100); \
                        close some statements";
        assert_eq!(refused.to_string(), expected);
        table.bind("ann", &handle(1), values(&pool, 60)).expect("in place of the 70");
        table.bind("ann", &handle(2), values(&pool, 20)).expect("100 bytes together");
        table.bind("ann", &handle(9), values(&pool, 1)).expect("closed meanwhile");
        assert_eq!(pool.reserved(), 100);
    }

    #[test]
    fn statements_that_were_not_used_for_an_hour_are_forgotten() {
        let pool = pool();
        let mut table = StatementTable::new(LIMITS);
        table.insert("ann", handle(1), statement(&pool, 10, 0)).expect("the first");
        table.insert("ann", handle(2), statement(&pool, 10, 60)).expect("the second");
        table.insert("bob", handle(3), statement(&pool, 10, 3601)).expect("another user, an hour later");
        assert!(table.get_mut("ann", &handle(1)).is_none());
        assert!(table.get_mut("ann", &handle(2)).is_some());
        assert_eq!(pool.reserved(), 20);
    }
}
