//! DataFusion over Parquet files, with its defaults.

use std::path::Path;

use datafusion::arrow::array::RecordBatch;
use datafusion::execution::options::ParquetReadOptions;
use datafusion::prelude::{SessionConfig, SessionContext};

use super::command::CommandResult;
use super::files::TABLES;

/// Tables as files.
pub(crate) struct ParquetStore {
    context: SessionContext,
}

impl ParquetStore {
    pub(crate) fn new(threads: usize) -> ParquetStore {
        let mut config = SessionConfig::new().with_target_partitions(threads);
        // As in nyala-sql: the same query means the same arithmetic.
        config.options_mut().sql_parser.parse_float_as_decimal = true;
        ParquetStore { context: SessionContext::new_with_config(config) }
    }

    /// Takes tables from the files that are in `dir`, in place of those that had their names.
    pub(crate) async fn use_files(&self, dir: &Path) -> CommandResult<()> {
        for table in TABLES {
            let path = dir.join(format!("{table}.parquet"));
            if !path.exists() {
                continue;
            }
            let path = path.to_str().ok_or("a folder with a plain name")?;
            self.context.deregister_table(table)?;
            self.context.register_parquet(table, path, ParquetReadOptions::default()).await?;
        }
        Ok(())
    }

    pub(crate) async fn query(&self, query: &str) -> CommandResult<Vec<RecordBatch>> {
        Ok(self.context.sql(query).await?.collect().await?)
    }
}
