//! `nyala debug cmeta …`: shows and rewrites the consensus metadata of a stopped server's replicas.

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use engine::disk::{self, Disk};
use engine::error::{Error, Result};
use engine::ids::{OpId, TabletId, Uuid};
use engine::raft::{ConsensusMeta, Peer, RaftConfig};
use engine::replica::{consensus_meta_store, wal_dir};
use engine::wal::{Wal, WalConfig};

use super::super::exit::ExitError;
use super::super::options::{option, text};
use super::super::output::print;
use super::arguments::{tablet_argument, with_directories};
use super::stopped::{is_missing, named_tablet, open_server, view, wanted_tablets};
use crate::dirs::StoppedServer;
use crate::server::flags::Flags;
use crate::server::split_host_port;
use nyala_client::definitions;
use nyala_common::env::Env;

/// Greatest term that may be stored. Messages have terms as signed numbers, and the next election needs a greater one.
const TERM_MAX: u64 = i64::MAX as u64 - 1;

pub(super) fn command() -> Command {
    let show = Command::new("print")
        .about("Show term, vote and committed configuration")
        .arg(tablet_argument(false));
    let rewrite = Command::new("rewrite")
        .about("Replace a replica's configuration, or consensus metadata that rotted")
        .long_about(
            "Replace a replica's configuration, or consensus metadata that rotted.\n\n\
             For a tablet that has lost its majority, or whose only replica has lost its metadata. The replica may \
             then lead with these voters. Writes that only the lost replicas had are gone. Stop all other replicas \
             of the tablet first. The old file stays beside the new one, with .bak appended; a later rewrite keeps \
             that one and appends .bak2.",
        )
        .arg(tablet_argument(true))
        .arg(
            option("voters", "ID:HOST:PORT,...", "The voters; an id is a server's, 32 hex digits").required(true),
        )
        .arg(
            option("term", "N", "Term [default: the one after the highest known]")
                .value_parser(value_parser!(u64).range(1..=TERM_MAX)),
        )
        .arg(Arg::new("yes").long("yes").action(ArgAction::SetTrue).help("Do it; without, only show it"));
    Command::new("cmeta")
        .about("Show or rewrite consensus metadata of a stopped server")
        .subcommand_required(true)
        .subcommands([with_directories(show), with_directories(rewrite)])
}

pub(super) async fn run(env: &Env, matches: &ArgMatches, flags: &Flags) -> Result<(), ExitError> {
    let (name, matches) = matches.subcommand().expect("clap asks for a command");
    let printed = if name == "print" {
        let server = open_server(env, flags).await?;
        env.run(|| show(&server, text(matches, "tablet"))).await?
    } else {
        // The voters are checked first, because their faults need no directory.
        let voters = configuration(text(matches, "voters").unwrap_or_default()).map_err(ExitError::usage)?;
        let server = open_server(env, flags).await?;
        env.run(|| rewrite(&server, matches, voters)).await?
    };
    print(&printed);
    Ok(())
}

fn describe(meta: &ConsensusMeta) -> String {
    let vote = meta.voted_for.map_or("nobody".to_string(), |vote| vote.to_string());
    format!("tablet {}: term {}, voted for {vote}, {}\n", meta.tablet, meta.term, meta.committed)
}

fn show(server: &StoppedServer, wanted: Option<&str>) -> Result<String> {
    let mut out = String::new();
    for (tablet, dir) in wanted_tablets(server, wanted)? {
        match consensus_meta_store::load(&*view(&dir), tablet) {
            Ok(meta) => out.push_str(&describe(&meta)),
            Err(error) => out.push_str(&format!("tablet {tablet}: {error}\n")),
        }
    }
    Ok(out)
}

fn voter(text: &str) -> Result<Peer> {
    let bad = || Error::invalid(format!("voter {text:?}: not ID:HOST:PORT"));
    let (id, address) = text.split_once(':').ok_or_else(bad)?;
    let (host, port) = split_host_port(address).map_err(|_| bad())?;
    Ok(Peer::voter(Uuid::parse(id.as_bytes())?, host, port))
}

/// Returns the configuration of the voters in `text`; `Invalid` if no leader can be elected in it.
fn configuration(text: &str) -> Result<RaftConfig> {
    let peers = definitions::names(text).iter().map(|name| voter(name)).collect::<Result<_>>()?;
    let config = RaftConfig::initial(peers);
    config.check().map_err(|error| error.context("--voters"))?;
    Ok(config)
}

