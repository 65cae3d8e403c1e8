//! nyala's storage engine: synchronous, deterministic, and reached by the world through one trait, [`disk::Disk`].

pub mod catalog;
pub mod cfile;
pub mod codec;
pub mod config;
pub mod disk;
pub mod error;
pub mod ids;
pub mod memory;
pub mod note;
pub mod raft;
pub mod replica;
pub mod schema;
pub mod sync;
pub mod tablet;
pub mod time;
pub mod wal;
pub mod watch;
