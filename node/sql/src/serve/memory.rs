//! Memory of statements: one limit for all clients of a server.
//!
//! ```text
//!   sorts, joins, groups ──┐
//!   prepared statements  ──┼──► pool of memory_bytes_max ── used up ──► error 53200 of the statement that asks
//!   bound values         ──┘
//! ```
//!
//! Rows do not go to temporary files instead: those would fill the disk.

use std::sync::Arc;

use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};

use super::super::error::SqlResult;

/// Creates the memory that all statements of a server share.
pub(super) fn runtime(bytes_max: usize) -> SqlResult<Arc<RuntimeEnv>> {
    let disks = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
    let builder = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(GreedyMemoryPool::new(bytes_max)))
        .with_disk_manager_builder(disks);
    Ok(builder.build_arc()?)
}

#[cfg(test)]
mod tests {
    use datafusion::execution::memory_pool::MemoryConsumer;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::super::super::error::{SqlError, state};
    use super::*;

    #[tokio::test]
    async fn a_sort_that_needs_more_memory_fails_and_writes_no_file() {
        let runtime = runtime(1 << 20).expect("a pool");
        // One partition runs within this task, and so frees its memory when it ends.
        let config = SessionConfig::new().with_target_partitions(1);
        let context = SessionContext::new_with_config_rt(config, runtime.clone());
        let sort = "SELECT value FROM generate_series(1, 1000000) ORDER BY value % 1000";
        let frame = context.sql(sort).await.expect("a query");
        let error = SqlError::from(frame.collect().await.expect_err("8 MB of rows in a pool of 1 MiB"));
        assert_eq!(error.sql_state(), state::NO_MEMORY, "{error}");
        assert!(error.to_string().starts_with("the memory for statements is used up"), "{error}");
        assert!(!runtime.disk_manager.tmp_files_enabled());
        let few = context.sql("SELECT value FROM generate_series(1, 10) ORDER BY value % 3").await;
        few.expect("a query").collect().await.expect("the memory is free again");
        assert_eq!(runtime.memory_pool.reserved(), 0);
    }

    #[test]
    fn consumers_share_one_limit() {
        let runtime = runtime(100).expect("a pool");
        let consumer = |name| MemoryConsumer::new(name).register(&runtime.memory_pool);
        let (one, other) = (consumer("one"), consumer("other"));
        one.try_grow(60).expect("within the limit");
        let error = SqlError::from(other.try_grow(60).expect_err("beyond the limit"));
        assert_eq!(error.sql_state(), state::NO_MEMORY, "{error}");
        drop(one);
        other.try_grow(60).expect("the memory of the first is free");
    }
}
