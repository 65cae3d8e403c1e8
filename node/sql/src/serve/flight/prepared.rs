//! Prepared statements: their parameters, and one execution for each row of values.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::error::FlightError;
use arrow_flight::sql::ActionCreatePreparedStatementResult;
use arrow_flight::sql::server::PeekableFlightDataStream;
use arrow_flight::{IpcMessage, SchemaAsIpc};
use datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType as ArrowType, Field, Schema as ArrowSchema};
use datafusion::arrow::ipc::writer::IpcWriteOptions;
use datafusion::common::utils::memory::RecordBatchMemoryCounter;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::logical_expr::sqlparser::ast::{Expr, Value};
use futures_util::{StreamExt, TryStreamExt};
use tonic::Status;
use tonic::codegen::Bytes;

use super::super::super::error::{SqlError, SqlResult, state};
use super::super::super::script::Parsed;
use super::super::encode::pg_type;
use super::super::parameters;
use super::super::shared::Shared;
use super::super::statement_limits::StatementLimits;
use super::sessions::Caller;
use super::statement_table::{BoundValues, PreparedStatement, StatementTable};
use super::statements::{self, parse};
use super::status::status;

const HANDLE_BYTES: usize = 16;

/// Prepared statements of all users.
pub(super) struct PreparedStatements {
    shared: Arc<Shared>,
    table: Mutex<StatementTable>,
}

/// A statement with values, for one execution.
struct Execution {
    parsed: Parsed,
    /// Number of its parameters.
    count: usize,
    values: Vec<RecordBatch>,
}

impl PreparedStatements {
    pub(super) fn new(shared: &Arc<Shared>) -> PreparedStatements {
        let limits = StatementLimits::new(shared.config.message_bytes_max);
        PreparedStatements { shared: shared.clone(), table: Mutex::new(StatementTable::new(limits)) }
    }

    fn lock(&self) -> MutexGuard<'_, StatementTable> {
        self.table.lock().unwrap_or_else(|error| error.into_inner())
    }

    /// Prepares a statement. Returns its handle, its columns and its parameters.
    pub(super) async fn create(
        &self,
        caller: &Caller,
        sql: &str,
    ) -> Result<ActionCreatePreparedStatementResult, Status> {
        let parsed = parse(sql).map_err(status)?;
        let count = parameters::count(&parsed).map_err(status)?;
        let types = parameters::infer(&caller.executor, &parsed).await.map_err(status)?;
        let field = |number: usize| {
            let ty = types.get(&number).cloned().unwrap_or(ArrowType::Utf8);
            Field::new(format!("${number}"), ty, true)
        };
        let parameter_schema = ArrowSchema::new((1..=count).map(field).collect::<Vec<_>>());
        let dataset_schema = statements::result_schema(&caller.executor, &parsed).await?;
        let used = self.shared.env.now().mono;
        let mut handle = [0; HANDLE_BYTES];
        self.shared.env.rng.fill_secret(&mut handle);
        let handle = Bytes::copy_from_slice(&handle);
        let memory = reservation(caller);
        memory.try_grow(size_of::<PreparedStatement>() + sql.len()).map_err(status)?;
        let bound = BoundValues { batches: Vec::new(), memory: memory.new_empty() };
        let prepared = PreparedStatement { sql: sql.to_string(), count, bound, used, memory };
        self.lock().insert(&caller.user, handle.clone(), prepared).map_err(status)?;
        Ok(ActionCreatePreparedStatementResult {
            prepared_statement_handle: handle,
            dataset_schema: encoded(&dataset_schema)?,
            parameter_schema: encoded(&parameter_schema)?,
        })
    }

    /// Forgets a statement.
    pub(super) fn close(&self, caller: &Caller, handle: &Bytes) {
        self.lock().remove(&caller.user, handle);
    }

    /// Looks at the caller's statement with this handle, and notes that it is used.
    fn look<R>(
        &self,
        caller: &Caller,
        handle: &Bytes,
        look: impl FnOnce(&PreparedStatement) -> R,
    ) -> Result<R, Status> {
        let mut table = self.lock();
        let unknown =
            || Status::not_found("the prepared statement is closed or has expired; prepare it again");
        let statement = table.get_mut(&caller.user, handle).ok_or_else(unknown)?;
        statement.used = self.shared.env.now().mono;
        Ok(look(statement))
    }

    /// Returns the caller's statement with this handle.
    fn get(&self, caller: &Caller, handle: &Bytes) -> Result<Execution, Status> {
        let copy = |known: &PreparedStatement| (known.sql.clone(), known.count, known.bound.batches.clone());
        let (sql, count, values) = self.look(caller, handle, copy)?;
        Ok(Execution { parsed: parse(&sql).map_err(status)?, count, values })
    }

    /// Keeps the values for the next execution.
    pub(super) async fn bind(
        &self,
        caller: &Caller,
        handle: &Bytes,
        values: PeekableFlightDataStream,
    ) -> Result<(), Status> {
        let count = self.look(caller, handle, |statement| statement.count)?;
        let bytes_max = self.shared.config.message_bytes_max;
        let mut bound = BoundValues { batches: Vec::new(), memory: reservation(caller) };
        let mut buffers = RecordBatchMemoryCounter::new();
        let mut batches = self.batches(values);
        while let Some(batch) = batches.next().await {
            let batch = batch.map_err(Status::from)?;
            check_count(count, batch.num_columns()).map_err(status)?;
            bound.memory.try_grow(batch_bytes(&mut buffers, &batch)).map_err(status)?;
            if bound.memory.size() > bytes_max {
                let what = format!("parameters of more than {bytes_max} bytes; send fewer rows at a time");
                return Err(status(SqlError::with_state(state::OVERLOADED, what)));
            }
            bound.batches.push(batch);
        }
        self.lock().bind(&caller.user, handle, bound).map_err(status)
    }

    /// Returns a query with the values that are bound.
    pub(super) fn bound(&self, caller: &Caller, handle: &Bytes) -> Result<Parsed, Status> {
        let statement = self.get(caller, handle)?;
        let rows: usize = statement.values.iter().map(RecordBatch::num_rows).sum();
        match statement.values.iter().find(|batch| batch.num_rows() > 0) {
            Some(values) if rows == 1 => substituted(&statement, values, 0).map_err(status),
            Some(_) => {
                let what = format!("a query takes one row of parameters (given {rows}); execute it for each");
                Err(status(SqlError::new(what)))
            }
            None => check_count(statement.count, 0).map(|()| statement.parsed).map_err(status),
        }
    }

    /// Runs a write once, or once for each row of values. Returns the number of rows written.
    pub(super) async fn update(
        &self,
        caller: &Caller,
        handle: &Bytes,
        values: PeekableFlightDataStream,
    ) -> Result<i64, Status> {
        let statement = self.get(caller, handle)?;
        if statement.count == 0 {
            return statements::update(&caller.executor, statement.parsed).await;
        }
        let mut update = RowUpdates { caller, statement: &statement, written: 0, rows: 0 };
        let mut batches = self.batches(values);
        while let Some(batch) = batches.next().await {
            update.run(&batch.map_err(Status::from)?).await?;
        }
        if update.rows == 0 {
            // Some clients send the values before the command.
            for batch in &statement.values {
                update.run(batch).await?;
            }
        }
        if update.rows == 0 {
            return Err(status(SqlError::new(format!(
                "0 rows of values for {} parameters",
                statement.count
            ))));
        }
        Ok(update.written)
    }

    /// Decodes the batches that a client sends. The first message may hold nothing but the command.
    pub(super) fn batches(&self, data: PeekableFlightDataStream) -> FlightRecordBatchStream {
        let data = data.try_filter(|part| std::future::ready(!part.data_header.is_empty()));
        let data = data.map_err(|failed| FlightError::Tonic(Box::new(failed)));
        FlightRecordBatchStream::new_from_flight_data(data)
    }
}

