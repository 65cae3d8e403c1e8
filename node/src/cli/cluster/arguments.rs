//! Arguments that commands on a cluster share.

use clap::{Arg, ArgAction, ArgMatches};
use engine::error::{Error, ErrorKind, Result};
use engine::ids::{PeerId, Uuid};
use nyala_client::Client;
use nyala_client::replica_admin::ServerInfo;

use super::observe::{NOT_REGISTERED, address};
use crate::cli::options::text;

/// Returns an argument that must be given; [`argument`] reads it.
pub(super) fn required(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).value_name(value).required(true).help(help)
}

pub(super) fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

/// Returns the value of a required argument.
pub(super) fn argument<'a>(matches: &'a ArgMatches, name: &str) -> &'a str {
    text(matches, name).expect("it is required")
}

pub(super) fn number(matches: &ArgMatches, name: &str) -> u64 {
    *matches.get_one::<u64>(name).expect("it has a default")
}

/// Returns a tablet server that can be called.
pub(super) async fn find_registered_server(client: &Client, name: &str) -> Result<ServerInfo> {
    let server = find_server(client, name).await?;
    match server.is_registered() {
        true => Ok(server),
        false => {
            Err(Error::not_ready(format!("tablet server {}: {NOT_REGISTERED}; start it first", server.id)))
        }
    }
}

/// Returns the tablet server of this address, id, or beginning of an id. It may have no address.
pub(super) async fn find_server(client: &Client, name: &str) -> Result<ServerInfo> {
    let mut servers = client.servers().await?;
    let named = |server: &ServerInfo| address(server) == name || server.id.to_string().starts_with(name);
    servers.retain(named);
    match servers.len() {
        1 => Ok(servers.remove(0)),
        0 => Err(Error::not_found(format!("tablet server {name}: not known; see nyala cluster servers"))),
        many => Err(Error::invalid(format!(
            "tablet server {name}: not unique ({many} servers); give more digits"
        ))),
    }
}

/// Returns the id of a tablet server as [`find_server`] does, or one that is given in full: masters do not list a
/// server that they have forgotten.
pub(super) async fn find_server_id(client: &Client, name: &str) -> Result<PeerId> {
    match find_server(client, name).await {
        Err(error) if error.kind == ErrorKind::NotFound => Uuid::parse(name.as_bytes()).map_err(|_| error),
        found => found.map(|server| server.id),
    }
}
