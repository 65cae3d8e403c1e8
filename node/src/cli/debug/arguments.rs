//! Arguments that several commands of `nyala debug` share.

use clap::{Arg, Command};

use super::super::flag_options;

/// Adds the options that name a server's directories.
pub(super) fn with_directories(command: Command) -> Command {
    flag_options::add(command, |spec| ["fs_wal_dir", "fs_data_dirs"].contains(&spec.name))
}

/// Returns the argument that names a tablet.
pub(super) fn tablet_argument(required: bool) -> Arg {
    let help = if required { "Id of the tablet" } else { "Id of a tablet [default: all]" };
    Arg::new("tablet").value_name("TABLET").required(required).help(help)
}
