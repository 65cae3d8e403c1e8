//! `nyala cluster upgrade …`: programs of the servers, and the format level of the cluster.

use clap::{Arg, ArgMatches, Command};
use engine::error::Result;
use nyala_client::Client;
use nyala_client::upgrade::{ServerProgram, UpgradeStatus};

use super::super::options::{base, text};
use super::super::output::{print, table as text_table};

/// `format` is the option of commands that print JSON.
pub(super) fn command(format: Arg) -> Command {
    let about = "Raise the format level; no server can return to an older program afterwards";
    let finalize = base("finalize", about).long_about(format!(
        "{about}.\n\nThe new level is the newest of the leading master's program. It is refused while a registered \
         server's program does not support it."
    ));
    Command::new("upgrade")
        .about("Show the programs of all servers, and finish an upgrade")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([
            base("status", "List each server's program and the format levels that it supports").arg(format),
            finalize,
        ])
}

pub(super) async fn run(client: &Client, name: &str, matches: &ArgMatches) -> Result<()> {
    match name {
        "status" => {
            let status = client.upgrade_status().await?;
            let json = text(matches, "format") == Some("json");
            print(&if json { to_json(&status) } else { to_text(&status) });
        }
        _ => {
            let level = client.raise_format_level().await?;
            print(&format!("the cluster has format level {level}\n"));
        }
    }
    Ok(())
}

fn to_text(status: &UpgradeStatus) -> String {
    let row = |server: &ServerProgram| {
        let id = server.id.map(|id| id.to_string()).unwrap_or_default();
        let (version, levels) = match &server.error {
            Some(error) => (format!("unknown: {error}"), String::new()),
            None => (server.version.clone(), server.levels.to_string()),
        };
        vec![id, server.address.clone(), server.role.to_string(), version, levels]
    };
    let header = ["server", "address", "role", "version", "supports"];
    let rows = text_table(&header, status.servers.iter().map(row));
    format!("{rows}the cluster has format level {}; {}\n", status.level, next_step(status))
}

fn next_step(status: &UpgradeStatus) -> String {
    let unknown = status.servers.iter().filter(|server| server.error.is_some()).count();
    let newest = status.servers.iter().map(|server| server.levels.newest).max().unwrap_or(status.level);
    let supported = status.supported();
    match supported > status.level {
        _ if newest <= status.level => "no program supports a newer one".to_string(),
        _ if unknown > 0 => format!("{unknown} servers do not reply"),
        true => format!("nyala cluster upgrade finalize raises it to {supported}"),
        false => format!("level {newest} needs a newer program on every server"),
    }
}

fn to_json(status: &UpgradeStatus) -> String {
    let object = |server: &ServerProgram| {
        serde_json::json!({
            "id": server.id.map(|id| id.to_string()),
            "address": server.address,
            "role": server.role,
            "version": server.version,
            "oldest_level": server.levels.oldest.0,
            "newest_level": server.levels.newest.0,
            "error": server.error,
        })
    };
    let servers: Vec<_> = status.servers.iter().map(object).collect();
    let all = serde_json::json!({
        "level": status.level.0,
        "supported_level": status.supported().0,
        "servers": servers,
    });
    serde_json::to_string_pretty(&all).expect("JSON values can be written") + "\n"
}
