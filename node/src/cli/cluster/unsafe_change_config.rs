//! `nyala cluster unsafe-change-config`: new voters for a tablet that has lost its majority.
//!
//! Invariant: while a majority of the voters runs, only `--force` changes them. Such a tablet elects a leader by
//! itself, and would lose rows that were acknowledged.

use clap::{ArgMatches, Command};
use engine::error::{Error, Result};
use engine::ids::{PeerId, TabletId, Uuid};
use futures_util::future::join_all;
use nyala_client::Client;

use super::arguments::{argument, find_registered_server, flag, named_server, required};
use super::observe::{Observation, address, observe_server};
use crate::cli::options::{base, option, texts};
use crate::cli::output::print;

pub(super) fn command() -> Command {
    let about = "Give a tablet that has lost its majority the voters that are left";
    let long = format!(
        "{about}.\n\nThe replica on SERVER leads from then on, and the masters add replicas until there are as many \
         as wanted. Writes that only the lost replicas had are lost. Choose the replica whose last operation has the \
         highest term, and of these the highest index: cluster check prints it as term.index. A tablet of which a \
         majority runs is refused."
    );
    base("unsafe-change-config", about)
        .long_about(long)
        .arg(required("tablet", "TABLET", "Id of the tablet"))
        .arg(named_server("server", "SERVER", "The server whose replica is left"))
        .arg(option("voters", "ID,...", "The voters [default: the server alone]").value_delimiter(','))
        .arg(flag("yes", "Do it; without, only show it"))
        .arg(flag("force", "Even if a majority of the voters runs"))
}

pub(super) async fn run(client: &Client, matches: &ArgMatches) -> Result<()> {
    let tablet = Uuid::parse(argument(matches, "tablet").as_bytes())?;
    let server = find_registered_server(client, argument(matches, "server")).await?;
    let voters = texts(matches, "voters").map(|id| Uuid::parse(id.as_bytes()));
    let mut voters = voters.collect::<Result<Vec<PeerId>>>()?;
    if voters.is_empty() {
        voters.push(server.id);
    }
    if !matches.get_flag("force") {
        refuse_majority(client, tablet).await?;
    }
    let shown = voters.iter().map(PeerId::to_string).collect::<Vec<_>>().join(", ");
    if !matches.get_flag("yes") {
        print(&format!(
            "tablet {tablet} would have the voters {shown}; nothing was changed; --yes does it\n"
        ));
        return Ok(());
    }
    client.unsafe_change_config(tablet, server.id, &address(&server), &voters).await?;
    print(&format!("tablet {tablet} has the voters {shown}\n"));
    Ok(())
}

/// Refuses a tablet of which a majority of the voters runs.
async fn refuse_majority(client: &Client, tablet: TabletId) -> Result<()> {
    let deadline = client.env().now().mono.after(client.config().operation_timeout);
    let replicas = client.tablet_replicas(tablet, deadline).await;
    let replicas = replicas.map_err(|error| {
        error.context(format_args!("tablet {tablet}: its voters are not known; give --force to do without"))
    })?;
    let mut servers = client.servers().await?;
    servers.retain(|server| replicas.replicas.iter().any(|replica| replica.server == server.id));
    let servers = join_all(servers.into_iter().map(|info| observe_server(client, info))).await;
    let voters = Observation { servers, ..Observation::default() }.voters(&replicas);
    match voters.has_majority() {
        true => Err(Error::invalid(format!(
            "tablet {tablet}: {voters}, and elect a leader by themselves; see nyala cluster check, or give --force"
        ))),
        false => Ok(()),
    }
}