/// Executions of a write, one for each row of values.
struct RowUpdates<'a> {
    caller: &'a Caller,
    statement: &'a Execution,
    /// Number of rows written.
    written: i64,
    /// Number of rows of values that are done.
    rows: u64,
}

impl RowUpdates<'_> {
    async fn run(&mut self, values: &RecordBatch) -> Result<(), Status> {
        for row in 0..values.num_rows() {
            let parsed = substituted(self.statement, values, row).map_err(status)?;
            let updated = statements::update(&self.caller.executor, parsed).await;
            self.written += updated.map_err(|failed| self.after(failed))?;
            self.rows += 1;
        }
        Ok(())
    }

    /// Says how many rows of values were done before a failure.
    fn after(&self, failed: Status) -> Status {
        let message = format!("{}; {} rows of parameters before it are done", failed.message(), self.rows);
        if self.rows == 0 { failed } else { Status::new(failed.code(), message) }
    }
}

/// Returns an empty part of the memory for statements.
fn reservation(caller: &Caller) -> MemoryReservation {
    MemoryConsumer::new("prepared statements").register(&caller.executor.runtime.memory_pool)
}

/// Returns the memory of a batch without that of buffers that were counted before.
fn batch_bytes(buffers: &mut RecordBatchMemoryCounter, batch: &RecordBatch) -> usize {
    // The columns are parts of one buffer, the body of their message: the size of each array has all of it.
    let own = |array: &ArrayRef| array.get_array_memory_size().saturating_sub(array.get_buffer_memory_size());
    let arrays: usize = batch.columns().iter().map(own).sum();
    size_of::<RecordBatch>() + arrays + buffers.count_batch(batch)
}

fn check_count(want: usize, given: usize) -> SqlResult<()> {
    match want == given {
        true => Ok(()),
        false => Err(SqlError::with_state("08P01", format!("{given} values for {want} parameters"))),
    }
}

