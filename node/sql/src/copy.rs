//! COPY between tables and files of this machine.
//!
//! ```text
//! COPY t TO 'f', COPY (query) TO 'f'  ── rows of a query ── file_writer ─► f.<random>.partial, then f
//! COPY t FROM 'f'                     ── nyala-files: blocks of cells, bad rows by line ─► INSERT by key
//! ```
//!
//! COPY FROM is no transaction: it stops at the first bad row, and the error counts the rows that were written.

use datafusion::execution::SendableRecordBatchStream;
use datafusion::logical_expr::sqlparser::ast::{
    CopyLegacyCsvOption, CopyLegacyOption, CopyOption, CopySource, CopyTarget, Ident, ObjectName,
    Statement as SqlStatement,
};
use datafusion::sql::parser::Statement;
use engine::error::ErrorKind;
use futures_util::StreamExt;
use nyala_backup::files::InputFile;
use nyala_client::{FlushMode, RowFailure, RowOpKind, Session, SessionConfig, Table};
use nyala_common::env::Env;
use nyala_files::reader::{CsvReader, ImportTarget};
use nyala_files::{ImportInput, JsonReader, ParquetReader};

use super::error::{SqlError, SqlResult, row_state, state};
use super::file_writer::{FileFormat, FileWriter};
use super::partition::table_name;
use super::tokens::{parser_of, tokens};

/// A COPY statement.
#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) action: CopyAction,
    path: String,
    format: FileFormat,
    delimiter: u8,
    null: String,
}

/// Direction of a copy.
#[derive(Debug)]
pub(crate) enum CopyAction {
    /// The rows of a query go to a file.
    Export(Statement),
    /// The rows of a file go to the named table.
    Import(String),
}

/// Options of a COPY statement as they are given.
#[derive(Default)]
struct Options {
    format: Option<FileFormat>,
    delimiter: Option<char>,
    null: Option<String>,
}

impl Copy {
    pub(crate) fn of(statement: &SqlStatement) -> SqlResult<Copy> {
        let SqlStatement::Copy { source, to, target, options, legacy_options, .. } = statement else {
            return Err(SqlError::new(format!("{statement} is no COPY")));
        };
        let CopyTarget::File { filename: path } = target else {
            return Err(SqlError::with_state(
                state::NOT_SUPPORTED,
                format!("COPY … {target} is not supported; name a file, as in COPY t TO 'rows.parquet'"),
            ));
        };
        let options = Options::of(options, legacy_options)?;
        let in_file = |error: SqlError| error.context(format_args!("file {path}"));
        let format = options.format.map_or_else(|| FileFormat::of_name(path), Ok).map_err(in_file)?;
        let action = match to {
            true => CopyAction::Export(query_of(source)?),
            false => CopyAction::Import(target_of(source)?),
        };
        options.check(format, *to).map_err(in_file)?;
        let delimiter = u8::try_from(options.delimiter.unwrap_or(','));
        let delimiter = delimiter.map_err(|_| SqlError::new("DELIMITER: not an ASCII character"))?;
        Ok(Copy { action, path: path.clone(), format, delimiter, null: options.null.unwrap_or_default() })
    }

    /// Writes rows to the file. Returns their number. The file appears under its name when it is complete.
    pub(crate) async fn export(&self, env: &Env, mut rows: SendableRecordBatchStream) -> SqlResult<u64> {
        let schema = rows.schema();
        let mut writer = env
            .run(|| FileWriter::create(env, &self.path, self.format, &self.null, schema))
            .await
            .map_err(|error| self.in_file(error))?;
        let mut count = 0;
        while let Some(batch) = rows.next().await {
            let batch = batch?;
            env.run(|| writer.write(&batch)).await.map_err(|error| self.in_file(error))?;
            count += batch.num_rows() as u64;
        }
        env.run(|| writer.finish()).await.map_err(|error| self.in_file(error))?;
        Ok(count)
    }

    /// Inserts the rows of the file into a table. Returns their number.
    pub(crate) async fn import(&self, table: &Table) -> SqlResult<u64> {
        let session = table.client().session(SessionConfig::new(FlushMode::AutoBackground));
        let read = self.read_all(table, &session).await;
        let mut failures = session.flush().await;
        failures.sort_by_key(|failure| failure.tag);
        let place = format!("file {}, table {}", self.path, table.name());
        // A row that the cluster refused came before the one that could not be read.
        let failed = match failures.into_iter().next() {
            Some(failure) => Err(self.refused(failure)),
            None => read,
        };
        let written = session.written();
        match failed {
            Ok(()) => Ok(written),
            Err(error) => Err(error.context(place).and(format_args!("{written} rows were written"))),
        }
    }

