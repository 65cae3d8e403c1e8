//! Statements: their results as streams of Flight.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::sql::ProstMessageExt;
use arrow_flight::{FlightData, FlightDescriptor, FlightEndpoint, FlightInfo, Ticket};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{Schema as ArrowSchema, SchemaRef};
use datafusion::common::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use prost::Message;
use tonic::{Response, Status};

use super::super::super::error::{SqlError, SqlResult, state};
use super::super::super::executor::{Answer, Executor};
use super::super::super::script::{self, Parsed};
use super::super::parameters;
use super::super::places::ConnectionPlace;
use super::super::statement_timer::StatementTimer;
use super::status::status;

/// Result of a statement on its way to the client, which asks for each part.
pub(super) type Results = Pin<Box<dyn Stream<Item = Result<FlightData, Status>> + Send>>;

/// Rows of a statement. The connection keeps its place until they are dropped.
struct PlacedRows {
    batches: SendableRecordBatchStream,
    /// Time of the statement; `None` when it is over.
    timer: Option<StatementTimer>,
    /// Dropped after the batches, and with them the scanners.
    _place: Arc<ConnectionPlace>,
}

impl Stream for PlacedRows {
    type Item = Result<RecordBatch, DataFusionError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(timer) = &mut self.timer else { return Poll::Ready(None) };
        if let Poll::Ready(error) = timer.poll_end(context) {
            self.timer = None;
            return Poll::Ready(Some(Err(DataFusionError::External(Box::new(error)))));
        }
        self.batches.poll_next_unpin(context)
    }
}

/// Parses one statement.
pub(super) fn parse(sql: &str) -> SqlResult<Parsed> {
    let mut statements = script::parse(sql)?;
    match (statements.pop(), statements.is_empty()) {
        (Some(parsed), true) => Ok(parsed),
        _ => Err(SqlError::with_state(state::SYNTAX, "expected one statement at a time")),
    }
}

/// Parses one statement without parameters.
pub(super) fn parse_complete(sql: &str) -> SqlResult<Parsed> {
    let parsed = parse(sql)?;
    match parameters::count(&parsed)? {
        0 => Ok(parsed),
        count => Err(SqlError::with_state(
            "08P01",
            format!("0 values for {count} parameters; prepare the statement"),
        )),
    }
}

/// Returns the columns of a statement's result; none for a statement without rows.
pub(super) async fn result_schema(executor: &Executor, parsed: &Parsed) -> Result<SchemaRef, Status> {
    let schema = timed(&mut timer(executor), executor.result_schema(parsed)).await?;
    Ok(schema.unwrap_or_else(|| Arc::new(ArrowSchema::empty())))
}

fn timer(executor: &Executor) -> StatementTimer {
    StatementTimer::start(executor.client.env(), executor.statement_timeout)
}

async fn timed<T>(timer: &mut StatementTimer, part: impl Future<Output = SqlResult<T>>) -> Result<T, Status> {
    timer.run(part).await.and_then(|done| done).map_err(status)
}

/// Runs a statement and streams its rows to a connection.
pub(super) async fn run(
    executor: &Executor,
    parsed: Parsed,
    place: Arc<ConnectionPlace>,
) -> Result<Response<Results>, Status> {
    let mut timer = timer(executor);
    match timed(&mut timer, executor.execute(parsed)).await? {
        Answer::Rows(batches) => {
            let schema = batches.schema();
            let rows = PlacedRows { batches, timer: Some(timer), _place: place };
            Ok(results(schema, rows.map_err(|error| FlightError::Tonic(Box::new(status(error))))))
        }
        Answer::Count(..) | Answer::Done(_) => Ok(results(Arc::new(ArrowSchema::empty()), stream::empty())),
    }
}

/// Runs a statement whose rows are not wanted. Returns the number of rows that it wrote.
pub(super) async fn update(executor: &Executor, parsed: Parsed) -> Result<i64, Status> {
    match timed(&mut timer(executor), executor.execute(parsed)).await? {
        Answer::Count(_, count) => Ok(i64::try_from(count).unwrap_or(i64::MAX)),
        Answer::Done(_) => Ok(0),
        Answer::Rows(_) => Err(status(SqlError::new("the statement returns rows; execute it as a query"))),
    }
}

fn results(
    schema: SchemaRef,
    batches: impl Stream<Item = Result<RecordBatch, FlightError>> + Send + 'static,
) -> Response<Results> {
    let encoded = FlightDataEncoderBuilder::new().with_schema(schema).build(batches);
    Response::new(encoded.map_err(Status::from).boxed())
}

/// Streams one batch.
pub(super) fn batch_results(batch: RecordBatch) -> Response<Results> {
    results(batch.schema(), stream::iter([Ok(batch)]))
}

/// Describes the result of a statement, which `ticket` fetches. A statement without rows runs now, because clients do
/// not fetch what has no columns; its number of records is that of the rows written.
pub(super) async fn describe(
    executor: &Executor,
    parsed: Parsed,
    ticket: &impl ProstMessageExt,
    descriptor: FlightDescriptor,
) -> Result<Response<FlightInfo>, Status> {
    if let Some(schema) = timed(&mut timer(executor), executor.result_schema(&parsed)).await? {
        return info(&schema, ticket, descriptor);
    }
    let written = update(executor, parsed).await?;
    let done = FlightInfo::new().try_with_schema(&ArrowSchema::empty()).map_err(status)?;
    Ok(Response::new(done.with_descriptor(descriptor).with_total_records(written).with_total_bytes(0)))
}

/// Describes a result, which `ticket` fetches.
pub(super) fn info(
    schema: &ArrowSchema,
    ticket: &impl ProstMessageExt,
    descriptor: FlightDescriptor,
) -> Result<Response<FlightInfo>, Status> {
    let ticket = Ticket::new(ticket.as_any().encode_to_vec());
    let info = FlightInfo::new().try_with_schema(schema).map_err(status)?;
    let endpoint = FlightEndpoint::new().with_ticket(ticket);
    // The number of rows is not known before they are read.
    let info = info.with_endpoint(endpoint).with_descriptor(descriptor);
    Ok(Response::new(info.with_total_records(-1).with_total_bytes(-1)))
}
