//! Arguments that several commands of `nyala debug` share.

use clap::Command;

use super::super::flag_options;

/// Adds the options that name a server's directories.
pub fn with_directories(command: Command) -> Command {
    flag_options::add(command, |spec| ["fs_wal_dir", "fs_data_dirs"].contains(&spec.name))
}
