//! `nyala table …` commands that change a table or single rows: alter, rename, drop, recall; insert, update, delete.

use std::io::{BufRead, IsTerminal, Write};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use engine::error::{Error, Result};
use engine::schema::row_ops::{ClientCell, RowOpKind};
use nyala_client::cell_text::parse_cell;
use nyala_client::tables::AlterStep;
use nyala_client::{Client, FlushMode, SessionConfig, Table};
use nyala_common::env::Env;

use super::exit::ExitError;
use super::options::{connect, many, named, open, option, text, texts};
use super::output::print;
use nyala_client::definitions;

/// Days for which a dropped table can be recalled, unless told otherwise.
const KEEP_DAYS: &str = "7";
const SECONDS_A_DAY: u64 = 86_400;

pub(super) fn commands() -> [Command; 8] {
    [alter(), rename(), drop_table(), recall(), row("insert"), row("upsert"), row("update"), row("delete")]
}

fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

fn alter() -> Command {
    named("alter", "Change a table's columns and range partitions; all changes or none")
        .after_help(format!("Types: {}", definitions::TYPES))
        .arg(many("add-column", "DEF", "A new column, e.g. 'price decimal(15,2) null default=0'"))
        .arg(many("drop-column", "NAME", "Remove a column and its values"))
        .arg(many("rename-column", "OLD=NEW", "Rename a column"))
        .arg(many("set-default", "NAME=VALUE", "Default of a column in rows written later"))
        .arg(many("remove-default", "NAME", "Remove a column's default"))
        .arg(many("add-range", "LOW..HIGH", "A new range partition, e.g. '0..100' or '100..'"))
        .arg(many("drop-range", "LOW..HIGH", "Remove a range partition and its rows"))
        .arg(flag("yes", "Do not ask; needed to drop where standard input is no terminal"))
}

/// Options of [`alter`] that change something.
const CHANGES: [&str; 7] = [
    "add-column",
    "drop-column",
    "rename-column",
    "set-default",
    "remove-default",
    "add-range",
    "drop-range",
];

fn rename() -> Command {
    named("rename", "Rename a table").arg(Arg::new("to").value_name("NEW").required(true).help("New name"))
}

fn drop_table() -> Command {
    named("drop", "Drop a table; it can be recalled for some days")
        .arg(flag("yes", "Do not ask; needed where standard input is no terminal"))
        .arg(
            option("keep-days", "N", "Days for which the table can be recalled")
                .default_value(KEEP_DAYS)
                .value_parser(value_parser!(u64).range(1..=3650)),
        )
        .arg(flag("now", "Remove table and rows at once, without recall").conflicts_with("keep-days"))
}

fn recall() -> Command {
    named("recall", "Bring back a dropped table; see nyala table list --dropped").arg(option(
        "as",
        "NAME",
        "New name of the table [default: the old one]",
    ))
}

fn row(kind: &'static str) -> Command {
    let about = match kind {
        "insert" => "Insert a row",
        "upsert" => "Insert a row or replace the cells given",
        "update" => "Change cells of a row",
        _ => "Delete a row by its key",
    };
    named(kind, about).arg(
        Arg::new("cell")
            .value_name("COLUMN=VALUE")
            .required(true)
            .num_args(1..)
            .help("Cells; the key's are required. 'COLUMN=' is the empty text, 'COLUMN' alone is NULL"),
    )
}

/// Runs the command of this name.
pub(super) async fn run(env: &Env, name: &str, matches: &ArgMatches) -> Result<(), ExitError> {
    match name {
        "alter" => run_alter(env, matches).await,
        "rename" => {
            let (old, new) = (text(matches, "table").unwrap_or_default(), text(matches, "to"));
            let table = open(&connect(env, matches).await?, matches).await?;
            table.client().alter_table(&table, &[], new).await?;
            print(&format!("renamed table {old} to {}\n", new.unwrap_or_default()));
            Ok(())
        }
        "drop" => run_drop(env, matches).await,
        "recall" => Ok(run_recall(&connect(env, matches).await?, matches).await?),
        _ => run_row(env, name, matches).await,
    }
}

