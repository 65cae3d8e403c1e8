//! Facts about the server, which clients ask for by number.

use arrow_flight::error::FlightError;
use arrow_flight::sql::metadata::{SqlInfoData, SqlInfoDataBuilder};
use arrow_flight::sql::{SqlInfo, SqlSupportedCaseSensitivity, SqlSupportedTransaction};

/// Version of Arrow's format that is spoken.
const ARROW_VERSION: &str = "1.5";

/// Returns all facts.
pub(super) fn facts() -> Result<SqlInfoData, FlightError> {
    let mut facts = SqlInfoDataBuilder::new();
    facts.append(SqlInfo::FlightSqlServerName, "nyala");
    facts.append(SqlInfo::FlightSqlServerVersion, env!("CARGO_PKG_VERSION"));
    facts.append(SqlInfo::FlightSqlServerArrowVersion, ARROW_VERSION);
    facts.append(SqlInfo::FlightSqlServerReadOnly, false);
    facts.append(SqlInfo::FlightSqlServerSql, true);
    facts.append(SqlInfo::FlightSqlServerSubstrait, false);
    facts.append(SqlInfo::FlightSqlServerTransaction, SqlSupportedTransaction::None as i32);
    facts.append(SqlInfo::FlightSqlServerCancel, false);
    facts.append(SqlInfo::FlightSqlServerBulkIngestion, true);
    facts.append(SqlInfo::FlightSqlServerIngestTransactionsSupported, false);
    facts.append(SqlInfo::SqlDdlCatalog, false);
    facts.append(SqlInfo::SqlDdlSchema, false);
    facts.append(SqlInfo::SqlDdlTable, true);
    let lowercase = SqlSupportedCaseSensitivity::SqlCaseSensitivityLowercase as i32;
    facts.append(SqlInfo::SqlIdentifierCase, lowercase);
    facts.append(SqlInfo::SqlIdentifierQuoteChar, "\"");
    facts.build()
}
