//! Stream settings of a column, by its schema and the server's configuration.

use crate::cfile::encoding::resolve;
use crate::cfile::writer::StreamSpec;
use crate::config::ColumnFileConfig;
use crate::error::{Error, Result};
use crate::schema::{ColumnSchema, Compression, Encoding, PhysicalType};

pub(super) fn column_spec(
    column: &ColumnSchema,
    is_key: bool,
    config: &ColumnFileConfig,
) -> Result<StreamSpec> {
    let physical = column.ty.physical();
    let encoding = match (column.encoding, physical) {
        // Key values are distinct, so a dictionary is useless; they are sorted, so prefixes are shared.
        (Encoding::Auto, PhysicalType::Binary) if is_key => Encoding::Prefix,
        (requested, _) => resolve(physical, requested)
            .map_err(|error| Error::unsupported(format!("column {:?}: {error}", column.name)))?,
    };
    let compression = match column.compression {
        Compression::Default => config.compression,
        requested => requested,
    };
    let page_bytes = match (usize::try_from(column.block_bytes), is_key) {
        (Ok(requested), _) if requested > 0 => requested.clamp(64, 4 << 20),
        (_, true) => config.key_page_bytes,
        (_, false) => config.page_bytes,
    };
    Ok(StreamSpec {
        stream: column.id.0,
        physical,
        nullable: column.nullable,
        encoding,
        compression,
        page_bytes,
        exact_bounds: is_key,
    })
}
