//! Type of a seed, shared by all that make them.

/// Target, input name and input.
pub type Seed = (&'static str, String, Vec<u8>);
