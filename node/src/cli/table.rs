//! `nyala table …`: list, describe, create and drop tables; import and export rows.

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use engine::error::{Error, Result};
use engine::schema::Schema;

use super::exit::ExitError;
use super::options::{base, connect, many, named, open, option, spec, text, texts};
use super::output::{print, table as text_table, write_rows};
use nyala_client::definitions;
use nyala_common::number_text::{bytes, grouped};

use super::{export, import, table_changes};
use nyala_client::{Client, CreateTable, ScanSpec, Table};
use nyala_common::env::Env;
use nyala_files::delimited::{csv, csv_header};

/// A parsed command.
pub struct TableCommand {
    matches: ArgMatches,
}

pub(super) fn command() -> Command {
    Command::new("table")
        .about("List, create, alter and drop tables; write, import and export rows")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([
            base("list", "List tables")
                .arg(option("filter", "TEXT", "Only tables whose name contains this"))
                .arg(
                    Arg::new("dropped")
                        .long("dropped")
                        .action(ArgAction::SetTrue)
                        .help("Only dropped tables that can be recalled"),
                ),
            named("describe", "Show a table's columns, partitions and size"),
            create(),
            scan(),
            import::command(),
            export::command(),
        ])
        .subcommands(table_changes::commands())
}

fn create() -> Command {
    named("create", "Create a table")
        .after_help(format!("Types: {}", definitions::TYPES))
        .arg(
            many(
                "column",
                "DEF",
                "A column, e.g. 'price decimal(15,2) null default=0 encoding=bitshuffle'; key first",
            )
            .required(true),
        )
        .arg(option("key", "COLUMNS", "The primary key, e.g. 'a,b' [default: the first column]"))
        .arg(many("hash", "COLUMNS:N", "Spread rows over N buckets by a hash of key columns, e.g. 'a,b:8'"))
        .arg(option("range", "COLUMNS", "Partition by ranges of these key columns"))
        .arg(many(
            "bounds",
            "LOW..HIGH",
            "A range, e.g. '0..100' or '100..'; without any: one unbounded range",
        ))
        .arg(
            option("replicas", "N", "Replicas of each tablet [default: the cluster's]")
                .value_parser(value_parser!(i32)),
        )
        .arg(option("comment", "TEXT", "Comment of the table"))
}

fn scan() -> Command {
    named("scan", "Print a table's rows")
        .arg(option("columns", "NAMES", "Only these columns, e.g. 'a,b'"))
        .arg(many("where", "CONDITION", "Only rows that satisfy this, e.g. 'price >= 10'; may be repeated"))
        .arg(option("limit", "N", "At most this many rows").value_parser(value_parser!(u64)))
        .arg(
            Arg::new("count")
                .long("count")
                .action(ArgAction::SetTrue)
                .help("Print only the number of rows, up to --limit"),
        )
}

/// Returns the command in `matches` of [`command`].
pub(super) fn parse(matches: &ArgMatches) -> TableCommand {
    TableCommand { matches: matches.clone() }
}

impl TableCommand {
    /// Returns the first word of the command and what follows it.
    pub(super) fn words(&self) -> (&'static str, &ArgMatches) {
        ("table", &self.matches)
    }

    pub async fn run(self, env: &Env) -> Result<(), ExitError> {
        let (name, matches) = self.matches.subcommand().expect("clap asks for a command");
        match name {
            "create" => {
                // The definition is checked first, because its faults need no cluster.
                let create = definition(matches).map_err(ExitError::usage)?;
                let table = connect(env, matches).await?.create_table(&create).await?;
                print(&format!("created table {} ({})\n", table.name(), table.id()));
            }
            "list" => list(&connect(env, matches).await?, matches).await?,
            "describe" => describe(&open(&connect(env, matches).await?, matches).await?).await?,
            "scan" => print_rows(&open(&connect(env, matches).await?, matches).await?, matches).await?,
            "import" => import::run(env, matches).await?,
            "export" => export::run(env, matches).await?,
            _ => table_changes::run(env, name, matches).await?,
        }
        Ok(())
    }
}

