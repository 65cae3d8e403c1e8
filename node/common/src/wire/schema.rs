//! Schemas and ids: protobuf ↔ the engine's types.
//!
//! Schemas of servers carry column ids, schemas of clients never do. [`schema_from_pb`] converts the former.
//! [`column_from_pb`] converts a column of the latter and gives it an id chosen by the caller.

use std::collections::BTreeMap;

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::ids::{ColumnId, Uuid};
use engine::schema::table_settings::{DISABLE_COMPACTION, HISTORY_MAX_AGE_SEC, MAINTENANCE_PRIORITY};
use engine::schema::{ColumnSchema, Compression, DataType, Encoding, Schema, TypeAttributes, TypeParameters};

pub use super::partition::{
    from_pb as partition_from_pb, schema_from_pb as partition_schema_from_pb,
    schema_to_pb as partition_schema_to_pb, to_pb as partition_to_pb,
};
use nyala_proto::kudu::{ColumnSchemaPb, ColumnTypeAttributesPb, SchemaPb, TableExtraConfigPb};

/// Maximum number of digits of a DECIMAL. Source: `rows.md` §1.
const DECIMAL_PRECISION_MAX: i32 = 38;

/// Returns an id as in messages: 32 lower-case hex characters.
pub fn id_bytes(id: &Uuid) -> Bytes {
    Bytes::from(id.to_string())
}

/// Converts a type number; fails with `Invalid` if it is unknown.
pub fn data_type(number: i32) -> Result<DataType> {
    DataType::from_number(number)
        .ok_or_else(|| Error::invalid(format!("unknown column type number {number}")))
}

/// Converts an encoding number; fails with `Unsupported` if this server cannot write it.
pub fn encoding(number: i32) -> Result<Encoding> {
    Ok(match number {
        0 => Encoding::Auto,
        1 => Encoding::Plain,
        2 => Encoding::Prefix,
        4 => Encoding::Rle,
        5 => Encoding::Dict,
        6 => Encoding::BitShuffle,
        _ => return Err(Error::unsupported(format!("encoding number {number} is not supported"))),
    })
}

/// Converts a compression number; fails with `Unsupported` if this server cannot write it.
pub fn compression(number: i32) -> Result<Compression> {
    Ok(match number {
        0 => Compression::Default,
        1 => Compression::None,
        2 => Compression::Snappy,
        3 => Compression::Lz4,
        4 => Compression::Zlib,
        _ => return Err(Error::unsupported(format!("compression number {number} is not supported"))),
    })
}

/// Returns the protocol's number. ZSTD has none, so it is reported as the server's default.
fn compression_number(compression: Compression) -> i32 {
    match compression {
        Compression::Zstd => Compression::Default as i32,
        known => known as i32,
    }
}

