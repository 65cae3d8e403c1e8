//! Arguments that commands on a cluster share.

use clap::builder::NonEmptyStringValueParser;
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

/// Returns an argument that names a server. An empty name, such as that of a variable that is not set, is refused: it
/// would be the beginning of every id.
pub(super) fn named_server(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    required(name, value, help).value_parser(NonEmptyStringValueParser::new())
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

/// Returns true if a server has this address, or an id that begins so. No server has an empty name.
pub(super) fn is_named(name: &str, address: &str, id: Option<PeerId>) -> bool {
    let has_id = || id.is_some_and(|id| id.to_string().starts_with(name));
    !name.is_empty() && (address == name || has_id())
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
    servers.retain(|server| is_named(name, &address(server), Some(server.id)));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::cluster::command;

    #[test]
    fn a_server_is_named_by_its_address_or_the_beginning_of_its_id() {
        let named = |name: &str| is_named(name, "h:7050", Some(Uuid([0xab; 16])));
        assert_eq!(["h:7050", "abab", "ab"].map(named), [true; 3]);
        assert_eq!(["", "h", "b", "h:70500"].map(named), [false; 4]);
        assert!(!is_named("", "", None), "a server that has not registered has no address");
    }

    #[test]
    fn an_empty_name_of_a_server_is_refused() {
        let is_legal = |words: &[&str]| {
            let words = ["cluster"].iter().chain(words).copied();
            command().try_get_matches_from(words).is_ok()
        };
        let lines: [&[&str]; 7] = [
            &["drain", "S"],
            &["remove-master", "S"],
            &["maintenance", "S", "on"],
            &["set-flag", "S", "redact", "none"],
            &["unsafe-change-config", "T", "S"],
            &["check", "--down", "S"],
            &["step-down", "T", "--to", "S"],
        ];
        for line in lines {
            let empty: Vec<&str> = line.iter().map(|word| if *word == "S" { "" } else { *word }).collect();
            assert!(is_legal(line) && !is_legal(&empty), "{line:?}");
        }
        assert!(is_legal(&["set-flag", "all", "trace_dir", ""]), "a flag may be empty");
    }
}
