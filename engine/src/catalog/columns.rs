//! Rules for names and columns, checked in the same way for new tables and for added columns.

use std::sync::Arc;

use super::commands::{ColumnChange, RequestedColumn};
use super::config::CatalogConfig;
use super::error::{CatalogError, CatalogErrorCode, CatalogResult};
use crate::error::Error;
use crate::ids::ColumnId;
use crate::schema::{ColumnSchema, DataType, Encoding, PhysicalType, Schema, TypeParameters};

/// The server-filled key column of tables whose declared key need not be unique.
pub const AUTO_INCREMENTING_ID: &str = "auto_incrementing_id";

/// Checks the name of a table or column, with Kudu's messages: not empty, not too long, no NUL.
pub(super) fn check_name(what: &str, name: &str, config: &CatalogConfig) -> CatalogResult<()> {
    let invalid = |why: &str| CatalogError::schema(format!("invalid {what} name: {why}"));
    if name.is_empty() {
        return Err(invalid("empty string not a valid identifier"));
    }
    check_length(&format!("{what} name"), name, config.identifier_bytes_max)?;
    if name.contains('\0') {
        return Err(invalid("identifier must not contain null bytes"));
    }
    Ok(())
}

pub(super) fn check_comment(what: &str, comment: &str, config: &CatalogConfig) -> CatalogResult<()> {
    check_length(&format!("{what} comment"), comment, config.comment_bytes_max)
}

pub(super) fn check_owner(owner: &str, config: &CatalogConfig) -> CatalogResult<()> {
    if owner.is_empty() {
        return Err(CatalogError::schema("invalid owner name: empty string is not a valid owner"));
    }
    check_length("owner name", owner, config.owner_bytes_max)
}

/// Bytes of a text that is too long in its error. A request may carry many MiB, which the reply must not repeat.
const SHOWN_BYTES_MAX: usize = 1024;

fn check_length(what: &str, text: &str, max: usize) -> CatalogResult<()> {
    if text.len() <= max {
        return Ok(());
    }
    let shown = &text[..text.floor_char_boundary(SHOWN_BYTES_MAX)];
    let cut = if shown.len() < text.len() { " .." } else { "" };
    Err(CatalogError::schema(format!(
        "invalid {what}: identifier '{shown}{cut}' longer than maximum permitted length {max}"
    )))
}

pub(super) fn check_column_count(count: usize, config: &CatalogConfig) -> CatalogResult<()> {
    if count > config.columns_max {
        let message =
            format!("number of columns {count} is greater than the permitted maximum {}", config.columns_max);
        return Err(CatalogError::schema(message));
    }
    Ok(())
}

/// Creates the schema of a new table; columns get the ids 0, 1, 2 …
pub(super) fn new_schema(
    requested: &[RequestedColumn],
    config: &CatalogConfig,
) -> CatalogResult<Arc<Schema>> {
    check_column_count(requested.len(), config)?;
    let keys = requested.iter().take_while(|column| column.is_key).count();
    if let Some(out_of_order) = requested[keys..].iter().find(|column| column.is_key) {
        let name = &out_of_order.column.name;
        return Err(CatalogError::invalid(format!("Got out-of-order key column: {name}")));
    }
    if keys == 0 {
        return Err(CatalogError::schema("must specify at least one key column"));
    }
    let mut columns = Vec::with_capacity(requested.len());
    for (request, id) in requested.iter().zip(0..) {
        columns.push(new_column(request, ColumnId(id), config)?);
    }
    Ok(Arc::new(Schema::new(columns, keys)?))
}

/// Creates a new column, checked, with its defaults and its id.
pub(super) fn new_column(
    request: &RequestedColumn,
    id: ColumnId,
    config: &CatalogConfig,
) -> CatalogResult<ColumnSchema> {
    let mut column = request.column.clone();
    let name = &column.name;
    check_name("column", name, config)?;
    check_comment("column", &column.comment, config)?;
    if request.has_id {
        return Err(CatalogError::schema(format!(
            "column {name:?} may not carry an id; the server gives ids"
        )));
    }
    if column.ty == DataType::IsDeleted {
        return Err(CatalogError::invalid(format!(
            "column {name:?} may not be of the virtual type IS_DELETED"
        )));
    }
    if request.is_key {
        check_key_column(&column)?;
    }
    check_auto_incrementing(&column, request.is_key)?;
    check_encoding(&column)?;
    check_attributes(&column)?;
    resolve_defaults(&mut column)?;
    column.id = id;
    Ok(column)
}

fn check_key_column(column: &ColumnSchema) -> CatalogResult<()> {
    let name = &column.name;
    if column.nullable {
        return Err(CatalogError::invalid(format!(
            "Bad schema: Nullable key columns are not supported: {name}"
        )));
    }
    if !column.ty.allowed_in_key() {
        let ty = column.ty.name();
        return Err(CatalogError::schema(format!("key column {name:?} may not have type {ty}")));
    }
    Ok(())
}

fn check_auto_incrementing(column: &ColumnSchema, is_key: bool) -> CatalogResult<()> {
    let reserved = column.name == AUTO_INCREMENTING_ID;
    if reserved && !column.auto_incrementing {
        return Err(CatalogError::schema(format!("the column name {AUTO_INCREMENTING_ID:?} is reserved")));
    }
    if !column.auto_incrementing {
        return Ok(());
    }
    if !reserved || !is_key || column.ty != DataType::Int64 {
        let message = format!("an auto-incrementing column is an INT64 key named {AUTO_INCREMENTING_ID:?}");
        return Err(CatalogError::schema(message));
    }
    if column.read_default.is_some() || column.write_default.is_some() || column.immutable {
        return Err(CatalogError::schema("an auto-incrementing column has no default and is not immutable"));
    }
    Ok(())
}