fn rewrite(server: &StoppedServer, matches: &ArgMatches, voters: RaftConfig) -> Result<String> {
    let (tablet, dir) = named_tablet(server, matches)?;
    let old = consensus_meta_store::load(&*dir.disk, tablet);
    let last = last_op(server, tablet)?;
    let known = old.as_ref().map_or(0, |meta| meta.term).max(last.term);
    let term = new_term(matches.get_one::<u64>("term").copied(), known)?;
    // Masters take voters only from a configuration after the one they know. The next leader's first entry gets this
    // index, so that no other configuration has it.
    let opid_index = old.as_ref().ok().and_then(|meta| meta.committed.opid_index).max(Some(last.index + 1));
    let new = ConsensusMeta { term, ..ConsensusMeta::new(tablet, RaftConfig { opid_index, ..voters }) };
    let before = old.map_or_else(|error| format!("tablet {tablet}: {error}\n"), |meta| describe(&meta));
    if !matches.get_flag("yes") {
        return Ok(format!("now    {before}then   {}nothing was changed; --yes does it\n", describe(&new)));
    }
    keep_old(&*dir.disk, tablet).map_err(|error| error.context(&dir.path))?;
    consensus_meta_store::store(&*dir.disk, &new)?;
    Ok(format!("before {before}now    {}", describe(&new)))
}

/// Returns the term to store: the wanted one, or the one after the highest that the replica knows.
fn new_term(wanted: Option<u64>, known: u64) -> Result<u64> {
    let term = wanted.unwrap_or(known.saturating_add(1));
    if term < known {
        return Err(Error::invalid(format!("term {term}: lower than one that this replica knows ({known})")));
    }
    if term > TERM_MAX {
        return Err(Error::invalid(format!(
            "term {term}: no election can follow it (at most {TERM_MAX}); if only the consensus metadata has such a \
             term, move its file away"
        )));
    }
    Ok(term)
}

/// Returns the last operation in the log.
fn last_op(server: &StoppedServer, tablet: TabletId) -> Result<OpId> {
    let config = WalConfig { segment_bytes_max: 8 << 20, preallocate: false, compress: false };
    let opened = Wal::open(view(&server.wal), &wal_dir(tablet), config, &mut |_| Ok(()));
    match opened {
        Err(error) if is_missing(&error) => Ok(OpId::MIN),
        opened => Ok(opened?.1.last_op),
    }
}

/// Copies the stored metadata to a name that is free. The first copy has what the server itself stored, vote included,
/// so that a later rewrite must not replace it.
fn keep_old(disk: &dyn Disk, tablet: TabletId) -> Result<()> {
    let path = format!("consensus-meta/{tablet}");
    let failed = |error: std::io::Error| Error::io(format_args!("keep {path}"), &error);
    let old = match disk::read_file(disk, &path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        old => old.map_err(failed)?,
    };
    let (mut copy, mut number) = (format!("{path}.bak"), 1);
    while disk.entry_kind(&copy).map_err(failed)?.is_some() {
        number += 1;
        copy = format!("{path}.bak{number}");
    }
    disk::replace_file(disk, &copy, &old).map_err(failed)
}

#[cfg(test)]
mod tests {
    use engine::disk::mem::MemDisk;

    use super::*;

    const A: &str = "000000000000000000000000000000aa";

    #[test]
    fn a_configuration_that_cannot_elect_is_refused() {
        let refused = |voters: &str| configuration(voters).expect_err(voters).message;
        let lines = [
            refused(""),
            refused(&format!("{A}:h:1,{A}:h:2")),
            refused(&format!("{A}:h:0")),
            refused(&format!("{A}:h")),
        ];
        expect_test::expect![[r#"
            --voters: a Raft configuration needs at least one voter
            --voters: peer 000000000000000000000000000000aa is named twice in the configuration
            --voters: peer 000000000000000000000000000000aa has no address in the configuration
            voter "000000000000000000000000000000aa:h": not ID:HOST:PORT"#]]
        .assert_eq(&lines.join("\n"));
        assert_eq!(configuration(&format!("{A}:h:1")).map(|config| config.voter_count()), Ok(1));
    }

    #[test]
    fn an_election_can_follow_the_stored_term() {
        assert_eq!(new_term(None, 7), Ok(8));
        assert_eq!(new_term(Some(7), 7), Ok(7));
        assert!(new_term(Some(6), 7).is_err());
        assert_eq!(new_term(None, TERM_MAX - 1), Ok(TERM_MAX));
        assert!(new_term(None, TERM_MAX).is_err());
        assert!(new_term(None, u64::MAX).is_err());
        let rewrite = |term: &str| {
            command().try_get_matches_from(["cmeta", "rewrite", A, "--voters", "a:h:1", "--term", term])
        };
        assert!(rewrite("9223372036854775806").is_ok());
        assert!(rewrite("9223372036854775807").is_err());
        assert!(rewrite("18446744073709551615").is_err());
    }

    #[test]
    fn a_later_rewrite_keeps_the_copies_of_earlier_ones() {
        let (disk, tablet) = (MemDisk::new(1), Uuid([5; 16]));
        let path = format!("consensus-meta/{tablet}");
        keep_old(&disk, tablet).expect("there is nothing to keep");
        disk::create_dir_durably(&disk, "consensus-meta").expect("created");
        for content in ["first", "second", "third"] {
            disk::replace_file(&disk, &path, content.as_bytes()).expect("stored");
            keep_old(&disk, tablet).expect("kept");
        }
        let kept = |end: &str| disk::read_file(&disk, &format!("{path}{end}")).expect("it is there");
        assert_eq!([".bak", ".bak2", ".bak3"].map(kept), [&b"first"[..], b"second", b"third"]);
    }
}
