//! Requests to create and alter tables, from their bytes to the catalog's records.

use engine::catalog::{AlterTable, CatalogCommand, CatalogConfig, TableRef};
use node::master::proto;
use nyala_proto::kudu::master::{AlterTableRequestPb, CreateTableRequestPb};
use prost::Message;

use crate::seeds::table_with_hash_and_range;
use engine_testkit::single_server_catalog::OneServer;

/// Returns the command of a request's bytes, if they are a request.
fn create(message: &[u8]) -> Option<CatalogCommand> {
    let pb = CreateTableRequestPb::decode(message).ok()?;
    Some(CatalogCommand::Create(Box::new(proto::create_table(&pb).ok()?)))
}

pub(super) fn create_table(data: &[u8]) {
    if let Some(create) = create(data) {
        let _ = OneServer::new(CatalogConfig::default()).command(create);
    }
}

/// Checks a request to alter the existing table.
pub(super) fn alter_table(data: &[u8]) {
    let mut world = OneServer::new(CatalogConfig::default());
    let create = create(&table_with_hash_and_range().encode_to_vec()).expect("a lawful request");
    world.command(create).expect("a lawful table");
    let Ok(pb) = AlterTableRequestPb::decode(data) else { return };
    let Ok(alter) = proto::alter_table(&pb) else { return };
    let named = AlterTable { table: TableRef::by_name("t"), ..alter.clone() };
    for alter in [alter, named] {
        let _ = world.command(CatalogCommand::Alter(Box::new(alter)));
    }
}
