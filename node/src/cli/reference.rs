//! `nyala reference`: settings, metrics and commands as Markdown pages, made from the tables of the code.
//!
//! ```text
//!   server/flags TABLE ──▶ settings.md      common/metrics METRICS ──▶ metrics.md      commands ──▶ commands.md
//! ```

use std::fmt::Write;

use clap::Command;

use crate::server::flags::{Class, FlagScope, FlagSpec, TABLE};
use nyala_common::metrics::definition::{EntityKind, MetricDef};
use nyala_common::metrics::prometheus::names_of;
use nyala_common::metrics::table::METRICS;

/// Heading of the options that are flags of a server; they are on the page of settings.
const FLAGS_HEADING: &str = "Flags";

/// Returns the file name and the text of each page.
pub(super) fn pages(program: Command) -> [(&'static str, String); 3] {
    [("settings.md", settings()), ("metrics.md", metrics()), ("commands.md", commands(program))]
}

/// Returns a text as it may stand in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('\n', " ")
}

/// Returns a value in the form of code; nothing for an empty one.
fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{}`", text.replace('|', "\\|")) }
}

/// Appends a heading and a table; no table without rows.
fn table(out: &mut String, heading: &str, about: &str, columns: &[&str], rows: &[Vec<String>]) {
    if rows.is_empty() {
        return;
    }
    write!(out, "\n## {heading}\n\n{about}\n\n").expect("a string grows");
    let mut line = |cells: &[String]| writeln!(out, "| {} |", cells.join(" | ")).expect("a string grows");
    line(&columns.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    line(&columns.iter().map(|_| "---".to_owned()).collect::<Vec<_>>());
    rows.iter().for_each(|row| line(row));
}

fn settings() -> String {
    let mut page =
        "# Settings\n\nFlags of `nyala master` and `nyala tablet-server`; in the TOML file of `--config` \
                    they have the same names. `/varz` of a server shows their values.\n"
            .to_owned();
    let shown: Vec<&FlagSpec> = TABLE.iter().filter(|spec| !spec.tags.contains(&"hidden")).collect();
    let effective: Vec<_> =
        shown.iter().filter(|spec| spec.has_effect()).map(|spec| effective(spec)).collect();
    let columns = ["setting", "servers", "default", "at run time", "meaning"];
    let about = "Settings that are changed at run time: `nyala cluster set-flag`.";
    table(&mut page, "With an effect", about, &columns, &effective);
    let limited: Vec<_> = shown.iter().filter_map(|spec| limited(spec)).collect();
    let about = "Kudu's settings that would grant something nyala lacks. Only values that grant nothing are accepted.";
    table(&mut page, "Refused", about, &["setting", "accepted", "why", "instead"], &limited);
    let inert = shown.iter().filter(|spec| matches!(spec.class, Class::Inert));
    let inert: Vec<_> = inert.map(|spec| vec![code(spec.name), cell(spec.help)]).collect();
    let about = "Kudu's settings that are accepted with a warning, because its tools and tests set them.";
    table(&mut page, "Without an effect", about, &["setting", "meaning in Kudu"], &inert);
    page
}

fn effective(spec: &FlagSpec) -> Vec<String> {
    let servers = match spec.servers {
        FlagScope::Both => "both",
        FlagScope::Master => "master",
        FlagScope::TabletServer => "tablet server",
    };
    let runtime = if spec.runtime { "yes" } else { "" };
    vec![code(spec.name), servers.to_owned(), code(spec.default), runtime.to_owned(), cell(spec.help)]
}

fn limited(spec: &FlagSpec) -> Option<Vec<String>> {
    let Class::Only(accepted, missing) = spec.class else { return None };
    let accepted: Vec<String> = accepted
        .iter()
        .map(|value| if value.is_empty() { "empty".to_owned() } else { code(value) })
        .collect();
    Some(vec![code(spec.name), accepted.join(", "), cell(missing.fault), cell(missing.action)])
}

fn metrics() -> String {
    let mut page =
        "# Metrics\n\nNames in the JSON of `/metrics`, and in the text of `/metrics_prometheus`. A metric \
                    that Kudu has too means what Kudu means by it; the others begin with `nyala_` in text.\n"
            .to_owned();
    for (entity, about) in [
        (EntityKind::Server, "One value a server; masters have those of their replica and of the catalog."),
        (EntityKind::Table, "One value a table, on the leading master."),
        (EntityKind::Tablet, "One value a replica; the catalog of a master is one, too."),
    ] {
        let rows: Vec<_> = METRICS.iter().filter(|def| def.entity == entity).map(|def| metric(def)).collect();
        let columns = ["name", "in text", "kind", "unit", "level", "meaning"];
        let name = entity.name();
        let heading = format!("{}{}", name[..1].to_uppercase(), &name[1..]);
        table(&mut page, &heading, about, &columns, &rows);
    }
    page
}

fn metric(def: &MetricDef) -> Vec<String> {
    let names: Vec<String> = names_of(def).iter().map(|name| code(name)).collect();
    let (kind, unit, level) = (def.kind.name(), def.unit, def.level.name());
    vec![code(def.name), names.join(" "), kind.to_owned(), unit.to_owned(), level.to_owned(), cell(def.help)]
}

fn commands(mut program: Command) -> String {
    let mut page =
        "# Commands\n\nThe help of every command, `nyala COMMAND --help`. The flags of servers are \
                    [settings](settings.md).\n"
            .to_owned();
    program.build();
    add_command(&program, "nyala", &mut page);
    page
}

/// Appends the help of a command and of those below it.
fn add_command(command: &Command, name: &str, page: &mut String) {
    let flags = command.get_arguments().filter(|arg| arg.get_help_heading() == Some(FLAGS_HEADING));
    let flags: Vec<String> = flags.map(|arg| arg.get_id().to_string()).collect();
    let mut shown = command.clone().term_width(100);
    for flag in flags {
        shown = shown.mut_arg(flag, |arg| arg.hide(true));
    }
    let help = shown.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    write!(page, "\n## {name}\n\n```text\n{}\n```\n", lines.join("\n").trim()).expect("a string grows");
    for below in command.get_subcommands().filter(|below| below.get_name() != "help" && !below.is_hide_set())
    {
        add_command(below, &format!("{name} {}", below.get_name()), page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the text of one page.
    fn page(name: &str) -> String {
        let pages = pages(crate::cli::command());
        pages.into_iter().find(|(file, _)| *file == name).expect("the page").1
    }

    #[test]
    fn every_setting_metric_and_command_is_on_its_page() {
        let (settings, metrics, commands) = (page("settings.md"), page("metrics.md"), page("commands.md"));
        for spec in TABLE.iter().filter(|spec| !spec.tags.contains(&"hidden")) {
            assert!(settings.contains(&format!("\n| `{}` |", spec.name)), "{}", spec.name);
        }
        for def in METRICS {
            assert!(metrics.contains(&format!("\n| `{}` |", def.name)), "{}", def.name);
        }
        for command in ["nyala", "nyala master", "nyala table create", "nyala debug fs check"] {
            assert!(commands.contains(&format!("\n## {command}\n")), "{command}");
        }
        assert!(!commands.contains("--fs-wal-dir <TEXT>"), "flags are on the page of settings");
    }

    #[test]
    fn rows_have_as_many_cells_as_their_table_has_columns() {
        for (file, text) in pages(crate::cli::command()).iter().filter(|(file, _)| *file != "commands.md") {
            let mut columns = 0;
            for line in text.lines() {
                let cells = line.replace("\\|", "").matches('|').count();
                assert!(cells == 0 || columns == 0 || cells == columns, "{file}: {line}");
                columns = cells;
            }
        }
    }
}