/// Returns a schema as a message; empty for one without columns.
fn encoded(schema: &ArrowSchema) -> Result<Bytes, Status> {
    if schema.fields().is_empty() {
        return Ok(Bytes::new());
    }
    let message = IpcMessage::try_from(SchemaAsIpc::new(schema, &IpcWriteOptions::default()));
    message.map(|message| message.0).map_err(status)
}

/// Returns the statement with the values of one row as constants.
fn substituted(statement: &Execution, values: &RecordBatch, row: usize) -> SqlResult<Parsed> {
    check_count(statement.count, values.num_columns())?;
    let numbered = values.columns().iter().enumerate();
    let constants = numbered.map(|(at, column)| Ok((at + 1, constant(at + 1, column, row)?)));
    let constants = constants.collect::<SqlResult<BTreeMap<usize, Expr>>>()?;
    let mut parsed = statement.parsed.clone();
    parameters::substitute(&mut parsed, &constants);
    Ok(parsed)
}

/// Returns a cell as a constant of SQL. The error names the parameter.
fn constant(number: usize, column: &ArrayRef, row: usize) -> SqlResult<Expr> {
    let cell = column.slice(row, 1);
    let cell = match cell.data_type() {
        ArrowType::Dictionary(_, values) => cast(&cell, values)?,
        _ => cell,
    };
    if cell.is_null(0) || cell.data_type() == &ArrowType::Null {
        return Ok(Expr::Value(Value::Null.with_empty_span()));
    }
    let ty = pg_type(cell.data_type());
    let text = match cell.data_type() {
        ArrowType::Binary
        | ArrowType::LargeBinary
        | ArrowType::BinaryView
        | ArrowType::FixedSizeBinary(_) => {
            let bytes = cast(&cell, &ArrowType::Binary)?;
            let digits = bytes.as_binary::<i32>().value(0).iter().map(|byte| format!("{byte:02x}"));
            format!("\\x{}", digits.collect::<String>())
        }
        _ => cast(&cell, &ArrowType::Utf8)?.as_string::<i32>().value(0).to_string(),
    };
    parameters::text_constant(&ty, &text).ok_or_else(|| {
        let shown: String = text.chars().take(40).collect();
        SqlError::with_state("22P02", format!("parameter ${number}: {shown:?} is not a {ty}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_flight::encode::FlightDataEncoderBuilder;
    use datafusion::arrow::array::{
        BinaryArray, BooleanArray, Decimal128Array, Int64Array, StringArray, StringDictionaryBuilder,
        TimestampMicrosecondArray,
    };
    use datafusion::arrow::datatypes::Int32Type;
    use futures_util::stream;

    fn shown(column: impl Array + 'static) -> String {
        let column: ArrayRef = Arc::new(column);
        constant(1, &column, column.len() - 1).map_or_else(|error| error.to_string(), |expr| expr.to_string())
    }

    #[test]
    fn cells_become_constants_of_their_types() {
        assert_eq!(shown(Int64Array::from(vec![1, i64::MIN])), "-9223372036854775808");
        assert_eq!(shown(StringArray::from(vec!["it's"])), "'it''s'");
        assert_eq!(shown(StringArray::from(vec![Some("a"), None])), "NULL");
        assert_eq!(shown(BooleanArray::from(vec![true])), "true");
        assert_eq!(shown(BinaryArray::from(vec![&b"\x00\xff"[..]])), "X'00ff'");
        let decimal = Decimal128Array::from(vec![-1234]).with_precision_and_scale(9, 2).expect("a decimal");
        assert_eq!(shown(decimal), "-12.34");
        let mut words = StringDictionaryBuilder::<Int32Type>::new();
        words.append_value("word");
        assert_eq!(shown(words.finish()), "'word'");
        let time = TimestampMicrosecondArray::from(vec![1]).with_timezone("UTC");
        assert_eq!(
            shown(time),
            "arrow_cast('1970-01-01T00:00:00.000001Z', 'Timestamp(Microsecond, Some(\"+00:00\"))')"
        );
    }

    #[tokio::test]
    async fn the_body_of_a_message_is_counted_once_for_all_columns() {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![7; 1000]));
        let columns = (0..100).map(|at| (format!("${at}"), column.clone()));
        let sent = RecordBatch::try_from_iter(columns).expect("columns of one length");
        let messages = FlightDataEncoderBuilder::new().build(stream::iter([Ok(sent)]));
        let mut received = FlightRecordBatchStream::new_from_flight_data(messages);
        let batch = received.next().await.expect("a batch").expect("a valid message");
        let mut buffers = RecordBatchMemoryCounter::new();
        let bytes = batch_bytes(&mut buffers, &batch);
        assert!((800_000..900_000).contains(&bytes), "{bytes} bytes for 100,000 values of 8 bytes");
        let bytes = batch_bytes(&mut buffers, &batch);
        assert!((1..50_000).contains(&bytes), "{bytes} bytes for more arrays of the same buffers");
    }
}