pub(super) fn check_encoding(column: &ColumnSchema) -> CatalogResult<()> {
    use Encoding::{Auto, BitShuffle, Dict, Plain, Prefix, Rle};
    let legal = match column.ty.physical() {
        PhysicalType::Bool => matches!(column.encoding, Auto | Plain | Rle),
        PhysicalType::Binary => matches!(column.encoding, Auto | Plain | Prefix | Dict),
        PhysicalType::Float | PhysicalType::Double | PhysicalType::Int128 => {
            matches!(column.encoding, Auto | Plain | BitShuffle)
        }
        _ => matches!(column.encoding, Auto | Plain | BitShuffle | Rle),
    };
    if legal {
        return Ok(());
    }
    let error = Error::unsupported(format!(
        "invalid encoding for column '{}': encoding {} not supported for type {}",
        column.name,
        column.encoding.name(),
        column.ty.name()
    ));
    Err(CatalogError::new(CatalogErrorCode::InvalidSchema, error))
}

fn check_attributes(column: &ColumnSchema) -> CatalogResult<()> {
    let TypeParameters::Digits(digits) = column.ty.parameters() else { return Ok(()) };
    let (precision, scale) = (column.attributes.precision, column.attributes.scale);
    if precision == 0 || precision > digits || scale > precision {
        return Err(CatalogError::schema(format!(
            "column {:?}: {} cannot have precision {precision} and scale {scale}",
            column.name,
            column.ty.name()
        )));
    }
    Ok(())
}

/// Sets both defaults. A request gives the default once, as the read default; rows written later get the same.
fn resolve_defaults(column: &mut ColumnSchema) -> CatalogResult<()> {
    if let (Some(read), Some(write)) = (&column.read_default, &column.write_default)
        && read != write
    {
        let name = &column.name;
        return Err(CatalogError::schema(format!(
            "column {name:?} has a write default unlike its read default"
        )));
    }
    let default = column.read_default.take().or(column.write_default.take());
    check_default(column, default.as_deref())?;
    column.read_default.clone_from(&default);
    column.write_default = default;
    Ok(())
}

/// Longest default of a column without a fixed width, in bytes: Kudu's limit of a cell that a client writes. Every row
/// from before the column was added has it.
const DEFAULT_BYTES_MAX: usize = 64 << 10;

fn check_default(column: &ColumnSchema, default: Option<&[u8]>) -> CatalogResult<()> {
    let Some(default) = default else { return Ok(()) };
    let Some(width) = column.ty.width() else { return check_default_length(column, default) };
    if default.len() != width {
        return Err(CatalogError::schema(format!(
            "the default of column {:?} has {} bytes, a cell of {} has {width}",
            column.name,
            default.len(),
            column.ty.name()
        )));
    }
    if column.ty.physical() == PhysicalType::Bool && default[0] > 1 {
        return Err(CatalogError::schema(format!(
            "the default of column {:?} is the byte {}, a cell of {} is 0 or 1",
            column.name,
            default[0],
            column.ty.name()
        )));
    }
    Ok(())
}

fn check_default_length(column: &ColumnSchema, default: &[u8]) -> CatalogResult<()> {
    if default.len() > DEFAULT_BYTES_MAX {
        return Err(CatalogError::schema(format!(
            "the default of column {:?} has {} bytes, at most {DEFAULT_BYTES_MAX} are allowed",
            column.name,
            default.len()
        )));
    }
    Ok(())
}

/// Trims the superfluous bytes of an integer or a BOOL that fits the column: clients that change a default do not know
/// the column's width, and send 64 bits.
fn trim_default<'a>(column: &ColumnSchema, default: &'a [u8]) -> &'a [u8] {
    let is_trimmed = matches!(
        column.ty.physical(),
        PhysicalType::Bool
            | PhysicalType::Int8
            | PhysicalType::Int16
            | PhysicalType::Int32
            | PhysicalType::Int64
            | PhysicalType::Int128
    );
    let (true, Some(width)) = (is_trimmed, column.ty.width()) else { return default };
    let Some((value, rest)) = default.split_at_checked(width) else { return default };
    let sign = if value.last().is_some_and(|byte| *byte >= 0x80) { 0xff } else { 0 };
    if rest.iter().all(|byte| *byte == sign) { value } else { default }
}

/// Applies a change to an existing column. Its read default stays: rows already written keep their values.
pub(super) fn change_column(
    column: &mut ColumnSchema,
    change: &ColumnChange,
    config: &CatalogConfig,
) -> CatalogResult<()> {
    if change.default.is_some() && change.remove_default {
        let name = &change.name;
        return Err(CatalogError::invalid(format!(
            "column {name:?}: a default cannot be both set and removed"
        )));
    }
    if let Some(default) = &change.default {
        let default = trim_default(column, default);
        check_default(column, Some(default))?;
        column.write_default = Some(default.to_vec());
    }
    if change.remove_default {
        column.write_default = None;
    }
    if let Some(encoding) = change.encoding {
        column.encoding = encoding;
        check_encoding(column)?;
    }
    column.compression = change.compression.unwrap_or(column.compression);
    column.block_bytes = change.block_bytes.unwrap_or(column.block_bytes);
    if let Some(comment) = &change.comment {
        check_comment("column", comment, config)?;
        column.comment.clone_from(comment);
    }
    column.immutable = change.immutable.unwrap_or(column.immutable);
    check_auto_incrementing(column, true)
}