async fn run_alter(env: &Env, matches: &ArgMatches) -> Result<(), ExitError> {
    if !CHANGES.iter().any(|change| matches.contains_id(change)) {
        let error = Error::invalid("no change is given; see nyala table alter --help");
        return Err(ExitError::usage(error));
    }
    let table = open(&connect(env, matches).await?, matches).await?;
    let steps = alter_steps(&table, matches)?;
    if !matches.get_flag("yes") {
        confirm_removals(table.name(), matches)?;
    }
    let altered = table.client().alter_table(&table, &steps, None).await?;
    let (changes, plural) = (steps.len(), if steps.len() == 1 { "" } else { "s" });
    print(&format!("altered table {}: {changes} change{plural}\n", altered.name()));
    Ok(())
}

/// Asks before values or rows are removed: unlike a dropped table, they cannot be recalled.
fn confirm_removals(table: &str, matches: &ArgMatches) -> Result<()> {
    let columns = texts(matches, "drop-column").map(|name| format!("column {name}"));
    let ranges = texts(matches, "drop-range").map(|bounds| format!("range {bounds}"));
    let removed = columns.chain(ranges).collect::<Vec<_>>().join(", ");
    if removed.is_empty() {
        return Ok(());
    }
    let question = format!("Remove {removed} of table {table} at once and without recall?");
    confirm(table, &question, &format!("not altered, {removed} would be gone"))
}

fn alter_steps(table: &Table, matches: &ArgMatches) -> Result<Vec<AlterStep>> {
    let find = |name: &str| definitions::find(table.schema(), name, table.name());
    let split = |text: &str, what: &str| {
        let missing = || Error::invalid(format!("{text:?} is not {what}"));
        text.split_once('=').map(|(a, b)| (a.trim().to_string(), b.to_string())).ok_or_else(missing)
    };
    let mut steps = Vec::new();
    for column in texts(matches, "add-column") {
        // The master gives the id.
        steps.push(AlterStep::AddColumn(definitions::column(0, column)?));
    }
    for name in texts(matches, "drop-column") {
        steps.push(AlterStep::DropColumn(find(name)?.name.clone()));
    }
    for names in texts(matches, "rename-column") {
        let (from, to) = split(names, "OLD=NEW")?;
        steps.push(AlterStep::RenameColumn { from: find(&from)?.name.clone(), to: to.trim().to_string() });
    }
    for default in texts(matches, "set-default") {
        let (name, value) = split(default, "NAME=VALUE")?;
        let column = find(&name)?;
        let cell = parse_cell(column, &value).map_err(|error| error.context(format!("column {name:?}")))?;
        steps.push(AlterStep::SetDefault { column: column.name.clone(), default: Some(cell) });
    }
    for name in texts(matches, "remove-default") {
        steps.push(AlterStep::SetDefault { column: find(name)?.name.clone(), default: None });
    }
    let ranges = &table.partition_schema().range_columns;
    let columns: Vec<_> = ranges.iter().filter_map(|id| table.schema().by_id(*id).cloned()).collect();
    let range = |text: &str| match columns.is_empty() {
        true => Err(Error::invalid(format!("table {} has no range partitions", table.name()))),
        false => definitions::range(text, &columns),
    };
    for bounds in texts(matches, "drop-range") {
        steps.push(AlterStep::DropRange(range(bounds)?));
    }
    for bounds in texts(matches, "add-range") {
        steps.push(AlterStep::AddRange(range(bounds)?));
    }
    Ok(steps)
}

async fn run_drop(env: &Env, matches: &ArgMatches) -> Result<(), ExitError> {
    let name = text(matches, "table").expect("it is required");
    let client = connect(env, matches).await?;
    let table = client.open_table(name).await?;
    let now = matches.get_flag("now");
    let days = *matches.get_one::<u64>("keep-days").expect("it has a default");
    if !matches.get_flag("yes") {
        let how = if now { " at once and without recall" } else { "" };
        confirm(name, &format!("Drop table {name}{how}?"), "not dropped")?;
    }
    let reserve = if now { 0 } else { days * SECONDS_A_DAY };
    client.delete_table_later(name, u32::try_from(reserve).unwrap_or(u32::MAX)).await?;
    if now {
        print(&format!("dropped table {name}\n"));
    } else {
        let id = table.id();
        print(&format!("dropped table {name}; for {days} days: nyala table recall {id}\n"));
    }
    Ok(())
}

