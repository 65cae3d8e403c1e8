//! Texts that users write: plans of the simulator, configuration files, cells.

use engine::schema::format_cell;
use node::config;
use node::server::flags::Flags;
use nyala_client::cell_text::parse_cell;
use nyala_common::rpc::negotiate::Subnet;

use super::import::import_schema;
use sim_plan::Plan;

/// Checks that a parsed plan equals the parse of its own text.
pub(super) fn plan(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(plan) = text.parse::<Plan>() else { return };
    let again = plan.to_string();
    let read: Plan = again.parse().unwrap_or_else(|error| panic!("{error}:\n{again}"));
    assert_eq!(read.to_string(), again);
}

/// Checks a configuration file, and the flags that it sets.
pub(super) fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let flags = Flags::new();
    let error = config::apply_file(&flags, None, "nyala.toml", text).err();
    if let Some(error) = error {
        assert!(error.message.starts_with("nyala.toml"), "the error names the file: {error}");
        return;
    }
    let _ = config::rpc(&flags);
    let _ = config::raft(&flags);
    let _ = config::directories(&flags);
    let _ = config::masters(&flags, "master_addresses");
    for flag in flags.all() {
        let value = flags.text(flag.spec.name);
        flags.fork().set(flag.spec.name, &value).expect("what was taken is taken again");
    }
}

/// Checks a cell's text. First byte: the column's type; then the text.
pub(super) fn cell(data: &[u8]) {
    let Some((&ty, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let schema = import_schema();
    let column = &schema.columns()[usize::from(ty) % schema.columns().len()];
    let _ = Subnet::parse(text);
    let _ = nyala_client::definitions::column(0, text);
    let Ok(cell) = parse_cell(column, text) else { return };
    let width = column.ty.width();
    assert!(width.is_none_or(|width| width == cell.len()), "{cell:?} in {column}");
    let shown = format_cell(column.ty, column.attributes, &cell);
    assert!(!shown.is_empty() || cell.is_empty(), "{cell:?} is shown as nothing");
}
