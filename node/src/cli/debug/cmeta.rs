//! `nyala debug cmeta …`: shows and rewrites the consensus metadata of a stopped server's replicas.

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use engine::disk;
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
use crate::dirs::{Directory, StoppedServer};
use crate::server::flags::Flags;
use crate::server::split_host_port;
use nyala_client::definitions;
use nyala_common::env::Env;

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
             of the tablet first. The old file stays beside the new one, with .bak appended.",
        )
        .arg(tablet_argument(true))
        .arg(
            option("voters", "ID:HOST:PORT,...", "The voters; an id is a server's, 32 hex digits").required(true),
        )
        .arg(
            option("term", "N", "Term [default: the one after the highest known]")
                .value_parser(value_parser!(u64).range(1..)),
        )
        .arg(Arg::new("yes").long("yes").action(ArgAction::SetTrue).help("Do it; without, only show it"));
    Command::new("cmeta")
        .about("Show or rewrite consensus metadata of a stopped server")
        .subcommand_required(true)
        .subcommands([with_directories(show), with_directories(rewrite)])
}

pub(super) async fn run(env: &Env, matches: &ArgMatches, flags: &Flags) -> Result<(), ExitError> {
    let (name, matches) = matches.subcommand().expect("clap asks for a command");
    let server = open_server(env, flags).await?;
    let work = || match name {
        "print" => show(&server, text(matches, "tablet")),
        _ => rewrite(&server, matches),
    };
    print(&env.run(work).await?);
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

fn rewrite(server: &StoppedServer, matches: &ArgMatches) -> Result<String> {
    let (tablet, dir) = named_tablet(server, matches)?;
    let names = definitions::names(text(matches, "voters").unwrap_or_default());
    let peers = names.iter().map(|name| voter(name)).collect::<Result<Vec<_>>>()?;
    let old = consensus_meta_store::load(&*dir.disk, tablet);
    let last = last_op(server, tablet)?;
    let known = old.as_ref().map_or(0, |meta| meta.term).max(last.term);
    let term = matches.get_one::<u64>("term").copied().unwrap_or(known + 1);
    if term < known {
        return Err(Error::invalid(format!("term {term}: lower than one that this replica knows ({known})")));
    }
    // Masters take voters only from a configuration after the one they know. The next leader's first entry gets this
    // index, so that no other configuration has it.
    let opid_index = old.as_ref().ok().and_then(|meta| meta.committed.opid_index).max(Some(last.index + 1));
    let new = ConsensusMeta { term, ..ConsensusMeta::new(tablet, RaftConfig { opid_index, peers }) };
    let before = old.map_or_else(|error| format!("tablet {tablet}: {error}\n"), |meta| describe(&meta));
    if !matches.get_flag("yes") {
        return Ok(format!("now    {before}then   {}nothing was changed; --yes does it\n", describe(&new)));
    }
    keep_old(&dir, tablet)?;
    consensus_meta_store::store(&*dir.disk, &new)?;
    Ok(format!("before {before}now    {}", describe(&new)))
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

fn keep_old(dir: &Directory, tablet: TabletId) -> Result<()> {
    let path = format!("consensus-meta/{tablet}");
    let failed = |error: std::io::Error| Error::io(format_args!("keep {}/{path}", dir.path), &error);
    match disk::read_file(&*dir.disk, &path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        old => disk::replace_file(&*dir.disk, &format!("{path}.bak"), &old.map_err(failed)?).map_err(failed),
    }
}
