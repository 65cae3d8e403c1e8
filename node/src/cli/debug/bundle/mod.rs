//! `nyala debug bundle`: everything that support asks for, in one `tar.gz`.
//!
//! ```text
//!   index.txt          version, time, files, and what could not be collected
//!   cluster/check.txt  check.json                      with --masters, or without directories
//!   servers/ID/…       pages and metrics of the web port of each server that replies
//!   files/check.txt    dump.txt                        with --fs-wal-dir: a stopped server's directories
//! ```
//!
//! Pages show no cells, flags with secrets are redacted by the servers, and rowsets of superblocks are shown without
//! their first and last key. A part that cannot be collected is a line of the index and of the command's error: a
//! bundle of a broken cluster is the one that is needed.

mod archive;
mod pages;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use engine::error::Result;
use nyala_client::Client;

use super::super::cluster;
use super::super::exit::{ExitError, FAILED};
use super::super::options::{base, connect, option, text};
use super::super::output::print;
use super::arguments::with_directories;
use super::fs::{self, KeyBounds};
use super::stopped::open_server;
use crate::server::VERSION;
use crate::server::flags::Flags;
use archive::Bundle;
use nyala_backup::files::OutputFile;
use nyala_common::env::Env;
use pages::{PageClient, WebPort};

pub(super) fn command() -> Command {
    let bundle = base("bundle", "Collect what support asks for, of a running cluster or a stopped server")
        .long_about(
            "Collect what support asks for, of a running cluster or a stopped server: check, flags without secrets, \
             versions, metrics, pages and the end of the logs of each server; with --fs-wal-dir also the state of a \
             stopped server's files. Bundles have no rows, but names of tables, columns, users and hosts. Exit code \
             1 if a part could not be collected: the bundle is written, and the command names the part.",
        )
        .arg(option(
            "web-ca-cert",
            "FILE",
            "PEM file of the CAs of web ports with HTTPS [default: --ca-cert, or the CAs that this machine trusts]",
        ))
        .arg(option("web-user", "NAME", "User of web ports with passwords").requires("web-password-file"))
        .arg(
            option("web-password-file", "FILE", "File of that user's password; needs --web-ca-cert or --ca-cert")
                .requires("web-user"),
        )
        .arg(option("output", "FILE", "The bundle").short('o').default_value("nyala-bundle.tar.gz"))
        .arg(Arg::new("force").long("force").action(ArgAction::SetTrue).help("Replaces the file"));
    with_directories(bundle)
}

pub(super) async fn run(env: &Env, matches: &ArgMatches, flags: &Flags) -> Result<(), ExitError> {
    let path = text(matches, "output").expect("it has a default");
    let pages = PageClient::new(env, matches)?;
    // Order: the file is created first, because a collection takes minutes and would be lost.
    let file = OutputFile::create(env, path, matches.get_flag("force"))?;
    let mut bundle = Bundle::new(env.now().wall);
    let has_directories = flags.is_given("fs_wal_dir") || flags.is_given("fs_data_dirs");
    let has_masters = matches.value_source("masters") == Some(ValueSource::CommandLine);
    if has_masters || !has_directories {
        match connect(env, matches).await {
            Ok(client) => of_cluster(env, &client, &pages, &mut bundle).await,
            Err(error) => bundle.failed("cluster", &error.message),
        }
    }
    if has_directories {
        of_files(env, flags, &mut bundle).await;
    }
    let bytes = env.run(|| bundle.write(file, VERSION)).await?;
    let (files, failures) = (bundle.files(), bundle.failures().len());
    print(&format!("{path}: {files} files, {bytes} bytes, {failures} failures (see index.txt in it)\n"));
    let missing = bundle.failures().iter().map(|failure| format!("not collected: {failure}"));
    match failures {
        0 => Ok(()),
        _ => Err(ExitError { code: FAILED, message: missing.collect::<Vec<_>>().join("\n") }),
    }
}

/// Adds the check of the cluster and the pages of its servers.
async fn of_cluster(env: &Env, client: &Client, pages: &PageClient, bundle: &mut Bundle) {
    match cluster::check_report(client).await {
        Ok((text, json)) => {
            bundle.add("cluster/check.txt", text.into_bytes());
            bundle.add("cluster/check.json", json.into_bytes());
        }
        Err(error) => bundle.failed("cluster/check.txt", &error.message),
    }
    let addresses = match cluster::addresses(client).await {
        Ok(addresses) => addresses,
        Err(error) => return bundle.failed("servers", &error.message),
    };
    for (address, https) in addresses {
        match client.server_status(&address).await {
            Err(error) => bundle.failed(&format!("servers at {address}"), &error.message),
            Ok(status) => {
                let dir = format!("servers/{}", status.id);
                bundle.add(
                    &format!("{dir}/version.txt"),
                    format!("{address} {}\n", status.version).into_bytes(),
                );
                match status.web.first() {
                    Some(web) => pages.collect(env, &WebPort { address: web, https }, &dir, bundle).await,
                    None => bundle.failed(&dir, "the server has no web port"),
                }
            }
        }
    }
}

/// Adds the state of a stopped server's files.
async fn of_files(env: &Env, flags: &Flags, bundle: &mut Bundle) {
    let server = match open_server(env, flags).await {
        Ok(server) => server,
        Err(error) => return bundle.failed("files", &error.message),
    };
    let (check, dump) =
        env.run(|| (fs::check_text(env, &server), fs::dump(&server, None, KeyBounds::LeftOut))).await;
    for (name, found) in [("files/check.txt", check), ("files/dump.txt", dump)] {
        match found {
            Ok(text) => bundle.add(name, text.into_bytes()),
            Err(error) => bundle.failed(name, &error.message),
        }
    }
}
