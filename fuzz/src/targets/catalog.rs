//! Requests to create and alter tables, from the bytes of the message to what the catalog keeps.

use engine::catalog::{AlterTable, CatalogConfig, Command, TableRef};
use node::master::convert;
use node::proto::kudu::master::{AlterTableRequestPb, CreateTableRequestPb};
use prost::Message;

use crate::one_server::OneServer;
use crate::seeds::table_with_hash_and_range;

/// What the bytes of a request come to, if they are one.
fn create(message: &[u8]) -> Option<Command> {
    let pb = CreateTableRequestPb::decode(message).ok()?;
    Some(Command::Create(Box::new(convert::create_table(&pb).ok()?)))
}

pub fn create_table(data: &[u8]) {
    if let Some(create) = create(data) {
        let _ = OneServer::new(CatalogConfig::default()).command(create);
    }
}

/// A request to alter the table that is there.
pub fn alter_table(data: &[u8]) {
    let mut world = OneServer::new(CatalogConfig::default());
    let create = create(&table_with_hash_and_range().encode_to_vec()).expect("a lawful request");
    world.command(create).expect("a lawful table");
    let Ok(pb) = AlterTableRequestPb::decode(data) else { return };
    let Ok(alter) = convert::alter_table(&pb) else { return };
    let named = AlterTable { table: TableRef::by_name("t"), ..alter.clone() };
    for alter in [alter, named] {
        let _ = world.command(Command::Alter(Box::new(alter)));
    }
}