    async fn read_all(&self, table: &Table, session: &Session) -> SqlResult<()> {
        let env = table.client().env();
        let target = ImportTarget::new(table.schema(), table.name());
        let mut input = env.run(|| self.open(env, target)).await?;
        while let Some((rows, bad)) = env.run(|| input.next(target)).await? {
            let first_bad = bad.first().map_or(u64::MAX, |(line, _)| *line);
            let good = rows.tags.partition_point(|line| *line < first_bad);
            session.apply_columns(table, RowOpKind::Insert, &rows.columns, &rows.tags[..good]).await?;
            if let Some((line, reason)) = bad.into_iter().next() {
                let message = format!("{} {line}: {reason}", self.unit());
                return Err(SqlError::with_state(state::BAD_FILE, message));
            }
            if let Some(failure) = session.take_failures().into_iter().min_by_key(|failure| failure.tag) {
                return Err(self.refused(failure));
            }
        }
        Ok(())
    }

    fn open(&self, env: &Env, target: ImportTarget<'_>) -> engine::error::Result<ImportInput<InputFile>> {
        let file = InputFile::open(env, &self.path)?;
        Ok(match self.format {
            FileFormat::Csv => {
                let null = self.null.as_bytes();
                ImportInput::Csv(Box::new(CsvReader::open(file, target, self.delimiter, null)?))
            }
            FileFormat::Json => ImportInput::Json(Box::new(JsonReader::open(file))),
            FileFormat::Parquet => ImportInput::Parquet(Box::new(ParquetReader::open(file, target)?.0)),
        })
    }

    /// Returns the error for a row that the cluster did not write.
    fn refused(&self, failure: RowFailure) -> SqlError {
        let is_present = failure.error.kind == ErrorKind::AlreadyPresent;
        let row_state = row_state(Some(failure.error.kind));
        let error = SqlError::with_state(row_state, failure.error.message);
        let error = error.context(format_args!("{} {}", self.unit(), failure.tag));
        match is_present {
            true => error.and("delete the row, or remove it from the file"),
            false => error,
        }
    }

    fn unit(&self) -> &'static str {
        if self.format == FileFormat::Parquet { "row" } else { "line" }
    }

    fn in_file(&self, error: SqlError) -> SqlError {
        error.context(format_args!("file {}", self.path))
    }
}

/// Returns the query whose rows are copied to a file.
fn query_of(source: &CopySource) -> SqlResult<Statement> {
    let query = match source {
        CopySource::Query(query) => query.clone(),
        CopySource::Table { table_name, columns } => {
            let columns: Vec<String> = columns.iter().map(Ident::to_string).collect();
            let columns = if columns.is_empty() { "*".to_string() } else { columns.join(", ") };
            parser_of(tokens(&format!("SELECT {columns} FROM {table_name}"))?).parse_query()?
        }
    };
    Ok(Statement::Statement(Box::new(SqlStatement::Query(query))))
}

/// Returns the name of the table that rows are copied to.
fn target_of(source: &CopySource) -> SqlResult<String> {
    let name = |name: &ObjectName| table_name(name);
    match source {
        CopySource::Table { table_name, columns } if columns.is_empty() => name(table_name),
        CopySource::Table { table_name, .. } => {
            let what = "the file itself names its columns; leave the list of columns out";
            Err(SqlError::new(what).context(format_args!("COPY {table_name} FROM")))
        }
        CopySource::Query(_) => Err(SqlError::new("COPY … FROM needs the name of a table")),
    }
}

impl Options {
    fn of(options: &[CopyOption], legacy: &[CopyLegacyOption]) -> SqlResult<Options> {
        let mut found = Options::default();
        for option in options {
            match option {
                CopyOption::Format(name) => found.format = Some(FileFormat::of_word(&name.value)?),
                CopyOption::Delimiter(delimiter) => found.delimiter = Some(*delimiter),
                CopyOption::Null(text) => found.null = Some(text.clone()),
                CopyOption::Header(true) => {}
                other => return Err(bad_option(other)),
            }
        }
        for option in legacy {
            match option {
                CopyLegacyOption::Csv(inner) if inner.iter().all(is_header) => {
                    found.format = Some(FileFormat::Csv);
                }
                CopyLegacyOption::Header => {}
                CopyLegacyOption::Parquet => found.format = Some(FileFormat::Parquet),
                CopyLegacyOption::Delimiter(delimiter) => found.delimiter = Some(*delimiter),
                CopyLegacyOption::Null(text) => found.null = Some(text.clone()),
                other => return Err(bad_option(other)),
            }
        }
        Ok(found)
    }

    /// Refuses options that the format or the direction would ignore.
    fn check(&self, format: FileFormat, to: bool) -> SqlResult<()> {
        let is_text = format == FileFormat::Csv;
        if (self.delimiter.is_some() || self.null.is_some()) && !is_text {
            return Err(SqlError::new("DELIMITER and NULL are for CSV; leave them out"));
        }
        if to && self.delimiter.is_some_and(|delimiter| delimiter != ',') {
            return Err(SqlError::new("COPY TO writes commas between cells; leave DELIMITER out"));
        }
        Ok(())
    }
}

fn is_header(option: &CopyLegacyCsvOption) -> bool {
    matches!(option, CopyLegacyCsvOption::Header)
}

fn bad_option(option: &impl std::fmt::Display) -> SqlError {
    let message = format!("COPY option {option}: there are FORMAT, DELIMITER, NULL and HEADER");
    SqlError::with_state(state::NOT_SUPPORTED, message)
}