fn definition(matches: &ArgMatches) -> Result<CreateTable> {
    let columns: Vec<&str> = texts(matches, "column").collect();
    let columns = columns.iter().zip(0..).map(|(text, id)| definitions::column(id, text));
    let columns = columns.collect::<Result<Vec<_>>>()?;
    let key = text(matches, "key").map_or_else(|| vec![columns[0].name.clone()], definitions::names);
    let leads = key.iter().zip(&columns).all(|(name, column)| *name == column.name);
    if key.len() > columns.len() || !leads {
        return Err(Error::invalid("the columns of --key come first, in the same order"));
    }
    let name = text(matches, "table").expect("it is required");
    let mut create = CreateTable::new(name, Schema::new(columns, key.len())?);
    for hash in texts(matches, "hash") {
        let (columns, buckets) = definitions::hash(hash)?;
        create = create.hash(&columns.iter().map(String::as_str).collect::<Vec<_>>(), buckets)?;
    }
    if let Some(range) = text(matches, "range") {
        let names = definitions::names(range);
        create = create.range(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
        let find = |name: &String| definitions::find(&create.schema, name, &create.name).cloned();
        let columns = names.iter().map(find).collect::<Result<Vec<_>>>()?;
        create.ranges = texts(matches, "bounds")
            .map(|bounds| definitions::range(bounds, &columns))
            .collect::<Result<Vec<_>>>()?;
    } else if texts(matches, "bounds").next().is_some() {
        return Err(Error::invalid("--bounds needs --range"));
    }
    create.replicas = matches.get_one::<i32>("replicas").copied();
    create.comment = text(matches, "comment").map(str::to_string);
    Ok(create)
}

async fn list(client: &Client, matches: &ArgMatches) -> Result<()> {
    let filter = text(matches, "filter");
    let tables = if matches.get_flag("dropped") {
        let mut dropped = client.deleted_tables().await?;
        dropped.retain(|table| table.name.contains(filter.unwrap_or_default()));
        dropped
    } else {
        client.list_tables(filter).await?
    };
    if tables.is_empty() {
        print("no tables\n");
        return Ok(());
    }
    let unknown = || "?".to_string();
    let row = |table: nyala_client::TableInfo| {
        let number = |number: Option<i32>| number.map_or_else(unknown, |number| number.to_string());
        let rows = table.live_rows.map_or_else(unknown, grouped);
        vec![table.name, rows, number(table.tablets), number(table.replicas), table.id]
    };
    let header = ["table", "rows>", "tablets>", "replicas>", "id"];
    print(&text_table(&header, tables.into_iter().map(row)));
    Ok(())
}

async fn describe(table: &Table) -> Result<()> {
    let schema = table.schema();
    let mut text = format!("TABLE {} ({})\n", table.name(), table.id());
    for column in schema.columns() {
        text.push_str(&format!("  {column}"));
        if let Some(default) = &column.write_default {
            let cell = engine::schema::format_cell(column.ty, column.attributes, default);
            text.push_str(&format!(" DEFAULT {cell}"));
        }
        if !column.comment.is_empty() {
            text.push_str(&format!("  -- {}", column.comment));
        }
        text.push('\n');
    }
    let key: Vec<&str> = schema.key_columns().iter().map(|column| column.name.as_str()).collect();
    text.push_str(&format!("PRIMARY KEY ({})\n", key.join(", ")));
    for line in table.partition_schema().show(schema) {
        text.push_str(&format!("{line}\n"));
    }
    let tokens = table.scan_tokens(&ScanSpec::default()).await?;
    let mut ranges: Vec<_> = tokens.iter().map(|token| token.tablet().partition.range()).collect();
    ranges.sort();
    ranges.dedup();
    if !table.partition_schema().range_columns.is_empty() {
        for range in &ranges {
            text.push_str(&format!("  {}\n", table.partition_schema().show_range(schema, range)));
        }
    }
    let statistics = table.client().table_statistics(table.name()).await?;
    text.push_str(&format!(
        "TABLETS {}\nREPLICAS {}\nOWNER {}\n",
        tokens.len(),
        table.num_replicas(),
        table.owner()
    ));
    if !table.comment().is_empty() {
        text.push_str(&format!("COMMENT {}\n", table.comment()));
    }
    let rows = statistics.live_rows.map_or("unknown".to_string(), |rows| grouped(rows.max(0) as u64));
    let size = bytes(statistics.disk_bytes.max(0) as u64);
    text.push_str(&format!("ROWS about {rows}\nON DISK about {size}\n"));
    print(&text);
    Ok(())
}

async fn print_rows(table: &Table, matches: &ArgMatches) -> Result<()> {
    let spec = spec(table, matches)?;
    if matches.get_flag("count") {
        print(&format!("{}\n", count(table, spec).await?));
        return Ok(());
    }
    let mut scanner = table.scan(spec)?;
    let mut text = csv_header(scanner.schema());
    while let Some(batch) = scanner.next_batch().await? {
        text.extend(csv(&batch, "NULL")?);
        if !write_rows(&text)? {
            return Ok(());
        }
        text.clear();
    }
    // The names of the columns, if there are no rows.
    write_rows(&text).map(drop)
}

/// Counts the rows of a scan, up to its limit.
async fn count(table: &Table, spec: ScanSpec) -> Result<u64> {
    let mut scanner = table.scan(ScanSpec { columns: Some(Vec::new()), ..spec })?;
    let mut rows = 0;
    while let Some(batch) = scanner.next_batch().await? {
        rows += batch.num_rows() as u64;
    }
    Ok(rows)
}