/// Asks for the table's name. `left` says what is not done without it.
fn confirm(name: &str, question: &str, left: &str) -> Result<()> {
    let (input, no) = (std::io::stdin(), |why: &str| Error::invalid(format!("table {name}: {left} ({why})")));
    if !input.is_terminal() {
        return Err(no("standard input is no terminal; give --yes"));
    }
    print(&format!("{question} Type the table's name: "));
    let failed = |error: std::io::Error| Error::io("ask", &error);
    std::io::stdout().flush().map_err(failed)?;
    let mut answer = String::new();
    input.lock().read_line(&mut answer).map_err(failed)?;
    if answer.trim() == name { Ok(()) } else { Err(no("another name was typed")) }
}

async fn run_recall(client: &Client, matches: &ArgMatches) -> Result<()> {
    let wanted = text(matches, "table").expect("it is required");
    let mut dropped = client.deleted_tables().await?;
    dropped.retain(|table| table.id == wanted || table.name == wanted);
    let table = match dropped.as_slice() {
        [table] => table,
        [] => return Err(Error::not_found(format!("table {wanted}: not among the dropped tables"))),
        many => {
            let ids: Vec<&str> = many.iter().map(|table| table.id.as_str()).collect();
            let ids = ids.join(", ");
            let message = format!("table {wanted}: dropped {} times; name one by its id ({ids})", many.len());
            return Err(Error::invalid(message));
        }
    };
    let new_name = text(matches, "as");
    client.recall_table(&table.id, new_name).await?;
    print(&format!("recalled table {}\n", new_name.unwrap_or(&table.name)));
    Ok(())
}

async fn run_row(env: &Env, kind: &str, matches: &ArgMatches) -> Result<(), ExitError> {
    let table = open(&connect(env, matches).await?, matches).await?;
    let kind_of = match kind {
        "insert" => RowOpKind::Insert,
        "upsert" => RowOpKind::Upsert,
        "update" => RowOpKind::Update,
        _ => RowOpKind::Delete,
    };
    let cells = row_cells(&table, texts(matches, "cell"))?;
    let row: Vec<ClientCell<'_>> = cells
        .iter()
        .map(|cell| match cell {
            None => ClientCell::Unset,
            Some(None) => ClientCell::Null,
            Some(Some(value)) => ClientCell::Value(value),
        })
        .collect();
    let session = table.client().session(SessionConfig::new(FlushMode::AutoSync));
    session.apply(&table, kind_of, &row, 0).await?;
    let done = match kind {
        "insert" => "inserted",
        "upsert" => "upserted",
        "update" => "updated",
        _ => "deleted",
    };
    print(&format!("{done} 1 row in {}\n", table.name()));
    Ok(())
}

/// Cell of a column: not given, NULL, or a value.
type GivenCell = Option<Option<Vec<u8>>>;

fn row_cells<'a>(table: &Table, given: impl Iterator<Item = &'a str>) -> Result<Vec<GivenCell>> {
    let schema = table.schema();
    let mut cells: Vec<GivenCell> = vec![None; schema.columns().len()];
    for text in given {
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let column = definitions::find(schema, name.trim(), table.name())?;
        let bad = |what: &str| Error::invalid(format!("column {:?}: {what}", column.name));
        let cell = match value {
            Some(value) => Some(parse_cell(column, value).map_err(|error| bad(&error.message))?),
            None if column.nullable => None,
            None => return Err(bad("NULL in a column that is NOT NULL")),
        };
        let index = schema.index_of_name(&column.name).expect("just found");
        if cells[index].replace(cell).is_some() {
            return Err(bad("given twice"));
        }
    }
    Ok(cells)
}