/// Converts a column and gives it `id`; an id in the message is ignored. Checks the column alone: its type and type
/// attributes, encoding, compression and the width of its defaults.
pub fn column_from_pb(pb: &ColumnSchemaPb, id: ColumnId) -> Result<ColumnSchema> {
    let in_column = |error: Error| error.context(format!("column {:?}", pb.name));
    let ty = data_type(pb.r#type).map_err(in_column)?;
    let default = |value: &Option<Bytes>| -> Result<Option<Vec<u8>>> {
        value.as_ref().map(|bytes| cell(ty, bytes).map(<[u8]>::to_vec)).transpose()
    };
    Ok(ColumnSchema {
        id,
        name: pb.name.clone(),
        ty,
        attributes: attributes(pb, ty).map_err(in_column)?,
        nullable: pb.is_nullable(),
        read_default: default(&pb.read_default_value).map_err(in_column)?,
        write_default: default(&pb.write_default_value).map_err(in_column)?,
        encoding: encoding(pb.encoding.unwrap_or_default()).map_err(in_column)?,
        compression: compression(pb.compression.unwrap_or_default()).map_err(in_column)?,
        block_bytes: pb.cfile_block_size(),
        comment: pb.comment.clone().unwrap_or_default(),
        immutable: pb.immutable(),
        auto_incrementing: pb.is_auto_incrementing(),
    })
}

/// Returns `value` if it can be a cell of the type: fixed widths must match.
pub fn cell(ty: DataType, value: &[u8]) -> Result<&[u8]> {
    match ty.width() {
        Some(width) if width != value.len() => Err(Error::invalid(format!(
            "a value of type {} has {width} bytes, not {}",
            ty.name(),
            value.len()
        ))),
        _ => Ok(value),
    }
}

fn attributes(pb: &ColumnSchemaPb, ty: DataType) -> Result<TypeAttributes> {
    let given = pb.type_attributes.unwrap_or_default();
    let (precision, scale, length) = (given.precision(), given.scale(), given.length());
    match ty.parameters() {
        TypeParameters::Digits(_) => {
            if !(1..=DECIMAL_PRECISION_MAX).contains(&precision) || !(0..=precision).contains(&scale) {
                let message = format!(
                    "DECIMAL({precision}, {scale}) needs 1 <= precision <= 38 and 0 <= scale <= precision"
                );
                return Err(Error::invalid(message));
            }
            Ok(TypeAttributes { precision: precision as u8, scale: scale as u8, length: 0 })
        }
        TypeParameters::Length => match u16::try_from(length) {
            Ok(length) if length > 0 => Ok(TypeAttributes { precision: 0, scale: 0, length }),
            _ => Err(Error::invalid(format!("VARCHAR({length}) needs a length from 1 to 65535"))),
        },
        TypeParameters::None => Ok(TypeAttributes::default()),
    }
}

/// Converts a column as servers report it: with its id and all optional fields.
pub fn column_to_pb(column: &ColumnSchema, is_key: bool) -> ColumnSchemaPb {
    let bytes = |value: &Option<Vec<u8>>| value.as_ref().map(|value| Bytes::copy_from_slice(value));
    ColumnSchemaPb {
        id: Some(column.id.0),
        name: column.name.clone(),
        r#type: column.ty as i32,
        is_key: Some(is_key),
        is_nullable: Some(column.nullable),
        read_default_value: bytes(&column.read_default),
        write_default_value: bytes(&column.write_default),
        encoding: Some(column.encoding as i32),
        compression: Some(compression_number(column.compression)),
        cfile_block_size: Some(column.block_bytes),
        type_attributes: attributes_to_pb(column),
        comment: (!column.comment.is_empty()).then(|| column.comment.clone()),
        immutable: Some(column.immutable),
        is_auto_incrementing: Some(column.auto_incrementing),
    }
}

fn attributes_to_pb(column: &ColumnSchema) -> Option<ColumnTypeAttributesPb> {
    let TypeAttributes { precision, scale, length } = column.attributes;
    match column.ty.parameters() {
        TypeParameters::Digits(_) => Some(ColumnTypeAttributesPb {
            precision: Some(i32::from(precision)),
            scale: Some(i32::from(scale)),
            length: None,
        }),
        TypeParameters::Length => {
            Some(ColumnTypeAttributesPb { precision: None, scale: None, length: Some(i32::from(length)) })
        }
        TypeParameters::None => None,
    }
}

/// Converts a schema as servers send it, with column ids.
pub fn schema_to_pb(schema: &Schema) -> SchemaPb {
    let keys = schema.num_key_columns();
    let columns = schema.columns().iter().enumerate().map(|(i, column)| column_to_pb(column, i < keys));
    SchemaPb { columns: columns.collect() }
}

/// Converts a schema as clients send it, without column ids.
pub fn schema_to_client_pb(schema: &Schema) -> SchemaPb {
    let mut pb = schema_to_pb(schema);
    pb.columns.iter_mut().for_each(|column| column.id = None);
    pb
}

/// Converts a schema from another server. Every column must carry its id.
pub fn schema_from_pb(pb: &SchemaPb) -> Result<Schema> {
    let key_columns = key_columns(pb)?;
    let columns = pb.columns.iter().map(|column| match column.id {
        Some(id) => column_from_pb(column, ColumnId(id)),
        None => Err(Error::invalid(format!("column {:?} has no id", column.name))),
    });
    Schema::new(columns.collect::<Result<_>>()?, key_columns)
}

/// Returns the number of key columns; fails with `Invalid` if a key column follows another column.
pub fn key_columns(pb: &SchemaPb) -> Result<usize> {
    let keys = pb.columns.iter().take_while(|column| column.is_key()).count();
    match pb.columns[keys..].iter().find(|column| column.is_key()) {
        None => Ok(keys),
        Some(late) => {
            let name = &late.name;
            let message =
                format!("Got out-of-order key column {name:?}: it comes after a column outside the key");
            Err(Error::invalid(message))
        }
    }
}

/// Converts a client's columns, with their positions as ids. The caller finds them in the tablet's schema by name.
pub fn client_columns(columns: &[ColumnSchemaPb]) -> Result<Vec<ColumnSchema>> {
    columns.iter().zip(0..).map(|(column, i)| column_from_pb(column, ColumnId(i))).collect()
}

/// Returns a table's extra configuration by the names that tools use. Unset entries are left out.
pub fn extra_config(pb: &TableExtraConfigPb) -> BTreeMap<String, String> {
    let settings = [
        (HISTORY_MAX_AGE_SEC, pb.history_max_age_sec.map(|age| age.to_string())),
        (MAINTENANCE_PRIORITY, pb.maintenance_priority.map(|priority| priority.to_string())),
        (DISABLE_COMPACTION, pb.disable_compaction.map(|disable| disable.to_string())),
    ];
    let set = settings.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?)));
    set.collect()
}

