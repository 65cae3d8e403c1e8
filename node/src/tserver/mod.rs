//! The tablet server.

pub mod scanners;
