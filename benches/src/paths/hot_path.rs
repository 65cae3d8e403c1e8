//! Types of hot paths, shared by all of them.

/// A prepared path.
pub type Run = Box<dyn FnMut()>;

/// Amount of work of one run of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkloadSize {
    Rows(u64),
    Bytes(u64),
}