/// Fails with `Invalid` if a column of a client's message carries an id.
pub fn refuse_ids(columns: &[ColumnSchemaPb]) -> Result<()> {
    match columns.iter().find(|column| column.id.is_some()) {
        None => Ok(()),
        Some(column) => Err(Error::invalid(format!(
            "column {:?} carries an id: a request's schema must not have column ids",
            column.name
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Schema {
        let mut decimal = ColumnSchema::new(3, "d", DataType::Decimal128).nullable();
        decimal.attributes = TypeAttributes { precision: 38, scale: 2, length: 0 };
        decimal.encoding = Encoding::Plain;
        decimal.compression = Compression::Lz4;
        decimal.block_bytes = 4096;
        let mut name = ColumnSchema::new(7, "name", DataType::Varchar);
        name.attributes.length = 10;
        name.comment = "who".to_string();
        name.immutable = true;
        name.read_default = Some(b"x".to_vec());
        name.write_default = Some(b"y".to_vec());
        Schema::new(vec![ColumnSchema::new(0, "k", DataType::Int64), decimal, name], 1)
            .expect("a valid schema")
    }

    #[test]
    fn a_schema_survives_the_wire() {
        let pb = schema_to_pb(&schema());
        assert_eq!(schema_from_pb(&pb).expect("message was just written"), schema());
        assert!(refuse_ids(&pb.columns).is_err());
        let client = schema_to_client_pb(&schema());
        assert!(refuse_ids(&client.columns).is_ok());
        assert!(schema_from_pb(&client).is_err(), "a server's schema has ids");
    }

    #[test]
    fn errors_of_bad_columns_name_the_fault() {
        let good = column_to_pb(&ColumnSchema::new(1, "c", DataType::Int32), false);
        let of = |change: &dyn Fn(&mut ColumnSchemaPb)| {
            let mut pb = good.clone();
            change(&mut pb);
            column_from_pb(&pb, ColumnId(1)).expect_err("a bad column").message
        };
        expect_test::expect![[r#"
            column "c": unknown column type number 77
            column "c": encoding number 3 is not supported
            column "c": a value of type INT32 has 4 bytes, not 3
            column "c": DECIMAL(0, 0) needs 1 <= precision <= 38 and 0 <= scale <= precision
            column "c": VARCHAR(0) needs a length from 1 to 65535
        "#]]
        .assert_eq(&format!(
            "{}\n{}\n{}\n{}\n{}\n",
            of(&|c| c.r#type = 77),
            of(&|c| c.encoding = Some(3)),
            of(&|c| c.read_default_value = Some(Bytes::from_static(b"123"))),
            of(&|c| c.r#type = DataType::Decimal32 as i32),
            of(&|c| c.r#type = DataType::Varchar as i32),
        ));
    }

    #[test]
    fn keys_come_first() {
        let mut pb = schema_to_pb(&schema());
        assert_eq!(key_columns(&pb).expect("one key column"), 1);
        pb.columns[2].is_key = Some(true);
        assert!(key_columns(&pb).is_err());
    }
}
