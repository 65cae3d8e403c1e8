//! The tablet server.

mod log;
pub mod replica;
pub mod scanners;
