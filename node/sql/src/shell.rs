//! Statements of a script, one after the other, with their results printed.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, UInt64Array};
use datafusion::physical_plan::common::collect;
use nyala_client::Client;

use super::error::{SqlError, SqlResult};
use super::executor::{Answer, Executor};
use super::output::{self, Format, Print};
use super::script;

/// Runs SQL against a cluster.
pub struct Shell {
    pub(crate) executor: Executor,
    pub(crate) format: Format,
}

impl Shell {
    pub fn new(client: Client, format: Format) -> Shell {
        // A shell has one user, who may use what the machine has.
        Shell { executor: Executor::new(client, Arc::default()), format }
    }

    /// Sets the number of partitions that a plan aims at; by default the number of processors.
    pub fn target_partitions(mut self, count: usize) -> Shell {
        self.executor.plan.partitions = Some(count);
        self
    }

    /// Sets that tablet servers aggregate where they can, which is the default. Otherwise they return rows.
    pub fn server_aggregation(mut self, server_aggregation: bool) -> Shell {
        self.executor.plan.server_aggregation = server_aggregation;
        self
    }

    /// Sets that scans continue at another replica when a server is lost, which makes them slower.
    pub fn fault_tolerant(mut self, fault_tolerant: bool) -> Shell {
        self.executor.fault_tolerant = fault_tolerant;
        self
    }

    /// Runs all statements of a script and prints their results. Stops at the first failure. Nothing runs if the
    /// script has a syntax error.
    pub async fn run(&self, script: &str, print: &mut Print<'_>) -> Result<(), SqlError> {
        let mut results = 0;
        for parsed in script::parse(script)? {
            match self.executor.execute(parsed).await? {
                Answer::Rows(rows) => {
                    results += 1;
                    if self.format == Format::Parquet && results > 1 {
                        let what =
                            "a Parquet file holds one result; run one query, or COPY (query) TO 'FILE'";
                        return Err(SqlError::new(what));
                    }
                    output::print_stream(self.format, rows, print).await?;
                }
                Answer::Count(_, count) => self.print_count(count, print)?,
                Answer::Done(_) => {}
            }
        }
        Ok(())
    }

    /// Runs one query and returns its rows.
    pub async fn query(&self, query: &str) -> Result<Vec<RecordBatch>, SqlError> {
        let mut statements = script::parse(query)?.into_iter();
        let (Some(parsed), None) = (statements.next(), statements.next()) else {
            return Err(SqlError::new("one query is expected; run scripts of other statements with run"));
        };
        match self.executor.execute(parsed).await? {
            Answer::Rows(rows) => Ok(collect(rows).await?),
            Answer::Count(..) | Answer::Done(_) => Ok(Vec::new()),
        }
    }

    /// Prints the number of rows written, except into a Parquet file, which is for the rows of a query.
    fn print_count(&self, count: u64, print: &mut Print<'_>) -> SqlResult<()> {
        if self.format == Format::Parquet {
            return Ok(());
        }
        let count: ArrayRef = Arc::new(UInt64Array::from(vec![count]));
        output::print_batch(self.format, &RecordBatch::try_from_iter([("count", count)])?, print)
    }
}
