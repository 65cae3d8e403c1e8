//! DataFusion's session of one statement: its tables, its snapshot, its plan.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::execution::context::SQLOptions;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::{DataFrame, SessionConfig, SessionContext};
use datafusion::sql::parser::Statement;
use engine::schema::{ColumnSchema, DataType, TypeAttributes, format_cell};
use nyala_client::Client;
use nyala_client::cell_text::parse_cell;

use super::aggregate_rule;
use super::catalog::{CATALOG, ClusterCatalog, ClusterSchema, SCHEMA};
use super::checked_arithmetic::CheckedArithmetic;
use super::checked_sum;
use super::error::{SqlError, SqlResult};
use super::filter_barrier;
use super::float_literals;
use super::large_values;
use super::pg_catalog::PgCatalog;
use super::script::AsOf;
use super::snapshot::{PlanOptions, ReadOptions};

/// Bits of a hybrid timestamp that count operations within a microsecond.
const LOGICAL_BITS: u32 = 12;

/// Session of one statement.
pub(crate) struct Session {
    context: SessionContext,
}

impl Session {
    /// Creates a session that reads the tables as `read` says, by plans as `plan` says. `table_names` fills the
    /// information schema, and `pg_catalog` is there for statements that name it. `runtime` has the statement's memory.
    pub(crate) fn new(
        client: &Client,
        runtime: Arc<RuntimeEnv>,
        read: ReadOptions,
        plan: PlanOptions,
        table_names: Vec<String>,
        pg_catalog: Option<PgCatalog>,
    ) -> Session {
        let mut rules = filter_barrier::rules();
        // Tablets of this process are read without calls, so nothing is gained there.
        let is_remote = client.config().local_tablets.is_none();
        if plan.server_aggregation && is_remote {
            aggregate_rule::add(&mut rules);
        }
        let state = SessionStateBuilder::new()
            .with_config(config(plan))
            .with_runtime_env(runtime)
            .with_default_features()
            .with_analyzer_rule(Arc::new(CheckedArithmetic))
            .with_physical_optimizer_rules(rules)
            .build();
        let context = SessionContext::new_with_state(state);
        large_values::limit(&context);
        checked_sum::replace(&context);
        let schema = Arc::new(ClusterSchema::new(client, read, table_names));
        context.register_catalog(
            CATALOG,
            Arc::new(ClusterCatalog { schema, pg_catalog: pg_catalog.map(Arc::new) }),
        );
        Session { context }
    }

    /// Plans a query.
    pub(crate) async fn frame(&self, statement: Statement) -> SqlResult<DataFrame> {
        let plan = self.context.state().statement_to_plan(statement).await?;
        let plan = float_literals::rewrite(plan)?;
        let options =
            SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
        options.verify_plan(&plan)?;
        Ok(self.context.execute_logical_plan(plan).await?)
    }
}

/// Returns the columns of a query's result. Until the analyzer has unified types, CASE and UNION have that of their
/// first part: the schema of the frame is not that of its rows.
pub(crate) fn result_schema(frame: DataFrame) -> SqlResult<SchemaRef> {
    let (state, plan) = frame.into_parts();
    let plan = match plan {
        // The columns of EXPLAIN do not depend on the plan that it shows.
        LogicalPlan::Explain(_) | LogicalPlan::Analyze(_) => plan,
        plan => state.analyzer().execute_and_check(plan, state.config_options(), |_, _| {})?,
    };
    Ok(plan.schema().inner().clone())
}

/// Returns the configuration of the planner.
pub(crate) fn config(plan: PlanOptions) -> SessionConfig {
    let mut config = SessionConfig::new()
        .with_information_schema(true)
        .with_create_default_catalog_and_schema(false)
        .with_default_catalog_and_schema(CATALOG, SCHEMA);
    if let Some(count) = plan.partitions {
        config = config.with_target_partitions(count);
    }
    let options = config.options_mut();
    // A DECIMAL literal keeps all its digits on the way into a DECIMAL column; beside DOUBLE see float_literals.
    options.sql_parser.parse_float_as_decimal = true;
    // Batches of the client have Utf8 columns; a second type of text would mean casts of columns.
    options.sql_parser.map_string_types_to_utf8view = false;
    config
}

/// Returns the hybrid timestamp of an AS OF clause.
pub(crate) fn timestamp(client: &Client, as_of: &AsOf) -> SqlResult<u64> {
    let now = client.env().now().wall.micros;
    let future = || {
        let now = format_cell(DataType::UnixtimeMicros, TypeAttributes::default(), &now.to_le_bytes());
        SqlError::new(format!("AS OF: the time is in the future (now {now}); give an earlier one"))
    };
    match as_of {
        AsOf::Time(text) => {
            let column = ColumnSchema::new(0, "AS OF", DataType::UnixtimeMicros);
            let cell = parse_cell(&column, text).map_err(|error| SqlError::from(error.context("AS OF")))?;
            let micros = i64::from_le_bytes(cell.try_into().unwrap_or_default());
            match u64::try_from(micros) {
                Err(_) => Err(SqlError::new(format!("AS OF: {text} is before 1970"))),
                Ok(micros) if micros > now => Err(future()),
                Ok(micros) => Ok(micros << LOGICAL_BITS),
            }
        }
        AsOf::Timestamp(timestamp) => {
            // Clocks of servers may be ahead of this machine's.
            let latest = (now << LOGICAL_BITS).max(client.observed_timestamp().unwrap_or(0) + 1);
            if *timestamp > latest { Err(future()) } else { Ok(*timestamp) }
        }
    }
}
