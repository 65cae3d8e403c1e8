//! nyala's storage engine: synchronous, deterministic, and reached by the world through one trait, [`disk::Disk`].

pub mod codec;
pub mod disk;
pub mod error;
pub mod ids;
pub mod schema;
pub mod time;
pub mod wal;
